"""Arrays and NumPy files: read, checked and with their labels."""

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.data.images import written_name
from vergence.data.items import Array, ArrayItems, PairItems, RowNames, Source, batches, rows_in_chunk, spaced
from vergence.utils.devices import total_memory
from vergence.utils.files import DAMAGE
from vergence.utils.linalg import as_array

__all__ = ["ARRAY_KEYS", "LABEL_KEYS", "NAME_KEYS", "PAIR_KEYS", "channels_first", "checked_names", "from_array", "holds_pairs"]
__all__ += ["labels_of", "not_finite", "open_arrays", "read_arrays"]

ARRAY_KEYS = ("images", "x", "data", "X", "features", "z", "embeddings", "arr_0")
LABEL_KEYS = ("labels", "y", "label")
NAME_KEYS = ("names", "name")
PART_KEYS = ("x_train", "y_train", "x_test", "y_test")
PAIR_KEYS = ("context", "target")
TEST_KEYS = tuple(f"{key}_test" for key in (*PAIR_KEYS, *LABEL_KEYS))
MOST_CLASSES = 100_000
MAGIC = b"\x93NUMPY"
SAMPLE = 10_000  # rows at most, by which it is judged whether float32 tells them apart
COARSE = 0.01  # largest rounding error of a column, in units of its standard deviation


# Arrays


def from_array(array: Array | Tensor, name: str = "the array", *, double: bool = False) -> ArrayItems:
    """Checks an array and returns its rows as items.

    Args:
        array: Vectors (N, D) of numbers; or images (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 (channels last
            if both are possible), in uint8 or as floats in [0, 1].
        name: Name of the array in error messages.
        double: Whether vectors that float32 may round are read as float64.

    Raises:
        ValueError: The array has another rank or type, other values or no rows, or a row holds NaN or infinity.

    Example:
        >>> from_array(np.zeros((5, 28, 28), dtype=np.uint8)).shape
        (1, 28, 28)
    """
    array = as_array(array) if isinstance(array, Tensor) else array
    if array.ndim == 2 and array.dtype.kind not in "iuf":
        raise ValueError(f"expected numbers in {name}, found type {array.dtype}; convert them with .astype('float32')")
    if array.ndim > 2 and array.dtype != np.uint8 and array.dtype.kind != "f":
        hint = "convert them with .astype('uint8') if they are 0 to 255"
        raise ValueError(f"expected images in {name} as uint8, or as floats in [0, 1], found type {array.dtype}; {hint}")
    items = ArrayItems(channels_first(array, name), double=double)
    if items.dtype != torch.uint8:
        _require_values(items, name)
    if items.dtype == torch.float32 and array.ndim == 2 and array.dtype.itemsize > 4:
        _require_resolution(array, name, min(SAMPLE, rows_in_chunk(items)))
    return items


def channels_first(array: Array, name: str) -> Array:
    """Returns a view of vectors as they are, or of images as (N, C, H, W).

    Raises:
        ValueError: The shape is that of neither, or there are no rows.
    """
    shape = array.shape
    if array.ndim not in (2, 3, 4) or min(shape[1:]) < 1:
        raise ValueError(f"expected {name} as (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W), found {shape}; reshape it")
    if shape[0] < 1:
        raise ValueError(f"expected at least 1 row in {name}, found shape {shape}; give some data")
    if array.ndim == 3 and shape[2] in (1, 3):
        raise ValueError(f"expected several images in {name}, found {shape}, which looks like one; give (N, H, W, C)")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and shape[3] not in (1, 3) and shape[1] not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels, second or last, in {name}, found shape {shape}; drop the others")
    return np.moveaxis(array, 3, 1) if array.ndim == 4 and shape[3] in (1, 3) else array


def _require_values(items: ArrayItems, name: str) -> None:
    for index, x in items.stream(batches(len(items), rows_in_chunk(items))):
        bad = ~x.flatten(1).isfinite().all(1)
        if bad.any():
            row = int(index[bad][0])
            raise not_finite(name, row)
        if x.ndim == 4 and (x.min() < 0 or x.max() > 1):
            found = f"found {x.min():.4g} to {x.max():.4g}"
            raise ValueError(f"expected float images in [0, 1] in {name}, {found}; rescale them, or give uint8 (0 to 255)")


def _require_resolution(array: Array, name: str, most: int) -> None:
    """Raises a ValueError where float32 rounds a column of numbers (N, D) by more than a hundredth of their deviation.

    At most ``most`` rows are read, evenly spaced.
    """
    x = np.asarray(array[spaced(len(array), max(2, most)).numpy()], dtype=np.float64)
    std, error = x.std(0), np.abs(x - x.astype(np.float32)).max(0)
    if len(coarse := np.flatnonzero(error > COARSE * std)):
        j = int(coarse[0])
        found = f"found numbers near {x[:, j].mean():.7g} with a deviation of {std[j]:.2g} in column {j}"
        raise ValueError(f"expected columns that float32 tells apart in {name}, {found}; subtract the column's mean")


