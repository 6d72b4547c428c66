"""Runs the tutorials and rewrites their outputs, or compares them: ``python -m experiments.tutorials [NAME...] [--check]``.

Any Python that has ``vergence[figures]`` and the packages that a page names does: ``PATH/python3.10 -m experiments.tutorials``.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}

import argparse
import contextlib
import difflib
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.ledger import ROOT
from experiments.readme import WIDTH

LONGEST = 24  # lines of an output
PAGES, FIGURES = ROOT / "docs" / "tutorials", ROOT / "docs" / "figures" / "tutorials"
NAMES = tuple(sorted(page.stem for page in PAGES.glob("*.md")))
PYTHON = r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?"
BLOCK = re.compile(rf"(?ms)^(?:{PYTHON}|```console\n(?P<commands>.*?)```\n|<!-- screenshot: (?P<shot>[^>]+) -->\n)")
COMMAND = re.compile(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
SECONDS = re.compile(r"[\d.]+ (?:s|seconds|min|minutes)\b")


def steady(text: str) -> str:
    """Returns an output without what differs from run to run or with the widths of numbers: seconds, frames of tables."""
    lines, column = [], 0
    for line in text.splitlines():
        cells = re.split("[┃│]", line)
        if "┃" in line:  # the header of a table
            column = next((i for i, cell in enumerate(cells) if cell.strip() in ("s", "seconds")), 0)
        lines.append(" ".join(cell for i, cell in enumerate(cells) if not (column and i == column)))
    return re.sub(r"[─-╿]+", " ", SECONDS.sub("SECONDS", "\n".join(lines)))


def alike(a: str, b: str) -> bool:
    """Returns whether two outputs have the same words, and numbers within 2 % or 0.02; seconds and frames do not count."""
    a, b = steady(a), steady(b)
    if NUMBER.sub("NUMBER", a).split() != NUMBER.sub("NUMBER", b).split():
        return False
    pairs = zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
    values = ((float(m.replace(",", "")), float(n.replace(",", ""))) for m, n in pairs)
    return all(abs(m - n) <= max(0.02, 0.02 * abs(m)) for m, n in values)


def shown(output: str, before: str, folder: Path) -> str:
    """Returns an output as the page shows it: as long as before, or the earlier one where they are alike."""
    lines = [line.rstrip() for line in output.replace(f"{folder}/", "").splitlines()]
    old = before.splitlines()
    longest = len(old) - 1 if old and old[-1] == "..." else LONGEST
    if len(lines) > longest + 1:
        lines = [*lines[:longest], "..."]
    text = "".join(f"{line}\n" for line in lines)
    return before if alike(text, before) else text


def call(command: str, folder: Path) -> str:
    """Returns what a command of the page prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"COLUMNS": WIDTH, "PATH": path, "PYTHONUNBUFFERED": "1"}
    out, err = subprocess.PIPE, subprocess.STDOUT  # notes are on the terminal, too
    found = subprocess.run(command, shell=True, cwd=folder, env=environment, text=True, stdout=out, stderr=err)
    if found.returncode:
        sys.exit(f"$ {command}\n{found.stdout}")
    return found.stdout


def rerun(text: str, folder: Path, pictures: bool = False) -> str:
    """Runs a page's blocks in order and returns the page with their outputs; with ``pictures`` also takes its screenshots."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def one(match: re.Match[str]) -> str:
        if match["shot"]:
            page, width, height, name = match["shot"].split()
            if pictures:
                from experiments.screenshots import screenshot  # which needs a browser

                screenshot(folder / page, int(width), int(height)).save(folder / name, quality=70, method=6)
            return match[0]
        if match["commands"]:
            lines = COMMAND.sub(lambda m: f"$ {m[1]}\n{shown(call(m[1], folder), m[2], folder)}", match["commands"])
            return f"```console\n{lines}```\n"
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(compile(match["code"], "tutorial", "exec"), names)
        printed = shown(stream.getvalue(), match["printed"] or "", folder)
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{printed}```\n" if printed else "")

    before = Path.cwd()
    os.chdir(folder)
    try:
        return BLOCK.sub(one, text)
    finally:
        os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    parser.add_argument("--pictures", action="store_true", help="also write the page's pictures")
    options = parser.parse_args()
    wrong = []
    for name in options.names:
        page = PAGES / f"{name}.md"
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            new = rerun(text, Path(folder), options.pictures)
            for picture in re.findall(r"figures/tutorials/([^)]+)\)", text) if options.pictures else ():
                shutil.copy(Path(folder) / picture, FIGURES / picture)
        if not options.check:
            page.write_text(new)
        elif new != text:
            wrong += difflib.unified_diff(text.splitlines(True), new.splitlines(True), page.name, "now")
    sys.exit("".join(wrong) or None)


if __name__ == "__main__":
    main()
