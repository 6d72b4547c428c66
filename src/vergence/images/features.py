"""What `check` computes of each image, in worker processes: first without, then with what was learned of all of them.

Each file is read once: what later steps read, an image of at most ``size`` pixels, is kept in one temporary file.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.image_list import ImageList, LoadedImage
from vergence.data.items import Skipped
from vergence.data.numbers import planes, viewed
from vergence.data.pixels import resize
from vergence.images.codes import PooledCodes
from vergence.images.duplicates import small_image
from vergence.images.frozen import FrozenNetwork
from vergence.images.measurements import measure
from vergence.images.patches import PatchCells
from vergence.images.regions import OwnCells, ReferenceCells
from vergence.images.statistics import pixel_statistics
from vergence.report.tiles import image_of
from vergence.utils import terminal
from vergence.utils.digests import content_digest
from vergence.utils.dtypes import Array, Bytes, Floats, Ints, Singles
from vergence.utils.parts import Parts

__all__ = ["as_tensor", "shrunk"]

Row = dict[str, Any]
FILE = 5  # measurements that describe a file; the others describe what it shows
PART = 1024  # images whose rows are kept at a time
WHOLE, SIDE = 64, 32  # pixels per side of the whole image, and of a thumbnail
LONGEST = 8  # of the longer side to ``size``, at most
MOST_KEPT = 16 << 30  # bytes of the temporary file; images beyond it are read again
NETWORK = 1.25  # side of what a network sees, relative to ``size``
GRID = 32  # rows and columns of a heatmap
LEARNED = 300  # images that dictionaries are learned from, at most


def shrunk(pixels: Bytes, size: int) -> Bytes:
    """Returns a whole image (C, H, W) with a shorter side of at most ``size`` pixels; never enlarged, never cropped.

    Example:
        >>> shrunk(np.zeros((3, 480, 640), dtype=np.uint8), 256).shape
        (3, 256, 341)
    """
    height, width = pixels.shape[1:]
    scale = min(1.0, size / min(height, width), LONGEST * size / max(height, width))
    return pixels if scale == 1 else resized(pixels, max(1, round(scale * height)), max(1, round(scale * width)))


def resized(pixels: Bytes, height: int, width: int) -> Bytes:
    """Returns an image (C, H, W) as (C, height, width), with antialiasing."""
    from PIL import Image

    if len(pixels) not in (1, 3):
        return np.concatenate([resized(plane, height, width) for plane in planes(pixels)])
    small = image_of(pixels).resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.stack([np.asarray(band) for band in small.split()])


def as_tensor(pixels: Bytes) -> Tensor:
    """Returns an image (C, H, W) of bytes as (3, H, W) in [0, 1], as it is viewed."""
    return torch.from_numpy(viewed(pixels).astype(np.float32)).div_(255).expand(3, -1, -1)


@dataclass(frozen=True)
class FirstPass:
    """Digest, size, changes, measurements, statistics of the whole image, what duplicates are compared by, and the image."""

    size: int  # pixels of the shorter side of the image, at most
    judged: bool = True  # whether the image as a whole is described, too, for its score and its position on the map

    def __call__(self, image: LoadedImage) -> Row:
        """Returns the columns of an image."""
        pixels = viewed(image.pixels)
        table = measure(pixels)
        table[:2] = image.size
        row: Row = {"whole": np.zeros(0, dtype=np.float32), "thumbnail": np.zeros(0, dtype=np.uint8)}
        if self.judged:
            whole = np.broadcast_to(resized(pixels, WHOLE, WHOLE), (3, WHOLE, WHOLE))
            row["whole"] = pixel_statistics(torch.from_numpy(whole.copy())[None])[0].numpy()
            row["thumbnail"] = resized(whole, SIDE, SIDE).mean(0).ravel().astype(np.uint8)
        row |= {"digest": np.int64(image.digest), "changes": "; ".join(image.changes), "measurements": table}
        return row | {"small": small_image(pixels), "pixels": shrunk(image.pixels, self.size)}


class ArrayFile:
    """Arrays of any shapes in one temporary file, read by number, by other processes, too; it goes with the last reference."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="vergence-"))
        weakref.finalize(self, _removed, folder, os.getpid())
        self._file, self._end = folder / "arrays", 0
        self._place: dict[int, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, i: int) -> bool:
        return i in self._place

    def keep(self, i: int, x: Array) -> None:
        """Writes array i, while there is room."""
        if self._end + x.nbytes <= MOST_KEPT:
            with self._file.open("ab") as file:
                file.write(np.ascontiguousarray(x).data)
            self._place[i] = self._end, x.shape, x.dtype
            self._end += x.nbytes

    def read(self, i: int) -> Array:
        """Returns array i."""
        start, shape, dtype = self._place[i]
        with self._file.open("rb") as file:
            file.seek(start)
            return np.fromfile(file, dtype=dtype, count=int(np.prod(shape))).reshape(shape)


