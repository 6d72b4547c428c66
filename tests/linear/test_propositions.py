"""Propositions 4.3 and 4.4 and remark 4.1 on finite samples, each with a tolerance that several seeds justify."""

import numpy as np
import pytest
import torch
from experiments.advice.alignment import supervised
from experiments.advice.thresholds import alignment_thresholds
from tests.linear import checks
from tests.linear.checks import ROWS, close, covariance, je_rows, moments, rng, tensors
from tests.reference import linear as reference

from vergence.linear import JointEmbedding, Reconstruction

K, D = 3, 8
SIGNAL = np.array([4.0, 2.0, 1.0])  # kappa^2 / n
NOISE = np.array([3.0, 1.0, 2.0, 0.5, 4.0])
THETA = np.array([1.0, 0.5, 1.0, 1.0, 0.2, 0.5, 0.3, 1.0])
LIMITS = alignment_thresholds(SIGNAL, NOISE, THETA[:K], THETA[K:])
Q1 = np.eye(K, D)


def sample(n, seed):
    """Corrupted items of exact signal variances (property 2: kappa^2 / n is held fixed)."""
    g = rng(seed)
    left = np.linalg.qr(g.normal(size=(n, K)))[0] * n**0.5
    signal = left * SIGNAL**0.5
    return np.concatenate([signal, g.normal(size=(n, D - K)) * NOISE**0.5], 1)


def second(x, alpha2):
    """G and S of corrupted items under the augmentation of section 4.1."""
    G = x.T @ x / len(x)
    return G, G + np.diag(THETA + alpha2 * np.concatenate([np.zeros(K), NOISE]))


def sines(name, alpha2, n, seeds):
    return np.array([reference.sine(ROWS[name](*second(sample(n, seed), alpha2))[:K], Q1) for seed in range(seeds)])


def slopes(x, y):
    """Slopes of log y (seeds, points) over log x (points,)."""
    return np.polyfit(np.log(x), np.log(y).T, 1)[0]


def within(values, expected, z=4.5, floor=0.0):
    """The mean over seeds is within z standard errors (and the bias that is named) of what is expected."""
    error = values.std(ddof=1) / len(values) ** 0.5
    assert error < 0.1, "too few seeds to tell"
    assert abs(values.mean() - expected) < z * error + floor, (values.mean(), error)


def test_the_thresholds_are_positive_here():
    assert LIMITS.joint_embedding > 0.3 and LIMITS.reconstruction > 0.3


@pytest.mark.parametrize("name", ROWS)
def test_above_the_threshold_the_signal_is_found_at_the_root_of_n(name):
    """Propositions 4.3 and 4.4. The floor is for the terms of order 1 / n at n = 1000."""
    sizes = [1000, 5000, 25000]
    found = np.stack([sines(name, 1.5 * getattr(LIMITS, name), n, seeds=16) for n in sizes], 1)
    within(slopes(sizes, found), -0.5, floor=0.05)
    assert found[:, -1].max() < 0.1


@pytest.mark.parametrize("name", ROWS)
def test_below_the_threshold_it_is_lost_for_good(name):
    alpha2 = 0.5 * getattr(LIMITS, name)
    small, large = (sines(name, alpha2, n, seeds=8) for n in (300, 30000))
    assert large.min() > 0.995 and (1 - large).mean() < 0.1 * (1 - small).mean()


@pytest.mark.parametrize("name", ROWS)
def test_strong_alignment_finds_it_in_few_items(name):
    """As alpha grows at a fixed n the sine falls as alpha^-2: property 10."""
    alpha = np.array([30.0, 100.0, 300.0, 1000.0])
    found = np.stack([sines(name, a**2, 60, seeds=5) for a in alpha], 1)
    assert slopes(alpha, found) == pytest.approx(-2, abs=0.02)
    assert found[:, -1].max() < 1e-5


def test_supervised_is_the_reference():
    """Lemma B.1."""
    for seed in range(3):
        _, S, _, N = moments(seed)
        close(supervised(N, S), reference.supervised(N.numpy(), S.numpy()))


