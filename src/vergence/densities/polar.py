r"""Densities of direction and norm, z = |z| u: the polar Student-t of VJE.

Shapes: batch (...), D features. Densities are in nats.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from vergence.utils.linalg import upcast_half

__all__ = ["EPS", "directional_nll", "log_constant", "radial_nll"]

EPS = 1e-6  # lower bound of norms and of variances (VJE, algorithm 1)


def log_constant(nu: float, dim: int) -> float:
    r"""Returns the log of the Student-t constant, ln C_{nu,D} = lnG((nu+D)/2) - lnG(nu/2) - D/2 ln(nu pi).

    Args:
        nu: Degrees of freedom, > 0; ``math.inf`` gives the Gaussian's -D/2 ln(2 pi).
        dim: D.

    Example:
        >>> round(log_constant(3.0, 1), 3)
        -1.001
    """
    _require_degrees(nu)
    if math.isinf(nu):
        return -0.5 * dim * math.log(2 * math.pi)
    return math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - 0.5 * dim * math.log(nu * math.pi)


def directional_nll(z: Tensor, s: Tensor, var: Tensor, nu: float, *, normalized: bool = False) -> Tensor:
    r"""Returns (nu+D)/2 log(1 + Q/nu) + 1/2 sum_d log var_d, Q = sum_d (s/|s| - z/|z|)_d^2 / var_d (eq. 24).

    Args:
        z: Target embeddings, (..., D); any scale.
        s: Latent samples, (..., D); any scale.
        var: Variances, (..., D), > 0.
        nu: Degrees of freedom, > 0; ``math.inf`` is the Gaussian limit, 1/2 Q + 1/2 sum_d log var_d.
        normalized: Whether to keep the constant -ln C_{nu,D}, which the paper drops; False by default.

    Returns:
        Negative log-likelihood in nats, (...,); at least float32.

    Example:
        >>> z = torch.tensor([[3.0, 4.0]])
        >>> directional_nll(z, 2 * z, torch.ones(1, 2), nu=3.0)
        tensor([0.])
    """
    z, s, var = upcast_half(z), upcast_half(s), upcast_half(var)
    Q = ((_unit(s) - _unit(z)).square() / var).sum(-1)
    nll = _student_kernel(Q, nu, z.shape[-1]) + 0.5 * var.log().sum(-1)
    return nll - log_constant(nu, z.shape[-1]) if normalized else nll


def radial_nll(z: Tensor, s: Tensor, nu: float, *, normalized: bool = False) -> Tensor:
    r"""Returns (nu+1)/2 log(1 + dr^2/nu), dr = |z| - |s| (eq. 29, lambda = 1).

    Args:
        z: Target embeddings, (..., D).
        s: Latent samples, (..., D).
        nu: Degrees of freedom, > 0; ``math.inf`` is the Gaussian limit, 1/2 dr^2.
        normalized: Whether to keep the constant -ln C_{nu,1}, which the paper drops; False by default.

    Returns:
        Negative log-likelihood in nats, (...,); at least float32.

    Example:
        >>> radial_nll(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 4.0]]), nu=1.0)
        tensor([0.6931])
    """
    dr = _norm(upcast_half(z)) - _norm(upcast_half(s))
    nll = _student_kernel(dr.square(), nu, 1)
    return nll - log_constant(nu, 1) if normalized else nll


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _unit(x: Tensor) -> Tensor:
    return x / _norm(x).clamp_min(EPS).unsqueeze(-1)


def _require_degrees(nu: float) -> None:
    if not nu > 0:
        raise ValueError(f"expected nu > 0 degrees of freedom, found {nu}: 3 is the paper's, math.inf the Gaussian")


def _student_kernel(Q: Tensor, nu: float, dim: int) -> Tensor:
    _require_degrees(nu)
    return 0.5 * Q if math.isinf(nu) else 0.5 * (nu + dim) * torch.log1p(Q / nu)


class PolarStudentT(Distribution):
    r"""VJE's likelihood of an embedding in polar form (arXiv:2602.05639 version 1, 2026, eq. 31).

        p(z; s, var) = T_nu(z/|z|; s/|s|, diag var) T_nu(|z| - |s|; 0, 1)

    Its constants are those of densities on R^D and R, although directions lie on the sphere and norms are positive: it is
    normalized up to a constant only. It therefore has a log-density and a mode, but no moments and no samples.

    Args:
        s: Latents (..., D).
        var: Variances of the directions (..., D), > 0.
        nu: Degrees of freedom, > 0 or ``math.inf`` (paper: 3).

    Example:
        >>> p = PolarStudentT(torch.tensor([0.0, 2.0]), torch.ones(2))
        >>> round(float(p.log_prob(p.mode) - p.log_prob(-p.mode)), 3)
        2.118
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch reads it from the class
    support = constraints.real_vector

    def __init__(self, s: Tensor, var: Tensor, nu: float = 3.0) -> None:
        _require_degrees(nu)
        shape = torch.Size(np.broadcast_shapes(s.shape, var.shape))
        self.s, self.var = s.expand(shape), var.expand(shape)
        self.nu = float(nu)
        super().__init__(self.s.shape[:-1], self.s.shape[-1:], validate_args=False)

    @property
    def mode(self) -> Tensor:
        """The latent s, (..., D)."""
        return self.s

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns log p(z; s, var) with its constants, (...), for z (..., D)."""
        direction = directional_nll(value, self.s, self.var, self.nu, normalized=True)
        return -direction - radial_nll(value, self.s, self.nu, normalized=True)
