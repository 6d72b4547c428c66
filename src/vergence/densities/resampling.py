"""Resampling of weighted particles, (weights, n, generator) -> indices, and the effective sample size of weights.

Shapes: M particles with weights (M,), n samples.
"""

import torch
from torch import Tensor

__all__ = ["effective_sample_size", "stratified", "systematic"]


def effective_sample_size(weights: Tensor) -> Tensor:
    """Returns (sum_m w_m)^2 / sum_m w_m^2, from 1 (one particle has all the weight) to M (equal weights).

    Args:
        weights: (..., M), >= 0, not all zero, of any scale.

    Example:
        >>> effective_sample_size(torch.tensor([0.5, 0.5, 0.0])).item()
        2.0
    """
    relative = weights / weights.amax(-1, keepdim=True)  # squares of tiny weights would underflow
    return relative.sum(-1).square() / relative.square().sum(-1)


def systematic(weights: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns n ascending indices: the inverse distribution function of the weights at (i + u) / n, with one u ~ U[0, 1).

    For weights of sum 1, particle m is sampled floor(n w_m) or ceil(n w_m) times, n w_m on average; n = M equal weights give
    every index once.

    Args:
        weights: (M,), >= 0, not all zero.
        n: Number of samples, >= 1.
        generator: Generator of u, on the CPU; the global one by default.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.

    Example:
        >>> systematic(torch.tensor([0.5, 0.25, 0.25]), 4).tolist()
        [0, 0, 1, 2]
    """
    return _read(weights, torch.rand(1, generator=generator, dtype=torch.float64).expand(n))


def stratified(weights: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns n ascending indices as `systematic`, with an independent u for every i.

    Args:
        weights: (M,), >= 0, not all zero.
        n: Number of samples, >= 1.
        generator: Generator of u, on the CPU; the global one by default.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.

    Example:
        >>> stratified(torch.tensor([1.0, 0.0]), 3).tolist()
        [0, 0, 0]
    """
    return _read(weights, torch.rand(n, generator=generator, dtype=torch.float64))


def _read(weights: Tensor, u: Tensor) -> Tensor:
    w = weights.detach().double()
    if not bool((w.isfinite() & (w >= 0)).all()) or not bool(w.sum() > 0):
        raise ValueError("expected weights that are finite, not negative and not all zero, found others: check for NaN")
    n = len(u)
    below = (torch.arange(n, dtype=torch.float64) + u) / n
    cumulative = (w / w.sum()).cumsum(0)
    last = int(w.nonzero()[-1])  # the sum may round to less than 1: beyond it lies the last particle with weight
    index: Tensor = torch.searchsorted(cumulative, below.to(w.device), right=True)
    return index.clamp(max=last)
