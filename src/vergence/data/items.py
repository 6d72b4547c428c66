"""Items read by index: the contract, arrays in memory or on disk, and pairs of arrays."""

import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Array", "ArrayItems", "Items", "PairItems", "RowNames", "Skipped", "at", "batches", "fit", "pick"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Skipped:
    """An item that could not be read, and why."""

    name: str
    reason: str


class RowNames(Sequence[str]):
    """Row numbers as names, made when asked for.

    Example:
        >>> names = RowNames(range(10**12))
        >>> names[3], names[-1], list(names[5:7])
        ('3', '999999999999', ['5', '6'])
    """

    def __init__(self, rows: range | Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> "RowNames": ...
    def __getitem__(self, i: int | slice) -> "str | RowNames":
        return RowNames(self.rows[i]) if isinstance(i, slice) else str(int(self.rows[i]))


class Items(abc.ABC):
    """Items of one part of a data set, read by their index 0 .. N-1.

    Attributes:
        shape: Of one item as read: (C, H, W) for images, (D,) for vectors; of the context for pairs.
        dtype: Of the items as read: uint8 (0 to 255) or float32 (images: 0 to 1).
        labels: (N,) int64, -1 where unknown, or None where there are none. They serve evaluation only.
        names: A file's path relative to the data's folder, or a row's number.
        skipped: What `stream` could not read, each once.
        in_memory: Whether all items are one tensor, which `ArrayItems.to` can move to a device.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    labels: Tensor | None
    names: Sequence[str]
    skipped: list[Skipped]
    in_memory: bool = False

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number N of items."""

    @abc.abstractmethod
    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Any]]:
        """Yields (index, items) for each index tensor of ``batches``, in their order.

        Items are (B, *shape); for `PairItems` a tuple of two such tensors. What cannot be read is missing from the index and
        the items, and is listed in ``skipped``; a batch of which nothing can be read comes empty.

        Args:
            batches: int64 tensors (B,), on the CPU or where the items are; taken a few ahead where there are workers.
            workers: Processes that decode; arrays need none.
        """

    @abc.abstractmethod
    def subset(self, index: Tensor) -> "Items":
        """Returns the items of an int64 index (M,), in its order; nothing is read or copied."""


class ArrayItems(Items):
    """Rows of an array: images (N, C, H, W) in uint8 or float, or vectors (N, D).

    A ``np.memmap`` stays on disk and only the rows asked for are read; anything else becomes one tensor.

    Args:
        array: The rows. Floats and vectors of integers are read as float32.
        labels: (N,) int64.
        shape: Shape (C, H, W) that images are brought to on read (see `fit`); the array's own by default.
        names: Of the items; the row's numbers by default.
        rows: int64 (M,), the rows of ``array`` that are the items; all by default.

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
    ) -> None:
        self.dtype = torch.uint8 if array.ndim == 4 and array.dtype in (np.uint8, torch.uint8) else torch.float32
        if isinstance(array, Tensor):
            array = array.to(self.dtype)
        self.array = array if isinstance(array, Tensor | np.memmap) else _tensor(array, self.dtype)
        self.in_memory = isinstance(self.array, Tensor)
        self.shape = tuple(array.shape[1:]) if shape is None else shape
        self.rows = rows
        self.labels = labels
        self.names = RowNames(range(len(array)) if rows is None else rows) if names is None else names
        self.skipped = []

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def read(self, index: Tensor) -> Tensor:
        """Returns the items of an index (B,), shape (B, *shape)."""
        rows = index if self.rows is None else self.rows[index]
        x = (
            self.array.index_select(0, rows.to(self.array.device))
            if isinstance(self.array, Tensor)
            else _tensor(self.array[rows.numpy()], self.dtype)
        )
        return x if x.shape[1:] == self.shape else fit(x, self.shape)

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (index, items) for each index tensor, read in this process; see `Items.stream`."""
        for index in batches:
            yield index, self.read(index)

    def subset(self, index: Tensor) -> "ArrayItems":
        """Returns the items of an index, sharing this one's array; see `Items.subset`."""
        rows = index if self.rows is None else self.rows[index]
        return ArrayItems(self.array, at(self.labels, index), shape=self.shape, names=pick(self.names, index), rows=rows)

    def shaped(self, shape: tuple[int, ...]) -> "ArrayItems":
        """Returns the same images, brought to ``shape`` (C, H, W) on read."""
        return ArrayItems(self.array, self.labels, shape=shape, names=self.names, rows=self.rows)

    def to(self, device: str | torch.device) -> "ArrayItems":
        """Returns the items on ``device``, a tensor of these rows alone; an array on disk stays where it is."""
        if not isinstance(self.array, Tensor) or self.array.device == torch.device(device):
            return self
        array = self.array if self.rows is None else self.array[self.rows]
        return ArrayItems(array.to(device), self.labels, shape=self.shape, names=self.names)


