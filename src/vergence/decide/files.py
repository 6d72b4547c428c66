"""Decisions on two files of scores, for ``vergence calibrate``."""

import io
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vergence.data.table_files import STREAM, is_table_file, listed, notes_of, read_table
from vergence.data.tables import column_kinds, kept_columns, numbers_of, require_column, rows_where, typed
from vergence.decide.decisions import Decisions, calibrate
from vergence.decide.inputs import array_of
from vergence.decide.page import write_decisions
from vergence.report.rendering import require_page
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse
from vergence.utils.files import append_lines, require_apart, require_parent, sha256
from vergence.utils.parts import apart, json_lines, require_table, write_table

__all__ = ["calibrate_files"]

SCORE, MOST = "score", 8  # name of the column of scores; columns that a message lists
NO_SCORE = "no score: the cell is empty or NaN"
DIGEST = "calibration_sha256"  # of each line of a log


@dataclass(frozen=True)
class _Scores:
    """Scores of a file (m,), NaN in gaps; its Arrow table; and the names that texts give the rows."""

    values: np.ndarray
    table: Any
    names: list[str]
    rows: np.ndarray  # numbers of these rows in the file, (m,), from 0

    def where(self, some: np.ndarray) -> "_Scores":
        """Returns some of the rows, (m,) of bool."""
        at = np.flatnonzero(some)
        names = [self.names[i] for i in at.tolist() if self.names]
        return _Scores(self.values[at], self.table.take(at), names, self.rows[at])


def calibrate_files(
    calibration: Path,
    new: Path | None,
    out: Path,
    *,
    against_where: str | None = None,
    column: str | None = None,
    groups: str | None = None,
    append: Path | None = None,
    lower_is_anomalous: bool = False,
    **rates: Any,
) -> Decisions:
    """Writes the new rows with p-values, q-values, flags and errors, and a page, ``OUT.html``; returns the decisions.

    Both files are a table, ``.npy`` or ``.npz`` with the scores: of normal items that no fit has seen, and of new ones; or one
    table has both, and ``against_where`` says which rows are normal, as ``compound = DMSO``. There may be no new ones, and rows
    without a score have an error. ``-`` is JSON lines of standard input, or on standard
    output. Names of columns are that of the scores, by default ``score`` or the only column of numbers, and that of groups,
    within which the p-values hold. ``append`` is a log of JSON lines. Rates are as of `vergence.decide.calibrate`.
    """
    expect(new or against_where, "new scores, or `against_where` for a table that has both", "neither", "name the file")
    expect(not (new and against_where), "one table with `against_where`", f"two, {calibration} and {new}", "leave one out")
    new = calibration if new is None else new
    _require_writable(out, append, (calibration, new))
    if against_where is None:
        a, b = _read(calibration, column, groups), _read(new, column, groups, empty=True)
    else:
        both = _read(new, column, groups)
        normal = np.array(rows_where(both.table, against_where, "normal rows", new.name)[0])
        a, b = both.where(normal), both.where(~normal)
    gap, there = np.isnan(a.values), ~np.isnan(b.values)
    none = f"none in row {a.rows[gap.argmax()] + 1}"
    expect(not gap.any(), f"a score in each row of {calibration.name}", none, "leave the row out")
    twice = sorted(set(a.names) & set(b.names))
    hint = "leave it out of one file, or rename it if it is another item"
    expect(not twice, f"items of {new.name} that are not in {calibration.name}", f"{twice[:1]} in both", hint)
    sides = None if groups is None else (typed(a.table[groups]), typed(b.table[groups])[there])
    found = calibrate(a.values, b.values[there], groups=sides, larger_is_anomalous=not lower_is_anomalous, **rates)
    found = replace(found, missing=int((~there).sum()))
    written = {**kept_columns(new, b.table, b.rows, out.suffix), **_added(found, there, b.table.column_names)}
    if out == STREAM:
        print(*json_lines(written), sep="", end="")
    else:
        write_table(out, written)
        sign, names = -1.0 if lower_is_anomalous else 1.0, b.names or [f"row {i + 1}" for i in range(len(there))]
        shown = {"name": np.asarray(names, dtype=np.str_)[there], "score": sign * b.values[there]}
        whole = replace(found, columns={**found.columns, **shown})
        write_decisions(Path(f"{out}.html"), whole, name=new.stem, calibration=sign * a.values)
    if append is not None:
        how = {"confidence": found.confidence, "adaptive": rates.get("adaptive", False), "groups": groups}
        append_lines(append, _log(found, calibration, new, written, {**how, "lower_is_anomalous": lower_is_anomalous}))
    return found


