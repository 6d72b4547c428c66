"""Equal rows: copies are one row of more weight that no split parts; rows that are equal by chance are rows like others."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge

from vergence import mixtures
from vergence.mixtures import ConditionalGaussian, GaussianRegressor, folds
from vergence.mixtures.core import by_chance

QUICK = {"mdn": {"steps": 300, "n_init": 1, "hidden": (32,)}, "mixture": {"n_init": 4}}


def visits(n=600, seed=0, rates=(0.2, 1.0)):
    """Two groups and counts: few different rows."""
    r = np.random.default_rng(seed)
    group = r.integers(0, 2, n)
    return group[:, None] * 1.0, r.poisson(np.array(rates)[group]) * 1.0


def line(n=60, seed=0):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 2))
    return x, x @ [1.0, -2.0] + 0.5 * r.normal(size=n)


def model(name):
    return mixtures.get(name)(random_state=0, **QUICK.get(name, {}))


@pytest.mark.parametrize("name", sorted(mixtures.MODELS))
def test_the_mean_of_a_group_is_that_of_its_rows(name):
    x, y = visits()
    right = [y[x[:, 0] == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(model(name).fit(x, y).predict([[0.0], [1.0]]), right, atol=0.15)


@pytest.mark.parametrize("table", ["few different rows", "a line"])
@pytest.mark.parametrize("name", mixtures.MODELS)
def test_weights_are_repetitions(name, table):
    x, y = visits(100) if table != "a line" else line()
    w = np.random.default_rng(0).integers(1, 4, len(x))
    weighted, repeated = model(name).fit(x, y, sample_weight=w), model(name).fit(np.repeat(x, w, 0), np.repeat(y, w))
    np.testing.assert_array_equal(weighted.score_samples(x, y), repeated.score_samples(x, y))
    none = model(name).fit(x, y, sample_weight=(np.arange(len(x)) < 40) * 1.0)
    np.testing.assert_array_equal(none.score_samples(x, y), model(name).fit(x[:40], y[:40]).score_samples(x, y))
    with pytest.raises(ValueError, match="weights of at least 0"):
        model(name).fit(x, y, sample_weight=-w)


def test_the_unit_of_weights_matters_only_where_rows_are_equal_by_chance():
    x, y = line(20)
    w = np.random.default_rng(1).uniform(0.5, 2, 20)
    one, other = (ConditionalGaussian().fit(x, y, sample_weight=c * w) for c in (1e-3, 1e3))
    np.testing.assert_allclose(one.score_samples(x, y), other.score_samples(x, y), rtol=1e-9)
    few, many = (ConditionalGaussian().fit(*visits(12, 3), sample_weight=np.full(12, c)) for c in (1.0, 100.0))
    assert few.ridge_ > many.ridge_ == 0


def test_the_ridge_leaves_out_rows_with_their_copies():
    x, y = line(12)
    w = np.random.default_rng(2).integers(1, 4, 12)
    found = ConditionalGaussian().fit(np.repeat(x, w, 0), np.repeat(y, w))
    z = np.c_[x, y] - np.average(np.c_[x, y], 0, w)
    z /= np.sqrt(np.average(z**2, 0, w))
    left = []
    for i in range(12):  # without the mean of the others, which the closed form moves too
        rest = np.arange(12) != i
        a = np.average(z[rest], 0, w[rest])
        c, t = z[rest, :2] - a[:2], z[rest, 2] - a[2]
        A = c.T @ (w[rest, None] * c) + w.sum() * found.ridge_ * np.eye(2)
        left.append(z[i, 2] - a[2] - (z[i, :2] - a[:2]) @ np.linalg.solve(A, c.T @ (w[rest] * t)))
    variance = np.average(np.square(left), weights=w) * np.average((y - np.average(y, weights=w)) ** 2, weights=w)
    assert found.conditional(x[:1]).variance.item() == pytest.approx(variance, rel=0.05)


def test_a_network_with_weights():
    r = np.random.default_rng(0)
    x, side = r.uniform(-1, 1, (400, 1)), r.choice([-1.0, 1.0], 400)
    t = side * 2 + 0.1 * r.normal(size=400)
    model = mixtures.get("mdn")(n_components=2, steps=300, n_init=1, random_state=0)
    share = (model.fit(x, t, sample_weight=np.where(side > 0, 3.0, 1.0)).sample([[0.0]], 2000, random_state=0) > 0).mean()
    assert share == pytest.approx(0.75, abs=0.06)


@pytest.mark.parametrize("regressor", [BayesianRidge(), GaussianProcessRegressor(alpha=0.3)])
def test_other_regressors_count_too(regressor):
    x, y = visits()
    right = [y[x[:, 0] == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(GaussianRegressor(regressor).fit(x, y).predict([[0.0], [1.0]]), right, atol=0.05)


def split(x, y):
    """The share of rows in each test part that have an equal row in the training part, on average."""
    rows = [tuple(row) for row in np.c_[x, y]]
    return np.mean([np.mean([rows[i] in {rows[j] for j in train} for i in test]) for train, test in folds(x, y)])


def test_rows_that_are_equal_by_chance_are_split():
    assert split(*visits(1000)) > 0.97
    r = np.random.default_rng(0)
    shift = r.integers(0, 4, 1000)
    assert split(np.eye(4)[shift], np.minimum(r.poisson(1.5 * (1 + shift / 4)), 5)) > 0.97, "categories and ratings"
    dose = r.choice([1.0, 2, 5, 10, 20, 50], 400)
    assert split(np.c_[dose, np.log(dose)], r.random(400) < 0.4) > 0.97, "columns that say the same"
    assert split(dose[:, None], np.where(r.random(400) < 0.6, 0, r.normal(size=400))) > 0.55, "a spike and a continuous rest"


def test_copies_are_on_one_side():
    r = np.random.default_rng(0)

    def copied(x, y, share=0.3):
        rows = r.choice(len(x), int(share * len(x)), replace=False)
        return np.concatenate([x, x[rows]]), np.concatenate([y, y[rows]])

    x, y = line(500)
    assert split(*copied(x, y)) == split(*copied(x[:, :1], y > 0)) == 0, "one continuous column is enough"
    assert split(*copied(r.choice([1.0, 2, 5, 10], 500)[:, None], y)) == 0, "a continuous target in groups"
    integers = r.poisson(5, (500, 12))
    assert split(*copied(integers, r.integers(0, 2, 500))) == 0
    assert split(*copied(r.integers(1, 6, (500, 12)), r.integers(0, 2, 500))) == 0
    assert split(np.repeat(x[:30], 50, 0), np.repeat(y[:30], 50)) == 0, "each row fifty times"
    assert not by_chance(np.repeat(x[:12], 3, 0), np.repeat(y[:12], 3))[1].any()
    near = np.repeat(x, 2, 0) + 1e-7 * r.normal(size=(1000, 2))
    assert not by_chance(near, np.repeat(y, 2))[1].any()


@pytest.mark.slow
def test_choose_on_few_different_rows():
    for levels, rate in ((2, 0.5), (4, 1.5)):
        r = np.random.default_rng(0)
        x = r.integers(0, levels, 1000)
        y = np.minimum(r.poisson(rate * (1 + x / levels)), 5) * 1.0
        found = mixtures.choose(x[:, None] * 1.0, y)
        assert found.name != "no context"
        assert np.corrcoef(found.model.predict(np.arange(levels)[:, None] * 1.0), np.arange(levels))[0, 1] > 0.8


def test_the_surprise_of_a_gap_does_not_know_its_unit():
    r = np.random.default_rng(0)
    x = r.normal(size=(200, 1))
    t = x + r.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 200)
    gaps = t.copy()
    gaps[::2, 1], gaps[1::4, 0] = np.nan, np.nan
    found = {}
    for name in ("gaussian", "mixture"):
        for unit in (1.0, 1e-3, 1e3):
            fitted = mixtures.get(name)(random_state=0).fit(x, t * [1, unit])
            found[unit] = fitted.surprise(x, gaps * [1, unit])
        np.testing.assert_allclose(found[1.0], found[1e-3], atol=1e-6)
        np.testing.assert_allclose(found[1.0], found[1e3], atol=1e-6)
        assert abs(found[1.0][::2].mean()) < 0.15, "samples of the same features are as likely"
    fitted, p = mixtures.get("gaussian")().fit(x, t), torch.tensor([[0.3, torch.nan]])
    given = fitted.conditional([[0.0]])
    z = (p[0, 0].item() - given.mean[0, 0].item()) / given.variance[0, 0].item() ** 0.5
    assert fitted.surprise([[0.0]], p.numpy(), draws=4096)[0] == pytest.approx(z**2 / 2 - 0.5, abs=0.03)
