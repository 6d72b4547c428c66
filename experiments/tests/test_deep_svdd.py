"""The baseline Deep SVDD: its loss's gradient by hand and by finite differences, its center, and what it detects."""

import pytest
import torch
from experiments.one_class import deep_svdd as ds
from sklearn.metrics import roc_auc_score
from torch import nn


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=12, seed=0):
    return torch.rand(n, 3, 16, 16, generator=seeded(seed), dtype=torch.float64)


def double_network():
    torch.manual_seed(0)
    return ds.network(3, 16).double(), torch.randn(ds.DIM, generator=seeded(1), dtype=torch.float64)


def test_the_network_has_neither_biases_nor_scales_and_shifts():
    for module in (ds.network(3, 32), ds.Decoder(3, 32)):
        assert [name for name, _ in module.named_parameters() if not name.endswith("weight")] == []
        norms = [one for one in module.modules() if isinstance(one, nn.BatchNorm2d)]
        assert norms and all(one.weight is None and one.bias is None for one in norms)


def test_the_gradient_of_all_layers_agrees_with_finite_differences():
    net, center = double_network()
    x, step = images(), 1e-6
    ds.loss(net(x), center).backward()
    for number, parameter in enumerate(net.parameters()):
        way = torch.randn(parameter.shape, generator=seeded(number), dtype=torch.float64)
        way /= way.norm()  # short, so that few units change their sign
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(way, alpha=sign * step)
                values.append(ds.loss(net(x), center).item())
                parameter.sub_(way, alpha=sign * step)
        assert (parameter.grad * way).sum().item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)


@pytest.mark.slow
@pytest.mark.float32
def test_it_comes_closer_to_the_center_without_collapsing_and_ranks_other_images():
    def bars(n, vertical, seed):
        x = torch.zeros(n, 1, 16, 16, dtype=torch.uint8)
        for one, where in zip(x, torch.randint(0, 14, (n,), generator=seeded(seed)).tolist(), strict=True):
            one[:, :, where : where + 3] = 200
        x = x if vertical else x.transpose(2, 3)
        return x + torch.randint(0, 50, x.shape, generator=seeded(seed)).byte()

    found = ds.DeepSvdd(epochs=8, batch_size=50).fit(bars(200, True, 0))
    assert found.distances[-1] < found.distances[0]
    scores = found.anomaly_score(torch.cat([bars(50, True, 1), bars(50, False, 2)]))
    assert scores[:50].std() > 0
    assert roc_auc_score([0] * 50 + [1] * 50, scores) > 0.9
