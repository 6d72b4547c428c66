"""Splits of items into those of a fit and those that calibrate, so that no item is compared with a near duplicate of it.

Shapes: N items, D features.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.decide.inputs import labels_of
from vergence.utils.checks import expect
from vergence.utils.neighbors import components, near_duplicates

__all__ = ["apart", "grouped", "one_of_each", "split_groups"]


def grouped(groups: Any, *sides: np.ndarray) -> np.ndarray:
    """Returns the number of the group of each item (N,), by groups (N,) if given, else of near duplicates on any side.

    Groups are numbered as they appear: in an order by value a split with one seed would take the same ranks of all data.
    """
    label = np.arange(len(sides[0])) if groups is None else labels_of("groups", groups, len(sides[0]))
    for side in sides if groups is None else ():  # near duplicates share a label
        numbers = side.dtype.kind in "biuf"
        expect(numbers, "items of numbers, to keep near duplicates on one side", f"items of type {side.dtype}", "give groups")
        edges = np.stack([label, label.max() + 1 + near_duplicates(side)], 1)
        label = components(edges, edges.max() + 1)[label]
    first, label = np.unique(label, return_index=True, return_inverse=True)[1:]
    return np.asarray(first.argsort().argsort()[label.reshape(-1)])


def apart(group: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns which items calibrate (N,), whole groups (N,) of them at random: the share, and at most one group more.

    Groups of more items than the share are fitted to, and the share is that of the others; where there are no others, one of the
    smallest groups calibrates.

    Example:
        >>> side = apart(np.repeat(np.arange(50), 4), 0.3, seed=0)
        >>> int(side.sum()), bool((side.reshape(50, 4).all(1) == side.reshape(50, 4).any(1)).all())
        (60, True)
    """
    size = np.bincount(group)
    expect(len(size) > 1, "at least 2 groups of items, of which near duplicates are one", len(size), "give others")
    order = np.random.default_rng(seed).permutation(len(size))
    order = order[size[order] <= max(share * len(group), size.min())]
    reached = size[order].cumsum()
    side = np.isin(group, order[: int(np.searchsorted(reached, share * reached[-1])) + 1])
    if size.max() > share * len(group):
        large = f"{size.max():,} of {len(group):,} items are one group, or near duplicates"
        warnings.warn(f"{large}: {side.sum():,} items calibrate instead of {share * len(group):,.0f}", stacklevel=3)
    return side


def one_of_each(group: np.ndarray, side: np.ndarray, seed: int) -> np.ndarray:
    """Returns the index of one item, at random, of each group (N,) on a side (N,): draws that do not depend on each other."""
    items = np.random.default_rng(seed).permutation(np.flatnonzero(side))
    return np.sort(items[np.unique(group[items], return_index=True)[1]])


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
