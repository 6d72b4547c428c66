"""Samples of a run's density: embeddings, or the nearest real pictures in a grid. N pictures (C, H, W)."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, PairItems, batches, contexts
from vergence.data.pixels import center_crop, resize, to_unit
from vergence.learn.evaluation import features
from vergence.learn.methods.core import Side
from vergence.learn.objectives.core import ConditionalObjective
from vergence.learn.runs.detector import opened
from vergence.learn.runs.rows import Images
from vergence.learn.runs.run import Run, objective_of
from vergence.utils.checks import expect, require_count
from vergence.utils.files import explained, replacing, require_parent

__all__ = ["picture_shape", "pictures_of", "targets", "write_samples"]

CONTEXTS = 8  # rows of a grid
DISTANCES = 1 << 24  # held at a time
SAFE = "the trained model is safe: free space and repeat the command, or choose another --out"
SIDE = 32  # smaller pictures are written larger, pixel by pixel


def picture_shape(run: Run) -> tuple[int, int, int]:
    """Returns (C, H, W) of the targets as the encoder sees them; raises a ValueError if they are not images."""
    metadata = run.folder.metadata
    shape = metadata.target_shape or metadata.shape
    expect(len(shape) == 3, "a run whose targets are images", f"vectors of {shape[0]} features", "write a .npz instead")
    return shape[0], shape[1], shape[2]


def targets(run: Run) -> Items:
    """Returns the items that the run's encoder was trained on; of pairs, the targets."""
    items = opened(run.folder).train
    return items.target if isinstance(items, PairItems) else items


def pictures_of(items: Items, index: Iterable[Tensor], run: Run, side: Side = "target") -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (index, pictures (B, C, H, W) in [0, 1]) on the run's device, cropped as for the side's encoder."""
    size = run.where(side)["size"]
    for i, x in items.stream(iter(index), workers=run.folder.config.fit.workers):
        x = contexts(x) if size is None else center_crop(contexts(x), size)
        yield i, to_unit(x, torch.float32).to(run.device)


@torch.inference_mode()
def nearest_pictures(run: Run, z: Tensor, items: Items | None = None) -> tuple[Tensor, Tensor]:
    """Returns the real pictures (N, C, H, W) whose projected embeddings are nearest to z (N, D), and their index (N,).

    The items to search are the run's training items by default, of pairs the targets; distances are Euclidean.
    """
    picture_shape(run)
    items = targets(run) if items is None else items
    bank, index = features.collect_features(run.method.target_network().eval(), items, **run.where("target"))
    bank = bank.to(run.device)
    near = [torch.cdist(part.to(bank), bank).argmin(1).cpu() for part in z.split(max(1, DISTANCES // len(bank)))]
    chosen = index[torch.cat(near)]
    return _read(run, items.subset(chosen)), chosen


def _read(run: Run, items: Items, side: Side = "target") -> Tensor:
    return torch.cat([x.cpu() for _, x in pictures_of(items, batches(len(items), 256), run, side)])


def write_samples(run: Run, out: Path, *, n: int | None = None, context: Images | None = None, seed: int = 0) -> int:
    """Samples from a run's density and writes embeddings (``.npz``) or the nearest real pictures (``.png``).

    A ``.npz`` holds za and zb (n, D) in the objective's space; given contexts za (R, D), zb (R, n, D) and their names. A
    ``.png`` is a grid of n training pictures, those whose embeddings are nearest to the samples; given contexts, a row for each:
    the context, then n samples of its targets.

    There are 64 samples by default, or 8 for each of the first eight items of ``context``, without which contexts are sampled as
    well. Returns the number of targets that were sampled.

    Raises:
        ValueError: The objective has no such density, the file's ending or folder cannot be used, or the targets are not images.
    """
    n = (64 if context is None else 8) if n is None else n
    _ = objective_of(run, ConditionalObjective)
    require_count(n=n)
    expect(out.suffix in (".npz", ".png"), "an ending among .npz (embeddings), .png (pictures)", f"'{out.name}'")
    require_parent(out)
    if out.suffix == ".png":
        picture_shape(run)
    items = None if context is None else _contexts(run, context)
    za, zb = run.sample(n, seed) if items is None else _given(run, items, n, seed)
    if out.suffix == ".npz":
        columns: dict[str, Any] = {"za": za.numpy(), "zb": zb.numpy()}
        columns |= {} if items is None else {"name": np.asarray(list(items.names), dtype=np.str_)}
        with explained(out, SAFE), replacing(out) as part, part.open("wb") as file:
            np.savez(file, **columns)
        return zb.numel() // zb.shape[-1]
    flat = zb.flatten(0, -2)
    _write_grid(out, nearest_pictures(run, flat)[0], None if items is None else _read_contexts(run, items), n)
    return len(flat)


def _contexts(run: Run, context: Images) -> Items:
    """Returns those of the first eight items that can be read."""
    items = run.items(context)
    items = items.subset(torch.arange(min(CONTEXTS, len(items))))
    index = torch.cat([i for i, _ in items.stream(batches(len(items), CONTEXTS))])
    reason = f"none that can be read: {items.skipped[0].reason}" if items.skipped else "none"
    expect(len(index), f"contexts among the first {len(items)} items", reason)
    return items.subset(index)


@torch.inference_mode()
def _given(run: Run, items: Items, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the contexts' embeddings (R, D), and n samples of the targets' for each (R, n, D)."""
    za = run.embed(items, projected=True)
    density = objective_of(run, ConditionalObjective).conditional(run.to_device(za))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return za, density.sample(torch.Size((n,))).transpose(0, 1).cpu().contiguous()


def _read_contexts(run: Run, items: Items) -> Tensor | None:
    """Returns the contexts as pictures (R, C, H, W) of the targets' shape; None where they are not images."""
    if len(run.folder.metadata.item_shape()) != 3:
        return None
    channels, height, width = picture_shape(run)
    x = resize(_read(run, items, "context"), height, width)
    return x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x if channels == 3 else x.mean(1, keepdim=True)


def _write_grid(out: Path, shown: Tensor, contexts: Tensor | None, n: int) -> None:
    """Writes pictures (R n, C, H, W) as a grid; each row of n begins with its context's picture where there is one."""
    from torchvision.utils import save_image

    columns = math.ceil(math.sqrt(n)) if contexts is None and len(shown) == n else n
    if contexts is not None:
        shown = torch.cat([contexts[:, None], shown.unflatten(0, (-1, n))], 1).flatten(0, 1)
        columns = n + 1
    larger = max(1, SIDE // min(shown.shape[2:]))
    shown = shown.repeat_interleave(larger, 2).repeat_interleave(larger, 3)
    with explained(out, SAFE), replacing(out) as part:
        save_image(shown, part, nrow=columns, padding=2, pad_value=1.0, format="png")
