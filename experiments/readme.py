"""Real output of the README's commands, between its marks: ``python -m experiments.readme`` runs them in a temporary folder."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
from experiments.ledger import ROOT

LONGEST, WIDTH = 17, "96"  # lines of an output; characters of a line


def write_scores(folder: Path) -> None:
    """Writes scores of 1,000 ordinary items, and of 500 new ones of which 20 are unusual."""
    rng = np.random.default_rng(0)
    tables = {"good": rng.normal(size=1000), "new": np.r_[rng.normal(size=480), rng.normal(4.5, 0.7, size=20)]}
    for name, scores in tables.items():
        rows = "".join(f"{name}_{i}.png,{score:.3f}\n" for i, score in enumerate(scores))
        (folder / f"{name}.csv").write_text(f"name,score\n{rows}")


def write_table(folder: Path) -> None:
    """Writes 500 rows in which y is x or -x."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 500)
    y = np.where(rng.random(500) < 0.5, 1, -1) * x + 0.1 * rng.normal(size=500)
    (folder / "table.csv").write_text("x,y\n" + "".join(f"{a:.3f},{b:.3f}\n" for a, b in zip(x, y, strict=True)))


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
        write_scores(folder)
        write_table(folder)
        pattern = r"(<!-- output: ([^>]+?) -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda m: f"{m[1]}\n    $ {m[2]}\n{output(m[2], folder)}\n\n{m[3]}", text, flags=re.S)
    page.write_text(text)


if __name__ == "__main__":
    main()