def test_joint_embedding_does_not_mind_strong_noise():
    """Noise a thousand times as strong: joint embedding needs no more alignment, reconstruction a thousand times as much."""
    alpha2, big = 2 * LIMITS.joint_embedding, np.diag(np.r_[SIGNAL, 1000 * NOISE])
    S = big + np.diag(np.r_[THETA[:K], 1000 * THETA[K:]] + alpha2 * np.r_[np.zeros(K), 1000 * NOISE])
    assert reference.sine(je_rows(big, S)[:K], Q1) < 1e-8
    assert reference.sine(ROWS["reconstruction"](big, S)[:K], Q1) > 0.999


ROOT = np.linalg.cholesky(covariance(rng(20), 5) + 0.1 * np.eye(5))


def gaussian(x, generator):
    return x + torch.randn(x.shape, generator=generator, dtype=x.dtype) @ torch.as_tensor(ROOT).T


def rademacher(x, generator):
    return x + torch.randint(2, x.shape, generator=generator).mul(2).sub(1).to(x.dtype) @ torch.as_tensor(ROOT).T


@pytest.mark.parametrize("augmentation", [gaussian, rademacher])
@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
def test_any_noise_of_one_covariance_gives_one_solution(kind, augmentation):
    x = rng(21).normal(size=(3000, 5)) * [3.0, 2.0, 1.5, 1.0, 0.5] @ np.linalg.qr(rng(22).normal(size=(5, 5)))[0]
    exact = kind(2, augmentation=ROOT @ ROOT.T).fit(x)
    few, many = (kind(2, augmentation=augmentation, n_draws=m).fit(x) for m in (4, 64))
    assert abs(many.objective_ / exact.objective_ - 1) < 0.01
    angles = [reference.sine(exact.components_, model.components_) for model in (few, many)]
    assert 1e-5 < angles[1] < 0.02 and angles[1] < angles[0] < 0.1, "off by the sampling alone"
    close(many.augmentation_covariance_, ROOT @ ROOT.T, atol=0.05, rtol=0)


def scaled_and_noisy(x, g):
    """Masks features and adds noise: xbar = 0.7 x, and a covariance that differs from item to item."""
    return x * (g.random(x.shape) < 0.7) + 0.4 * g.normal(size=x.shape)


def exact_moments(x):
    seen, covariances = 0.7 * x, [np.diag(0.21 * row**2 + 0.16) for row in x]
    G = seen.T @ seen / len(x)
    return tensors(G, G + np.mean(covariances, 0), x.T @ seen / len(x))


def z_score(draws, expected):
    """How many standard errors the mean over draws (m,) of the objective lies off."""
    return (draws.mean() - float(expected)) / (draws.std(ddof=1) / len(draws) ** 0.5)


def test_the_objectives_by_monte_carlo(m=4000):
    g = rng(30)
    x = g.normal(size=(40, 4)) + 1
    G, S, M = exact_moments(x)
    W, E, R = (g.normal(size=shape) for shape in ((2, 4), (2, 4), (4, 2)))
    one, two = scaled_and_noisy(np.repeat(x[None], m, 0), g), scaled_and_noisy(np.repeat(x[None], m, 0), g)
    w, e, r = tensors(W, E, R)
    draws = {
        "joint embedding": ((one - two) @ W.T, checks.joint_embedding_objective(w, G, S)),
        "reconstruction": (x - one @ E.T @ R.T, checks.reconstruction_objective(e, r, M, S, reference.square(x) / 40)),
    }
    for name, (residual, expected) in draws.items():
        assert abs(z_score((residual**2).sum(-1).mean(-1), expected)) < 4.5, name


def test_the_estimators_objective_is_that_of_fresh_draws(m=200):
    """What `transform` gives on views that were not seen has the loss that the closed form promises."""
    g = rng(31)
    x = g.normal(size=(300, 4)) * [2.0, 1.5, 1.0, 0.5] + 3
    sigma = np.diag([0.5, 2.0, 0.1, 0.3])
    je, rc = JointEmbedding(2, augmentation=sigma).fit(x), Reconstruction(2, augmentation=sigma).fit(x)
    found = {"je": [], "rc": []}
    for _ in range(m):
        a, b = (x + g.normal(size=x.shape) @ sigma**0.5 for _ in range(2))
        found["je"].append(((je.transform(a) - je.transform(b)) ** 2).sum(-1).mean())
        found["rc"].append(((x - rc.inverse_transform(rc.transform(a))) ** 2).sum(-1).mean())
    for name, model in (("je", je), ("rc", rc)):
        assert abs(z_score(np.array(found[name]), model.objective_)) < 4.5, name
