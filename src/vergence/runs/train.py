"""Trains a run: opens the data, builds the method, fits it and writes the run folder."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.data import sources
from vergence.encoders.config import Encoder
from vergence.runs.description import describe, for_data, resumed
from vergence.runs.run import Run
from vergence.runs.stages import State, stages_of
from vergence.training import build, calibration, closed_form, loop, recipes, staged, start
from vergence.training.config import FitConfig, RunConfig
from vergence.training.folder import require_new, run_lock
from vergence.training.processes import CALL, together
from vergence.training.recipes import Facts
from vergence.utils import terminal
from vergence.utils.checks import shown
from vergence.utils.devices import enough_memory
from vergence.utils.files import as_path
from vergence.utils.resources import resources

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["describe", "join", "train"]


def train(
    source: str | RunConfig | None = None,
    *,
    out: str | Path,
    recipe: str | None = None,
    resume: bool = False,
    trust_code: bool = False,
    **settings: Any,
) -> "Run":
    """Trains an encoder and an objective, or takes an encoder as it comes; writes a run folder, and returns the run.

    Args:
        source: Name of a built-in data set, path (see `vergence.data.config.DataConfig`), or complete run description. It may
            be left out when resuming.
        out: Run folder.
        recipe: Name of the recipe that the settings start from (`vergence.training.recipes.names`). By default ``patches`` for
            images and ``gmje_small`` for pairs; ``vje_small`` for other data, for images that are too small, and where a setting
            of networks or optimizers is given, which a closed form does not have (`vergence.training.recipes.default`); with
            ``method="NAME"`` the recipe ``NAME_small``.
        resume: Whether the run in ``out`` goes on from its last checkpoint. Settings that are given must be those of the run.
        trust_code: Whether a run that is resumed, or that weights come from, may name an objective ``package.module:Class`` or an
            encoder ``package.module:factory`` outside the library, which is imported. Not needed where the settings name it.
        **settings: Fields of the run's description by name, such as ``epochs=20`` or ``encoder="resnet18"``. With
            ``pretrained=True``, ``weights=FILE`` or ``init=RUN`` the encoder starts from weights, with ``freeze=True`` it is not
            trained (``docs/encoders.md``); with ``init`` the settings that are not given are that run's.

    Returns:
        The trained run.

    Raises:
        ValueError: A setting, the data or the folder cannot be used, another process trains in the folder, or memory ended.
        vergence.training.loop.Interrupted: SIGINT or SIGTERM came; the run can be resumed.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> run = train("digits", out=folder + "/run", recipe="vje_small", epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    out = Path(out)
    settings = _plain(settings)
    call = {"source": source, "out": out, "recipe": recipe, "resume": resume, "trust_code": trust_code, **settings}
    if resume:
        config = resumed(out, source, recipe, settings, trust_code)
    else:
        config = describe(source, recipe, settings, trust_code=trust_code)
        _require_apart(out, config.data.source)
        require_new(out)
        config = start.configured(config)
    _require_usable(config, {} if resume else settings)
    several = config.fit.devices * config.fit.nodes > 1
    if resume and not several:
        with run_lock(out):  # refused before the data is read; held again below
            pass
    any_recipe = recipe is None and not isinstance(source, RunConfig)
    for_facts = None if resume else partial(_for_data, config, source, any_recipe, settings)
    enough = enough_memory("lower --batch-size, --size or the network's widths")
    with together(out) if several else nullcontext(), resources(config.fit.threads, measure=not several), enough:
        fabric = loop.launch(config.fit, _as_json(call)) if several else None  # before the work
        return _train(fabric, out, config, trust_code, for_facts)


def join() -> None:
    """Makes the call that the first process of a training made; exits with 2 for an error, which that one has, too."""
    call: dict[str, Any] = json.loads(os.environ[CALL])
    if isinstance(call["source"], dict):
        call["source"] = RunConfig.from_dict(call["source"])
    try:
        arguments: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in call.items()}
        train(**arguments)
    except loop.Interrupted as stop:
        sys.exit(128 + stop.signum)
    except (ValueError, OSError):
        sys.exit(2)


