"""Problems, objectives and a property of thresholds that several test files share."""

import numpy as np
import torch
from tests.reference import linear as reference

from vergence.linear import solutions


def close(found, expected, **tolerance):
    found, expected = (torch.as_tensor(np.asarray(v, dtype=np.float64)) for v in (found, expected))
    torch.testing.assert_close(found, expected, **({"rtol": 1e-9, "atol": 1e-10} | tolerance))


def rng(seed=0):
    return np.random.default_rng(seed)


def covariance(g, d, rank=None):
    a = g.normal(size=(d, rank or d))
    return a @ a.T / d


def rotation(g, d):
    return np.linalg.qr(g.normal(size=(d, d)))[0]


def problem(seed=0, n=9, d=4, *, mean_preserving=False):
    """Items, targets and the outcomes of an affine augmentation: (x, y, outcomes)."""
    g = rng(seed)
    x = g.normal(size=(n, d)) * np.linspace(0.5, 2, d) + g.normal(size=d)
    A, b = (np.eye(d), np.zeros(d)) if mean_preserving else (np.eye(d) + 0.4 * g.normal(size=(d, d)), g.normal(size=d))
    return x, g.normal(size=(n, 2)) + x[:, :2], reference.affine(x, A, b, covariance(g, d))


def tensors(*arrays):
    return tuple(torch.as_tensor(np.asarray(a)) for a in arrays)


def moments(seed=0, **options):
    """G, S, M, N of a problem, as tensors."""
    x, y, outcomes = problem(seed, **options)
    return tensors(*reference.moments(x, outcomes, y))


def up_to_sign(found, expected, **tolerance):
    """Rows agree, each up to its sign."""
    found, expected = np.asarray(found), np.asarray(expected)
    signs = np.sign((found * expected).sum(1, keepdims=True))
    close(found * signs, expected, **tolerance)


def joint_embedding_objective(W, G, S):
    """2 tr W (S - G) W^T; at the optimum 2 sum_{i <= k} (1 - omega_i)."""
    return 2 * ((W @ (S - G)) * W).sum()


def reconstruction_objective(E, D, M, S, power):
    """At the optimum power - sum_{i <= k} phi_i^2, with power = 1/n |X|^2."""
    V = D @ E
    return power - 2 * (V * M).sum() + ((V @ S) * V).sum()


def random_levels(g):
    """Signal, noise and Theta of a random problem of section 4.1."""
    k, r = int(g.integers(1, 4)), int(g.integers(1, 5))
    scale = 10.0 ** g.uniform(-2, 2)
    signal, noise = g.uniform(0.2, 3, k) * scale, 10.0 ** g.uniform(-1.5, 1.5, r) * scale
    return signal, noise, g.uniform(0, 2, k + r) * scale * 10.0 ** g.uniform(-1, 0.5)


def je_rows(G, S):
    return solutions.joint_embedding(*tensors(G, S))[0].numpy()


def rc_rows(G, S):
    return solutions.reconstruction(*tensors(G, S))[0].numpy()


ROWS = {"joint_embedding": je_rows, "reconstruction": rc_rows}


def check_flips(thresholds):
    """Property 6: the population's solution flips where alpha^2 passes the threshold."""
    g = rng(3)
    for _ in range(20):
        signal, noise, theta = random_levels(g)
        k = len(signal)
        found = thresholds(signal, noise, theta[:k], theta[k:])
        for name, rows in ROWS.items():
            at, step = getattr(found, name), 1e-3 * max(1.0, abs(getattr(found, name)))
            for alpha2, expected in ((at - step, False), (at + step, True)):
                if np.min(theta[k:] + (1 + alpha2) * noise) > 0:  # S is a second moment
                    G, S = reference.population(signal, noise, theta, alpha2)
                    assert reference.finds_signal(rows(G, S), k) == expected, (name, alpha2, at)


def noisy(x, generator):
    """Scales each item, adds noise that grows with the item's first feature, and moves all by 0.3."""
    e = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return 0.8 * x + 0.3 + e * (0.5 + x[:, :1].abs())
