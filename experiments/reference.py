"""Generated pages of docs/reference: the command line, settings, options, encoders, recipes, and Python.

python -m experiments.reference            # writes them
python -m experiments.reference --check    # exits with 1 if one disagrees with the code
"""

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import tyro
from experiments.ledger import ROOT, grid

import vergence
from vergence.cli import commands, density, listing

PACKAGES = ("decide", "mixtures", "densities", "linear", "learn.objectives", "learn.methods")
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


def python() -> str:
    """Every public name, whose docstring the site shows."""
    parts = [
        "# Python reference",
        MADE,
        "The site, which `make site` builds, shows signature and docstring of each name; on GitHub this page has the names. "
        "In Python, `help(vergence.train)` shows the same. A wrong argument is a `ValueError` of one line: what was expected, "
        "what was found, what to do.",
    ]
    for package in (vergence, *(importlib.import_module(f"vergence.{room}") for room in PACKAGES)):
        parts.append(f"## {package.__name__}")
        every = [getattr(package, name) for name in sorted(package.__all__)]
        documented = [thing for thing in every if inspect.isclass(thing) or inspect.isfunction(thing)]
        parts += [f"::: {thing.__module__}.{thing.__qualname__}" for thing in documented]
    return "\n\n".join(parts) + "\n"


PAGES = {
    "python": python,
    "command_line": command_line,
    "settings": settings,
    "options": option_values,
    "encoders": encoders,
    "recipes": recipes,
}


def main() -> None:
    for name, make in PAGES.items():
        file = ROOT / "docs" / "reference" / f"{name}.md"
        if "--check" not in sys.argv:
            file.write_text(make())
        elif file.read_text() != make():
            sys.exit(f"docs/reference/{name}.md disagrees with the code: run python -m experiments.reference")


if __name__ == "__main__":
    main()
