"""Adds rows to the ledger with their origin, reads them, writes values of several seeds, and holds the shared options.

Rows are only added, never edited. What is known to be wrong or missing in old rows is in ``results/notes.jsonl``, a note a line:
the ledger's name, the first and last lines that the note applies to, and the note.
"""

import argparse
import json
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from vergence.utils.devices import describe_device
from vergence.utils.version import checkout

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "scikit-learn", "numpy")
LOCAL = {"--data-root": "DATA", "--scratch": "FOLDER"}  # options whose value is a folder of this machine
DROPPED = ("--out", "--runs")  # options that do not change what is measured
FIELDS = ("date", "command", "commit", "dirty", "device", "threads", "versions", "seed")  # of every row from now on

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # objectives of the benchmarks are named benchmarks.MODULE:CLASS, and found from any folder


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Returns the command that runs this process, with placeholders for folders of this machine.

    Args:
        arguments: Program and its arguments; those of this process by default.

    Example:
        >>> command_line(["benchmarks/joint.py", "--data-root", "/home/me/data", "--out", "rows.jsonl", "--seeds", "0"])
        'python benchmarks/joint.py --data-root DATA --seeds 0'
    """
    program, *words = sys.argv if arguments is None else arguments
    name = Path(program).name
    parts = Path(program).parts
    if "experiments" in parts:
        name = "/".join(parts[parts.index("experiments") :])
    elif name.endswith(".py"):
        name = f"benchmarks/{name}"
    words_shown = [f"python {name}" if name.endswith(".py") else name]
    rest = iter(word for given in words for word in _parted(given))
    for word in rest:
        if word in DROPPED:
            next(rest, None)
        elif word in LOCAL:
            next(rest, None)
            words_shown += [word, LOCAL[word]]
        else:
            words_shown.append(shlex.quote(word))
    return " ".join(words_shown)


def _parted(word: str) -> list[str]:
    """Splits ``--name=value`` of the options that are replaced or dropped; returns any other word alone."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in (*LOCAL, *DROPPED) else [word]


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python, torch, scikit-learn, numpy and of further packages that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in (*PACKAGES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment(*packages: str) -> dict[str, Any]:
    """Returns what every row of the ledger records besides its values, device, number of threads and seed.

    Args:
        packages: Distributions to list besides Python, torch, scikit-learn and numpy, such as the library compared with.

    Returns:
        ``date`` (UTC, ISO 8601), ``command``, ``commit``, ``dirty`` (whether tracked files differ from the commit) and
        ``versions``.

    Example:
        >>> sorted(environment())
        ['command', 'commit', 'date', 'dirty', 'versions']
    """
    found, dirty = checkout()
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": date, "command": command_line(), "commit": found, "dirty": dirty, "versions": versions(*packages)}


START = environment()  # of the code that was loaded, whatever happens to the checkout while it runs


def parse(parser: argparse.ArgumentParser, name: str | None = None) -> argparse.Namespace:
    """Adds the options that all benchmarks share, and reads the command line.

    Args:
        parser: With the benchmark's own options.
        name: Ledger that rows go to where ``--out`` is left out; None for none.

    Returns:
        The options; ``out`` is None where nothing is to be written, as by default with ``--tiny``.
    """
    parser.add_argument("--out", type=Path, help="ledger that the rows are added to")
    parser.add_argument("--tiny", action="store_true", help="a few seconds on little data: shows that the command runs")
    options = parser.parse_args()
    if options.tiny and options.out is not None and options.out.resolve().parent == RESULTS:
        parser.error(f"expected --tiny to write outside {RESULTS.relative_to(ROOT)}: its rows measure nothing")
    root = getattr(options, "data_root", None)
    if root not in (None, parser.get_default("data_root")) and not Path(root).is_dir():
        parser.error(f"expected --data-root to be a folder, found {root}, which is not one; name the folder of the data")
    if options.out is None and name is not None and not options.tiny:
        options.out = RESULTS / f"{name}.jsonl"
    return options


def settings(pairs: list[str]) -> dict[str, Any]:
    """Returns settings of a run that were given as NAME=VALUE, with values in JSON; lists become tuples."""
    found = {name: json.loads(value) for name, value in (pair.split("=", 1) for pair in pairs)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


Row = dict[str, Any]


def row(values: Row, *, seed: int | list[int], peers: tuple[str, ...] = (), device: str | None = None) -> Row:
    """Returns a row: the values, and where they come from.

    Args:
        values: What was measured, and the settings.
        seed: Seed, or seeds that the values are taken over.
        peers: Distributions that the library is compared with; their versions are recorded.
        device: What computed, in words; the CPU by default.
    """
    where = describe_device(torch.device("cpu")) if device is None else device
    origin = {**START, "versions": environment(*peers)["versions"]}
    return {**values, **origin, "device": where, "threads": torch.get_num_threads(), "seed": seed}


def add(out: Path | None, one: Row, *, shown: tuple[str, ...] | None = None) -> None:
    """Adds a row to a ledger and prints it.

    Args:
        out: File; None writes nothing.
        one: The row.
        shown: Fields to print; all by default.
    """
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(one) + "\n")
    print(json.dumps(one if shown is None else {name: one[name] for name in shown if name in one}), flush=True)


def rows(file: Path | str) -> list[Row]:
    """Returns the rows of a file, or of the ledger of a name, oldest first; none where there is no file."""
    file = RESULTS / f"{file}.jsonl" if isinstance(file, str) else file
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def by_setting(found: Iterable[Row], setting: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Returns rows by their setting, one for each seed: the last row of a seed that was run twice."""
    groups: dict[Any, dict[Any, Row]] = defaultdict(dict)
    for one in found:
        groups[setting(one)][one["seed"]] = one
    return {key: list(seeds.values()) for key, seeds in groups.items()}


def plus_minus(values: list[float], digits: int) -> str:
    """Returns mean and standard deviation over seeds."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def grid(header: list[str], body: list[list[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *body])


def holds(out: Path | None, **fields: Any) -> bool:
    """Returns whether a ledger has a row of this commit with the given fields, so that a benchmark can continue after a stop."""
    return out is not None and any(matches(one, **fields) for one in rows(out))


def matches(one: Row, **fields: Any) -> bool:
    """Returns whether a row is of this commit and has the given fields."""
    return has(one, **{**fields, "commit": START["commit"], "dirty": START["dirty"]})


def has(one: Row, **fields: Any) -> bool:
    """Returns whether a row has the given fields, whatever its commit."""
    wanted = json.loads(json.dumps(fields))
    return wanted.items() <= {k: v for k, v in one.items() if k in wanted}.items()
