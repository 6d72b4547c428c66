"""Boosted trees: their nodes against scikit-learn's own predictions, location and scale that are recovered, gaps and weights."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from vergence.mixtures import BoostedTrees, ConditionalGaussian
from vergence.mixtures.boosted_trees import as_forest, grown, leaf_values, residual_mixture

QUICK = {"trees": 100, "random_state": 0}


def steps(n=500, seed=0):
    """A step of the location in one context, and of the scale in another."""
    r = np.random.default_rng(seed)
    x = r.uniform(-1, 1, (n, 3))
    return x, np.sign(x[:, 0]) + np.where(x[:, 1] > 0, 0.5, 0.1) * r.normal(size=n)


def test_the_forest_is_the_mean_of_scikit_learns():
    x, y = steps()
    x[::7, 0], x[::11, 1] = np.nan, np.nan
    models = [HistGradientBoostingRegressor(max_iter=20).fit(x[k::2], y[k::2]) for k in range(2)]
    arrays, new = as_forest(models, 20), steps(60, 1)[0]
    new[::3], new[1::5, 2] = x[:20], np.nan  # a column whose gaps training did not see
    forest = {name: torch.as_tensor(part) for name, part in arrays.items()}
    expected = np.mean([m.predict(new) for m in models], 0)
    np.testing.assert_allclose(leaf_values(torch.from_numpy(new), forest), expected, atol=1e-12)
    none = {name: torch.as_tensor(part) for name, part in as_forest(models, 0).items()}
    np.testing.assert_allclose(leaf_values(torch.from_numpy(new), none), np.mean([y[::2].mean(), y[1::2].mean()]), atol=1e-6)


def test_folds_do_not_see_the_rows_that_they_hold_out():
    x, y = steps(200)[0], np.random.default_rng(1).normal(size=200)  # nothing to learn
    forest, held_out = grown(x, y, np.ones(200), np.arange(200) % 4, trees=30, max_leaf_nodes=8, min_samples_leaf=5)
    assert np.square(held_out - y).mean() > 0.9 * y.var() and len(forest["roots"]) < 4 * 30


def test_location_and_scale_are_recovered_and_intervals_hold():
    (x, y), (new, t) = steps(1500), steps(1000, 1)
    model = BoostedTrees(**QUICK).fit(x, y)
    given = model.conditional([[-0.5, -0.5, 0.0], [0.5, 0.5, 0.0]])
    np.testing.assert_allclose(given.mean[:, 0], [-1, 1], atol=0.2)
    small, large = given.variance[:, 0].sqrt()
    assert 0.08 < small < 0.2 and 0.35 < large < 0.65
    low, high = model.intervals(new, 0.9).T
    assert abs(((low < t) & (t < high)).mean() - 0.9) < 0.04
    assert model.score(new, t) > ConditionalGaussian().fit(x, y).score(new, t) + 0.5


def test_several_targets_have_their_own_gaps_and_contexts_may_have_some():
    (x, y), (new, t) = steps(), steps(20, 1)
    both = np.column_stack([y, x[:, 2] + 0.1 * np.random.default_rng(0).normal(size=500)])
    both[::3, 1], x[::9, 2] = np.nan, np.nan
    model = BoostedTrees(**QUICK).fit(x, both)
    alone = BoostedTrees(**QUICK).fit(x, y)
    assert model.residuals_[0].shape[0] == 3 and len(model.locations_) == 2
    np.testing.assert_allclose(model.predict(new)[:, 0], alone.predict(new), atol=0.3)
    gap = model.predict(np.where([True, True, False], new, np.nan))
    assert np.isfinite(gap).all() and np.isfinite(model.score_samples(new, np.column_stack([t, t * np.nan]))).all()


def test_the_residuals_mixture_finds_two_sides():
    r = np.random.default_rng(0)
    e = r.choice([-1.0, 1.0], 400) + 0.1 * r.normal(size=400)
    weights, means, variances = residual_mixture(e, np.ones(400), 3, 0)
    np.testing.assert_allclose(np.sort(means), [-1, 1], atol=0.05)
    np.testing.assert_allclose(variances, 0.01, rtol=0.4)
    assert residual_mixture(e, np.ones(400), 1, 0).shape == (3, 1) and weights.sum() == pytest.approx(1)
