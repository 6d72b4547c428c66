r"""The power spherical distribution on the unit sphere (De Cao and Aziz, 2020, arXiv:2006.04437).

    log p(x; mu, kappa) = kappa log(1 + mu^T x) - [(a + b) log 2 + b log pi + log G(a) - log G(a + b)]
    H                   = [(a + b) log 2 + b log pi + log G(a) - log G(a + b)] - kappa (log 2 + psi(a) - psi(a + b))
    KL(p || uniform)    = -H + log(2 pi^(D/2) / G(D/2)),          b = (D - 1) / 2,  a = b + kappa

At large kappa the terms of each line cancel to a small number. They are therefore computed from

    log(1 + mu^T x) - log 2 = log(1 - |x - mu|^2 / 4),   log G(a) - log G(a + b),   psi(a + b) - psi(a)

with the differences taken from Stirling's series above a = 16, so that float32 keeps its relative precision at any kappa.

Shapes: batch (...), D features. Densities are in nats, with respect to the surface measure.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Beta, Distribution, constraints
from torch.distributions.utils import _standard_normal
from torch.nn import functional as F

from vergence.utils.checks import expect
from vergence.utils.linalg import upcast_half

__all__ = ["PowerSpherical", "direction"]

TINY = 1e-30  # least size of a vector that has a direction
LARGE = 16.0  # from here on the next term of Stirling's series is below 1e-11


def direction(z: Tensor) -> Tensor:
    """Returns z / |z|, (..., D), of vectors of any scale; zero, with a gradient of zero, where all features are below 1e-30.

    Example:
        >>> direction(torch.tensor([[3e25, 4e25], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    z = upcast_half(z)
    largest = z.detach().abs().amax(-1, keepdim=True)
    return F.normalize(z / largest.masked_fill(largest < TINY, math.inf), dim=-1)


def lgamma_gap(a: Tensor, b: float) -> Tensor:
    """Returns log G(a + b) - log G(a), (...), for a (...) > 0 and b > 0, without cancellation at large a."""
    large = a.clamp(min=LARGE)
    series = (large - 0.5) * torch.log1p(b / large) + b * torch.log(large + b) - b
    for n, c in ((1, 1 / 12), (3, -1 / 360), (5, 1 / 1260)):
        series = series + c * ((large + b) ** -n - large**-n)
    return torch.where(a < LARGE, torch.lgamma(a + b) - torch.lgamma(a), series)


def digamma_gap(a: Tensor, b: float) -> Tensor:
    """Returns psi(a + b) - psi(a), (...), the derivative of `lgamma_gap` in a."""
    large = a.clamp(min=LARGE)
    series = torch.log1p(b / large) + 0.5 * b / (large * (large + b))
    for n, c in ((2, 1 / 12), (4, -1 / 120), (6, 1 / 252)):
        series = series - c * ((large + b) ** -n - large**-n)
    return torch.where(a < LARGE, torch.digamma(a + b) - torch.digamma(a), series)


class PowerSpherical(Distribution):
    r"""The power spherical distribution around mu with concentration kappa.

    A sample is (t, sqrt(1 - t^2) v) with t = 1 - 2 s, s ~ Beta(b, a), and v uniform on the sphere of R^{D-1}, reflected so that
    e_1 maps to mu: exact, without rejection, and differentiable in mu and kappa. Half-precision parameters become float32. At the
    antipode of mu the density is 0 for kappa > 0.

    Args:
        mu: Mean directions (..., D), D >= 2, unit vectors.
        kappa: Concentrations (...), >= 0; 0 is the uniform distribution.

    Example:
        >>> p = PowerSpherical(torch.tensor([0.0, 1.0]), torch.tensor(0.0))
        >>> round(p.log_prob(torch.tensor([1.0, 0.0])).exp().item() * 2 * math.pi, 4)
        1.0
        >>> p.kl_to_uniform().item()
        0.0
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch reads it from the class
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, mu: Tensor, kappa: Tensor) -> None:
        expect(mu.shape[-1] >= 2, "directions of at least 2 features", mu.shape[-1])
        mu, kappa = upcast_half(mu), upcast_half(kappa)
        batch = torch.Size(np.broadcast_shapes(mu.shape[:-1], kappa.shape))
        self.mu, self.kappa = mu.expand(*batch, mu.shape[-1]), kappa.expand(batch)
        self.b = (mu.shape[-1] - 1) / 2
        super().__init__(batch, mu.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """(a - b) / (a + b) mu, (..., D), of norm below 1."""
        norm: Tensor = self.kappa / (self.kappa + 2 * self.b)
        return norm[..., None] * self.mu

    @property
    def mode(self) -> Tensor:
        """The direction mu, (..., D)."""
        return self.mu

    @property
    def variance(self) -> Tensor:
        """Variances of the coordinates, (..., D); their sum is 1 - |mean|^2, so in [0, 1]."""
        a, b, square = self.kappa + self.b, self.b, self.mu.square()
        along = 4 * a * b / ((a + b).square() * (a + b + 1))  # variance of t
        across = 4 * a / ((a + b) * (2 * a + 2 * b + 2))  # E(1 - t^2) / (D - 1)
        return along[..., None] * square + across[..., None] * (1 - square).clamp(min=0)

    def _log_normalizer(self) -> Tensor:
        """Returns the log of the normalizing constant less kappa log 2, (...)."""
        return 2 * self.b * math.log(2) + self.b * math.log(math.pi) - lgamma_gap(self.kappa + self.b, self.b)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns log p(x) in nats, (...), for unit vectors x (..., D)."""
        return self._log_prob(value, most=1.0)

    def finite_log_prob(self, value: Tensor) -> Tensor:
        """Returns `log_prob`, (...), where the antipode of mu counts as the nearest direction that the type tells from it."""
        return self._log_prob(value, most=1 - torch.finfo(self.mu.dtype).eps)

    def _log_prob(self, value: Tensor, most: float) -> Tensor:
        far = 0.25 * (value - self.mu).square().sum(-1)  # (1 - mu^T x) / 2
        far = torch.where(value.any(-1), far, 0.5)  # a vector of zeros has no direction: as an orthogonal one
        log_prob: Tensor = torch.special.xlog1py(self.kappa, -far.clamp(max=most)) - self._log_normalizer()
        return log_prob

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Returns unit vectors (*sample_shape, ..., D)."""
        shape = self._extended_shape(torch.Size(sample_shape))
        a = (self.kappa + self.b).expand(shape[:-1])
        beta = Beta(torch.full_like(a, self.b).double(), a.double(), validate_args=False)  # its gradient is wrong in float32
        s = beta.rsample().to(a.dtype)  # (1 - t) / 2, which keeps its digits at large kappa
        v = F.normalize(_standard_normal(torch.Size((*shape[:-1], shape[-1] - 1)), a.dtype, a.device), dim=-1)
        y = torch.cat([(1 - 2 * s)[..., None], 2 * (s * (1 - s)).sqrt()[..., None] * v], -1)
        e = torch.zeros_like(self.mu)
        e[..., 0] = 1
        u = F.normalize(e - self.mu, dim=-1)  # zero where mu is e_1: nothing to reflect
        return y - 2 * (y * u).sum(-1, keepdim=True) * u

    def entropy(self) -> Tensor:
        """Returns the entropy in nats, (...); exact."""
        return self._log_normalizer() + self.kappa * digamma_gap(self.kappa + self.b, self.b)

    def kl_to_uniform(self) -> Tensor:
        """Returns KL(p || uniform) in nats, (...): 0 at kappa = 0, and unbounded as kappa grows."""
        a, b = self.kappa + self.b, self.b
        return (lgamma_gap(a, b) - lgamma_gap(torch.full_like(a, b), b)) - self.kappa * digamma_gap(a, b)
