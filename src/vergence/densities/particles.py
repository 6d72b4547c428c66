r"""Weighted particles that follow a stream of pairs: sequential Monte Carlo, and the kernel mixture that the particles define.

Particles (c_m, t_m), m = 1..M, have weights w_m of sum 1. A batch of B pairs has responsibilities gamma_bm proportional to
w_m k_bm, for kernels k_bm of the particles at the pairs. One step (`step`) reweights, pools and selects:

    r_m = mean_b gamma_bm,   w <- (1 - rho) w + rho r,   w <- (1 - u) w + u / M
    pool of M + B particles: weights w M / (M + B) and 1 / (M + B);   M of them stay

w <- r is the EM step of the weights. Where the pool's effective sample size is low, the M that stay are resampled from it;
otherwise the lightest B leave. A queue keeps weights equal, and the oldest leave.

Resampling is R. Douc, O. Cappe, E. Moulines, "Comparison of resampling schemes for particle filtering", ISPA, 2005.

Shapes: M particles, B pairs, C and T features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import LOG_2PI, MixtureOfGaussians
from vergence.utils.checks import expect

__all__ = ["MODES", "Bank", "KernelMixture", "Rule", "effective_sample_size", "log_kernel", "responsibilities"]
__all__ += ["step", "systematic"]

MODES = ("smc", "fifo")
DECIMALS = {torch.float64: 12, torch.float32: 5}  # of M w: weights that differ by rounding are equal


def effective_sample_size(weights: Tensor) -> Tensor:
    """Returns (sum_m w_m)^2 / sum_m w_m^2 of weights (..., M) of any scale, from 1 (one particle has all the weight) to M."""
    relative = weights / weights.amax(-1, keepdim=True)  # squares of tiny weights would underflow
    return relative.sum(-1).square() / relative.square().sum(-1)


def systematic(weights: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns n ascending indices by systematic resampling: inverse transform of (i + u) / n with one u ~ U[0, 1).

    Particle m of weights (M,) >= 0 is selected floor(n w_m) or ceil(n w_m) times, n w_m on average; with n = M equal weights each
    is selected once. The generator is on the CPU.
    """
    w = weights.detach().double()
    expect(bool((w.isfinite() & (w >= 0)).all()) and bool(w.sum() > 0), "finite weights >= 0 that are not all zero", w)
    below = (torch.arange(n, dtype=torch.float64) + torch.rand(1, generator=generator, dtype=torch.float64)) / n
    cumulative = (w / w.sum()).cumsum(0)
    last = int(w.nonzero()[-1])  # the sum may round to less than 1: points beyond it select the last particle with weight
    index: Tensor = torch.searchsorted(cumulative, below.to(w.device), right=True)
    return index.clamp(max=last)


class Bank(NamedTuple):
    """Particles, the oldest first: contexts (M, C), targets (M, T), weights (M,) of sum 1, and batches since entry (M,)."""

    c: Tensor
    t: Tensor
    w: Tensor
    age: Tensor

    def pick(self, index: Tensor, w: Tensor | None = None) -> "Bank":
        """Returns some of the particles, with weights proportional to w; equal ones by default."""
        w = torch.ones_like(self.w[index]) if w is None else w
        return Bank(self.c[index], self.t[index], w / w.sum(), self.age[index])


@dataclass(frozen=True)
class Rule:
    """How a bank follows a stream of batches."""

    mode: str  # ``smc``, or ``fifo``: a queue of equal weights
    rho: float  # step size of the weights toward a batch's responsibilities, in [0, 1]
    u: float  # share of the uniform distribution mixed into the weights after each batch, in [0, 1]
    ess_threshold: float  # particles are resampled where the effective sample size is below this fraction of the pool, >= 0


