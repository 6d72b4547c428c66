"""The mixture over context and target: chain rule, quadrature, total covariance, dataset A of the specification, symmetries."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures import core, gaussian_mixture
from vergence.mixtures.conditional_mixture import ConditionalMixture
from vergence.utils import linalg

EPS = 0.05


def close(found, expected, tol=1e-10):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tol, atol=tol)


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


# --- the density


@pytest.mark.parametrize("kind", ["full", "low_rank"])
def test_joint_is_marginal_times_conditional(kind, models):
    check_chain_rule(models[kind])


def check_chain_rule(model):
    z = torch.from_numpy(np.c_[XX, YY])
    marginal = model.joint().marginal("context").log_prob(z[:, :2])
    close(marginal + torch.from_numpy(model.score_samples(XX, YY)), model.joint().log_prob(z))


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


def test_samples_have_the_total_covariance(models):
    """T13: sum_k gamma_k (C_k + m_k m_k^T) - m m^T."""
    model, n = models["full"], 40_000
    given = model.conditional(XX[:3])
    draws = model.sample(XX[:3], n, random_state=0)
    assert draws.shape == (3, n, 2) and np.array_equal(draws[0, :5], model.sample(XX[:3], n, random_state=0)[0, :5])
    z = (draws.mean(1) - given.mean.numpy()) / (given.variance.numpy() / n) ** 0.5
    assert np.abs(z).max() < 4
    for i in range(3):
        d = draws[i] - draws[i].mean(0)
        products = d[:, :, None] * d[:, None]
        assert (np.abs(products.mean(0) - given.covariance[i].numpy()) / (products.std(0) / n**0.5)).max() < 4


def test_predictions(models):
    model = models["full"]
    given = model.conditional(XX)
    assert isinstance(given, MixtureOfGaussians) and given.batch_shape == (40,) and given.event_shape == (2,)
    close(model.predict(XX), given.mean)
    heaviest = given.mixture_distribution.probs.argmax(1)
    close(model.predict_mode(XX), given.component_distribution.mean[torch.arange(40), heaviest])
    ends = model.intervals(XX, level=0.9)
    inside = (ends[..., 0] < YY) & (ends[..., 1] > YY)
    assert ends.shape == (40, 2, 2) and 0.8 < inside.mean() <= 1
    close(given.marginal_cdf(torch.from_numpy(ends[..., 0])), np.full((40, 2), 0.05), 1e-9)


def test_it_equals_the_condition_of_a_gaussian_mixture():
    """The other estimator's condition() with this one's parameters."""
    model = fit()
    other = gaussian_mixture.GaussianMixture(3)
    other.weights_, other.means_, other.covariances_, other.n_features_in_ = model.weights_, model.means_, model.covariances_, 4
    close(other.condition(XX).log_prob(torch.from_numpy(YY)), model.score_samples(XX, YY), 1e-9)
    close(other.condition(YY, features=[2, 3]).log_prob(torch.from_numpy(XX)), _reverse(model), 1e-9)


def _reverse(model):
    z = torch.from_numpy(np.c_[XX, YY])
    return model.joint().log_prob(z) - model.joint().marginal("target").log_prob(z[:, 2:])


def test_the_bound_is_the_joint_log_likelihood_in_the_units_of_the_data(models):
    for model in models.values():
        found = model.joint().log_prob(torch.from_numpy(np.c_[X, Y])).mean()
        assert float(found) == pytest.approx(model.lower_bound_, abs=2e-3)  # the bound is of before the last step
        assert float(found) >= model.lower_bound_ - 1e-6


# --- symmetries


def test_context_and_target_have_the_same_role():
    """T22: the same joint density, from one initialization."""
    one, other = fit(n_components=1), fit(Y, X, n_components=1)
    close(one.joint().log_prob(torch.from_numpy(np.c_[XX, YY])), other.joint().log_prob(torch.from_numpy(np.c_[YY, XX])))


# --- known mixtures are recovered


def test_components_are_those_that_made_the_data(models):
    w = np.random.default_rng(99)
    A, b = w.normal(size=(3, 2, 2)), 6 * w.normal(size=(3, 2))
    given = models["full"].conditional(XX)
    answers = np.einsum("nc,kct->nkt", XX, A) + b
    found = given.component_distribution.mean.numpy()
    nearest = np.linalg.norm(answers[:, :, None] - found[:, None], axis=-1).min(2)
    assert nearest.max() < 0.6 and np.median(nearest) < 0.1
    close(np.sort(models["full"].weights_), np.full(3, 1 / 3), 0.1)


def branches(x):
    return np.stack([1 + 0.3 * np.sin(np.pi * x), 0.3 * np.sin(2 * np.pi * x), -1 + 0.3 * np.cos(np.pi * x)])


def separated(n, seed):
    """Dataset A of the specification (4.1): one of three branches, noise .05."""
    g = np.random.default_rng(seed)
    x, k = g.uniform(-1, 1, n), g.integers(0, 3, n)
    return x[:, None], branches(x)[k, np.arange(n)] + EPS * g.normal(size=n)


@pytest.fixture(scope="module")
def dataset():
    return separated(3000, 0), separated(5000, 1)


TRUTH = math.log(3) + 0.5 * math.log(2 * math.pi * math.e * EPS**2)


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        ({"n_components": 1}, 1.21, 1.26),  # the specification: 1.242
        (
            {"n_components": 3, "n_init": 20},
            0.65,
            0.85,
        ),  # 0.824 at -1.690 a pair; there is a better end, at -1.53
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


def test_several_components_fit_one_gaussian():
    """Nine components on data of one Gaussian give nearly its density."""
    g = np.random.default_rng(2)
    x = g.normal(size=(600, 1))
    y = x[:, 0] + g.normal(size=600)
    one, nine = (ConditionalMixture(k, n_init=1, random_state=0, tol=1e-4).fit(x, y) for k in (1, 9))
    assert abs(one.score(x, y) - nine.score(x, y)) < 0.1
    close(nine.weights_.sum(), 1.0)


# --- degenerate data


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
            model = ConditionalMixture(
                k, covariance_type=covariance_type, rank=2, n_init=2, reg_covar=reg_covar, tol=1e-2, random_state=0
            )
            model.fit(x, y)
            assert np.isfinite(model.score_samples(x, y)).all(), (name, k)
            assert np.isfinite(model.sample(x, 3, random_state=0)).all() and np.isfinite(model.predict(x)).all()


def test_a_constant_context_adds_nothing(models):
    wide = fit(np.c_[X, np.full(len(X), 3.0)])
    close(wide.score_samples(np.c_[XX, np.full(40, 3.0)], YY), models["full"].score_samples(XX, YY), 1e-6)


def test_a_query_of_many_blocks_factors_the_covariances_once(models, monkeypatch):
    expected, real, calls = models["full"].score_samples(XX, YY), linalg.covariance_cholesky, []

    def counted(S):
        calls.append(S.shape)
        return real(S)

    monkeypatch.setattr(linalg, "covariance_cholesky", counted)
    monkeypatch.setattr(core, "BLOCK", 1)  # a block for each row
    close(models["full"].score_samples(XX, YY), expected, 1e-10)
    assert len(calls) == 1


# --- files and messages


def test_an_unfinished_fit_warns():
    with pytest.warns(ConvergenceWarning, match="EM did not converge in 2 iterations"):
        unfinished = fit(max_iter=2, tol=0.0)
    assert not unfinished.converged_ and unfinished.n_iter_ == 2


# --- planted errors


def test_the_chain_rule_sees_planted_errors(models, monkeypatch):
    check_chain_rule(models["full"])
    real = ConditionalMixture._predictive

    def unweighted(self):
        """The prior weights, whatever the context."""
        predictive, log_w = real(self), torch.from_numpy(self.weights_).log()

        def planted(c):
            parts = predictive(c).component_distribution
            return MixtureOfGaussians(log_w, parts.loc, parts.S)

        return planted

    monkeypatch.setattr(ConditionalMixture, "_predictive", unweighted)
    with pytest.raises(AssertionError):
        check_chain_rule(models["full"])
