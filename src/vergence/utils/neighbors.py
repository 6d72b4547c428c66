"""Nearest neighbors and near pairs of features, in blocks of bounded memory, and the components that pairs join.

Shapes: N items, M other items, D features, k neighbors, E pairs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect
from vergence.utils.linalg import as_float, require_features

__all__ = ["components", "cosine_distances", "near_duplicates", "nearest", "nearest_others", "nearest_rows", "similar_pairs"]

ROUNDING = 8  # epsilons of the type by which the similarities of consecutive neighbors must differ on average
LEADING = 5  # neighbors after the first whose similarities are judged
NUMBERS = 1 << 24  # entries of a table of distances
BLOCK = 2048  # items that are compared with others at a time
SAMPLE, ITERATIONS = 2000, 10  # of the power iteration for a direction
DUPLICATES, PART = 32, 0.05  # near duplicates of an item at most, in number and share
RATIO = 0.25  # their distance over that of the next
LINEAR, FAR = 10, 1e3  # median distances from the median up to which a scale is linear; where what is infinite lies
LEAF, TREES, WIDTH = 1024, 3, 64  # items that are compared at a time, partitions into such sets, and directions


def nearest(train: Tensor, test: Tensor, k: int, block: int = 2048) -> tuple[Tensor, Tensor]:
    """Returns the k training items nearest to each test item by cosine similarity, the nearest first.

    Test items whose first neighbors differ by no more than rounding, as in tight clusters of float32, are searched again in
    float64. Beyond the result, memory is for one table of ``block`` test items by 8 ``block`` training items. A zero vector has
    similarity 0 to everything. The order among equal similarities is not defined. Of features (N, D) and (M, D) and k of 1 to N,
    the similarities (M, k) in [-1, 1] and the indices (M, k) into ``train`` are returned.
    """
    similarity, _, index = _search(train, test, k, block)
    return similarity, index


def cosine_distances(train: Tensor, test: Tensor, k: int, block: int = 2048) -> Tensor:
    """Returns the cosine distances 1 - cosine (M, k) in [0, 2] to the neighbors of `nearest`, without cancellation.

    Example:
        >>> cosine_distances(torch.eye(2), torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), k=2)
        tensor([[0., 1.],
                [1., 2.]])
    """
    return _search(train, test, k, block)[1]


def _search(train: Tensor, test: Tensor, k: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns similarities, distances and indices, (M, k) each."""
    require_features(train=train, test=test)
    train, test = as_float(train), as_float(test)
    expect(1 <= k <= len(train), f"k from 1 to the {len(train)} training items", k, "lower k or pass more items")
    similarity, index = _blockwise(train, test, min(max(k, LEADING + 1), len(train)), block)
    last = min(LEADING, similarity.shape[1] - 1)
    unresolved = similarity[:, 0] - similarity[:, last] < ROUNDING * last * torch.finfo(similarity.dtype).eps
    similarity, index = similarity[:, :k].clamp(-1, 1), index[:, :k]
    distance = 1 - similarity
    if similarity.dtype != torch.float64 and bool(unresolved.any()):
        exact, index[unresolved] = _blockwise(train.double(), test[unresolved].double(), k, block)
        similarity[unresolved] = exact.clamp(-1, 1).to(similarity)
        distance[unresolved] = (1 - exact.clamp(-1, 1)).to(distance)
    return similarity, distance, index


