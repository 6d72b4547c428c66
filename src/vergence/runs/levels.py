"""Levels of features of many items, in bounded memory; see `vergence.evaluation.levels`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, Skipped
from vergence.evaluation import features
from vergence.training.calibration import digests
from vergence.utils.parts import Parts

__all__ = ["MOST_ITEMS", "Arrays", "Found", "Leveled", "collected", "sample", "streamed"]

MOST_ITEMS, MOST_BYTES = 50_000, 256 << 20  # of the items whose levels are held, sampled at random
LEVEL = "level "  # before the name of a level, among columns
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


def collected(
    levels: Leveled,
    items: Items,
    advance: Any = lambda n: None,
    most: int = MOST_ITEMS,
    kept: Parts | None = None,
    **settings: Any,
) -> Found:
    """Returns the levels of all items, or of a sample of at most ``most`` where there are more, in their order.

    Args:
        levels: The levels of a batch.
        items: Items to read.
        advance: Called with the number of items of each batch.
        most: Largest number of items; fewer where they would take more than 256 MiB.
        kept: Parts that the levels are kept in, and taken from where an earlier call left some.
        **settings: See `vergence.evaluation.features.stream`.

    Raises:
        ValueError: None of the items could be read.
    """
    chosen = sample(len(items), max(1, min(most, MOST_BYTES // (4 * sum(levels.widths().values())))))

    def columns(x: Tensor) -> Arrays:
        return {"digest": digests(x), **{LEVEL + name: f.cpu().numpy() for name, f in levels(x).items()}}

    found = streamed(columns, items, chosen, advance, kept, **settings)
    if not len(found.get("index", ())):
        raise ValueError(f"none of the {len(items)} items could be read; give others")
    return Found(
        levels={name.removeprefix(LEVEL): f for name, f in found.items() if name.startswith(LEVEL)},
        index=torch.from_numpy(found["index"]),
        digests=found["digest"],
    )


def streamed(
    function: Callable[[Tensor], Arrays],
    items: Items,
    chosen: Tensor,
    advance: Any,
    kept: Parts | None = None,
    batch_size: int = 256,
    **settings: Any,
) -> Arrays:
    """Returns the columns that a function gives of the batches of some items, and ``index``, the index of each of these.

    Args:
        function: Columns of a batch of items (B, ...), each (B, ...).
        items: Items to read; those that cannot be read are listed in ``items.skipped``.
        chosen: Index of the items to read, (M,).
        advance: Called with the number of items of each batch.
        kept: Parts that the columns are kept in, and taken from where an earlier call left some.
        batch_size: Items at a time.
        **settings: See `vergence.evaluation.features.stream`.
    """
    start = 0 if kept is None else kept.done
    advance(start)
    part = items.subset(chosen[start:])
    before = len(part.skipped)
    rows: list[Arrays] = []
    seen, rest = before, len(part)
    for index, columns in features.stream(function, part, batch_size=batch_size, **settings):
        whole = {"index": (chosen[start:])[index].numpy(), **columns}
        size = min(batch_size, rest)
        if kept is None:
            rows.append(whole)
        else:
            kept.append(whole, size, [(one.name, one.reason) for one in part.skipped[seen:]])
        seen, rest = len(part.skipped), rest - size
        advance(len(index))
    listed = part.skipped if kept is None else [Skipped(*one) for one in kept.skipped]
    items.skipped += [one for one in listed if one not in items.skipped]
    if kept is not None:
        return kept.columns()
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]} if rows else {}


def sample(n: int, most: int) -> Tensor:
    """Returns the index of at most ``most`` of n items, in a random order where not all are taken."""
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most]
