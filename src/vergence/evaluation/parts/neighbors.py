"""The nearest neighbors of features by cosine similarity, in blocks."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.linalg import require_features

__all__ = ["nearest"]


def nearest(train: Tensor, test: Tensor, k: int, block: int = 2048) -> tuple[Tensor, Tensor]:
    """Returns the k training items nearest to each test item by cosine similarity, the nearest first.

    Beyond the answer, memory is for one table of ``block`` test items by 8 ``block`` training items. A zero vector has
    similarity 0 to everything. The order among equal similarities is not defined.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbors, 1 to N.
        block: Test items at a time.

    Returns:
        The similarities (M, k) in [-1, 1] and the indices (M, k) into ``train``.

    Raises:
        ValueError: The features are not finite matrices of one width, or k is out of range.

    Example:
        >>> similarity, index = nearest(torch.eye(3), torch.tensor([[0.0, 3.0, 4.0]]), k=2)
        >>> [round(s, 2) for s in similarity[0].tolist()], index[0].tolist()
        ([0.8, 0.6], [2, 1])
    """
    require_features(train=train, test=test)
    if not 1 <= k <= len(train):
        raise ValueError(f"expected k from 1 to the {len(train)} training items, found {k}: lower k or pass more items")
    bank = F.normalize(train, dim=1)
    parts = [_nearest(bank, F.normalize(part, dim=1), k, 8 * block) for part in torch.split(test, block)]
    return torch.cat([s for s, _ in parts]).clamp(-1, 1), torch.cat([i for _, i in parts])


def _nearest(bank: Tensor, query: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns the k best of the bank, found block by block."""
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
