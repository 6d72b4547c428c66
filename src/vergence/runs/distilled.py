"""The closed form that a run's encoder learns to predict: a run of its own, in the folder ``closed_form`` of the run's.

It is fitted first and stays there; the embeddings of the training items lie beside it until they have been learned.
"""

import dataclasses
import typing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from vergence.data.items import Array, Items
from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.encoders.config import Patches
from vergence.evaluation import features
from vergence.methods.core import Method
from vergence.runs import run
from vergence.runs.description import completed
from vergence.runs.started import continued, created
from vergence.training import build, recipes
from vergence.training.config import RunConfig
from vergence.training.folder import CLOSED_FORM, RunFolder, holds_run
from vergence.training.recipes import Facts
from vergence.training.records import Weights
from vergence.utils import terminal
from vergence.utils.files import explained

__all__ = ["closed_form", "encoder_of", "forget", "targets"]

EMBEDDING, ROWS = "embedding.npy", 4096  # rows that are written at a time
SHARED = ("batch_size", "seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads")  # settings of both fits


def closed_form(fabric: Any, opened: Data, folder: RunFolder) -> tuple[Method, Data, RunFolder, Views | None]:
    """Returns what fits the closed form of a run: its method, the data, its own folder, new or to be continued, and views."""
    path, shape = folder.path / CLOSED_FORM, folder.metadata.shape
    known = holds_run(path)
    fabric.barrier()  # every process has looked before one writes
    mean, std = build.statistics(opened.train)
    config = _sharing(RunFolder.open(path).config if known else _description(folder.config, opened, shape), folder.config)
    method = build.initial_method(config, shape, None, mean, std)
    metadata = build.describe(config, opened, shape, None, method, Weights(source="random"), fabric)
    own = continued(path, config, metadata, method) if known else created(fabric, path, config, metadata, opened, method)
    return method, opened, own, build.make_views(opened, own.config.views, shape, mean, std)


def _description(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description of the closed form that a run's encoder learns to predict, with all of its settings."""
    base = recipes.get("patches", config.data.source)
    views = dataclasses.replace(base.views, flip=min(base.views.flip, config.views.flip))
    assert config.model.distill is not None, "of a run that is distilled"
    name, notes = completed(config.model.distill, Facts("image", shape, len(opened.train)), views.flip > 0)
    for note in notes:
        terminal.note(f"closed form: {note}")
    model = dataclasses.replace(base.model, encoder=name)
    return dataclasses.replace(base, data=config.data, views=views, model=model)


def _sharing(own: RunConfig, config: RunConfig) -> RunConfig:
    """Returns the closed form's description with the settings that it shares with the run's."""
    return dataclasses.replace(own, fit=dataclasses.replace(own.fit, **{name: getattr(config.fit, name) for name in SHARED}))


def targets(fabric: Any, method: Method, items: Items, own: RunFolder) -> Array:
    """Returns the closed form's embeddings (N, D) of the items, of unit length, on disk; they are computed once."""
    file, shape = own.path / EMBEDDING, (len(items), typing.cast(Patches, own.config.model.encoder).dim)
    known = _holds(file, shape)
    fabric.barrier()
    if not known:
        part = file.with_name(f".{EMBEDDING}.part")
        if fabric.is_global_zero:
            with explained(part, "free space, then go on with --resume"):
                _reserve(part, shape)
        fabric.barrier()
        _fill(fabric, part, method.encoder, items, own)
        fabric.barrier()
        if fabric.is_global_zero:
            part.replace(file)
        fabric.barrier()
    found: Array = np.load(file, mmap_mode="r")
    return found


def _holds(file: Path, shape: tuple[int, int]) -> bool:
    """Returns whether a file is a whole array of float32 of a shape."""
    try:
        found = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return bool(found.shape == shape and found.dtype == np.float32)


def _reserve(file: Path, shape: tuple[int, int]) -> None:
    """Writes an array of zeros, so that a full disk is an error now and not while its pages are set."""
    with file.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for start in range(0, shape[0], ROWS):
            out.write(bytes(4 * shape[1] * min(ROWS, shape[0] - start)))


def _fill(fabric: Any, file: Path, encoder: nn.Module, items: Items, own: RunFolder) -> None:
    """Sets this process's part of the embeddings, with a progress bar; those of items that cannot be read stay zero."""
    bounds = [len(items) * rank // fabric.world_size for rank in (fabric.global_rank, fabric.global_rank + 1)]
    mine = torch.arange(*bounds)
    rows = np.load(file, mmap_mode="r+")[slice(*bounds)]
    settings = {"size": own.metadata.crop_size(), "device": fabric.device, "workers": own.config.fit.workers}
    with terminal.bar("embedding", len(items), "images") as advance:
        for index, z in features.stream(encoder.eval(), items.subset(mine), **settings):
            rows[index.cpu().numpy()] = F.normalize(z.float(), dim=1).cpu().numpy()
            advance(len(index) * fabric.world_size)
    rows.flush()


def forget(fabric: Any, folder: RunFolder) -> None:
    """Removes the embeddings of a run's training items, which have been learned."""
    if fabric.is_global_zero:
        (folder.path / CLOSED_FORM / EMBEDDING).unlink(missing_ok=True)


def encoder_of(folder: RunFolder, device: torch.device) -> nn.Module | None:
    """Returns the closed form that a run's encoder learned to predict, on its input statistics; None where there is none."""
    path = folder.path / CLOSED_FORM
    if folder.config.model.distill is None or not (path / "model.safetensors").exists():
        return None
    return run.load(path, device="cpu").method.encoder.to(device)
