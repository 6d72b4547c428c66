"""Decisions on two files of scores, for ``vergence calibrate``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vergence.data.arrays import read_arrays
from vergence.data.tables import column_kinds, is_table_file, read_table
from vergence.decide.conformal import reportable
from vergence.decide.decisions import Decisions, calibrate
from vergence.decide.page import write_decisions
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse, require_choice
from vergence.utils.parts import require_table, write_table

__all__ = ["calibrate_files"]

OWN = ("p_value", "q_value", "flag")  # columns that are added
SCORE = "score"  # name of the column of scores


@dataclass(frozen=True)
class _Scores:
    """Scores of a file, and its other columns."""

    values: np.ndarray
    columns: dict[str, np.ndarray]
    names: list[str]


def calibrate_files(
    calibration: Path,
    new: Path,
    out: Path,
    *,
    column: str | None = None,
    groups: str | None = None,
    fdr: float = 0.1,
    fpr: float | None = None,
    confidence: float = 0.95,
    lower_is_stranger: bool = False,
) -> Decisions:
    """Writes the new rows with p-values, q-values and flags, and a page next to them (``OUT.html``); returns the decisions.

    Both files are a table, ``.npy`` or ``.npz`` with the scores: of ordinary items that no fit has seen, and of those to judge.
    Names of columns are that of the scores, by default ``score`` or the only column of numbers, and that of groups, within which
    the p-values hold. Rates are as of `vergence.decide.calibrate`.
    """
    require_table(out)
    for path in (calibration, new):
        same = out.exists() and path.exists() and out.samefile(path)
        expect(not same, "an --out other than the files that are read", out, "choose another --out")
    a, b = (_read(path, column, groups) for path in (calibration, new))
    both = sorted(set(a.names) & set(b.names)) if a.names and b.names else []
    hint = "leave it out of one file, or rename it if it is another item"
    expect(not both, f"items of {new.name} that are not in {calibration.name}", f"{both[:1]} in both", hint)
    sides = None if groups is None else (a.columns[groups], b.columns[groups])
    if fpr is None and groups is None and 0 < fdr < 1 and len(a.values) and len(b.values):
        terminal.note(str(reportable(len(a.values), len(b.values), fdr)))
    also: dict[str, Any] = {"fdr": fdr, "fpr": fpr, "confidence": confidence}
    found = calibrate(a.values, b.values, groups=sides, larger_is_stranger=not lower_is_stranger, **also)
    kept = {name: values for name, values in b.columns.items() if name not in OWN}
    if out.suffix == ".csv":  # with all digits
        kept |= {name: values.astype(object) for name, values in kept.items() if values.dtype.kind == "f"}
    added = {"p_value": found.p_value, "q_value": found.q_value, "flag": found.flag.astype(np.int64)}
    write_table(out, {**kept, **added})
    sign = -1.0 if lower_is_stranger else 1.0
    shown = {"name": b.names or [""] * len(b.values), "score": sign * b.values}
    whole = replace(found, columns={**found.columns, **shown})
    write_decisions(Path(f"{out}.html"), whole, name=new.stem, calibration=sign * a.values)
    return found


def read_scores(path: Path, column: str | None = None) -> np.ndarray:
    """Returns the scores (N,) of a file, as `calibrate_files` reads them; NaN for rows without one."""
    return _read(path, column, None).values


def _read(path: Path, column: str | None, groups: str | None) -> _Scores:
    if not is_table_file(path):
        expect(path.is_file(), f"a table, .npy or .npz file at {path}", "a folder" if path.is_dir() else "no file")
        wanted = [name for name in (column, SCORE, groups) if name]
        arrays, there = read_arrays(path, (*wanted, "arr_0"), 1 << 40)
        key = next((name for name in (column or SCORE, "arr_0") if name in arrays), None)
        if key is None:
            refuse(f"the array {column or SCORE} in {path.name}", ", ".join(there) or "none", "name it with --column")
        expect(groups is None or groups in arrays, f"the array {groups} in {path.name}", ", ".join(there))
        columns = {SCORE if key == "arr_0" else key: arrays[key], **({} if groups is None else {groups: arrays[groups]})}
        return _Scores(arrays[key], columns, [])
    table = read_table(path)
    kinds = column_kinds(table)
    name = column or _score_column(kinds, path.name)
    for wanted_name in filter(None, (name, groups)):
        require_choice(f"the column {wanted_name} of {path.name}", wanted_name, table.column_names)
    kind = kinds[name].kind
    numbers = kind in ("number", "boolean") or (kind == "identifier" and not kinds[name].found)
    expect(numbers, f"numbers in the column {name} of {path.name}", f"the kind {kind}", "name another with --column")
    values = table[name].to_numpy().astype(np.float64)
    ids = next((key for key, one in kinds.items() if one.kind == "identifier" and one.found), None)
    columns = {key: _as_written(values_) for key, values_ in zip(table.column_names, table.columns, strict=True)}
    return _Scores(values, columns, [] if ids is None else [str(x) for x in table[ids].to_pylist()])


def _score_column(kinds: Any, file: str) -> str:
    numbers = [key for key, column in kinds.items() if column.kind == "number"]
    if SCORE in kinds:
        return SCORE
    expect(len(numbers) == 1, f"a column {SCORE} in {file}", ", ".join(kinds), "name the scores with --column")
    return str(numbers[0])


def _as_written(values: Any) -> np.ndarray:
    import pyarrow.types as types

    kind = values.type
    if types.is_floating(kind) or (types.is_integer(kind) and not values.null_count):
        return np.asarray(values.to_numpy())
    return np.asarray(["" if value is None else str(value) for value in values.to_pylist()])
