"""Encoded images in large files: tars (WebDataset's layout) and Parquet with a column of bytes, here or on object storage.

Sources are a file, a folder of such files, a pattern (``data/{000..127}.tar``, ``data/*.parquet``), or a text file with one of
them a line (``.list``); also with an address that fsspec opens: ``s3://``, ``gs://``, ``file://``. An index (file, place,
length) is read once, without an image; images are read when they are asked for.
"""

import contextlib
import functools
import glob
import io
import itertools
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.images import ENDINGS, DecodedImages, canvas, channels, decode, header, written_name
from vergence.data.items import Array, Source, at, pick
from vergence.utils.checks import expect, shortened
from vergence.utils.terminal import bar

__all__ = ["EncodedImages", "files_of", "is_sharded", "open_shards"]

TAR, PARQUET, LIST = ".tar", ".parquet", ".list"
IMAGE_COLUMNS = ("image", "picture", "bytes", "img", "jpg", "png")  # names of a column of images, the first that is there
LABELS = ("label", "labels")
NAME_COLUMNS = ("name", "names", "path", "file", "file_name", "filename", "__key__")
HELD = 4  # row groups of a Parquet file
HEADERS = 256  # images whose headers say whether there is color
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def is_sharded(source: str) -> bool:
    """Returns whether a source is one of encoded images in large files."""
    path = Path(source)
    if "://" in source or path.suffix.lower() in (TAR, LIST) or RANGE.search(source):
        return True
    try:
        if any(mark in source for mark in "*?[") and not path.exists():
            return path.suffix.lower() == PARQUET
        if path.suffix.lower() == PARQUET and path.is_file():
            return _image_column(source) is not None
        names = [entry.name for entry in itertools.islice(path.iterdir(), HEADERS)]
        others = any(name.lower().endswith(ENDINGS) or (path / name).is_dir() for name in names)
    except (OSError, ValueError):  # no folder, or what cannot be a path
        return False
    large = [name for name in sorted(names) if name.lower().endswith((TAR, PARQUET))]
    return bool(large) and not others and (large[0].lower().endswith(TAR) or _image_column(str(path / large[0])) is not None)


def open_shards(
    source: str | Sequence[str], *, size: int | None = None, shape: tuple[int, ...] | None = None, several: bool = False
) -> Source:
    """Returns the images of a source, or of addresses of `files_of` it, as items; reads the index and some headers.

    Size and shape are as of `vergence.data.images.image_files`. With ``several`` names begin with that of the file though there
    is one alone, as part of several.
    """
    index = _index(source, several)
    names = [written_name(name) for name in index.names]
    side = None
    if shape is None:
        side, shape = canvas(size, channels(_modes(index)))
    labels = None if index.labels is None else torch.from_numpy(index.labels)
    items = EncodedImages(index, names, shape, torch.arange(len(names)), labels)
    return Source(items, () if labels is None else tuple(map(str, range(int(labels.max()) + 1))), size=side)


@dataclass(frozen=True)
class Index:
    """Where N images are."""

    files: list[str]  # addresses of the large files
    stamps: list[str]  # what tells another version of a file apart
    file: Array  # number of each image's file (N,)
    start: Array  # its first byte in a tar, or its row in a Parquet file (N,)
    length: Array  # its bytes; -1 in a Parquet file (N,)
    names: list[str]
    labels: Array | None = None  # (N,)

    def content(self, i: int) -> bytes:
        """Returns the bytes of an image."""
        address, start = self.files[self.file[i]], int(self.start[i])
        if self.length[i] < 0:
            return _parquet(address, self.stamps[self.file[i]], os.getpid()).image(start)
        filesystem, path = _filesystem(address)
        data: bytes = filesystem.cat_file(path, start=start, end=start + int(self.length[i]))
        return data


