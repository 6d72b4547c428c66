"""One Gaussian over context and target: regression is the oracle (T6); T1, T4, T21, T22; degenerate columns, files, messages."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LinearRegression, Ridge

from vergence.densities.gaussian import JointGaussian
from vergence.mixtures.conditional_gaussian import ConditionalGaussian
from vergence.mixtures.conditional_mixture import ConditionalMixture
from vergence.utils import linalg

N, C, T = 120, 3, 2


def close(found, expected, tol=1e-8):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tol, atol=tol)


def pairs(seed=0, n=N, c=C, t=T):
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, c)) @ g.normal(size=(c, c)) + 5 * g.normal(size=c)
    return x, x @ g.normal(size=(c, t)) + g.normal(size=(n, t)) @ g.normal(size=(t, t)) - 3


X, Y = pairs()
XX, YY = pairs(1, 30)
MODEL = ConditionalGaussian().fit(X, Y)


# --- the closed form


def check_regression(model, x=X, y=Y):
    """T6: the mean is least squares with an intercept, the covariance is that of its residuals, divided by N."""
    fitted = LinearRegression().fit(x, y)
    residual = y - fitted.predict(x)
    given = model.conditional(XX)
    close(given.mean, fitted.predict(XX))
    close(given.covariance, np.broadcast_to(residual.T @ residual / len(x), (len(XX), T, T)))


def test_the_conditional_is_the_regression():
    check_regression(MODEL)
    close(MODEL.predict(XX), MODEL.conditional(XX).mean)
    close(MODEL.predict_mode(XX), MODEL.predict(XX))


def test_the_joint_is_the_maximum_of_the_likelihood():
    Z = np.c_[X, Y]
    close(MODEL.means_, Z.mean(0))
    close(MODEL.covariances_, np.cov(Z.T, ddof=0))
    close(MODEL.cholesky_, np.linalg.cholesky(MODEL.covariances_))
    joint = MODEL.joint()
    assert isinstance(joint, JointGaussian) and joint.context == C and MODEL.jitter_ == 0.0
    close(joint.log_prob(torch.from_numpy(Z)), stats.multivariate_normal(Z.mean(0), np.cov(Z.T, ddof=0)).logpdf(Z))


def test_the_mean_mahalanobis_of_the_items_is_the_number_of_features():
    """T1, and the two terms of the chain rule share it in proportion to their numbers of features."""
    joint, Z = MODEL.joint(), torch.from_numpy(np.c_[X, Y])
    close(joint.S.quadratic(Z - joint.mean).mean(), C + T, 1e-9)
    context = joint.marginal("context")
    close(context.S.quadratic(Z[:, :C] - context.mean).mean(), C, 1e-9)
    given = joint.conditional(Z[:, :C])
    close(given.S.quadratic(Z[:, C:] - given.mean).mean(), T, 1e-9)


def test_a_mixture_of_one_is_this():
    one = ConditionalMixture(1, reg_covar=0.0).fit(X, Y)
    close(one.means_[0], MODEL.means_)
    close(one.covariances_[0], MODEL.covariances_)
    close(one.score_samples(XX, YY), MODEL.score_samples(XX, YY))
    close(one.predict(XX), MODEL.predict(XX))
    close(one.intervals(XX), MODEL.intervals(XX))
    close(one.lower_bound_, MODEL.joint().log_prob(torch.from_numpy(np.c_[X, Y])).mean())
    assert one.converged_ and one.n_iter_ == 2


def test_a_ridge_is_added_in_standardized_units():
    model = ConditionalGaussian(reg_covar=0.3).fit(X, Y)
    close(np.diag(model.covariances_), 1.3 * np.var(np.c_[X, Y], axis=0))
    standard = [(a - a.mean(0)) / a.std(0) for a in (X, Y)]
    ridge = Ridge(alpha=0.3 * N, fit_intercept=False).fit(*standard)
    close(model.predict(XX), Y.mean(0) + Y.std(0) * ridge.predict((XX - X.mean(0)) / X.std(0)))


# --- symmetries


def test_context_and_target_have_the_same_role():
    """T22."""
    other = ConditionalGaussian().fit(Y, X)
    ours, theirs = (torch.from_numpy(np.concatenate(pair, 1)) for pair in ((XX, YY), (YY, XX)))
    close(other.joint().log_prob(theirs), MODEL.joint().log_prob(ours), 1e-11)
    close(other.conditional(YY).mean, LinearRegression().fit(Y, X).predict(YY))


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_affine_maps_shift_the_density_by_their_determinant(scale):
    """T21: the conditional by log |det B_t|, whatever the map of the context."""
    g = np.random.default_rng(3)
    Bc, Bt = (scale * (g.normal(size=(d, d)) + 2 * np.eye(d)) for d in (C, T))
    moved = ConditionalGaussian().fit(X @ Bc.T + 1e3 * scale, Y @ Bt.T - 7 * scale)
    found = moved.score_samples(XX @ Bc.T + 1e3 * scale, YY @ Bt.T - 7 * scale)
    log_det = np.linalg.slogdet(Bt)[1]
    close(found + log_det, MODEL.score_samples(XX, YY), 1e-7)
    close(moved.predict(XX @ Bc.T + 1e3 * scale) / scale, (MODEL.predict(XX) @ Bt.T / scale - 7), 1e-7)


def test_items_have_no_order():
    order = np.random.default_rng(4).permutation(N)
    close(ConditionalGaussian().fit(X[order], Y[order]).covariances_, MODEL.covariances_, 1e-12)


# --- predictions


def test_intervals_and_ranks_are_the_normals():
    given = MODEL.conditional(XX)
    half = stats.norm.ppf(0.9) * given.variance.sqrt()
    close(MODEL.intervals(XX, level=0.8), torch.stack([given.mean - half, given.mean + half], -1))
    close(MODEL.pit(XX, YY), stats.norm.cdf((YY - given.mean.numpy()) / given.variance.sqrt().numpy()))


# --- degenerate contexts


DEGENERATE = {
    "doubled": np.c_[X, X[:, 0]],
    "summed": np.c_[X, X.sum(1)],
    "constant": np.c_[X, np.full(N, 0.1)],
    "all three": np.c_[X, X[:, 1], X.sum(1), np.full(N, 7.0)],
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("scale", [1.0, 1e6, np.array([1e6, 1.0, 1e-3])], ids=["one", "large", "mixed"])
def test_context_columns_that_add_nothing_change_nothing(name, scale):
    x = DEGENERATE[name]
    units = np.r_[np.ones(3) * scale, np.full(x.shape[1] - 3, np.max(scale))]
    model = ConditionalGaussian().fit(x * units, Y)
    assert 0 < model.jitter_ < 1e-9
    close(model.predict(x * units), MODEL.predict(X), 1e-4)
    close(model.score_samples(x * units, Y), MODEL.score_samples(X, Y), 1e-4)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 7.0])
@pytest.mark.parametrize("make", [ConditionalGaussian, lambda: ConditionalMixture(1, reg_covar=0.0)], ids=["one", "mixture"])
def test_a_constant_column_has_no_effect_when_it_changes_later(value, make):
    """The mean of 120 times 0.1 is not exactly 0.1: the difference is rounding and must not enter the regression."""
    constant = np.full((N, 1), value)
    model = make().fit(np.c_[X, constant], Y)
    close(model.predict(np.c_[X, constant + 1]), MODEL.predict(X), 1e-8)


def test_fewer_items_than_features_are_finite():
    g = np.random.default_rng(6)
    x, y = g.normal(size=(5, 8)), g.normal(size=(5, 2))
    model = ConditionalGaussian().fit(x, y)
    assert model.jitter_ > 0
    assert np.isfinite(model.score_samples(x, y)).all() and np.isfinite(model.sample(x, 3, random_state=0)).all()
    close(model.predict(x), y, 1e-3)
    two = ConditionalGaussian().fit([[0.0], [1.0]], [1.0, 3.0])
    close(two.predict([[0.5]]), [2.0], 1e-5)


def test_a_target_that_the_context_determines_is_sharp_not_an_error():
    x = X[:, :1]
    model = ConditionalGaussian().fit(x, 2 * x[:, 0] + 1)
    close(model.predict(x), 2 * x[:, 0] + 1, 1e-5)
    assert 0 < float(model.conditional(x).variance.max()) < 1e-8 * np.var(2 * x) and model.jitter_ > 0
    assert model.score(x, 2 * x[:, 0] + 1) > 5


# --- files and messages


# --- planted errors


def unbiased(S):
    L, jitter = linalg.cholesky(S)
    return L * (N / (N - 1)) ** 0.5, jitter


def independent(S):
    L, jitter = linalg.cholesky(S)
    return torch.diag(L.square().sum(1).sqrt()), jitter


@pytest.mark.parametrize("planted", [unbiased, independent])
def test_regression_sees_planted_errors(planted, monkeypatch):
    check_regression(ConditionalGaussian().fit(X, Y))
    monkeypatch.setattr("vergence.mixtures.conditional_gaussian.linalg.cholesky", planted_for(planted))
    with pytest.raises(AssertionError):
        check_regression(ConditionalGaussian().fit(X, Y))


def planted_for(planted, real=linalg.cholesky):
    def cholesky(S):
        linalg_cholesky, linalg.cholesky = linalg.cholesky, real
        try:
            return planted(S)
        finally:
            linalg.cholesky = linalg_cholesky

    return cholesky
