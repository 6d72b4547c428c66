"""Items read by index: the contract, arrays in memory or on disk, and pairs of arrays."""

import abc
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.pixels import fit_shape
from vergence.utils.checks import expect, require_count
from vergence.utils.dtypes import Array
from vergence.utils.terminal import bar

__all__ = ["Array", "ArrayItems", "Items", "PairItems", "RowNames", "Skipped", "Source", "batches", "contexts", "release_pages"]
__all__ += ["spaced"]

CHUNK_BYTES = 4 << 20
HELD = 16 << 20  # bytes read from a memory map before its pages are released


@dataclass(frozen=True)
class Skipped:
    """The name of an item that was left out, and the reason."""

    name: str
    reason: str


class RowNames(Sequence[str]):
    """Row numbers as names, written out one at a time.

    Example:
        >>> names = RowNames(range(10**12))
        >>> names[3], names[-1], list(names[5:7])
        ('3', '999999999999', ['5', '6'])
    """

    def __init__(self, rows: range | Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return RowNames(self.rows[i]) if isinstance(i, slice) else str(int(self.rows[i]))


class Items(abc.ABC):
    """Items of one part of a data set, read by their index 0 .. N-1."""

    shape: tuple[int, ...]  # of one item as it is read: (C, H, W) for images, (D,) for vectors; the context's for pairs
    dtype: torch.dtype  # as they are read: uint8 (0 to 255), float32 (images: 0 to 1), int64 of tokens, or float64 on request
    labels: Tensor | None  # (N,) int64, -1 where unknown; None without labels. Only evaluation uses them
    names: Sequence[str]  # path of each file relative to the folder, see `vergence.data.images`, or the number of each row
    skipped: list[Skipped]  # items that were left out, each once: files that `stream` could not read, and repeated links
    form: str = ""  # ``array`` or ``tokens`` of items that are neither images nor vectors, which nothing changes
    in_memory: bool = False  # whether all items are one tensor, which `ArrayItems.to` can move to a device

    @property
    def kind(self) -> Any:
        """What one item is: ``image``, ``vector``, ``array`` or ``tokens``; of pairs the context."""
        return self.form or ("image" if len(self.shape) == 3 else "vector")

    @property
    def chunk(self) -> int:
        """Number of items that `watched` reads at a time: about 4 MiB of an array."""
        return max(1, CHUNK_BYTES // (math.prod(self.shape) * self.dtype.itemsize))

    def __len__(self) -> int:
        """Returns the number N of items."""
        return len(self.names)

    @property
    def conversion(self) -> str | None:
        """What reading changes for a model that takes another shape, such as ``color to gray``; None if nothing."""
        return None

    @abc.abstractmethod
    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Any]]:
        """Yields (index, items) for each index tensor of ``batches``, in their order.

        Items are (B, *shape); for `PairItems` a tuple of two such tensors. Files that cannot be read are missing from the
        index and the items, and are listed in ``skipped``; a batch without a readable file is empty.

        Args:
            batches: int64 tensors (B,), on the CPU or on the items' device; workers take a few of them ahead.
            workers: Number of processes that decode images; arrays are read in this process.
        """

    @abc.abstractmethod
    def subset(self, index: Tensor) -> "Items":
        """Returns the items of an int64 index (M,), in its order; nothing is read or copied."""


