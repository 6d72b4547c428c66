"""Conditional models around others: regressors of other libraries on the same folds, and models of log targets."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, Ridge
from tests.mixtures.common import close
from tests.refusals import refuses

from vergence import mixtures
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.log_transformed import LogTransformed
from vergence.mixtures import ConditionalGaussian, ConditionalMixture, FromQuantiles, GaussianRegressor, LogScale


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


# Log targets: the change of variables against scipy's log-normal, and what stays of the model


def amounts(n=300, seed=0):
    """A context, and two targets: an amount over several powers of ten, and one of either sign."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 1))
    return x, np.column_stack([np.exp(2 * x[:, 0] + 3 + r.normal(size=n)), x[:, 0] + 0.5 * r.normal(size=n)])


def test_one_gaussian_is_scipys_log_normal():
    p = LogTransformed(JointGaussian(torch.tensor([0.7]), torch.tensor([[0.3]])), torch.tensor([True]))
    q = stats.lognorm(0.3**0.5, scale=np.exp(0.7))
    t = np.array([0.2, 1.0, 9.0])
    close(p.log_prob(torch.tensor(t)[:, None]), q.logpdf(t), 1e-6)
    close(p.marginal_cdf(torch.tensor(t)[:, None])[:, 0], q.cdf(t), 1e-6)
    close([p.mean.item(), p.variance.item(), p.marginal_quantile(0.9).item()], [q.mean(), q.var(), q.ppf(0.9)], 1e-5)
    grid = np.linspace(0.1, 5, 100_000)
    assert p.mode.item() == pytest.approx(grid[q.pdf(grid).argmax()], abs=1e-4)
    assert p.log_prob(torch.tensor([-1.0])) == -torch.inf and p.marginal_cdf(torch.tensor([-1.0])) == 0


def test_a_mixture_has_the_moments_of_its_samples_and_the_mass_one():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        S = torch.tensor([[0.2, 0.1], [0.1, 0.3]], dtype=torch.float64)
        base = MixtureOfGaussians(torch.tensor([0.0, 1.0]), torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64), S)
        p = LogTransformed(base, torch.tensor([True, False]))
        draws = p.sample((200_000,))
    for found, value in ((draws.mean(0), p.mean), (draws.var(0), p.variance)):
        np.testing.assert_allclose(found, value, rtol=0.02)
    grid, one = torch.linspace(1e-4, 40, 40_001, dtype=torch.float64), p.marginal(slice(0, 1))
    height = one.log_prob(grid[:, None]).exp()
    assert float(torch.trapezoid(height, grid)) == pytest.approx(1, abs=1e-4)
    assert one.log_prob(one.mode) > height.max().log() - 0.05


MODELS = [ConditionalGaussian(), ConditionalMixture(2, random_state=0), mixtures.KernelConditional(n_init=1, random_state=0)]


@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_model_of_the_logarithms(model, tmp_path):
    (x, t), (new, at) = amounts(), amounts(20, 1)
    both, own = LogScale(model, random_state=0).fit(x, t), type(model)(**model.get_params())
    own.fit(x, np.column_stack([np.log(t[:, 0]), t[:, 1]]))
    z = np.column_stack([np.log(at[:, 0]), at[:, 1]])
    assert both.logs_.tolist() == [True, False]
    close(both.score_samples(new, at), own.score_samples(new, z) - z[:, 0])
    close(both.cdf(new, at), own.cdf(new, z))
    close(np.log(both.intervals(new)[:, 0]), own.intervals(new)[:, 0])
    close(np.log(both.sample(new, 3)[..., 0]), own.sample(new, 3, random_state=0)[..., 0])
    assert both.predict(new).shape == both.mode(new).shape == (20, 2) and np.isfinite(both.surprise(new, at)).all()
    assert (both.predict(new)[:, 0] > both.quantile(new, 0.5)[:, 0]).all()  # the mean is above the median
    both.save(tmp_path / "m.safetensors")
    again = mixtures.load(tmp_path / "m.safetensors")
    close(again.score_samples(new, at), both.score_samples(new, at))
    assert isinstance(again.model, type(model)) and isinstance(again, LogScale)


@pytest.mark.filterwarnings("ignore:target_0 is .* far from all others")
def test_gaps_and_weights_are_the_models():
    x, t = amounts(200)
    t[::5, 0], x = np.nan, np.column_stack([x, x + np.random.default_rng(0).normal(size=(200, 1))])
    x[::7, 1] = np.nan
    both = LogScale(ConditionalGaussian()).fit(x, t)
    z = np.column_stack([np.log(t[:, 0]), t[:, 1]])
    own = ConditionalGaussian().fit(x, z)
    close(both.score_samples(x, t), own.score_samples(x, z) - np.nan_to_num(z[:, 0]))
    x, t = amounts(40)
    twice = LogScale(ConditionalGaussian()).fit(x, t, np.where(np.arange(40) < 9, 2.0, 1.0))
    close(twice.predict(x), LogScale(ConditionalGaussian()).fit(np.r_[x, x[:9]], np.r_[t, t[:9]]).predict(x), 1e-6)


def test_heavy_tails_of_two_groups_have_intervals_of_their_size():
    """The smaller group's amounts are below ten, the other's in the thousands."""
    r = np.random.default_rng(0)
    group = r.random(400) < 0.4
    x, z = np.column_stack([group, r.normal(size=400)]), r.normal(size=400)
    t, model = np.exp(np.where(group, 1 + 0.8 * z, 6 + 2 * z)), ConditionalMixture(2, random_state=0)
    plain, both = model.fit(x, t), LogScale(ConditionalMixture(2, random_state=0)).fit(x, t)
    high, right = both.intervals([[1.0, 0.0]], 0.9)[0, 1], np.quantile(t[group == 1], 0.95)
    assert 0.5 * right < high < 2 * right and both.score(x, t) > plain.score(x, t) + 0.3


def test_targets_that_are_not_positive_are_refused():
    model, x = LogScale(ConditionalGaussian()), np.arange(9.0)[:, None]
    refuses("values are all above 0, found least -1", model.fit, x, np.arange(9.0) - 1)
    refuses("a conditional model of the log targets", LogScale(None).fit, x, np.arange(1.0, 10))
