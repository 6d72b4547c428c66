"""Images of any size and source, read one by one as a viewer shows them; what cannot be read is listed, never lost.

Numbers mean the same in all images of a source: a sample of them decides what is shown as 0 to 255.

Shapes: an image (C, H, W) uint8, C = 1 (gray by its format), 3 (color), or the channels of a stack.
"""

import contextlib
import functools
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vergence.data import images as decoding
from vergence.data.arrays import ARRAY_KEYS, NAME_KEYS, ON_DISK, channels_first, checked_names, read_arrays
from vergence.data.images import written_name
from vergence.data.items import Array, Items, Skipped
from vergence.data.numbers import Numbers, stated_range
from vergence.data.shards import EncodedImages, holds_bytes, is_sharded, name_column, open_shards
from vergence.data.sources import as_source, from_object, is_object, open_items
from vergence.data.table_files import is_table_file, read_table
from vergence.data.tables import as_table
from vergence.utils.checks import expect, shown
from vergence.utils.digests import content_digest

__all__ = ["ImageList", "LoadedImage", "open_images"]

T = TypeVar("T")

LARGE = 4 << 20  # pixels, above which a file is read reduced
LONG_SIDE = 1600  # pixels of the longer side that are kept at least
TOGETHER = 16  # images that a worker reads at a time
SAMPLED = 64  # images that decide what the numbers of a source mean, at most
MOST_CHANNELS = 16  # of an image that are read
EIGHT_BIT = (".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp")  # files that cannot hold other numbers than bytes
COLORS = {"r": 0, "red": 0, "g": 1, "green": 1, "b": 2, "blue": 2}
ARRAYS, TARS = (".npy", ".npz"), (".tar", ".tgz", ".gz")
MOST_UNPACKED = 1 << 30  # bytes of a compressed tar that are held
IMAGES = "a folder, a file, a list of paths, PIL images or arrays, a table with a column of images, or a tar"
AGAIN = "named before, and read once"  # reason of a file that is named several times


@dataclass(frozen=True)
class LoadedImage:
    """One image.

    The digest is of all samples as they are stored and of the size, so that equal samples in several encodings have one; of a
    reduced file it is that of its bytes.
    """

    pixels: Array  # uint8 (C, H, W), the whole image; of a file of more than four million pixels a reduced one
    size: tuple[int, int]  # height and width in full
    digest: int  # 64 bits
    changes: tuple[str, ...] = ()  # what was done so that it appears as in a viewer