class ArrayItems(Items):
    """Rows of an array: images (N, C, H, W) in uint8 or float, vectors (N, D), or what ``form`` says.

    A ``np.memmap`` stays on disk, and only the rows of a batch are read; any other array becomes one tensor.

    Args:
        array: The rows. Floats and vectors of integers are read as float32, or see ``double``.
        labels: (N,) int64.
        shape: Shape (C, H, W) that images are resized to when they are read (see `vergence.data.pixels.fit_shape`); the array's
            own by default.
        names: Names of the items; the rows' numbers by default.
        rows: int64 (M,), the rows of ``array`` that are the items; all by default.
        double: Whether vectors that float32 may round (float64 and integers) are read as float64.
        form: ``array`` for numbers of any shape, which are read as float32; ``tokens`` for ids, read as int64.

    Example:
        >>> items = ArrayItems(np.arange(12.0).reshape(6, 2)).subset(torch.tensor([5, 1]))
        >>> index, x = next(items.stream(batches(2, 2)))
        >>> x.tolist(), list(items.names)
        ([[10.0, 11.0], [2.0, 3.0]], ['5', '1'])
    """

    def __init__(
        self,
        array: Array | Tensor,
        labels: Tensor | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        names: Sequence[str] | None = None,
        rows: Tensor | None = None,
        double: bool = False,
        form: str = "",
    ) -> None:
        self.form, self.dtype = form, _dtype(array, double, form)
        if isinstance(array, Tensor):
            array = array.to(self.dtype)
        self.array = array if isinstance(array, Tensor | np.memmap) else _tensor(array, self.dtype)
        self.in_memory = isinstance(self.array, Tensor)
        self.unreleased = 0  # bytes
        self.shape = tuple(array.shape[1:]) if shape is None else shape
        self.rows, self.labels, self.skipped = rows, labels, []
        self.names = RowNames(range(len(array)) if rows is None else rows) if names is None else names

    @property
    def conversion(self) -> str | None:
        stored = tuple(self.array.shape[1:])
        return None if stored == self.shape else f"{_size(stored)} to {_size(self.shape)}"

    def read(self, index: Tensor) -> Tensor:
        """Returns the items of an index (B,), shape (B, *shape)."""
        rows = index if self.rows is None else self.rows[index]
        if isinstance(self.array, Tensor):
            x = self.array.index_select(0, rows.to(self.array.device))
        else:
            part = self.array[rows.numpy()]
            self.unreleased += part.nbytes
            if self.unreleased > HELD:
                release_pages(self.array)
                self.unreleased = 0
            x = _tensor(part, self.dtype)
        return x if x.shape[1:] == self.shape else fit_shape(x, self.shape)

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for index in batches:
            yield index, self.read(index)

    def subset(self, index: Tensor) -> "ArrayItems":
        rows = index if self.rows is None else self.rows[index]
        named, double = pick(self.names, index), self.dtype == torch.float64
        how: dict[str, Any] = {"shape": self.shape, "names": named, "double": double, "form": self.form}
        return ArrayItems(self.array, at(self.labels, index), rows=rows, **how)

    def shaped(self, shape: tuple[int, ...]) -> "ArrayItems":
        """Returns the same images, resized to ``shape`` (C, H, W) when they are read."""
        return ArrayItems(self.array, self.labels, shape=shape, names=self.names, rows=self.rows)

    def to(self, device: str | torch.device) -> "ArrayItems":
        """Returns the items on ``device``, as a tensor of these rows alone; an array on disk stays on disk."""
        if not isinstance(self.array, Tensor) or self.array.device == torch.device(device):
            return self
        array = self.array if self.rows is None else self.array[self.rows]
        double = self.dtype == torch.float64
        how: dict[str, Any] = {"shape": self.shape, "names": self.names, "double": double, "form": self.form}
        return ArrayItems(array.to(device), self.labels, **how)


class PairItems(Items):
    """Two arrays whose rows are pairs; `shape`, `labels` and `names` are the context's.

    Example:
        >>> pairs = PairItems(ArrayItems(torch.zeros(6, 2)), ArrayItems(torch.ones(6, 3)))
        >>> index, (a, b) = next(pairs.stream(batches(6, 4)))
        >>> a.shape, b.shape, pairs.target_shape
        (torch.Size([4, 2]), torch.Size([4, 3]), (3,))
    """

    def __init__(self, context: ArrayItems, target: ArrayItems) -> None:
        found = f"{len(context)} contexts and {len(target)} targets"
        expect(len(context) == len(target), "pairs", found, "give as many of both")
        self.context, self.target = context, target
        self.shape, self.target_shape = context.shape, target.shape
        self.dtype, self.labels, self.names = context.dtype, context.labels, context.names
        self.form, self.in_memory = context.form, context.in_memory and target.in_memory
        self.sides, self.skipped = {"context": context, "target": target}, []

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        for index in batches:
            yield index, tuple(side.read(index) for side in self.sides.values())

    def mapped(self, change: Callable[[ArrayItems], Any]) -> "PairItems":
        """Returns the items with every side changed by a function."""
        part = self._of({name: change(side) for name, side in self.sides.items()})
        part.labels = self.labels
        return part

    def _of(self, sides: dict[str, ArrayItems]) -> "PairItems":
        return PairItems(*sides.values())

    def subset(self, index: Tensor) -> "PairItems":
        part = self.mapped(lambda side: side.subset(index))
        part.labels = at(self.labels, index)
        return part

    def to(self, device: str | torch.device) -> "PairItems":
        return self.mapped(lambda side: side.to(device))


