"""Pictures of any size and source, read one by one as a viewer shows them; what cannot be read is listed, never lost.

Shapes: a picture (C, H, W) uint8, C = 1 (gray by its format) or 3.
"""

import functools
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import channels_first
from vergence.data.images import (
    DECODE_SECONDS,
    ENDINGS,
    ImageFiles,
    as_shown,
    file_name,
    images_below,
    opened_image,
    parallel,
    reason,
    time_limit,
    written_name,
)
from vergence.data.items import Array, Items, Skipped
from vergence.data.shards import EncodedImages, holds_bytes, is_sharded, open_shards
from vergence.data.sources import as_source, is_object, open_items
from vergence.data.tables import as_table, is_table_file, read_table
from vergence.utils.checks import expect, refuse, shown
from vergence.utils.digests import content_digest

__all__ = ["Picture", "Pictures", "open_pictures"]

T = TypeVar("T")

LARGE = 4 << 20  # pixels, above which a file is read reduced
LONG_SIDE = 1600  # pixels of the longer side that are kept at least
TOGETHER = 16  # pictures that a worker reads at a time
ARRAYS, TARS = (".npy", ".npz"), (".tar", ".tgz", ".gz")
MOST_UNPACKED = 1 << 30  # bytes of a compressed tar that are held
PICTURES = "a folder, a file, a list of paths, PIL images or arrays, a table with a column of pictures, or a tar"


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        pixels: uint8 (C, H, W), the whole picture; of a file of more than four million pixels a reduced one.
        size: Height and width in full.
        digest: 64 bits of what is shown and of the size; of a reduced file, of its bytes. Equal pictures in several encodings
            have one digest.
        changes: What was done so that it looks as in a viewer.
    """

    pixels: Array
    size: tuple[int, int]
    digest: int
    changes: tuple[str, ...] = ()


class Pictures:
    """Pictures by number, read when they are asked for, by this process or by workers.

    Args:
        names: Their names.
        contents: What each is: a path, bytes, an array (C, H, W), a PIL image, a `Picture`, or a function that returns
            one of these.
        skipped: Files that were left out before.
        ignored: Number of files that are no pictures, by ending.
        folder: Where the files are; None for others.

    Example:
        >>> pictures = Pictures(["a"], [np.zeros((1, 4, 6), dtype=np.uint8)])
        >>> pictures.read(0).size
        (4, 6)
    """

    def __init__(
        self,
        names: Sequence[str],
        contents: Sequence[Any],
        skipped: Sequence[Skipped] = (),
        ignored: dict[str, int] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.names, self.contents, self.folder = list(names), contents, folder
        self.skipped, self.ignored = list(skipped), ignored or {}

    def __len__(self) -> int:
        return len(self.names)

    def path(self, i: int) -> Path | None:
        """Returns the path of a picture that is a file."""
        content = self.contents[i]
        return content if isinstance(content, Path) else None

    def read(self, i: int) -> Picture:
        """Returns a picture; a ValueError says in one line why it cannot be read."""
        from PIL import Image

        try:
            return _read(self.contents[i], self.names[i])
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            raise ValueError(reason(error)) from None

    def map(self, function: Callable[[Picture], T], index: Sequence[int], workers: int = 0) -> Iterator[tuple[int, T]]:
        """Yields i and what a function gives of picture i, in order; those that cannot be read are added to ``skipped``.

        Args:
            function: Of one picture; worker processes compute it.
            index: Numbers of the pictures.
            workers: Processes; 0 for this one.
        """
        parts = torch.tensor(list(index), dtype=torch.int64).split(TOGETHER) if len(index) else ()
        work = functools.partial(self._some, function)
        known = set(self.skipped)
        few = workers == 0 or len(index) <= TOGETHER
        for done, skipped in map(work, (part.numpy() for part in parts)) if few else parallel(work, parts, workers):
            self.skipped += [one for one in skipped if one not in known]
            known.update(skipped)
            yield from done

    def _some(self, function: Callable[[Picture], T], index: Array) -> tuple[list[tuple[int, T]], list[Skipped]]:
        done, skipped = [], []
        for i in index.tolist():
            try:
                picture = self.read(i)
            except ValueError as error:
                skipped.append(Skipped(self.names[i], str(error)))
            else:
                done.append((i, function(picture)))
        return done, skipped


def _read(content: Any, name: str) -> Picture:
    """Returns the picture that a content is."""
    from PIL import Image

    if callable(content):
        content = content()
    if isinstance(content, Picture):
        return content
    if isinstance(content, np.ndarray):
        pixels = np.ascontiguousarray(content)
        return Picture(pixels, pixels.shape[1:], _digest(pixels))
    if isinstance(content, Image.Image):
        return _shown(content.copy(), None)
    ending = os.path.splitext(name)[1]  # noqa: PTH122
    with (
        time_limit(DECODE_SECONDS),
        opened_image(io.BytesIO(content) if isinstance(content, bytes) else content, ending) as image,
    ):
        return _shown(image, content)


def _shown(image: Any, content: bytes | Path | None) -> Picture:
    """Returns an opened image as a picture, reduced where it is large."""
    width, height = image.size
    large = width * height > LARGE and content is not None
    if large:
        scale = max(1, max(width, height) // LONG_SIDE)
        image.draft(None, (width // scale, height // scale))
    plain, changes = as_shown(image)
    if plain.size != image.size:  # turned upright by a quarter
        width, height = height, width
    if large and (factor := max(plain.size) // LONG_SIDE) > 1:
        plain = plain.reduce(factor)
    x = np.asarray(plain)
    pixels = x[None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(2, 0, 1))
    if content is None or plain.size == (width, height):
        return Picture(pixels, (height, width), _digest(pixels), tuple(changes))
    digest = content_digest(content if isinstance(content, bytes) else content.read_bytes())
    return Picture(pixels, (height, width), int.from_bytes(digest, "big", signed=True), tuple(changes))


def _digest(pixels: Array) -> int:
    """Returns the digest of a picture; gray has that of three equal channels."""
    gray = len(pixels) == 1 or (np.array_equal(pixels[0], pixels[1]) and np.array_equal(pixels[0], pixels[2]))
    digest = content_digest(str(pixels.shape[1:]).encode(), (pixels[:1] if gray else pixels).tobytes())
    return int.from_bytes(digest, "big", signed=True)


# Sources


def open_pictures(source: Any, *, root: str | None = None, column: str | None = None) -> Pictures:
    """Returns the pictures of a source; nothing is decoded yet.

    Args:
        source: A folder of any depth, a file, a list of paths, of PIL images or of arrays, an array (N, H, W[, C]) or
            (N, C, H, W), a ``.npy`` or ``.npz`` of one, a ``.parquet`` or ``.csv`` with a column of paths or of encoded bytes,
            a tar, the name of a built-in set, or items of this library.
        root: Folder of torchvision's data sets.
        column: Column of a table that holds the pictures; needed where several could.

    Raises:
        ValueError: The source is none of these, or holds no picture.

    Example:
        >>> len(open_pictures(np.zeros((5, 8, 8, 3), dtype=np.uint8)))
        5
    """
    if is_object(source):
        return _of_object(source, column)
    path = Path(source).expanduser()
    if is_sharded(str(source)) and not path.is_file():
        return _of_items(open_shards(str(source), shape=(3, 1, 1)).items, str(source))
    if path.is_dir():
        return _of_folder(path)
    if path.is_file():
        ending = path.suffix.lower()
        if is_table_file(path):
            return _of_table(read_table(path), path.parent, column, str(path))
        if ending in TARS:
            return _of_tar(path)
        if ending not in ARRAYS:
            return Pictures([written_name(path.name)], [path], folder=path.parent)
    return _of_items(open_items(as_source(source), root=root), str(source))


def _of_folder(path: Path) -> Pictures:
    names, skipped, ignored = images_below(path)
    others = f"none, and {sum(ignored.values()):,} other files" if ignored else "none"
    expect(names, f"pictures in {path}", others, "name a folder that holds some")
    return Pictures([written_name(name) for name in names], [path / name for name in names], skipped, ignored, path)


def _of_object(source: Any, column: str | None) -> Pictures:
    from PIL import Image

    if isinstance(source, Items):
        return _of_items(source, "the items")
    if isinstance(source, Tensor | np.ndarray) and not (isinstance(source, np.ndarray) and source.dtype.kind in "OUS"):
        return _of_array(source, "the array")
    if hasattr(source, "column_names") or (hasattr(source, "columns") and hasattr(source, "to_numpy")):
        return _of_table(as_table(source), Path(), column, "the table")
    values = list(source) if isinstance(source, Sequence | np.ndarray) or hasattr(source, "to_list") else None
    if values is None:
        refuse(PICTURES, f"a {type(source).__name__}", "give one of these")
    expect(values, PICTURES, "an empty list")
    if all(isinstance(value, str | os.PathLike) for value in values):
        return Pictures(_different([written_name(os.fspath(v)) for v in values]), [Path(v).expanduser() for v in values])
    if all(isinstance(value, Image.Image) for value in values):
        return Pictures([str(i) for i in range(len(values))], values)
    return Pictures([str(i) for i in range(len(values))], [_one_array(value, i) for i, value in enumerate(values)])


def _different(names: list[str]) -> list[str]:
    """Returns names, of which repeated ones have their number behind them."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _of_items(items: Items, name: str) -> Pictures:
    if isinstance(items, ImageFiles):
        paths = [items.folder / file_name(written) for written in items.names]
        return Pictures(items.names, paths, items.skipped, folder=items.folder)
    if isinstance(items, EncodedImages):
        return Pictures(items.names, [functools.partial(items.content, i) for i in range(len(items))], items.skipped)
    expect(len(items.shape) == 3, f"pictures in {name}", f"items of shape {items.shape}", "name a source of pictures")
    return Pictures(list(items.names), [functools.partial(_item, items, i) for i in range(len(items))], items.skipped)


