"""The description of a run: from data, a recipe or another run and the settings that are given, or of a run that is resumed."""

import dataclasses
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vergence.data.config import ViewConfig
from vergence.data.sources import Data, absolute, as_source
from vergence.encoders.config import MLP, Encoder, Patches, PatchesMLP, Small, as_encoder
from vergence.training import distillation, recipes, start
from vergence.training.config import ModelConfig, RunConfig
from vergence.training.folder import RunFolder, require_known_code
from vergence.utils import terminal
from vergence.utils.files import as_path

__all__ = ["completed", "describe", "fitted", "note_closed_form", "note_views", "resumed", "suited", "with_batch"]

NETWORKS = {"encoder", "objective", "method", "distill", "freeze", "init", "weights", "pretrained"}  # settings that name one
ENCODERS = ("encoder", "target_encoder", "distill")
PLAIN = {"knn_every", "precision"}  # settings of networks alone that ask for none


def describe(source: str | RunConfig | None, recipe: str | None, settings: dict[str, Any], trust_code: bool = False) -> RunConfig:
    """Returns the run description of a source, a recipe or another run (``init``), and changed settings.

    Paths of data are absolute in it, so that the run finds the same data from any folder.

    Raises:
        ValueError: No source is given, a setting is unknown, or the other run names code that is not trusted.
    """
    settings = _completed(settings)
    if settings.get("init") is not None and not isinstance(source, RunConfig):
        return _located(_from_run(None if source is None else as_source(source), recipe, settings, trust_code))
    if source is None or (isinstance(source, str) and not source):
        raise ValueError("expected data, found none: give a path or a built-in name, for instance 'digits'")
    base = source if isinstance(source, RunConfig) else recipes.get(recipe or recipes.suggested(settings), as_source(source))
    config = recipes.override(base, **settings)
    other = base.model.encoder.closed_form and not config.model.encoder.closed_form
    if recipe is not None and other and not config.model.freeze:
        found = f"found '{config.model.encoder}'; leave --recipe or --encoder out"
        raise ValueError(f"expected an encoder 'patches' with recipe '{recipe}', {found}")
    if config.model.distill is None and "distill_epochs" in settings:
        raise ValueError("expected --distill with --distill-epochs; add --distill patches, or leave both out")
    return _located(config)


def _located(config: RunConfig) -> RunConfig:
    """Returns a description whose paths of data are absolute."""
    data = config.data
    root = None if data.root is None else absolute(data.root)
    return dataclasses.replace(config, data=dataclasses.replace(data, source=absolute(data.source), root=root))


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with those that a frozen encoder, a method or an objective excludes."""
    if settings.get("freeze") or settings.get("method") is not None:
        settings = {"objective": "none", "projector": (), "target_encoder": None, "teacher": None, **settings}
        return {"options": {}, "method": None, **settings}
    if settings.get("distill") is not None:
        settings = {"encoder_lr": recipes.DISTILLED["encoder_lr"], **settings}
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
    if isinstance(other.model.encoder, Patches) and not other.model.encoder.takes_steps:
        other, settings = _behind(other, settings)
    base = start.from_run(path, other, source=source, root=settings.get("root"))
    return recipes.override(base, **{**settings, "init": settings["init"]})


def _behind(other: RunConfig, settings: dict[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Returns the description of a run behind another one's closed form, and the settings, if these ask for an objective."""
    asked = as_encoder(settings.get("encoder") or Small())
    if settings.get("objective", "none") == "none" and not (asked.closed_form and asked.takes_steps):
        return other, settings
    encoder = PatchesMLP(**dataclasses.asdict(typing.cast(Any, other.model.encoder)))
    suggested = recipes.suggested({"objective": settings.get("objective"), "encoder": encoder})
    recipe = recipes.get(suggested, other.data.source)
    model = dataclasses.replace(recipe.model, encoder=encoder)
    settings = {name: value for name, value in settings.items() if name not in ("encoder", "freeze")}
    return dataclasses.replace(recipe, data=other.data, views=other.views, model=model), settings


def _named(settings: dict[str, Any]) -> list[Any]:
    """Returns the names of code that the caller gives, who trusts it."""
    return [settings.get(name) for name in ("objective", "encoder", "target_encoder")]