class KernelMixture(MixtureOfGaussians):
    """A mixture of M kernels N(k_m, h^2 I), evaluated by products of matrices: nothing of size B M D is stored.

    It takes log-weights (..., M) up to a constant, the keys k_m (M, D), h^2, and C as `JointGaussian`.

    Example:
        >>> p = KernelMixture(torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.tensor(0.5))
        >>> p.mean.item(), p.variance.item()
        (0.0, 1.5)
    """

    def __init__(self, logits: Tensor, keys: Tensor, h2: Tensor, context: int = 0) -> None:
        super().__init__(logits, keys, Diagonal(h2.expand(keys.shape[-1])), context)
        self.keys, self.h2 = keys, h2

    def log_joint(self, value: Tensor) -> Tensor:
        """Returns log w_m + log N(z; k_m, h^2 I) in nats, (..., M), for z (..., D)."""
        (x, k), h2 = self._centered(value), self.h2.to(value)
        normal = -0.5 * (x.square().sum(-1) / h2 + x.shape[-1] * (h2.log() + LOG_2PI))
        return self.mixture_distribution.logits + log_kernel(x, k, h2.sqrt()) + normal[..., None]

    def spread(self, value: Tensor) -> Tensor:
        """Returns the mean squared distance per feature from the keys, weighted by responsibility, for values (B, D)."""
        g, (x, k) = self.responsibilities(value), self._centered(value)
        squares = x.square().sum(1).mean() + (g * (k.square().sum(1) - 2 * x @ k.T)).sum(1).mean()
        return squares / x.shape[1]

    def _centered(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns values and keys minus the keys' mean: products of small numbers lose less to rounding."""
        center = self.keys.mean(0)
        return value - center.to(value), (self.keys - center).to(value)


def log_kernel(x: Tensor, y: Tensor, h: float | Tensor) -> Tensor:
    """Returns log N(x; y_m, h^2 I) up to a term common to all m, (..., M), for x (..., D) and y (M, D)."""
    return (x @ y.T - 0.5 * y.square().sum(1)) / h**2


def responsibilities(w: Tensor, log_k: Tensor) -> Tensor:
    """Returns gamma_bm = w_m k_bm / sum_l w_l k_bl, (B, M), for log-kernels (B, M)."""
    return (w.log() + log_k).softmax(1)


def pooled(bank: Bank, c: Tensor, t: Tensor) -> Bank:
    """Returns bank and batch as one pool, with weights w M / (M + B) and 1 / (M + B)."""
    w = torch.cat([bank.w * len(bank.w), bank.w.new_ones(len(c))])
    age = torch.cat([bank.age + 1, bank.age.new_zeros(len(c))])
    return Bank(torch.cat([bank.c, c]), torch.cat([bank.t, t]), w / len(w), age)


def without_lightest(pool: Bank, stale: Tensor) -> Bank:
    """Returns M particles of a pool: the lightest of the bank's leave, equal ones by age, and before them the ``stale`` (M,)."""
    M, stay = len(stale), torch.ones_like(pool.w, dtype=torch.bool)
    lightness = (M * pool.w[:M]).round(decimals=DECIMALS[pool.w.dtype]).masked_fill(stale, -1)
    stay[lightness.argsort(stable=True)[: len(pool.w) - M]] = False
    return pool.pick(stay.nonzero()[:, 0], pool.w[stay])


def step(
    bank: Bank,
    c: Tensor,
    t: Tensor,
    gamma: Callable[[], Tensor],
    rule: Rule,
    generator: torch.Generator,
    stale: Tensor,
    resample: bool,
) -> tuple[Bank, bool]:
    """Returns the bank after one batch, and whether it was resampled.

    The batch has contexts (B, C) and targets (B, T), B <= M. ``gamma`` returns its responsibilities (B, M), and is called only in
    mode ``smc``. Particles that are ``stale``, (M,) of bool, leave before all others and are never resampled. Without
    ``resample`` the lightest leave.
    """
    if rule.mode == "fifo":
        pool = pooled(bank, c, t)
        return pool.pick(torch.arange(len(c), len(pool.w), device=pool.w.device)), False
    w = (1 - rule.rho) * bank.w + rule.rho * gamma().mean(0)
    pool = pooled(bank._replace(w=(1 - rule.u) * w + rule.u / len(w)), c, t)
    if not resample or bool(effective_sample_size(pool.w) >= rule.ess_threshold * len(pool.w)):
        return without_lightest(pool, stale), False
    w = torch.cat([pool.w[: len(stale)].masked_fill(stale, 0), pool.w[len(stale) :]])
    return pool.pick(systematic(w, len(stale), generator)), True
