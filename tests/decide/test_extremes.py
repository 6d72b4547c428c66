"""Extreme, equal and zero items, fractional weights, and settings and numbers that say something else than is meant."""

import numpy as np
import pytest

from vergence.decide import NeighborDetector, p_values, simultaneous_bounds, tail_p_values
from vergence.decide.moments import uniform


def normal(n, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize("extreme", [1e6, -1e9, 1e12])
def test_one_extreme_item_does_not_make_the_random_numbers_of_the_others_equal(extreme):
    x = normal(2000)
    x[7] = extreme
    order = np.random.default_rng(1).permutation(2000)
    assert len(np.unique(uniform(x, 0))) == 2000
    np.testing.assert_array_equal(uniform(x[order], 0), uniform(x, 0)[order])
    detector = NeighborDetector(max_items=500, keep="centers").fit(x)
    assert len(detector.items_) == 500


def test_a_vector_of_zeros_is_orthogonal_to_all_others():
    detector = NeighborDetector(1, metric="cosine", standardize=False).fit(np.eye(3))
    assert detector.anomaly_score([[0.0, 0.0, 0.0], [1.0, 0.1, 0.0]])[0] == 1.0
    with_zero = NeighborDetector(1, metric="cosine", standardize=False).fit(np.r_[np.eye(3), np.zeros((2, 3))])
    np.testing.assert_allclose(with_zero.anomaly_score([[1.0, 2.0, 2.0]]), 1 - 2 / 3, rtol=1e-12)


def test_an_item_of_small_weight_is_not_its_own_neighbor_and_hides_no_other():
    x, w = normal(200), np.ones(200)
    whole = NeighborDetector(2, standardize=False).fit(x).anomaly_score(x[:1])
    w[0] = 0.1
    np.testing.assert_allclose(NeighborDetector(2, standardize=False).fit(x, sample_weight=w).anomaly_score(x[:1]), whole)


def test_equal_scores_have_the_share_of_all_of_them():
    p = tail_p_values(np.r_[np.arange(200) + 1.0, np.zeros(800)])
    np.testing.assert_allclose(p[200:], 1.0)
    cluster = tail_p_values(np.r_[normal(990, 1)[:, 0], np.full(10, 30.0)])
    assert (cluster[990:] < 1e-4).all()


def test_bounds_that_are_shared_cannot_be_changed():
    bounds = simultaneous_bounds(p_values(normal(99, 1)[:, 0], normal(50, 1, seed=1)[:, 0]), 99)
    with pytest.raises(ValueError, match="read-only"):
        bounds.most[:] = 0