def resumed(
    out: Path, source: str | RunConfig | None, recipe: str | None, settings: dict[str, Any], trust_code: bool
) -> RunConfig:
    """Returns the description of the run in a folder; the number of threads may be another now.

    Raises:
        ValueError: The folder holds no run, it names code that is not trusted, or a setting that is given differs from the run's.
    """
    folder = RunFolder.open(out, trust_code=True)  # opening imports nothing
    config = folder.config
    if not trust_code and not isinstance(source, RunConfig):  # what the caller names has to be the run's: see below
        require_known_code(out, config.model, _named(settings))
    complete = _completion(folder)
    config = _with_encoder(config, complete(config.model.encoder))
    before = _values(_located(config))
    given = settings if source is None or isinstance(source, RunConfig) else {**settings, "source": as_source(source)}
    given = {**given, **{name: absolute(str(given[name])) for name in ("source", "root") if given.get(name) is not None}}
    if given.get("encoder") is not None:
        given = {**given, "encoder": complete(as_encoder(given["encoder"]))}
    if recipe is not None:
        asked = recipes.override(recipes.get(recipe, config.data.source), **given).model
        asked = dataclasses.replace(asked, encoder=complete(asked.encoder))
        given = {**{name: getattr(asked, name) for name in ("encoder", "objective", "method", "distill")}, **given}
    own = {name: value for name, value in before.items() if name not in ("threads", "options")}
    plain = {name: value if value is None or name not in ENCODERS else as_encoder(value) for name, value in given.items()}
    _refuse_changes({name: (own[name], value) for name, value in plain.items() if name in own and own[name] != value})
    if isinstance(source, RunConfig):
        wanted = _with_encoder(source, complete(source.model.encoder))
    else:
        wanted = recipes.override(config, **given)
    now = _values(_located(wanted))
    pairs = {name: (before[name], now[name]) for name in before if name != "threads"}
    _refuse_changes({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})
    return dataclasses.replace(config, fit=dataclasses.replace(config.fit, threads=wanted.fit.threads))


