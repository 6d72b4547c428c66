"""The stages of a training: a closed form, learning one, steps with an objective, the density. Each works on one state.

A run that was killed continues in the stage of its last checkpoint; stages that are done are passed.
"""

import contextlib
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from vergence.data.items import Array, Items
from vergence.data.sources import Data
from vergence.learn.encoders.config import Patches
from vergence.learn.evaluation import features
from vergence.learn.methods.core import Method
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.runs import detector as detectors
from vergence.learn.runs.description import completed
from vergence.learn.training import build, closed_form, loop, recipes, staged
from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.folder import CLOSED_FORM, RunFolder, holds_run
from vergence.learn.training.metrics import Metrics, Progress, online_knn
from vergence.learn.training.recipes import Facts
from vergence.learn.training.records import Weights
from vergence.learn.training.start import continued, created
from vergence.learn.views.images import Views
from vergence.utils import terminal
from vergence.utils.files import explained
from vergence.utils.parts import Shard

EMBEDDING, ROWS = "embedding.npy", 4096  # rows that are written at a time
SHARED = ("batch_size", "seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads")  # settings of both fits
UNSHOWN = {"step", "epoch", "lr", "images_per_second", "threads", "std", "variance_cv"}

OnStep = Callable[[int, dict[str, float]], bool | None]


@dataclass(frozen=True)
class State:
    """What a stage works on."""

    fabric: Any  # the engine that `vergence.learn.training.loop.launch` returned
    method: Method  # stages change it in place
    opened: Data
    folder: RunFolder  # keeps checkpoints
    views: Views | None  # random views of a batch; None for pairs and for a frozen encoder
    progress: OnStep | None = None  # called after every step with the number of steps, loss and terms; False ends them
    # part of the items whose sums a closed form keeps; see `vergence.learn.training.closed_form.fit_closed_form`
    shard: Shard | None = None

    @property
    def first(self) -> bool:
        """Whether this is the first process, which writes and shows progress."""
        return bool(self.fabric.is_global_zero)


Stage = Callable[[State], None]


def stages_of(model: ModelConfig) -> list[Stage]:
    """Returns the stages in which a model is fitted.

    Example:
        >>> [stage.__name__ for stage in stages_of(ModelConfig(distill="patches"))]
        ['distill', 'take_steps', 'fit_density']
    """
    if model.freeze:
        return [keep, fit_density]
    first: list[Stage] = [solve] if model.encoder.closed_form else [distill] if model.distill is not None else []
    return [*first, *([take_steps] if model.takes_steps else []), fit_density]


def keep(state: State) -> None:
    """Puts the method on the device and saves its encoder as it is."""
    state.method.to(state.fabric.device)
    state.folder.save_model(state.method.state_dict())


def take_steps(state: State) -> None:
    """Trains with the objective to the last epoch (`vergence.learn.training.loop`), with a progress bar."""
    config, fabric, opened = state.folder.config.fit, state.fabric, state.opened
    with _steps("epoch", config.epochs, state) as progress:
        monitor = online_knn(opened, state.folder.metadata.crop_size(), fabric.device)
        done = loop.fit(fabric, state.method, opened.train, state.views, config, state.folder, monitor=monitor, progress=progress)
    if state.first and done < (total := config.epochs * loop.require_batches(len(opened.train), config)):
        words = f"stopped after step {done:,} of {total:,}, as on_step returned False; resume=True continues"
        terminal.note(words)
        state.folder.log(words)


def solve(state: State) -> None:
    """Fits the encoder, or the first part of it, in closed form (`vergence.learn.training.closed_form`), with a progress bar.

    Of an encoder with a network on top, what another run gave or a checkpoint has is kept.
    """
    config, folder, method = state.folder.config, state.folder, state.method
    behind = config.model.encoder.takes_steps
    if behind and (config.model.init is not None or staged.is_fitted(state.fabric, folder)):
        return
    assert state.views is not None and isinstance(method, PairedMethod), "pairs and methods on images were refused"
    assert isinstance(config.model.encoder, Patches), "of a closed form"
    settings, recorder = config.model.encoder.complete(folder.metadata.shape), staged.FirstStage(folder) if behind else folder
    with terminal.bar("dictionary", closed_form.total_images(len(state.opened.train), settings), "images") as advance:

        def progress(images: int, label: str) -> None:
            if state.first:
                advance(images, label=label)

        fitted = staged.inner(method) if behind else method
        fit = functools.partial(closed_form.fit_closed_form, shard=state.shard)
        fit(state.fabric, fitted, state.opened.train, state.views, config, folder.metadata.crop_size(), recorder, progress)
    if behind:
        staged.finish_first(state.fabric, method, config.fit, folder)


def distill(state: State) -> None:
    """Fits a closed form in a folder of its own, and trains the encoder to predict its embedding of each item.

    The closed form is a run in the folder ``closed_form`` of the run's and stays there; the embeddings of the training items lie
    next to it until they have been learned (`vergence.learn.training.staged`). What a checkpoint has is kept.
    """
    config, fabric, folder = state.folder.config.fit, state.fabric, state.folder
    if not staged.is_fitted(fabric, folder):
        assert state.views is not None and config.distill_epochs is not None, "see `description.for_data`"
        solve(teacher := _teacher(state))
        targets, epochs = _targets(teacher), config.distill_epochs
        with _steps("distillation", epochs, state) as progress:
            learn = functools.partial(staged.distill, epochs=epochs, shape=folder.metadata.shape, progress=progress)
            learn(fabric, state.method, state.opened.train, targets, state.views, config, folder)
    if state.first:  # the embeddings have been learned
        (folder.path / CLOSED_FORM / EMBEDDING).unlink(missing_ok=True)


