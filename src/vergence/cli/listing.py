"""``vergence list``, and the help of ``vergence train``: what can be chosen, in words."""

import inspect
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.learn import methods, objectives, outline
from vergence.learn.encoders.config import KINDS
from vergence.learn.training import recipes
from vergence.utils.checks import refuse

GROUPS = {  # of the help of train
    "Data": ("data", "kind", "size", "limit", "keep_classes", "calibration_share", "data_root", "download", "strict"),
    "What to train": ("recipe", "objective", "method", "encoder", "views", "distill", "pretrained", "weights", "init", "freeze"),
    "Optimization": ("epochs", "distill_epochs", "batch_size", "optimizer", "lr", "seed"),
    "Hardware": ("device", "devices", "precision", "threads"),
    "Advanced": ("set", "resume", "trust_code"),
    "Output": ("out", "dry_run", "shard"),
}
ENCODERS = {"small": "small, small-deep", "resnet": "resnet18-cifar, ...", "timm": "timm:NAME"}  # in place of the kind
ENCODERS |= {"factory": "package.module:factory"}
WIDTH = 26  # characters of a name and its value
EMPTY = ("None", "()", "{}")  # values that say nothing


@dataclass(kw_only=True)
class List:
    """List recipes, objectives, encoders or settings, with what each is; alone, what can be listed."""

    what: Annotated[Positional[Literal["recipes", "objectives", "encoders", "settings"] | None], arg(metavar="[WHAT]")] = None
    """recipes, objectives, encoders or settings."""
    word: Annotated[Positional[str | None], arg(metavar="[WORD]", help_behavior_hint="")] = None
    """Only those whose name or description has this word."""


@dataclass(kw_only=True)
class Completion:
    """Print a shell's completion script: eval "$(vergence completion bash)" switches it on."""

    shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]
    """bash, zsh or fish."""


WHAT = {  # can be listed, and how each is used
    "recipes": ("complete settings by name", "vergence train DATA --recipe NAME"),
    "objectives": ("what a network is trained for", "vergence train DATA --objective NAME"),
    "encoders": ("networks and closed forms that make embeddings", "vergence train DATA --encoder NAME"),
    "settings": ("every single setting, with its default", "vergence train DATA --set NAME=VALUE"),
}


def listed(command: List) -> None:
    """Runs ``vergence list``."""
    if command.what is None:
        print("\n".join([*(f"{name:{WIDTH}} {text}" for name, (text, _) in WHAT.items()), "next: vergence list recipes"]))
        return
    every = {"recipes": _recipes, "objectives": _papers, "encoders": _encoders, "settings": _named}[command.what]()
    word = (command.word or "").lower()
    rows = [(name, text) for name, text in every if word in f"{name} {text}".lower()]
    if not rows:
        refuse(f"a word of {command.what}", f"'{command.word}', which is in none", f"vergence list {command.what} lists all")
    for name, text in sorted(rows, key=lambda row: row[0].lower() != word):  # that of this name first
        print(f"{name:{WIDTH}} {text}")
    print(f"next: {WHAT[command.what][1]}")


def _first_sentence(text: str | None) -> str:
    text = " ".join((text or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def _recipes() -> Iterator[tuple[str, str]]:
    for name in recipes.names():
        config = recipes.get(name)
        model, what = config.model, config.model.method or config.model.objective
        steps = f"{config.fit.epochs} epochs" if model.takes_steps else "closed form, no steps"
        published = f"published for {recipes.PUBLISHED[name].data}; " if name in recipes.PUBLISHED else ""
        yield name, f"{published}{what}, encoder {model.encoder}, {steps}"


def _papers() -> Iterator[tuple[str, str]]:
    for name in (*objectives.names(), *methods.names()):
        yield "--method " * (name in methods.names()) + name, _first_sentence(outline(name).doc)


def _encoders() -> Iterator[tuple[str, str]]:
    for name, kind in KINDS.items():
        own = [f.name for f in fields(cast(Any, kind)) if f.name not in ("name", "stem", "deep", "factory")]
        yield ENCODERS.get(name, name), _first_sentence(kind.__doc__) + (f" Settings: {', '.join(own)}." if own else "")


def _settings() -> Iterator[tuple[str, list[str], Any, str]]:
    """Yields the name, owners, default and description of every setting of a run."""
    for name, kinds in sorted(options.known_settings().items()):
        default = next(f for f in fields(kinds[0]) if f.name == name)
        value = default.default if default.default is not MISSING else None
        yield name, [kind.__name__ for kind in kinds], value, options.described(name)


def _options() -> Iterator[tuple[str, list[str], Any, str]]:
    """Yields the same of every option of an objective or a method."""
    for owner in (*objectives.names(), *methods.names()):
        words = options.descriptions(outline(owner).doc)
        for name, default in outline(owner).options.items():
            yield name, [owner], default, words.get(name, "")


def _named() -> Iterator[tuple[str, str]]:
    for name, _, default, words in _settings():
        yield name, f"{words} Default: {default}."
    for name, owners, default, words in sorted(_options(), key=lambda row: row[:2]):
        yield name, f"{words} Option of {owners[0]}. Default: {default}."


def train_help(train: type, arguments: list[str]) -> str:
    """Returns the help of ``vergence train`` in groups, with the values of a recipe, by default of those that the data choose."""
    at = arguments.index("--recipe") + 1 if "--recipe" in arguments else len(arguments)
    configs = {arguments[at]: recipes.get(arguments[at])} if at < len(arguments) else recipes.defaults()
    values: dict[str, dict[Any, list[str]]] = {}  # of each setting, with what has it
    for kind, config in configs.items():
        for part in (config.data, config.model, config.fit):
            for f in fields(part):
                values.setdefault(f.name, {}).setdefault(str(getattr(part, f.name)), []).append(kind)
    about = {f.name: f for f in fields(train)}
    lines = ["usage: vergence train DATA [--out FOLDER] [OPTIONS]", "", inspect.getdoc(train) or "", ""]
    lines += ["Images are encoded by patches, a closed form, unless an option asks for a network.", ""]
    lines += [f"Defaults are those for {' and '.join(configs)}; --recipe NAME --help shows others.", ""]
    for group, names in GROUPS.items():
        lines += [f"{group}:", *(line for name in names for line in _option(about[name], values)), ""]
    return "\n".join([*lines, "vergence list recipes, objectives, encoders or settings says what can be chosen."])


def _option(field: Any, values: dict[str, dict[Any, list[str]]]) -> Iterator[str]:
    import textwrap

    kind, *settings = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    known = [one for one in settings if hasattr(one, "metavar")]
    metavar, text = (known[0].metavar, known[0].help) if known else (None, None)
    flag = kind is bool
    name = "DATA" if field.name == "data" else options.option(field.name) + ("" if flag or not metavar else f" {metavar}")
    found = {} if flag else values.get({"data_root": "root"}.get(field.name, field.name), {})
    each = [value if len(found) == 1 else f"{value} for {kinds[0]}" for value, kinds in found.items() if value not in EMPTY]
    default = f" Default: {', '.join(each)}." if each else ""
    yield f"  {name}"
    indent, width = " " * 6, min(100, shutil.get_terminal_size().columns)
    yield from textwrap.wrap(f"{text}{default}", width, break_on_hyphens=False, initial_indent=indent, subsequent_indent=indent)
