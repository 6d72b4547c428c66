"""The Gaussian process against explicit inverses and scikit-learn's, its sparse form against the exact one, and dataset A."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from tests.mixtures.common import EPS, branches, close, separated
from tests.reference import kernel as reference

from vergence.mixtures import kernel_conditional as kc
from vergence.mixtures.kernel_conditional import KernelConditional

H = {"length_scale": 0.7, "signal": 0.9, "noise": 0.3}


def at_these(x, y, length_scale=0.7, signal=0.9, noise=0.3, **settings):
    """A process of these hyper-parameters."""
    model = KernelConditional(**settings)
    model._search = lambda *others: np.log([length_scale, signal, noise])
    return model.fit(x, y)


def curve(n, seed=0, features=2, targets=3):
    rng = np.random.default_rng(seed)
    x = rng.normal([0] * features, [3] * features, (n, features)) + 5
    y = np.sin(x @ rng.normal(size=(features, targets)) / 2) * [2, 0.5, 1][:targets] + 0.1 * rng.normal(size=(n, targets))
    return x, y


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


@pytest.fixture(scope="module")
def on_a():
    with torch.random.fork_rng(devices=[]):
        return KernelConditional(random_state=0).fit(*separated(400, 2)[:2])


def test_it_is_the_reference():
    (x, y), (new, _) = curve(40), curve(7, seed=1)
    model = at_these(x, y)
    c, t = standardized(x), standardized(y)
    mean, variance = reference.predictive(c, t, (new - x.mean(0)) / x.std(0), *H.values())
    given = model.conditional(new)
    close(given.mean, y.mean(0) + y.std(0) * mean)
    close(given.variance, variance[:, None] * y.var(0))
    K_y = reference.kernel(c, c, H["length_scale"], H["signal"]) + H["noise"] ** 2 * np.eye(40)
    close(model.log_marginal_likelihood_, -reference.nll(K_y, t) - 40 * np.log(y.std(0)).sum())


def test_it_is_scikit_learns():
    (x, y), (new, _) = curve(60, features=3, targets=1), curve(9, seed=1, features=3)
    model = at_these(x, y)
    kernel = ConstantKernel(H["signal"] ** 2) * RBF(H["length_scale"]) + WhiteKernel(H["noise"] ** 2)
    oracle = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(standardized(x), standardized(y)[:, 0])
    mean, std = oracle.predict((new - x.mean(0)) / x.std(0), return_std=True)
    close(model.predict(new)[:, 0], y.mean() + y.std() * mean)
    close(model.conditional(new).stddev[:, 0], y.std() * std)
    close(model.log_marginal_likelihood_, oracle.log_marginal_likelihood_value_ - 60 * math.log(y.std()))


def items(x, y, w=None):
    """Contexts, targets and weights as tensors; weights are 1 unless given."""
    return tuple(torch.as_tensor(v, dtype=torch.float64) for v in (x, y, np.ones(len(x)) if w is None else w))


def nll(x, y, log_h, w=None):
    return kc.likelihood(*items(x, y, w), np.asarray(log_h))


def test_nll_and_gradient_are_the_references():
    x, y = (standardized(v) for v in curve(25, features=3))
    w, at = np.random.default_rng(0).uniform(0.5, 3, 25), np.log([0.7, 2.0, 1.1, 0.9, 0.3])
    value, gradient = nll(x, y, at, w)
    close(value, reference.weighted_nll(x, y, w, np.exp(at[:3]), *np.exp(at[3:])))
    slow = approx_fprime(at, lambda h: reference.weighted_nll(x, y, w, np.exp(h[:3]), *np.exp(h[3:])), 1e-6)
    np.testing.assert_allclose(gradient, slow, rtol=1e-4)


def test_weights_are_repeated_rows():
    x, y = (standardized(v) for v in curve(20))
    w, at = np.random.default_rng(0).integers(1, 5, 20), np.log([0.7, 0.9, 0.9, 0.3])
    (once, slope), (repeated, again) = nll(x, y, at, w), nll(x.repeat(w, 0), y.repeat(w, 0), at)
    close(once, repeated, 1e-10)
    close(slope, again, 1e-10)
    h, rows, all_rows = (torch.tensor([0.7, 0.9]), 0.9, 0.3), items(x, y, w), items(x.repeat(w, 0), y.repeat(w, 0))
    for one, two in zip(kc.sparse(*rows, rows[0][:8], *h), kc.sparse(*all_rows, rows[0][:8], *h), strict=True):
        close(one, two, 1e-9)
    close(kc.exact(*rows, *h)[2], -once, 1e-10)


@pytest.mark.filterwarnings("ignore:The optimal value")
def test_one_column_of_several_is_found_and_the_answer_is_scikit_learns():
    def drug(n, seed):
        r = np.random.default_rng(seed)
        hours = r.uniform(0, 24, n)
        y = 8 * (np.exp(-hours / 8) - np.exp(-hours / 0.7)) + 0.4 * r.normal(size=n)
        return np.column_stack([hours, r.normal(size=(n, 3))]), y

    (x, y), (new, t) = drug(100, 0), drug(300, 1)
    model, c = KernelConditional(random_state=0).fit(x, y), standardized(x)
    kernel = ConstantKernel() * RBF(np.ones(4)) + WhiteKernel()
    oracle = GaussianProcessRegressor(kernel, random_state=0).fit(c, standardized(y))
    mean, std = oracle.predict((new - x.mean(0)) / x.std(0), return_std=True)
    assert model.score(new, t) > norm(y.mean() + y.std() * mean, y.std() * std).logpdf(t).mean() - 0.05
    assert model.length_scale_[1:].min() > 5 * model.length_scale_[0]


def test_a_long_length_scale_is_linear_regression():
    """T14 of the model: s_f = l and l -> infinity is the linear kernel plus a constant, which centered targets do not need."""
    (x, y), (new, _) = curve(50), curve(6, seed=1)
    model = at_these(x, y, 3e3, 3e3, 0.5)
    c, t = standardized(x), standardized(y)
    ridge = np.linalg.solve(c.T @ c + 0.25 * np.eye(2), c.T @ t)
    close(model.predict(new), y.mean(0) + y.std(0) * ((new - x.mean(0)) / x.std(0) @ ridge), 1e-4)


def test_the_search_finds_the_most_likely():
    x, y = curve(80)
    model = KernelConditional(random_state=0, tol=1e-7).fit(x, y)
    best = np.array([*model.length_scale_, model.signal_, model.noise_])
    c, t = standardized(x), standardized(y)
    at_best, gradient = nll(c, t, np.log(best))
    gradient[:2] += np.log(best[:2]) - np.log(best[:2]).mean()  # of the lengths' prior
    assert np.abs(gradient).max() < 1e-3
    for log_h in np.random.default_rng(0).uniform(-3, 1, (200, 4)):
        assert nll(c, t, log_h)[0] >= at_best - 1e-9
    kernel = ConstantKernel() * RBF(1.0, (1e-2, 1e2)) + WhiteKernel(0.1)
    oracle = GaussianProcessRegressor(kernel, random_state=0).fit(standardized(x), standardized(y)[:, 0])
    one = KernelConditional(random_state=0, tol=1e-7).fit(x, y[:, 0])
    assert one.log_marginal_likelihood_ >= oracle.log_marginal_likelihood_value_ - 80 * math.log(y[:, 0].std()) - 1e-5


def test_a_signal_that_a_subset_hides_is_found(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (400, 1))
    y = 0.5 * np.sin(4 * x[:, 0]) + rng.normal(size=400)
    settings = {"random_state": 1, "n_init": 2, "tol": 1e-6}
    all_at_once = KernelConditional(**settings).fit(x, y)
    monkeypatch.setattr(kc, "EXPLORE", 20)
    assert KernelConditional(**settings).fit(x[:20], y[:20]).signal_ < 0.1 < 0.2 < all_at_once.signal_
    in_two = KernelConditional(**settings).fit(x, y)
    close(in_two.log_marginal_likelihood_, all_at_once.log_marginal_likelihood_, 1e-4)


def test_hyper_parameters_of_a_sampled_process_are_recovered():
    """The range is 60 length scales, so that standardizing the samples hardly changes their scale."""
    rng = np.random.default_rng(3)
    x = standardized(rng.uniform(-2, 2, (400, 1)))
    K = reference.kernel(x, x, 0.06, 1.0) + 0.2**2 * np.eye(400)
    y = np.linalg.cholesky(K) @ rng.normal(size=(400, 4))
    model = KernelConditional(random_state=0).fit(x, y)
    assert abs(model.length_scale_ / 0.06 - 1) < 0.06
    assert abs(model.signal_ - 1) < 0.06 and abs(model.noise_ / 0.2 - 1) < 0.2


def test_the_sparse_form_is_the_reference():
    (x, y), (new, _) = curve(40), curve(6, seed=1)
    c, t, at = standardized(x), standardized(y), (new - x.mean(0)) / x.std(0)
    u = np.random.default_rng(0).normal(size=(8, 2))
    factors, whitened, found = kc.sparse(*items(c, t), torch.from_numpy(u), *H.values())
    close(found, reference.bound(c, t, u, *H.values()))
    model = at_these(x, y)
    model.points_, model.factors_, model.whitened_ = u, factors.numpy(), whitened.numpy()
    mean, variance = reference.sparse_predictive(c, t, u, at, *H.values())
    close(model.conditional(new).mean, y.mean(0) + y.std(0) * mean)
    close(model.conditional(new).variance, variance[:, None] * y.var(0))


def test_with_all_points_inducing_it_is_exact():
    (x, y), (new, _) = curve(300), curve(50, seed=1)
    exact = at_these(x, y)
    sparse = at_these(x, y, exact_limit=10, n_inducing=300, random_state=0)
    assert len(sparse.factors_) == 2 and len(exact.factors_) == 1
    close(sparse.conditional(new).mean, exact.conditional(new).mean, 1e-6)
    close(sparse.conditional(new).variance, exact.conditional(new).variance, 1e-6)
    close(sparse.log_marginal_likelihood_, exact.log_marginal_likelihood_, 1e-6)


def test_the_bound_is_below_and_rises_with_nested_points():
    pairs = items(*map(standardized, curve(200)))
    limit, last = kc.exact(*pairs, *H.values())[2], -math.inf
    for m in (2, 5, 15, 40, 100):
        found = kc.sparse(*pairs, pairs[0][:m], *H.values())[2]
        assert last - 1e-9 <= found <= limit + 1e-9
        last = found


def test_blocks_change_nothing(monkeypatch):
    pairs = items(*map(standardized, curve(200)))
    whole = kc.sparse(*pairs, pairs[0][:20], *H.values())
    monkeypatch.setattr(kc, "ROWS", 7)
    for a, b in zip(kc.sparse(*pairs, pairs[0][:20], *H.values()), whole, strict=True):
        close(a, b)


def test_few_points_are_close_to_exact_on_many_items():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (2000, 2))
    y = np.sin(2 * x[:, 0]) * np.cos(x[:, 1]) + 0.2 * rng.normal(size=2000)
    new = rng.uniform(-2, 2, (500, 2))
    exact = at_these(x, y, 0.6, 1.0)
    sparse = at_these(x, y, 0.6, 1.0, exact_limit=100, n_inducing=200, random_state=0)
    p, q = exact.conditional(new), sparse.conditional(new)
    assert 150 < len(sparse.points_) <= 200
    assert ((p.mean - q.mean).abs() / p.stddev).max() < 0.02
    assert (q.stddev / p.stddev - 1).abs().max() < 0.01
    assert sparse.log_marginal_likelihood_ <= exact.log_marginal_likelihood_


def test_the_sparse_form_searches_on_a_subset_and_omits_redundant_points():
    x, y = separated(3000, 0)[:2]
    model = KernelConditional(search_limit=700, exact_limit=1000, random_state=0, n_init=2).fit(x, y)
    assert len(model.points_) < 60  # one smooth dimension: 512 would be singular
    assert abs(-model.score(*separated(5000, 1)[:2]) - 1.2365) < 0.01
    again = KernelConditional(search_limit=700, exact_limit=1000, random_state=0, n_init=2).fit(x, y)
    close(model.predict(x[:50]), again.predict(x[:50]), 1e-12)


def test_far_from_the_items_it_is_the_prior():
    x, y = curve(50)
    model = at_these(x, y)
    far = model.conditional(np.full((1, 2), 1e4))
    close(far.mean[0], y.mean(0))
    close(far.variance[0], y.var(0) * (H["signal"] ** 2 + H["noise"] ** 2))


def test_duplicates_and_constant_columns_are_fine():
    x, y = curve(30)
    twice = np.concatenate([x, x]), np.concatenate([y, y + 0.01])
    held = np.column_stack([twice[0], np.full(60, 7.0)])
    for noise in (0.3, 1e-7):  # the second needs jitter
        plain = at_these(*twice, noise=noise)
        wide = at_these(held, twice[1], noise=noise)
        close(plain.predict(x), wide.predict(held[:30]), 1e-6)
        assert np.isfinite(plain.score_samples(*twice)).all()
    assert np.isfinite(KernelConditional(random_state=0).fit(held, twice[1]).score(held, twice[1]))
    assert np.isfinite(KernelConditional(random_state=0, exact_limit=5, n_inducing=20).fit(held, twice[1]).score(held, twice[1]))


def test_data_without_noise_are_interpolated():
    x = np.linspace(-1, 1, 60)[:, None]
    y = np.sin(3 * x[:, 0])
    model = KernelConditional(random_state=0).fit(x, y)
    assert np.abs(model.predict(x + 0.003) - np.sin(3 * (x[:, 0] + 0.003)))[:-1].max() < 1e-3
    assert np.isfinite(model.score(x, y))


def test_noise_absorbs_the_branches(on_a):
    """T18: one broad band, as wide as all branches together, with the NLL of one mode."""
    x, y, _ = separated(5000, 1)
    std = on_a.conditional(x[:500]).stddev.numpy()[:, 0]
    across = math.sqrt(branches(np.linspace(-1, 1, 2001)).var(0).mean() + EPS**2)
    assert abs(across - 0.836) < 0.001
    assert np.abs(std / across - 1).max() < 0.1 and abs(std.mean() / across - 1) < 0.05
    assert abs(-on_a.score(x, y) - 1.2365) < 0.01
    best_unimodal = 0.5 * math.log(2 * math.pi * across**2) + 0.5
    assert -on_a.score(x, y) > best_unimodal - 0.05


def test_an_unfinished_search_warns():
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        KernelConditional(max_iter=1, n_init=1, random_state=0).fit(*curve(50))
