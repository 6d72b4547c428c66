r"""Pooling of the responses r (B, L, K) of K atoms at L positions: soft thresholds, windows that overlap, and a root.

    a = [max(r - theta, 0); max(-r - theta, 0)]                  two-sided soft threshold
    f = (weighted mean of a in each of pool x pool cells)^(1/3)  2 K pool^2 features; the cells overlap, see `cells`

With s = softshrink(r), the two parts of a are (|s| + s) / 2 and (|s| - s) / 2, so that both pooled maps follow from two products
with a matrix of the cells.
"""

import torch
from torch import Tensor

__all__ = ["ROOT", "cells", "pooled"]

ROOT = 3  # of the pooled responses
WINDOW = 0.44  # standard deviation of a cell's weights, in sides of a cell


def pooled(s: Tensor, A: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns f (B, 2, K, cells) in ``dtype``: the pooled positive parts, and the negative ones, of thresholded responses.

    Args:
        s: softshrink(r), (B, L, K); changed in place.
        A: Weights (cells, L) of the positions, in the type of ``s``.
        dtype: Type of the sums and of the root.

    Example:
        >>> pooled(torch.tensor([[[8.0], [-1.0]]]), torch.eye(2), torch.float32).squeeze().tolist()
        [[2.0, 0.0], [0.0, 1.0]]
    """
    signed = (A @ s).mT.to(dtype)
    size = (A @ s.abs_()).mT.to(dtype)
    return torch.stack([size + signed, size - signed], 1).div_(2).clamp_(min=0).pow_(1 / ROOT)


def cells(rows: int, columns: int, pool: int) -> Tensor:
    """Returns the matrix (rows columns, pool^2) whose product with maps is their weighted average in each cell.

    The weights are Gaussians around the centers of pool x pool equal cells, with a deviation of 0.44 of a cell's side, so that
    neighboring cells overlap; one cell averages all positions.

    Example:
        >>> cells(1, 4, 1).flatten().tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return torch.kron(_windows(rows, pool), _windows(columns, pool))


def _windows(n: int, pool: int) -> Tensor:
    """Returns the weights (n, pool) of n positions in the cells along one side; each column adds up to 1."""
    if pool == 1:
        return torch.full((n, 1), 1 / n, dtype=torch.float64)
    u, center = (((torch.arange(m, dtype=torch.float64) + 0.5) / m) for m in (n, pool))
    a = (-0.5 * ((u[:, None] - center) * (pool / WINDOW)).square()).exp()
    return a / a.sum(0)
