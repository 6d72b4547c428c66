"""What the commands share: options made from the configuration's fields, NAME=VALUE settings, and checks of arguments."""

import ast
import functools
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import docstring_parser
from tyro.conf import Positional, UseAppendAction, arg

from vergence.data.config import BUILT_IN, DataConfig, ViewConfig, existing
from vergence.learn.training.config import FitConfig, ModelConfig
from vergence.utils.checks import LARGEST, did_you_mean, expect, require_within, shown
from vergence.utils.files import require_apart

__all__ = ["known_settings", "parse_settings"]

SOURCES_READ = ("against", "calibration", "contexts", "gallery", "images", "query", "source")  # built-in names or paths
READ = (  # fields of commands that name what is read
    *SOURCES_READ, "against_vectors", "calibrated", "confirm", "folder", "init", "model", "new", "pairs", "run", "stream",
    "vectors", "weights",
)  # fmt: skip
CONFIGS = (DataConfig, ViewConfig, ModelConfig, FitConfig)
RATES = ("alarm", "confidence", "coverage", "fdr", "fpr", "level", "no_match", "share")
SOURCES = "digits, mnist, fashion_mnist, cifar10, cifar100, stl10; a folder of images; a .npy, .npz or .parquet file."
OWN = "(default: OMP_NUM_THREADS, or one for each core)"

# Fields of the configuration that have an option of their own in `vergence train`; --set reaches every field.
SETTINGS = (
    "objective", "method", "encoder", "distill", "pretrained", "weights", "init", "freeze", "epochs", "distill_epochs",
    "batch_size", "optimizer", "lr", "form", "size", "limit", "keep_classes", "calibration_share", "seed", "precision", "device",
    "devices", "threads", "root", "download", "strict",
)  # fmt: skip
METAVARS = {  # of the help, where it is neither N nor NAME
    "lr": "RATE", "calibration_share": "SHARE", "size": "PIXELS", "keep_classes": "LABEL [LABEL ...]", "root": "FOLDER",
    "weights": "FILE", "init": "RUN",
}  # fmt: skip
DEFAULTS = dict.fromkeys(("distill", "keep_classes", "weights", "init"), "")  # of the help, where it is not the recipe's
DEFAULTS |= {"form": "(default: by its shape)", "root": "(default: data)", "threads": OWN}
ENCODERS = ("encoder", "distill")  # given as text
ALIASES = {"root": "data_root", "form": "kind", "ids": "id", "confirmed": "confirm", "settings": "set"}  # option by argument
WORDS = {  # of a name that two classes have, of which one option sets both
    "strict": "Stop at unreadable images instead of skipping them, and stop when the embedding collapses."
}


@functools.cache
def descriptions(text: str | None) -> dict[str, str]:
    """Returns the descriptions of a class's attributes or arguments from its docstring, by name, without markup."""
    entries = docstring_parser.parse(text or "").params
    return {entry.arg_name: " ".join((entry.description or "").replace("`", "").split()) for entry in entries}


def known_settings() -> dict[str, list[type]]:
    """Returns the configuration classes that have a field, by its name."""
    known: dict[str, list[type]] = {}
    for config in CONFIGS:
        for field in fields(config):
            known.setdefault(field.name, []).append(config)
    return known


def described(name: str) -> str:
    """Returns the description of a field: that of `WORDS`, or else from the docstring of each class that has it."""
    return WORDS.get(name) or " ".join(descriptions(config.__doc__)[name] for config in known_settings()[name])


def setting(name: str) -> tuple[str, Any, Any]:
    """Returns an option of `vergence train` as `dataclasses.make_dataclass` takes it: name, annotated type, default.

    Without the option the recipe decides, so the default is None; a flag can only be switched on.
    """
    kind = str if name in ENCODERS else typing.get_type_hints(known_settings()[name][0])[name]
    option, parts = ALIASES.get(name, name), (kind, *typing.get_args(kind))
    if kind is bool:
        return option, Annotated[bool, arg(help=described(name))], False
    choices = next((typing.get_args(part) for part in parts if typing.get_origin(part) is Literal), ())
    metavar = "{" + "|".join(choices) + "}" if choices else METAVARS.get(name) or ("N" if int in parts else "NAME")
    hint = DEFAULTS.get(name, "(default: the recipe's)")
    return option, Annotated[kind | None, arg(help=described(name), metavar=metavar, help_behavior_hint=hint)], None


def chosen(command: Any) -> dict[str, Any]:
    """Returns the settings that were given by options of their own, by the names of the fields."""
    given = {name: getattr(command, ALIASES.get(name, name)) for name in SETTINGS}
    return {name: value for name, value in given.items() if value is not None and value is not False}


