"""Variational joint embedding in scalar loops: slow, float64, one function per equation, nothing shared with the library.

Vectors are sequences of floats of length D. Equation numbers are those of arXiv 2602.05639v1.
"""

import math
from collections.abc import Sequence

Vector = Sequence[float]
NORM_FLOOR = 1e-6


def norm(x: Vector) -> float:
    """Returns ||x||."""
    return math.sqrt(sum(float(value) ** 2 for value in x))


def unit(x: Vector) -> list[float]:
    """Returns x / max(||x||, 1e-6)."""
    length = max(norm(x), NORM_FLOOR)
    return [float(value) / length for value in x]


def log_constant(nu: float, dim: int) -> float:
    """Returns ln C_{nu,D} of the Student-t in R^D, the Gaussian's at nu = inf."""
    if math.isinf(nu):
        return -dim / 2 * math.log(2 * math.pi)
    return math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - dim / 2 * math.log(nu * math.pi)


def kernel(q: float, nu: float, dim: int) -> float:
    """Returns (nu + D)/2 log(1 + q/nu), and its limit q/2 at nu = inf."""
    return q / 2 if math.isinf(nu) else (nu + dim) / 2 * math.log1p(q / nu)


def q_dir(z: Vector, s: Vector, var: Vector) -> float:
    """Returns Q_dir, the whitened squared distance of the two directions (eq. 22)."""
    return sum((sample - target) ** 2 / float(v) for target, sample, v in zip(unit(z), unit(s), var, strict=True))


def directional_nll(z: Vector, s: Vector, var: Vector, nu: float, normalized: bool = False) -> float:
    """Returns l_dir (eq. 24); with its constant (eq. 23) where normalized."""
    log_det = sum(math.log(float(v)) for v in var)
    constant = -log_constant(nu, len(z)) if normalized else 0.0
    return kernel(q_dir(z, s, var), nu, len(z)) + log_det / 2 + constant


def plain_nll(z: Vector, s: Vector, var: Vector, nu: float) -> float:
    """Returns the loss of z itself (eq. 14)."""
    q = sum((float(b) - float(a)) ** 2 / float(v) for a, b, v in zip(z, s, var, strict=True))
    return kernel(q, nu, len(z)) + sum(math.log(float(v)) for v in var) / 2


def radial_nll(z: Vector, s: Vector, nu: float, normalized: bool = False) -> float:
    """Returns l_rad at lambda = 1 (eq. 29); with its constant (eq. 28) where normalized."""
    constant = -log_constant(nu, 1) if normalized else 0.0
    return kernel((norm(z) - norm(s)) ** 2, nu, 1) + constant


def kl(mu: Vector, var: Vector) -> float:
    """Returns KL(N(mu, diag var) || N(0, I)) (eq. 34)."""
    return sum(float(v) + float(m) ** 2 - 1 - math.log(float(v)) for m, v in zip(mu, var, strict=True)) / 2


def sample(mu: Vector, var: Vector, eps: Vector) -> list[float]:
    """Returns s = mu + sigma * eps (eq. 33)."""
    return [float(m) + math.sqrt(float(v)) * float(e) for m, v, e in zip(mu, var, eps, strict=True)]


def terms(z: tuple, mu: tuple, var: tuple, eps: tuple, nu: float, beta: float) -> dict[str, float]:
    """Returns the three terms of eq. 38 for a pair of batches; every argument holds view a, then view b, each (B, D)."""
    out = {"directional": 0.0, "radial": 0.0, "kl": 0.0}
    batch = len(z[0])
    for i, j in ((0, 1), (1, 0)):
        for b in range(batch):
            s = sample(mu[i][b], var[i][b], eps[i][b])
            out["directional"] += directional_nll(z[j][b], s, var[i][b], nu) / 2 / batch
            out["radial"] += radial_nll(z[j][b], s, nu) / 2 / batch
            out["kl"] += beta * kl(mu[i][b], var[i][b]) / 2 / batch
    return out


def log_normal(x: Vector, mu: Vector, var: Vector) -> float:
    """Returns log N(x; mu, diag var)."""
    parts = zip(x, mu, var, strict=True)
    return -sum((float(z) - float(m)) ** 2 / float(v) + math.log(2 * math.pi * float(v)) for z, m, v in parts) / 2


def log_mean_exp(values: Vector) -> float:
    """Returns log((1/K) sum_k exp(v_k))."""
    top = max(float(v) for v in values)
    return top + math.log(sum(math.exp(float(value) - top) for value in values) / len(values))


def bound(zb: Vector, mu: Vector, var: Vector, noise: Sequence[Vector], nu: float) -> float:
    """Returns log (1/K) sum_k p(y_b | s_k, var) N(s_k; 0, I) / N(s_k; mu, var), at most log p(y_b | z_a) on average."""
    logs = []
    zero, one = [0.0] * len(zb), [1.0] * len(zb)
    for eps in noise:
        s = sample(mu, var, eps)
        fit = -directional_nll(zb, s, var, nu, normalized=True) - radial_nll(zb, s, nu, normalized=True)
        logs.append(fit + log_normal(s, zero, one) - log_normal(s, mu, var))
    return log_mean_exp(logs)


def joint_score(z: Vector, mu: Vector, var: Vector, noise: Sequence[Vector], nu: float) -> float:
    """Returns the mean of l_dir + l_rad over samples, target and sample of one and the same view."""
    total = 0.0
    for eps in noise:
        s = sample(mu, var, eps)
        total += directional_nll(z, s, var, nu) + radial_nll(z, s, nu)
    return total / len(noise)


def entropy(var: Vector) -> float:
    """Returns the entropy of N(., diag var), 1/2 sum log(2 pi e var)."""
    return sum(math.log(2 * math.pi * math.e * float(v)) for v in var) / 2


def equilibrium(nu: float, dim: int, angle: float) -> tuple[float, float, float]:
    """Returns E|s|^2, |mu|^2 and the variance at the isotropic optimum for beta = 1, mu at an angle to the target.

    With c = 1 + sin(angle) and a = c D / nu: R = (-a + sqrt(a^2 + 4 a (nu + D))) / 2, |mu|^2 = R (1 - sin) / (1 + sin),
    var = R / D 2 sin / (1 + sin). Derived, not the paper's.
    """
    sine = math.sin(angle)
    c = 1 + sine
    a = c * dim / nu
    R = math.sqrt(c * dim) if math.isinf(nu) else 0.5 * (-a + math.sqrt(a * a + 4 * a * (nu + dim)))
    return R, R * (1 - sine) / c, R / dim * 2 * sine / c
