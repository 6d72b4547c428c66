"""The line with few rows against loops in numpy, Student's t of scipy, and scikit-learn's Bayesian ridge on held-out rows."""

import numpy as np
import pytest
from scipy import special, stats
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge

from vergence.mixtures import BayesianLine, GaussianRegressor
from vergence.mixtures.bayesian_line import PENALTIES, student

pytestmark = pytest.mark.filterwarnings("ignore::vergence.mixtures.core.FarValue")  # contexts far from twelve rows


def rows(n=12, d=3, seed=0, targets=1):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, d))
    y = x @ r.normal(size=(d, targets)) + r.normal(size=(n, targets))
    return x, y[:, 0] if targets == 1 else y


def by_definition(x, y, new):
    """Returns location, scale and degrees of freedom of the t of each new context, with dense matrices."""
    mean, std, N = x.mean(0), x.std(0), len(x)
    X, Y, new = (x - mean) / std, (y - y.mean()) / y.std(), (new - mean) / std
    found = []
    for penalty in np.trace(X @ X.T) / min(X.shape) * np.logspace(*PENALTIES):
        K = np.eye(N) + X @ X.T / penalty
        q, P = Y @ np.linalg.solve(K, Y), np.linalg.inv(X.T @ X + penalty * np.eye(X.shape[1]))
        variance = q / (N - 1) * (1 + 1 / N + np.einsum("bi,ij,bj->b", new, P, new))
        log_p = -0.5 * np.linalg.slogdet(K)[1] - 0.5 * (N - 1) * np.log(q)
        found.append((log_p, new @ P @ X.T @ Y, variance, np.trace(P @ X.T @ X)))
    log_p, location, variance, used = (np.array(part) for part in zip(*found, strict=True))
    p = special.softmax(log_p)
    middle = p @ location
    scale = np.sqrt(p @ variance + p @ (location - middle) ** 2)
    return y.mean() + y.std() * middle, y.std() * scale, max(3.0, N - 1 - p @ used)


@pytest.mark.parametrize(("n", "d"), [(12, 3), (8, 20), (40, 8)])
def test_it_is_the_definition(n, d):
    x, y = rows(n, d)
    new, right = np.concatenate([x, 5 * x]), np.tile(y, 2)
    location, scale, degrees = by_definition(x, y, new)
    model = BayesianLine().fit(x, y)
    assert model.degrees_ == pytest.approx(degrees, rel=1e-9)
    np.testing.assert_allclose(model.predict(new), location, rtol=1e-9)
    p = stats.t(degrees, location, scale)
    np.testing.assert_allclose(model.score_samples(new, right), p.logpdf(right), atol=1e-3)
    np.testing.assert_allclose(model.quantile(new, 0.95), p.ppf(0.95), rtol=1e-3)


@pytest.mark.parametrize("n", [3.0, 5.0, 8.5, 30.0, 1e3, 1e6])
def test_the_mixture_is_students_t(n):
    logits, g = student(n)
    z = np.array([0.0, 1.0, 3.0, 6.0, 12.0])[:, None]
    log_p = special.logsumexp(logits.log_softmax(0).numpy() + stats.norm(0, 1 / g.sqrt().numpy()).logpdf(z), 1)
    np.testing.assert_allclose(log_p, stats.t(n).logpdf(z[:, 0]), atol=1e-3)


def test_targets_are_fitted_one_by_one_and_err_together():
    x, y = rows(40, 3, targets=2)
    y[:, 1] = y[:, 0] + 0.1 * y[:, 1]
    both, one = BayesianLine().fit(x, y), BayesianLine().fit(x, y[:, 1])
    np.testing.assert_allclose(both.predict(x)[:, 1], one.predict(x), rtol=1e-9)
    np.testing.assert_allclose(both.intervals(x)[:, 1], one.intervals(x), rtol=1e-2)
    residual = y - both.predict(x)
    S = both.conditional(x[:1]).covariance[0]
    assert S[0, 1] / S.diagonal().prod().sqrt() == pytest.approx(np.corrcoef(residual.T)[0, 1], abs=1e-3)


def test_intervals_hold_what_they_say_with_twelve_rows_and_at_high_leverage():
    inside, high = [], []
    for seed in range(150):
        x, y = rows(72, 3, seed)
        low, top = BayesianLine().fit(x[:12], y[:12]).intervals(x[12:], 0.9).T
        found = (low <= y[12:]) & (y[12:] <= top)
        leverage = np.square((x[12:] - x[:12].mean(0)) @ np.linalg.pinv(x[:12] - x[:12].mean(0))).sum(1)
        inside.append(found.mean())
        high.append(found[leverage > np.quantile(leverage, 0.8)].mean())
    assert 0.88 < np.mean(inside) < 0.92 and 0.88 < np.mean(high) < 0.92


def test_it_is_as_good_as_bayesian_ridge():
    ours, peer = [], []
    x, y = load_diabetes(return_X_y=True)
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(x))
        few = rows(212, 3, seed)
        for X, Y, n in ((*few, 12), (x[order], y[order], 40)):
            for found, model in ((ours, BayesianLine()), (peer, GaussianRegressor(BayesianRidge()))):
                found.append(model.fit(X[:n], Y[:n]).score(X[n:], Y[n:]))
    assert np.mean(ours[::2]) > np.mean(peer[::2]) - 0.1 and np.mean(ours[1::2]) > np.mean(peer[1::2]) - 0.1