@dataclass(eq=False)
class ImageList:
    """Images by number, read when they are asked for, by this process or by workers.

    Attributes:
        names: Of the images (N,).
        contents: Of each image a path, bytes, an array (C, H, W), a PIL image, or a function that returns one of these.
        skipped: Files that were left out, and why.
        channel: The one that is judged, from 0 or by a color's name; None for all.

    Example:
        >>> images = ImageList(["a"], [np.zeros((1, 4, 6), dtype=np.uint8)])
        >>> images.read(0).size
        (4, 6)
    """

    names: Sequence[str]
    contents: Sequence[Any]
    skipped: list[Skipped] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)  # number of files that are not images, by ending
    folder: Path | None = None  # where the files are
    stated: tuple[float, float] | None = None  # range that is shown as 0 to 255; None for what a sample decides
    channel: int | str | None = None
    like: "ImageList | None" = None  # images whose numbers mean the same, and decide
    reader: Callable[[int], LoadedImage] | None = None  # of image i instead of its content, from a cache for instance
    columns: dict[str, list[Any]] = field(default_factory=dict)  # other columns of the table that they come from

    def __len__(self) -> int:
        return len(self.names)

    def path(self, i: int) -> Path | None:
        """Returns the path of an image that is a file."""
        content = self.contents[i]
        return content if isinstance(content, Path) else None

    @property
    def paths(self) -> list[Path | None]:
        """The paths of all images."""
        return [self.path(i) for i in range(len(self))]

    def bytes_of(self, i: int) -> int:
        """Returns the bytes of the file of an image; 0 where there is none."""
        content = self.contents[i]() if callable(self.contents[i]) else self.contents[i]
        if isinstance(content, Path):
            return content.stat().st_size if content.is_file() else 0
        return len(content) if isinstance(content, bytes) else 0

    def read(self, i: int) -> LoadedImage:
        """Returns an image; a ValueError says in one line why it cannot be read."""
        if self.reader is not None:
            return self.reader(i)
        numbers, channels = self.meaning
        try:
            samples = _samples(self.contents[i], self.names[i])
            values = self._chosen(samples.values)
            if self.channel is None and _stacked(values) != channels:
                raise ValueError(f"{len(values)} channels, where others have {_in_words(channels)}")
            pixels, changes = numbers.shown(values)
            return LoadedImage(np.ascontiguousarray(pixels), samples.size, samples.digest, (*samples.changes, *changes))
        except decoding.UNREADABLE as error:
            raise ValueError(decoding.reason(error)) from None

    def _chosen(self, x: Array) -> Array:
        """Returns the channel that is judged of samples (C, H, W), or all of them."""
        if (channel := self.channel) is None:
            return x
        place = channel if isinstance(channel, int) else COLORS[channel] if len(x) == 3 else len(x)
        if place >= len(x):
            raise ValueError(f"no channel {channel} among {len(x)}")
        return x[place : place + 1]

    @functools.cached_property
    def meaning(self) -> tuple[Numbers, int]:
        """What the numbers mean, and how many channels a stack has (0 for gray and color), by a sample of the images."""
        likely = [i for i, name in enumerate(self.names) if not (self.path(i) and name.lower().endswith(EIGHT_BIT))]
        values, names = [], {} if self.like is None else {self.like.meaning[1]: "the reference"}
        for i in dict.fromkeys(np.linspace(0, len(likely) - 1, SAMPLED).astype(int).tolist() if likely else ()):
            try:
                x = _glance(self.contents[likely[i]], self.names[likely[i]])
                names.setdefault(_stacked(x), self.names[likely[i]])
                values.append(self._chosen(x))
            except decoding.UNREADABLE:
                continue
        found = " and ".join(f"{_in_words(n)} in {name}" for n, name in list(names.items())[:2])
        one, numbers = len(names) < 2 or self.channel is not None, Numbers.of(values)
        expect(one, "one number of channels", found, "give them apart, or name a `channel`")
        numbers = replace(numbers if self.like is None else self.like.meaning[0].filled(numbers), stated=self.stated)
        return numbers, next(iter(names), 0)

    def map(self, function: Callable[[LoadedImage], T], index: Sequence[int], workers: int = 0) -> Iterator[tuple[int, T]]:
        """Yields i and what a function gives of image i, in order of an index; worker processes compute it, or this one for 0.

        Images that cannot be read are added to ``skipped``.
        """
        _ = self.reader or self.meaning  # once, before processes begin
        parts = torch.tensor(list(index), dtype=torch.int64).split(TOGETHER) if len(index) else ()
        work = functools.partial(self._some, function)
        known = set(self.skipped)
        few = workers == 0 or len(index) <= TOGETHER
        for done, skipped in map(work, (part.numpy() for part in parts)) if few else decoding.parallel(work, parts, workers):
            self.skipped += [one for one in skipped if one not in known]
            known.update(skipped)
            yield from done

    def _some(self, function: Callable[[LoadedImage], T], index: Array) -> tuple[list[tuple[int, T]], list[Skipped]]:
        done, skipped = [], []
        for i in index.tolist():
            try:
                image = self.read(i)
            except ValueError as error:
                skipped.append(Skipped(self.names[i], str(error)))
            else:
                done.append((i, function(image)))
        return done, skipped


# Samples of one image


