"""Embeddings of data by a trained network: in order, in bounded memory, without gradient."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from vergence.data.items import Items, batches, contexts
from vergence.data.pixels import center_crop
from vergence.utils.devices import in_evaluation

__all__ = ["collect", "stream"]

T = TypeVar("T")


def stream(
    function: Callable[[Tensor], T],
    items: Items,
    *,
    size: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    workers: int = 0,
) -> Iterator[tuple[Tensor, T]]:
    """Yields the indices of the items read and the function of their batch, in the items' order, without unreadable items.

    Args:
        function: Function of a batch (B, ...) on ``device``.
        items: Items to read.
        size: Side of the central crop of images in pixels; None for vectors.
        device: Device that the function runs on.
        batch_size: Items per batch, which bounds the memory.
        workers: Processes that decode images.
    """

    def outcome(x: Tensor) -> T:
        x = x.to(device, non_blocking=True)
        x = x if size is None or x.ndim != 4 else center_crop(x, size).to(memory_format=torch.channels_last)
        return function(x)

    with torch.inference_mode():
        for index, x in items.stream(batches(len(items), batch_size), workers=workers):
            yield index, outcome(contexts(x))


def collect(
    encoder: nn.Module,
    items: Items,
    *,
    size: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    workers: int = 0,
) -> tuple[Tensor, Tensor]:
    """Returns the embeddings (N, D) of all readable items, float32 on the CPU, and their indices (N,).

    The encoder runs in evaluation mode; its modes are restored afterwards.

    Raises:
        ValueError: There is no item, or none can be read.
    """
    with in_evaluation(encoder):
        parts = [
            (i, z.float().cpu())
            for i, z in stream(encoder, items, size=size, device=device, batch_size=batch_size, workers=workers)
        ]
    if not parts:
        raise ValueError("expected items to embed, found none that can be read")
    return torch.cat([z for _, z in parts]), torch.cat([i for i, _ in parts])
