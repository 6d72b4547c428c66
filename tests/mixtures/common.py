"""The data set that several tests fit, "Separated Branches": three answers for every context."""

import math

import numpy as np

EPS = 0.05  # noise
TRUTH = math.log(3) + 0.5 * math.log(2 * math.pi * math.e * EPS**2)  # nats a pair: what the true density needs


def close(found, expected, tol=1e-8):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tol, atol=tol)


def branches(x):
    return np.stack([1 + 0.3 * np.sin(np.pi * x), 0.3 * np.sin(2 * np.pi * x), -1 + 0.3 * np.cos(np.pi * x)])


def separated(n, seed):
    """Contexts (n, 1), targets (n,) on three branches of equal weight, at least 8 x the noise apart, and the branch (n,)."""
    rng = np.random.default_rng(seed)
    x, k = rng.uniform(-1, 1, n), rng.integers(0, 3, n)
    return x[:, None], branches(x)[k, np.arange(n)] + EPS * rng.normal(size=n), k
