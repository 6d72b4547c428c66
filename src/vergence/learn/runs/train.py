"""Trains a run: opens the data, builds the method, fits it stage by stage and writes the run folder."""

import contextlib
import copy
import dataclasses
import inspect
import io
import itertools
import os
import shutil
import sys
import tempfile
import time
import typing
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import Unpack

from vergence.data import sources
from vergence.data.config import BUILT_IN, DataConfig, Form, ViewConfig, default_views
from vergence.data.sources import Data, held, in_words
from vergence.learn.encoders import networks
from vergence.learn.encoders.config import Encoder, Factory
from vergence.learn.evaluation.judgment import collapse_warning
from vergence.learn.methods.core import Method
from vergence.learn.objectives.core import Objective
from vergence.learn.runs.description import describe, for_data, resumed
from vergence.learn.runs.run import Run
from vergence.learn.runs.stages import OnStep, State, solve, stages_of
from vergence.learn.training import build, calibration, closed_form, loop, optimizers, recipes, start
from vergence.learn.training.config import FitConfig, RunConfig, Settings
from vergence.learn.training.folder import RunFolder, holds_run, require_new, run_lock
from vergence.learn.training.metrics import Listener, Logger, listeners_of
from vergence.learn.training.recipes import Facts
from vergence.learn.training.records import Weights
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse, shown
from vergence.utils.devices import cpu_threads, enough_memory
from vergence.utils.files import register_outside, require_apart
from vergence.utils.parts import Shard

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RENEWED = "~"  # in the name of a network that is copied with new weights
SIMPLE = (bool, int, float, str, tuple, type(None))  # attributes that are compared
OF_LOOPS = ("training", "managed", "built_with")  # attributes that loops set
OWN = """class Mine(Objective):  # of vergence.learn.objectives
    def __init__(self, dim): super().__init__()
    def forward(self, za, zb):  # two batches of embeddings (B, D)
        return {"loss": criterion(za, zb)}  # then objective=Mine"""
TRIAL_STEPS, TRIAL_ITEMS = 6, 500  # of what a plan's estimate is measured on

__all__ = ["collapse_of", "describe", "estimate", "merge_shards", "plan", "train", "train_shard"]


