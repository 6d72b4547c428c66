"""Other libraries' regressors as conditional models: their own numbers, compared with ours on the same folds."""

import numpy as np
import pytest
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, Ridge
from tests.refusals import refuses

from vergence import mixtures
from vergence.mixtures import FromQuantiles, GaussianRegressor


def line(n=120):
    r = np.random.default_rng(0)
    x = r.normal(size=(n, 2))
    return x, np.c_[x @ [1.0, -2.0], x[:, 0]] + 0.5 * r.normal(size=(n, 2))


@pytest.mark.parametrize("regressor", [BayesianRidge(), GaussianProcessRegressor(alpha=0.3)])
def test_its_density_is_the_regressors_normal(regressor):
    x, t = line()
    model = GaussianRegressor(regressor).fit(x, t)
    right = 0
    for y in t.T:
        mean, std = regressor.fit(x, y).predict(x, return_std=True)
        right = right + stats.norm(mean, std).logpdf(y)
    np.testing.assert_allclose(model.score_samples(x, t), right, rtol=1e-8)
    assert model.sample(x, 3, random_state=0).shape == (120, 3, 2) and model.quantile(x, 0.5).shape == (120, 2)


def test_choose_compares_it():
    x, t = line()
    found = mixtures.choose(x, t[:, 0], also={"BayesianRidge": GaussianRegressor(BayesianRidge())}, seconds=0.0)
    table = found.table()
    assert table["model"][-1] == "BayesianRidge" and table["log_density"][-1] is None, "no time for others"
    found = mixtures.choose(x, t[:, 0], also={"BayesianRidge": GaussianRegressor(BayesianRidge())})
    at = found.table()["model"].index("BayesianRidge")
    assert found.name == "line" and found.table()["log_density"][at] == pytest.approx(found.table()["log_density"][1], abs=0.05)


def test_what_has_no_deviation_is_refused(tmp_path):
    x, t = line()
    refuses(r"predict\(X, return_std=True\), found Ridge", GaussianRegressor(Ridge()).fit(x, t).predict, x)
    refuses("expected a regressor with", GaussianRegressor(object()).fit, x, t)
    refuses("a BayesianRidge in", GaussianRegressor(BayesianRidge()).fit(x, t).save, tmp_path / "m.safetensors")


def of_normal(regressor, x, levels):
    """Quantiles of a normal, the last two of which cross."""
    mean, std = regressor.predict(x, return_std=True)
    q = mean[:, None] + std[:, None] * stats.norm.ppf(levels)
    return q[:, [*range(len(levels) - 2), -1, -2]]


def test_a_density_of_quantiles_is_close_to_that_which_has_them():
    x, t = line()
    model, right = FromQuantiles(BayesianRidge(), of_normal).fit(x, t[:, 0]), GaussianRegressor(BayesianRidge()).fit(x, t[:, 0])
    inside = abs(right.cdf(x, t[:, 0]) - 0.5) < 0.475
    np.testing.assert_allclose(model.score_samples(x, t[:, 0])[inside], right.score_samples(x, t[:, 0])[inside], atol=0.2)
    np.testing.assert_allclose(model.cdf(x, t[:, 0]), right.cdf(x, t[:, 0]), atol=0.01)
    assert mixtures.choose(x, t[:, 0], also={"quantiles": model}, seconds=0.0).table()["model"][-1] == "quantiles"


def test_quantiles_that_do_not_fit_are_refused():
    x, t = line()
    with pytest.raises(ValueError, match=r"finite quantiles \(120, 40\), found shape \(120, 1\)"):
        FromQuantiles(BayesianRidge(), lambda regressor, x, q: regressor.predict(x)[:, None]).fit(x, t[:, 0]).predict(x)
    refuses("one target feature for a regressor of quantiles, found 2", FromQuantiles(BayesianRidge(), of_normal).fit, x, t)
