"""Items in, rows out: what the verbs that write one row an item share. Memory does not grow with the number of items."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vergence.data.items import Items, Skipped
from vergence.densities.gaussian import GaussianMixture
from vergence.evaluation import features
from vergence.objectives.core import ConditionalObjective, DensityObjective, Objective
from vergence.runs.identity import of_items, versions
from vergence.training.folder import write_skipped
from vergence.utils.files import Column, require_table
from vergence.utils.parts import Derived, open_parts
from vergence.utils.terminal import bar

__all__ = ["Columns", "by_parts", "parts", "stream", "write_rows"]

MAX_NUMBERS = 1 << 24  # numbers of a mixture's density, held at a time
Columns = dict[str, Any]  # name -> tensor (B,) or (B, D), written as float32; an array, or a list of texts, as it is


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
    job: Mapping[str, Any],
    size: int | None,
    device: torch.device,
    batch_size: int = 256,
    workers: int = 2,
    derived: Derived | None = None,
) -> int:
    """Writes the name and the columns of every item to a ``.npz``, ``.csv`` or ``.parquet`` file; returns the number of rows.

    The rows are kept in parts beside ``out`` until all are there (see `vergence.utils.parts`): the same call after a kill, a
    signal or a full disk goes on behind the last part. What cannot be read is listed in ``OUT.skipped.csv``.

    Args:
        function: Columns of a batch of items (B, ...).
        items: Items to read.
        out: File to write.
        job: What determines the rows beside the items and the settings below: the verb and the model.
        size: See `stream` for this and what follows.
        device: Device of the function.
        batch_size: Items at a time.
        workers: Processes that decode images.
        derived: Columns that are computed when all rows are there.

    Raises:
        ValueError: No item could be read, the file cannot be written, or another process writes it.
    """
    require_table(out)  # before the items are read for their digest
    settings = {"size": size, "device": device.type, "batch_size": batch_size}
    with open_parts(out, {**job, **settings, **versions(), "source": of_items(items)}, derived=derived) as kept:
        repeated = [(one.name, one.reason) for one in items.skipped]
        with bar(out.name, len(items)) as advance:
            advance(kept.done)
            for names, columns, n, skipped in _batches(function, items, kept.done, size, device, batch_size, workers):
                kept.append({"name": names, **columns}, n, skipped)
                advance(len(names))
        listed = list(dict.fromkeys(repeated + kept.skipped))
        if not kept.rows:
            kept.clear()
            raise ValueError(f"none of the {len(items)} items could be read; the first, {listed[0][0]}: {listed[0][1]}")
        items.skipped = [Skipped(*one) for one in listed]
        write_skipped(out.with_name(f"{out.name}.skipped.csv"), items.skipped)
        return kept.rows


def _batches(
    function: Callable[[Tensor], Columns],
    items: Items,
    start: int,
    size: int | None,
    device: torch.device,
    batch_size: int,
    workers: int,
) -> Iterator[tuple[list[str], dict[str, Column], int, list[tuple[str, str]]]]:
    """Yields names, columns, number of items, and name and reason of those skipped, of each batch from an item on."""
    rest = items.subset(torch.arange(start, len(items)))
    seen = len(rest.skipped)
    batches = stream(function, rest, size=size, device=device, batch_size=batch_size, workers=workers)
    for first, (index, columns) in zip(range(0, len(rest), batch_size), batches, strict=True):
        names = [rest.names[i] for i in index.tolist()]
        arrays = {name: v.float().cpu().numpy() if isinstance(v, Tensor) else v for name, v in columns.items()}
        new, seen = rest.skipped[seen:], len(rest.skipped)
        yield names, arrays, min(batch_size, len(rest) - first), [(one.name, one.reason) for one in new]
