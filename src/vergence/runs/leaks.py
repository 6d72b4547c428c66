"""Leaks: items of one source that are copies or near-duplicates of items of another, such as test images of training images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.data.pixels import fit
from vergence.detection import thumbnail_leaks, thumbnails
from vergence.runs.levels import Arrays, streamed
from vergence.training.calibration import MOST_COMPARED, digests

__all__ = ["leaked", "near_compared"]

SMALLEST = 4  # pixels a side of images whose thumbnails are compared


def leaked(items: Items, other: Items, advance: Any = lambda n: None, **settings: Any) -> dict[str, str]:
    """Returns the items of which another source has a copy or a near-duplicate: the name there, by the name of the item.

    Images of the other source are brought to the shape of the items and compared by thumbnails
    (`vergence.detection.thumbnail_leaks`). Vectors, images of less than 4 pixels, and sources of more than 100,000 images are
    searched for equal items alone.

    Args:
        items: Items (N) that may have leaked.
        other: The other source, for instance training items.
        advance: Called with the number of items of each batch, of both sources.
        **settings: See `vergence.evaluation.features.stream`.

    Raises:
        ValueError: The items of the two sources are of different kinds or widths.

    Example:
        >>> from vergence.data.items import ArrayItems
        >>> leaked(ArrayItems(torch.eye(3)[1:]), ArrayItems(torch.eye(3)[:2]))
        {'0': '1'}
    """
    if len(items.shape) != len(other.shape) or (len(items.shape) != 3 and items.shape != other.shape):
        raise ValueError(f"expected two sources of one kind, found items of shape {items.shape} and {other.shape}; name another")
    compared = near_compared(items, other)

    def columns(x: Tensor) -> Arrays:
        if len(items.shape) == 3 and tuple(x.shape[1:]) != items.shape:
            x = fit(x, items.shape)
        small = {"thumbnail": thumbnails(x).cpu().numpy()} if compared else {}
        return {"digest": digests(x), **small}

    a, b = (streamed(columns, one, torch.arange(len(one)), advance, **settings) for one in (other, items))
    if not len(a.get("index", ())) or not len(b.get("index", ())):
        return {}
    pairs = _equal(a["digest"], b["digest"])
    if compared:  # the most similar pair of each item is the first
        pairs = np.concatenate([pairs, thumbnail_leaks(*(torch.from_numpy(one["thumbnail"]) for one in (a, b))).pairs])
    return {items.names[b["index"][j]]: other.names[a["index"][i]] for i, j in reversed(pairs.tolist())}


def near_compared(items: Items, other: Items) -> bool:
    """Returns whether near-duplicates between two sources are looked for, not equal items alone."""
    images = len(items.shape) == 3 and items.shape[0] in (1, 3) and min(items.shape[1:]) >= SMALLEST
    return images and max(len(items), len(other)) <= MOST_COMPARED


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns for each entry of b that is among those of a the pair of its first place there and its own, (P, 2)."""
    values, first = np.unique(a, return_index=True)
    place = np.minimum(np.searchsorted(values, b), len(values) - 1)
    mine = np.flatnonzero(values[place] == b)
    return np.stack([first[place[mine]], mine], 1)
