"""Data that a Python program holds: arrays, tensors, pictures, tables, pairs and data sets of PyTorch, opened as items."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import from_array, labels_of, of_table
from vergence.data.images import DECODE_BATCH, canvas, channels, image_files, image_pixels, parallel, written_name
from vergence.data.items import Array, ArrayItems, Items, PairItems, RowNames, Skipped, Source, at
from vergence.utils.checks import expect, refuse, require_choice, shown
from vergence.utils.linalg import as_array

__all__ = ["IN_MEMORY", "in_words", "is_object"]

IN_MEMORY = "memory: "  # starts the name of data that a program holds

MIXED = "a list of paths, of PIL images, of tensors or of rows of numbers"


def is_object(source: Any) -> bool:
    """Returns whether a source is the data themselves, not a path or a name.

    Example:
        >>> is_object("photos"), is_object(Path("photos")), is_object(np.zeros((3, 2))), is_object(["a.png"])
        (False, False, True, True)
    """
    return not isinstance(source, str | os.PathLike)


def in_words(source: Any) -> str:
    """Returns the name that a run's description has for data that a program holds.

    Example:
        >>> in_words(np.zeros((5, 28, 28), dtype=np.uint8)), in_words((np.zeros((5, 2)), np.zeros((5, 3))))
        ('memory: ndarray (5, 28, 28)', 'memory: ndarray (5, 2), ndarray (5, 3)')
    """
    parts = source if isinstance(source, tuple) and len(source) == 2 else (source,)
    return IN_MEMORY + ", ".join(f"{type(part).__name__} {_extent(part)}".strip() for part in parts)


def _extent(source: Any) -> str:
    shape = getattr(source, "shape", None)
    if isinstance(shape, Sequence):
        return f"({', '.join(map(str, shape))})"
    return f"of {len(source)}" if hasattr(source, "__len__") else ""


def from_object(
    source: Any,
    *,
    column: str | Sequence[str] = (),
    labels: Any = None,
    size: int | None = None,
    memory: int = 2 << 30,
    double: bool = False,
) -> Source:
    """Opens data that a program holds.

    ======================================== ==========================================================================
    array or tensor                          images (N, H, W[, C]) or (N, C, H, W), or vectors (N, D): see `from_array`
    list of paths                            image files
    list of PIL images                       images; of several sizes they become squares, as those of a folder
    list of tensors, or of rows              one array
    tuple (context, target)                  pairs; each of them any of the above that is an array, or a table
    pandas, polars or Arrow table            features: see `vergence.data.arrays.of_table`; or paths in a column
    `torch.utils.data.Dataset`               what it holds, or the first of each tuple; whole numbers that follow are labels
    `Items`                                  the items
    ======================================== ==========================================================================

    Args:
        source: The data.
        column: Of a table, the column of lists of numbers or of paths of images, or the columns of features. Of a data set
            whose items are dictionaries, the key of the image or vector.
        labels: Labels (N,): whole numbers >= -1 (-1: unknown), or texts.
        size: Side of the squares that images of several sizes become, in pixels, 8/7 of it to be cropped; 64 by default.
        memory: Bytes up to which the items of a data set are read once and held; more are read anew for each batch.
        double: Whether vectors that float32 may round are read as float64.

    Raises:
        ValueError: The data are none of these, are empty, or hold other values.

    Example:
        >>> from_object(np.zeros((5, 28, 28, 3), dtype=np.uint8)).items.shape
        (3, 28, 28)
        >>> pairs = from_object((np.zeros((5, 2)), torch.zeros(5, 3))).items
        >>> pairs.shape, pairs.target_shape
        ((2,), (3,))
    """
    opened = _opened(source, (column,) if isinstance(column, str) else tuple(column), size, memory, double)
    if labels is None:
        return opened
    given = as_array(labels) if isinstance(labels, Tensor) else np.asarray(labels)
    values, classes = labels_of(given, len(opened.items), "labels", "the data")
    opened.items.labels = values
    return Source(opened.items, classes, opened.test, opened.note, opened.size, opened.columns)


def _opened(source: Any, columns: tuple[str, ...], size: int | None, memory: int, double: bool) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, Items):
        return Source(source)
    if isinstance(source, tuple) and len(source) == 2:
        context, target = (_opened(part, (), size, memory, double).items for part in source)
        if not isinstance(context, ArrayItems) or not isinstance(target, ArrayItems):
            refuse("arrays or tables as context and target", " and ".join(map(_kind, source)))
        return Source(PairItems(context, target))
    if (table := _as_table(source)) is not None:
        return _of_table(table, columns, size, double)
    if isinstance(source, Tensor | np.ndarray):
        return Source(from_array(source, double=double))
    if isinstance(source, list | tuple):
        return _of_list(source, size, double)
    if hasattr(source, "__array__"):
        return Source(from_array(np.asarray(source), double=double))
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping):
        return _of_dataset(source, columns[0] if columns else None, memory)
    hint = "loop over it, and give each batch" if isinstance(source, Iterable) else "give a path, a built-in name or an array"
    refuse("data that have a length and rows", _kind(source), hint)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"


# Tables


def _as_table(source: Any) -> Any:
    """Returns a pandas, polars or Arrow table as an Arrow table; None for other objects."""
    if not hasattr(source, "columns") and not hasattr(source, "column_names"):
        return None
    import pyarrow as pa

    try:
        if isinstance(source, pa.Table):
            return source
        if hasattr(source, "to_arrow"):  # polars
            return source.to_arrow()
        if hasattr(source, "iloc"):
            return pa.Table.from_pandas(source, preserve_index=False)
        return pa.table(source) if hasattr(source, "__arrow_c_stream__") else None
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"expected a table with columns of numbers or texts, found: {error}; convert them") from None


def _of_table(table: Any, columns: tuple[str, ...], size: int | None, double: bool) -> Source:
    for name in columns:
        require_choice("a column", name, table.column_names)
    if len(columns) == 1:
        values = table[columns[0]].to_pylist()
        if values and all(isinstance(value, str) for value in values):
            return _of_files(values, size)
    return of_table(table, "the table", columns, double=double)


# Lists


def _of_list(values: Sequence[Any], size: int | None, double: bool) -> Source:
    from PIL import Image

    expect(values, MIXED, "an empty list")
    if all(isinstance(value, str | os.PathLike) for value in values):
        return _of_files(values, size)
    if all(isinstance(value, Image.Image) for value in values):
        return _of_pictures(values, size)
    try:
        rows = torch.stack(list(values)) if all(isinstance(v, Tensor) for v in values) else np.asarray(values)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"expected {MIXED} of one shape, found other ones: {error}") from None
    expect(isinstance(rows, Tensor) or rows.dtype.kind in "iufb", MIXED, _kind(values[0]))
    return Source(from_array(rows, "the list", double=double))


def _of_files(paths: Sequence[Any], size: int | None) -> Source:
    """Opens image files anywhere; their names are relative to the folder that all of them have in common."""
    absolute = [str(Path(path).expanduser().absolute()) for path in paths]
    folder = Path(os.path.commonpath([str(Path(path).parent) for path in absolute]))
    return image_files(folder, [written_name(str(Path(path).relative_to(folder))) for path in absolute], size)


def _of_pictures(images: Sequence[Any], size: int | None) -> Source:
    """Opens PIL images: in their size if all have one, else as squares."""
    sizes = {(image.height, image.width) for image in images}
    side, shape = canvas(size, channels(image.mode for image in images))
    shape = (shape[0], *sizes.pop()) if len(sizes) == 1 else shape
    items = ArrayItems(np.stack([image_pixels(image, shape) for image in images]))
    return Source(items, size=side if sizes else None)


# Data sets


class DatasetItems(Items):
    """Items of a data set that is read by index, such as a `torch.utils.data.Dataset`.

    An item is a tensor, an array or a PIL image: an image (C, H, W) or (H, W), (H, W, C) of arrays and PIL images, in uint8 or
    as floats in [0, 1]; or a vector (D,). Of a tuple the first is the item; of a dictionary the one under ``key``.

    Args:
        dataset: Object with ``__len__`` and ``__getitem__``.
        key: Name of the image or vector in items that are dictionaries.
        rows: int64 (M,), the items to read; all by default.
        labels: (M,) int64.

    Raises:
        ValueError: An item is something else, or has another shape than the first.
    """

    def __init__(self, dataset: Any, key: str | None = None, rows: Tensor | None = None, labels: Tensor | None = None) -> None:
        self.dataset, self.key = dataset, key
        self.rows = torch.arange(len(dataset)) if rows is None else rows
        self.labels, self.names, self.skipped = labels, RowNames(self.rows), []
        first = _item(dataset[int(self.rows[0])], key)
        self.shape = first.shape
        self.dtype = torch.uint8 if first.dtype == np.uint8 else torch.float32

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def chunk(self) -> int:
        """Number of items that are read at a time; see `Items.chunk`."""
        return DECODE_BATCH

    def checked(self, row: int, value: Any = None) -> Array:
        """Returns an item, of the first item's shape; it is what the data set gives for a row unless that is given."""
        item = _item(self.dataset[row] if value is None else value, self.key)
        expect(item.shape == self.shape, f"items of shape {self.shape}", f"{item.shape} at {row}", "resize the data set's items")
        return item

    def read(self, index: Tensor | Array) -> tuple[Array, Array, list[Skipped]]:
        """Returns (index, items (B, *shape), nothing); see `vergence.data.images.ImageFiles.read`."""
        items = [self.checked(row) for row in self.rows[torch.as_tensor(index)].tolist()]
        return np.asarray(index), np.stack(items) if items else np.empty((0, *self.shape), np.float32), []

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (index, items) for each index tensor; see `Items.stream`."""
        for index, items, _ in map(self.read, batches) if workers == 0 else parallel(self.read, batches, workers):
            yield torch.from_numpy(index), torch.from_numpy(items).to(self.dtype)

    def subset(self, index: Tensor) -> "DatasetItems":
        """Returns the items of an index; see `Items.subset`."""
        return DatasetItems(self.dataset, self.key, self.rows[index], at(self.labels, index))


def _item(value: Any, key: str | None) -> Array:
    """Returns what a data set gives (of a tuple the first, of a dictionary the key's) as uint8 or float32 (C, H, W) or (D,)."""
    from PIL import Image

    if isinstance(value, Mapping):
        require_choice("a column", key, value, "name the image or vector with column=")
        value = value[key]
    elif isinstance(value, tuple | list):
        value = value[0]
    if isinstance(value, Image.Image):
        return image_pixels(value, (channels([value.mode]), value.height, value.width))
    x = as_array(value) if isinstance(value, Tensor) else np.asarray(value)
    usable = x.dtype.kind in "iuf" and x.ndim in (1, 2, 3) and x.size
    expect(usable, "images or vectors in the data set", _kind(value), "return one of them, or a tuple")
    if x.ndim == 1:
        return x.astype(np.float32)
    x = x[None] if x.ndim == 2 else np.moveaxis(x, 2, 0) if x.shape[2] in (1, 3) and x.shape[0] not in (1, 3) else x
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))


