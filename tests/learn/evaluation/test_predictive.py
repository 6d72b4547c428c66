"""Calibration of predictive densities: uniform where the density is right, and not where an error is planted."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from tests.reference import uncertainty as reference
from torch.distributions import Independent, Normal

from vergence.learn.evaluation.predictive import density_level, energy_score, evidence, pit_calibration
from vergence.learn.objectives.vje import VJE

N, D = 800, 3


def pairs(scale=1.0, shift=0.0):
    """Targets of a known conditional density, and a density that is wrong by a scale and a shift."""
    g = torch.Generator().manual_seed(0)
    mean = torch.randn(N, D, generator=g)
    target = mean + torch.randn(N, D, generator=g)
    return Independent(Normal(mean + shift, scale * torch.ones(N, D)), 1), target


def pit(p, target):
    return p.base_dist.cdf(target)


def test_the_true_density_is_calibrated_and_wrong_ones_are_not():
    p, target = pairs()
    good = pit_calibration(pit(p, target))
    se = math.sqrt(0.25 / (N * D))
    assert good["pit_ks"] < 1.63 / math.sqrt(N)  # the 1 % point of a single feature's distance
    assert abs(good["inside_50"] - 0.5) < 4 * se and abs(good["inside_90"] - 0.9) < 4 * se
    assert pit_calibration(pit(*pairs(scale=2.0)))["inside_50"] > 0.6  # planted: too wide
    assert pit_calibration(pit(*pairs(scale=0.5)))["inside_90"] < 0.7  # planted: too narrow
    assert pit_calibration(pit(*pairs(shift=0.5)))["pit_ks"] > 0.15  # planted: biased


def test_distances_are_scipys_and_the_references():
    u = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    expected = [kstest(column.numpy(), "uniform").statistic for column in u.T]
    assert pit_calibration(u)["pit_ks"] == pytest.approx(np.mean(expected), abs=1e-12)
    assert pit_calibration(u[:, 0])["pit_ks"] == pytest.approx(reference.ks(u[:, 0].tolist()), abs=1e-12)


def test_the_level_of_a_gaussian_is_that_of_its_distance():
    """The region of highest density of a Gaussian is a ball: its probability is that of chi-squared."""
    from scipy.stats import chi2

    torch.manual_seed(0)
    p, target = pairs()
    level = density_level(p, target, 400)
    exact = chi2(D).cdf((target - p.mean).square().sum(1).numpy())
    assert np.abs(level.numpy() - exact).max() < 5 * 0.5 / math.sqrt(400)
    assert kstest(level.numpy(), "uniform").pvalue > 1e-3
    assert kstest(density_level(*pairs(scale=2.0), 100).numpy(), "uniform").pvalue < 1e-6


def test_the_energy_score_is_the_references_and_proper():
    torch.manual_seed(0)
    samples, target = torch.randn(6, 4, 3), torch.randn(4, 3)
    expected = [reference.energy_score(samples[:, n].tolist(), target[n].tolist()) for n in range(4)]
    assert np.allclose(energy_score(samples, target), expected, atol=1e-12)
    scores = [energy_score(p.sample((50,)), t).mean() for p, t in (pairs(), pairs(scale=2.0), pairs(shift=1.0), pairs(scale=0.3))]
    assert min(scores) == scores[0]


def test_bounds_of_a_known_model():
    """x = s + noise with s ~ N(0, 1): log N(x; 0, 2) is known, and a wrong q costs its KL divergence."""
    torch.manual_seed(0)
    x, M = torch.randn(200) * math.sqrt(2), 4000
    truth = Normal(0.0, math.sqrt(2)).log_prob(x)
    for q, kl in ((Normal(x / 2, math.sqrt(0.5)), 0.0), (Normal(x / 2, 1.0), 0.5 * (2 - 1 - math.log(2)))):
        s = q.sample((M,))
        found = evidence(Normal(s, 1.0).log_prob(x) + Normal(0.0, 1.0).log_prob(s) - q.log_prob(s))
        assert found["log_marginal"] == pytest.approx(float(truth.mean()), abs=0.01)
        assert found["gap"] == pytest.approx(kl, abs=0.02) and found["elbo"] <= found["log_marginal"] + 1e-9
        assert 1 <= found["effective_samples"] <= M + 1e-6


def test_bounds_of_vje_are_its_log_density():
    torch.manual_seed(0)
    vje, za, zb = VJE(16).requires_grad_(False), torch.randn(5, 16), torch.randn(5, 16)
    g = torch.Generator().manual_seed(3)
    log_w = torch.stack([vje.log_prob(zb, za, samples=1, generator=g) for _ in range(32)])
    together = vje.log_prob(zb, za, samples=32, generator=torch.Generator().manual_seed(3))
    found = evidence(log_w)
    assert found["log_marginal"] == pytest.approx(float(together.mean()), abs=1e-9) and found["gap"] > 0
