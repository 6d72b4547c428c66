"""Refuses a step that cannot fit into the memory of its device, before anything is computed."""

import contextlib
import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vergence.data.views import Views
from vergence.methods.core import ImageMethod, Method
from vergence.training import loop
from vergence.training.config import FitConfig
from vergence.utils.devices import total_memory
from vergence.utils.modules import in_evaluation

__all__ = ["item_bytes", "require_memory"]


def require_memory(method: Method, views: Views | None, config: FitConfig, shape: Sequence[int], device: torch.device) -> None:
    """Raises a ValueError where what a step keeps exceeds the memory of a process's device.

    Args:
        method: The method.
        views: Views of the run's strengths; None where nothing is trained on views.
        config: Batch size, processes and precision.
        shape: Shape of an item as the encoder sees it.
        device: The device of this process.
    """
    if views is None:
        return
    half = "bf16" in str(loop.precision(config, device.type))
    items = config.batch_size / (config.devices * config.nodes) / (2 if half else 1)  # of the weights' precision
    memory = total_memory(device)
    needed = item_bytes(method, views, shape, most=memory / items) * items
    if needed > memory:
        what = "local_crops, --batch-size" if hasattr(method, "local_crops") else "--batch-size"
        raise ValueError(
            f"expected a step that fits into {memory / 2**30:.0f} GiB of memory, found more than that of views and of "
            f"what their gradient needs; lower {what} or the size of the images"
        )


@torch.enable_grad()
def item_bytes(method: Method, views: Views, shape: Sequence[int], *, most: float = math.inf) -> int:
    """Returns the bytes that a step keeps of each item, in the weights' precision: its views, and what their gradient needs.

    They are counted in a forward pass of one blank item, which leaves the method as it was. The objectives on pairs, whose losses
    need several items, are left out, so that the number is a lower bound. Above ``most`` bytes the count stops: one item alone
    may be too large.

    Example:
        >>> from vergence import methods
        >>> from vergence.data.config import ViewConfig
        >>> from vergence.data.views import ImageViews
        >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
        >>> vae = methods.get("variational_autoencoder")(encoder, (1, 8, 8), latent=2)
        >>> item_bytes(vae, ImageViews(ViewConfig(), 8), (1, 8, 8)) > 2 * 4 * 64
        True
    """
    if not any(p.requires_grad for p in method.parameters()):
        return 0
    own = copy.deepcopy(method) if isinstance(method, ImageMethod) else method  # the former keep what they see
    first = next(own.parameters())
    weights = {p.untyped_storage().data_ptr() for p in own.parameters()}
    inputs = own.inputs(views)
    blank = torch.zeros(1, *shape, dtype=first.dtype, device=first.device)
    shown = inputs.apply(blank, inputs.draw(1, torch.Generator().manual_seed(0)))
    kept = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in shown}
    total = sum(storage.nbytes() for storage in kept.values())

    def pack(t: Tensor) -> Tensor:
        nonlocal total
        storage = t.untyped_storage()
        if storage.data_ptr() not in weights and storage.data_ptr() not in kept:
            kept[storage.data_ptr()] = storage
            total += storage.nbytes()
            if total > most:
                raise _Enough
        return t

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)
    with in_evaluation(own), torch.random.fork_rng(devices=[]), hooks, contextlib.suppress(_Enough):
        if isinstance(own, ImageMethod):
            own(shown, lambda z: z)
        else:
            branch = own.branch("context")
            for x in shown:
                branch(x)
    return total


class _Enough(Exception):
    """Stops a forward pass that is known to be too large."""
