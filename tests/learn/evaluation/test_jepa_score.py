"""The score of the Jacobian: closed forms of known maps, invariances, and no state."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from vergence.learn.evaluation.jepa_score import EPS, jacobian_score


def linear(matrix):
    net = nn.Linear(matrix.shape[1], matrix.shape[0], dtype=matrix.dtype)
    net.weight.data.copy_(matrix)
    return net


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_map_has_the_logarithms_of_its_singular_values(shape, dtype):
    A, x = torch.randn(shape, dtype=dtype), torch.randn(4, shape[1], dtype=dtype)
    found, D = jacobian_score(linear(A), x), min(shape)
    expected = -torch.linalg.svdvals(A.double()).log().sum()
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected.expand(4), rtol=1e-5 if dtype == torch.float32 else 1e-9)
    turned = nn.Sequential(linear(A), linear(torch.linalg.qr(torch.randn(shape[0], shape[0], dtype=dtype))[0]))
    assert torch.allclose(jacobian_score(turned, x), found, atol=1e-4)
    assert torch.allclose(jacobian_score(linear(3 * A), x), found - D * math.log(3), atol=1e-4)


def test_a_curved_map_has_its_closed_form_and_its_rank_one_is_bounded():
    x = torch.randn(7, 3, dtype=torch.float64)
    assert torch.allclose(jacobian_score(nn.Tanh(), x), -(1 - x.tanh().square()).log().sum(1))
    flat = linear(torch.outer(torch.ones(4), torch.tensor([0.0, 2.0])).double())  # one singular value, 4
    assert torch.allclose(jacobian_score(flat, x[:, :2]), torch.tensor(-math.log(4 * EPS)).double(), atol=1e-9)


def test_networks_on_images_in_any_mode_batch_and_thread():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5)).float()
    x = torch.randint(0, 256, (9, 1, 6, 6), dtype=torch.uint8)
    with torch.inference_mode():
        found = jacobian_score(net, x)
    J = torch.func.vmap(torch.func.jacrev(lambda one: net.eval()(one[None])[0]))(x.float() / 255).flatten(2)
    assert torch.allclose(found, -torch.linalg.svdvals(J).log().sum(1), atol=1e-4)
    net.train()
    assert torch.allclose(jacobian_score(net, x[4:5]), found[4:5], atol=1e-5) and net.training
    net.eval()
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(one, found) for one in pool.map(lambda _: jacobian_score(net, x), range(8)))
    assert all(p.grad is None for p in net.parameters()) and jacobian_score(net, x[:0]).shape == (0,)


def test_what_has_no_jacobian_is_refused():
    class Closed(nn.Linear):
        def forward(self, x):
            return super().forward(x.detach())

    for net, x, message in (
        (nn.Identity(), torch.ones(2, 3, dtype=torch.int64), "floats or bytes"),
        (nn.Identity(), torch.ones(2, 1, 4, 4), r"embeddings \(B, D\)"),
        (Closed(3, 2), torch.ones(2, 3), "differentiable by its input"),
        (linear(torch.eye(2)), torch.tensor([[0.0, math.nan]]), "finite items"),
    ):
        with pytest.raises(ValueError, match=message):
            jacobian_score(net, x)
