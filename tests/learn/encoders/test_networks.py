import pytest
import torch
from torch import nn

from vergence.learn.encoders import building, networks
from vergence.learn.encoders.config import as_encoder

GRAY, COLOR = (torch.tensor([0.5]), torch.tensor([0.2])), (torch.full((3,), 0.5), torch.full((3,), 0.2))


def test_standardize_is_the_formula_for_bytes_and_floats():
    mean, std = torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0.1, 0.2, 0.3])
    x = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    found = networks.Standardize(mean, std)(x)
    for c in range(3):
        assert torch.allclose(found[:, c], (x[:, c] / 255.0 - mean[c]) / std[c])
    assert torch.allclose(networks.Standardize(mean, std)(x.double() / 255), found)
    v = torch.randn(6, 3)
    assert torch.allclose(networks.Standardize(mean, std)(v), (v - mean) / std)


@pytest.mark.parametrize(
    "name, layers, cost", [("small", networks.SHALLOW, 15_040_512), ("small-deep", networks.DEEP, 22_020_096)]
)
def test_small_networks_are_those_of_the_recipes(name: str, layers: tuple[tuple[int, int, int], ...], cost: int):
    net = building.encoder(name, (3, 32, 32), torch.zeros(3), torch.ones(3))
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert tuple((c.out_channels, c.kernel_size[0], c.stride[0]) for c in convs) == layers
    assert sum(isinstance(m, nn.BatchNorm2d) for m in net.modules()) == len(layers)
    products = []
    for conv in convs:
        conv.register_forward_hook(lambda c, x, y: products.append(c.weight.numel() * y.shape[-1] ** 2))
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 256)
    assert sum(products) == cost
    assert net(torch.randn(2, 3, 7, 7)).shape == (2, 256)


@pytest.mark.parametrize(
    ("name", "side", "stride"),
    [("resnet18", 32, 1), ("resnet18", 96, 2), ("resnet18-imagenet", 32, 2), ("resnet18-cifar", 96, 1)],
)
def test_resnets_have_the_stem_that_is_named_and_any_channels(name, side, stride):
    net = building.build(as_encoder(name), (1, side, side))
    assert net.conv1.stride == (stride, stride) and net.conv1.in_channels == 1
    assert isinstance(net.maxpool, nn.MaxPool2d) is (stride == 2)
    if stride == 1:
        assert sum(p.numel() for p in net.parameters()) == 11_168_832 - 2 * 64 * 9  # of one channel
    assert net.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 512)


def test_timm_models_come_with_pooled_features():
    pytest.importorskip("timm", reason="the extra 'timm' is not installed")
    net = building.encoder("timm:resnet10t", (3, 64, 64), *COLOR)
    assert net(torch.zeros(2, 3, 64, 64)).ndim == 2
    vit = building.encoder("timm:vit_tiny_patch16_224", (3, 64, 64), *COLOR)
    assert vit(torch.zeros(2, 3, 64, 64)).shape == (2, 192)


def test_projector_ends_linear_and_is_the_identity_for_no_widths():
    head = networks.projector(8, (16, 4))
    assert isinstance(head[-1], nn.Linear) and head(torch.randn(3, 8)).shape == (3, 4)
    assert sum(isinstance(m, nn.LayerNorm) for m in head) == 1
    x = torch.randn(3, 8)
    assert torch.equal(networks.projector(8, ())(x), x)


def test_projectors_with_batch_normalization():
    x = torch.randn(32, 8)
    head, last = networks.projector(8, (16, 4), "batch"), networks.projector(8, (16, 4), "batch_last")
    assert [type(m).__name__ for m in head] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    z = last(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(4), rtol=0, atol=1e-6)
    torch.testing.assert_close(z.var(0, correction=0), torch.ones(4), rtol=0, atol=1e-2)
    assert head(x).var(0).min() < 0.5, "the other one does not normalize its output"
    assert [p.shape for p in last[1].parameters()] == []
    assert torch.equal(networks.projector(8, (), "batch")(x), x)
