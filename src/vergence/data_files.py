"""What lies in a folder of images or in a NumPy file, read, checked and with its labels."""

import math
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data_images import ImageFiles, image_mode
from vergence.data_items import Array, ArrayItems, Items, PairItems, RowNames, batches

__all__ = [
    "ENDINGS",
    "Source",
    "base",
    "channels",
    "channels_first",
    "from_array",
    "listing",
    "load",
    "open_arrays",
    "readable",
]

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
ARRAY_KEYS = ("images", "x", "data", "X", "arr_0")
LABEL_KEYS = ("labels", "y", "label")
PART_KEYS = ("x_train", "y_train", "x_test", "y_test")
PAIR_KEYS = ("context", "target")
DECODE_BATCH = 32
CHUNK_BYTES = 4 << 20
PATIENCE_SECONDS = 2.0


@dataclass(frozen=True)
class Source:
    """All items of a source.

    Attributes:
        items: Every item, in order.
        classes: Name of each label; empty where there are none.
        test: (N,) bool, the source's own test part; None where it has none.
        note: What that part is.
        size: Side of the square images that the encoder sees, in pixels; None where there is none.
    """

    items: Items
    classes: tuple[str, ...] = ()
    test: Tensor | None = None
    note: str = ""
    size: int | None = None


# Folders


@dataclass(frozen=True)
class Listing:
    """The image files below a folder, sorted by relative path; labels (N,) int64, classes and test part as in `Source`."""

    names: list[str]
    labels: Tensor | None
    classes: tuple[str, ...]
    test: Tensor | None
    note: str


def base(path: Path) -> Path:
    """Returns the folder that names are relative to: the path itself, or the folder of a single file."""
    return path if path.is_dir() else path.parent


def listing(path: Path) -> Listing:
    """Lists the images of a folder, or a single one; hidden files and folders are left out.

    Sub-folders ``train`` and ``test`` (or ``val``) are its parts. The first folder below (a part of) it is an image's class;
    images beside such folders have the label -1. Fewer than two classes are none.

    Raises:
        ValueError: There is no image, or a folder cannot be listed.
    """
    parts = [part for part in ("test", "val") if path.is_dir() and (path / part).is_dir() and (path / "train").is_dir()][:1]
    names = [name for part in (["train", *parts] if parts else [""]) for name in _images_below(path, part)]
    if not names:
        raise ValueError(f"expected images ({' '.join(ENDINGS)}) in {path}, found none")
    inner = [name.split("/", 1)[1] for name in names] if parts else names
    folders = [name.split("/", 1)[0] if "/" in name else "" for name in inner]
    classes = tuple(sorted(set(folders) - {""}))
    test = torch.tensor([not name.startswith("train/") for name in names]) if parts else None
    note = f"the folder {parts[0]}/" if parts else ""
    if len(classes) < 2:
        return Listing(names, None, (), test, note)
    number = {"": -1} | {name: i for i, name in enumerate(classes)}
    return Listing(names, torch.tensor([number[name] for name in folders]), classes, test, note)