ANY_SOURCE = "Any source that train takes; of a built-in name the test part is read (cifar10:train reads the other)."
Device = Annotated[Literal["auto", "cpu", "cuda"], arg(help="Device that computes.")]
Threads = Annotated[int | None, arg(metavar="N", help="CPU threads.", help_behavior_hint=OWN)]
Seed = Annotated[int, arg(help="Seed of all random numbers.")]
VIEWS = "Views of vectors: features, counts, spectra, series or table; or package.module:function of your own."
ViewsOption = Annotated[str | None, arg(metavar="NAME", help=VIEWS, help_behavior_hint="(default: features)")]
DataRoot = Annotated[str | None, arg(metavar="FOLDER", help=described("root"), help_behavior_hint="(default: the run's)")]
TrustCode = Annotated[bool, arg(help="Import the objective or encoder that the run names where it is not one of the library's.")]
Settings = UseAppendAction[list[str]]
RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help="Run folder.")]
TABLE = {"help": "File to write: .npz, .csv or .parquet.", "help_behavior_hint": "(default: named after the input)"}
TableOut = Annotated[Path | None, arg(metavar="FILE", **TABLE)]
PART = "Write part I of N of the items to the folder --out, for vergence merge."
ShardOf = Annotated[str | None, arg(metavar="I/N", help=PART, help_behavior_hint="")]
FailOn = Annotated[str | None, arg(metavar="WHAT", help_behavior_hint="(default: nothing)")]
OF_DECISIONS: dict[str, Callable[[Any], int]] = {  # numbers of decisions that --fail-on may name
    "flagged": lambda found: found.flagged,
    "shift": lambda found: int(found.shifted),
    "errors": lambda found: found.missing,
}
BatchSize = Annotated[int, arg(help="Items at a time.")]


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
        alone = name not in ("options", "source")
        expect(alone, "--set NAME=VALUE with the name of one setting", shown(pair))
        expect(name not in settings | options, "each --set NAME once", f"{name} twice", "leave one out")
        (settings if name in known else options)[name] = value
    return settings | ({"options": options} if options else {})


def parse(pair: str) -> tuple[str, Any]:
    """Returns name and value of a text NAME=VALUE; what is no Python literal is text."""
    name, equals, text = pair.partition("=")
    expect(equals, "--set NAME=VALUE", shown(pair))
    words = {"inf": float("inf"), "none": None, "true": True, "false": False}
    if text in words:
        return name, words[text]
    try:
        return name, ast.literal_eval(text)
    except (RecursionError, MemoryError):
        raise ValueError(f"expected a number, a text or a short list in --set {name}, found {shown(text)}") from None
    except (ValueError, SyntaxError, TypeError):
        return name, text


def option(name: str) -> str:
    """Returns the option of a field."""
    return f"--{name.replace('_', '-')}"


def failing(given: str | None, known: Iterable[str]) -> list[str]:
    """Returns what --fail-on names, several with commas, or all by ``any``.

    Example:
        >>> failing("flagged, shift", OF_DECISIONS), failing("any", OF_DECISIONS), failing(None, OF_DECISIONS)
        (['flagged', 'shift'], ['flagged', 'shift', 'errors'], [])
    """
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in (*known, "any")]
    advice = did_you_mean(unknown[0], known) if unknown else ""
    expect(not unknown, f"--fail-on of {', '.join(known)} or any", ", ".join(unknown), advice or "name others")
    return list(known) if "any" in names else names


def stop_on(counts: Mapping[str, int]) -> None:
    """Exits with 1 where something has been found; what is written stays."""
    if found := {name: n for name, n in counts.items() if n}:
        print(f"failed: {', '.join(f'{n:,} {name}' for name, n in found.items())}", file=sys.stderr)
        sys.exit(1)


def stem(source: Any) -> str:
    """Returns a name for what is made of a source, for files in the working directory.

    Example:
        >>> stem("data/photos/"), stem("cifar10:train"), stem("pairs.csv")
        ('photos', 'cifar10-train', 'pairs')
    """
    name = Path(str(source).rstrip("/\\")).name.replace(":", "-")
    return name.rpartition(".")[0] or name or "data"


def check(command: Any) -> None:
    """Raises a ValueError unless every whole number of a command is at least 1, a seed at least 0, and none is enormous.

    Nor may --out be anything that the command reads.
    """
    if isinstance(out := getattr(command, "out", None), Path):
        require_apart(out, (getattr(command, name) for name in READ if hasattr(command, name)))
    for field in fields(command):
        value = getattr(command, field.name)
        if field.name in RATES and value is not None:
            require_within("(0, 1)", **{option(field.name): value})
        least = 0 if field.name in ("seed", "keep_classes") else 1
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, int) and not isinstance(x, bool):
                expect(x >= least, f"{option(field.name)} of at least {least}", x)
                expect(x <= LARGEST, f"{option(field.name)} of at most {LARGEST}", x)
    _require_inputs(command)


def _require_inputs(command: Any) -> None:
    """Raises a ValueError where a run or a file that a command reads is missing, before torch is loaded."""
    for run in (getattr(command, "run", None), *getattr(command, "runs", ())):
        there = run is None or (run / "config.json").is_file()
        expect(there, "a run folder, which 'vergence train' writes", advice=f"{run} has no config.json")
    for name in (*READ, "data"):
        value = getattr(command, name, None)
        if isinstance(value, Path) and str(value) != "-":
            expect(value.expanduser().exists(), f"a file or folder at {value}", "no file", "check the path")
        elif isinstance(value, str) and name in (*SOURCES_READ, "data") and value != "-":
            if value.partition(":")[0] not in BUILT_IN and "://" not in value and not set("*?[{") & set(value):  # a pattern
                existing(value)
