"""Generated pages of docs/reference: the command line, settings, options, encoders, recipes, and Python, a page per room.

python -m experiments.reference            # writes them
python -m experiments.reference --check    # exits with 1 if one disagrees with the code
"""

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import tyro
from experiments.ledger import ROOT, grid

from vergence.cli import commands, density, listing

ROOMS = {  # of the public names; those of a room that exports none are named here, with the modules that hold them
    "vergence": "",
    "decide": "",
    "images": "check.check result.CheckResult review.Review demo.demo",
    "tables": "models.fit_density models.predict models.sample models.score_pairs",
    "learn": "runs.run.Run runs.run.Neighbors runs.run.load runs.train.train runs.evaluate.evaluate runs.score.score "
    "runs.compare.compare runs.compare.Comparison runs.callables.Embedder runs.callables.Scorer runs.export.export "
    "runs.shards.merge runs.hub.save_pretrained runs.hub.push_to_hub runs.hub.from_pretrained training.recipes.get "
    "training.records.Evaluation training.config.ModelConfig training.config.FitConfig encoders.patches.PatchFeatures "
    "evaluation.accuracy.knn_accuracy evaluation.accuracy.linear_probe evaluation.collapse.collapse "
    "evaluation.collapse.effective_rank",
    "learn.objectives": "",
    "learn.methods": "",
    "advice": "views.advise views.Advice views.AboutData",
    "linear": "",
    "mixtures": "",
    "densities": "",
    "data": "image_list.open_images image_list.ImageList config.DataConfig config.ViewConfig",
}
MADE = "<!-- made by python -m experiments.reference -->"


def command_line() -> str:
    """Every command with its arguments."""
    parts = [
        "# The command line",
        MADE,
        "`vergence COMMAND --help` prints the same. A wrong argument ends with exit code 2 and one line: what was expected, "
        "what was found, what to do. `--version` prints the version.",
    ]
    every = {name: kind for name, kind in commands.COMMANDS.items() if name != "density"}
    every |= {f"density {name}": kind for name, kind in density.VERBS.items()}
    for name, kind in every.items():
        parts += [f"## vergence {name}", inspect.cleandoc(kind.__doc__ or "").replace("``", "`"), _arguments(kind)]
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """Returns a text as it stands in a table."""
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


def page(title: str, about: str, head: list[str], rows: list[list[str]]) -> str:
    """Returns a page of one table."""
    return f"# {title}\n\n{MADE}\n\n{about}\n\n{grid(head, rows)}\n"


def _arguments(kind: type) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        actions = [action for action in tyro.extras.get_parser(kind)._actions if action.dest != "help"]
    rows = []
    for action in actions:
        names = [name for name in action.option_strings if not name.startswith("--no-") or len(action.option_strings) == 1]
        value = "" if action.metavar is None else str(action.metavar)
        text = re.sub(r"\s*\((required|optional)\)|\(default: False\)", "", str(action.help))
        rows.append([f"`{cell(' '.join([*names, value]))}`", cell(text)])
    return grid(["argument", "meaning"], rows)


def _values(rows: Iterable[tuple[str, list[str], Any, str]]) -> list[list[str]]:
    """Returns rows of a table from names, owners, defaults and descriptions."""
    return [
        [f"`{name}`", f"`{default}`", ", ".join(f"`{owner}`" for owner in owners), cell(words)]
        for name, owners, default, words in rows
    ]


def settings() -> str:
    """Every setting of `vergence train`, with its default."""
    about = (
        "Give them as `--set NAME=VALUE`, or in Python as keywords of `vergence.train`. Defaults are those of the dataclass; a "
        "recipe may set others. `config.json` of a run has what it used; `vergence.learn.training.recipes.get(NAME)` shows a "
        "recipe. `vergence list settings WORD` finds them, and the [options of objectives and methods](options.md), too."
    )
    return page("Settings", about, ["setting", "default", "part of", "meaning"], _values(listing._settings()))


