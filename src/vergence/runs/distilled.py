"""The closed form that a run's encoder learns to predict: a run of its own, in the folder ``closed_form`` of the run's.

It is fitted first and stays there; the embeddings of the training items lie beside it until they have been learned.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.nn import functional as F

from vergence.data.items import Array, Items
from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.encoders.patch_maps import PatchSettings
from vergence.evaluation import features
from vergence.methods.core import Method
from vergence.runs.description import fitted
from vergence.runs.run import untrained_method
from vergence.training import build, recipes
from vergence.training.config import RunConfig
from vergence.training.folder import CLOSED_FORM, RunFolder
from vergence.training.records import Weights
from vergence.utils.files import explained, replacing
from vergence.utils.terminal import bar

__all__ = ["closed_form", "encoder_of", "forget", "targets"]

EMBEDDING = "embedding.npy"
SHARED = ("seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads")  # settings of both fits


def _description(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description of the closed form that a run's encoder learns to predict, with all of its settings.

    Raises:
        ValueError: The images are too small for it.
    """
    base = recipes.get("patches")(config.data.source)
    fit = dataclasses.replace(base.fit, **{name: getattr(config.fit, name) for name in SHARED})
    model = dataclasses.replace(base.model, encoder=str(config.model.distill))
    return fitted(dataclasses.replace(base, data=config.data, model=model, fit=fit), opened, shape)


def closed_form(fabric: Any, opened: Data, folder: RunFolder) -> tuple[Method, Data, RunFolder, Views | None]:
    """Returns what fits the closed form of a run: its method, the data, its own folder, new or to be continued, and views."""
    path, shape = folder.path / CLOSED_FORM, folder.metadata.shape
    known = (path / "config.json").exists()
    fabric.barrier()  # every process has looked before one writes
    mean, std = build.statistics(opened.train)
    if known:
        own = RunFolder.open(path)
        method = build.initial_method(own.config, shape, None, mean, std)
    else:
        config = _description(folder.config, opened, shape)
        method = build.initial_method(config, shape, None, mean, std)
        metadata = build.describe(config, opened, shape, None, method, Weights(source="random"), fabric)
        own = RunFolder(path, config, metadata)
        if fabric.is_global_zero:
            own = RunFolder.create(path, config, metadata)
        fabric.barrier()
    return method, opened, own, build.make_views(opened, own.config.views, shape, mean, std)


def targets(fabric: Any, method: Method, items: Items, own: RunFolder) -> Array:
    """Returns the closed form's embeddings (N, D) of the items, of unit length, on disk; the first process computes them once."""
    file = own.path / EMBEDDING
    known = file.exists()
    fabric.barrier()
    if not known and fabric.is_global_zero:
        _write(file, method.encoder, items, own, fabric.device)
    fabric.barrier()
    found: Array = np.load(file, mmap_mode="r")
    return found


def _write(file: Path, encoder: nn.Module, items: Items, own: RunFolder, device: Any) -> None:
    """Writes the embeddings in the items' order, with a progress bar; those of items that cannot be read are zero."""
    dim = PatchSettings.parse(own.config.model.encoder, own.metadata.shape).dim
    size, workers = own.metadata.crop_size(), own.config.fit.workers
    with explained(file, "free space, then go on with --resume"), replacing(file) as part:
        rows = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=(len(items), dim))
        with bar("embedding", len(items), "images") as advance:
            for index, z in features.stream(encoder.eval(), items, size=size, device=device, workers=workers):
                rows[index.cpu().numpy()] = F.normalize(z.float(), dim=1).cpu().numpy()
                advance(len(index))
        rows.flush()


def forget(fabric: Any, own: RunFolder) -> None:
    """Removes the embeddings, which have been learned."""
    if fabric.is_global_zero:
        (own.path / EMBEDDING).unlink(missing_ok=True)


def encoder_of(folder: RunFolder) -> nn.Module | None:
    """Returns the closed form that a run's encoder learned to predict, on its input statistics; None where there is none."""
    path = folder.path / CLOSED_FORM
    if folder.config.model.distill is None or not (path / "model.safetensors").exists():
        return None
    own = RunFolder.open(path)
    method = untrained_method(own)
    method.load_state_dict(own.load_model())
    return method.encoder
