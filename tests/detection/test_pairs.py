"""Pairs: the standardized surprise, p-values that hold whatever the model, and mismatched pairs of ordinary sides."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from vergence import mixtures
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.detection import ConditionalDetector, GaussianDetector, p_values, select, surprise


def pairs(n, seed=0):
    """Two branches whose width grows with the context."""
    r = np.random.default_rng(seed)
    c = r.uniform(-1, 1, (n, 1))
    return c, r.choice([-1.0, 1.0], (n, 1)) * (1.5 + c) + (0.05 + 0.2 * (c > 0)) * r.normal(size=(n, 1))


def test_the_surprise_of_a_gaussian_is_its_standardized_squared_distance():
    """(m^2 - T) / sqrt(2 T), within the error of the samples: of h 1 / sqrt(S), of d sqrt((2 + 12 / T) / (4 S)) and more."""
    r = torch.Generator().manual_seed(0)
    A = torch.randn(5, 4, 4, generator=r)
    mean, covariance = torch.randn(5, 4, generator=r), A @ A.mT + torch.eye(4)
    density = torch.distributions.MultivariateNormal(mean, covariance)
    t = mean + torch.randn(5, 4, generator=r)
    squared = torch.einsum("bi,bij,bj->b", t - mean, torch.linalg.inv(covariance), t - mean)
    found = surprise(density, t, n_samples=40_000)
    torch.testing.assert_close(found, (squared - 4) / 8**0.5, atol=0.03, rtol=0.03)
    torch.testing.assert_close(surprise(density, t, 100), surprise(density, t, 100))


def test_the_surprise_of_our_gaussian_is_exact():
    r = torch.Generator().manual_seed(0)
    A = torch.randn(5, 4, 4, generator=r)
    mean, covariance = torch.randn(5, 4, generator=r), A @ A.mT + torch.eye(4)
    t = mean + torch.randn(5, 4, generator=r)
    squared = torch.einsum("bi,bij,bj->b", t - mean, torch.linalg.inv(covariance), t - mean)
    torch.testing.assert_close(surprise(JointGaussian(mean, covariance), t), (squared - 4) / 8**0.5)


@pytest.mark.parametrize("model", ["gaussian", "mixture", "mdn", "gng", "particles", "kernel"])
def test_the_surprise_of_a_pair_does_not_depend_on_the_other_pairs(model):
    c, t = pairs(400)
    detector = ConditionalDetector(mixtures.get(model)(random_state=0)).fit(c, t)
    together = detector.anomaly_score(c[:40], t[:40])
    alone = np.concatenate([detector.anomaly_score(c[i : i + 1], t[i : i + 1]) for i in range(40)])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-4)


def test_samples_with_common_noise_have_the_law_of_each_mixture():
    weights = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    mean = torch.tensor([[[-3.0, 0.0], [2.0, 1.0]], [[0.0, 5.0], [1.0, -5.0]]])
    p = GaussianMixture(weights.log(), mean, torch.tensor([[1.0, 0.5], [0.5, 2.0]]))
    torch.manual_seed(0)
    found = p.common_samples(40_000)
    assert found.shape == (40_000, 2, 2)
    torch.testing.assert_close(found.mean(0), p.mean, atol=0.1, rtol=0)
    for b in range(2):
        torch.testing.assert_close(found[:, b].T.cov(), p.covariance[b], atol=0.3, rtol=0.03)
    one = p.component_distribution.common_samples(3)
    assert one.shape == (3, 2, 2, 2)
    torch.testing.assert_close(one - p.component_distribution.loc, (one - p.component_distribution.loc)[:, :1, :1].expand_as(one))


def test_it_does_not_depend_on_the_units_of_the_target():
    c, t = pairs(600)
    small, large = (ConditionalDetector().fit(c, scale * t) for scale in (1.0, 1e4))
    np.testing.assert_allclose(small.anomaly_score(c, t), large.anomaly_score(c, 1e4 * t), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", ["gaussian", "mixture"])
def test_p_values_hold_whatever_the_model(model):
    """Also of the linear model, which is wrong here; planted: scores of pairs that the model was fitted to do not."""
    settings = {} if model == "gaussian" else {"n_components": 4, "random_state": 0}
    c, t = pairs(5000)
    detector = ConditionalDetector(mixtures.get(model)(**settings), calibration_share=0.5).fit(c[:3000], t[:3000])
    p = p_values(detector.calibration_scores_, detector.anomaly_score(c[3000:], t[3000:]))
    for a in (0.01, 0.05, 0.2, 0.5):
        assert (p <= a).mean() == pytest.approx(a, abs=4 * np.sqrt(a * (1 - a) * (1 / 2000 + 1 / 1500)))
    assert (detector.predict(c[3000:], t[3000:]) == -1).mean() == pytest.approx(0.05, abs=0.03)
    flagged = detector.predict(c[3000:], t[3000:]) == -1
    assert (flagged == (p <= 0.05)).all()


def test_mismatched_pairs_of_ordinary_sides_are_reported_and_no_more_others_than_stated():
    c, t = pairs(4000)
    proportions, powers = [], []
    detector = ConditionalDetector(mixtures.get("mixture")(n_components=6, random_state=0), calibration_share=0.4).fit(c, t)
    for seed in range(1, 21):
        given, target = pairs(400, seed)
        ends = np.flatnonzero(given[:, 0] < -0.6)[:20]  # narrow, near +-0.7
        target[ends] = 2.3 * np.sign(target[ends])  # ordinary targets of other contexts
        score = detector.anomaly_score(given, target)
        odd = np.isin(np.arange(400), ends)
        found = select(p_values(detector.calibration_scores_, score), 0.1)
        proportions.append(found[~odd].sum() / max(1, found.sum()))
        powers.append(found[odd].mean())
    assert np.mean(proportions) <= 0.1 + 3 * np.std(proportions) / 20**0.5 and np.mean(powers) > 0.9
    marginal = GaussianDetector().fit(np.hstack(pairs(4000))).anomaly_score(np.hstack([given, target]))
    assert roc_auc_score(odd, score) > 0.99 and roc_auc_score(odd, marginal) < 0.9


def test_a_fitted_estimator_is_only_calibrated():
    c, t = pairs(900)
    model = mixtures.get("gaussian")().fit(c[:300], t[:300, 0])
    detector = ConditionalDetector(model, prefit=True).fit(c[300:], t[300:, 0])
    assert detector.estimator_ is model and detector.calibration_scores_.shape == (600,)
    assert isinstance(model.conditional(c[:2]), JointGaussian) and detector.score_samples(c, t[:, 0]).shape == (900,)
    assert clone(detector).get_params()["prefit"]


def test_errors():
    c, t = pairs(200)
    with pytest.raises(NotFittedError):
        ConditionalDetector().anomaly_score(c, t)
    with pytest.raises(NotFittedError):
        ConditionalDetector(mixtures.get("gaussian")(), prefit=True).fit(c, t)
    with pytest.raises(ValueError, match="expected at least 20 pairs to calibrate on, found 10; give more"):
        ConditionalDetector().fit(c[:50], t[:50])
    with pytest.raises(ValueError, match="found 199 targets and 200 contexts"):
        ConditionalDetector().fit(c, t[1:])
    with pytest.raises(ValueError, match="expected finite targets, found NaN"):
        ConditionalDetector().fit(c, t).anomaly_score(c[:1], [[np.nan]])
    with pytest.raises(ValueError, match="calibration_share"):
        ConditionalDetector(calibration_share=1.0).fit(c, t)