def option_values() -> str:
    """Every option of an objective or a method, with its default."""
    about = (
        'Give them as settings, too: `--set nu=1`, or `options={"nu": 1}` in Python. The docstring of the objective has the '
        "formulas ([Python](python.md))."
    )
    rows = _values(sorted(listing._options(), key=lambda row: row[:2]))
    return page("Options of objectives and methods", about, ["option", "default", "of", "meaning"], rows)


def encoders() -> str:
    """Every kind of encoder, with the names of its settings."""
    rows = [[f"`{name}`", cell(text)] for name, text in listing._encoders()]
    about = "Give one as `--encoder NAME`; settings follow a colon, as in `--encoder patches:atoms=256,second=0`."
    return page("Encoders by name", about, ["name", "what"], rows)


def recipes() -> str:
    """Every recipe: objective, encoder, and epochs."""
    rows = [[f"`{name}`", cell(text)] for name, text in listing._recipes()]
    about = (
        "Give one as `vergence train DATA --recipe NAME`; options after it replace single settings. Those that are marked as "
        "published have the settings of their papers. They were not run here, since they need GPUs and days."
    )
    return page("Recipes", about, ["recipe", "what"], rows)


def _name(address: str) -> str:
    return address.rpartition(".")[2]


def _thing(address: str) -> Any:
    module, _, name = address.rpartition(".")
    return getattr(importlib.import_module(module), name) if module else None


def _names(room: str) -> dict[str, str]:
    """Returns the address of each public class and function of a room, by its name, and what it does in one sentence."""
    package = "vergence" if room == "vergence" else f"vergence.{room}"
    paths = ROOMS[room].split() or sorted(importlib.import_module(package).__all__)
    found = {}
    for path in paths:
        thing = _thing(address := f"{package}.{path}")
        if inspect.isclass(thing) or inspect.isfunction(thing):
            first = inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0]
            found[address] = re.sub(r"(?<=\w[.]) .*", "", cell(first))
    return found


def _about(room: str) -> str:
    package = importlib.import_module("vergence" if room == "vergence" else f"vergence.{room}")
    return inspect.cleandoc(package.__doc__ or "").split("\n")[0].replace("``", "`")


def python() -> str:
    """The rooms with their public names, and links to the page of each."""
    parts = [
        "# Python reference",
        MADE,
        "A page per room shows signature, arguments, shapes and an example of each public name, as does `help(vergence.train)`. "
        "A wrong argument is a `ValueError` of one line: what was expected, what was found, what to do. Rooms that are not here "
        "(`report`, `utils`) have no names for programs.",
    ]
    for room in ROOMS:
        links = [f"[`{_name(address)}`](python/{room}.md)" for address in _names(room)]
        title = "vergence" if room == "vergence" else f"vergence.{room}"
        parts += [f"## {title}", _about(room), ",\n".join(links)]
    return "\n\n".join(parts) + "\n"


def room_page(room: str) -> str:
    """Returns the page of a room: a table of its names, and each of them, whose docstring the site shows once."""
    names, top = _names(room), {} if room == "vergence" else {_name(address): address for address in _names("vergence")}
    pages = {address: "vergence" if _thing(address) is _thing(top.get(_name(address), "vergence")) else room for address in names}
    rows = [[f"[`{_name(address)}`]({pages[address]}.md)", first] for address, first in names.items()]
    title = "vergence" if room == "vergence" else f"vergence.{room}"
    shown = [f"::: {address}" for address in names if pages[address] == room]
    return "\n\n".join([f"# {title}", MADE, _about(room), grid(["name", "what"], rows), *shown]) + "\n"


PAGES = {
    "python": python,
    "command_line": command_line,
    "settings": settings,
    "options": option_values,
    "encoders": encoders,
    "recipes": recipes,
    **{f"python/{room}": partial(room_page, room) for room in ROOMS},
}


def main() -> None:
    for name, make in PAGES.items():
        file = ROOT / "docs" / "reference" / f"{name}.md"
        if "--check" not in sys.argv:
            file.parent.mkdir(exist_ok=True)
            file.write_text(make())
        elif file.read_text() != make():
            sys.exit(f"docs/reference/{name}.md disagrees with the code: run python -m experiments.reference")


if __name__ == "__main__":
    main()
