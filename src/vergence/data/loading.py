"""Reading every item of a source once, with a progress bar if that takes long."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from vergence.data.images import ImageFiles
from vergence.data.items import ArrayItems, Items, batches

__all__ = ["load", "rows_in_chunk", "watched"]


DECODE_BATCH = 32
CHUNK_BYTES = 4 << 20
PATIENCE_SECONDS = 2.0


def load(items: Items, workers: int = 0) -> tuple[ArrayItems, Tensor]:
    """Reads items (not pairs) into one tensor; returns them, and the int64 index of those that could be read."""
    x = torch.empty((len(items), *items.shape), dtype=items.dtype)
    kept, n = [], 0
    for index, part in watched(items, workers):
        x[n : n + len(index)] = part
        n += len(index)
        kept.append(index)
    index = torch.cat(kept)
    part = items.subset(index)
    return ArrayItems(x[:n], part.labels, names=part.names), index


def watched(items: Items, workers: int) -> Iterator[tuple[Tensor, Any]]:
    """Yields (index, items) of all items, with a progress bar on a terminal if that takes long."""
    from rich.console import Console
    from rich.progress import Progress

    start, console, started = time.monotonic(), Console(stderr=True), False
    progress = Progress(console=console, transient=True)
    task = progress.add_task("reading", total=len(items))
    size = DECODE_BATCH if isinstance(items, ImageFiles) else rows_in_chunk(items)
    with ExitStack() as stack:
        for index, x in items.stream(batches(len(items), size), workers):
            progress.advance(task, size)
            if not started and sys.stderr.isatty() and time.monotonic() - start > PATIENCE_SECONDS:
                stack.enter_context(progress)
                started = True
            yield index, x


def rows_in_chunk(items: Items) -> int:
    """Returns how many items make a chunk of about 4 MiB."""
    return max(1, CHUNK_BYTES // (math.prod(items.shape) * items.dtype.itemsize))
