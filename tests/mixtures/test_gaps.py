"""Gaps: the likelihood of what was observed, by brute force; filled contexts of the other models; any direction."""

import itertools

import numpy as np
import pytest
import torch
from scipy import optimize
from scipy.stats import multivariate_normal
from tests.refusals import refuses

from vergence import mixtures
from vergence.densities.em.gaps import fit_with_gaps
from vergence.mixtures import ConditionalGaussian, ConditionalMixture

NAN = np.nan


def correlated(n=300, seed=0, share=0.25):
    r = np.random.default_rng(seed)
    z = r.multivariate_normal([1, -2, 0.5], [[1, 0.7, 0.5], [0.7, 2, 0.9], [0.5, 0.9, 1.5]], n)
    return z, np.where(r.random(z.shape) < share, NAN, z)


def log_likelihood(mean, S, rows):
    total = 0.0
    for row in rows:
        o = ~np.isnan(row)
        if o.any():
            total += multivariate_normal(mean[o], S[np.ix_(o, o)]).logpdf(row[o])
    return total / (~np.isnan(rows).all(1)).sum()


def test_one_gaussian_has_the_highest_likelihood_of_what_was_observed():
    _, x = correlated(120)
    start = torch.ones(1), torch.zeros(1, 3), torch.eye(3)[None]
    _, mean, S, bounds = fit_with_gaps(torch.from_numpy(x), None, *start, reg=0.0, tol=1e-12, max_iter=2000)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(bounds)), "EM never lowers the likelihood"
    assert bounds[-1] == pytest.approx(log_likelihood(mean[0].numpy(), S[0].numpy(), x), abs=1e-9)
    theta = np.concatenate([mean[0], np.linalg.cholesky(S[0])[np.tril_indices(3)]])

    def negative(theta):
        L = np.zeros((3, 3))
        L[np.tril_indices(3)] = theta[3:]
        return -log_likelihood(theta[:3], L @ L.T, x)

    assert np.abs(optimize.approx_fprime(theta, negative, 1e-6)).max() < 1e-3, "a stationary point"


def test_weights_are_repetitions():
    _, x = correlated(60)
    w = np.random.default_rng(0).integers(1, 4, 60)
    start = torch.tensor([0.5, 0.5]), torch.tensor([[0.0, -1, 0], [2.0, -2, 1]]), torch.eye(3).expand(2, 3, 3)
    how = {"reg": 1e-6, "tol": 0.0, "max_iter": 20}
    weighted = fit_with_gaps(torch.from_numpy(x), torch.from_numpy(w * 1.0), *start, **how)
    repeated = fit_with_gaps(torch.from_numpy(np.repeat(x, w, 0)), None, *start, **how)
    for a, b in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def test_without_gaps_it_is_the_usual_em():
    z, _ = correlated(200)
    model = ConditionalMixture(2, random_state=0, prior=0.0).fit(z[:, :2], z[:, 2])
    start = (torch.from_numpy(v) for v in (model.weights_, model.means_, model.covariances_))
    _, means, S, _ = fit_with_gaps(torch.from_numpy(z), None, *start, reg=0.0, max_iter=1)
    np.testing.assert_allclose(means, model.means_, atol=1e-2)
    np.testing.assert_allclose(S, model.covariances_, atol=2e-2)


@pytest.mark.parametrize("make", [ConditionalGaussian, lambda: ConditionalMixture(2, random_state=0)])
def test_gaps_at_random_hardly_bias_the_fit(make):
    z, x = correlated(3000)
    model = make().fit(x[:, :2], x[:, 2])
    truth = ConditionalGaussian().fit(z[:, :2], z[:, 2])
    assert model.score(z[:, :2], z[:, 2]) == pytest.approx(truth.score(z[:, :2], z[:, 2]), abs=0.02)
    np.testing.assert_allclose(model.predict([[NAN, NAN]]), [0.5], atol=0.15)
    np.testing.assert_allclose(model.predict([[2.0, NAN]]), [1.0], atol=0.2)
    assert model.conditional([[2.0, NAN]]).variance.item() == pytest.approx(1.5 - 0.25, abs=0.15)


@pytest.mark.parametrize("name", mixtures.MODELS)
def test_every_model_takes_contexts_and_targets_with_gaps(name, tmp_path):
    _, x = correlated(150)
    settings = {"random_state": 0, **({"steps": 100} if name == "mdn" else {})}
    model = mixtures.get(name)(**settings).fit(x[:, :1], x[:, 1:])
    model.save(tmp_path / "m.safetensors")
    model = mixtures.load(tmp_path / "m.safetensors")
    assert np.isfinite(model.predict(x[:, :1])).all() and model.sample(x[:, :1], 2).shape == (150, 2, 2)
    log_p = model.score_samples(x[:, :1], x[:, 1:])
    known = ~np.isnan(x[:, 1:]).any(1)
    np.testing.assert_allclose(log_p[known], model.score_samples(x[known, :1], x[known, 1:]))
    assert np.isfinite(log_p).all() and np.abs(log_p[np.isnan(x[:, 1:]).all(1)]).max() < 1e-9
    assert np.array_equal(np.isnan(model.cdf(x[:, :1], x[:, 1:])), np.isnan(x[:, 1:]))


def test_choose_with_gaps():
    _, x = correlated(200)
    found = mixtures.choose(x[:, :2], x[:, 2], seconds=0.0)
    assert found.name == "line" and len(found.model.held_out_pit_) == (~np.isnan(x[:, 2])).sum()
    assert found.model.intervals([[NAN, 1.0]]).shape == (1, 2)


def test_any_direction():
    z, _ = correlated(2000)
    for model in (ConditionalGaussian().fit(z[:, :2], z[:, 2]), ConditionalMixture(1).fit(z[:, :2], z[:, 2])):
        p = model.given({"target_0": 1.5, "context_1": None})
        S, m = np.cov(z.T, bias=True), z.mean(0)
        assert p.mean.item() == pytest.approx(m[1] + S[1, 2] / S[2, 2] * (1.5 - m[2]), abs=1e-3)
        assert p.variance.item() == pytest.approx(S[1, 1] - S[1, 2] ** 2 / S[2, 2], abs=1e-3)
        both = model.given({"context_1": None, "context_0": None})
        np.testing.assert_allclose(both.mean[0], m[[1, 0]], atol=1e-3)
    refuses("did you mean 'context_1'", model.given, {"context1": None})
    refuses("with the value None", model.given, {"context_1": 1.0})
    refuses("a density over contexts", mixtures.KernelConditional().fit(z[:40, :2], z[:40, 2]).given, {"context_0": None})


def test_rows_with_gaps_of_their_own_are_computed_together():
    """A second item with the same gaps is computed another way; of weight 0 it changes nothing."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 4, generator=g, dtype=torch.float64)
    x[torch.rand(40, 4, generator=g) < 0.3] = torch.nan
    x[0] = torch.nan
    means, S = torch.randn(2, 4, generator=g, dtype=torch.float64), torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    begin = torch.full((2,), 0.5, dtype=torch.float64), means, S
    one = fit_with_gaps(x, None, *begin, reg=1e-6, max_iter=5)
    weight = torch.cat([torch.ones(40), torch.zeros(40)]).double()
    two = fit_with_gaps(torch.cat([x, x]), weight, *begin, reg=1e-6, max_iter=5)
    for a, b in zip(one[:3], two[:3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    rows = x[1:2]  # all of them have gaps of their own
    assert len(fit_with_gaps(rows, None, *begin, reg=1e-6, max_iter=1)[3]) == 1