def _images_below(path: Path, part: str) -> list[str]:
    if path.is_file():
        return [path.name]
    found: list[str] = []
    for here, folders, files in os.walk(path / part, followlinks=True, onerror=_unlistable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(here).relative_to(path)
        images = [name for name in files if Path(name).suffix.lower() in ENDINGS and not name.startswith(".")]
        found += [(inside / name).as_posix() for name in images]
    return sorted(found)


def _unlistable(error: OSError) -> None:
    raise ValueError(f"expected a folder that can be listed, found {error.filename}: {error.strerror}; see its permissions")


def channels(folder: Path, names: Sequence[str]) -> int:
    """Returns 1 if all of up to 256 evenly spaced images are grey by their headers, else 3."""
    modes = {image_mode(folder / name) for name in names[:: math.ceil(len(names) / 256)]} - {None}
    grey = all(mode in ("1", "L", "LA", "La", "F") or str(mode).startswith("I") for mode in modes)
    return 1 if modes and grey else 3


def readable(files: ImageFiles, *, keep_pixels: bool, strict: bool, workers: int) -> tuple[Items, Tensor]:
    """Decodes every file once and returns those that can be read, in memory or as files, and their int64 index.

    Raises:
        ValueError: None can be read; or, with ``strict``, one cannot.
    """
    items, kept = load(files, workers) if keep_pixels else _check(files, workers)
    bad = files.skipped
    examples = ", ".join(f"{one.name} ({one.reason})" for one in bad[:3])
    if len(kept) == 0:
        raise ValueError(f"expected images in {files.folder}, found {len(bad)} files that cannot be read: {examples}")
    if strict and bad:
        raise ValueError(f"{len(bad)} of {len(files)} images cannot be read: {examples}; remove them, or leave out --strict")
    items.skipped = list(bad)
    return items, kept


def load(items: Items, workers: int = 0) -> tuple[ArrayItems, Tensor]:
    """Reads single items (no pairs) into one tensor; returns them and the int64 index of those that could be read."""
    x = torch.empty((len(items), *items.shape), dtype=items.dtype)
    kept, n = [], 0
    for index, part in _watched(items, workers):
        x[n : n + len(index)] = part
        n += len(index)
        kept.append(index)
    index = torch.cat(kept)
    part = items.subset(index)
    return ArrayItems(x[:n], part.labels, names=part.names), index


def _check(files: ImageFiles, workers: int) -> tuple[Items, Tensor]:
    index = torch.cat([index for index, _ in _watched(files, workers)])
    return files.subset(index), index


def _watched(items: Items, workers: int) -> Iterator[tuple[Tensor, Any]]:
    """Streams all items, with a progress bar on a terminal once that takes long."""
    from rich.console import Console
    from rich.progress import Progress

    start, console, started = time.monotonic(), Console(stderr=True), False
    progress = Progress(console=console, transient=True)
    task = progress.add_task("reading", total=len(items))
    size = DECODE_BATCH if isinstance(items, ImageFiles) else _rows_in_chunk(items)
    with ExitStack() as stack:
        for index, x in items.stream(batches(len(items), size), workers):
            progress.advance(task, size)
            if not started and sys.stderr.isatty() and time.monotonic() - start > PATIENCE_SECONDS:
                stack.enter_context(progress)
                started = True
            yield index, x


# Arrays


def from_array(array: Array | Tensor, name: str = "the array") -> ArrayItems:
    """Checks an array and returns its rows as items.

    Args:
        array: Vectors (N, D) of numbers; or images (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 (channels last
            where both would do), in uint8 or as floats in [0, 1].
        name: What errors call it.

    Raises:
        ValueError: The rank, type or values are others than these, or a row holds NaN or infinity.

    Example:
        >>> from_array(np.zeros((5, 28, 28), dtype=np.uint8)).shape
        (1, 28, 28)
    """
    array = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
    if array.ndim == 2 and array.dtype.kind not in "iuf":
        raise ValueError(f"expected numbers in {name}, found type {array.dtype}; convert them with .astype('float32')")
    if array.ndim > 2 and array.dtype != np.uint8 and array.dtype.kind != "f":
        hint = "convert them with .astype('uint8') if they are 0 to 255"
        raise ValueError(f"expected images in {name} as uint8, or as floats in [0, 1], found type {array.dtype}; {hint}")
    items = ArrayItems(channels_first(array, name))
    if items.dtype != torch.uint8:
        _check_values(items, name)
    return items


def channels_first(array: Array, name: str) -> Array:
    """Returns a view of vectors as they are, or of images as (N, C, H, W).

    Raises:
        ValueError: The shape is neither's.
    """
    shape = array.shape
    if array.ndim not in (2, 3, 4) or min(shape[1:]) < 1:
        raise ValueError(f"expected {name} as (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W), found {shape}; reshape it")
    if array.ndim == 3 and shape[2] in (1, 3):
        raise ValueError(f"expected several images in {name}, found {shape}, which looks like one; give (N, H, W, C)")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and shape[3] not in (1, 3) and shape[1] not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels, second or last, in {name}, found shape {shape}; drop the others")
    return np.moveaxis(array, 3, 1) if array.ndim == 4 and shape[3] in (1, 3) else array


def _rows_in_chunk(items: Items) -> int:
    return max(1, CHUNK_BYTES // (math.prod(items.shape) * items.dtype.itemsize))


def _check_values(items: ArrayItems, name: str) -> None:
    for index, x in items.stream(batches(len(items), _rows_in_chunk(items))):
        bad = ~x.flatten(1).isfinite().all(1)
        if bad.any():
            found = f"found NaN or infinity in row {int(index[bad][0])}"
            raise ValueError(f"expected finite numbers in {name}, {found}; repair or drop such rows")
        if x.ndim == 4 and (x.min() < 0 or x.max() > 1):
            found = f"found {x.min():.4g} to {x.max():.4g}"
            raise ValueError(f"expected float images in [0, 1] in {name}, {found}; rescale them, or give uint8 (0 to 255)")


def open_arrays(path: Path, memory: int) -> Source:
    """Opens a ``.npy`` file, on disk if it has more bytes than ``memory``, or a ``.npz`` file of arrays with known keys.

    Keys: ``images`` (or x, data, X, arr_0) and ``labels`` (y, label); x_train, y_train, x_test, y_test (train comes first);
    ``context`` and ``target`` with labels, and the same with ``_test`` behind for a test part of their own. Labels are
    integers >= -1 (-1: unknown) or strings.

    Raises:
        ValueError: The file cannot be read without running code, or holds something else.
    """
    arrays = _read(path, memory)
    if all(key in arrays for key in PAIR_KEYS):
        return _pairs(arrays, path.name)
    if all(key in arrays for key in PART_KEYS[::2]):
        return _two_parts(arrays, path.name)
    key = next((key for key in ARRAY_KEYS if key in arrays), None)
    if key is None:
        expected = "images (or x), x_train and x_test, or context and target"
        raise ValueError(f"expected {expected} in {path.name}, found {', '.join(arrays) or 'nothing'}; rename its arrays")
    items = from_array(arrays[key], path.name)
    items.labels, classes = _labels(arrays, LABEL_KEYS, len(items), path.name)
    return Source(items, classes)


def _read(path: Path, memory: int) -> dict[str, Array]:
    large = path.suffix.lower() == ".npy" and path.stat().st_size > memory
    try:
        loaded = np.load(path, mmap_mode="r" if large else None, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"arr_0": loaded}
        with loaded:
            return {key: loaded[key] for key in loaded.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).split("\n", 1)[0].removesuffix(".") or type(error).__name__
        hint = "save numbers (no Python objects) with numpy.save or numpy.savez"
        raise ValueError(f"expected a NumPy file at {path}, found one that cannot be read ({reason}); {hint}") from None


def _pairs(arrays: dict[str, Array], name: str) -> Source:
    n = (*arrays["context"].shape, 0)[0]
    tests = [f"{key}_test" for key in PAIR_KEYS if f"{key}_test" in arrays]
    if len(tests) == 1:
        raise ValueError(f"expected context_test and target_test in {name}, found {tests[0]} alone; give both or neither")
    label = next((key for key in LABEL_KEYS if key in arrays), None)
    if label is not None and (f"{label}_test" in arrays) != bool(tests):
        raise ValueError(f"expected {label}_test in {name} where there is context_test, and only there; give both or neither")
    if tests:
        keys = (*PAIR_KEYS, *((label,) if label else ()))
        arrays = {key: np.concatenate([arrays[key], arrays[f"{key}_test"]]) for key in keys}
    context, target = (from_array(arrays[key], f"{key} of {name}") for key in PAIR_KEYS)
    context.labels, classes = _labels(arrays, LABEL_KEYS, len(context), name)
    pairs = PairItems(context, target)
    return Source(pairs, classes, torch.arange(len(pairs)) >= n, "context_test of the file") if tests else Source(pairs, classes)


def _two_parts(arrays: dict[str, Array], name: str) -> Source:
    train, test = (arrays[key] for key in PART_KEYS[::2])
    if train.shape[1:] != test.shape[1:]:
        found = f"found {train.shape} and {test.shape}"
        raise ValueError(f"expected x_train and x_test of {name} with items of one shape, {found}; reshape one")
    y = [key for key in PART_KEYS[1::2] if key in arrays]
    if len(y) == 1:
        raise ValueError(f"expected y_train and y_test in {name}, found {y[0]} alone; give both or neither")
    items = from_array(np.concatenate([train, test]), name)
    items.names = RowNames(torch.cat([torch.arange(len(train)), torch.arange(len(test))]))
    items.labels, classes = _labels({"y": np.concatenate([arrays[key] for key in y])} if y else {}, ("y",), len(items), name)
    return Source(items, classes, torch.arange(len(items)) >= len(train), "x_test of the file")


def _labels(arrays: dict[str, Array], keys: Sequence[str], n: int, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    key = next((key for key in keys if key in arrays), None)
    if key is None:
        return None, ()
    y = arrays[key]
    if y.shape not in ((n,), (n, 1)):
        raise ValueError(f"expected {n} labels in {key} of {name}, one an item, found shape {y.shape}")
    if y.dtype.kind in "US":
        classes, y = np.unique(y.reshape(n).astype(str), return_inverse=True)
        return torch.from_numpy(y.astype(np.int64)), tuple(str(one) for one in classes)
    if y.dtype.kind not in "iub" or y.min() < -1 or y.max() >= 100_000:
        hint = "number the classes 0, 1, ... (-1 for unknown), or give their names"
        raise ValueError(f"expected labels as whole numbers or strings in {key} of {name}, found type {y.dtype}; {hint}")
    return torch.from_numpy(y.reshape(n).astype(np.int64)), tuple(str(i) for i in range(int(y.max()) + 1))
