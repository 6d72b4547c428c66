"""Contrastive learning in loops: slow, float64, one function per equation, nothing shared with the library.

Vectors are sequences of floats, covariances lists of rows.
"""

import math

import numpy as np
from tests.reference import em
from tests.reference.paired import dot
from tests.reference.smc_bank import log_sum_exp
from tests.reference.vje import unit


def log_normal(x, mean, covariance):
    """Returns log N(x; mean, covariance) of sequences of any numbers."""
    x, mean, *S = (np.array([float(v) for v in row]) for row in (x, mean, *covariance))
    return em.log_normal(x, mean, S)


def log_responsibilities(q, k, pi, covariances):
    """Returns log gamma_nm for each query and key."""
    rows = []
    for query in q:
        joint = [
            math.log(float(p)) + log_normal(query, key, S) if p > 0 else -math.inf
            for key, p, S in zip(k, pi, covariances, strict=True)
        ]
        rows.append([value - log_sum_exp(joint) for value in joint])
    return rows


def info_nce(query, keys, positive, tau):
    """Returns -log exp(q . k_+ / tau) / sum_m exp(q . k_m / tau)."""
    scores = [dot(query, key) / tau for key in keys]
    return log_sum_exp(scores) - scores[positive]


def simclr(za, zb, tau):
    """Returns the mean over all 2 B views of the loss of finding the other view among all others."""
    a, b = [unit(z) for z in za], [unit(z) for z in zb]
    total = 0.0
    for mine, other in ((a, b), (b, a)):
        for n in range(len(mine)):
            keys = other + mine[:n] + mine[n + 1 :]
            total += info_nce(mine[n], keys, n, tau)
    return total / (2 * len(a))


def clip(za, zb, tau):
    """Returns the average of both directions' mean losses of finding the own pair among the other view's B."""
    a, b = [unit(z) for z in za], [unit(z) for z in zb]
    ab = sum(info_nce(a[n], b, n, tau) for n in range(len(a))) / len(a)
    ba = sum(info_nce(b[n], a, n, tau) for n in range(len(a))) / len(a)
    return 0.5 * (ab + ba)