@dataclass(frozen=True)
class _Samples:
    """An image before its numbers are shown: (C, H, W) of any type, its size in full, its digest and what was done."""

    values: Array
    size: tuple[int, int]
    digest: int
    changes: Sequence[str] = ()


def _stacked(x: Array) -> int:
    """Returns the number of channels of a stack; 0 for gray and color, which may stand side by side."""
    return 0 if len(x) in (1, 3) else len(x)


def _in_words(channels: int) -> str:
    return str(channels or "1 or 3")


def _glance(content: Any, name: str) -> Array:
    """Returns the samples of an image; of a file that holds bytes alone, which need no range, one that stands for them."""
    content = content() if callable(content) else content
    if isinstance(content, bytes | Path):
        with opened(content, name) as image:
            if image.mode != "F" and not image.mode.startswith("I") and _frames(image) == 1:
                return np.zeros((1 if image.mode == "L" else 3, 1, 1), dtype=np.uint8)
    return _samples(content, name).values


@contextlib.contextmanager
def opened(content: bytes | Path, name: str) -> Iterator[Any]:
    ending = os.path.splitext(name)[1]  # noqa: PTH122
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    with decoding.time_limit(decoding.DECODE_SECONDS), decoding.opened_image(file, ending) as image:
        yield image


def _samples(content: Any, name: str) -> _Samples:
    """Returns the samples of the image that a content is."""
    from PIL import Image

    content = content() if callable(content) else content
    if isinstance(content, np.ndarray):
        cut = [f"first {MOST_CHANNELS} of {len(content)} channels"] if len(content) > MOST_CHANNELS else []
        return _Samples(content[:MOST_CHANNELS], content.shape[1:], _digest(content), cut)
    if isinstance(content, Image.Image):
        return _of_image(content.copy(), None)
    with opened(content, name) as image:
        return _of_image(image, content)


