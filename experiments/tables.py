"""Generates the tables of the pages from the ledger (``experiments/*/results.jsonl``).

python -m experiments.tables            # writes them
python -m experiments.tables --check    # exits with 1 if a page disagrees with the ledger

Each folder's ``table.py`` has ``TABLES``: by page and name of a table, what makes it.
"""

import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from experiments.ledger import HERE, ROOT, grid, home, read, rows

from vergence.learn import methods, objectives


def objectives_table() -> str:
    """A line for each objective and method on images: title and source from its docstring, and how it was tested."""
    trained = {row["config"]["model"]["objective"] for row in rows("training")} | {row["objective"] for row in rows("joint")}
    trained |= {row["method"] for row in rows("methods")}
    body = []
    for folder, option in ((objectives, "--objective"), (methods, "--method")):
        files = ROOT.joinpath("tests", *folder.__name__.split(".")[1:]).glob("test_*.py")
        tests = " ".join(file.stem.removeprefix("test_") + " " + file.read_text() for file in files)
        for name in folder.names():
            text = importlib.import_module(f"{folder.__name__}.{name}").__doc__
            title = re.split(r" \(|:|, arXiv", text.splitlines()[0])[0].rstrip(".")
            paper = re.search(r"arXiv:\d{4}\.\d{4,5}( version \d)?|ICML\s\d{4}", text)
            tested = re.search(rf"\b{name}\b", tests)
            state = "not tested" if not tested else "tested, measured on real data" if name in trained else "tested"
            body.append([f"`{name}`", f"`{option}`", title, " ".join(paper[0].split()) if paper else "", state])
    return grid(["name", "option", "what", "source", "status"], body)


def notes_table() -> str:
    """A line for each note on old rows."""
    body = []
    for note in read(HERE / "notes.jsonl"):
        lines = ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in note["lines"])
        folder = home(note["ledger"]).parent.name
        body.append([f"[`{folder}`]({folder}/README.md): {note['ledger']}", lines, note["note"]])
    return grid(["experiment: question", "lines", "note"], body)


def pages() -> dict[Path, dict[str, Callable[[], str]]]:
    """Returns the tables of each page, by name."""
    every: dict[str, dict[str, Callable[[], str]]] = defaultdict(dict)
    every["docs/reference/objectives.md"]["objectives"], every["experiments/README.md"]["notes"] = objectives_table, notes_table
    for file in sorted(HERE.glob("*/table.py")):
        for page, tables in importlib.import_module(f"experiments.{file.parent.name}.table").TABLES.items():
            every[page] |= tables
    return {ROOT / page: tables for page, tables in every.items()}


def written(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """Returns a page's text with its tables generated again."""
    for name, make in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
        assert count == 1, f"expected one table '{name}' in the page, found {count}"
    return text


def main() -> None:
    for page, tables in pages().items():
        text = page.read_text()
        new = written(text, tables)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            sys.exit(f"{page.name} disagrees with the ledger: run python -m experiments.tables")


if __name__ == "__main__":
    main()
