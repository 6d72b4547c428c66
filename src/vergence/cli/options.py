"""What the commands share: options made from the configuration's fields, NAME=VALUE settings, and checks of arguments."""

import ast
import functools
import inspect
import re
import types
import typing
from dataclasses import fields
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from vergence.data.config import DataConfig, ViewConfig
from vergence.training.config import FitConfig, ModelConfig

__all__ = ["ALIASES", "SETTINGS", "DataRoot", "Device", "Download", "Seed", "Settings", "Threads", "TrustCode"]
__all__ += ["SOURCES", "check", "chosen", "described", "known_settings", "parse", "parse_settings", "setting"]

CONFIGS = (DataConfig, ViewConfig, ModelConfig, FitConfig)
LARGEST = 2**63 - 1
SHOWN = 80  # characters of a value in a message
SOURCES = "digits, mnist, fashion_mnist, cifar10, cifar100, stl10; a folder of images; a .npy, .npz or .parquet file."

# Fields of the configuration that have an option of their own in `vergence train`; --set reaches every field.
SETTINGS = (
    *(
        "objective",
        "method",
        "encoder",
        "distill",
        "pretrained",
        "weights",
        "init",
        "freeze",
        "epochs",
        "distill_epochs",
        "batch_size",
        "optimizer",
        "lr",
        "size",
    ),
    *("limit", "keep_classes", "calibration_share"),
    *("seed", "precision", "device", "devices", "threads", "root", "download", "strict"),
)
ENCODERS = ("encoder", "distill")  # given as text
MEASURED = "(default: one or all, by measuring)"
ALIASES = {"root": "data_root"}  # name of an option where it is not the field's
METAVARS = {
    "lr": "RATE",
    "calibration_share": "SHARE",
    "size": "PIXELS",
    "keep_classes": "LABEL [LABEL ...]",
    "root": "FOLDER",
    "weights": "FILE",
    "init": "RUN",
}
WORDS = {  # of a name that two classes have, of which one option sets both
    "strict": "Stop at unreadable images instead of skipping them, and stop when the embedding collapses.",
}
DEFAULTS = {
    "distill": "",
    "keep_classes": "",
    "weights": "",
    "init": "",
    "root": "(default: data)",
    "threads": MEASURED,
}  # of the help, where it is not the recipe's


@functools.cache
def _descriptions(config: type) -> dict[str, str]:
    """Returns the entries of the section Attributes of a class's docstring, by name, without markup."""
    section = inspect.cleandoc(config.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.M)
    return {name: " ".join(text.replace("`", "").split()) for name, text in entries}


def known_settings() -> dict[str, list[type]]:
    """Returns the configuration classes that have a field, by its name."""
    known: dict[str, list[type]] = {}
    for config in CONFIGS:
        for field in fields(config):
            known.setdefault(field.name, []).append(config)
    return known


def described(name: str) -> str:
    """Returns the description of a field: that of `WORDS`, or else from the docstring of each class that has it.

    Example:
        >>> described("epochs")
        'Passes over the training items.'
    """
    return WORDS.get(name) or " ".join(_descriptions(config)[name] for config in known_settings()[name])


def setting(name: str) -> tuple[str, Any, Any]:
    """Returns an option of `vergence train` as `dataclasses.make_dataclass` takes it: name, annotated type, default.

    Without the option the recipe decides, so the default is None; a flag can only be switched on.
    """
    kind = str if name in ENCODERS else typing.get_type_hints(known_settings()[name][0])[name]
    option = ALIASES.get(name, name)
    if kind is bool:
        return option, Annotated[bool, arg(help=described(name))], False
    hint = DEFAULTS.get(name, "(default: the recipe's)")
    return option, Annotated[kind | None, arg(help=described(name), metavar=_metavar(name, kind), help_behavior_hint=hint)], None


def _metavar(name: str, kind: Any) -> str:
    """Returns what stands for the value in the help."""
    parts = [part for part in typing.get_args(kind) if part is not types.NoneType]
    if typing.get_origin(kind) is Literal:
        return "{" + "|".join(parts) + "}"
    return METAVARS.get(name) or ("N" if int in (kind, *parts) else "NAME")


def chosen(command: Any) -> dict[str, Any]:
    """Returns the settings that were given by options of their own, by the names of the fields."""
    given = {name: getattr(command, ALIASES.get(name, name)) for name in SETTINGS}
    return {name: value for name, value in given.items() if value is not None and value is not False}


Device = Annotated[Literal["auto", "cpu", "cuda"], arg(help="Device that computes.")]
Threads = Annotated[int | None, arg(metavar="N", help="CPU threads.", help_behavior_hint=MEASURED)]
Seed = Annotated[int, arg(help="Seed of all random numbers.")]
DataRoot = Annotated[str | None, arg(metavar="FOLDER", help=described("root"), help_behavior_hint="(default: the run's)")]
TrustCode = Annotated[bool, arg(help="Import the objective or encoder that the run names where it is not one of the library's.")]
Download = Annotated[bool, arg(help=described("download"))]
Settings = UseAppendAction[list[str]]


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Returns NAME=VALUE settings by name; those that are no field of the configuration are collected under ``options``.

    Example:
        >>> parse_settings(["blur=0.5", "nu=inf"])
        {'blur': 0.5, 'options': {'nu': inf}}
    """
    known = known_settings()
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, value = parse(pair)
        if name in ("options", "source"):
            raise ValueError(f"expected --set NAME=VALUE with the name of one setting, found '{_shortened(pair)}'")
        if name in settings or name in options:
            raise ValueError(f"expected each --set NAME once, found {name} twice; leave one out")
        (settings if name in known else options)[name] = value
    return settings | ({"options": options} if options else {})


def parse(pair: str) -> tuple[str, Any]:
    """Returns name and value of a text NAME=VALUE; what is no Python literal is text.

    Raises:
        ValueError: There is no ``=``, or the value is nested too deeply to be read.
    """
    name, equals, text = pair.partition("=")
    if not equals:
        raise ValueError(f"expected --set NAME=VALUE, found '{_shortened(pair)}'")
    words = {"inf": float("inf"), "none": None, "true": True, "false": False}
    if text in words:
        return name, words[text]
    try:
        return name, ast.literal_eval(text)
    except (RecursionError, MemoryError):
        raise ValueError(f"expected a number, a text or a short list in --set {name}, found '{_shortened(text)}'") from None
    except (ValueError, SyntaxError, TypeError):
        return name, text


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def check(command: Any) -> None:
    """Raises a ValueError unless every whole number of a command is at least 1, a seed at least 0, and none is enormous."""
    for field in fields(command):
        value = getattr(command, field.name)
        least = 0 if field.name in ("seed", "keep_classes") else 1
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, int) and not isinstance(x, bool) and not least <= x <= LARGEST:
                bound = f"at least {least}" if x < least else f"at most {LARGEST}"
                raise ValueError(f"expected --{field.name.replace('_', '-')} of {bound}, found {x}")
