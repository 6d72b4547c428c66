"""The ledger: rows of measurements with where they come from, and tables of them.

``NAME/results.jsonl`` has one row for each measurement: the ``ledger`` it belongs to (the question that one command answers), its
settings, seed and values with five digits, and ``origin``, the id of a row of ``provenance.jsonl``: date, command, commit,
device, number of threads and versions, once for all rows of a process. Rows are only added, never edited. What is known to be
wrong or missing in old rows is in ``notes.jsonl``: the ledger, the first and last rows that a note applies to, and the note.
"""

import functools
import hashlib
import json
import math
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest

from vergence.utils.devices import describe_device
from vergence.utils.version import checkout

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "experiments"
DIGITS = 5
PACKAGES = ("torch", "scikit-learn", "numpy")
LOCAL = {
    "--data-root": "DATA",
    "--sets-root": "SETS",
    "--scratch": "FOLDER",
    "--uci-root": "UCI",
}  # options whose value is a folder of this machine
DROPPED = ("--out", "--runs")  # options that do not change what is measured
ORIGIN = ("date", "command", "commit", "dirty", "device", "threads", "versions")  # of every new row, by its origin
Row = dict[str, Any]


@dataclass(frozen=True)
class Out:
    """Where rows go: a file, and the ledger that they belong to."""

    file: Path
    ledger: str

    @property
    def provenance(self) -> Path:
        """The file of origins: the project's for the project's ledgers, otherwise one next to the file."""
        return (HERE if self.file.resolve().parent.parent == HERE else self.file.parent) / "provenance.jsonl"


@functools.cache
def read(file: Path) -> list[Row]:
    """Returns the rows of a file; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@functools.cache
def home(name: str) -> Path:
    """Returns the file that holds the rows of a ledger."""
    files = [file for file in HERE.glob("*/results.jsonl") if any(row["ledger"] == name for row in read(file))]
    assert len(files) == 1, f"expected one file with rows of ledger '{name}', found {files}"
    return files[0]


def rows(source: str | Out) -> list[Row]:
    """Returns the rows of a ledger with the fields of their origin, oldest first."""
    out = Out(home(source), source) if isinstance(source, str) else source
    parts = {line["id"]: {k: v for k, v in line.items() if k != "id"} for line in read(out.provenance)}
    origins = {key: {**line, **parts.get(line.get("versions", ""), {})} for key, line in parts.items()}
    return [{**line, **origins.get(line.get("origin", ""), {})} for line in read(out.file) if line["ledger"] == out.ledger]


def rounded(value: Any) -> Any:
    """Returns a value whose numbers have five significant digits."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def add(out: Out | None, row: Row, *, shown: tuple[str, ...] | None = None) -> None:
    """Adds a row that `row` made to a ledger, and prints it, or of its fields those that are ``shown``; None writes nothing."""
    values = {name: rounded(value) for name, value in row.items() if name not in ORIGIN}
    if out is not None:
        packages = _stored(out, {"versions": row["versions"]})
        origin = _stored(out, {**{name: row[name] for name in ORIGIN}, "versions": packages})
        _append(out.file, {"ledger": out.ledger, **values, "origin": origin})
    print(json.dumps(values if shown is None else {name: values[name] for name in shown if name in values}), flush=True)


def _stored(out: Out, values: Row) -> str:
    """Returns the id of a row of the provenance, which is added where it is new."""
    key = hashlib.sha1(json.dumps(values, sort_keys=True).encode()).hexdigest()[:6]
    if not any(line["id"] == key for line in read(out.provenance)):
        _append(out.provenance, {"id": key, **values})
    return key


