"""One Gaussian against regression and a mixture against Bayes' rule in loops; symmetries, dataset A."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from tests.mixtures.common import TRUTH, close, separated

from vergence.densities.gaussian import JointGaussian
from vergence.mixtures import core
from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
from vergence.utils import linalg

N, C, T = 120, 3, 2


def line(seed=0, n=N, c=C, t=T):
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, c)) @ g.normal(size=(c, c)) + 5 * g.normal(size=c)
    return x, x @ g.normal(size=(c, t)) + g.normal(size=(n, t)) @ g.normal(size=(t, t)) - 3


P, Q = line()
PP, QQ = line(1, 30)
MODEL = ConditionalGaussian().fit(P, Q)


def test_the_conditional_is_the_regression():
    """T6: the mean is least squares with an intercept, the covariance is that of its residuals, divided by N."""
    fitted = LinearRegression().fit(P, Q)
    residual = Q - fitted.predict(P)
    given = MODEL.conditional(PP)
    close(given.mean, fitted.predict(PP))
    close(given.covariance, np.broadcast_to(residual.T @ residual / N, (len(PP), T, T)))
    close(MODEL.predict(PP), given.mean)
    close(MODEL.mode(PP), MODEL.predict(PP))


def test_the_joint_is_the_maximum_of_the_likelihood():
    Z = np.c_[P, Q]
    close(MODEL.means_, Z.mean(0))
    close(MODEL.covariances_, np.cov(Z.T, ddof=0))
    close(MODEL.cholesky_, np.linalg.cholesky(MODEL.covariances_))
    joint = MODEL.joint()
    assert isinstance(joint, JointGaussian) and joint.context == C and MODEL.jitter_ == 0.0
    close(joint.log_prob(torch.from_numpy(Z)), stats.multivariate_normal(Z.mean(0), np.cov(Z.T, ddof=0)).logpdf(Z))


def test_the_mean_mahalanobis_of_the_items_is_the_number_of_features():
    """T1, and the two terms of the chain rule share it in proportion to their numbers of features."""
    joint, Z = MODEL.joint(), torch.from_numpy(np.c_[P, Q])
    close(joint.S.quadratic(Z - joint.mean).mean(), C + T, 1e-9)
    context = joint.marginal("context")
    close(context.S.quadratic(Z[:, :C] - context.mean).mean(), C, 1e-9)
    given = joint.conditional(Z[:, :C])
    close(given.S.quadratic(Z[:, C:] - given.mean).mean(), T, 1e-9)


def test_a_mixture_of_one_is_this():
    one = ConditionalMixture(1, reg_covar=0.0).fit(P, Q)
    close(one.means_[0], MODEL.means_)
    close(one.covariances_[0], MODEL.covariances_)
    close(one.score_samples(PP, QQ), MODEL.score_samples(PP, QQ))
    close(one.predict(PP), MODEL.predict(PP))
    close(one.intervals(PP), MODEL.intervals(PP))
    close(one.lower_bound_, MODEL.joint().log_prob(torch.from_numpy(np.c_[P, Q])).mean())
    assert one.converged_ and one.n_iter_ == 2


def test_a_ridge_is_added_in_standardized_units():
    model = ConditionalGaussian(reg_covar=0.3).fit(P, Q)
    close(np.diag(model.covariances_), 1.3 * np.var(np.c_[P, Q], axis=0))
    standard = [(a - a.mean(0)) / a.std(0) for a in (P, Q)]
    ridge = Ridge(alpha=0.3 * N, fit_intercept=False).fit(*standard)
    close(model.predict(PP), Q.mean(0) + Q.std(0) * ridge.predict((PP - P.mean(0)) / P.std(0)))


def test_context_and_target_of_one_gaussian_have_the_same_role():
    """T22."""
    other = ConditionalGaussian().fit(Q, P)
    ours, theirs = (torch.from_numpy(np.concatenate(pair, 1)) for pair in ((PP, QQ), (QQ, PP)))
    close(other.joint().log_prob(theirs), MODEL.joint().log_prob(ours), 1e-11)
    close(other.conditional(QQ).mean, LinearRegression().fit(Q, P).predict(QQ))


DEGENERATE = {
    "doubled": np.c_[P, P[:, 0]], "summed": np.c_[P, P.sum(1)], "constant": np.c_[P, np.full(N, 0.1)],
    "all three": np.c_[P, P[:, 1], P.sum(1), np.full(N, 7.0)],
}  # fmt: skip


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("scale", [1.0, 1e6, np.array([1e6, 1.0, 1e-3])], ids=["one", "large", "mixed"])
def test_context_columns_that_add_nothing_change_nothing(name, scale):
    x = DEGENERATE[name]
    units = np.r_[np.ones(3) * scale, np.full(x.shape[1] - 3, np.max(scale))]
    model = ConditionalGaussian(ridge=0.0).fit(x * units, Q)
    assert 0 < model.jitter_ < 1e-9
    close(model.predict(x * units), MODEL.predict(P), 1e-4)
    close(model.score_samples(x * units, Q), MODEL.score_samples(P, Q), 1e-4)


@pytest.mark.filterwarnings("ignore::vergence.mixtures.core.FarValue")
@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 7.0])
@pytest.mark.parametrize("make", [ConditionalGaussian, lambda: ConditionalMixture(1, reg_covar=0.0)], ids=["one", "mixture"])
def test_a_constant_column_has_no_effect_when_it_changes_later(value, make):
    """The mean of 120 times 0.1 is not exactly 0.1: the difference is rounding and must not enter the regression."""
    constant = np.full((N, 1), value)
    model = make().fit(np.c_[P, constant], Q)
    close(model.predict(np.c_[P, constant + 1]), MODEL.predict(P), 1e-8)


def test_a_target_that_the_context_determines_is_sharp_not_an_error():
    x = P[:, :1]
    model = ConditionalGaussian().fit(x, 2 * x[:, 0] + 1)
    close(model.predict(x), 2 * x[:, 0] + 1, 1e-5)
    assert 0 < float(model.conditional(x).variance.max()) < 1e-8 * np.var(2 * x) and model.jitter_ > 0
    assert model.score(x, 2 * x[:, 0] + 1) > 5


def pairs(n=240, seed=0, c=2, t=2):
    """Three linear branches, one chosen at random."""
    g, w = np.random.default_rng(seed), np.random.default_rng(99)
    A, b = w.normal(size=(3, c, t)), 6 * w.normal(size=(3, t))
    x, k = g.normal(size=(n, c)), g.integers(0, 3, n)
    return x, np.einsum("nc,nct->nt", x, A[k]) + b[k] + 0.3 * g.normal(size=(n, t))


X, Y = pairs()
XX, YY = pairs(40, 1)


def fit(x=X, y=Y, **options):
    return ConditionalMixture(**{"n_components": 3, "n_init": 4, "random_state": 0} | options).fit(x, y)


@pytest.fixture(scope="module")
def models():
    return {"full": fit(), "low_rank": fit(covariance_type="low_rank", rank=2, tol=1e-4)}


def test_the_conditional_is_bayes_rule_component_by_component(models):
    """gamma_k, m_k and C_k as in the specification (2.4), in loops."""
    model = models["full"]
    given = model.conditional(XX)
    for n, c in enumerate(XX):
        weight = []
        for k in range(3):
            mu, S = model.means_[k], model.covariances_[k]
            A = S[2:, :2] @ np.linalg.inv(S[:2, :2])
            close(given.component_distribution.mean[n, k], mu[2:] + A @ (c - mu[:2]), 1e-9)
            close(given.component_distribution.covariance[n, k], S[2:, 2:] - A @ S[:2, 2:], 1e-9)
            q = (c - mu[:2]) @ np.linalg.inv(S[:2, :2]) @ (c - mu[:2])
            weight.append(model.weights_[k] * math.exp(-q / 2) / math.sqrt(np.linalg.det(2 * math.pi * S[:2, :2])))
        close(given.mixture_distribution.probs[n], np.array(weight) / sum(weight), 1e-9)


def test_the_mode_is_the_highest(models):
    model = models["full"]
    given = model.conditional(XX)
    z = torch.from_numpy(model.mode(XX)).requires_grad_()
    top = given.log_prob(z)
    assert torch.autograd.grad(top.sum(), z)[0].abs().max() < 1e-2  # a mode
    assert (top > given.log_prob(given.component_distribution.mean.movedim(1, 0)).amax(0) - 1e-6).all()


def test_the_bound_is_the_joint_log_likelihood_in_the_units_of_the_data(models):
    for model in models.values():
        found = model.joint().log_prob(torch.from_numpy(np.c_[X, Y])).mean()
        assert float(found) == pytest.approx(model.lower_bound_, abs=2e-3)  # the bound is of before the last step
        assert float(found) >= model.lower_bound_ - 1e-6


def test_components_are_those_that_made_the_data(models):
    w = np.random.default_rng(99)
    A, b = w.normal(size=(3, 2, 2)), 6 * w.normal(size=(3, 2))
    given = models["full"].conditional(XX)
    answers = np.einsum("nc,kct->nkt", XX, A) + b
    found = given.component_distribution.mean.numpy()
    nearest = np.linalg.norm(answers[:, :, None] - found[:, None], axis=-1).min(2)
    assert nearest.max() < 0.6 and np.median(nearest) < 0.1
    close(np.sort(models["full"].weights_), np.full(3, 1 / 3), 0.1)


@pytest.fixture(scope="module")
def dataset():
    return separated(3000, 0)[:2], separated(5000, 1)[:2]


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"n_components": 1}, 1.21, 1.26),  # the specification: 1.242
        ({"n_components": 3, "n_init": 20}, 0.65, 0.85),  # 0.824 at -1.690 a pair; there is a better end, at -1.53
        ({"n_components": 10, "n_init": 8, "tol": 1e-4, "random_state": 1}, -0.35, -0.21),  # -0.287
        ({"n_components": 30, "n_init": 2, "tol": 1e-4}, -0.46, -0.38),  # -0.420
    ],
    ids=["1", "3", "10", "30"],
)
def test_dataset_a(options, low, high, dataset):
    (x, y), (xx, yy) = dataset
    model = ConditionalMixture(**{"random_state": 0} | options).fit(x, y)
    nll = -model.score(xx, yy)
    assert low < nll < high
    assert nll > TRUTH - 0.03
    if options["n_components"] == 3:
        assert model.lower_bound_ > -1.70


def test_more_initializations_are_never_worse_and_the_best_is_kept(dataset):
    (x, y), _ = dataset
    few, more = (ConditionalMixture(3, n_init=n, random_state=0, tol=1e-4).fit(x[:600], y[:600]) for n in (1, 5))
    assert more.lower_bound_ >= few.lower_bound_ - 1e-3


@pytest.mark.parametrize("covariance_type", ["full", "low_rank"])
@pytest.mark.parametrize("reg_covar", [0.0, 1e-6])
def test_singular_pairs_end_finite(covariance_type, reg_covar):
    g = np.random.default_rng(3)
    base = g.normal(size=(30, 2))
    cases = {
        "constant and doubled contexts": (np.c_[base, base[:, :1], np.full(30, 0.1)] * [1e6, 1, 1e6, 1], base.sum(1)),
        "wide": (g.normal(size=(6, 9)), g.normal(size=(6, 2))),
        "places": (np.repeat(base[:3], 10, axis=0), np.repeat(base[:3, 0], 10)),
        "two": (np.array([[0.0], [1.0]]), np.array([0.0, 1.0])),
    }
    for name, (x, y) in cases.items():
        for k in (1, 2):
            how = {"covariance_type": covariance_type, "reg_covar": reg_covar, "random_state": 0}
            model = ConditionalMixture(k, rank=2, n_init=2, tol=1e-2, **how).fit(x, y)
            assert np.isfinite(model.score_samples(x, y)).all(), (name, k)
            assert np.isfinite(model.sample(x, 3, random_state=0)).all() and np.isfinite(model.predict(x)).all()


def test_a_query_of_many_blocks_factors_the_covariances_once(models, monkeypatch):
    expected, real, calls = models["full"].score_samples(XX, YY), linalg.covariance_cholesky, []

    def counted(S):
        calls.append(S.shape)
        return real(S)

    monkeypatch.setattr(linalg, "covariance_cholesky", counted)
    monkeypatch.setattr(core, "BLOCK", 1)  # a block for each row
    close(models["full"].score_samples(XX, YY), expected, 1e-10)
    assert len(calls) == 1


def test_an_unfinished_fit_warns():
    with pytest.warns(ConvergenceWarning, match="EM did not converge in 2 iterations"):
        unfinished = fit(max_iter=2, tol=0.0)
    assert not unfinished.converged_ and unfinished.n_iter_ == 2
