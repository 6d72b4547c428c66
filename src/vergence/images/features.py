"""What `check` computes of each picture, in worker processes: first without, then with what was learned of all of them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.data.items import Skipped
from vergence.data.numbers import planes, viewed
from vergence.data.pictures import Picture, Pictures
from vergence.images.duplicates import small_image
from vergence.images.frozen import FrozenNetwork
from vergence.images.measurements import measure
from vergence.images.regions import NEW, CellModel, region_score, some_cells
from vergence.images.statistics import pixel_statistics
from vergence.utils import terminal
from vergence.utils.digests import content_digest
from vergence.utils.parts import Parts

__all__ = ["shrunk"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Row = dict[str, Any]
FILE = 5  # measurements that describe a file; the others describe what it shows
PART = 1024  # pictures whose rows are kept at a time
WHOLE = 64  # pixels a side of the whole picture
LONGEST = 8  # of the longer side to ``size``, at most


class LocalFeatures(Protocol):
    """What gives features of the places of a picture, and perhaps an embedding of the whole."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns features (D, r, c) of a picture (3, H, W) in [0, 1]."""


def shrunk(pixels: Bytes, size: int) -> Bytes:
    """Returns a whole picture (C, H, W) with a shorter side of at most ``size`` pixels; never enlarged, never cropped.

    Example:
        >>> shrunk(np.zeros((3, 480, 640), dtype=np.uint8), 256).shape
        (3, 256, 341)
    """
    height, width = pixels.shape[1:]
    scale = min(1.0, size / min(height, width), LONGEST * size / max(height, width))
    return pixels if scale == 1 else resized(pixels, max(1, round(scale * height)), max(1, round(scale * width)))


def resized(pixels: Bytes, height: int, width: int) -> Bytes:
    """Returns a picture (C, H, W) as (C, height, width), with antialiasing."""
    from PIL import Image

    if len(pixels) not in (1, 3):
        return np.concatenate([resized(plane, height, width) for plane in planes(pixels)])
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    small = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))
    return small[None] if small.ndim == 2 else np.ascontiguousarray(small.transpose(2, 0, 1))


def as_tensor(pixels: Bytes) -> Tensor:
    """Returns a picture (C, H, W) of bytes as (3, H, W) in [0, 1], as it is viewed."""
    return torch.from_numpy(viewed(pixels).astype(np.float32)).div_(255).expand(3, -1, -1)


class FirstPass:
    """Digest, size, changes, measurements, statistics of the whole picture, and what copies are compared by."""

    def __call__(self, picture: Picture) -> Row:
        """Returns what is told of a picture by column."""
        pixels = viewed(picture.pixels)
        table = measure(pixels)
        table[:2] = picture.size
        whole = np.broadcast_to(resized(pixels, WHOLE, WHOLE), (3, WHOLE, WHOLE))
        return {
            "digest": np.int64(picture.digest),
            "changes": "; ".join(picture.changes),
            "measurements": table,
            "whole": pixel_statistics(torch.from_numpy(whole.copy())[None])[0].numpy(),
            "small": small_image(pixels),
        }


@dataclass(frozen=True)
class SamplePass:
    """A picture of a sample, as ``features`` see it: pixels of at most ``size``, or some cells where there are features."""

    size: int
    features: LocalFeatures | None = None
    pictures: int = 1

    def __call__(self, picture: Picture) -> Any:
        """Returns the pixels, or the cells."""
        pixels = shrunk(picture.pixels, self.size)
        return pixels if self.features is None else some_cells(self.features(as_tensor(pixels)), self.pictures)


