"""The power spherical distribution as printed in arXiv 2006.04437, in scalars: slow, float64, nothing shared with the library.

Vectors are sequences of floats of length D.
"""

import math
from collections.abc import Sequence

from scipy.special import digamma

Vector = Sequence[float]


def log_normalizer(dim: int, kappa: float) -> float:
    """Returns the log of the integral of (1 + mu^T x)^kappa over the unit sphere of R^D."""
    b = (dim - 1) / 2
    a = b + kappa
    return (a + b) * math.log(2) + b * math.log(math.pi) + math.lgamma(a) - math.lgamma(a + b)


def log_prob(x: Vector, mu: Vector, kappa: float) -> float:
    """Returns log PS(x; mu, kappa) of unit vectors."""
    cosine = sum(float(value) * float(m) for value, m in zip(x, mu, strict=True))
    return kappa * math.log1p(cosine) - log_normalizer(len(mu), kappa)


def entropy(dim: int, kappa: float) -> float:
    """Returns the entropy of PS(., kappa) on the unit sphere of R^D."""
    b = (dim - 1) / 2
    a = b + kappa
    return log_normalizer(dim, kappa) - kappa * (math.log(2) + float(digamma(a)) - float(digamma(a + b)))


def kl_to_uniform(dim: int, kappa: float) -> float:
    """Returns KL(PS || uniform) = -H + log area."""
    return -entropy(dim, kappa) + math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
