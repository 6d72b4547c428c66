"""Barlow Twins: value and gradient against loops and lightly, invariances, and planted errors."""

import pytest
import torch
from tests.objectives.published import D, difference, pair, total
from tests.reference import paired as slow
from torch.nn.functional import batch_norm

from vergence.objectives.barlow_twins import BarlowTwins


def reference(za, zb, fixed_a, fixed_b):
    return slow.barlow_twins(za, zb, lam=0.3)


def test_value_and_gradient_are_those_of_the_loops():
    assert difference(lambda *z: total(BarlowTwins(D, redundancy=0.3), *z), reference, *pair()) < 1e-7


def test_equal_to_lightlys_loss():
    from lightly.loss import BarlowTwinsLoss

    torch.testing.assert_close(total(BarlowTwins(D), *pair()), BarlowTwinsLoss()(*pair()), rtol=1e-12, atol=1e-12)


def test_the_scale_is_a_factor_of_the_loss_and_positive():
    one, tenth = (total(BarlowTwins(D, scale=s), *pair()) for s in (1.0, 0.1))
    torch.testing.assert_close(tenth, 0.1 * one)
    with pytest.raises(ValueError, match="scale"):
        BarlowTwins(D, scale=0.0)


def test_scale_and_location_of_a_feature_do_not_matter():
    za, zb = pair(64)
    moved = BarlowTwins(D)(za * torch.tensor([30.0, 5.0, 100.0]) + 7, zb)["correlation"]
    torch.testing.assert_close(moved, BarlowTwins(D)(za, zb)["correlation"], rtol=1e-3, atol=1e-4)


def correlation(a, b):
    x, y = (batch_norm(z, None, None, training=True) for z in (a, b))
    return x.mT @ y / len(a)


def loss(c, lam=0.3):
    on = (1 - c.diagonal()).square().sum()
    return on + lam * (c.square().sum() - c.diagonal().square().sum())


PLANTED = {
    "mean for sum": lambda a, b: loss(correlation(a, b)) / D,
    "wrong weight": lambda a, b: loss(correlation(a, b), 0.005),
    "not divided by B": lambda a, b: loss(correlation(a, b) * len(a)),
    "divided by B - 1": lambda a, b: loss(correlation(a, b) * len(a) / (len(a) - 1)),
    "not centered": lambda a, b: loss((a / a.std(0)).mT @ (b / b.std(0)) / len(a)),
    "one view twice": lambda a, b: loss(correlation(a, a)),
    "one-sided gradient": lambda a, b: loss(correlation(a, b.detach())),
}


def test_the_loss_before_errors_is_right():
    assert difference(lambda a, b: loss(correlation(a, b)), reference, *pair()) < 1e-7


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_seen(error):
    assert difference(PLANTED[error], reference, *pair()) > 1e-3
