"""Splits of items into parts that whole groups of them fall into."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["split_groups"]


def split_groups(groups: Iterable[Any], share: float, seed: int | None) -> Tensor:
    """Returns a (N,) bool mask of at most a share of the items, in [0, 1), whole groups of them, sampled at random.

    Groups are given by a label of each item, such as its content. Without a seed they come in the order of their first items.
    """
    first: dict[Any, int] = {}
    group = torch.tensor([first.setdefault(label, len(first)) for label in groups])
    order = torch.arange(len(first))
    if seed is not None:
        order = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))
    size = torch.bincount(group, minlength=len(first))[order]
    limit, total = int(share * len(group)), 0
    chosen = torch.zeros(len(first), dtype=torch.bool)
    for label, n in zip(order.tolist(), size.tolist(), strict=True):
        if total + n <= limit:
            chosen[label] = True
            total += n
    return chosen[group]