def _require_writable(out: Path, log: Path | None, read: tuple[Path, ...]) -> None:
    page = Path(f"{out}.html")
    if out != STREAM:
        require_table(out, read, holds="p_value")
        require_page(page, read)
    if log is not None:
        require_parent(log)
        require_apart(log, read)
        other = log.resolve() not in (out.resolve(), page.resolve())
        expect(other, "a log of its own", f"that of `out`, {log}", "choose another `append`")
        with log.open("rb") if log.is_file() else io.BytesIO() as file:
            first = file.readline(1 << 20)
        ours = not first or DIGEST.encode() in first or (first[-1:] != b"\n" and first[:7] == b'{"time"'[: len(first)])
        expect(ours, f"no file, or a log of `append`, at {log}", "another file", "choose another")


def read_scores(path: Path, column: str | None = None) -> np.ndarray:
    """Returns the scores (N,) of a file, as `calibrate_files` reads them; NaN for rows without one."""
    return _read(path, column, None, empty=True).values


def _read(path: Path, column: str | None, groups: str | None, *, empty: bool = False) -> _Scores:
    import pyarrow as pa

    arrays = path != STREAM and not is_table_file(path)
    table = _of_arrays(path, column, groups) if arrays else read_table(path, empty=empty)
    for text in notes_of(table):
        terminal.note(text)
    if not table.num_columns:  # no line of JSON
        table = pa.table({name: pa.nulls(0) for name in filter(None, (column or SCORE, groups))})
    kinds = column_kinds(table)
    for wanted in filter(None, (None if arrays else column, groups)):
        require_column(wanted, table.column_names, path.name)
    name = table.column_names[0] if arrays else column or _score_column(kinds, path.name, empty and not table.num_rows)
    kind = kinds[name].kind
    numbers = kind in ("number", "boolean") or (kind == "identifier" and not kinds[name].found) or (kind == "empty" and empty)
    expect(numbers, f"numbers in the column {name} of {path.name}", kinds[name].held, "name another with `column`")
    values = numbers_of(table[name]).astype(np.float64)
    ids = next((key for key, one in kinds.items() if one.kind == "identifier" and one.found), None)
    return _Scores(values, table, [] if ids is None else [str(x) for x in table[ids].to_pylist()], np.arange(len(values)))


def _of_arrays(path: Path, column: str | None, groups: str | None) -> Any:
    """Returns the scores of a NumPy file, and the groups, as an Arrow table."""
    import pyarrow as pa

    from vergence.data.arrays import read_arrays

    expect(path.is_file(), f"a table, .npy or .npz file at {path}", "a folder" if path.is_dir() else "no file")
    wanted = [name for name in (column, SCORE, groups) if name]
    arrays, there = read_arrays(path, (*wanted, "arr_0"), 1 << 40)
    key = next((name for name in (column or SCORE, "arr_0") if name in arrays), None)
    if key is None:
        refuse(f"the array {column or SCORE} in {path.name}", ", ".join(there) or "none", "name it with `column`")
    expect(groups is None or groups in arrays, f"the array {groups} in {path.name}", ", ".join(there))
    scores = array_of("scores", arrays[key])
    expect(scores.ndim == 1, f"scores (N,) in {path.name}", f"shape {tuple(scores.shape)}", "give one number for each item")
    return pa.table({SCORE if key == "arr_0" else key: arrays[key]} | ({} if groups is None else {groups: arrays[groups]}))


def _score_column(kinds: Any, file: str, any_kind: bool) -> str:
    numbers = [key for key, column in kinds.items() if column.kind == "number" or any_kind]
    if SCORE in kinds:
        return SCORE
    given = listed(list(kinds), MOST)
    expect(len(numbers) == 1 or any_kind, f"a column {SCORE} in {file}", given, "name the scores with `column`")
    return str(numbers[0])


def _added(found: Decisions, there: np.ndarray, own: list[str]) -> dict[str, np.ndarray]:
    """Returns the columns that are added, (m,) each, from decisions on the rows that have a score.

    They have other names where the new file has columns of these names, and a note says so.
    """
    added: dict[str, np.ndarray] = {name: np.full(len(there), np.nan) for name in ("p_value", "q_value")}
    added["flag"], added["error"] = np.zeros(len(there), dtype=np.int64), np.where(there, "", NO_SCORE)
    for name in ("p_value", "q_value", "flag"):
        added[name][there] = found.columns[name]
    named = apart(added, own)
    if changed := [name for name in added if name not in named]:
        ours = ", ".join(name for name in named if name not in added)
        terminal.note(f"the new file already has {', '.join(changed)}: the added columns are {ours}")
    return named


def _log(found: Decisions, calibration: Path, new: Path, rows: Mapping[str, np.ndarray], how: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a log: the files and rates, and each decision."""
    rate: dict[str, Any] = {"fdr": found.fdr, **how}
    if found.certificate is not None:
        rate |= {"fpr": found.certificate.fpr, "confidence": found.certificate.confidence}
    about = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), DIGEST: sha256(calibration), **rate}
    counts = {"items": found.total, "flagged": found.flagged, "errors": found.missing, "shift": found.shift}
    yield json.dumps({**about, "calibration": calibration.name, "new": new.name, **counts}) + "\n"
    for line in json_lines(rows):
        yield json.dumps({**about, "decision": json.loads(line)}) + "\n"
