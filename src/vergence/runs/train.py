"""Trains a run: opens the data, builds the method, fits it and writes the run folder."""

import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from vergence.data import sources
from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.encoders.names import is_closed_form, is_refined
from vergence.encoders.patch_maps import PatchSettings, as_recorded
from vergence.methods.core import Method
from vergence.methods.paired import PairedMethod
from vergence.runs import fitting
from vergence.runs.run import Run
from vergence.training import build, calibration, closed_form, loop, recipes, staged, start
from vergence.training.config import ModelConfig, RunConfig
from vergence.training.folder import RunFolder, require_known_code, require_new, run_lock, write_skipped
from vergence.training.memory import require_memory
from vergence.training.monitor import online_knn
from vergence.training.processes import together
from vergence.training.records import RunMetadata, Weights
from vergence.utils.devices import enough_memory
from vergence.utils.files import as_path
from vergence.utils.terminal import bar

__all__ = ["describe", "train"]


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
            images; ``vje_small`` for other data, for images that are too small, and where a setting of networks or optimizers is
            given, which a closed form does not have (`vergence.training.recipes.default`); with ``method="NAME"`` the recipe
            ``NAME_small``.
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
        >>> run = train("digits", out=folder + "/run", epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    out = Path(out)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    config = _resumed(out, source, recipe, settings, trust_code) if resume else describe(source, recipe, settings, trust_code)
    if not resume:
        require_new(out)
        _require_apart(out, config.data.source)
        config = start.configured(config)
    _require_usable(config)
    _note_settings(config, settings)
    several = config.fit.devices * config.fit.nodes > 1
    if resume and not several:
        with run_lock(out):  # refused before the data is read; held again below
            pass
    suited = partial(_suited, config, source, settings)
    with together(out) if several else nullcontext(), enough_memory("lower size, batch_size or the network's widths"):
        return _train(out, config, resume, trust_code, None if resume or recipe or isinstance(source, RunConfig) else suited)


def _train(out: Path, config: RunConfig, resume: bool, trust_code: bool, suited: "Suited | None") -> "Run":
    """Trains as `train` does; ``suited`` returns the description for the kind and shape of the data where no recipe is named."""
    several = config.fit.devices * config.fit.nodes > 1
    fabric = loop.launch(config.fit) if several else None  # the other processes run the command again: before the work
    opened = calibration.split(sources.open_data(config.data, workers=config.fit.workers), config)
    mean, std = build.statistics(opened.train)
    shape, target_shape = build.input_shapes(opened)
    config = suited(opened.kind, shape) if suited else config
    config = _fitted(config, opened, shape)
    build.require_images(config.model, opened.kind)
    method = build.initial_method(config, shape, target_shape, mean, std)
    weights = None if resume and not config.model.freeze else start.load_start(method, config, trust_code=trust_code)
    views = None if config.model.freeze else build.make_views(opened, config.views, shape, mean, std)
    fit = _fit_of(config.model)
    if fit in (_fit, _fit_staged):
        loop.require_batches(len(opened.train), config.fit)
    fabric = fabric or loop.launch(config.fit)
    require_memory(method, views, config.fit, shape, fabric.device)
    metadata = build.describe(config, opened, shape, target_shape, method, weights, fabric)
    with run_lock(out) if fabric.is_global_zero else nullcontext():
        folder = _continued(out, config, metadata, method) if resume else _created(fabric, out, config, metadata, opened, method)
        fit(fabric, method, opened, folder, views)
        _detect(fabric, method, opened, folder)
    return Run(folder, method, fabric.device)


def _detect(fabric: Any, method: Method, opened: Data, folder: RunFolder) -> None:
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


def _note_settings(config: RunConfig, settings: dict[str, Any]) -> None:
    """Prints which settings have no effect, and where a learning rate that is given is not the encoder's."""
    if without := recipes.unused(config, settings):
        print(f"note: without effect, since no steps are trained: {', '.join(without)}", file=sys.stderr)
    elif "lr" in settings and "encoder_lr" not in settings and (ratio := config.fit.encoder_lr) != 1:
        rates = f"{ratio:g} times {config.fit.lr:g}, as in the recipe"
        print(f"note: the encoder's learning rate is {rates}; --set encoder_lr=1 for equal rates", file=sys.stderr)


def _require_usable(config: RunConfig) -> None:
    """Raises a ValueError unless the settings of the fit suit the encoder and the objective."""
    if config.model.method is not None:
        build.require_method(config.model)
    if config.model.freeze:
        if config.fit.devices * config.fit.nodes > 1:
            raise ValueError("expected one device with --freeze, which trains nothing; leave --devices out")
    elif is_closed_form(config.model.encoder) and not is_refined(config.model.encoder):
        closed_form.require_gje(config)
    else:
        build.require_packages(config.model)
        staged.require_one_encoder(config.model)
        loop.require_shareable(config.fit)


def _fit_of(model: ModelConfig) -> "Fit":
    """Returns the function that trains a model."""
    if model.freeze:
        return _keep
    if is_refined(model.encoder):
        return _fit_staged
    return _fit_closed_form if is_closed_form(model.encoder) else _fit


def _suited(config: RunConfig, source: Any, settings: dict[str, Any], kind: str, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description that starts from the default recipe for the data, with an MLP for vectors."""
    recipe = recipes.default(kind, shape, settings)
    why = recipes.of_networks(settings)
    if kind == "image" and why and set(why) <= {"knn_every", "precision"}:  # others ask for a network
        print(f"note: recipe {recipe}, since {', '.join(why)} is not for patches, the default for images", file=sys.stderr)
    config = config if recipe == recipes.DEFAULT else describe(source, recipe, settings)
    unnamed = config.model.encoder == "small" and settings.get("encoder") is None
    return _with_encoder(config, "mlp") if len(shape) == 1 and unnamed else config


def _fitted(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description with a closed form's settings, saying which were reduced, and no image statistics for vectors."""
    if len(shape) == 1 and config.model.input_mean is not None:
        return dataclasses.replace(config, model=dataclasses.replace(config.model, input_mean=None, input_std=None))
    if not is_closed_form(config.model.encoder) or config.model.freeze or config.model.init is not None:
        return config
    if opened.kind != "image":
        raise ValueError(f"expected images for encoder 'patches', found {opened.kind} data; choose another --encoder")
    name, notes = _complete(config.model.encoder, shape, len(opened.train), config.views.flip > 0)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return _with_encoder(config, name)


def _created(fabric: Any, out: Path, config: RunConfig, metadata: RunMetadata, opened: Data, method: Method) -> RunFolder:
    """Returns a new run folder, which the first process writes, and says which weights the run starts from."""
    folder = RunFolder(out, config, metadata)
    if fabric.is_global_zero:
        folder = RunFolder.create(out, config, metadata)
        write_skipped(out / "skipped.csv", opened.skipped)
        assert metadata.weights is not None, "of a new run"
        _say_weights(folder, metadata.weights)
        if metadata.weights.source not in ("random", "none") and not config.model.freeze:
            folder.save_initial(method.state_dict())
    fabric.barrier()
    return folder


def _say_weights(folder: RunFolder, weights: Weights) -> None:
    """Prints and logs which weights a run starts from, unless they are random ones and its encoder's name suggests no others."""
    hint = start.hint(folder.config.model.encoder, weights)
    if weights.source != "random" or hint:
        words = f"weights: {weights.in_words()}{hint}"
        print(words, file=sys.stderr)
        folder.log(words)


def _continued(out: Path, config: RunConfig, now: RunMetadata, method: Method) -> RunFolder:
    """Returns the folder of a run that is resumed, as `_resumed` describes it; sets the weights that the run started from.

    Raises:
        ValueError: The data has changed since the run started, or the run did not come to keep the weights that it started from.
    """
    folder = RunFolder.open(out, trust_code=True)  # `_resumed` has asked
    for name in ("n_train", "n_calibration", "shape", "target_shape"):
        before, found = getattr(folder.metadata, name), getattr(now, name)
        if before != found:
            raise ValueError(f"expected the data that the run started with, found {name} {found} instead of {before}; restore it")
    folder.config = config
    weights = folder.metadata.weights
    if weights is not None and weights.source not in ("random", "none") and not config.model.freeze:
        state = folder.load_initial()
        if state is None:
            raise ValueError(f"{out} was stopped before it kept the weights that it starts from; start it again without --resume")
        method.load_state_dict(state)
    return folder


def describe(source: str | RunConfig | None, recipe: str | None, settings: dict[str, Any], trust_code: bool = False) -> RunConfig:
    """Returns the run description of a source, a recipe or another run (``init``), and changed settings.

    Raises:
        ValueError: There is no source, a setting is unknown, or the other run names code that is not trusted.
    """
    settings = _completed(settings)
    if settings.get("init") is not None and not isinstance(source, RunConfig):
        return _from_run(None if source is None else str(source), recipe, settings, trust_code)
    if source is None or source == "":
        raise ValueError("expected data, found none: give a path or a built-in name, for instance 'digits'")
    base = source if isinstance(source, RunConfig) else recipes.get(recipe or recipes.suggested(settings))(str(source))
    return recipes.override(base, **settings)


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with those that a frozen encoder, a method or an objective excludes."""
    if settings.get("freeze") or settings.get("method") is not None:
        settings = {"objective": "none", "projector": (), "target_encoder": None, "teacher": None, **settings}
        return {"options": {}, "method": None, **settings}
    return {"method": None, **settings} if settings.get("objective", "none") != "none" else settings


def _from_run(source: str | None, recipe: str | None, settings: dict[str, Any], trust_code: bool) -> RunConfig:
    """Returns the description of a run that starts from another one's weights: that one's, with the settings that are given."""
    if recipe is not None:
        raise ValueError(f"expected either a recipe or --init, found recipe '{recipe}' and --init; leave one out")
    path = as_path(settings["init"], "init")
    other = RunFolder.open(path, trust_code=True).config  # opening imports nothing
    if not trust_code:
        require_known_code(path, other.model, _named(settings))
    if other.model.freeze and (settings.get("objective", "none") != "none" or settings.get("method") is not None):
        settings = {"freeze": False, **settings}
    if is_closed_form(other.model.encoder) and not is_refined(other.model.encoder):
        other, settings = _behind(other, settings)
    base = start.from_run(path, other, source=source, root=settings.get("root"))
    return recipes.override(base, **{**settings, "init": settings["init"]})


def _behind(other: RunConfig, settings: dict[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Returns the description of a run behind another one's closed form, and the settings, if these ask for an objective."""
    if settings.get("objective", "none") == "none" and not is_refined(str(settings.get("encoder") or "")):
        return other, settings
    encoder = other.model.encoder.replace("patches", "patches-mlp", 1)
    asked = {"objective": settings.get("objective"), "encoder": encoder}
    recipe = recipes.get(recipes.suggested(asked))(other.data.source)
    model = dataclasses.replace(recipe.model, encoder=encoder)
    settings = {name: value for name, value in settings.items() if name not in ("encoder", "freeze")}
    return dataclasses.replace(recipe, data=other.data, views=other.views, model=model), settings


def _named(settings: dict[str, Any]) -> list[Any]:
    """Returns the names of code that the caller gives, who trusts it."""
    return [settings.get(name) for name in ("objective", "encoder", "target_encoder")]


def _resumed(
    out: Path, source: str | RunConfig | None, recipe: str | None, settings: dict[str, Any], trust_code: bool
) -> RunConfig:
    """Returns the description of the run in a folder; the number of threads may be another now.

    Raises:
        ValueError: There is no run, it names code that is not trusted, or a setting that is given differs from the run's.
    """
    folder = RunFolder.open(out, trust_code=True)  # opening imports nothing
    config = folder.config
    if not trust_code and not isinstance(source, RunConfig):  # what the caller names has to be the run's: see below
        require_known_code(out, config.model, _named(settings))
    complete = _completion(folder)
    config = _with_encoder(config, complete(config.model.encoder))
    before = config.to_dict()
    given = settings if source is None or isinstance(source, RunConfig) else {**settings, "source": str(source)}
    if isinstance(given.get("encoder"), str):
        given = {**given, "encoder": complete(given["encoder"])}
    if recipe is not None:
        asked = dataclasses.asdict(recipes.override(recipes.get(recipe)(config.data.source), **given).model)
        asked |= {"encoder": complete(asked["encoder"])}
        given = {**{name: asked[name] for name in ("encoder", "objective", "method")}, **given}
    own = {name: value for part in before.values() for name, value in part.items() if name not in ("threads", "options")}
    _refuse_changes({name: (own[name], value) for name, value in given.items() if name in own and own[name] != value})
    if isinstance(source, RunConfig):
        wanted = _with_encoder(source, complete(source.model.encoder))
    else:
        wanted = recipes.override(config, **given)
    now = wanted.to_dict()
    pairs = {name: (before[part][name], now[part][name]) for part in before for name in before[part] if name != "threads"}
    _refuse_changes({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})
    return dataclasses.replace(config, fit=dataclasses.replace(config.fit, threads=wanted.fit.threads))


def _with_encoder(config: RunConfig, encoder: str) -> RunConfig:
    """Returns a description with another encoder's name."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, encoder=encoder))


def _completion(folder: RunFolder) -> Callable[[str], str]:
    """Returns the function that completes the name of an encoder for the data of a run that is resumed.

    Where an older run's own name says nothing of a second layer, no other name adds one unless it says so.
    """
    model, about, flip = folder.config.model, folder.metadata, folder.config.views.flip

    def complete(encoder: str) -> str:
        if model.freeze or model.init is not None or not is_closed_form(encoder):
            return encoder
        return _complete(as_recorded(encoder, model.encoder), about.shape, about.n_train, flip > 0)[0]

    return complete


def _complete(encoder: str, shape: tuple[int, ...], n: int, mirrored: bool) -> tuple[str, list[str]]:
    """Returns the name of an encoder that is fitted in closed form, with every setting for n images, and notes on reduced ones.

    Another encoder's name is returned as it is.
    """
    if not is_closed_form(encoder) or len(shape) == 1:
        return encoder, []
    settings, notes = closed_form.fitted_settings(encoder, shape, n, mirrored)
    return encoder.partition(":")[0] + ":" + settings.name.partition(":")[2], notes


def _refuse_changes(changed: dict[str, tuple[Any, Any]]) -> None:
    """Raises a ValueError if there are settings of another value now than before."""
    if changed:
        words = "; ".join(f"{name} was {before!r}, now {now!r}" for name, (before, now) in changed.items())
        raise ValueError(f"--resume keeps a run's own settings: {words}; leave them out, or start another run")


def _require_apart(out: Path, source: str) -> None:
    """Raises a ValueError if a run folder is, or holds, the data that the run is to be trained on."""
    data = as_path(source, "the data")
    if source not in sources.BUILT_IN and data.exists():
        out, data = out.resolve(), data.resolve()
        if out == data or out in data.parents:
            raise ValueError(f"expected a run folder apart from the data, found --out {out} to hold {data}; choose another --out")


Fit = Callable[[Any, Method, Data, RunFolder, Views | None], None]
Suited = Callable[[str, tuple[int, ...]], RunConfig]


def _keep(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Saves an encoder as it is, and trains nothing."""
    method.to(fabric.device)
    folder.save_model(method.state_dict())


def _fit(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
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


def _fit_closed_form(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits in closed form with a progress bar, the whole run or its first stage."""
    assert views is not None and isinstance(method, PairedMethod), "pairs and methods on images were refused"
    config, size = folder.config, folder.metadata.crop_size()
    first = is_refined(config.model.encoder)
    if first and (config.model.init is not None or staged.is_fitted(fabric, folder)):
        return
    settings = PatchSettings.parse(config.model.encoder, folder.metadata.shape)
    with bar("dictionary", closed_form.total_images(len(opened.train), settings), "images") as advance:

        def progress(images: int, label: str) -> None:
            advance(images, label=label)

        shown = progress if fabric.is_global_zero else _unseen
        fit = staged.fit_first if first else closed_form.fit
        fit(fabric, method, opened.train, views, config, size, folder, shown)


def _fit_staged(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits the closed form inside an encoder, then trains what is behind it."""
    _fit_closed_form(fabric, method, opened, folder, views)
    _fit(fabric, method, opened, folder, views)


def _unseen(images: int, label: str) -> None:
    """Shows no progress."""


_UNSHOWN = {"step", "epoch", "lr", "images_per_second", "threads", "std", "variance_cv"}