def _item(items: Items, i: int) -> Array:
    for _, x in items.stream([torch.tensor([i])]):
        if len(x):
            return _bytes(x[0].numpy())
    raise ValueError(items.skipped[-1].reason if items.skipped else "it cannot be read")


def _of_array(array: Array | Tensor, name: str) -> Pictures:
    x = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    expect(x.ndim in (3, 4) and len(x), f"pictures (N, H, W[, C]) or (N, C, H, W) as {name}", f"shape {x.shape}", "reshape it")
    x = channels_first(x, name)
    return Pictures([str(i) for i in range(len(x))], [functools.partial(_bytes_of, x, i) for i in range(len(x))])


def _bytes_of(x: Array, i: int) -> Array:
    return _bytes(np.asarray(x[i]))


def _one_array(value: Any, i: int) -> Array:
    x = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    usual = x.dtype.kind in "biuf" and x.ndim in (2, 3)
    expect(usual, PICTURES, f"item {i}, a {type(value).__name__} {shown(value)}", "give one of these")
    return _bytes(channels_first(x[None], f"item {i}")[0])


def _bytes(x: Array) -> Array:
    """Returns a picture (C, H, W) of any type as bytes with 1 or 3 channels."""
    x = x[:3] if len(x) == 4 else x[:1] if len(x) == 2 else x
    expect(len(x) in (1, 3) and min(x.shape[1:]) >= 1, "pictures with 1 or 3 channels", f"{len(x)}", "choose some")
    if x.dtype == np.uint8:
        return x
    expect(x.dtype.kind != "f" or bool(np.isfinite(x).all()), "finite pixels", "NaN or infinity", "replace them")
    if x.dtype.kind == "f":
        return np.asarray(np.rint(np.clip(x if x.max() > 1 else 255 * x, 0, 255)), dtype=np.uint8)
    return np.asarray(np.clip(x >> max(0, int(x.max()).bit_length() - 8), 0, 255), dtype=np.uint8)