class PairItems(Items):
    """Two arrays whose rows belong together; `shape`, `labels` and `names` are the context's.

    Raises:
        ValueError: The lengths differ.

    Example:
        >>> pairs = PairItems(ArrayItems(torch.zeros(6, 2)), ArrayItems(torch.ones(6, 3)))
        >>> index, (a, b) = next(pairs.stream(batches(6, 4)))
        >>> a.shape, b.shape, pairs.target_shape
        (torch.Size([4, 2]), torch.Size([4, 3]), (3,))
    """

    def __init__(self, context: ArrayItems, target: ArrayItems) -> None:
        if len(context) != len(target):
            found = f"found {len(context)} contexts and {len(target)} targets"
            raise ValueError(f"expected pairs, {found}; give as many of both")
        self.context, self.target = context, target
        self.shape, self.target_shape = context.shape, target.shape
        self.dtype, self.labels, self.names = context.dtype, context.labels, context.names
        self.in_memory = context.in_memory and target.in_memory
        self.skipped = []

    def __len__(self) -> int:
        return len(self.context)

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Yields (index, (context, target)) for each index tensor; see `Items.stream`."""
        for index in batches:
            yield index, (self.context.read(index), self.target.read(index))

    def subset(self, index: Tensor) -> "PairItems":
        """Returns the pairs of an index; see `Items.subset`."""
        return PairItems(self.context.subset(index), self.target.subset(index))

    def to(self, device: str | torch.device) -> "PairItems":
        """Returns the pairs on ``device``; see `ArrayItems.to`."""
        return PairItems(self.context.to(device), self.target.to(device))


def batches(n: int, size: int) -> Iterator[Tensor]:
    """Yields consecutive index tensors of at most ``size`` that together are 0 .. n-1.

    Example:
        >>> [index.tolist() for index in batches(5, 2)]
        [[0, 1], [2, 3], [4]]
    """
    for start in range(0, n, size):
        yield torch.arange(start, min(start + size, n))


def fit(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns images (B, C, H, W) brought to ``shape``: the largest centerd part of its aspect, antialiased; the type stays.

    Color becomes gray by luma = 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), gray becomes three equal channels.

    Example:
        >>> fit(torch.full((2, 3, 20, 30), 7, dtype=torch.uint8), (1, 8, 8)).unique()
        tensor([7], dtype=torch.uint8)
    """
    channels, height, width = shape
    h = min(x.shape[2], max(1, round(x.shape[3] * height / width)))
    w = min(x.shape[3], max(1, round(x.shape[2] * width / height)))
    top, left = (x.shape[2] - h) // 2, (x.shape[3] - w) // 2
    y = x[:, :, top : top + h, left : left + w].float()
    if channels == 1 and x.shape[1] == 3:
        y = torch.einsum("bchw,c->bhw", y, y.new_tensor([0.299, 0.587, 0.114]))[:, None]
    y = F.interpolate(y, size=(height, width), mode="bilinear", antialias=True).expand(-1, channels, -1, -1)
    return (y.round() if x.dtype == torch.uint8 else y).to(x.dtype)


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    with np.errstate(over="ignore"):
        kind = np.uint8 if dtype == torch.uint8 else np.float32
        return torch.from_numpy(np.require(np.asarray(array), dtype=kind, requirements=["C", "W"]))


def at(labels: Tensor | None, index: Tensor) -> Tensor | None:
    """Returns the labels of an index, where there are labels."""
    return None if labels is None else labels[index]


def pick(names: Sequence[str], index: Tensor) -> Sequence[str]:
    """Returns the names of an index; row numbers stay lazy."""
    if isinstance(names, RowNames):
        rows = names.rows
        return RowNames(rows.start + rows.step * index if isinstance(rows, range) else rows[index])
    return [names[i] for i in index.tolist()]
