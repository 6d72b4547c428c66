"""Real output of the README's commands, between its marks: ``python -m experiments.readme`` runs them in one temporary folder."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from experiments.ledger import ROOT

LONGEST, WIDTH = 17, "96"  # lines of an output; characters of a line


def output(command: str, folder: Path) -> str:
    """Returns what a command prints, with one line in place of a table."""
    words = shlex.split(command)
    environment = os.environ | {"COLUMNS": WIDTH, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    shown = re.sub(r"(?m)(^[┏┃┡│└].*\n?)+", "[the table]\n", found.stdout)
    lines = [part for line in shown.splitlines() for part in textwrap.wrap(line, int(WIDTH), subsequent_indent="  ")]
    return "\n".join(f"    {line}" for line in lines[:LONGEST])


def main() -> None:
    page = ROOT / "README.md"
    text = page.read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pattern = r"(<!-- output: ([^>]+?) -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m: f"{m[1]}\n    $ {m[2]}\n{output(m[2], folder)}\n\n{m[3]}", text, flags=re.S)
    page.write_text(text)


if __name__ == "__main__":
    main()
