r"""Weighted particles that follow a stream of pairs: one step of sequential Monte Carlo, in its parts.

Particles (c_m, t_m), m = 1..M, have weights w_m of sum 1. A batch of B pairs with responsibilities gamma_bm proportional to
w_m k_bm, for kernels k_bm of the particles at the pairs, moves them so:

    r_m = mean_b gamma_bm,   w <- (1 - rho) w + rho r,   w <- (1 - u) w + u / M
    pool of M + B:           w M / (M + B) and 1 / (M + B);   of these M stay

w <- r is the EM step of the weights. What stays of the pool is drawn from it, or is all but the lightest or all but the oldest.

Shapes: M particles, B pairs, C and T features.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vergence.densities import resampling

__all__ = [
    "RESAMPLING",
    "Bank",
    "log_kernel",
    "newest",
    "pooled",
    "resampled",
    "responsibilities",
    "reweighted",
    "without_lightest",
]

RESAMPLING = {"systematic": resampling.systematic, "stratified": resampling.stratified}
DECIMALS = {torch.float64: 12, torch.float32: 5}  # of M w: weights that differ by their rounding are equal


class Bank(NamedTuple):
    """Particles, the oldest first: contexts (M, C), targets (M, T), weights (M,) of sum 1, and batches since entry (M,)."""

    c: Tensor
    t: Tensor
    w: Tensor
    age: Tensor

    def pick(self, index: Tensor, w: Tensor) -> "Bank":
        """Returns some of the particles with weights in proportion to w."""
        return Bank(self.c[index], self.t[index], w / w.sum(), self.age[index])


def log_kernel(x: Tensor, y: Tensor, h: float | Tensor) -> Tensor:
    """Returns log N(x_b; y_m, h^2 I) but for what is the same for all m, (B, M), for x (B, D) and y (M, D)."""
    return (x @ y.T - 0.5 * y.square().sum(1)) / h**2


def responsibilities(w: Tensor, log_k: Tensor) -> Tensor:
    """Returns gamma_bm = w_m k_bm / sum_l w_l k_bl, (B, M), for log-kernels (B, M)."""
    return (w.log() + log_k).softmax(1)


def reweighted(w: Tensor, gamma: Tensor, rho: float, u: float) -> Tensor:
    """Returns the weights (M,) moved by rho toward r_m = mean_b gamma_bm, then by u toward 1 / M."""
    w = (1 - rho) * w + rho * gamma.mean(0)
    return (1 - u) * w + u / len(w)


def pooled(bank: Bank, c: Tensor, t: Tensor) -> Bank:
    """Returns bank and batch, of weights w M / (M + B) and 1 / (M + B)."""
    w = torch.cat([bank.w * len(bank.w), bank.w.new_ones(len(c))])
    age = torch.cat([bank.age + 1, bank.age.new_zeros(len(c))])
    return Bank(torch.cat([bank.c, c]), torch.cat([bank.t, t]), w / len(w), age)


def without_lightest(pool: Bank, old: int, size: int, first: Tensor | None = None) -> Bank:
    """Returns ``size`` particles: the lightest of the first ``old`` leave, the oldest first where weights are equal.

    Args:
        pool: Bank and batch.
        old: M, how many of them are the bank's.
        size: How many stay, at least as many as the batch has.
        first: Of the bank's, which leave before all others whatever their weight, (old,) of bool; none by default.
    """
    kept = torch.ones_like(pool.w, dtype=torch.bool)
    lightness = (old * pool.w[:old]).round(decimals=DECIMALS[pool.w.dtype])
    if first is not None:
        lightness = lightness.masked_fill(first, -1)
    kept[lightness.argsort(stable=True)[: len(pool.w) - size]] = False
    return pool.pick(kept.nonzero()[:, 0], pool.w[kept])


def newest(pool: Bank, size: int) -> Bank:
    """Returns the last ``size`` particles, of equal weights."""
    last = torch.arange(len(pool.w) - size, len(pool.w), device=pool.w.device)
    return pool.pick(last, torch.ones_like(pool.w[last]))


def resampled(pool: Bank, size: int, kind: str, generator: torch.Generator) -> Bank:
    """Returns ``size`` draws from the pool, of equal weights, the oldest first; ``kind`` is a name of `RESAMPLING`."""
    index = RESAMPLING[kind](pool.w, size, generator)
    return pool.pick(index, torch.ones_like(pool.w[index]))
