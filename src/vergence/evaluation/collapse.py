"""Spread and effective rank of an embedding, and a warning if it collapses to a point or a line.

Shapes: N items, D features.
"""

import torch
from torch import Tensor

from vergence.evaluation.parts.spread import effective_rank, normalized_std
from vergence.evaluation.parts.symptoms import warning
from vergence.utils.linalg import as_float, require_features

__all__ = ["collapse", "warning"]

ROWS = 4096  # rows that the spectrum is computed from, so that its cost does not grow with N


def collapse(z: Tensor) -> dict[str, float]:
    """Returns how much of the space an embedding uses.

    The mean squared Mahalanobis distance under the features' own covariance is not included: it is D (N - 1) / N for all
    features (with an invertible covariance of divisor N - 1).

    Args:
        z: Features (N, D).

    Returns:
        ``std`` and ``std_min``: mean and minimum over features of `parts.spread.normalized_std` (1 uniform, 0 collapsed);
        ``effective_rank``: `parts.spread.effective_rank` of at most 4096 rows, sampled with a fixed seed;
        ``norm``: mean Euclidean norm of a row.

    Raises:
        ValueError: The features are not a finite matrix.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
        >>> {name: round(value, 3) for name, value in collapse(z).items()}
        {'std': 1.0, 'std_min': 1.0, 'effective_rank': 2.0, 'norm': 2.0}
    """
    require_features(z=z)
    z = as_float(z)
    std = normalized_std(z)
    return {
        "std": std.mean().item(),
        "std_min": std.min().item(),
        "effective_rank": effective_rank(_subset(z)).item(),
        "norm": z.norm(dim=1).mean().item(),
    }


def _subset(z: Tensor) -> Tensor:
    if len(z) <= ROWS:
        return z
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:ROWS]
    return z[chosen.to(z.device)]
