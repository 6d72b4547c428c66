r"""The terms of VJE's likelihood in polar form, z = |z| u: a Student-t of the direction and one of the norm.

    p(z; s, var) = T_nu(z/|z|; s/|s|, diag var) T_nu(|z| - |s|; 0, 1)          (arXiv:2602.05639 version 1, 2026, eq. 31)

Its constants are those of densities on R^D and R, although directions lie on the sphere and norms are positive: it is normalized
up to a constant only, and has no moments and no samples.

Shapes: z, s and var > 0 are (..., D). Degrees of freedom are nu > 0, ``math.inf`` for the Gaussian limit. Losses are in nats.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.linalg import upcast_half

__all__ = ["EPS", "directional_nll", "log_constant", "radial_nll", "student_nll"]

EPS = 1e-6  # lower bound of norms and of variances (VJE, algorithm 1)


def log_constant(nu: float, dim: int) -> float:
    r"""Returns ln C_{nu,D} = lnG((nu+D)/2) - lnG(nu/2) - D/2 ln(nu pi)."""
    if math.isinf(nu):
        return -0.5 * dim * math.log(2 * math.pi)
    return math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - 0.5 * dim * math.log(nu * math.pi)


def student_nll(z: Tensor, s: Tensor, var: Tensor, nu: float, *, normalized: bool = False) -> Tensor:
    r"""Returns (nu+D)/2 log(1 + Q/nu) + 1/2 sum_d log var_d, Q = sum_d (s - z)_d^2 / var_d, (...): z itself (eq. 14)."""
    assert nu > 0, "degrees of freedom are positive"
    z, s, var, dim = upcast_half(z), upcast_half(s), upcast_half(var), z.shape[-1]
    Q = ((s - z).square() / var).sum(-1)
    kernel = 0.5 * Q if math.isinf(nu) else 0.5 * (nu + dim) * torch.log1p(Q / nu)
    return kernel + 0.5 * var.log().sum(-1) - (log_constant(nu, dim) if normalized else 0.0)


def directional_nll(z: Tensor, s: Tensor, var: Tensor, nu: float, *, normalized: bool = False) -> Tensor:
    r"""Returns `student_nll` of the directions z/|z| and s/|s|, (...), for z and s (..., D) of any scale (eq. 24)."""
    z, s = (F.normalize(upcast_half(x), dim=-1, eps=EPS) for x in (z, s))
    return student_nll(z, s, var, nu, normalized=normalized)


def radial_nll(z: Tensor, s: Tensor, nu: float, *, normalized: bool = False) -> Tensor:
    r"""Returns (nu+1)/2 log(1 + dr^2/nu), dr = |z| - |s|, (...), for z and s (..., D) (eq. 29, lambda = 1)."""
    z, s = (torch.linalg.vector_norm(upcast_half(x), dim=-1, keepdim=True) for x in (z, s))
    return student_nll(z, s, z.new_ones(1), nu, normalized=normalized)
