"""The branches experiment: its truths are densities, its shares see what they should see."""

import numpy as np
import pytest
import torch

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians


@pytest.fixture(scope="module")
def branches():
    from experiments.pairs import run

    return run


class Truth:
    """The density that makes a set of three branches."""

    def __init__(self, f, weights=(1 / 3, 1 / 3, 1 / 3), spread=0.05):
        self.f, self.weights, self.spread = f, weights, spread

    def conditional(self, c):
        means = torch.from_numpy(self.f(np.asarray(c)[:, 0]))[..., None]
        return MixtureOfGaussians(torch.tensor(self.weights).log(), means, Diagonal(torch.full_like(means, self.spread**2)))


@pytest.mark.parametrize("name", ["separated", "intersecting"])
def test_the_truth_is_the_density_of_the_set(branches, name):
    found = branches.branch_set(name, 400, 0)
    expected = Truth(branches.BRANCHES[name]).conditional(found.context).log_prob(torch.from_numpy(found.target)[:, None])
    np.testing.assert_allclose(found.log_truth, expected, rtol=1e-10)


@pytest.mark.slow
def test_the_arms_truth_by_another_quadrature(branches):
    """p(angles | hand) = N(hand; f(angles)) / integral, with the integral from draws of the angles."""
    found = branches.arm_set(6, 3, truth=True)
    rng = np.random.default_rng(0)
    low, high = branches.ANGLES.T
    area = np.prod(high - low)
    for place, angles, log_p in zip(*found, strict=True):
        likelihood = []
        for _ in range(8):
            drawn = branches.hand(rng.uniform(low, high, (1_000_000, 2)))
            likelihood.append(np.exp(-0.5 * (((drawn - place) / branches.REACH) ** 2).sum(1)).mean() * area)
        own = -0.5 * (((place - branches.hand(angles[None])[0]) / branches.REACH) ** 2).sum()
        assert log_p == pytest.approx(own - np.log(np.mean(likelihood)), abs=0.05)


def test_shares_of_branches(branches):
    test = branches.branch_set("separated", 300, 0)
    true = branches.answers("separated", Truth(branches.separated), test)
    assert true["on_branch"] > 0.99 and true["covered"] > 0.999
    one = branches.answers("separated", Truth(branches.separated, (1.0, 1e-9, 1e-9)), test)
    assert one["on_branch"] > 0.99 and one["covered"] == pytest.approx(1 / 3, abs=1e-6)
    broad = branches.answers("separated", Truth(branches.separated, spread=0.8), test)
    assert broad["on_branch"] < 0.4 and broad["covered"] < 0.3