def _as_json(call: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call of `train` as JSON has them."""

    def plain(value: Any) -> Any:
        return value.to_dict() if isinstance(value, RunConfig | Encoder) else str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in call.items()}


def _for_data(
    config: RunConfig, source: str | RunConfig | None, any_recipe: bool, settings: dict[str, Any], facts: Facts
) -> RunConfig:
    """Returns a new run's description for its data; ``any_recipe`` where no recipe is named."""
    if any_recipe and recipes.suggested(settings, facts) != recipes.suggested(settings):
        config = describe(source, None, settings, facts)
    config, notes = for_data(config, settings, facts, any_recipe)
    if "lr" in settings and "encoder_lr" not in settings and config.model.takes_steps and (ratio := config.fit.encoder_lr) != 1:
        after = ", after distillation" if config.model.distill is not None else ""
        rates = f"{ratio:g} times {config.fit.lr:g}{after}, as in the recipe"
        notes.append(f"the encoder's learning rate is {rates}; --set encoder_lr=1 for equal rates")
    for note in notes:
        terminal.note(note)
    return config


def _train(
    fabric: "Fabric | None", out: Path, config: RunConfig, trust_code: bool, for_facts: "Callable[[Facts], RunConfig] | None"
) -> "Run":
    """Trains as `train` does; ``for_facts`` returns a new run's description for its data, and is None for a resumed run."""
    resume = for_facts is None
    opened = calibration.split(sources.open_data(config.data, workers=config.fit.workers), config)
    mean, std = build.statistics(opened.train)
    shape, target_shape = build.input_shapes(opened)
    config = config if for_facts is None else for_facts(Facts(opened.kind, shape, len(opened.train)))
    build.require_images(config.model, opened.kind)
    method = build.initial_method(config, shape, target_shape, mean, std)
    if not resume:
        build.require_whole_images(method, shape, target_shape)
    weights = None if resume and not config.model.freeze else start.load_start(method, config, trust_code=trust_code)
    views = None if config.model.freeze else build.make_views(opened, config.views, shape, mean, std)
    if config.model.takes_steps:
        loop.require_batches(len(opened.train), config.fit)
    fabric = fabric or loop.launch(config.fit)
    metadata = build.describe(config, opened, shape, target_shape, method, weights, fabric)
    with run_lock(out) if fabric.is_global_zero else nullcontext():
        folder = (
            start.continued(out, config, metadata, method)
            if resume
            else start.created(fabric, out, config, metadata, opened, method)
        )
        state = State(fabric, method, opened, folder, views)
        for stage in stages_of(config.model):
            state = stage.fit(state)
    return Run(folder, method, fabric.device)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with paths as text; raises a ValueError for code that is given itself and not by its name."""
    for name, kind in {"encoder": "factory", "target_encoder": "factory", "objective": "Class"}.items():
        if callable(value := settings.get(name)):
            hint = f"name code of your own as 'package.module:{kind}'"
            raise ValueError(f"expected {name} to be a name, found {shown(value)}; {hint}")
    return {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}


def _require_usable(config: RunConfig, settings: dict[str, Any]) -> None:
    """Raises a ValueError unless the settings of the fit suit the encoder and the objective."""
    fit = {name: value for name, value in settings.items() if name in {field.name for field in dataclasses.fields(FitConfig)}}
    if config.model.method is not None:
        build.require_method(config.model)
    if config.model.freeze:
        if config.fit.devices * config.fit.nodes > 1:
            raise ValueError("expected one device with --freeze, which trains nothing; leave --devices out")
    elif not config.model.takes_steps:
        closed_form.require_gje(config)
        recipes.require_no_steps(fit, f"encoder '{config.model.encoder.kind}' is a closed form")
    else:
        if config.model.objective == "none" and config.model.method is None:
            raise ValueError("expected --freeze or --method with --objective none, found neither; add one, or name an objective")
        build.require_packages(config.model)
        staged.require_one_encoder(config.model)
        loop.require_shareable(config.fit)


def _require_apart(out: Path, source: str) -> None:
    """Raises a ValueError if a run folder is, or holds, the data that the run is to be trained on."""
    data = as_path(source, "the data")
    if source not in sources.BUILT_IN and data.exists():
        out, data = out.resolve(), data.resolve()
        if out == data or out in data.parents:
            raise ValueError(f"expected a run folder apart from the data, found --out {out} to hold {data}; choose another --out")
