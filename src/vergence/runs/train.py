"""Trains a run: opens the data, builds the method, fits it and writes the run folder."""

from pathlib import Path
from typing import Any

import torch

from vergence.data import sources
from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.methods.paired import PairedMethod
from vergence.runs.run import Run
from vergence.training import build, loop, recipes
from vergence.training.config import RunConfig
from vergence.training.folder import RunFolder
from vergence.utils.terminal import bar

__all__ = ["describe", "train"]


def train(
    source: str | RunConfig | None = None,
    *,
    out: str | Path,
    recipe: str = "vje_small",
    resume: bool = False,
    **settings: Any,
) -> "Run":
    """Trains an encoder and an objective, writes a run folder, and returns the run.

    Args:
        source: A built-in data set's name, a path (see `vergence.data.config.DataConfig`), or a whole run description. When
            resuming it may be left out.
        out: The run folder.
        recipe: Name of the recipe that the settings start from (`vergence.training.recipes.names`).
        resume: Go on with the run in ``out`` from its last checkpoint. Settings that are given must be those of the run.
        **settings: Fields of the run's description by name, such as ``epochs=20`` or ``encoder="resnet18"``.

    Returns:
        The trained run.

    Raises:
        ValueError: A setting, the data, or the folder is not usable; the message says what to do.
        vergence.training.loop.Interrupted: SIGINT or SIGTERM came; the run can be resumed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> run = train("digits", out=folder + "/run", epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    out = Path(out)
    if resume:
        folder = RunFolder.open(out)
        config = folder.config
        _require_unchanged(config, source, settings)
    else:
        config = describe(source, recipe, settings)
        if (out / "config.json").exists():
            raise ValueError(f"{out} already holds a run: continue it with --resume, or choose another --out")
    loop.require_shareable(config.fit)
    several = config.fit.devices * config.fit.nodes > 1
    fabric = loop.launch(config.fit) if several else None  # the others start over from the command: before the work
    opened = sources.open_data(config.data, workers=config.fit.workers)
    mean, std = build.statistics(opened.train)
    shape, target_shape = build.seen_shape(opened)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(loop.seed_of(config.fit.seed, "initialise", 0))
        method = build.build_method(config.model, shape, target_shape, mean, std)
    method.to(memory_format=torch.channels_last)
    views = build.make_views(opened, config, shape, mean, std)
    loop.require_batches(len(opened.train), config.fit)
    fabric = fabric or loop.launch(config.fit)
    if not resume:
        facts = build.facts(config, opened, shape, target_shape, method, fabric)
        if fabric.is_global_zero:
            folder = RunFolder.create(out, config, facts)
            build.write_skipped(out / "skipped.csv", opened.skipped)
        fabric.barrier()
        folder = RunFolder(out, config, facts)
    elif folder.facts["n_train"] != len(opened.train):
        raise ValueError(
            f"the data has changed since the run began: {folder.facts['n_train']} training items then, {len(opened.train)} now"
        )
    return _fit(fabric, method, opened, config, folder, views)


def describe(source: str | RunConfig | None, recipe: str, settings: dict[str, Any]) -> RunConfig:
    """Returns the whole run description of a source, a recipe and changed settings."""
    if source is None:
        raise ValueError("no data was named: give a path or a built-in name, for instance 'digits'")
    base = source if isinstance(source, RunConfig) else recipes.get(recipe)(str(source))
    return recipes.override(base, **settings)


def _require_unchanged(config: RunConfig, source: str | RunConfig | None, settings: dict[str, Any]) -> None:
    wanted = recipes.override(config, **settings)
    if source is not None:
        wanted = source if isinstance(source, RunConfig) else recipes.override(wanted, source=str(source))
    was, now = config.to_dict(), wanted.to_dict()
    changed = [
        f"{name} was {was[part][name]!r}, now {now[part][name]!r}"
        for part in was
        for name in was[part]
        if was[part][name] != now[part][name]
    ]
    if changed:
        raise ValueError(
            f"--resume goes on with a run's own settings: {'; '.join(changed)}; leave them out, or start another run"
        )


def _fit(fabric: Any, method: PairedMethod, opened: Data, config: RunConfig, folder: RunFolder, views: Views | None) -> "Run":
    size = build.crop_side(folder.facts, folder.facts["shape"])
    steps = config.fit.epochs * (len(opened.train) // config.fit.batch_size)
    done = 0
    with bar(f"epoch 1/{config.fit.epochs}", steps * config.fit.batch_size, "images") as advance:

        def progress(*, step: int, total: int, epoch: int, row: dict[str, float]) -> None:
            nonlocal done
            note = "  ".join(f"{k} {row[k]:.4g}" for k in row if k not in _UNSHOWN)
            advance((step - done) * config.fit.batch_size, note=note, label=f"epoch {epoch}/{config.fit.epochs}")
            done = step

        loop.fit(
            fabric,
            method,
            opened.train,
            views,
            config.fit,
            folder,
            monitor=build.online_knn(opened, config.fit, size, fabric.device),
            progress=progress if fabric.is_global_zero else None,
        )
    return Run(folder, method, fabric.device)


_UNSHOWN = {"step", "epoch", "lr", "images_per_second", "std", "variance_cv"}