def _of_table(table: Any, folder: Path, column: str | None, name: str) -> Pictures:
    names = [key for key in table.column_names if _holds_pictures(table[key], folder)] if column is None else [column]
    columns = ", ".join(table.column_names)
    expect(column is None or column in table.column_names, f"a column of {name}", f"'{column}' next to {columns}", "correct it")
    expect(len(names) == 1, f"one column of pictures in {name}", f"{len(names)} among {columns}", "name it with --column")
    values = table[names[0]].to_pylist()
    written = [_name_of(value, i) for i, value in enumerate(values)]
    return Pictures(_different(written), [_content_of(value, folder) for value in values], folder=folder)


def _holds_pictures(column: Any, folder: Path) -> bool:
    import pyarrow as pa

    kind = column.type
    if holds_bytes(kind):
        return True
    if pa.types.is_struct(kind) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    first = [value for value in column.slice(0, 20).to_pylist() if value]
    return any((folder / value).is_file() for value in first)


def _name_of(value: Any, i: int) -> str:
    path = value.get("path") if isinstance(value, dict) else value
    return written_name(path) if isinstance(path, str) and path else f"row {i}"


def _content_of(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return folder / value
    return value if isinstance(value, bytes) else b""


def _of_tar(path: Path) -> Pictures:
    try:
        with tarfile.open(path) as tar:
            files = [member for member in tar if member.isfile()]
            members = [member for member in files if member.name.lower().endswith(ENDINGS)]
            packed = path.suffix.lower() != ".tar"
            total = sum(member.size for member in members)
            expect(not packed or total <= MOST_UNPACKED, "a compressed tar of at most 1 GiB", f"{total:,} bytes", "unpack it")
            contents: list[Any] = [
                _member(tar.extractfile(member)) if packed else functools.partial(_part, path, member.offset_data, member.size)
                for member in members
            ]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"expected a tar of pictures, cannot read {path}: {error}") from None
    expect(members, f"pictures in {path}", "none", "name another file")
    others = {"": len(files) - len(members)} if len(files) > len(members) else {}
    return Pictures(_different([written_name(member.name) for member in members]), contents, ignored=others)


def _member(file: IO[bytes] | None) -> bytes:
    return b"" if file is None else file.read()


def _part(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)
