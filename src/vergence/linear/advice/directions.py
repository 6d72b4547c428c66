"""The principal directions in which both problems are solved and compared.

Tables (N, D) are handled in float64, so that neither the units of the features nor an offset far from zero cost digits; images
in float32.

Shapes: N items, D features, r directions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import ArrayItems, Items, Skipped, spaced
from vergence.linear.reading import Augmentation, as_table, as_tensor, flat

__all__ = ["Basis", "Rows", "as_items", "precision", "principal_directions"]

ITEMS = 10_000  # items that the directions are computed from, fewer where items are large
NUMBERS = 1 << 27  # numbers that these items may hold together: 0.5 GiB of float32
NULL = 1e-9  # a direction of less variance than this share of what uncorrelated features would give it is a linear dependence


class Rows(Items):
    """Rows of a table (N, D), in its own precision.

    Args:
        array: An array, a memory-mapped array, or a tensor.
        rows: (M,) int64, the rows that count; all by default.

    Example:
        >>> rows = Rows(np.arange(6.0).reshape(3, 2) + 1e12).subset(torch.tensor([2]))
        >>> next(rows.stream([torch.tensor([0])]))[1].tolist()
        [[1000000000004.0, 1000000000005.0]]
    """

    def __init__(self, array: Any, rows: Tensor | None = None) -> None:
        self.array = array
        self.rows = torch.arange(len(array)) if rows is None else rows
        self.shape, self.dtype = tuple(array.shape[1:]), as_tensor(array[:1]).dtype
        self.labels, self.names = None, [str(i) for i in self.rows.tolist()]
        self.skipped: list[Skipped] = []

    def __len__(self) -> int:
        return len(self.rows)

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (index, rows) for each index tensor; see `Items.stream`."""
        for index in batches:
            rows = self.rows[index]
            yield index, as_tensor(self.array[rows.to(self.array.device) if isinstance(self.array, Tensor) else rows.numpy()])

    def subset(self, index: Tensor) -> "Rows":
        """Returns the rows of an index (M,), sharing this one's array."""
        return Rows(self.array, self.rows[index])


def as_items(data: Any) -> Items:
    """Returns arrays as items, and items as they are; a table in memory that float32 holds exactly comes in float32.

    Raises:
        ValueError: Not items (N, D) or images (N, C, H, W).
    """
    if isinstance(data, Items):
        return data
    table = as_table(data)
    if table.ndim == 4:
        return ArrayItems(table)
    if isinstance(table, np.memmap):
        return Rows(table)
    table = as_tensor(table)
    single = table.float()
    return Rows(single if torch.equal(single.to(table.dtype), table) else table)


def precision(items: Items) -> torch.dtype:
    """Returns the type in which items are projected: float64 for tables, float32 for images."""
    return torch.float64 if len(items.shape) == 1 else torch.float32


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first.

    Attributes:
        mean: (D,).
        directions: (D, r).
        kept: Share of the items' variance that lies in them, in (0, 1]; 1 until it is measured.
    """

    mean: Tensor
    directions: Tensor
    kept: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns coordinates (B, r) of items (B, D), in the precision of the basis."""
        return (x.to(self.mean.dtype) - self.mean) @ self.directions


def principal_directions(items: Items, sampler: Augmentation | None, count: int, device: str) -> Basis:
    """Returns at most ``count`` principal directions of some items, by randomized subspace iteration where they are many.

    No feature is left out for the unit that makes it small: directions are left out only where features depend on each other
    linearly, or where there are more than ``count``.

    Args:
        items: N items.
        sampler: The augmentation where it is a function; views of images are cropped as it does.
        count: Largest r.
        device: Where they are computed, as torch names it.

    Raises:
        ValueError: The items are not finite, or all equal.
    """
    n = min(len(items), ITEMS, max(64, NUMBERS // int(np.prod(items.shape))))
    some = spaced(len(items), n)
    x = torch.cat([flat(raw, sampler) for _, raw in items.stream(iter(some.split(64)))]).to(device)
    mean = x.mean(0)
    mean = mean + (x - mean).mean(0)  # to the digits of the spread, where the mean is far from zero
    c = x - mean
    if not bool(c.isfinite().all()):
        raise ValueError("Input X contains NaN or infinity: leave those items out, or fill them in")
    if not bool(c.any()):
        raise ValueError("expected items that differ, found all alike: nothing can be compared")
    V, c, mean = (a.to(precision(items)) for a in (_spanning(c, count, tables=len(items.shape) == 1), c, mean))
    variance = (c @ V).square().sum(0)
    uncorrelated = c.square().sum(0) @ V.square()
    rounding = (64 * torch.finfo(c.dtype).eps) ** 2 * variance.max()
    keep = (variance > torch.maximum(NULL * uncorrelated, rounding)).nonzero().flatten()[:count]
    return Basis(mean, V[:, keep])


def _spanning(c: Tensor, count: int, *, tables: bool) -> Tensor:
    """Returns orthonormal columns (D, q) that span centered items (N, D), or their directions of most variance."""
    if min(c.shape) > 2 * count:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lowrank: Tensor = torch.svd_lowrank(c, q=count + 16, niter=4)[2]
        return lowrank
    if tables or len(c) > c.shape[1]:
        svd: Tensor = torch.linalg.svd(c.double(), full_matrices=False)[2].T
        return svd
    square, left = torch.linalg.eigh((c @ c.T).double())  # few large images
    few: Tensor = torch.linalg.qr(c.T @ left.flip(1)[:, square.flip(0) > NULL * square[-1]].to(c.dtype))[0]
    return few
