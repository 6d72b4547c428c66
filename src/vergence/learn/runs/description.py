"""The description of a run: from data, a recipe or another run and the settings that are given, or of a run that is resumed."""

import dataclasses
import typing
from pathlib import Path
from typing import Any

from vergence.data.config import ViewConfig
from vergence.data.sources import absolute, as_source
from vergence.learn.encoders.config import MLP, Encoder, Patches, PatchesMLP, Small, as_encoder
from vergence.learn.training import recipes, staged, start
from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.folder import RunFolder, require_known_code
from vergence.learn.training.recipes import Facts
from vergence.utils.checks import expect
from vergence.utils.files import as_path

__all__ = ["completed", "resumed"]

CODE = ("objective", "encoder", "target_encoder")  # settings that may name code, which the caller who gives it trusts


def describe(
    source: str | RunConfig | None,
    recipe: str | None,
    settings: dict[str, Any],
    facts: Facts | None = None,
    trust_code: bool = False,
) -> RunConfig:
    """Returns the run description of a source, a recipe or another run (``init``), and changed settings.

    Paths of data are absolute in it, so that the run finds the same data from any folder. ``source`` is the name or path of the
    data, or a description that the settings change; ``facts``, what the data says of itself, are None before it is opened.
    """
    settings = recipes.with_implied(settings)
    if settings.get("init") is not None and not isinstance(source, RunConfig):
        return _located(_from_run(None if source is None else as_source(source), recipe, settings, trust_code))
    if source is None or (isinstance(source, str) and not source.strip()):
        raise ValueError("expected data, found none: give a path or a built-in name, for instance 'digits'")
    if isinstance(source, RunConfig):
        base = source
    else:
        base = recipes.get(recipe or recipes.suggested(settings, facts), as_source(source))
    config = recipes.override(base, **settings)
    other = base.model.encoder.closed_form and not config.model.encoder.closed_form
    fits, what = recipe is None or not other or config.model.freeze, f"an encoder 'patches' with recipe '{recipe}'"
    expect(fits, what, f"'{config.model.encoder}'", "leave `recipe` or `encoder` out")
    if config.model.distill is None and "distill_epochs" in settings:
        raise ValueError("expected `distill` with `distill_epochs`; add `distill='patches'`, or leave both out")
    return _located(config)


def _located(config: RunConfig) -> RunConfig:
    """Returns a description whose paths of data are absolute."""
    data = config.data
    root = None if data.root is None else absolute(data.root)
    return dataclasses.replace(config, data=dataclasses.replace(data, source=absolute(data.source), root=root))


def _from_run(source: str | None, recipe: str | None, settings: dict[str, Any], trust_code: bool) -> RunConfig:
    """Returns the description of a run that starts from another one's weights: that one's, with the settings that are given."""
    expect(recipe is None, "either `recipe` or `init`", "both", "leave one out")
    path = as_path(settings["init"], "init")
    other = RunFolder.open(path, trust_code=True).config  # opening imports nothing
    require_known_code(path, other.model, trust_code, [settings.get(name) for name in CODE])
    if other.model.freeze and (settings.get("objective", "none") != "none" or settings.get("method") is not None):
        settings = {"freeze": False, **settings}
    if other.model.encoder.closed_form and not other.model.encoder.takes_steps:
        other, settings = _behind(other, settings)
    base = start.from_run(path, other, source=source, root=settings.get("root"))
    return recipes.override(base, **{**settings, "init": settings["init"]})


