"""Features of data: by a trained network, in order and in bounded memory, and those of a baseline, PCA."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.items import Items, batches, contexts
from vergence.data.modalities import ModalityItems, missing
from vergence.data.pixels import center_crop, to_unit
from vergence.utils.checks import expect, require_count
from vergence.utils.devices import in_evaluation
from vergence.utils.linalg import as_float, require_features

__all__ = ["collect_features", "pca", "pixels", "stream_batches"]

T = TypeVar("T")


def stream_batches(
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
            context = contexts(x)
            if isinstance(items, ModalityItems):  # an item without the first modality is one that cannot be read
                index, context = index[~missing(context)], context[~missing(context)]
            yield index, outcome(context)


def collect_features(encoder: nn.Module, items: Items, **reading: Any) -> tuple[Tensor, Tensor]:
    """Returns the embeddings (N, D) of all readable items, float32 on the CPU, and their indices (N,).

    The encoder runs in evaluation mode; its modes are restored afterwards. Items are read as by `stream_batches`.
    """
    with in_evaluation(encoder):
        parts = [(i, z.float().cpu()) for i, z in stream_batches(encoder, items, **reading)]
    expect(parts, "items to embed", "none that can be read")
    return torch.cat([z for _, z in parts]), torch.cat([i for i, _ in parts])


def pixels(x: Tensor) -> Tensor:
    """Returns the inputs as features (N, D) in float32, with D values per item.

    Args:
        x: Items (N, ...); uint8 is scaled from 0..255 to [0, 1], other types keep their values.

    Example:
        >>> pixels(torch.tensor([[[0, 255], [51, 102]]], dtype=torch.uint8))
        tensor([[0.0000, 1.0000, 0.2000, 0.4000]])
    """
    expect(x.ndim >= 2, "items of shape (N, ...)", tuple(x.shape), "put items along the first dimension")
    return to_unit(x, torch.float32).flatten(1)


def pca(train: Tensor, test: Tensor, dim: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns both parts projected on the leading principal components of the training part, not whitened.

    The components are those of scikit-learn's randomized solver.

    Args:
        train: Features (N, D).
        test: Features (M, D).
        dim: Number of components, >= 1; at most min(N, D) are used.
        seed: Seed of the randomized solver.

    Returns:
        Features (N, min(dim, N, D)) and (M, min(dim, N, D)), of the inputs' type and device.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
        >>> a, b = pca(x, x[:1], dim=1)
        >>> [round(abs(v), 3) for v in a[:, 0].tolist()], tuple(b.shape)
        ([5.0, 0.0, 5.0], (1, 1))
    """
    from sklearn.decomposition import PCA

    require_features(train=train, test=test)
    require_count(dim=dim)
    train, test = as_float(train), as_float(test)
    model = PCA(min(dim, *train.shape), svd_solver="randomized", random_state=seed)
    with np.errstate(invalid="ignore"):  # constant training features explain 0 of a variance of 0
        model.fit(train.cpu().numpy())
    a, b = (torch.from_numpy(model.transform(z.cpu().numpy())).to(z) for z in (train, test))
    return a, b
