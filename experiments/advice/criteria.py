"""What judges an embedding without labels: how well it recognizes another view of an item, and LiDAR."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.learn.evaluation.collapse import effective_rank
from vergence.utils.checks import expect, require_within


def rank_error(first: Any, second: Any) -> float:
    """Returns the mean share of the other items whose second view is closer to an item's first view than its own, by cosine.

    It is in [0, 1]: 0 where every item recognizes its other view, 0.5 for features that know nothing. A tie counts half. It
    hardly depends on the number of items, unlike the accuracy of the nearest one. Features that are not finite recognize nothing.

    Args:
        first: Features of one view of each item, (N, D), N >= 2, an array or a tensor.
        second: Features of another view of the same items, (N, D).

    Example:
        >>> a = torch.tensor([[1.0, 0.1], [0.1, 1.0], [-1.0, 0.1]])
        >>> rank_error(a, 2 * a), rank_error(a, torch.ones(3, 2))
        (0.0, 0.5)
    """
    first, second = torch.as_tensor(first), torch.as_tensor(second)
    fit, shapes = first.shape == second.shape and first.ndim == 2, f"{tuple(first.shape)} and {tuple(second.shape)}"
    expect(fit and len(first) >= 2, "two views (N, D) of at least 2 items", shapes, "pass as many of both")
    a, b = (F.normalize(x.double(), dim=1) for x in (first, second))
    similar = a @ b.T
    own = similar.diagonal()[:, None]
    n, tied = len(own), (similar == own).fill_diagonal_(False)
    lost = similar.isnan() & ~own.isnan()  # a similarity that is not finite does not count as closer
    further = ((similar < own) | lost).sum() + tied.sum() / 2
    return float(1 - further / (n * (n - 1)))


def lidar(views: Tensor, delta: float = 1e-4) -> float:
    r"""Returns LiDAR, the effective rank of what tells items from their views (arXiv:2312.04000, equations 1 to 4).

        exp(- sum_k p_k ln p_k),   p_k = lambda_k / sum_l lambda_l,   lambda = eigenvalues of W^{-1/2} B W^{-1/2}

    B is the covariance of the items' mean embeddings, W the mean covariance of an item's views plus ``delta`` on the diagonal.
    Features are divided by their root mean variance first, so that ``delta`` has no unit.

    Args:
        views: Embeddings (N, q, D) of q >= 2 views of N >= 2 items.
        delta: Regularization, > 0.

    Returns:
        A number in [1, min(N - 1, D)]; 0.0 where all items have the same mean.

    Example:
        >>> items = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
        >>> noise = 0.1 * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> round(lidar(items[:, None] + noise), 3)
        2.0
    """
    expect(views.ndim == 3 and min(views.shape[:2]) >= 2, "views (N, q, D) of 2 items in 2 views", tuple(views.shape))
    require_within("(0, inf)", delta=delta)
    z = views.double()
    scale = z.flatten(0, 1).var(0).mean().sqrt().clamp(min=torch.finfo(z.dtype).tiny)
    z = (z - z.flatten(0, 1).mean(0)) / scale
    mean = z.mean(1)
    within = (z - mean[:, None]).flatten(0, 1)
    W = within.T @ within / (len(z) * (z.shape[1] - 1)) + delta * torch.eye(z.shape[2], dtype=z.dtype)
    L = torch.linalg.cholesky(W)
    return float(effective_rank(torch.linalg.solve_triangular(L, mean.T, upper=False).T))
