"""Reads items and their augmentations in blocks of a fixed number of rows, from arrays and files."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import ArrayItems, Items, release_pages
from vergence.data.pixels import to_unit
from vergence.utils import linalg
from vergence.utils.checks import expect, require_numbers

__all__ = ["Composed", "as_items"]

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
BLOCK = 1 << 22  # numbers in a block of items: 16 MiB of float32


@runtime_checkable
class Viewing(Protocol):
    """An augmentation that takes items as they are read, bytes too (`vergence.learn.views.images.Views`)."""

    def unchanged(self, x: Tensor) -> Tensor:
        """Returns items as its views would be without a change: floats, cropped as views are."""


class Composed:
    """Named augmentations, applied one after the other.

    Example:
        >>> f = Composed({"double": lambda X, generator: 2 * X, "add": lambda X, generator: X + 1})
        >>> f(torch.ones(1, 1), torch.Generator())
        tensor([[3.]])
    """

    def __init__(self, parts: Mapping[str, Augmentation]) -> None:
        self.parts = dict(parts)

    def __call__(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Returns X after all parts."""
        for part in self.parts.values():
            X = part(X, generator)
        return X


def as_items(data: Any) -> Items:
    """Returns arrays as items, and items as they are; a table in memory that float32 holds exactly comes in float32."""
    if isinstance(data, Items):
        return data
    items = ArrayItems(as_table(data), double=True)
    if isinstance(items.array, Tensor) and items.dtype == torch.float64:
        single = items.array.float()
        return ArrayItems(single) if torch.equal(single.double(), items.array) else items
    return items


def blocks(source: Any) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields (number, items, their rows) of the blocks of `Items`, an array or a tensor (N, ...), the last one shorter."""
    size = max(1, math.prod(source.shape if isinstance(source, Items) else source.shape[1:]))
    index = torch.arange(len(source)).split(max(256 if size <= 1 << 16 else 8, BLOCK // size))
    read = source.stream(iter(index)) if isinstance(source, Items) else _read(source, index)
    for b, (rows, x) in enumerate(read):
        yield b, x, rows


def _read(array: Any, index: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for i in index:
        yield i, as_tensor(array[int(i[0]) : int(i[-1]) + 1])
        if isinstance(array, np.memmap):
            release_pages(array)


def as_table(data: Any) -> Any:
    """Returns items as an array or a tensor (N, D), or images (N, C, H, W); a memory map stays one."""
    table = data if isinstance(data, (Tensor, np.memmap)) else np.asarray(data)
    require_numbers(table)
    fits = table.ndim in (2, 4) and 0 not in table.shape
    expect(fits, "items (N, D) or images (N, C, H, W)", f"shape {tuple(table.shape)}")
    return table


def as_tensor(x: Any) -> Tensor:
    """Returns items as float32 or float64, uint8 images unchanged; shares memory where it can."""
    if isinstance(x, Tensor):
        x = linalg.upcast_half(x.detach())
        kept: Tensor = x if x.is_floating_point() or (x.dtype == torch.uint8 and x.ndim == 4) else x.double()
        return kept
    x = np.asarray(x)
    keep = x.dtype in (np.float32, np.float64) or (x.dtype == np.uint8 and x.ndim == 4)
    x = np.ascontiguousarray(x, dtype=x.dtype if keep else np.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes; `draw` passes copies on
        return torch.from_numpy(x)


def flat(x: Tensor, augmentation: Augmentation | None) -> Tensor:
    """Returns items without augmentation as the model gets them, (B, D): floats, images in [0, 1], cropped as views are."""
    plain = augmentation.unchanged(x) if isinstance(augmentation, Viewing) else to_unit(x)  # only images are uint8
    return plain.flatten(1)


def draw(x: Tensor, augmentation: Augmentation, m: int, seed: int, block: int) -> Iterator[Tensor]:
    """Yields m views (B, D) of raw items, from generators seeded by (seed, block)."""
    state = np.random.SeedSequence([seed, block]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    shape = tuple(flat(x[:1], augmentation).shape[1:])
    if not isinstance(augmentation, Viewing):
        x = to_unit(x)
    for _ in range(m):
        view = augmentation(x.clone(), generator)
        view = view.detach() if isinstance(view, Tensor) else torch.as_tensor(np.asarray(view), device=x.device)
        fits = view.ndim >= 2 and len(view) == len(x) and tuple(view.flatten(1).shape[1:]) == shape
        expect(fits, f"the augmentation to return {len(x)} items of {shape[0]} features", f"shape {tuple(view.shape)}")
        yield view.flatten(1)