def _append(file: Path, row: Row) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(row, separators=(",", ":")) + "\n")
    read.cache_clear()


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Returns the command that runs this process, with placeholders for folders of this machine.

    Example:
        >>> command_line(["/me/experiments/joint/run.py", "--data-root", "/me/data", "--out=rows.jsonl", "--seeds", "0"])
        'python -m experiments.joint.run --data-root DATA --seeds 0'
    """
    program, *words = sys.argv if arguments is None else arguments
    parts = Path(program).with_suffix("").parts
    inside = parts[parts.index("experiments") :] if "experiments" in parts else (Path(program).name,)
    shown = ["python -m", ".".join(inside)]
    rest = iter(part for word in words for part in _parted(word))
    for word in rest:
        if word in DROPPED:
            next(rest, None)
        elif word in LOCAL:
            next(rest, None)
            shown += [word, LOCAL[word]]
        else:
            shown.append(shlex.quote(word))
    return " ".join(shown)


def _parted(word: str) -> list[str]:
    """Splits ``--name=value`` of the options that are replaced or dropped; returns any other word alone."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in (*LOCAL, *DROPPED) else [word]


def versions(*packages: str) -> str:
    """Returns the versions of Python, torch, scikit-learn, numpy and of further packages that are installed, in words."""
    installed = ["python " + ".".join(map(str, sys.version_info[:3]))]
    for name in (*PACKAGES, *packages):
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(installed)


def environment(*packages: str) -> dict[str, Any]:
    """Returns date (UTC), command, commit, whether tracked files differ from it, and versions, also of further packages."""
    commit, dirty = checkout()
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": date, "command": command_line(), "commit": commit, "dirty": dirty, "versions": versions(*packages)}


START = environment()  # of the code that was loaded, whatever happens to the checkout while it runs


def row(values: Row, *, seed: int | list[int], peers: tuple[str, ...] = (), device: str | None = None) -> Row:
    """Returns a row: the values, their seed or seeds, and where they come from: versions also of peers, and what computed."""
    where = describe_device(torch.device("cpu")) if device is None else device
    origin = {**START, "versions": versions(*peers), "device": where, "threads": torch.get_num_threads()}
    return {**values, **origin, "seed": seed}


def by_setting(measured: Iterable[Row], setting: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Returns rows by their setting, one for each seed: the last row of a seed that was run twice."""
    groups: dict[Any, dict[Any, Row]] = defaultdict(dict)
    for line in measured:
        groups[setting(line)][line["seed"]] = line
    return {key: list(seeds.values()) for key, seeds in groups.items()}


def plus_minus(values: list[float], digits: int) -> str:
    """Returns mean and standard deviation over seeds."""
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def column(group: Iterable[Row], key: str, digits: int = 1, scale: float = 1) -> str:
    """Returns mean and standard deviation of a field over rows, those that have it; nothing where none has."""
    values = [scale * row[key] for row in group if row.get(key) is not None]
    return plus_minus(values, digits) if values else ""


def median(group: Iterable[Row], key: str, digits: int = 0) -> str:
    """Returns the median of a field over rows, those that have it; nothing where none has."""
    values = [row[key] for row in group if row.get(key) is not None]
    return f"{statistics.median(values):.{digits}f}" if values else ""


def share(k: int, n: int) -> str:
    """Returns a share in percent with Wilson's interval."""
    if n == 0:
        return "-"
    low, high = binomtest(k, n).proportion_ci(method="wilson")
    return f"{100 * k / n:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def grid(header: list[str], body: list[list[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *body])


def holds(out: Out | None, **fields: Any) -> bool:
    """Returns whether a ledger has a row of this commit with the given fields: an experiment goes on after a stop."""
    return out is not None and any(matches(line, **fields) for line in rows(out))


def matches(line: Row, **fields: Any) -> bool:
    """Returns whether a row is of this commit and has the given fields."""
    return has(line, **{**fields, "commit": START["commit"], "dirty": START["dirty"]})


def has(line: Row, **fields: Any) -> bool:
    """Returns whether a row has the given fields, whatever its commit."""
    return all(name in line and line[name] == rounded(json.loads(json.dumps(value))) for name, value in fields.items())