class EncodedImages(DecodedImages):
    """Images of an `Index`, those of its ``rows`` (M,), decoded when they are read; as `vergence.data.images.ImageFiles`."""

    def __init__(
        self, index: Index, names: Sequence[str], shape: tuple[int, ...], rows: Tensor, labels: Tensor | None = None
    ) -> None:
        self.index, self.names, self.shape, self.dtype, self.rows = index, names, shape, torch.uint8, rows
        self.labels, self.skipped = labels, []

    @property
    def stamps(self) -> list[str]:
        """What tells these items from others: the versions of the files, the images and the shape."""
        return [*self.index.files, *self.index.stamps, str(self.shape), str(self.rows.tolist())]

    def content(self, i: int) -> bytes:
        """Returns the bytes of an item."""
        return self.index.content(int(self.rows[i]))

    def decoded(self, i: int) -> Array:
        content = self.content(i)
        if not content:
            raise ValueError("no bytes")
        return decode(io.BytesIO(content), self.shape)

    def subset(self, index: Tensor) -> "EncodedImages":
        return EncodedImages(self.index, pick(self.names, index), self.shape, self.rows[index], at(self.labels, index))


def _modes(index: Index) -> Iterator[str]:
    """Yields the pixel formats of some images."""
    for i in range(0, len(index.names), max(1, -(-len(index.names) // HEADERS))):
        with contextlib.suppress(OSError, ValueError):  # of one that cannot be read
            about = header(io.BytesIO(index.content(i)))
            yield from () if about is None else (about[0],)


# The index


def _index(source: str | Sequence[str], several: bool) -> Index:
    """Returns the index of all files of a source."""
    files = files_of(source) if isinstance(source, str) else list(source)
    parts, stamps = [], []
    with bar("index", len(files), late=True) as advance:
        for address in files:
            try:
                stamps.append(_stamp(address))
                parts.append(_of_tar(address) if address.lower().endswith(TAR) else _of_parquet(address))
            except (OSError, tarfile.TarError, EOFError) as error:
                why = f"cannot read {address}: {shortened(error)}"
                raise ValueError(f"expected a tar or Parquet file of images, {why}") from None
            advance(1)
    numbers = [len(names) for _, _, names, _ in parts]
    expect(sum(numbers), f"images in {source}", f"none in {len(files)} files", "name another source")
    several |= len(files) > 1
    before = [f"{Path(file).stem}/" if several else "" for file in files]
    names = [f"{stem}{name}" for stem, (_, _, own, _) in zip(before, parts, strict=True) for name in own]
    labels = [own for *_, own in parts]
    start, length = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    label = None if any(own is None for own in labels) else np.concatenate([own for own in labels if own is not None])
    return Index(files, stamps, np.repeat(np.arange(len(files)), numbers), start, length, names, label)


def files_of(source: str) -> list[str]:
    """Returns the addresses of the files of a source, in order."""
    if (match := RANGE.search(source)) is not None:
        first, last = match.groups()
        numbers = (f"{i:0{len(first)}d}" for i in range(int(first), int(last) + 1))
        return [file for n in numbers for file in files_of(source[: match.start()] + n + source[match.end() :])]
    if source.lower().endswith(LIST):
        filesystem, path = _filesystem(source)
        lines = filesystem.cat_file(path).decode().split("\n")
        return [file for line in lines if line.strip() for file in files_of(line.strip())]
    if "://" in source and not source.startswith("file://"):
        filesystem, path = _filesystem(source)
        protocol = source.partition("://")[0]
        found = filesystem.glob(path) if any(mark in path for mark in "*?[") else [path]
        if len(found) == 1 and filesystem.isdir(found[0]):
            found = [name for name in filesystem.ls(found[0], detail=False) if name.lower().endswith((TAR, PARQUET))]
        return sorted(f"{protocol}://{name.lstrip('/')}" for name in found)
    path = source.removeprefix("file://")
    if Path(path).is_dir():
        return sorted(str(p) for p in Path(path).iterdir() if p.suffix.lower() in (TAR, PARQUET))
    found = sorted(glob.glob(path)) if any(mark in path for mark in "*?[") and not Path(path).exists() else [path]  # noqa: PTH207
    expect(found and all(Path(name).is_file() for name in found), f"files at {source}", "none", "correct the name")
    return found


def _filesystem(address: str) -> tuple[Any, str]:
    """Returns what reads an address, in this process, and the path in it."""
    import fsspec

    protocol, _, path = address.rpartition("://")
    try:
        return fsspec.filesystem(protocol or "file"), path  # it keeps one of each protocol and process
    except (ImportError, ValueError) as error:
        text = f"expected what opens {protocol}:// addresses, found: {shortened(error)}; pip install 'vergence[cloud]'"
        raise ValueError(text) from None


Part = tuple[Array, Array, list[str], Array | None]  # start, length, names, labels


def _of_tar(address: str) -> Part:
    """Returns the images of a tar, and their labels where each has a ``.cls``, as WebDataset writes it."""
    filesystem, path = _filesystem(address)
    start, length, names, keys = [], [], [], []
    numbers: dict[str, int] = {}
    with filesystem.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            key, _, ending = member.name.partition(".")
            if not member.isfile():
                continue
            if member.name.lower().endswith(ENDINGS):
                start.append(member.offset_data)
                length.append(member.size)
                names.append(member.name)
                keys.append(key)
            elif ending == "cls" and member.size < 20 and (opened := tar.extractfile(member)) is not None:
                text = opened.read().decode(errors="replace").strip()
                numbers |= {key: int(text)} if text.isdecimal() else {}
            vars(tar)["members"].clear()  # it would hold all of them
    labels = np.array([numbers[key] for key in keys]) if keys and all(key in numbers for key in keys) else None
    return np.array(start, dtype=np.int64), np.array(length, dtype=np.int64), names, labels


def name_column(there: Sequence[str], other: str) -> str | None:
    """Returns which of a table's columns has the names of its images, which are in another one; None if none has."""
    return next((name for name in NAME_COLUMNS if name in there and name != other), None)


def _of_parquet(address: str) -> Part:
    """Returns the rows of a Parquet file that hold images, with their labels."""
    images = _parquet(address, _stamp(address), os.getpid())
    expect(images.column is not None, f"a column of images, {', '.join(IMAGE_COLUMNS)}, in {address}", "none")
    n, there = images.file.metadata.num_rows, images.file.schema_arrow.names
    key = next((name for name in LABELS if name in there), None)
    named = name_column(there, str(images.column))
    table = images.file.read(columns=[name for name in (key, named) if name])
    names = [str(name) for name in table[named].to_pylist()] if named else [f"row {i}" for i in range(n)]
    labels = None if key is None else np.asarray(table[key].to_numpy())
    whole = labels is not None and labels.dtype.kind in "iu"
    return np.arange(n), np.full(n, -1), names, labels.astype(np.int64) if labels is not None and whole else None


def _image_column(address: str) -> str | None:
    """Returns the column of a Parquet file that holds encoded images; None for none."""
    import pyarrow as pa

    try:
        return _parquet(address, _stamp(address), os.getpid()).column
    except (OSError, pa.ArrowException):
        return None


def _stamp(address: str) -> str:
    """Returns what tells another version of a file apart."""
    filesystem, path = _filesystem(address)
    about = filesystem.info(path)
    return " ".join(str(about.get(name, "")) for name in ("size", "mtime", "ETag", "etag", "LastModified"))


@functools.lru_cache(maxsize=64)
def _parquet(address: str, stamp: str, process: int) -> "_Parquet":
    """Returns a version of a file, which each process opens once."""
    return _Parquet(address)


class _Parquet:
    """A Parquet file: its column of images, if there is one, and single images; a few row groups are held."""

    def __init__(self, address: str) -> None:
        import pyarrow.parquet as pq

        filesystem, path = _filesystem(address)
        self.file = pq.ParquetFile(filesystem.open(path, "rb"))
        usable = [field.name for field in self.file.schema_arrow if holds_bytes(field.type)]
        self.column = next((name for name in IMAGE_COLUMNS if name in usable), usable[0] if len(usable) == 1 else None)
        about = self.file.metadata
        self.bounds = np.cumsum([0, *(about.row_group(i).num_rows for i in range(about.num_row_groups))])
        columns = [self.column]
        self.group = functools.lru_cache(HELD)(lambda i: self.file.read_row_group(i, columns=columns)[columns[0]])

    def image(self, row: int) -> bytes:
        """Returns the bytes of a row of the column; none where it holds none."""
        group = int(np.searchsorted(self.bounds, row, side="right")) - 1
        content = self.group(group)[row - int(self.bounds[group])].as_py()
        content = content.get("bytes") if isinstance(content, dict) else content
        return content if isinstance(content, bytes) else b""


def holds_bytes(kind: Any) -> bool:
    """Returns whether an Arrow type is one of encoded images: bytes, or a struct with ``bytes``."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