@dataclass(frozen=True)
class RegionPass:
    """Score and largest value of the map of a picture, its mean features, and where the map is largest.

    Attributes:
        size: Pixels of the shorter side, at most.
        features: What gives features of places.
        model: What scores cells.
        fold: Fold of a picture by its digest; all others are new.
        embed: What gives an embedding (D,) of a picture (3, H, W) in [0, 1], where the features give none.
    """

    size: int
    features: LocalFeatures
    model: CellModel
    fold: dict[int, int]
    embed: Callable[[Tensor], Tensor] | None = None

    def map(self, picture: Picture) -> tuple[npt.NDArray[np.float64], Tensor]:
        """Returns the map (r, c) of a picture, and its embedding (D,): by default the mean features of its cells."""
        x = as_tensor(shrunk(picture.pixels, self.size))
        if isinstance(self.features, FrozenNetwork):
            cells, z = self.features.places_and_embedding(x)
        else:
            cells = self.features(x)
            z = cells.mean((1, 2)) if self.embed is None else self.embed(x)
        return self.model.map(cells, self.fold.get(picture.digest, NEW)), z

    def __call__(self, picture: Picture) -> Row:
        """Returns what the map of a picture says."""
        m, z = self.map(picture)
        r, c = np.unravel_index(int(m.argmax()), m.shape)
        place = np.array([(r + 0.5) / m.shape[0], (c + 0.5) / m.shape[1]])
        return {"places": region_score(m), "largest": float(m.max()), "place": place, "embedding": z.float().numpy()}


def rows_of(
    function: Callable[[Picture], Row],
    pictures: Pictures,
    index: Sequence[int],
    workers: int,
    label: str,
    kept: Parts | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Returns what a function gives of each picture of an index that can be read, by column, with its number as ``index``.

    Worker processes compute it; ``kept`` are parts of an earlier call that was stopped.
    """
    done = 0 if kept is None else kept.done
    before = [] if kept is None else kept.skipped
    pictures.skipped += [Skipped(*pair) for pair in before if Skipped(*pair) not in pictures.skipped]
    columns: list[dict[str, npt.NDArray[Any]]] = []
    with terminal.bar(label, len(index), late=True) as advance:
        advance(done)
        for start in range(done, len(index), PART):
            part, seen, rows = index[start : start + PART], len(pictures.skipped), []
            for i, row in pictures.map(function, part, workers):
                rows.append({"index": np.int64(i), **row})
                advance()
            if rows:
                columns.append({name: np.array([row[name] for row in rows]) for name in rows[0]})
            if kept is not None and rows:
                new = [(one.name, one.reason) for one in pictures.skipped[seen:]]
                kept.append(columns.pop(), len(part), new)
    if kept is not None:
        return kept.columns()
    return {name: np.concatenate([part[name] for part in columns]) for name in columns[0]} if columns else {}


def stamp(pictures: Pictures) -> str:
    """Returns a text that changes with the names, sizes and times of the files of pictures, and with what their numbers mean."""
    state = hashlib.blake2b(f"{pictures.meaning} {pictures.channel}\0".encode(), digest_size=16)
    for i, name in enumerate(pictures.names):
        path = pictures.path(i)
        try:
            about = path.stat() if path is not None else None
        except OSError:
            about = None
        state.update(f"{name}\0{about and (about.st_size, about.st_mtime_ns)}\0".encode(errors="surrogateescape"))
    return state.hexdigest()


@dataclass(frozen=True)
class ImageFeatures:
    """What the first look at N items told; of vectors alone only their names and digests.

    Attributes:
        index: Their number in the source, (N,).
        names: Their names.
        vectors: Vectors (N, D) that were given; None for none.
        digest: Digests of their content, (N,).
        changes: What was done to each so that it looks as in a viewer.
        measurements: Table (N, M) of `vergence.images.measurements.measure`.
        whole: Statistics of each as a whole, (N, 115).
        small: What copies are compared by, (N, ...).
    """

    index: Ints
    names: Sequence[str]
    vectors: Floats | None
    digest: Ints
    changes: npt.NDArray[Any]
    measurements: Floats
    whole: npt.NDArray[np.float32]
    small: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of_vectors(cls, names: Sequence[str], x: Floats) -> "ImageFeatures":
        """Returns items that are vectors (N, D)."""
        n, rows = len(x), np.ascontiguousarray(x, dtype=np.float32)
        digest = [int.from_bytes(content_digest(row.tobytes()), "big", signed=True) for row in rows]
        empty = np.zeros((n, 0))
        return cls(
            np.arange(n), names, x, np.array(digest), np.full(n, ""), empty, empty.astype(np.float32), empty.astype(np.uint8)
        )

    def levels(self) -> dict[str, Floats]:
        """Returns features (N, D) by the name of their level."""
        levels = {"measurements": self.measurements[:, FILE:], "whole": self.whole.astype(np.float64)}
        return levels if self.vectors is None else {**levels, "vectors": self.vectors}
