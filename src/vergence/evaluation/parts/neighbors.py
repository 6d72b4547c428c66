"""Nearest neighbors of features by cosine similarity, in blocks."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.linalg import as_float, require_features

__all__ = ["cosine_distances", "nearest"]

ROUNDING = 8  # epsilons of the type by which the similarities of consecutive neighbors must differ on average
LEADING = 5  # neighbors after the first whose similarities are judged


def nearest(train: Tensor, test: Tensor, k: int, block: int = 2048) -> tuple[Tensor, Tensor]:
    """Returns the k training items nearest to each test item by cosine similarity, the nearest first.

    Test items whose first neighbors differ by no more than rounding, as in tight clusters of float32, are searched again in
    float64. Beyond the result, memory is for one table of ``block`` test items by 8 ``block`` training items. A zero vector has
    similarity 0 to everything. The order among equal similarities is not defined.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbors, 1 to N.
        block: Test items in a block.

    Returns:
        The similarities (M, k) in [-1, 1] and the indices (M, k) into ``train``.

    Raises:
        ValueError: The features are not finite matrices of one width, or k is out of range.

    Example:
        >>> similarity, index = nearest(torch.eye(3), torch.tensor([[0.0, 3.0, 4.0]]), k=2)
        >>> [round(s, 2) for s in similarity[0].tolist()], index[0].tolist()
        ([0.8, 0.6], [2, 1])
    """
    similarity, _, index = _search(train, test, k, block)
    return similarity, index


def cosine_distances(train: Tensor, test: Tensor, k: int, block: int = 2048) -> Tensor:
    """Returns the cosine distances 1 - cosine (M, k) in [0, 2] to the neighbors of `nearest`, without cancellation.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbors, 1 to N.
        block: Test items in a block.

    Raises:
        ValueError: As `nearest`.

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
    if not 1 <= k <= len(train):
        raise ValueError(f"expected k from 1 to the {len(train)} training items, found {k}: lower k or pass more items")
    similarity, index = _blockwise(train, test, min(max(k, LEADING + 1), len(train)), block)
    unresolved = _unresolved(similarity)
    similarity, index = similarity[:, :k].clamp(-1, 1), index[:, :k]
    distance = 1 - similarity
    if bool(unresolved.any()):
        exact, index[unresolved] = _blockwise(train.double(), test[unresolved].double(), k, block)
        similarity[unresolved] = exact.clamp(-1, 1).to(similarity)
        distance[unresolved] = (1 - exact.clamp(-1, 1)).to(distance)
    return similarity, distance, index


def _unresolved(similarity: Tensor) -> Tensor:
    """Returns which rows of similarities (M, k), in descending order, differ by no more than rounding, (M,) of bool."""
    last = min(LEADING, similarity.shape[1] - 1)
    if similarity.dtype == torch.float64 or last == 0:
        return torch.zeros(len(similarity), dtype=torch.bool, device=similarity.device)
    return similarity[:, 0] - similarity[:, last] < ROUNDING * last * torch.finfo(similarity.dtype).eps


def _blockwise(train: Tensor, test: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns similarities and indices (M, k), in the precision of the features."""
    bank = F.normalize(train, dim=1)
    parts = [_nearest(bank, F.normalize(part, dim=1), k, 8 * block) for part in torch.split(test, block)]
    return torch.cat([s for s, _ in parts]), torch.cat([i for _, i in parts])


def _nearest(bank: Tensor, query: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns the k most similar items of the bank, searched block by block."""
    best = query.new_empty(len(query), 0), torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for start in range(0, len(bank), block):
        similarity, index = _top(query @ bank[start : start + block].T, k)
        similarity, index = torch.cat([best[0], similarity], 1), torch.cat([best[1], index + start], 1)
        similarity, order = _top(similarity, k)
        best = similarity, index.gather(1, order)
    return best


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
    return values, index