def _of_dataset(dataset: Any, key: str | None, memory: int) -> Source:
    """Opens a data set; one that fits into memory is read once, with what stands second in its items where they are tuples."""
    expect(len(dataset), "at least 1 item in the data set", _kind(dataset))
    items = DatasetItems(dataset, key)
    held: ArrayItems | DatasetItems = items
    values = getattr(dataset, "targets", getattr(dataset, "labels", None))
    if len(items) * int(np.prod(items.shape)) * items.dtype.itemsize <= memory:
        x = np.empty((len(items), *items.shape), np.uint8 if items.dtype == torch.uint8 else np.float32)
        second: list[Any] = []
        for i in range(len(items)):
            value = dataset[i]
            x[i] = items.checked(i, value)
            second += value[1:2] if isinstance(value, tuple | list) else ()
        held = from_array(x, "the data set")
        values = values if values is not None else second or None
    if values is None or len(values) != len(held) or not _is_label(values[0]):
        return Source(held)
    held.labels, numbers = labels_of(np.asarray([int(value) for value in values]), len(held), "labels", "the data set")
    names = tuple(map(str, getattr(dataset, "classes", ())))
    return Source(held, names if len(names) >= len(numbers) else numbers)


def _is_label(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0 and not value.is_floating_point()
    return isinstance(value, int | np.integer)