def _blockwise(train: Tensor, test: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns similarities and indices (M, k), in the precision of the features."""
    bank = F.normalize(train, dim=1)
    parts = [_nearest(bank, F.normalize(part, dim=1), k, 8 * block) for part in torch.split(test, block)]
    return torch.cat([s for s, _ in parts]), torch.cat([i for _, i in parts])


def _nearest(bank: Tensor, query: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns the k most similar items of the bank, searched block by block."""
    best = query.new_empty(len(query), 0), torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for start in range(0, len(bank), block):
        similarity, index = (query @ bank[start : start + block].T).topk(min(k, len(bank) - start, block), dim=1)
        whole = torch.cat([best[0], similarity], 1)
        similarity, order = whole.topk(min(k, whole.shape[1]), dim=1)
        best = similarity, torch.cat([best[1], index + start], 1).gather(1, order)
    return best


def nearest_rows(items: Tensor, x: Tensor, k: int, *, directions: bool = False) -> Tensor:
    """Returns the indices (M, k) of the k nearest items (N, D) of each row of x (M, D), the nearest first, k of 1 to N.

    The order is that of Euclidean distances as one product of matrices rounds them, in the type of the features. With
    ``directions`` all are unit vectors, or zeros, which are as far from everything as an orthogonal vector.

    Example:
        >>> nearest_rows(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[4.0]]), 2)
        tensor([[2, 1]])
    """
    squares = torch.ones_like(items[:, 0]) if directions else items.square().sum(1)
    tables = (torch.addmm(squares, a, items.T, alpha=-2) for a in x.split(max(1, NUMBERS // len(items))))
    return torch.cat([table.topk(k, dim=1, largest=False).indices for table in tables])


def nearest_others(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the Euclidean distances (N, k) and indices (N, k) of the k nearest other items, the nearest first.

    Candidates are found by one product of matrices a block, in the type of the features; their distances are then computed from
    the differences. In a cluster whose spread is a ten-thousandth of its distance from the mean, float32 may miss near items.
    """
    x = x - x.mean(0)
    squares = x.square().sum(1)
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, NUMBERS // len(x))):
        table = torch.addmm(squares, x[rows], x.T, alpha=-2)
        table[torch.arange(len(rows), device=x.device), rows] = torch.inf
        parts.append(table.topk(k, dim=1, largest=False).indices)
    index = torch.cat(parts)
    rows_each = max(1, NUMBERS // (k * x.shape[1]))
    pieces = zip(x.split(rows_each), index.split(rows_each), strict=True)
    distance = torch.cat([(rows[:, None] - x[nearby]).square().sum(2).sqrt() for rows, nearby in pieces])
    distance, order = distance.sort(dim=1, stable=True)
    return distance, index.gather(1, order)


def similar_pairs(x: Tensor, least: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the indices i, j of pairs of unit vectors (N, D) with a cosine of at least ``least``, once each, block by block.

    Vectors of a cosine c lie sqrt(2 - 2 c) apart, and at most so far along any direction: items are sorted along the direction in
    which they differ most, and compared with those alone that are near enough there.

    Example:
        >>> [(i.tolist(), j.tolist()) for i, j in similar_pairs(torch.eye(2)[[0, 1, 0]], 0.5)]
        [([0], [2])]
    """
    along, order = (x @ _widest(x)).sort()
    right = torch.searchsorted(along, along + max(0.0, 2 - 2 * least) ** 0.5 + 1e-4, right=True)
    start = 0
    while start < len(x):
        size = max(1, min(BLOCK, NUMBERS // max(1, int(right[min(start + BLOCK, len(x)) - 1]) - start)))
        stop = min(start + size, len(x))
        rows, columns = order[start:stop], order[start : int(right[stop - 1])]
        i, j = (x[rows] @ x[columns].T >= least).nonzero(as_tuple=True)
        later = j > i  # both counted from start
        yield rows[i[later]], columns[j[later]]
        start = stop


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


def near_duplicates(x: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Returns a label (N,) of each of N items (N, D), which equal items and near duplicates share, in any order of the items.

    Columns are in units of their median distance from the median, far ones on a logarithmic scale, and NaN is a value of its own;
    up to six digits of these, items are equal. Near duplicates of an item are at most 32
    others, and a twentieth of all, that are less than a quarter as far away as the next nearest item. More than 1,024 items are
    compared within the leaves of random trees, in up to 64 random directions.
    """
    scaled = np.stack([_scaled(column) for column in x.T.astype(np.float64)], 1) if x.shape[1] else x
    equal, label = np.unique(np.round(scaled, 6) + 0.0, axis=0, return_inverse=True)
    rows, generator = torch.from_numpy(equal), torch.Generator().manual_seed(0)
    if rows.shape[1] > WIDTH:
        rows = rows @ torch.randn(rows.shape[1], WIDTH, dtype=rows.dtype, generator=generator)
    most = min(DUPLICATES, int(PART * len(rows)))
    trees = (_leaves(rows, generator) for _ in range(TREES if len(rows) > LEAF else 1))
    pairs = [part[_isolated(rows[part], most)] for tree in trees for part in tree] if most else []
    joined = components(torch.cat([*pairs, torch.empty(0, 2, dtype=torch.int64)]).numpy(), len(rows))
    return joined[label.reshape(-1)]


def _scaled(column: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns a column (N,) in units of the median distance from its median, with bounded values: a wild one changes no other."""
    finite = column[np.isfinite(column)]
    center = np.median(finite) if len(finite) else 0.0
    away = np.abs(finite - center)
    unit = np.median(away[away > 0]) if away.any() else 1.0
    scaled: npt.NDArray[np.float64] = LINEAR * np.arcsinh((column - center) / (LINEAR * unit))
    return np.nan_to_num(scaled, nan=2 * FAR, posinf=FAR, neginf=-FAR)


def _leaves(x: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields the indices of near items (N, D), of at most `LEAF`, by halves along random directions."""
    parts = [torch.arange(len(x))]
    while parts:
        part = parts.pop()
        if len(part) <= LEAF:
            yield part
            continue
        along = x[part] @ torch.randn(x.shape[1], dtype=x.dtype, generator=generator)
        parts += part[along.argsort()].tensor_split(2)


def _isolated(x: Tensor, most: int) -> Tensor:
    """Returns pairs (E, 2) of different items and others, at most so many of each, behind which there is a gap of distances."""
    distance, index = nearest_others(x, min(most + 1, len(x) - 1))
    rank = torch.arange(1, distance.shape[1])
    last = ((distance[:, :-1] < RATIO * distance[:, 1:]) * rank).amax(1)
    i, j = (rank <= last[:, None]).nonzero(as_tuple=True)
    return torch.stack([i, index[i, j]], 1)


def _widest(x: Tensor) -> Tensor:
    """Returns a unit vector (D,) near the principal direction of largest variance."""
    part = x[:: max(1, len(x) // SAMPLE)]
    part = part - part.mean(0)
    v = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) + torch.arange(x.shape[1], device=x.device).to(x) / x.shape[1]
    for _ in range(ITERATIONS):
        v = F.normalize(part.T @ (part @ v), dim=0)
    return v if bool(v.isfinite().all()) else torch.zeros_like(v)
