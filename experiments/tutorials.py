"""Runs tutorials and other pages, and rewrites or compares outputs: ``python -m experiments.tutorials [NAME...] [--check]``.

A page is run if it has a block ``console`` or ``text``. Blocks ``python`` are run, too, and what a comment ``<!-- setup`` holds;
blocks ``py`` and indented ones are not, and doctest runs those with ``>>>``.

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
FIGURES = ROOT / "docs" / "figures" / "tutorials"
PAGES = {
    page.stem: page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.parent.name == "tutorials" or re.search("(?m)^```(console|text)$", page.read_text())
}
PYTHON = r"```python\n(?!>>>)(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?"
HIDDEN = r"<!-- screenshot: (?P<shot>[^>]+) -->\n|<!-- setup\n(?P<setup>.*?)-->\n"
BLOCK = re.compile(rf"(?ms)^(?:{PYTHON}|```console\n(?P<commands>.*?)```\n|{HIDDEN})")
COMMAND = re.compile(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
SECONDS = re.compile(r"[\d.]+ (?:s|seconds|min|minutes|GiB)\b")


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


def call(command: str, folder: Path, before: str) -> str:
    """Returns what a command of the page prints; it may fail only where the page shows an error."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"COLUMNS": WIDTH, "PATH": path, "PYTHONUNBUFFERED": "1"}
    out, err = subprocess.PIPE, subprocess.STDOUT  # notes are on the terminal, too
    found = subprocess.run(command, shell=True, cwd=folder, env=environment, text=True, stdout=out, stderr=err)
    if found.returncode and not before.startswith("error: "):
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

                for scheme, file in (("light", name), ("dark", name.replace(".", "_dark."))):
                    screenshot(folder / page, int(width), int(height), scheme).save(folder / file, quality=70, method=6)
            return match[0]
        if match["commands"]:
            lines = COMMAND.sub(lambda m: f"$ {m[1]}\n{shown(call(m[1], folder, m[2]), m[2], folder)}", match["commands"])
            return f"```console\n{lines}```\n"
        if match["setup"]:
            exec(compile(match["setup"], "setup", "exec"), names)
            return match[0]
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
    parser.add_argument("names", nargs="*", default=tuple(PAGES))
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    parser.add_argument("--pictures", action="store_true", help="also write the page's pictures")
    options = parser.parse_args()
    wrong = []
    for name in options.names:
        text = (page := PAGES[name]).read_text()
        with tempfile.TemporaryDirectory() as folder:
            new = rerun(text, Path(folder), options.pictures)
            for picture in Path(folder).glob("*.webp") if options.pictures else ():
                shutil.copy(picture, FIGURES)
        if not options.check:
            page.write_text(new)
        elif new != text:
            wrong += difflib.unified_diff(text.splitlines(True), new.splitlines(True), page.name, "now")
    sys.exit("".join(wrong) or None)


if __name__ == "__main__":
    main()
