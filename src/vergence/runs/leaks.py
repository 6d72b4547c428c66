"""Leaks: items of one source that are copies or near-duplicates of items of another, such as test images of training images."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.data.pixels import fit
from vergence.detection import thumbnail_leaks, thumbnails
from vergence.runs.levels import Arrays, streamed
from vergence.training.calibration import MOST_COMPARED, digests

__all__ = ["Leaks", "leaked"]

SMALLEST = 4  # pixels a side of images whose thumbnails are compared
KINDS = (1, 3)  # channels of images that can be compared with each other
EQUAL = "only equal items are looked for"
NEAR = "mirrored copies and quarter turns are found; otherwise turned and cropped copies are not looked for"


@dataclass(frozen=True)
class Leaks:
    """What two sources share.

    Attributes:
        names: Name in the other source, by the name of the item that equals it or nearly so.
        scope: Which copies were looked for.
        notes: What was not compared.
    """

    names: dict[str, str]
    scope: str
    notes: tuple[str, ...] = ()


def leaked(items: Items, other: Items, advance: Any = lambda n: None, **settings: Any) -> Leaks:
    """Returns the items of which another source has a copy or a near-duplicate.

    Images of the other source are brought to the shape of the items, both to gray where one is, and compared by thumbnails, as
    they are, mirrored and turned (`vergence.detection.thumbnail_leaks`). Among vectors, images of less than 4 pixels a side, and
    sources of more than 100,000 images, equal items alone are found.

    Args:
        items: Items (N) that may have leaked.
        other: The other source, for instance training items.
        advance: Called with the number of items of each batch, of both sources.
        **settings: See `vergence.evaluation.features.stream`.

    Raises:
        ValueError: The items of the two sources are of different kinds or widths.

    Example:
        >>> from vergence.data.items import ArrayItems
        >>> leaked(ArrayItems(torch.eye(3)[1:]), ArrayItems(torch.eye(3)[:2])).names
        {'0': '1'}
    """
    shape = _common_shape(items.shape, other.shape)
    images = len(shape) == 3 and shape[0] in KINDS
    compared = images and min(shape[1:]) >= SMALLEST and max(len(items), len(other)) <= MOST_COMPARED

    def columns(x: Tensor) -> Arrays:
        x = fit(x, shape) if tuple(x.shape[1:]) != shape else x
        small = {"thumbnail": thumbnails(x).cpu().numpy()} if compared else {}
        return {"digest": digests(x), **small}

    a, b = (streamed(columns, one, torch.arange(len(one)), advance, **settings) for one in (other, items))
    scope = NEAR if compared else EQUAL
    notes = [f"{len(other.skipped):,} of {len(other):,} other items cannot be read, and were not compared"] * bool(other.skipped)
    if not len(a.get("index", ())) or not len(b.get("index", ())):
        return Leaks({}, scope, tuple(notes))
    pairs = _equal(a["digest"], b["digest"])
    if compared:
        near, note = _near(a["thumbnail"], b["thumbnail"], np.setdiff1d(np.arange(len(b["index"])), pairs[:, 1]))
        pairs, notes = np.concatenate([pairs, near]), [*notes, *note]
    elif images:
        notes.append(
            f"only equal images were looked for in both sources: images are below {SMALLEST} pixels a side, or one source has "
            f"more than {MOST_COMPARED:,}"
        )
    found = {items.names[b["index"][j]]: other.names[a["index"][i]] for i, j in reversed(pairs.tolist())}  # the most similar one
    return Leaks(found, scope, tuple(notes))


def _common_shape(mine: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape that items of two sources are compared in: the first one's, gray where one source is."""
    if len(mine) == len(other) == 3 and mine[0] in KINDS and other[0] in KINDS:
        return (min(mine[0], other[0]), *mine[1:])
    if mine != other:
        raise ValueError(f"expected two sources of one kind, found items of shape {mine} and {other}; name another")
    return mine


def _near(a: np.ndarray, b: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns the pairs (P, 2) of near-duplicates between thumbnails a and those of b that ``rest`` names, and notes."""
    none = np.zeros((0, 2), dtype=np.int64)
    if not len(rest):
        return none, []
    try:
        found = thumbnail_leaks(torch.from_numpy(a), torch.from_numpy(b[rest]), turned=True).pairs
    except ValueError as error:
        return none, [f"near-duplicates in both sources were not looked for: {error}"]
    return np.stack([found[:, 0], rest[found[:, 1]]], 1), []


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns for each entry of b that is among those of a the pair of its first place there and its own, (P, 2)."""
    values, first = np.unique(a, return_index=True)
    place = np.minimum(np.searchsorted(values, b), len(values) - 1)
    mine = np.flatnonzero(values[place] == b)
    return np.stack([first[place[mine]], mine], 1)
