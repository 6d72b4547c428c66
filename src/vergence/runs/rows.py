"""Items in, rows out: what the verbs that write one row an item share. Memory does not grow with the number of items."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.densities.gaussian import GaussianMixture
from vergence.evaluation import features
from vergence.objectives.core import ConditionalObjective, DensityObjective, Objective
from vergence.training.folder import write_skipped
from vergence.utils.files import open_table
from vergence.utils.terminal import bar

__all__ = ["Columns", "by_parts", "parts", "stream", "write_rows"]

MAX_NUMBERS = 1 << 24  # numbers of a mixture's density, held at a time
Columns = dict[str, Tensor]  # name -> (B,) or (B, D)


def parts(objective: Objective | DensityObjective, z: Tensor, most: int = 4096) -> tuple[Tensor, ...]:
    """Splits embeddings (N, D) so that a part's table of items by components by features stays small.

    Args:
        objective: Objective whose components are counted.
        z: Embeddings in the objective's space (N, D).
        most: Maximum number of items in a part.
    """
    density = objective.conditional(z[:1]) if isinstance(objective, ConditionalObjective) and len(z) else None
    K = density.weights.shape[-1] if isinstance(density, GaussianMixture) else 1
    split: tuple[Tensor, ...] = z.split(max(1, min(most, MAX_NUMBERS // (K * z.shape[1]))))
    return split


def by_parts(function: Callable[[Tensor], Columns], objective: Objective | DensityObjective, z: Tensor) -> Columns:
    """Returns the columns that a function of embeddings (N, D) gives, computed in `parts`."""
    columns = [function(part) for part in parts(objective, z)]
    return {name: torch.cat([part[name] for part in columns]) for name in columns[0]}


def stream(
    function: Callable[[Tensor], Columns],
    items: Items,
    *,
    size: int | None,
    device: torch.device,
    batch_size: int = 256,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Columns]]:
    """Yields (index, columns) of each batch of items; samples have the same noise in every batch.

    Args:
        function: Columns of a batch of items (B, ...).
        items: Items to read; see `vergence.evaluation.features.stream` for this and what follows.
        size: Side of the central crop, in pixels; None for none.
        device: Device of the function.
        batch_size: Items at a time.
        workers: Processes that decode images.
    """

    def repeatable(x: Tensor) -> Columns:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return function(x)

    return features.stream(repeatable, items, size=size, device=device, batch_size=batch_size, workers=workers)


def write_rows(
    function: Callable[[Tensor], Columns],
    items: Items,
    out: Path,
    *,
    size: int | None,
    device: torch.device,
    batch_size: int = 256,
    workers: int = 2,
) -> int:
    """Writes the name and the columns of every item to a ``.npz``, ``.csv`` or ``.parquet`` file; returns the number of rows.

    What cannot be read is listed in ``OUT.skipped.csv``. For the arguments see `stream`.

    Raises:
        ValueError: No item could be read, or the file cannot be written.
    """
    rows = 0
    with open_table(out) as table, bar(out.name, len(items)) as advance:
        batches = stream(function, items, size=size, device=device, batch_size=batch_size, workers=workers)
        for index, columns in batches:
            names = [items.names[i] for i in index.tolist()]
            table.append({"name": names, **{name: value.float().cpu().numpy() for name, value in columns.items()}})
            rows += len(index)
            advance(len(index))
        if not rows:
            first = items.skipped[0]
            raise ValueError(f"none of the {len(items)} items could be read; the first, {first.name}: {first.reason}")
    listing = out.with_name(f"{out.name}.skipped.csv")
    listing.unlink(missing_ok=True)  # of an earlier call
    write_skipped(listing, items.skipped)
    return rows