def _of_image(image: Any, content: bytes | Path | None) -> _Samples:
    """Returns the samples of an opened image, reduced where it is large."""
    height, width = image.height, image.width
    large = width * height > LARGE and content is not None
    if large:
        scale = max(1, max(width, height) // LONG_SIDE)
        image.draft(None, (width // scale, height // scale))
    factor = max(image.size) // LONG_SIDE if large else 1
    n = _frames(image)
    changes = [decoding.FIRST_FRAME] if n == 1 and decoding.is_animated(image) else []
    changes += [f"first {MOST_CHANNELS} of {n} frames"] if n > MOST_CHANNELS else []
    planes, stored = [], []
    for k in range(min(n, MOST_CHANNELS)):
        if k:
            image.seek(k)
        plain, raw, done = decoding.as_stored(image)
        if plain.size != image.size and k == 0:  # turned upright by a quarter
            width, height = height, width
        changes += done if k == 0 else []
        planes.append(_channels((plain.convert("I") if ";" in plain.mode else plain).reduce(factor) if factor > 1 else plain))
        stored.append(planes[-1] if raw is plain else _channels(raw))
    x = np.concatenate(planes)
    if content is None or (x.shape[1:] == (height, width) and decoding.UPPER_BITS not in changes and n <= MOST_CHANNELS):
        return _Samples(x, (height, width), _digest(np.concatenate(stored)), changes)
    digest = content_digest(content if isinstance(content, bytes) else content.read_bytes())
    return _Samples(x, (height, width), int.from_bytes(digest, "big", signed=True), changes)


def _frames(image: Any) -> int:
    """Returns the number of frames of a TIFF that are channels: in gray, of one size and type; 1 for other images."""
    if image.format != "TIFF" or not decoding.is_animated(image) or not (image.mode in ("L", "F") or image.mode.startswith("I")):
        return 1
    first, n, same = (image.mode, image.size), image.n_frames, True
    for k in range(1, min(n, MOST_CHANNELS)):
        image.seek(k)
        same &= (image.mode, image.size) == first
    image.seek(0)
    return n if same else 1


def _channels(image: Any) -> Array:
    """Returns a PIL image as (C, H, W), in memory of its own."""
    return np.stack([np.array(band) for band in (image.split() if len(image.getbands()) > 1 else (image,))])


def _digest(x: Array) -> int:
    """Returns the digest of samples (C, H, W); gray bytes have that of three equal channels."""
    x = x * np.uint8(255) if x.dtype.kind == "b" else x
    if x.dtype == np.uint8 and len(x) in (1, 3):
        gray = len(x) == 1 or (np.array_equal(x[0], x[1]) and np.array_equal(x[0], x[2]))
        digest = content_digest(str(x.shape[1:]).encode(), (x[:1] if gray else x).tobytes())
    else:
        kind = {"u": "<i8", "i": "<i8", "f": "<f8"}[x.dtype.kind] if x.dtype != np.uint8 else "u1"
        digest = content_digest(f"{kind} {x.shape}".encode(), x.astype(kind).tobytes())
    return int.from_bytes(digest, "big", signed=True)


# Sources


def open_images(
    source: Any,
    *,
    root: str | None = None,
    column: str | None = None,
    range: str | Sequence[float] | None = None,
    channel: str | int | None = None,
    like: ImageList | None = None,
) -> ImageList:
    """Returns the images of a source; nothing is decoded yet.

    Args:
        source: A folder of any depth, a file, a list of paths, of PIL images or of arrays, an array (N, H, W[, C]) or
            (N, C, H, W) of any number type, a ``.npy`` or ``.npz`` of one, a ``.parquet`` or ``.csv`` with a column of paths or
            of encoded bytes, a tar, the name of a built-in set, or items of this library.
        root: Folder of torchvision's data sets.
        column: Column of a table that holds the images; needed where several could.
        range: Numbers that are shown as 0 and 255, such as ``(0, 4095)``; by default a sample of the images decides.
        channel: Number of the one channel that is read, from 0, or ``red``, ``green`` or ``blue``; all by default.
        like: ImageList whose numbers decide: those that these are compared with.

    Example:
        >>> len(open_images(np.zeros((5, 8, 8, 3), dtype=np.uint8)))
        5
    """
    number = int(channel) if isinstance(channel, str) and channel.isdecimal() else channel
    valid = number is None or number in COLORS or (isinstance(number, int) and number >= 0)
    expect(valid, "a channel: a number from 0, or red, green or blue", channel, "name another `channel`")
    images = _of_source(source, root, column)
    images.stated, images.channel, images.like = stated_range(range), number, like
    return images


def _of_source(source: Any, root: str | None, column: str | None) -> ImageList:
    if is_object(source):
        return _of_object(source, column)
    path = Path(source).expanduser()
    if is_sharded(str(source)) and not path.is_file():
        return _of_items(open_shards(str(source), shape=(3, 1, 1)).items, str(source))
    if path.is_dir():
        names, skipped, ignored = decoding.images_below(path)
        others = f"none, and {sum(ignored.values()):,} other files" if ignored else "none"
        expect(names, f"images in {path}", others, "name a folder that holds some")
        return ImageList([written_name(name) for name in names], [path / name for name in names], skipped, ignored, path)
    if path.is_file():
        ending = path.suffix.lower()
        if is_table_file(path):
            return _of_table(read_table(path), path.parent, column, str(path))
        if ending in TARS:
            return _of_tar(path)
        if ending not in ARRAYS:
            return ImageList([written_name(path.name)], [path], folder=path.parent)
        if (found := of_numpy(path)) is not None:
            return found
    return _of_items(open_items(as_source(source), root=root), str(source))


def _of_object(source: Any, column: str | None) -> ImageList:
    from PIL import Image

    if isinstance(source, Items):
        return _of_items(source, "the items")
    if isinstance(source, Tensor | np.ndarray) and not (isinstance(source, np.ndarray) and source.dtype.kind in "OUS"):
        return _of_array(source, "the array")
    if hasattr(source, "column_names") or (hasattr(source, "columns") and hasattr(source, "to_numpy")):
        return _of_table(as_table(source), Path(), column, "the table")
    values = list(source) if isinstance(source, Sequence | np.ndarray) or hasattr(source, "to_list") else None
    if values is None:
        several = isinstance(source, Iterable) or hasattr(source, "__len__")
        expect(several, IMAGES, f"a {type(source).__name__}", "give one of these")
        return _of_items(from_object(source, column=column or ()).items, "the data")
    expect(values, IMAGES, "an empty list")
    if all(isinstance(value, str | os.PathLike) for value in values):
        paths = [Path(v if os.path.lexists(v) else os.path.expanduser(v)) for v in values]  # noqa: PTH111
        return _once([written_name(os.fspath(v)) for v in values], paths)
    if all(isinstance(value, Image.Image) for value in values):
        return ImageList([str(i) for i in range(len(values))], values)
    return ImageList([str(i) for i in range(len(values))], [_one_array(value, i) for i, value in enumerate(values)])


def _once(
    names: list[str], contents: Sequence[Any], folder: Path | None = None, columns: Mapping[str, list[Any]] | None = None
) -> ImageList:
    """Returns images, of which each real file is read once, by the first of its names."""
    first: dict[Any, int] = {}
    for i, content in enumerate(contents):
        first.setdefault(os.path.realpath(content) if isinstance(content, Path) else i, i)
    kept = list(first.values())
    again = [Skipped(names[i], AGAIN) for i in sorted(set(range(len(names))) - set(kept))]
    images = ImageList(_different([names[i] for i in kept]), [contents[i] for i in kept], again, folder=folder)
    images.columns = {key: [values[i] for i in kept] for key, values in (columns or {}).items()}
    return images


def _different(names: list[str]) -> list[str]:
    """Returns names, of which repeated ones have their number behind them."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _of_items(items: Items, name: str) -> ImageList:
    if isinstance(items, decoding.ImageFiles):
        paths = [items.folder / decoding.file_name(written) for written in items.names]
        return ImageList(list(items.names), paths, list(items.skipped), folder=items.folder)
    expect(len(items.shape) == 3, f"images in {name}", f"items of shape {items.shape}", "name a source of images")
    read = items.content if isinstance(items, EncodedImages) else functools.partial(_item, items)
    return ImageList(list(items.names), [functools.partial(read, i) for i in range(len(items))], list(items.skipped))


def _item(items: Items, i: int) -> Array:
    for _, x in items.stream([torch.tensor([i])]):
        if len(x):
            return np.asarray(x[0].numpy())
    raise ValueError(items.skipped[-1].reason if items.skipped else "it cannot be read")


def of_numpy(path: Path) -> ImageList | None:
    """Returns the images of an array of any number type in a NumPy file; None where it holds other arrays."""
    arrays, _ = read_arrays(path, (*ARRAY_KEYS, *NAME_KEYS), ON_DISK)
    x = next((arrays[key] for key in ARRAY_KEYS if key in arrays), None)
    if x is None or x.ndim not in (3, 4):
        return None
    images = _of_array(x, path.name)
    for key in [key for key in NAME_KEYS if key in arrays][:1]:
        images.names = checked_names(arrays[key], len(x), f"{key} of {path.name}")
    return images


def _of_array(array: Array | Tensor, name: str) -> ImageList:
    x = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    expect(x.ndim in (3, 4) and len(x), f"images (N, H, W[, C]) or (N, C, H, W) as {name}", f"shape {x.shape}", "reshape it")
    expect(x.dtype.kind in "biuf", f"numbers in {name}", f"type {x.dtype}", "convert them")
    x = _channels_second(x, name)
    return ImageList([str(i) for i in range(len(x))], [functools.partial(_row, x, i) for i in range(len(x))])


def _row(x: Array, i: int) -> Any:
    from PIL import Image

    one = np.asarray(x[i])
    return Image.fromarray(one) if _with_alpha(x) else one


def _with_alpha(x: Array) -> bool:
    return x.ndim == 4 and x.shape[3] == 4 and x.shape[1] not in (1, 3) and x.dtype == np.uint8


def _channels_second(x: Array, name: str) -> Array:
    """Returns images (N, C, H, W) with any number of channels; those with an alpha channel as they are."""
    sides = sorted(x.shape[1:])
    if _with_alpha(x):
        return x
    if x.ndim == 4 and not {1, 3} & {x.shape[1], x.shape[3]} and sides[0] < sides[1] and sides[0] != x.shape[2]:
        return np.moveaxis(x, 3, 1) if x.shape[3] == sides[0] else x
    return channels_first(x, name)


def _one_array(value: Any, i: int) -> Any:
    x = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    valid = x.dtype.kind in "biuf" and x.ndim in (2, 3)
    expect(valid, IMAGES, f"item {i}, a {type(value).__name__} {shown(value)}", "give one of these")
    return _row(_channels_second(x[None], f"item {i}"), 0)


def _of_table(table: Any, folder: Path, column: str | None, name: str) -> ImageList:
    names = [key for key in table.column_names if _holds_images(table[key], folder)] if column is None else [column]
    columns = ", ".join(table.column_names)
    expect(column is None or column in table.column_names, f"a column of {name}", f"'{column}' next to {columns}", "correct it")
    expect(len(names) == 1, f"one column of images in {name}", f"{len(names)} among {columns}", "name it with `column`")
    values = table[names[0]].to_pylist()
    key = name_column(table.column_names, names[0])
    texts = (
        [f"row {i}" for i in range(len(values))] if key is None else [written_name(str(text)) for text in table[key].to_pylist()]
    )
    found = [_in_table(value, text, folder) for value, text in zip(values, texts, strict=True)]
    others = {key: table[key].to_pylist() for key in table.column_names if not holds_bytes(table[key].type)}
    return _once([name for name, _ in found], [content for _, content in found], folder, others)


def _holds_images(column: Any, folder: Path) -> bool:
    import pyarrow as pa

    kind = column.type
    if holds_bytes(kind):
        return True
    if pa.types.is_struct(kind) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    first = [value for value in column.slice(0, 20).to_pylist() if value]
    return any((folder / value).is_file() for value in first)


def _in_table(value: Any, given: str, folder: Path) -> tuple[str, Any]:
    """Returns the name and the content of an image; the name is the path, or else the given one."""
    path, value = (value.get("path"), value.get("bytes") or value.get("path")) if isinstance(value, dict) else (value, value)
    name = written_name(path) if isinstance(path, str) and path else given
    return name, folder / value if isinstance(value, str) else value if isinstance(value, bytes) else b""


def _of_tar(path: Path) -> ImageList:
    try:
        with tarfile.open(path) as tar:
            everything = list(tar)
            files = sum(member.isfile() for member in everything)
            named = [member for member in everything if member.name.lower().endswith(decoding.ENDINGS)]
            links = [member for member in named if member.issym() or member.islnk()]
            members = [member for member in named if member.isfile()]
            packed = path.suffix.lower() != ".tar"
            total = sum(member.size for member in members)
            expect(not packed or total <= MOST_UNPACKED, "a compressed tar of at most 1 GiB", f"{total:,} bytes", "unpack it")
            contents: list[Any] = [functools.partial(_part, path, member.offset_data, member.size) for member in members]
            if packed:
                contents = [(tar.extractfile(member) or io.BytesIO()).read() for member in members]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"expected a tar of images, cannot read {path}: {error}") from None
    expect(members, f"images in {path}", "none", "name another file")
    others = {"": files - len(members)} if files > len(members) else {}
    why = "links in a tar are not followed"
    skipped = [Skipped(written_name(one.name), f"a link to {written_name(one.linkname)}; {why}") for one in links]
    return ImageList(_different([written_name(member.name) for member in members]), contents, skipped, others)


def _part(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)