def not_finite(name: str, row: int) -> ValueError:
    """Returns the error for NaN or infinity in a row of an array."""
    return ValueError(f"expected finite numbers in {name}, found NaN or infinity in row {row}; repair or drop such rows")


# NumPy files


def open_arrays(path: Path, memory: int, *, double: bool = False) -> Source:
    """Opens a ``.npy`` file, on disk if it has more bytes than ``memory``, or a ``.npz`` file of arrays with known keys.

    Keys: ``images`` (or x, data, X, features, z, embeddings, arr_0), ``labels`` (y, label) and ``names`` (name) of the items, as
    the command embed writes them; x_train, y_train, x_test, y_test (train comes first);
    ``context`` and ``target`` with labels, and the same followed by ``_test`` for a test part of their own. Labels are
    integers >= -1 (-1: unknown) or strings. With ``double``, single vectors that float32 may round are read as float64.

    Raises:
        ValueError: The file cannot be read without running code, or holds something else.
    """
    arrays, names = read_arrays(path, (*ARRAY_KEYS, *LABEL_KEYS, *NAME_KEYS, *PART_KEYS, *PAIR_KEYS, *TEST_KEYS), memory)
    if all(key in arrays for key in PAIR_KEYS):
        return _pairs(arrays, path.name)
    if all(key in arrays for key in PART_KEYS[::2]):
        return _two_parts(arrays, path.name, double)
    key = next((key for key in ARRAY_KEYS if key in arrays), None)
    if key is None:
        expected = "images (or x, features, embeddings), x_train and x_test, or context and target"
        raise ValueError(f"expected {expected} in {path.name}, found {', '.join(names) or 'nothing'}; rename its arrays")
    items = from_array(arrays[key], path.name, double=double)
    items.labels, classes = _labels(arrays, LABEL_KEYS, len(items), path.name)
    if (named := next((key for key in NAME_KEYS if key in arrays), None)) is not None:
        items.names = checked_names(arrays[named], len(items), f"{named} of {path.name}")
    return Source(items, classes)


def checked_names(names: Array, n: int, where: str) -> list[str]:
    """Returns the names of n items.

    Raises:
        ValueError: They are not n texts; ``where`` says which.
    """
    if names.shape != (n,) or names.dtype.kind not in "US":
        found = f"found {names.dtype} of shape {names.shape}"
        raise ValueError(f"expected {n} texts in {where}, the name of each item, {found}; give one name per row")
    return [written_name(str(name).replace("\0", "\N{SYMBOL FOR NULL}")) for name in _texts(names)]


def _texts(values: Array) -> Array:
    """Returns texts; bytes are read as UTF-8."""
    return np.char.decode(values, "utf-8", "surrogateescape") if values.dtype.kind == "S" else values