@dataclass(frozen=True)
class Source:
    """All items of a source, in order; fields as of `vergence.data.sources.Data`."""

    items: Items
    classes: tuple[str, ...] = ()
    test: Tensor | None = None  # (N,) bool, the source's own test part
    note: str = ""  # about that part
    size: int | None = None
    columns: tuple[str, ...] = ()


def contexts(batch: Any) -> Tensor:
    """Returns what the first encoder sees of a batch: of pairs the contexts, of items with targets the items."""
    context: Tensor = batch[0] if isinstance(batch, tuple | list) else batch
    return context


def batches(n: int, size: int) -> Iterator[Tensor]:
    """Yields consecutive index tensors of at most ``size`` that together are 0 .. n-1.

    Example:
        >>> [index.tolist() for index in batches(5, 2)]
        [[0, 1], [2, 3], [4]]
    """
    require_count(1, batch_size=size)
    for start in range(0, n, size):
        yield torch.arange(start, min(start + size, n))


def load(items: Items, workers: int = 0) -> tuple[ArrayItems, Tensor]:
    """Reads items (not pairs) into one tensor; returns them, and the int64 index of those that could be read."""
    x = torch.empty((len(items), *items.shape), dtype=items.dtype)
    read, n = [], 0
    for index, part in watched(items, workers):
        x[n : n + len(index)] = part
        n += len(index)
        read.append(index)
    index = torch.cat(read)
    part = items.subset(index)
    return ArrayItems(x[:n], part.labels, names=part.names), index


def watched(items: Items, workers: int) -> Iterator[tuple[Tensor, Any]]:
    """Yields (index, items) of all items, with a progress bar on a terminal if that takes long."""
    with bar("reading", len(items), late=True) as advance:
        for index, x in items.stream(batches(len(items), items.chunk), workers):
            advance(items.chunk)
            yield index, x


def spaced(n: int, most: int) -> Tensor:
    """Returns at most so many of the numbers 0 .. n-1, evenly spaced, as int64."""
    exact = torch.float32 if n <= 1 << 24 else torch.float64  # float32 cannot tell larger numbers apart
    return torch.linspace(0, n - 1, min(n, most), dtype=exact).long()


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _dtype(array: Array | Tensor, double: bool, form: str) -> torch.dtype:
    """Returns the type in which the rows of an array are read."""
    kind = str(array.dtype).removeprefix("torch.")
    if form:
        return torch.int64 if form == "tokens" else torch.float32
    if array.ndim == 4 and kind in ("uint8", "uint16", "bool"):
        return torch.uint8
    return torch.float64 if double and array.ndim == 2 and kind not in ("float16", "bfloat16", "float32") else torch.float32


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8 and array.dtype != np.uint8:
        from vergence.data.numbers import Numbers

        array = np.concatenate([Numbers().shown(part)[0] for part in np.array_split(array, 1 + array.nbytes // CHUNK_BYTES)])
    with np.errstate(over="ignore"):
        kind = {torch.uint8: np.uint8, torch.int64: np.int64, torch.float64: np.float64}.get(dtype, np.float32)
        return torch.from_numpy(np.require(np.asarray(array), dtype=kind, requirements=["C", "W"]))


def release_pages(array: Array) -> None:
    """Drops the pages of a memory-mapped file that were read, which would otherwise count as memory of this process."""
    pages = getattr(array, "_mmap", None)
    if getattr(array, "mode", "") in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED") and isinstance(pages, mmap.mmap):
        pages.madvise(mmap.MADV_DONTNEED)


def at(labels: Tensor | None, index: Tensor) -> Tensor | None:
    """Returns the labels of an index; None without labels."""
    return None if labels is None else labels[index]


def pick(names: Sequence[str], index: Tensor) -> Sequence[str]:
    """Returns the names of an index; row numbers stay lazy."""
    if isinstance(names, RowNames):
        rows = names.rows
        return RowNames(rows.start + rows.step * index if isinstance(rows, range) else rows[index])
    return [names[i] for i in index.tolist()]
