"""Distances under a Gaussian with a ridge are those of its definition, narrow or wide, and out of fold."""

import time

import numpy as np
import pytest

from vergence.decide.density import RIDGE, RidgeGaussian, out_of_fold


def slow(x, y):
    """log d^2 by the definition, in the D x D form."""
    m, s = x.mean(0), x.std(0)
    z, w = (x - m) / s, (y - m) / s
    S = z.T @ z / len(z)
    inverse = np.linalg.inv(S + RIDGE * np.trace(S) / len(S) * np.eye(len(S)))
    return np.log([row @ inverse @ row for row in w])


@pytest.mark.parametrize(("n", "width"), [(60, 5), (20, 50), (30, 30), (2, 7)])
def test_equal_to_the_definition(n, width):
    r = np.random.default_rng(0)
    x, y = r.normal(size=(n, width)) * r.uniform(0.1, 9, width), r.normal(size=(11, width))
    np.testing.assert_allclose(RidgeGaussian(x).log_distance(y), slow(x, y), rtol=1e-6)


def test_out_of_fold_has_not_seen_the_row():
    r = np.random.default_rng(1)
    x, fold = r.normal(size=(24, 40)), np.arange(24) % 4 - 1
    t, gaussians = out_of_fold(x, fold)
    assert sorted(gaussians) == [0, 1, 2] and np.isnan(t[fold == -1]).all()
    for i in np.flatnonzero(fold >= 0):
        np.testing.assert_allclose(t[i], slow(x[fold != fold[i]], x[i : i + 1])[0], rtol=1e-6)


def test_constant_features_and_equal_rows_are_no_error():
    x = np.zeros((30, 6))
    assert np.isfinite(RidgeGaussian(x).log_distance(x)).all()
    x[:, 0] = np.random.default_rng(0).normal(size=30)
    far = x[:1].copy()
    far[0, 3] = 1.0
    assert RidgeGaussian(x).log_distance(far)[0] > RidgeGaussian(x).log_distance(x).max() + 5


def test_units_do_not_matter_and_trim_leaves_far_rows_out():
    r = np.random.default_rng(2)
    x, unit = r.normal(size=(50, 80)), r.uniform(1e-3, 1e3, 80)
    np.testing.assert_allclose(RidgeGaussian(x).log_distance(x), RidgeGaussian(x * unit).log_distance(x * unit), rtol=1e-6)
    y = np.concatenate([x, x[:5] + 30])
    assert RidgeGaussian(y, trim=0.2).log_distance(y)[-5:].min() > RidgeGaussian(y).log_distance(y)[-5:].min() + 0.5


def test_thousands_of_numbers_take_seconds():
    x = np.random.default_rng(0).normal(size=(300, 4000))
    start = time.process_time()
    out_of_fold(x, np.arange(300) % 10)
    assert time.process_time() - start < 30  # the D x D form takes half an hour
