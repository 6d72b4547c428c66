"""What lies in a folder of images or in a NumPy file, read, checked and with its labels."""

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Array, ArrayItems, Items, PairItems, RowNames, batches
from vergence.data.loading import rows_in_chunk

__all__ = [
    "Source",
    "channels_first",
    "from_array",
    "open_arrays",
]

ARRAY_KEYS = ("images", "x", "data", "X", "arr_0")
LABEL_KEYS = ("labels", "y", "label")
PART_KEYS = ("x_train", "y_train", "x_test", "y_test")
PAIR_KEYS = ("context", "target")


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


def _check_values(items: ArrayItems, name: str) -> None:
    for index, x in items.stream(batches(len(items), rows_in_chunk(items))):
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