def suited(config: RunConfig, source: Any, settings: dict[str, Any], kind: str, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description that starts from the default recipe for the data, with an MLP for vectors."""
    recipe = recipes.default(kind, shape, settings)
    why = recipes.of_networks(settings)
    if kind == "image" and why and set(why) <= PLAIN:  # others ask for a network
        terminal.note(f"recipe {recipe}, since {', '.join(why)} is not for patches, the default for images")
    config = config if recipe == recipes.DEFAULT else describe(source, recipe, settings)
    unnamed = config.model.encoder == Small() and settings.get("encoder") is None
    return _with_encoder(config, MLP()) if len(shape) == 1 and unnamed else config


def note_closed_form(model: ModelConfig, settings: dict[str, Any], kind: str, shape: tuple[int, ...]) -> None:
    """Prints which recipes start the same objective from the closed form, where an unnamed network starts from random weights."""
    unnamed = model.encoder == Small() and settings.get("encoder") is None
    starts = {"distilled": "lets this network learn the closed form first", "patches": "trains behind the closed form"}
    words = {f"{start}_{model.objective}": does for start, does in starts.items()}
    known = [f"--recipe {name} {does}" for name, does in words.items() if name in recipes.names()]
    if unnamed and known and recipes.default(kind, shape, []) == "patches" and not (model.distill or model.starts_from_weights):
        better = f"{', '.join(known)}; kNN accuracy was higher with these on all data measured (docs/trained.md)"
        asked = [] if NETWORKS & set(settings) else sorted(set(recipes.of_networks(settings)) - PLAIN)
        if asked:
            terminal.note(_why_network(asked, settings))
        terminal.note(f"the network starts from random weights; {better}")


def _why_network(asked: list[str], settings: dict[str, Any]) -> str:
    """Returns why a network is trained instead of the default for images, by the names of the settings that ask for one."""
    names = [own for name in asked for own in (sorted(settings["options"]) if name == "options" else [name])]
    verb, noun = ("is", "a setting") if len(names) == 1 else ("are", "settings")
    known = f"{', '.join(names)} {verb} not for patches, the default for images, but {noun} of networks"
    return f"a network, since {known}: this trains {recipes.suggested(settings)}"


def note_views(settings: dict[str, Any], kind: str) -> None:
    """Prints which strengths of views that were given have no effect on data of this kind."""
    given = [field.name for field in dataclasses.fields(ViewConfig) if field.name in settings]
    vectors = [name for name in given if name in ViewConfig.of_vectors]
    images = [name for name in given if name not in vectors]
    data, unused, why = {
        "image": ("images", vectors, "of vectors' views"),
        "vector": ("vectors", images, "of images' views"),
        "pairs": ("pairs", given, "pairs are their own views"),
    }[kind]
    if unused:
        terminal.note(f"without effect on {data}: {', '.join(unused)} ({why})")


def fitted(config: RunConfig, opened: Data, shape: tuple[int, ...]) -> RunConfig:
    """Returns the description with a closed form's settings, saying which were reduced, and no image statistics for vectors."""
    if len(shape) == 1 and config.model.input_mean is not None:
        return dataclasses.replace(config, model=dataclasses.replace(config.model, input_mean=None, input_std=None))
    if config.model.distill is not None:  # what it cannot be is known before a folder is written
        completed(config.model.distill, shape, len(opened.train), config.views.flip > 0)
        if config.fit.distill_epochs is None:
            epochs = distillation.epochs_for(len(opened.train), config.fit.batch_size)
            config = dataclasses.replace(config, fit=dataclasses.replace(config.fit, distill_epochs=epochs))
    if not config.model.encoder.closed_form or config.model.freeze or config.model.init is not None:
        return config
    if opened.kind != "image":
        raise ValueError(f"expected images for encoder 'patches', found {opened.kind} data; choose another --encoder")
    name, notes = completed(config.model.encoder, shape, len(opened.train), config.views.flip > 0)
    for note in notes:
        terminal.note(note)
    return _with_encoder(config, name)


def with_batch(config: RunConfig, n: int) -> RunConfig:
    """Returns a description whose batch is at most the n training items, and says so; as it is where processes cannot share n."""
    processes = config.fit.devices * config.fit.nodes
    batch = n - n % processes
    if not config.model.takes_steps or config.fit.batch_size <= n or batch < 2 * processes:
        return config
    terminal.note(f"a batch of {batch} instead of {config.fit.batch_size}, since there are {n} training items")
    return dataclasses.replace(config, fit=dataclasses.replace(config.fit, batch_size=batch))


def _values(config: RunConfig) -> dict[str, Any]:
    """Returns all settings of a description by name."""
    parts = (config.data, config.views, config.model, config.fit)
    return {field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)}


def _with_encoder(config: RunConfig, encoder: Encoder) -> RunConfig:
    """Returns a description with another encoder."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, encoder=encoder))


def _completion(folder: RunFolder) -> Callable[[Encoder], Encoder]:
    """Returns the function that completes an encoder for the data of a run that is resumed."""
    model, about, flip = folder.config.model, folder.metadata, folder.config.views.flip

    def complete(encoder: Encoder) -> Encoder:
        if model.freeze or model.init is not None:
            return encoder
        return completed(encoder, about.shape, about.n_train, flip > 0)[0]

    return complete


def completed(encoder: Encoder, shape: tuple[int, ...], n: int, mirrored: bool) -> tuple[Encoder, list[str]]:
    """Returns an encoder that is fitted in closed form, with every setting for n images, and a note on reduced ones.

    Another encoder is returned as it is.
    """
    if not isinstance(encoder, Patches) or len(shape) == 1:
        return encoder, []
    asked, settings = encoder.complete(shape), encoder.fitted(shape, n, mirrored)
    both = [(key, getattr(asked, key), getattr(settings, key)) for key in ("atoms", "second", "directions", "dim")]
    reduced = ", ".join(f"{key} {b} instead of {a}" for key, a, b in both if b < a)
    notes = [f"with {n:,} images the encoder is smaller: {reduced}"] if reduced else []
    return encoder.with_settings(settings), notes


def _refuse_changes(changed: dict[str, tuple[Any, Any]]) -> None:
    """Raises a ValueError if there are settings of another value now than before."""
    if changed:
        words = "; ".join(f"{name} was {_shown(before)}, now {_shown(now)}" for name, (before, now) in changed.items())
        raise ValueError(
            f"--resume keeps a run's own settings: {words}; leave them out, or start another run (--init takes its weights)"
        )


def _shown(value: object) -> str:
    return repr(str(value)) if isinstance(value, Encoder) else repr(value)
