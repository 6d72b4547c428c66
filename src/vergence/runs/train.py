"""Trains a run: opens the data, builds the method, fits it and writes the run folder."""

import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vergence.data import sources
from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.encoders.dictionary import PatchSettings
from vergence.encoders.networks import is_closed_form
from vergence.methods.paired import PairedMethod
from vergence.runs import fitting
from vergence.runs.run import Run
from vergence.training import build, calibration, closed_form, loop, recipes
from vergence.training.config import RunConfig
from vergence.training.folder import RunFolder, require_new, run_lock, write_skipped
from vergence.training.monitor import online_knn
from vergence.training.records import RunMetadata
from vergence.utils.terminal import bar

__all__ = ["describe", "train"]


def train(
    source: str | RunConfig | None = None,
    *,
    out: str | Path,
    recipe: str = "vje_small",
    resume: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> "Run":
    """Trains an encoder and an objective, writes a run folder, and returns the run.

    Args:
        source: Name of a built-in data set, path (see `vergence.data.config.DataConfig`), or complete run description. It may
            be left out when resuming.
        out: Run folder.
        recipe: Name of the recipe that the settings start from (`vergence.training.recipes.names`).
        resume: Whether the run in ``out`` goes on from its last checkpoint. Settings that are given must be those of the run.
        trust_code: Whether a run that is resumed may name an objective outside the library, ``package.module:Class``, which is
            imported. Not needed where the settings name it.
        **settings: Fields of the run's description by name, such as ``epochs=20`` or ``encoder="resnet18"``.

    Returns:
        The trained run.

    Raises:
        ValueError: A setting, the data or the folder cannot be used, or another process trains in the folder.
        vergence.training.loop.Interrupted: SIGINT or SIGTERM came; the run can be resumed.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> run = train("digits", out=folder + "/run", epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    out = Path(out)
    config = _resumed(out, source, settings, trust_code) if resume else describe(source, recipe, settings)
    if not resume:
        require_new(out)
        _require_apart(out, config.data.source)
    if is_closed_form(config.model.encoder):
        closed_form.require_gje(config)
    else:
        loop.require_shareable(config.fit)
    several = config.fit.devices * config.fit.nodes > 1
    if resume and not several:
        with run_lock(out):  # refused before the data is read; held again below
            pass
    fabric = loop.launch(config.fit) if several else None  # the other processes run the command again: before the work
    opened = calibration.split(sources.open_data(config.data, workers=config.fit.workers), config)
    mean, std = build.statistics(opened.train)
    shape, target_shape = build.input_shapes(opened)
    config = _fitted(config, opened, shape)
    method = build.initial_method(config, shape, target_shape, mean, std)
    views = build.make_views(opened, config.views, shape, mean, std)
    if not is_closed_form(config.model.encoder):
        loop.require_batches(len(opened.train), config.fit)
    fabric = fabric or loop.launch(config.fit)
    metadata = build.describe(config, opened, shape, target_shape, method, fabric)
    with run_lock(out) if fabric.is_global_zero else nullcontext():
        folder = _continued(out, config, metadata) if resume else _created(fabric, out, config, metadata, opened)
        fit = _fit_closed_form if is_closed_form(config.model.encoder) else _fit
        fit(fabric, method, opened, folder, views)
        _detect(fabric, method, opened, folder)
    return Run(folder, method, fabric.device)


def _detect(fabric: Any, method: PairedMethod, opened: Data, folder: RunFolder) -> None:
    """Fits the run's detector in the first process; where that is impossible, one line says so, and the run is kept."""
    if fabric.is_global_zero:
        try:
            found = fitting.fit_and_save(folder, method, opened, fabric.device)
        except ValueError as error:
            found = None
            folder.log(f"no detector: {error}")
            print(f"note: no detector: {error}", file=sys.stderr)
        for note in found.notes if found is not None else ():
            folder.log(f"detector: {note}")
    fabric.barrier()


def _fitted(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description with every setting of a closed-form encoder; prints those that the data reduces."""
    if not is_closed_form(config.model.encoder):
        return config
    if opened.kind != "image":
        raise ValueError(f"expected images for encoder 'patches', found {opened.kind} data; choose another --encoder")
    settings, notes = closed_form.fitted_settings(config.model.encoder, shape, len(opened.train))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, encoder=settings.name))


def _created(fabric: Any, out: Path, config: RunConfig, metadata: RunMetadata, opened: Data) -> RunFolder:
    """Returns a new run folder, which the first process writes."""
    if fabric.is_global_zero:
        RunFolder.create(out, config, metadata)
        write_skipped(out / "skipped.csv", opened.skipped)
    fabric.barrier()
    return RunFolder(out, config, metadata)


def _continued(out: Path, config: RunConfig, now: RunMetadata) -> RunFolder:
    """Returns the folder of a run that is resumed, as `_resumed` describes it.

    Raises:
        ValueError: The data has changed since the run started.
    """
    folder = RunFolder.open(out, trust_code=True)  # `_resumed` has asked
    for name in ("n_train", "n_calibration", "shape", "target_shape"):
        before, found = getattr(folder.metadata, name), getattr(now, name)
        if before != found:
            raise ValueError(f"expected the data that the run started with, found {name} {found} instead of {before}; restore it")
    folder.config = config
    return folder


def describe(source: str | RunConfig | None, recipe: str, settings: dict[str, Any]) -> RunConfig:
    """Returns the run description of a source, a recipe and changed settings.

    Raises:
        ValueError: There is no source, or a setting is unknown.
    """
    if source is None or source == "":
        raise ValueError("expected data, found none: give a path or a built-in name, for instance 'digits'")
    base = source if isinstance(source, RunConfig) else recipes.get(recipe)(str(source))
    return recipes.override(base, **settings)


def _resumed(out: Path, source: str | RunConfig | None, settings: dict[str, Any], trust_code: bool) -> RunConfig:
    """Returns the description of the run in a folder; the number of threads may be another now.

    Raises:
        ValueError: There is no run, it names code that is not trusted, or a setting that is given differs from the run's.
    """
    named = "objective" in settings or isinstance(source, RunConfig)  # by the caller: another one is refused below
    config = RunFolder.open(out, trust_code=trust_code or named).config
    wanted = recipes.override(config, **settings)
    if source is not None:
        wanted = source if isinstance(source, RunConfig) else recipes.override(wanted, source=str(source))
    before, now = config.to_dict(), wanted.to_dict()
    changed = [
        f"{name} was {before[part][name]!r}, now {now[part][name]!r}"
        for part in before
        for name in before[part]
        if name != "threads" and before[part][name] != now[part][name]
    ]
    if changed:
        raise ValueError(f"--resume keeps a run's own settings: {'; '.join(changed)}; leave them out, or start another run")
    return dataclasses.replace(config, fit=dataclasses.replace(config.fit, threads=wanted.fit.threads))


def _require_apart(out: Path, source: str) -> None:
    """Raises a ValueError if a run folder is, or holds, the data that the run is to be trained on."""
    data = Path(source).expanduser()
    if source not in sources.BUILT_IN and data.exists():
        out, data = out.resolve(), data.resolve()
        if out == data or out in data.parents:
            raise ValueError(f"expected a run folder apart from the data, found --out {out} to hold {data}; choose another --out")


def _fit(fabric: Any, method: PairedMethod, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Trains with a progress bar."""
    config = folder.config.fit
    steps = len(opened.train) // config.batch_size
    with bar(f"epoch 1/{config.epochs}", config.epochs * steps * config.batch_size, "images") as advance:
        done = 0

        def progress(step: int, row: dict[str, float]) -> None:
            nonlocal done
            note = "  ".join(f"{k} {row[k]:.4g}" for k in row if k not in _UNSHOWN)
            label = f"epoch {(step - 1) // steps + 1}/{config.epochs}"
            advance((step - done) * config.batch_size, note=note, label=label)
            done = step

        monitor = online_knn(opened, folder.metadata.crop_size(), fabric.device)
        shown = progress if fabric.is_global_zero else None
        loop.fit(fabric, method, opened.train, views, config, folder, monitor=monitor, progress=shown)


def _fit_closed_form(fabric: Any, method: PairedMethod, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits in closed form with a progress bar."""
    assert views is not None, "pairs were refused"
    settings = PatchSettings.parse(folder.config.model.encoder, folder.metadata.shape)
    with bar("dictionary", closed_form.total_images(len(opened.train), settings.views), "images") as advance:

        def progress(images: int, label: str) -> None:
            advance(images, label=label)

        shown = progress if fabric.is_global_zero else _unseen
        size = folder.metadata.crop_size()
        closed_form.fit(fabric, method, opened.train, views, folder.config, size, folder, shown)


def _unseen(images: int, label: str) -> None:
    """Shows no progress."""


_UNSHOWN = {"step", "epoch", "lr", "images_per_second", "threads", "std", "variance_cv"}
