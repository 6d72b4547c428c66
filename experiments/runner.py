"""The one runner: an experiment declares its options, its cells and ``measure(a, cell) -> row``; the runner does the rest.

It measures the cells that the ledger lacks at this commit, so that a command goes on where it was stopped, and adds a row for
each. Options of all experiments: ``--out FILE`` adds the rows to another file; ``--tiny`` takes a few seconds on little data,
shows that the command runs, and writes nothing to the ledger. ``--choose``, where it is an option, measures on data on which
settings are chosen, and writes nothing either.
"""

import argparse
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import ledger
from experiments.ledger import Row

from vergence.cli.options import parse_settings
from vergence.utils.devices import as_device, describe_device

SETTINGS: list[str] = []  # default of ``set``, the option NAME=VALUE of runs: becomes a dictionary
SEEDS = [0, 1, 2]


@dataclass(frozen=True)
class Option:
    """An option that a default alone does not describe.

    Attributes:
        kind: Type of the value, or of each value.
        default: Value where the option is not given.
        choices: Allowed values; None for all.
        shape: ``one``, ``several``, ``any`` number (also none), ``first`` without a name, ``required``, or ``hidden``: no option.
    """

    kind: type = str
    default: Any = None
    choices: Iterable[Any] | None = None
    shape: str = "one"


DATA = Option(shape="required")  # of ``data_root``, a folder laid out for torchvision


def some(choices: Iterable[str], default: Iterable[str] | None = None) -> Option:
    """Returns the option of some names, by default all of them."""
    names = list(choices)
    return Option(default=list(names if default is None else default), choices=names, shape="several")


def hidden(value: Any) -> Option:
    """Returns a setting that ``--tiny`` changes and that is no option."""
    return Option(default=value, shape="hidden")


def first(values: list[Any]) -> list[Any]:
    """Returns the first value alone: what ``--tiny`` makes of a list."""
    return values[:1]


def described(default: Any) -> Option:
    """Returns the option that a default describes: a list takes several values, a type one value or none, False is a switch."""
    if isinstance(default, Option):
        return default
    if isinstance(default, type):
        return Option(default)
    if isinstance(default, list):
        return Option(type(default[0]) if default else str, default, shape="several")
    return Option(type(default), default)


def parse(doc: str, name: str, options: Mapping[str, Any], tiny: Mapping[str, Any]) -> argparse.Namespace:
    """Returns the options of a command; ``out`` is the `ledger.Out` of this ledger, and None where nothing is written.

    Args:
        doc: What ``--help`` shows.
        name: Name of the ledger.
        options: Options by name, as `described` reads them.
        tiny: Values with ``--tiny``, or functions of the values that were given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    every = {key: described(default) for key, default in options.items()}
    for key, option in every.items():
        word, more = f"--{key.replace('_', '-')}", {"type": option.kind, "default": option.default, "choices": option.choices}
        if option.kind is bool:
            parser.add_argument(word, action="store_true")
        elif option.shape == "first":
            parser.add_argument(key, **more)
        elif option.shape != "hidden":
            count = {"several": "+", "any": "*"}.get(option.shape)
            also = {"action": "extend"} if option.default == [] else {}
            metavar = {} if option.choices is None else {"metavar": "|".join(map(str, option.choices))}
            parser.add_argument(word, **more, nargs=count, required=option.shape == "required", **also, **metavar)
    a = parser.parse_args()
    vars(a).update({key: option.default for key, option in every.items() if option.shape == "hidden"})
    if a.tiny and a.out is not None and ledger.HERE in a.out.resolve().parents:
        parser.error(f"expected --tiny to write outside {ledger.HERE.name}: its rows measure nothing")
    root = getattr(a, "data_root", None)
    if root not in (None, parser.get_default("data_root")) and not Path(root).is_dir():
        parser.error(f"expected --data-root to be a folder, found {root}, which is not one; name the folder of the data")
    if "set" in every:
        a.set = {key: tuple(x) if isinstance(x, list) else x for key, x in parse_settings(a.set).items()}
    for key, value in tiny.items() if a.tiny else ():
        setattr(a, key, value(getattr(a, key)) if callable(value) else value)
    nowhere = (a.out is None and a.tiny) or getattr(a, "choose", False)
    a.out = None if nowhere else ledger.Out(a.out or ledger.home(name), name)
    return a


def measured(function: Callable[..., Any], a: argparse.Namespace, cell: Row, apart: str | None) -> Any:
    """Returns what a function measures in this process, or in one of its own, whose memory is then the cell's."""
    if apart is None:
        return function(a, cell)
    with ProcessPoolExecutor(1, multiprocessing.get_context(apart)) as pool:
        return pool.submit(function, a, cell).result()


def run(
    a: argparse.Namespace,
    cells: Callable[[argparse.Namespace], Iterable[Row]],
    measure: Callable[[argparse.Namespace, Row], Any],
    *,
    peers: tuple[str, ...] = (),
    shown: tuple[str, ...] | None = None,
    apart: str | None = None,
) -> None:
    """Measures the cells that the ledger lacks.

    Args:
        a: The options.
        cells: Returns what names each row, with its ``seed``.
        measure: Returns the values of a cell, or of the several rows that it has; ``device`` says what computed them elsewhere.
        peers: Distributions that are compared, whose versions are recorded.
        shown: Fields that are printed; all by default.
        apart: How a process is started for each cell, ``fork`` or ``spawn``; None measures in this one. What fails there does not
            stop the other cells.
    """
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        a.scratch = getattr(a, "scratch", None) or Path(folder)
        a.scratch.mkdir(parents=True, exist_ok=True)
        device = describe_device(as_device(getattr(a, "device", "cpu")))
        for cell in cells(a):
            if ledger.holds(a.out, **cell):
                continue
            try:
                found = measured(measure, a, cell, apart)
            except Exception:
                if apart is None:
                    raise
                traceback.print_exc()
                failed.append(str(cell))
                continue
            note = {"note": a.note} if hasattr(a, "note") else {}
            for values in found if isinstance(found, list) else [found]:
                where = values.pop("device", device)
                row = ledger.row({**cell, **note, **values}, seed=cell["seed"], peers=peers, device=where)
                ledger.add(a.out, row, shown=shown)
    if failed:
        sys.exit("failed, see above: " + "; ".join(failed))


def main(
    doc: str,
    name: str,
    options: Mapping[str, Any],
    cells: Callable[[argparse.Namespace], Iterable[Row]],
    measure: Callable[[argparse.Namespace, Row], Any],
    *,
    tiny: Mapping[str, Any],
    **settings: Any,
) -> None:
    """Reads the command line and measures what the ledger lacks; see `parse` and `run`."""
    a = parse(doc, name, options, tiny)
    run(a, cells, measure, **settings)