def read_arrays(path: Path, keys: Sequence[str], memory: int) -> tuple[dict[str, Array], list[str]]:
    """Reads the arrays of a NumPy file.

    Args:
        path: A ``.npy`` file, whose array is called ``arr_0``, or a ``.npz`` file.
        keys: Names of the arrays to read, where the file has them.
        memory: A ``.npy`` file of more bytes is memory-mapped.

    Returns:
        The arrays by name, and the names of all arrays in the file.

    Raises:
        ValueError: The file is damaged, would need more memory than the machine has, or holds Python objects.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's about headers of old or odd files
            with path.open("rb") as file:
                single = file.read(len(MAGIC)) == MAGIC
            if not single:
                return _read_archive(path, keys)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            return {"arr_0": array if path.stat().st_size > memory else np.array(array)}, ["arr_0"]
    except PermissionError:
        raise ValueError(f"expected a NumPy file at {path}, found one without permission to read it; change that") from None
    except DAMAGE as error:
        reason = str(error).split("\n", 1)[0].removesuffix(".") or type(error).__name__
        hint = "save numbers (no Python objects) with numpy.save or numpy.savez"
        raise ValueError(f"expected a NumPy file at {path}, found one that cannot be read ({reason}); {hint}") from None


def _read_archive(path: Path, keys: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    arrays: dict[str, Array] = {}
    if not zipfile.is_zipfile(path):
        raise ValueError("neither one array nor an archive of arrays")
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
        for key in (key for key in keys if key in members):
            if members[key].file_size > total_memory(torch.device("cpu")):
                size = f"{members[key].file_size / 2**30:.0f} GiB"
                raise ValueError(f"{key} needs {size} of memory, more than there is: a .npy file is read from the disk")
            with archive.open(members[key]) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays, list(members)


def holds_pairs(path: Path) -> bool:
    """Returns whether a file is a ``.npz`` with the arrays context and target; False where it cannot be read.

    Example:
        >>> holds_pairs(Path("photos/cat.png"))
        False
    """
    if path.suffix.lower() != ".npz":
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return {f"{key}.npy" for key in PAIR_KEYS} <= set(archive.namelist())
    except DAMAGE:
        return False


def _pairs(arrays: dict[str, Array], name: str) -> Source:
    for key in PAIR_KEYS:
        channels_first(arrays[key], f"{key} of {name}")
    n = len(arrays["context"])
    tests = [f"{key}_test" for key in PAIR_KEYS if f"{key}_test" in arrays]
    if len(tests) == 1:
        raise ValueError(f"expected context_test and target_test in {name}, found {tests[0]} alone; give both or neither")
    label = next((key for key in LABEL_KEYS if key in arrays), None)
    if label is not None and (f"{label}_test" in arrays) != bool(tests):
        raise ValueError(f"expected {label}_test in {name} if it has context_test, and only then; give both or neither")
    for end in ("", "_test") if tests else ():
        for key in ("target", *((label,) if label else ())):
            _require_rows(arrays, f"context{end}", f"{key}{end}", name)
    if tests:
        keys = (*PAIR_KEYS, *((label,) if label else ()))
        arrays = {key: _joined(arrays[key], arrays[f"{key}_test"], key, name) for key in keys}
    context, target = (from_array(arrays[key], f"{key} of {name}") for key in PAIR_KEYS)
    context.labels, classes = _labels(arrays, LABEL_KEYS, len(context), name)
    pairs = PairItems(context, target)
    return Source(pairs, classes, torch.arange(len(pairs)) >= n, "context_test of the file") if tests else Source(pairs, classes)


def _two_parts(arrays: dict[str, Array], name: str, double: bool) -> Source:
    y = [key for key in PART_KEYS[1::2] if key in arrays]
    if len(y) == 1:
        raise ValueError(f"expected y_train and y_test in {name}, found {y[0]} alone; give both or neither")
    for part in ("train", "test") if y else ():
        _require_rows(arrays, f"x_{part}", f"y_{part}", name)
    n = len(channels_first(arrays["x_train"], f"x_train of {name}"))
    items = from_array(_joined(arrays["x_train"], arrays["x_test"], "x", name), name, double=double)
    items.names = RowNames(torch.cat([torch.arange(n), torch.arange(len(items) - n)]))
    labels = {"y": _joined(arrays["y_train"], arrays["y_test"], "y", name)} if y else {}
    items.labels, classes = _labels(labels, ("y",), len(items), name)
    return Source(items, classes, torch.arange(len(items)) >= n, "x_test of the file")


def _require_rows(arrays: dict[str, Array], a: str, b: str, name: str) -> None:
    """Raises a ValueError unless two arrays of a file have as many rows."""
    if arrays[a].shape[:1] != arrays[b].shape[:1]:
        found = f"found {arrays[b].shape} and {arrays[a].shape}"
        raise ValueError(f"expected as many rows in {b} of {name} as in {a}, {found}; give one for each item")


def _joined(train: Array, test: Array, key: str, name: str) -> Array:
    """Returns the rows of the training part and of the test part below each other."""
    if train.shape[1:] != test.shape[1:] or 0 in (train.ndim, test.ndim):
        found = f"found {train.shape} and {test.shape}"
        raise ValueError(f"expected both parts of {key} in {name} with items of one shape, {found}; reshape one")
    if train.dtype.kind != test.dtype.kind and not {train.dtype.kind, test.dtype.kind} <= set("biuf"):
        found = f"found {train.dtype} and {test.dtype}"
        raise ValueError(f"expected both parts of {key} in {name} of one type, {found}; convert one")
    return np.concatenate([train, test])


def _labels(arrays: dict[str, Array], keys: Sequence[str], n: int, name: str) -> tuple[Tensor | None, tuple[str, ...]]:
    key = next((key for key in keys if key in arrays), None)
    return (None, ()) if key is None else labels_of(arrays[key], n, key, name)


def labels_of(y: Array, n: int, key: str, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Returns the labels (N,) of n items, and the name of each class.

    Args:
        y: Whole numbers >= -1 (-1: unknown) or strings.
        n: Number of items.
        key: What the labels are called in error messages.
        name: Name of the file.

    Raises:
        ValueError: There are not n labels, or they are something else.
    """
    if y.shape not in ((n,), (n, 1)):
        raise ValueError(f"expected {n} labels in {key} of {name}, one per item, found shape {y.shape}")
    if y.dtype.kind in "US":
        classes, y = np.unique(_texts(y.reshape(n)), return_inverse=True)
        return torch.from_numpy(y.astype(np.int64)), tuple(written_name(str(one)) for one in classes)
    hint = "number the classes 0, 1, ... (-1 for unknown), or give their names"
    if y.dtype.kind not in "iub":
        raise ValueError(f"expected labels as whole numbers or strings in {key} of {name}, found type {y.dtype}; {hint}")
    if y.min() < -1 or y.max() >= MOST_CLASSES:
        found = f"found {y.min()} to {y.max()}"
        raise ValueError(f"expected labels from -1 to {MOST_CLASSES - 1:,} in {key} of {name}, {found}; {hint}")
    return torch.from_numpy(y.reshape(n).astype(np.int64)), tuple(str(i) for i in range(int(y.max()) + 1))