def train(
    data: Any = None,
    *,
    out: str | Path | None = None,
    recipe: str | None = None,
    resume: bool = False,
    trust_code: bool = False,
    views: str | ViewConfig | Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
    column: str | Sequence[str] = (),
    labels: Any = None,
    logger: str | Logger | None = None,
    on_step: OnStep | None = None,
    on_epoch: Callable[[int, dict[str, Any]], None] | None = None,
    **settings: Unpack[Settings],
) -> Run:
    """Trains an encoder and an objective, or takes an encoder as it comes; writes a run folder, and returns the run.

    Args:
        data: Name of a built-in data set, path (see `vergence.data.config.DataConfig`), or complete run description; an array,
            a tensor, a list of paths or of PIL images, a pair ``(context, target)``, a table, a `torch.utils.data.Dataset` or a
            loader, which is read once (see `vergence.data.sources.from_object`). It may be left out when resuming.
        out: Run folder. Without one the run lives in a temporary folder for as long as the returned object;
            `vergence.Run.save` keeps it.
        recipe: Name of the recipe that the settings start from (`vergence.learn.training.recipes.names`). By default ``patches``
            for images and ``gmje_small`` for pairs; ``vje_small`` for other data and for images that are too small
            (`vergence.learn.training.recipes.suggested`); with ``method="NAME"`` the recipe ``NAME_small``.
        resume: Whether the run in ``out`` continues from its last checkpoint. Settings that are given must be those of the run.
        trust_code: Whether a run that is resumed, or that weights come from, may name an objective ``package.module:Class`` or an
            encoder ``package.module:factory`` outside the library, which is imported. Not needed where the settings name it.
        views: Strengths of the random views; of vectors the name of their kind, ``counts``, ``spectra``, ``series`` or ``table``;
            or what makes them: a function ``(batch, generator) -> batch``, or a transform of torchvision v2 (see
            `vergence.learn.views.images.GivenViews`); or several, one for each view.
        column: Column or columns of a table; key of a data set's items.
        labels: Labels (N,) of data that the program holds, for the evaluation; training does not read them.
        logger: ``tensorboard`` or ``csv``, in the folder ``logs`` of the run, or an object with ``log_metrics(metrics, step)``,
            such as a logger of Lightning's.
        on_step: Called in the first process with the number of steps that are done, and the last row of metrics with the loss
            and the terms of this step. Where it returns False, training ends with a checkpoint: the run can be used and resumed.
        on_epoch: Called in the first process with the number of epochs that are done and the row of metrics at their end.
        **settings: Fields of the run's description by name, such as ``epochs=20``. ``encoder`` may be a name, a dataclass of
            `vergence.learn.encoders`, a module, or a function without arguments that returns one, or two of them, of contexts
            and of targets; ``objective`` a name, a class or an instance such as ``VJE(256, nu=1)``, which says class and
            options, and weights that were set in it. A module keeps its weights whatever the seed; ``weights="new"`` gives a
            copy new ones. It is copied, gets no recipe's head before an instance of its width, and images
            standardized by ``input_mean`` and ``input_std``, by default those of the data. With ``pretrained=True``,
            ``weights=FILE`` or ``init=RUN`` the encoder starts from weights, with ``freeze=True`` it is not trained (see
            ``docs/guides/encoders.md``); with ``init`` the settings that are not given are that run's.

    Returns:
        The trained run.

    Raises:
        ValueError: A setting, the data or the folder cannot be used, another process trains in the folder, or memory ended.
        vergence.learn.training.loop.Interrupted: SIGINT or SIGTERM came; the run can be resumed.

    Example:
        >>> import torch
        >>> run = train(torch.randn(300, 6), epochs=1, device="cpu", precision="fp32")
        >>> run.anomaly_score(torch.zeros(2, 6)).shape
        torch.Size([2])
    """
    expect(not resume or out is not None, "out, the folder of the run to resume", "none", "name it")
    source, plain, given = _named(data, {**settings}, views, column, labels)
    folder = Path(tempfile.mkdtemp(prefix="vergence-")) if out is None else Path(out)
    listeners, objective = listeners_of(logger, on_epoch, folder), settings.get("objective")
    job = _Job(folder, source, recipe, plain, given, trust_code, resume, listeners, on_step, objective)
    try:
        run = job.run()
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if out is None:
        weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def train_shard(
    data: Any, shard: Shard, *, out: Path, recipe: str | None = None, trust_code: bool = False, **settings: Unpack[Settings]
) -> Path:
    """Computes a closed form's sums over one part of the items; `merge_shards` makes a run of all parts. Returns its folder.

    A part that was stopped continues from its last checkpoint. ``out`` is the folder of all parts; the others are as of `train`.
    """
    source, plain, given = _named(data, {**settings}, None, (), None)
    part = out / shard.name
    job = _Job(part, source, recipe, plain, given, trust_code, holds_run(part), [], None, None, shard)
    job.run()
    return part


def merge_shards(folder: Path, out: Path) -> Run:
    """Makes a run of the parts that `train_shard` wrote: adds their sums, solves, and fits the detector.

    The sums are those of one process but for the order of their additions in float64.
    """
    found = [RunFolder.open(path.parent, trust_code=True) for path in sorted(folder.glob("part-*-of-*/config.json"))]
    expect(found, f"parts of a training in {folder}", "none", "write them with vergence train --shard I/N")
    for part in found[1:]:
        same = part.config == found[0].config and part.metadata.content == found[0].metadata.content
        expect(same, f"parts of one training in {folder}", f"others in {part.path.name}", "train it again")
    whole = closed_form.added([part.load_checkpoint() or {} for part in found])
    RunFolder.create(out, found[0].config, found[0].metadata).save_checkpoint(whole)
    return train(out=out, resume=True)


@dataclass(frozen=True)
class Estimate:
    """What a training would do, and how long it would take."""

    recipe: str
    config: RunConfig
    shape: tuple[int, ...]  # of one item as the encoder sees it
    items: int  # training items
    steps: int  # steps of the optimizer; 0 for a closed form
    seconds: float  # of the whole training; by a short trial, so that it can be wrong by half
    few: int  # items of the trial
    notes: tuple[str, ...]  # what the data change in the description


