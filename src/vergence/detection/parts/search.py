"""Neighbors and near pairs of features, in blocks of bounded memory.

Shapes: N items, M other items, D features, k neighbors.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["features_of", "nearest_others", "similar_pairs"]

NUMBERS = 1 << 24  # entries of a table of distances


def features_of(name: str, x: object) -> Tensor:
    """Returns features (N, D) as a tensor of float32 or float64 on their device, checked to be finite.

    Example:
        >>> features_of("features", [[1, 2]]).dtype
        torch.float32
    """
    from vergence.utils.linalg import require_features

    z = x.detach() if isinstance(x, Tensor) else torch.as_tensor(x)
    z = z if z.dtype == torch.float64 else z.to(torch.float32)
    require_features(**{name: z})
    return z


def nearest_others(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the Euclidean distances (N, k) and indices (N, k) of the k nearest other items, the nearest first.

    Candidates are found by one product of matrices a block; the distances are then computed from the differences, so that
    tight clusters far from the origin keep their precision.

    Example:
        >>> nearest_others(torch.tensor([[0.0], [1.0], [3.0]]), 1)
        (tensor([[1.],
                [1.],
                [2.]]), tensor([[1],
                [0],
                [1]]))
    """
    x = x - x.mean(0)
    squares = x.square().sum(1)
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, NUMBERS // len(x))):
        table = torch.addmm(squares, x[rows], x.T, alpha=-2)
        table[torch.arange(len(rows), device=x.device), rows] = torch.inf
        parts.append(table.topk(k, dim=1, largest=False).indices)
    index = torch.cat(parts)
    distance = torch.cat(
        [
            (x[rows, None] - x[index[rows]]).square().sum(2).sqrt()
            for rows in torch.arange(len(x), device=x.device).split(max(1, NUMBERS // (k * x.shape[1])))
        ]
    )
    distance, order = distance.sort(dim=1, stable=True)
    return distance, index.gather(1, order)


def similar_pairs(a: Tensor, b: Tensor | None, least: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields the indices and similarities of pairs of unit vectors with a cosine of at least ``least``, block by block.

    Args:
        a: Unit vectors (N, D).
        b: Unit vectors (M, D); None for the pairs i < j of ``a``.
        least: Lower bound of the cosine.

    Example:
        >>> [(i.tolist(), j.tolist()) for i, j, _ in similar_pairs(torch.eye(2), torch.eye(2), 0.5)]
        [([0, 1], [0, 1])]
    """
    other = a if b is None else b
    size = max(1, NUMBERS // len(other))
    for start in range(0, len(a), size):
        first = start if b is None else 0
        table = a[start : start + size] @ other[first:].T
        i, j = (table >= least).nonzero(as_tuple=True)
        similarity = table[i, j]
        if b is None:
            later = j > i  # both counted from start
            i, j, similarity = i[later], j[later], similarity[later]
        yield i + start, j + first, similarity
