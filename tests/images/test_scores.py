"""Cross-fitted distances equal their definition, and follow neither anomalies nor units."""

import numpy as np
import pytest

from vergence.images.scores import CrossFitted


def t_items(n, D=30, degrees=6, seed=0):
    """Items of a multivariate t."""
    r = np.random.default_rng(seed)
    return r.normal(size=(n, D)) * np.sqrt(degrees / r.chisquare(degrees, size=(n, 1)))


def test_a_cluster_of_anomalies_does_not_hide_itself():
    x, fold = t_items(1000), np.random.default_rng(2).integers(0, 5, 1000)
    x[:80] = 0.05 * x[:80] + 8
    t = CrossFitted(x, fold).log_distance(x, fold)
    assert t[:80].min() > np.quantile(t[80:], 0.99)


def test_distances_equal_their_definition_and_constant_features_do_no_harm():
    x = np.random.default_rng(0).normal(size=(300, 4)) * [1, 5, 0.01, 0]
    fold = np.zeros(300, dtype=int)
    fitted = CrossFitted(x, fold, clean=True)
    t = fitted.log_distance(x, fold)
    assert np.isfinite(t).all()
    np.testing.assert_allclose(np.log(np.square(fitted.white(x)).sum(1)), t, atol=1e-6)
    anomaly = x[:1] + np.array([0, 0, 0, 1.0])
    assert fitted.log_distance(anomaly, fold[:1])[0] > t.max()


def test_units_and_rounding_do_not_matter():
    x, fold = t_items(400, 6), np.arange(400) % 5
    x[:, 5] *= np.random.default_rng(0).uniform(size=400) < 0.02  # nearly always zero
    t = CrossFitted(x, fold).log_distance(x, fold)
    other = CrossFitted(x * [1, 10, 1e3, 1e-2, 1, 1], fold).log_distance(x * [1, 10, 1e3, 1e-2, 1, 1], fold)
    assert np.corrcoef(t, other)[0, 1] > 0.95
    rounded = x.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(CrossFitted(rounded, fold).log_distance(rounded, fold), t, atol=0.05)
    x[:250] = 0  # more than half are equal
    assert np.isfinite(CrossFitted(x, fold).log_distance(x, fold)).all()


@pytest.mark.parametrize(("width", "least"), [(40, 30), (400, 28)])
def test_a_tenth_of_scattered_anomalies_comes_first_in_few_and_in_many_features(width, least):
    x, fold = t_items(300, width), np.arange(300) % 5
    x[:30] *= 6
    t = CrossFitted(x, fold).log_distance(x, fold)
    assert (np.argsort(-t)[:30] < 30).sum() >= least