def estimate(
    data: Any, *, out: Path, recipe: str | None = None, trust_code: bool = False, views: Any = None, **settings: Unpack[Settings]
) -> Estimate:
    """Returns what `train` would do, with an estimate from a trial on few items in a temporary folder; nothing is kept."""
    source, plain, given = _named(data, {**settings}, views, (), None)
    job = _Job(out, source, recipe, plain, given, trust_code, False, [], None, settings.get("objective"))
    config = job._described()
    _require_usable(config, plain)
    opened = calibration.split(sources.open_data(config.data, workers=config.fit.workers, **given), config)
    config, notes = job._for_facts(config, facts := _facts(opened))
    n, fit, model = len(opened.train), config.fit, config.model
    few = min(n, TRIAL_STEPS * fit.batch_size if model.takes_steps else TRIAL_ITEMS)
    trial = {**plain, "limit": few + len(opened.train) // few, "calibration_share": 0.0, "device": fit.device}
    if model.takes_steps:
        trial |= {"epochs": 1, "knn_every": 0, "projector": model.projector}
        trial |= {"distill_epochs": 1} if model.distill is not None else {}
    times = [time.monotonic()]
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet[0], quiet[1]:
        on_step = (lambda *_: times.append(time.monotonic())) if model.takes_steps else None
        train(data, out=Path(folder) / "trial", recipe=recipe, trust_code=trust_code, on_step=on_step, **trial)
    total = time.monotonic() - times[0]
    steps = fit.epochs * (n // fit.batch_size) if model.takes_steps else 0
    gaps = sorted(b - a for a, b in itertools.pairwise(times[1:]))
    seconds = gaps[len(gaps) // 2] * steps if gaps else total * n / few
    return Estimate(recipe or recipes.suggested(plain, facts), config, tuple(facts.shape), n, steps, seconds, few, tuple(notes))


def plan(data: Any, *, out: Path, recipe: str | None = None, trust_code: bool = False, **settings: Unpack[Settings]) -> list[str]:
    """Returns in sentences what `train` would do, with an estimate of time and memory; nothing is kept."""
    found = estimate(data, out=out, recipe=recipe, trust_code=trust_code, **settings)
    fit, model, steps = found.config.fit, found.config.model, found.steps
    what = f"{steps:,} steps ({fit.epochs} epochs, batches of {fit.batch_size})" if steps else "a closed form, without steps"
    return [
        f"recipe: {found.recipe}",
        f"data: {found.items:,} items of shape {found.shape} to train from {found.config.data.source}",
        f"model: {model.method or model.objective} on encoder {model.encoder}",
        f"training: {what} on {fit.device}",
        *found.notes,
        f"output: {out}",
        f"estimate from a trial of {found.few:,} items: {_duration(found.seconds)}{_memory()}; it can be wrong by half",
    ]


def _memory() -> str:
    """Returns the largest memory of this process so far in words; nothing on Windows, where Python does not know it."""
    try:
        import resource
    except ImportError:
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f" and {peak / (1 << 30 if sys.platform == 'darwin' else 1 << 20):.1f} GiB of memory"


def _duration(seconds: float) -> str:
    """Returns a time in words.

    Example:
        >>> _duration(42.0), _duration(7000.0)
        ('42 seconds', '1.9 hours')
    """
    long = f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.1f} minutes"
    return long if seconds >= 120 else f"{max(1, round(seconds))} seconds"


@dataclass(frozen=True)
class _Job:
    """A call of `train`, with data and settings by name, the data that the program holds, and what listens."""

    out: Path
    source: str | RunConfig | None
    recipe: str | None
    settings: dict[str, Any]
    given: dict[str, Any]
    trust_code: bool
    resume: bool
    listeners: list[Listener]
    on_step: OnStep | None
    objective: Any  # as it was given
    shard: Shard | None = None

    def run(self) -> Run:
        """Trains, in this process and in those that a launcher has started with it."""
        config = self._described()
        _require_usable(config, {} if self.resume else self.settings)
        if self.shard is not None:
            model = config.model
            sums = model.encoder.closed_form and not model.takes_steps and not model.freeze
            advice = "several machines train others with torchrun"
            expect(sums, "`shard` of a closed form, whose sums add, such as `recipe='patches'`", model.encoder.kind, advice)
            expect(config.fit.devices * config.fit.nodes == 1, "one process a shard", "several", "leave `devices` out")
        if self.resume and config.fit.devices * config.fit.nodes == 1:
            with run_lock(self.out):  # refused before the data is read; held again below
                pass
        enough = enough_memory("lower `batch_size`, `size` or the network's widths")
        with cpu_threads(config.fit.threads), enough:
            fabric = loop.launch(config.fit)  # before the work
            opened = calibration.split(sources.open_data(config.data, workers=config.fit.workers, **self.given), config)
            config, notes = self._for_facts(config, _facts(opened))
            method, weights = self._method(config, opened)
            for note in [*notes, *([] if weights is None else self._notes(config, opened, weights))]:
                terminal.note(note)
            return _train(fabric, self, config, opened, method, weights)

    def _method(self, config: RunConfig, opened: Data) -> tuple[Method, Weights | None]:
        """Returns the method before its first step, and where its weights come from; None where a resumed run has kept them."""
        build.require_images(config.model, opened.kind)
        shape, target_shape = build.input_shapes(opened)
        method = build.initial_method(config, shape, target_shape, *build.statistics(opened.train))
        if not self.resume:
            build.require_whole_images(method, shape, target_shape)
        built, given = method.objective, self.objective if isinstance(self.objective, Objective) else None
        if given is not None and given.dim and built is not None:
            head = config.model.projector
            wanted = f"an objective of D = {built.dim}, as {'the encoder and its head have' if head else 'the encoder has'}"
            advice = "build it with that width, or give its class" + (", or `projector=()` for no head" if head else "")
            expect(given.dim == built.dim, wanted, f"D = {given.dim}", advice)
        if self.resume and not config.model.freeze:
            return method, None
        weights = start.load_start(method, config, trust_code=self.trust_code)
        if config.model.encoder.outside is not None and RENEWED in config.model.encoder.outside:
            weights = dataclasses.replace(weights, source="random")
        if given is not None and built is not None and (filled := _filled(given)):
            built.load_state_dict(filled)
            weights = weights if weights.source not in ("random", "none") else Weights(source="objective")
        return method, weights

    def _notes(self, config: RunConfig, opened: Data, weights: Weights) -> list[str]:
        """Returns what a new run does unasked: items kept apart, an encoder that is shared, weights that no seed chooses."""
        model, notes, kept = config.model, list[str](), 0 if opened.calibration is None else len(opened.calibration)
        n, test = len(opened.train) + len(opened.test) + kept, len(opened.test)
        if self.given and not {"holdout", "calibration_share"} & self.settings.keys():
            apart = f"{test:,} to test and {kept:,} to calibrate"
            notes.append(f"of {n:,} items {apart} are not trained on (holdout, calibration_share)")
        one = model.takes_steps and model.target_encoder is None and build.input_shapes(opened)[1] is None
        if opened.kind == "pairs" and one:
            notes.append("contexts and targets are of one shape and share one encoder; `target_encoder='mlp'` gives each its own")
        if config.fit.seed and not model.freeze and ("#" in weights.name or weights.source == "objective"):
            new = "its class or a function (encoder=Network), or a network with weights='new', has new ones"
            notes.append(f"the first weights are those of the module that was given, whatever the seed; {new}")
        return notes

    def _described(self) -> RunConfig:
        """Returns the run's description as far as possible before the data are opened."""
        if self.resume:
            return resumed(self.out, self.source, self.recipe, self.settings, self.trust_code)
        config = describe(self.source, self.recipe, self.settings, trust_code=self.trust_code)
        require_apart(self.out, () if config.data.source in BUILT_IN else (config.data.source,), around=True)
        require_new(self.out)
        return start.configured(config)

    def _for_facts(self, config: RunConfig, facts: Facts) -> tuple[RunConfig, list[str]]:
        """Returns the description for its data, and notes on what follows from them. That of a resumed run is complete."""
        if self.resume:
            return config, []
        any_recipe = self.recipe is None and not isinstance(self.source, RunConfig)
        if any_recipe and recipes.suggested(self.settings, facts) != recipes.suggested(self.settings):
            config = describe(self.source, None, self.settings, facts)
        config, notes = for_data(config, self.settings, facts, any_recipe)
        if any_recipe and config.model.init is None and config.model.projector and "projector" not in self.settings:
            config = self._without_head(config, facts, notes)
        own = "lr" in self.settings and "encoder_lr" not in self.settings and config.model.takes_steps
        if own and (ratio := config.fit.encoder_lr) != 1:
            after = ", after distillation" if config.model.distill is not None else ""
            rates = f"{ratio:g} times {config.fit.lr:g}{after}, as in the recipe"
            notes.append(f"the encoder's learning rate is {rates}; `encoder_lr=1` for equal rates")
        return config, notes

    def _without_head(self, config: RunConfig, facts: Facts, notes: list[str]) -> RunConfig:
        """Returns the description without a recipe's head between network and objective of one width; else a note tells of it."""
        if config.model.encoder.outside is None:
            return config
        zeros = torch.zeros(facts.shape[0], dtype=torch.int64 if facts.kind == "tokens" else torch.float32)
        first = build.initial_encoder(config, facts.shape, zeros, torch.ones_like(zeros))
        if isinstance(self.objective, Objective) and self.objective.dim == networks.width(first, facts.shape):
            return dataclasses.replace(config, model=dataclasses.replace(config.model, projector=()))
        head = ", ".join(map(str, config.model.projector))
        notes.append(f"a head of widths ({head}) follows the network, as in the objective's recipe; `projector=()` leaves it out")
        return config


def _facts(opened: Data) -> Facts:
    return Facts(opened.kind, build.input_shapes(opened)[0], len(opened.train), tuple(opened.train.shape))


def collapse_of(run: Run) -> str | None:
    """Returns what the last row of a run's metrics shows of a collapse, and what to try, in one line; None for none."""
    last = next((row for row in reversed(run.folder.metrics()) if "effective_rank" in row and "std" in row), None)
    width = getattr(run.method.objective, "dim", None)
    return None if last is None else collapse_warning(last, width, run.method.advice())


def _train(fabric: "Fabric", job: _Job, config: RunConfig, opened: Data, method: Method, weights: Weights | None) -> Run:
    """Trains stage by stage in this process, on data whose calibration part has been taken out."""
    shape, target_shape = build.input_shapes(opened)
    views = None if config.model.freeze else build.make_views(opened, config.views, shape)
    if config.model.takes_steps:
        loop.require_batches(len(opened.train), config.fit)
    metadata = build.metadata_of(config, opened, shape, target_shape, method, weights, fabric)
    with run_lock(job.out) if fabric.is_global_zero else nullcontext():
        if job.resume:
            folder = start.continued(job.out, config, metadata, method)
        else:
            folder = start.created(fabric, job.out, config, metadata, opened, method)
        folder.given, folder.listeners = job.given, job.listeners
        state = State(fabric, method, opened, folder, views, job.on_step, job.shard)
        for stage in stages_of(config.model) if job.shard is None else [solve]:
            stage(state)
    return Run(folder, method, fabric.device)


def _named(
    data: Any, settings: dict[str, Any], views: Any, column: str | Sequence[str], labels: Any
) -> tuple[str | RunConfig | None, dict[str, Any], dict[str, Any]]:
    """Returns data and settings by their names, and the data that the program holds as arguments of `open_data`."""
    plain: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    if isinstance(pair := plain.get("encoder"), tuple | list) and len(pair) == 2:
        plain["encoder"], plain["target_encoder"] = pair
    new = plain.get("weights") == "new" and plain.pop("weights")
    for name in ("encoder", "target_encoder"):
        if callable(value := plain.get(name)) and not isinstance(value, Encoder):
            plain[name] = Factory(_renewed(value) if new and isinstance(value, nn.Module) else register_outside(value))
    plain |= _objective(plain) | _processes(plain)
    if plain.get("kind") in typing.get_args(Form):  # of the data; other kinds are those of views
        plain["form"] = plain.pop("kind")
    if isinstance(views, str):
        plain = ({"form": "array"} if views == "series" and getattr(data, "ndim", 0) == 3 else {}) | default_views(views) | plain
    elif isinstance(views, ViewConfig):
        plain |= {field.name: getattr(views, field.name) for field in dataclasses.fields(views)}
    elif views is not None:
        plain["function"] = register_outside(views)
        plain |= {"n_views": len(views)} if isinstance(views, tuple | list) else {}
    if data is not None and not isinstance(data, str | os.PathLike | RunConfig):
        kept = held(data, column, plain.get("limit"), plain.get("holdout", DataConfig.holdout), plain.get("form"))
        return in_words(data), plain, {"source": kept, "column": column, "labels": labels}
    if column or labels is not None:
        raise ValueError("expected column and labels with data that the program holds, found a path or a name; leave them out")
    return str(data) if isinstance(data, os.PathLike) else data, plain, {}


def _objective(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the name of an objective that is given as a class or an instance, and the options of an instance."""
    value = settings.get("objective")
    if isinstance(value, Objective):
        values, named = value.built_with
        before, now = _described(value.as_built()), _described(value)
        names = sorted(dict(before.items() ^ now.items()))
        changed = [f"{name} {now.get(name)} instead of {before.get(name)}" for name in names]
        advice = "give it to the constructor, or write a class"
        expect(not changed, f"an objective as {type(value).__name__}(...) builds it", ", ".join(changed), advice)
        options = {**dict(zip(inspect.signature(type(value)).parameters, values, strict=False)), **named}
        options.pop("dim", None)
        for name, option in options.items():
            if not isinstance(option, bool | int | float | str | tuple | None):
                raise ValueError(f"expected an objective with options of numbers and texts, found {name} {shown(option)}")
        return {"objective": _class_name(type(value)), "options": {**options, **(settings.get("options") or {})}}
    if isinstance(value, type) and issubclass(value, Objective):
        return {"objective": _class_name(value)}
    if value is not None and not isinstance(value, str):
        refuse("objective to be a name, a class or an instance of Objective", shown(value), f"write one:\n{OWN}")
    return {}


def _described(objective: Objective) -> dict[str, str]:
    """Returns what an objective is but for the values of its tensors: public attributes, shapes, and what is learned."""
    found = {name: f"of shape {tuple(getattr(value, 'shape', ()))}" for name, value in objective.state_dict().items()}
    found |= {f"requires_grad of {name}": str(value.requires_grad) for name, value in objective.named_parameters()}
    public = {name: value for name, value in vars(objective).items() if name[0] != "_" and name not in OF_LOOPS}
    plain = {name: value for name, value in public.items() if isinstance(value, SIMPLE) or dataclasses.is_dataclass(value)}
    return found | {name: repr(value) for name, value in plain.items()}


def _filled(objective: Objective) -> dict[str, torch.Tensor]:
    """Returns the state of an objective whose weights were set after it was built; empty for any other."""
    before, now = objective.as_built().state_dict(), objective.state_dict()
    tensors = {name: value for name, value in before.items() if isinstance(value, torch.Tensor)}
    return {} if all(torch.equal(value, now[name].to(value)) for name, value in tensors.items()) else now


def _renewed(net: nn.Module) -> str:
    """Returns the registered name of a function that copies a network and gives it new weights."""
    layers = [layer for layer in net.modules() if not hasattr(layer, "reset_parameters")]
    fixed = ", ".join(type(layer).__name__ for layer in layers if list(layer.parameters(recurse=False)))
    advice = "give the network's class or a function, encoder=Network"
    expect(not fixed, "layers with reset_parameters for weights='new'", f"{fixed} without", advice)

    def renew() -> nn.Module:
        networks.reset(copied := copy.deepcopy(net))
        return copied

    return register_outside(renew, register_outside(net).replace("#", RENEWED))


def _class_name(kind: type) -> str:
    package, _, file = kind.__module__.rpartition(".")
    return file if package == "vergence.learn.objectives" else register_outside(kind)


def _processes(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the number of processes where torchrun or another launcher has started them, and the settings do not say it."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1 or {"devices", "nodes"} & settings.keys():
        return {}
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return {"devices": local, "nodes": world // local}


def _require_usable(config: RunConfig, settings: dict[str, Any]) -> None:
    """Raises a ValueError unless the settings of the fit suit the encoder and the objective."""
    fit = {name: value for name, value in settings.items() if name in {field.name for field in dataclasses.fields(FitConfig)}}
    if config.model.method is not None:
        build.require_method(config.model)
    if config.model.freeze:
        if config.fit.devices * config.fit.nodes > 1:
            raise ValueError("expected one device with `freeze=True`, which trains nothing; leave `devices` out")
    elif not config.model.takes_steps:
        closed_form.require_gje(config)
        recipes.require_no_steps(fit, f"encoder '{config.model.encoder.kind}' is a closed form")
    else:
        if config.model.objective == "none" and config.model.method is None:
            raise ValueError("expected `freeze=True` or `method` with `objective='none'`; add one, or name an objective")
        dual = config.model.encoder.closed_form and config.model.target_encoder is not None
        expect(not dual, "no target_encoder with 'patches-mlp', whose closed form is of one kind of view", advice="leave it out")
        optimizers.require_optimizer(config.fit)
        loop.require_shareable(config.fit)
