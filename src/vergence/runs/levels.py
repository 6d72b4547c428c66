"""Levels of features of many items, in bounded memory; see `vergence.evaluation.levels`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.evaluation import features
from vergence.training.calibration import digests

__all__ = ["MOST_ITEMS", "Arrays", "Found", "Leveled", "collected", "sample"]

MOST_ITEMS, MOST_BYTES = 50_000, 256 << 20  # of the items whose levels are held, sampled at random
Arrays = dict[str, np.ndarray]


class Leveled(Protocol):
    """What computes the levels of a batch of items."""

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """Returns features (B, D) by level."""

    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""


@dataclass
class Found:
    """Levels of some items.

    Attributes:
        levels: Features (N, D) by level.
        index: Index (N,) of the items that could be read.
        digests: Digest (N,) of each item's content, uint64.
    """

    levels: Arrays
    index: Tensor
    digests: np.ndarray


def collected(levels: Leveled, items: Items, advance: Any = lambda n: None, most: int = MOST_ITEMS, **settings: Any) -> Found:
    """Returns the levels of all items, or of a sample of at most ``most`` where there are more, in their order.

    Args:
        levels: The levels of a batch.
        items: Items to read.
        advance: Called with the number of items of each batch.
        most: Largest number of items; fewer where they would take more than 256 MiB.
        **settings: See `vergence.evaluation.features.stream`.

    Raises:
        ValueError: None of the items could be read.
    """
    chosen = sample(len(items), max(1, min(most, MOST_BYTES // (4 * sum(levels.widths().values())))))
    part = items.subset(chosen)
    parts = list(_parts(levels, part, chosen, advance, settings))
    items.skipped += [one for one in part.skipped if one not in items.skipped]
    if not parts or not sum(len(index) for index, _, _ in parts):
        raise ValueError(f"none of the {len(items)} items could be read; give others")
    names = parts[0][1]
    return Found(
        levels={name: np.concatenate([found[name] for _, found, _ in parts]) for name in names},
        index=torch.cat([index for index, _, _ in parts]),
        digests=np.concatenate([marks for _, _, marks in parts]),
    )


def _parts(
    levels: Leveled, items: Items, chosen: Tensor, advance: Any, settings: dict[str, Any]
) -> Iterator[tuple[Tensor, Arrays, np.ndarray]]:
    def function(x: Tensor) -> tuple[Arrays, np.ndarray]:
        return {name: f.cpu().numpy() for name, f in levels(x).items()}, digests(x)

    for index, (found, marks) in features.stream(function, items, **settings):
        yield chosen[index], found, marks
        advance(len(index))


def sample(n: int, most: int) -> Tensor:
    """Returns the index of at most ``most`` of n items, in a random order where not all are taken."""
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most]
