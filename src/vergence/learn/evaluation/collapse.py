"""Spread and effective rank of an embedding, which say whether it collapses to a point or a line.

Shapes: N items, D features.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.linalg import as_float, require_features

__all__ = ["collapse", "effective_rank", "normalized_std"]

ROWS = 4096  # rows that the spectrum is computed from, so that its cost does not grow with N


def collapse(z: Tensor) -> dict[str, float]:
    """Returns how much of the space an embedding uses.

    Args:
        z: Features (N, D).

    Returns:
        ``std`` and ``std_min``: mean and minimum over features of `normalized_std` (1 uniform, 0 collapsed);
        ``effective_rank``: `effective_rank` of at most 4096 rows, sampled with a fixed seed;
        ``norm``: mean Euclidean norm of the rows.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
        >>> {name: round(value, 3) for name, value in collapse(z).items()}
        {'std': 1.0, 'std_min': 1.0, 'effective_rank': 2.0, 'norm': 2.0}
    """
    require_features(z=z)
    z = as_float(z)
    std = normalized_std(z)
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:ROWS]
    return {
        "std": std.mean().item(),
        "std_min": std.min().item(),
        "effective_rank": effective_rank(z if len(z) <= ROWS else z[chosen.to(z.device)]).item(),
        "norm": z.norm(dim=1).mean().item(),
    }


def effective_rank(z: Tensor) -> Tensor:
    r"""Returns the effective rank of the features: the exponential of the entropy of their covariance's spectrum.

        exp(- sum_k p_k ln p_k),   p_k = lambda_k / sum_l lambda_l,   lambda = eigenvalues of the covariance

    Roy and Vetterli (The effective rank, 2007) define it for singular values; the eigenvalues here are their squares.
    Computed in float64 from the smaller of the two Gram matrices: O(N D min(N, D)).

    Args:
        z: Features (N, D).

    Returns:
        A scalar in [1, min(N - 1, D)]; 0.0 if all points are equal, as for N = 1.

    Example:
        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(effective_rank(corners).item(), 3), round(effective_rank(corners[:2]).item(), 3)
        (2.0, 1.0)
    """
    require_features(z=z)
    c = z.double() - z[0].double()  # exact zeros for equal points, unlike subtracting a rounded mean
    c = c / c.abs().max().clamp(min=torch.finfo(c.dtype).tiny)
    c = c - c.mean(0)
    gram = c.T @ c if z.shape[1] <= len(z) else c @ c.T
    lam: Tensor = torch.linalg.eigvalsh(gram).clamp(min=0)
    total = lam.sum()
    p = lam / total.clamp(min=torch.finfo(c.dtype).tiny)
    rank: Tensor = torch.special.entr(p).sum().exp() * (total > 0)
    return rank.to(as_float(z).dtype)


def normalized_std(z: Tensor) -> Tensor:
    r"""Returns each feature's standard deviation on the sphere: sqrt(D) std_n(z_nd / max(|z_n|, 1e-6)), with divisor N.

    Args:
        z: Features (N, D).

    Returns:
        (D,): 1 for directions uniform on the sphere, 0 for equal directions. The mean square over features is at most 1.

    Example:
        >>> z = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -5.0]])
        >>> [round(s, 3) for s in normalized_std(z).tolist()]
        [1.0, 1.0]
    """
    u: Tensor = F.normalize(as_float(z), dim=1, eps=1e-6)
    spread: Tensor = u.std(0, correction=0) * z.shape[1] ** 0.5
    return spread