def fit_density(state: State) -> None:
    """Fits the run's detector in the first process; where that is impossible, one line says so, and the run is kept.

    Raises:
        ValueError: The detector cannot be written.
    """
    if state.first:
        try:
            detector = detectors.fit(state.folder, state.method, state.opened, state.fabric.device)
        except ValueError as error:
            notes = [f"no detector: {error}"]
            terminal.note(notes[0])
        else:
            notes = [f"detector: {note}" for note in detector.notes]
            state.folder.write_checked(detectors.FILE, detector.content())
        for note in notes:
            state.folder.log(note)
    state.fabric.barrier()


@contextlib.contextmanager
def _steps(label: str, epochs: int, state: State) -> Iterator[Progress | None]:
    """Shows a bar of the steps of some epochs over the training items; yields what is called after each."""
    batch = state.folder.config.fit.batch_size
    steps, done = len(state.opened.train) // batch, 0
    with terminal.bar(f"{label} 1/{epochs}", epochs * steps * batch, "images") as advance:

        def progress(step: int, metrics: Metrics) -> bool | None:
            nonlocal done
            row = metrics.row
            note = "  ".join(f"{k} {row[k]:.4g}" for k in row if k not in UNSHOWN)
            advance((step - done) * batch, note=note, label=f"{label} {(step - 1) // steps + 1}/{epochs}")
            done = step
            return None if state.progress is None else state.progress(step, metrics.now(step))

        yield progress if state.first else None


def _teacher(state: State) -> State:
    """Returns the state in which the closed form that an encoder learns is fitted: its own folder, new or to be continued."""
    path, shape, opened = state.folder.path / CLOSED_FORM, state.folder.metadata.shape, state.opened
    resumed = holds_run(path)
    state.fabric.barrier()  # every process has read before one writes
    mean, std = build.statistics(opened.train)
    config = RunFolder.open(path).config if resumed else _teacher_config(state.folder.config, opened, shape)
    shared = {name: getattr(state.folder.config.fit, name) for name in SHARED}
    config = dataclasses.replace(config, fit=dataclasses.replace(config.fit, **shared))
    method = build.initial_method(config, shape, None, mean, std)
    metadata = build.metadata_of(config, opened, shape, None, method, Weights(source="random"), state.fabric)
    if resumed:
        folder = continued(path, config, metadata, method)
    else:
        folder = created(state.fabric, path, config, metadata, opened, method)
    return State(state.fabric, method, opened, folder, build.make_views(opened, folder.config.views, shape))


def _teacher_config(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description of the closed form that a run's encoder learns to predict, with all of its settings."""
    base = recipes.get("patches", config.data.source)
    views = dataclasses.replace(base.views, flip=min(base.views.flip, config.views.flip))
    assert config.model.distill is not None, "of a run that is distilled"
    encoder, notes = completed(config.model.distill, Facts("image", shape, len(opened.train)), views.flip > 0)
    for note in notes:
        terminal.note(f"closed form: {note}")
    return dataclasses.replace(base, data=config.data, views=views, model=dataclasses.replace(base.model, encoder=encoder))


def _targets(teacher: State) -> Array:
    """Returns the closed form's embeddings (N, D) of the training items, of unit length, on disk; they are computed once."""
    items, fabric = teacher.opened.train, teacher.fabric
    file = teacher.folder.path / EMBEDDING
    shape = (len(items), typing.cast(Patches, teacher.folder.config.model.encoder).dim)
    done = _holds(file, shape)
    fabric.barrier()
    if not done:
        part = file.with_name(f".{EMBEDDING}.part")
        if teacher.first:
            with explained(part, "free space, then continue with `resume=True`"), part.open("wb") as out:
                np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": shape})
                for start in range(0, shape[0], ROWS):  # zeros first: a full disk is an error now, not while pages are set
                    out.write(bytes(4 * shape[1] * min(ROWS, shape[0] - start)))
        fabric.barrier()
        _embed_into(np.load(part, mmap_mode="r+"), teacher, items)
        fabric.barrier()
        if teacher.first:
            part.replace(file)
        fabric.barrier()
    embedding: Array = np.load(file, mmap_mode="r")
    return embedding


def _holds(file: Any, shape: tuple[int, int]) -> bool:
    try:
        array = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    return bool(array.shape == shape and array.dtype == np.float32)


def _embed_into(rows: Any, teacher: State, items: Items) -> None:
    """Sets this process's part of the embeddings, with a progress bar; those of items that cannot be read stay zero."""
    fabric, folder = teacher.fabric, teacher.folder
    bounds = [len(items) * rank // fabric.world_size for rank in (fabric.global_rank, fabric.global_rank + 1)]
    mine, rows = torch.arange(*bounds), rows[slice(*bounds)]
    settings = {"size": folder.metadata.crop_size(), "device": fabric.device, "workers": folder.config.fit.workers}
    encoder: nn.Module = teacher.method.encoder.eval()
    with terminal.bar("embedding", len(items), "images") as advance:
        for index, z in features.stream_batches(encoder, items.subset(mine), **settings):
            rows[index.cpu().numpy()] = F.normalize(z.float(), dim=1).cpu().numpy()
            advance(len(index) * fabric.world_size)
    rows.flush()