def _removed(folder: Path, process: int) -> None:
    """Removes a folder in the process that made it, not in its workers."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


class SmallImages:
    """Images of a source, the shorter side at most ``size`` pixels, in a temporary file; those that it lacks are read again."""

    def __init__(self, images: ImageList, size: int) -> None:
        self.source, self.size, self._kept, self._digest = images, size, ArrayFile(), dict[int, int]()

    def keep(self, i: int, pixels: Bytes, digest: int) -> None:
        """Writes image i, while there is room."""
        self._kept.keep(i, pixels)
        self._digest[i] = digest

    def read(self, i: int) -> LoadedImage:
        """Returns image i."""
        if i in self._kept:
            pixels = self._kept.read(i)
            return LoadedImage(pixels, pixels.shape[1:], self._digest[i])
        whole = self.source.read(i)
        return LoadedImage(shrunk(whole.pixels, self.size), whole.size, whole.digest, whole.changes)

    def image_list(self) -> ImageList:
        """Returns the same as `ImageList`, whose ``map`` reads them in worker processes."""
        small = ImageList(self.source.names, self.source.contents, folder=self.source.folder)
        small.reader = self.read
        return small


class PatchExtractor:
    """Features of the whole and of cells by dictionaries of patches of images, and perhaps an embedding (D,) of the whole."""

    names: tuple[str, ...] = ("details",)  # of the sets of cells
    whitening: tuple[float, ...] = (1e-4,)  # how much the covariance of each set's cells is shrunk before they are whitened
    banks: tuple[int, ...] = (3_000,)  # cells of the reference that those of each set are compared with, at most

    def __init__(self, images: Sequence[Tensor], embed: Callable[[Tensor], Tensor] | None = None) -> None:
        self.codes, self.cells, self.embed = PooledCodes(images), PatchCells(images), embed

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns features of the whole and of the cells of an image."""
        one = x[:1] if bool((x == x[:1]).all()) else x
        whole = self.codes(one)
        return whole if self.embed is None else torch.cat([self.embed(x).float(), whole]), [self.cells(one)]


