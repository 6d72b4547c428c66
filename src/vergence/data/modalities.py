"""Items of several modalities, such as two spectra and a table of one sample; rows of any of them may be missing."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import ArrayItems, Items, PairItems, batches
from vergence.data.pixels import to_unit
from vergence.utils.checks import expect, refuse
from vergence.utils.linalg import as_array


class ModalityItems(PairItems):
    """Arrays by name whose rows are items; the first is the context. A missing row is NaN.

    Example:
        >>> parts = {"spectrum": torch.zeros(6, 2), "table": torch.ones(6, 3), "image": torch.full((6, 1, 4, 4), torch.nan)}
        >>> items = ModalityItems({name: ArrayItems(x) for name, x in parts.items()})
        >>> index, x = next(items.stream(iter([torch.tensor([5, 1])])))
        >>> [tuple(part.shape) for part in x], missing(x[2]).tolist()
        ([(2, 2), (2, 3), (2, 1, 4, 4)], [True, True])
    """

    def __init__(self, sides: Mapping[str, ArrayItems]) -> None:
        first, *others = sides.values()
        super().__init__(first, (others or [first])[0])
        found = ", ".join(f"{len(side)} of {name}" for name, side in sides.items())
        expect(len({len(side) for side in sides.values()}) == 1, "as many rows of each modality", found)
        self.sides, self.in_memory = dict(sides), all(side.in_memory for side in sides.values())

    def _of(self, sides: dict[str, ArrayItems]) -> "ModalityItems":
        return ModalityItems(sides)


def missing(x: Tensor) -> Tensor:
    """Returns which items of a modality (B, ...) are missing, (B,) bool."""
    return x.flatten(1).isnan().any(1)


def with_context(items: Items) -> Items:
    """Returns the items that have their first modality; other data as they are."""
    if not isinstance(items, ModalityItems):
        return items
    gaps = [missing(x) for _, x in items.context.stream(batches(len(items), items.chunk))]
    return items.subset((~torch.cat(gaps)).nonzero()[:, 0])


def modality_items(data: Mapping[Any, Any], read: Callable[[Any], Items]) -> ModalityItems:
    """Opens arrays by name with a function that opens one; rows that are wholly NaN, or wholly masked, are missing."""
    expect(data and all(str(name).isidentifier() for name in data), "modalities by names such as 'spectrum'", list(data))
    return ModalityItems({str(name): _with_gaps(part, read, str(name)) for name, part in data.items()})


def _with_gaps(part: Any, read: Callable[[Any], Items], name: str) -> ArrayItems:
    x = as_array(part) if isinstance(part, Tensor) else part
    array = isinstance(x, np.ndarray) and x.ndim > 1
    data = np.ma.getdata(x) if array else np.zeros((1, 1))
    hidden = np.ma.getmaskarray(x if array else data) | (data != data)
    gaps = hidden.reshape(len(data), -1).all(1)
    parts = hidden[~gaps].any() and np.ma.isMaskedArray(x)
    expect(not parts, f"rows of modality {name} that are masked as a whole", "parts of rows", "fill them")
    expect(not gaps.all(), f"rows of modality {name}", "none")
    where = gaps.reshape(-1, *[1] * (data.ndim - 1))
    items = read(np.where(where, data[~gaps][:1], data) if gaps.any() else part)
    if not isinstance(items, ArrayItems):
        refuse(f"an array, a tensor or a table as modality {name}", type(part).__name__)
    if not gaps.any():
        return items
    rows = to_unit(items.read(torch.arange(len(items))), torch.float32).clone()
    rows[torch.from_numpy(gaps)] = torch.nan
    return ArrayItems(rows)
