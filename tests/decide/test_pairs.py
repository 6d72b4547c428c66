"""Pairs: the standardized surprise, and mismatched pairs of ordinary sides."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vergence import mixtures
from vergence.decide import GaussianDetector, p_values, select, surprise
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians


def pairs(n, seed=0):
    """Two branches whose width grows with the context."""
    r = np.random.default_rng(seed)
    c = r.uniform(-1, 1, (n, 1))
    return c, r.choice([-1.0, 1.0], (n, 1)) * (1.5 + c) + (0.05 + 0.2 * (c > 0)) * r.normal(size=(n, 1))


@pytest.mark.parametrize("ours", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_surprise_of_a_gaussian_is_its_standardized_squared_distance(ours):
    """(m^2 - T) / sqrt(2 T): exact of ours; of torch's within the error of the samples, sqrt((2 + 12 / T) / (4 S)) and more."""
    r = torch.Generator().manual_seed(0)
    A = torch.randn(5, 4, 4, generator=r)
    mean, covariance = torch.randn(5, 4, generator=r), A @ A.mT + torch.eye(4)
    density = (JointGaussian if ours else torch.distributions.MultivariateNormal)(mean, covariance)
    t = mean + torch.randn(5, 4, generator=r)
    squared = torch.einsum("bi,bij,bj->b", t - mean, torch.linalg.inv(covariance), t - mean)
    error = {} if ours else {"atol": 0.03, "rtol": 0.03}
    torch.testing.assert_close(surprise(density, t, n_samples=40_000), (squared - 4) / 8**0.5, **error)
    torch.testing.assert_close(surprise(density, t, 100), surprise(density, t, 100))


LONG = [pytest.param(model, marks=pytest.mark.slow) for model in ("mdn", "kernel")]


@pytest.mark.parametrize("model", ["gaussian", "mixture", *LONG])
def test_the_surprise_of_a_pair_does_not_depend_on_the_other_pairs(model):
    c, t = pairs(400)
    density, target = mixtures.get(model)(random_state=0).fit(c, t), torch.from_numpy(t)
    together = surprise(density.conditional(c[:40]), target[:40])
    alone = torch.cat([surprise(density.conditional(c[i : i + 1]), target[i : i + 1]) for i in range(40)])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-4)


def test_samples_with_common_noise_have_the_law_of_each_mixture():
    weights = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    mean = torch.tensor([[[-3.0, 0.0], [2.0, 1.0]], [[0.0, 5.0], [1.0, -5.0]]])
    p = MixtureOfGaussians(weights.log(), mean, torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    torch.manual_seed(0)
    found = p.common_samples(40_000)
    assert found.shape == (40_000, 2, 2)
    torch.testing.assert_close(found.mean(0), p.mean, atol=0.1, rtol=0)
    for b in range(2):
        torch.testing.assert_close(found[:, b].T.cov(), p.covariance[b], atol=0.3, rtol=0.03)
    one = p.component_distribution.common_samples(3)
    assert one.shape == (3, 2, 2, 2)
    torch.testing.assert_close(one - p.component_distribution.loc, (one - p.component_distribution.loc)[:, :1, :1].expand_as(one))


@pytest.mark.slow
def test_mismatched_pairs_of_ordinary_sides_are_reported_and_no_more_others_than_stated():
    c, t = pairs(4000)
    model = mixtures.get("mixture")(n_components=6, random_state=0).fit(c[:2400], t[:2400])

    def score(context, target):
        return surprise(model.conditional(context), torch.from_numpy(target)).numpy()

    calibration, proportions, powers = score(c[2400:], t[2400:]), [], []
    for seed in range(1, 11):
        given, target = pairs(400, seed)
        ends = np.flatnonzero(given[:, 0] < -0.6)[:20]  # narrow, near +-0.7
        target[ends] = 2.3 * np.sign(target[ends])  # ordinary targets of other contexts
        odd, scores = np.isin(np.arange(400), ends), score(given, target)
        found = select(p_values(calibration, scores), 0.1)
        proportions.append(found[~odd].sum() / max(1, found.sum()))
        powers.append(found[odd].mean())
    assert np.mean(proportions) <= 0.1 + 3 * np.std(proportions) / 10**0.5 and np.mean(powers) > 0.9
    marginal = GaussianDetector().fit(np.hstack(pairs(4000))).anomaly_score(np.hstack([given, target]))
    assert roc_auc_score(odd, scores) > 0.99 and roc_auc_score(odd, marginal) < 0.9