class NetworkExtractor:
    """Features of the whole and of cells by a frozen network, and those by patches."""

    names: tuple[str, ...] = ("regions", "details")
    whitening: tuple[float, ...] = (1.0, 1e-4)  # cells of a network are standardized only
    banks: tuple[int, ...] = (10_000, 3_000)

    def __init__(self, images: Sequence[Tensor], network: FrozenNetwork, size: int) -> None:
        self.patches, self.network, self.side = PatchExtractor(images), network, round(NETWORK * size)
        self.size = size

    def features(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns features of the whole and of the cells of an image."""
        scale = min(1.0, self.size / min(x.shape[1:]))
        small = x if scale == 1 else resize(x[None], *(max(1, round(scale * side)) for side in x.shape[1:]))[0]
        (whole, cells), (codes, details) = self.network.features(x, self.side), self.patches.features(small)
        return torch.cat([whole, codes]), [cells, *details]


Extractor = PatchExtractor | NetworkExtractor


class _Tensors(Sequence[Tensor]):
    """Images as tensors in the order of their content, each read when it is asked for."""

    def __init__(self, sources: Sequence["ImageFeatures"], most: int) -> None:
        rows = sorted(((one, row) for one in sources for row in range(len(one))), key=lambda at: int(at[0].digest[at[1]]))
        self.rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(np.int64))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        source, row = self.rows[i]
        each = planes(source.pixels(row))
        return as_tensor(each[i % len(each)])


def extractor_of(
    sources: Sequence["ImageFeatures"], network: FrozenNetwork | None, embed: Callable[[Tensor], Tensor] | None, size: int
) -> Extractor:
    """Returns what gives features: dictionaries are learned from all sources together, so that no image is nearer to them."""
    images = _Tensors(sources, LEARNED)
    return PatchExtractor(images, embed) if network is None else NetworkExtractor(images, network, size)


def features_of(extractor: Extractor, pixels: Bytes) -> tuple[Tensor, list[Tensor]]:
    """Returns features of an image (C, H, W) of bytes; those of all channels of a stack, joined."""
    each = [extractor.features(as_tensor(plane)) for plane in planes(pixels)]
    cells = zip(*(cells for _, cells in each), strict=True)
    return torch.cat([whole for whole, _ in each]), list(map(torch.cat, cells))


@dataclass(frozen=True)
class SamplePass:
    """Features of the whole of an image, and of its cells as float16."""

    extractor: Extractor

    def __call__(self, image: LoadedImage) -> tuple[Singles, list[npt.NDArray[np.float16]]]:
        """Returns the features of an image."""
        whole, cells = features_of(self.extractor, image.pixels)
        return whole.numpy(), [part.half().numpy() for part in cells]


@dataclass(frozen=True)
class RegionPass:
    """Features of the whole of an image, and of each of S sets of cells scores and a heatmap."""

    extractor: Extractor  # what gives features
    regions: Sequence[OwnCells | ReferenceCells]  # what judges each set of cells
    fold: Mapping[int, int]  # fold of an image by its digest; all others are new

    def __call__(self, image: LoadedImage) -> Row:
        """Returns the row of an image."""
        whole, cells = features_of(self.extractor, image.pixels)
        return {"vector": whole.numpy(), **self.judged(cells, image.digest)}

    def judged(self, cells: Sequence[Tensor], digest: int) -> Row:
        """Returns what the cells of an image say."""
        fold, last = self.fold.get(digest, -1), cells[-len(self.regions) :]
        each = [one.scores(part, fold) for one, part in zip(self.regions, last, strict=True)]
        heatmap = np.stack([on_grid(m) for _, m in each])
        return {"scores": np.stack([s for s, _ in each]), "heatmap": heatmap}


def on_grid(m: Floats) -> Singles:
    """Returns a heatmap (r, c) as (32, 32): the nearest value where it is smaller, the largest of a cell where it is larger."""
    x = torch.from_numpy(np.asarray(m, dtype=np.float32))[None, None]
    grown = F.interpolate(x, size=[max(GRID, side) for side in m.shape], mode="nearest-exact")
    return np.asarray(F.adaptive_max_pool2d(grown, (GRID, GRID))[0, 0].numpy())


def rows_of(
    function: Callable[[LoadedImage], Row],
    images: ImageList,
    index: Sequence[int],
    workers: int,
    label: str,
    kept: Parts | None = None,
    each: Callable[[int, Row], None] = lambda i, row: None,
    unit: str = "images",
) -> dict[str, Array]:
    """Returns what a function gives of each image of an index that can be read, by column, with its number as ``index``.

    Worker processes compute it; ``kept`` are parts of an earlier call that was stopped; ``each`` sees every row first.
    """
    np.empty(31 << 20, dtype=np.uint8)  # a large block that is freed raises glibc's thresholds: memory of images is used again
    done = 0 if kept is None else kept.done
    before = [] if kept is None else kept.skipped
    images.skipped += [Skipped(*pair) for pair in before if Skipped(*pair) not in images.skipped]
    columns: list[dict[str, Array]] = []
    with terminal.bar(label, len(index), unit, late=True) as advance:
        advance(done)
        for start in range(done, len(index), PART):
            part, seen, rows = index[start : start + PART], len(images.skipped), []
            for i, row in images.map(function, part, workers):
                each(i, row)
                rows.append({"index": np.int64(i), **row})
                advance()
            if rows:
                columns.append({name: np.array([row[name] for row in rows]) for name in rows[0]})
            if kept is not None and rows:
                new = [(one.name, one.reason) for one in images.skipped[seen:]]
                kept.append(columns.pop(), len(part), new)
    if kept is not None:
        return kept.columns()
    return {name: np.concatenate([part[name] for part in columns]) for name in columns[0]} if columns else {}


def stamp(images: ImageList) -> str:
    """Returns a text that changes with the names, sizes and times of the files of images, and with what their numbers mean."""
    state = hashlib.blake2b(f"{images.meaning} {images.channel}\0".encode(), digest_size=16)
    for i, name in enumerate(images.names):
        path = images.path(i)
        try:
            about = path.stat() if path is not None else None
        except OSError:
            about = None
        state.update(f"{name}\0{about and (about.st_size, about.st_mtime_ns)}\0".encode(errors="surrogateescape"))
    return state.hexdigest()


@dataclass(frozen=True)
class ImageFeatures:
    """What the first pass over N items gave; of vectors alone only their names and digests."""

    index: Ints  # their number in the source, (N,)
    names: Sequence[str]  # their names
    vectors: Floats | None  # vectors (N, D) that were given; None for none
    digest: Ints  # digests of their content, (N,)
    changes: Array  # what was done to each so that it looks as in a viewer
    measurements: Floats  # table (N, M) of `vergence.images.measurements.measure`
    whole: Singles  # statistics of each as a whole, (N, 115), or (N, 0) where nothing is judged
    small: Bytes  # what candidates for duplicates are found by, (N, ...)
    thumbnail: Bytes  # gray values of each as a whole, (N, 1024), or (N, 0)
    images: SmallImages | None = None  # the images themselves; None of vectors
    groups: Sequence[str] | None = None  # which part, camera, ... and which label each belongs to; None for none
    labels: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def pixels(self, row: int) -> Bytes:
        """Returns the image of a row at the size that later steps read; one that has gone is plain."""
        assert self.images is not None
        try:
            return self.images.read(int(self.index[row])).pixels
        except ValueError:
            return np.zeros((1, 8, 8), dtype=np.uint8)

    def read(self, row: int) -> Bytes:
        """Returns the same in 1 or 3 channels."""
        return viewed(self.pixels(row))

    @classmethod
    def of_vectors(cls, names: Sequence[str], x: Floats) -> "ImageFeatures":
        """Returns items that are vectors (N, D)."""
        n, rows = len(x), np.ascontiguousarray(x, dtype=np.float32)
        digest = [int.from_bytes(content_digest(row.tobytes()), "big", signed=True) for row in rows]
        empty = np.zeros((n, 0))
        small = empty.astype(np.uint8)
        return cls(np.arange(n), names, x, np.array(digest), np.full(n, ""), empty, empty.astype(np.float32), small, small)
