"""Resampling of weighted particles, (weights, n, generator) -> index, and their effective sample size.

R. Douc, O. Cappe, E. Moulines, "Comparison of resampling schemes for particle filtering", ISPA, 2005.

Shapes: M particles with weights (M,), n samples.
"""

import torch
from torch import Tensor

__all__ = ["effective_sample_size", "systematic"]


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
    """Returns n ascending indices by systematic resampling: inverse transform of (i + u) / n with one u ~ U[0, 1).

    Particle m is selected floor(n w_m) or ceil(n w_m) times, n w_m on average; with n = M equal weights each is selected once.

    Args:
        weights: Weights (M,), >= 0, not all zero.
        n: Number of samples, >= 1.
        generator: Source of u, on the CPU; the global generator by default.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.

    Example:
        >>> systematic(torch.tensor([0.5, 0.25, 0.25]), 4).tolist()
        [0, 0, 1, 2]
    """
    return _inverse_transform(weights, torch.rand(1, generator=generator, dtype=torch.float64).expand(n))


def stratified(weights: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
    """Returns n ascending indices by stratified resampling: as `systematic`, with an independent u for every i.

    Args:
        weights: Weights (M,), >= 0, not all zero.
        n: Number of samples, >= 1.
        generator: Source of u, on the CPU; the global generator by default.

    Raises:
        ValueError: A weight is negative or not finite, or all are zero.

    Example:
        >>> stratified(torch.tensor([1.0, 0.0]), 3).tolist()
        [0, 0, 0]
    """
    return _inverse_transform(weights, torch.rand(n, generator=generator, dtype=torch.float64))


def _inverse_transform(weights: Tensor, u: Tensor) -> Tensor:
    """Returns the indices at which the weights' distribution function passes (i + u_i) / n, (n,)."""
    w = weights.detach().double()
    if not bool((w.isfinite() & (w >= 0)).all()) or not bool(w.sum() > 0):
        low, high = (float(x) for x in w.aminmax())
        raise ValueError(f"expected finite weights >= 0 that are not all zero, found a range of {low:g} to {high:g}")
    n = len(u)
    below = (torch.arange(n, dtype=torch.float64) + u) / n
    cumulative = (w / w.sum()).cumsum(0)
    last = int(w.nonzero()[-1])  # the sum may round to less than 1: points beyond it select the last particle with weight
    index: Tensor = torch.searchsorted(cumulative, below.to(w.device), right=True)
    return index.clamp(max=last)
