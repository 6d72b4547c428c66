"""Variational self-supervised learning in scalar loops: slow, float64, nothing shared with the library.

Vectors are sequences of floats of length D.
"""

import math
from collections.abc import Sequence

from tests.reference.paired import cosine
from tests.reference.vje import log_normal

Vector = Sequence[float]


def cross_entropy(mu: Vector, v: Vector, m: Vector, w: Vector) -> float:
    """Returns -E log N(s; m, diag w), s ~ N(mu, diag v)."""
    return sum(0.5 * own / other for own, other in zip(v, w, strict=True)) - log_normal(mu, m, w)


def kl(mu: Vector, v: Vector, m: Vector, w: Vector) -> float:
    """Returns KL(N(mu, diag v) || N(m, diag w)), the cross-entropy less the entropy."""
    return cross_entropy(mu, v, m, w) - sum(0.5 * math.log(2 * math.pi * math.e * own) for own in v)


def terms(student: Sequence, teacher: Sequence, loss: str, beta: float, noise: Sequence | None = None) -> dict[str, float]:
    """Returns the terms of one direction; student and teacher are pairs of means and variances, each (B, D).

    With noise (B, D) the likelihood is that of the samples mu + sqrt(v) noise.
    """
    out = {"likelihood": 0.0, "kl": 0.0}
    batch = len(student[0])
    for n in range(batch):
        (mu, v), (m, w) = (x[n] for x in student), (x[n] for x in teacher)
        s = mu if noise is None else [a + math.sqrt(b) * e for a, b, e in zip(mu, v, noise[n], strict=True)]
        if loss == "cosine":
            likelihood, divergence = 1 - cosine(s, m), 1 - cosine(mu, m) + 1 - cosine(v, w)
        else:
            likelihood = cross_entropy(mu, v, m, w) if noise is None else -log_normal(s, m, w)
            divergence = kl(mu, v, m, w)
        out["likelihood"] += likelihood / batch
        out["kl"] += beta * divergence / batch
    return out
