"""A run folder's files as a report needs them: read as far as they are there, with a sentence for what is damaged."""

import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["RunFiles", "read"]


@dataclass(frozen=True)
class RunFiles:
    """What a report is made from.

    Attributes:
        path: The run folder, as it was named.
        config: ``config.json``.
        rows: ``metrics.jsonl``.
        evaluation: ``evaluation.json``; empty where there is none.
        examples: Arrays of ``examples.npz``; empty where there are none.
        skipped: Name and reason of what could not be read.
        notes: What was damaged, for people.
        figures: Collects the data of the page's charts.
    """

    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    evaluation: dict[str, Any]
    examples: dict[str, Any]
    skipped: list[list[str]]
    notes: list[str]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What was found when the run began."""
        facts: dict[str, Any] = self.config["facts"]
        return facts


def read(run: Path) -> RunFiles:
    """Reads a run folder.

    Raises:
        ValueError: ``config.json`` is missing or damaged. Other files may be; a note says so.
    """
    notes: list[str] = []
    return RunFiles(
        path=run,
        config=_config(run),
        rows=_part(run / "metrics.jsonl", lambda file: _metrics(file, notes), notes) or [],
        evaluation=_part(run / "evaluation.json", _json, notes) or {},
        examples=_part(run / "examples.npz", _arrays, notes) or {},
        skipped=_part(run / "skipped.csv", _skipped, notes) or [],
        notes=notes,
    )


def _config(run: Path) -> dict[str, Any]:
    file = run / "config.json"
    if not file.is_file():
        raise ValueError(f"{run} is not a run folder: it has no config.json; 'vergence train ... --out {run}' makes one")
    try:
        config = _json(file)
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); train again, or restore it from a copy") from None
    config.setdefault("facts", config.pop("metadata", None))  # "facts" until format 1
    for part in ("data", "views", "model", "fit", "facts"):
        if not isinstance(config.get(part), dict):
            raise ValueError(f"{file} is damaged (no '{part}'); train again, or restore it from a copy")
    return config


def _part(file: Path, read: Callable[[Path], Any], notes: list[str]) -> Any:
    if not file.exists():
        return None
    try:
        return read(file)
    except (ValueError, KeyError, EOFError, OSError, csv.Error, zipfile.BadZipFile) as error:
        notes.append(f"{file.name} is damaged and left out ({error}).")
        return None


def _json(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def _metrics(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    rows, bad = [], 0
    for line in filter(str.strip, file.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        rows += [row] if isinstance(row, dict) else []
        bad += not isinstance(row, dict)
    if bad:
        notes.append(
            f"{bad} line(s) of metrics.jsonl could not be read and are left out (a killed run leaves a half-written one)."
        )
    return rows


def _arrays(file: Path) -> dict[str, Any]:
    import numpy as np

    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        found = {name: archive[name] for name in archive.files}
    lengths = {name: len(found[name]) for name in ("xy", "label", "score", "name")}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"expected arrays of one length, found {lengths}")
    if not np.isfinite(found["xy"]).all():
        raise ValueError("expected finite coordinates in xy")
    return found


def _skipped(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return [row[:2] for row in list(csv.reader(lines))[1:] if len(row) >= 2]
