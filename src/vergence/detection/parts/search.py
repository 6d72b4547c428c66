"""Neighbors and near pairs of features, in blocks of bounded memory, and the groups that pairs join.

Shapes: N items, M other items, D features, k neighbors.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.detection.parts.kinds import numeric
from vergence.utils.linalg import require_features

__all__ = ["components", "features_of", "nearest_others", "similar_pairs"]

NUMBERS = 1 << 24  # entries of a table of distances
BLOCK = 2048  # items that are compared with others at a time
SAMPLE, ITERATIONS = 2000, 10  # of the power iteration for a direction


def components(edges: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Returns the label (n,) of the connected component of each of n items, for edges (E, 2).

    Example:
        >>> components(np.array([[0, 2]]), 3).tolist()
        [0, 1, 0]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    label: npt.NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return label


def features_of(name: str, x: object) -> Tensor:
    """Returns features (N, D) as a tensor of float32 or float64 on their device, checked to be finite.

    Example:
        >>> features_of("features", torch.ones(2, 3, dtype=torch.float16)).dtype
        torch.float32
    """
    z = numeric(name, x)
    z = z if z.dtype == torch.float64 else z.to(torch.float32)
    require_features(**{name: z})
    return z


def nearest_others(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the Euclidean distances (N, k) and indices (N, k) of the k nearest other items, the nearest first.

    Candidates are found by one product of matrices a block, in the type of the features; their distances are then computed from
    the differences. In a cluster whose spread is a ten-thousandth of its distance from the mean, float32 may miss near items.

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

    Vectors of a cosine c lie sqrt(2 - 2 c) apart, and at most so far along any direction: items are sorted along the direction in
    which they differ most, and compared with those alone that are near enough there.

    Args:
        a: Unit vectors (N, D).
        b: Unit vectors (M, D); None for the pairs i < j of ``a``.
        least: Lower bound of the cosine.

    Example:
        >>> [(i.tolist(), j.tolist()) for i, j, _ in similar_pairs(torch.eye(2), torch.eye(2), 0.5)]
        [([0, 1], [0, 1])]
    """
    other = a if b is None else b
    direction = _widest(other)
    (t_a, order_a), (t_b, order_b) = ((x @ direction).sort() for x in (a, other))
    radius = max(0.0, 2 - 2 * least) ** 0.5 + 1e-4
    left, right = torch.searchsorted(t_b, t_a - radius), torch.searchsorted(t_b, t_a + radius, right=True)
    start = 0
    while start < len(a):
        low = start if b is None else int(left[start])
        size = max(1, min(BLOCK, NUMBERS // max(1, int(right[min(start + BLOCK, len(a)) - 1]) - low)))
        stop = min(start + size, len(a))
        high = int(right[stop - 1])
        rows, columns = order_a[start:stop], order_b[low:high]
        table = a[rows] @ other[columns].T
        i, j = (table >= least).nonzero(as_tuple=True)
        similarity = table[i, j]
        if b is None:
            later = j > i  # both counted from start
            i, j, similarity = i[later], j[later], similarity[later]
        i, j = rows[i], columns[j]
        yield (i, j, similarity) if b is not None else (torch.minimum(i, j), torch.maximum(i, j), similarity)
        start = stop


def _widest(x: Tensor) -> Tensor:
    """Returns a unit vector (D,) near the principal direction of largest variance."""
    part = x[:: max(1, len(x) // SAMPLE)]
    part = part - part.mean(0)
    v = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) + torch.arange(x.shape[1], device=x.device).to(x) / x.shape[1]
    for _ in range(ITERATIONS):
        v = torch.nn.functional.normalize(part.T @ (part @ v), dim=0)
    return v if bool(v.isfinite().all()) else torch.zeros_like(v)
