"""Variational self-supervised learning in scalar loops: slow, float64, nothing shared with the library.

Vectors are sequences of floats of length D.
"""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def cosine(x: Vector, y: Vector) -> float:
    """Returns the cosine of the angle between x and y."""
    xy = xx = yy = 0.0
    for a, b in zip(x, y, strict=True):
        xy, xx, yy = xy + float(a) * float(b), xx + float(a) ** 2, yy + float(b) ** 2
    return xy / math.sqrt(xx * yy)


def log_normal(s: Vector, m: Vector, w: Vector) -> float:
    """Returns log N(s; m, diag w)."""
    total = 0.0
    for value, mean, variance in zip(s, m, w, strict=True):
        total -= 0.5 * ((float(value) - mean) ** 2 / variance + math.log(2 * math.pi * variance))
    return total


def cross_entropy(mu: Vector, v: Vector, m: Vector, w: Vector) -> float:
    """Returns -E log N(s; m, diag w), s ~ N(mu, diag v)."""
    total = -log_normal(mu, m, w)
    for own, other in zip(v, w, strict=True):
        total += 0.5 * own / other
    return total


def kl(mu: Vector, v: Vector, m: Vector, w: Vector) -> float:
    """Returns KL(N(mu, diag v) || N(m, diag w)), the cross-entropy less the entropy."""
    entropy = 0.0
    for own in v:
        entropy += 0.5 * math.log(2 * math.pi * math.e * own)
    return cross_entropy(mu, v, m, w) - entropy


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