def _behind(other: RunConfig, settings: dict[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """Returns the description of a run behind another one's closed form, and the settings, if these ask for an objective."""
    asked = as_encoder(settings.get("encoder") or Small())
    if settings.get("objective", "none") == "none" and not (asked.closed_form and asked.takes_steps):
        return other, settings
    encoder = PatchesMLP(**dataclasses.asdict(typing.cast(Patches, other.model.encoder)))
    suggested = recipes.suggested({"objective": settings.get("objective"), "encoder": encoder})
    recipe = recipes.get(suggested, other.data.source)
    model = dataclasses.replace(recipe.model, encoder=encoder)
    settings = {name: value for name, value in settings.items() if name not in ("encoder", "freeze")}
    return dataclasses.replace(recipe, data=other.data, views=other.views, model=model), settings


def for_data(config: RunConfig, settings: dict[str, Any], facts: Facts, any_recipe: bool) -> tuple[RunConfig, list[str]]:
    """Returns a description with what follows from the data, and notes on it.

    A closed form has all its settings; vectors have an MLP where no encoder is named and no image statistics; where no recipe is
    named either (``any_recipe``), a batch has at most the n items.
    """
    model, fit, mirrored = config.model, config.fit, config.views.flip > 0
    notes = _cut(facts) if facts.kind == "image" else []
    if facts.kind in ("array", "tokens"):  # which the shape of later items need not say
        config = recipes.override(config, form=facts.kind)
    if len(facts.shape) == 1 and facts.kind != "tokens":
        model = dataclasses.replace(model, input_mean=None, input_std=None)
        if any_recipe and model.encoder == Small() and settings.get("encoder") is None:
            model = dataclasses.replace(model, encoder=MLP())
    processes = fit.devices * fit.nodes
    batch = facts.n - facts.n % processes
    if any_recipe and model.takes_steps and "batch_size" not in settings and fit.batch_size > facts.n and batch >= 2 * processes:
        notes.append(f"a batch of {batch} instead of {fit.batch_size}, since there are {facts.n} training items")
        fit = dataclasses.replace(fit, batch_size=batch)
    if model.distill is not None:  # checked before a folder is written
        completed(model.distill, facts, mirrored)
        fit = dataclasses.replace(fit, distill_epochs=fit.distill_epochs or staged.epochs_for(facts.n, fit.batch_size))
    elif model.encoder.closed_form and not model.freeze and model.init is None:
        expect(facts.kind == "image", "images for encoder 'patches'", f"{facts.kind} data", "choose another `encoder`")
        encoder, reduced = completed(model.encoder, facts, mirrored)
        model, notes = dataclasses.replace(model, encoder=encoder), [*notes, *reduced]
    config = dataclasses.replace(config, model=model, fit=fit)
    return config, [*notes, *_without_effect(settings, facts.kind), *(_starts(model, settings, facts) if any_recipe else ())]


def _cut(facts: Facts) -> list[str]:
    """Returns what an encoder does not see of images that are read larger, in words."""
    (_, height, width), seen = facts.read or facts.shape, facts.shape[1:]
    share = f"{min(*seen, height, width) ** 2 / (height * width):.0%} of {height} x {width}"
    return [f"images are seen at {seen[0]} x {seen[1]} pixels: the middle square, {share}"] if seen != (height, width) else []


def completed(encoder: Encoder, facts: Facts, mirrored: bool) -> tuple[Encoder, list[str]]:
    """Returns a closed form with every setting for the data, and a note on those that were reduced; another encoder as it is."""
    if not isinstance(encoder, Patches) or len(facts.shape) == 1:
        return encoder, []
    asked, settings = encoder.complete(facts.shape), encoder.fitted(facts.shape, facts.n, mirrored)
    both = [(key, getattr(asked, key), getattr(settings, key)) for key in ("atoms", "second", "directions", "dim")]
    reduced = ", ".join(f"{key} {b} instead of {a}" for key, a, b in both if b < a)
    notes = [f"with {facts.n:,} training images the encoder is smaller: {reduced}"] if reduced else []
    return encoder.with_settings(settings), notes


def _starts(model: ModelConfig, settings: dict[str, Any], facts: Facts) -> list[str]:
    """Returns which recipes start from the closed form, where an unnamed network starts from random weights."""
    words = {
        f"distilled_{model.objective}": "first distills the default encoder into a small network",
        f"patches_{model.objective}": "trains on top of the default encoder",
    }
    others = [f"`recipe='{name}'` {does}" for name, does in words.items() if name in recipes.names()]
    unnamed = model.encoder == Small() and settings.get("encoder") is None
    if not (unnamed and others and facts.roomy) or model.distill is not None or model.starts_from_weights:
        return []
    better = "their kNN accuracy was higher on all data measured (docs/guides/trained.md)"
    return [f"the network starts from random weights; {', '.join(others)}; {better}"]


def _without_effect(settings: dict[str, Any], kind: str) -> list[str]:
    """Returns which strengths of views that were given have no effect on data of this kind."""
    given = [f.name for f in dataclasses.fields(ViewConfig) if f.name in settings and settings[f.name] != f.default]
    own = [name for name in given if name not in ViewConfig.of_any]
    vectors = [name for name in own if name in ViewConfig.of_vectors]
    images = [name for name in own if name not in vectors]
    data, unused, why = {
        "image": ("images", vectors, "of vectors' views"),
        "vector": ("vectors", images, "of images' views"),
        "array": ("arrays", images, "of images' views"),
        "tokens": ("tokens", own, "a function makes their views"),
        **{name: (name, given, f"{name} are their own views") for name in ("pairs", "modalities")},
    }[kind]
    return [f"without effect on {data}: {', '.join(unused)} ({why})"] if unused else []


def resumed(
    out: Path, source: str | RunConfig | None, recipe: str | None, settings: dict[str, Any], trust_code: bool
) -> RunConfig:
    """Returns the description of the run in a folder; the number of threads may be another now."""
    folder = RunFolder.open(out, trust_code=True)  # opening imports nothing
    config, about = folder.config, folder.metadata
    facts = Facts(about.kind, about.shape, about.n_train)
    if isinstance(source, RunConfig):
        wanted = source
    else:
        # what the caller names has to be the run's: see below
        require_known_code(out, config.model, trust_code, [settings.get(name) for name in CODE])
        given = settings if source is None else {"source": source, **settings}
        given = given | {name: absolute(as_source(given[name])) for name in ("source", "root") if given.get(name) is not None}
        if recipe is not None:
            model = recipes.override(recipes.get(recipe, config.data.source), **given).model
            given = {**{name: getattr(model, name) for name in ("encoder", "objective", "method", "distill")}, **given}
        wanted = recipes.override(config, **given)
    if not (wanted.model.freeze or wanted.model.init):
        encoder = completed(wanted.model.encoder, facts, config.views.flip > 0)[0]
        wanted = dataclasses.replace(wanted, model=dataclasses.replace(wanted.model, encoder=encoder))
    before, now = _values(_located(config)), _values(_located(wanted))
    if changed := [name for name in before if name != "threads" and before[name] != now[name]]:
        words = "; ".join(f"{name} was {_shown(before[name])}, now {_shown(now[name])}" for name in changed)
        raise ValueError(
            f"`resume` keeps a run's own settings: {words}; leave them out, or start another run (`init` takes its weights)"
        )
    return dataclasses.replace(config, fit=dataclasses.replace(config.fit, threads=wanted.fit.threads))


def _values(config: RunConfig) -> dict[str, Any]:
    parts = (config.data, config.views, config.model, config.fit)
    return {field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)}


def _shown(value: object) -> str:
    return repr(str(value)) if isinstance(value, Encoder) else repr(value)
