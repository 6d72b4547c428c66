"""Uncertainty: equal to references in loops, known limits, planted errors, and clear words for bad input."""

import numpy as np
import pytest
import torch
from tests.reference import uncertainty as reference

from vergence.learn.evaluation.anomaly import detection
from vergence.learn.evaluation.uncertainty import crop_spread, equalizer, neighbor_is_right, neighbor_spread


def noisy_classes(n=400, seed=0):
    """Three classes at right angles; every item has noise of a strength of its own, which is the true uncertainty."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    strength = torch.rand(n, generator=g) * 1.2
    return torch.eye(3)[y] + strength[:, None] * torch.randn(n, 3, generator=g), y, strength


def test_measurements_are_those_of_the_references():
    g = torch.Generator().manual_seed(0)
    z, y = torch.randn(30, 4, generator=g), torch.randint(3, (30,), generator=g)
    u = torch.randint(6, (30,), generator=g).double()  # with ties
    right = neighbor_is_right(z, y)
    assert right.tolist() == reference.neighbor_is_right(z.tolist(), y.tolist())
    assert detection(u, ~right)["auroc"] == pytest.approx(reference.auroc(u.tolist(), (~right).tolist()), abs=1e-12)
    views = torch.randn(4, 6, 3, generator=g)
    assert np.allclose(crop_spread(views)[1], reference.crop_spread(views.tolist()), atol=1e-12)
    assert np.allclose(neighbor_spread(z[:20], z[20:], 5), reference.neighbor_spread(z[:20].tolist(), z[20:].tolist(), 5))


def test_a_true_uncertainty_ranks_errors_and_so_does_the_neighbor_spread():
    z, y, strength = noisy_classes(900)
    wrong = ~neighbor_is_right(z, y)
    assert detection(strength, wrong)["auroc"] > 0.7 and abs(detection(torch.rand(len(z)), wrong)["auroc"] - 0.5) < 0.1
    assert detection(neighbor_spread(z[:600], z[600:]), ~neighbor_is_right(z[600:], y[600:]))["auroc"] > 0.55


def test_the_order_of_the_items_and_lengths_change_nothing():
    z, y, _ = noisy_classes(100)
    right, order = neighbor_is_right(z, y), torch.randperm(100)
    assert torch.equal(right, neighbor_is_right(z * torch.rand(100, 1).add(0.1), y))
    assert torch.equal(neighbor_is_right(z[order], y[order]), right[order])


def test_the_nearest_other_item_is_never_the_item_itself():
    """A planted error: with itself as a neighbor every item would be right; duplicates of another class must count as wrong."""
    z = torch.randn(20, 3).repeat(2, 1)
    assert not neighbor_is_right(z, torch.arange(2).repeat_interleave(20)).any()
    assert neighbor_is_right(z, torch.arange(20).repeat(2)).all()


def test_spread_over_crops_has_its_limits():
    z = torch.randn(1, 7, 5)
    mean, spread = crop_spread(z.expand(4, -1, -1) * torch.rand(4, 1, 1).add(0.1))
    assert torch.allclose(spread, torch.zeros(7), atol=1e-6) and torch.allclose(mean, z[0] / z[0].norm(dim=1, keepdim=True))
    assert torch.allclose(crop_spread(torch.cat([z, -z]))[1], torch.ones(7))


def test_equalized_directions_have_deviations_to_a_smaller_power():
    g = torch.Generator().manual_seed(0)
    x = 5 + torch.randn(500, 4, generator=g) * torch.tensor([10.0, 3.0, 1.0, 0.0])
    x = x @ torch.linalg.qr(torch.randn(4, 4, generator=g))[0]
    s = torch.linalg.svdvals(x - x.mean(0)) / 499**0.5
    for power in (0.0, 0.5, 1.0):
        z = equalizer(x, power=power)(x)
        assert z.shape == (500, 3) and torch.allclose(z.mean(0), torch.zeros(3), atol=1e-9)
        assert torch.allclose(z.std(0), s[:3] ** (1 - power))
        assert torch.allclose(z.T.cov(), z.T.cov().diagonal().diag(), atol=1e-9)
    assert equalizer(x, directions=2)(x).shape == (500, 2)


def test_whole_numbers_are_embeddings_and_one_item_has_no_directions():
    z = torch.tensor([[1, 0], [2, 0], [0, 1], [0, 3]])
    assert neighbor_is_right(z, [0, 0, 1, 1]).all() and neighbor_is_right(z.numpy(), np.array([0, 0, 1, 1])).all()
    assert crop_spread(torch.stack([z, z]))[1].abs().max() < 1e-6
    assert neighbor_spread(z, z[:1], k=2).shape == (1,)
