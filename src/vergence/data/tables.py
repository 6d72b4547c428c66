"""Pairs of contexts and targets, and contexts alone, read from ``.csv``, ``.npz`` and ``.npy`` files as numbers."""

import array
import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vergence.data.arrays import PAIR_KEYS, not_finite, read_arrays
from vergence.data.items import Array
from vergence.utils.names import did_you_mean

__all__ = ["Pairs", "Table", "read_contexts", "read_csv", "read_pairs"]

DELIMITERS = (",", ";", "\t")
BLOCK = 1 << 16  # rows that are checked at a time
ON_DISK = 64 << 20  # bytes of a .npy file above which it is memory-mapped


@dataclass(frozen=True)
class Table:
    """Columns of numbers.

    Attributes:
        names: Names of the D columns.
        values: (N, D) float64.
    """

    names: tuple[str, ...]
    values: Array

    def columns(self, names: Sequence[str], file: str) -> Array:
        """Returns the columns of some names, (N, len(names)).

        Raises:
            ValueError: There is no column of a name.
        """
        for name in names:
            if name not in self.names:
                hint = did_you_mean(name, self.names) or f"it has {', '.join(self.names)}"
                raise ValueError(f"{file} has no column {name}; {hint}")
        return np.asarray(self.values[:, [self.names.index(name) for name in names]])


@dataclass(frozen=True)
class Pairs:
    """Contexts and targets.

    Attributes:
        context: (N, C) numbers.
        target: (N, T) numbers, or (N,).
        columns: Names of the C context columns and of the T target columns; ``context_0``, ... for arrays.
    """

    context: Array
    target: Array
    columns: tuple[list[str], list[str]]


def read_pairs(path: Path, target: Sequence[str] = (), context: Sequence[str] = ()) -> Pairs:
    """Reads the arrays ``context`` and ``target`` of a ``.npz`` file, or the columns of a ``.csv`` file.

    Args:
        path: The file.
        target: Names of the columns that are the target, for a ``.csv`` file.
        context: Names of the columns that are the context; by default all others. With both, the arrays of a ``.npz`` file
            must have as many columns.

    Raises:
        ValueError: The file is missing, damaged, of another kind, holds other arrays or columns, or text, NaN or infinity
            instead of numbers.
    """
    if _is_csv(path):
        return _split(read_csv(path), target, context, path.name)
    if target and not context:
        raise ValueError(f"expected --target with a .csv file only; {path.name} has its arrays context and target")
    found = _numbers(path, PAIR_KEYS)
    c, t = _as_columns(found["context"]), found["target"]
    if c.ndim != 2 or t.ndim not in (1, 2) or len(c) != len(t):
        raise ValueError(f"expected context (N, C) and target (N, T) in {path.name}, found shapes {c.shape} and {t.shape}")
    if context and (c.shape[1], _as_columns(t).shape[1]) != (len(context), len(target)):
        expected = f"contexts of {len(context)} features and targets of {len(target)} in {path.name}"
        shapes = f"found {c.shape[1]} features and {_as_columns(t).shape[1]}"
        raise ValueError(f"expected {expected}, {shapes}; give {', '.join(context)} and {', '.join(target)}")
    return Pairs(c, t, (_numbered("context", c), _numbered("target", t)))


def read_contexts(path: Path, columns: Sequence[str]) -> Array:
    """Reads contexts (B, C): columns of a ``.csv`` file by name, ``context`` of a ``.npz`` file, or a ``.npy`` file.

    Raises:
        ValueError: As `read_pairs`; or an array has another number of columns than there are names, if any.
    """
    if _is_csv(path):
        return read_csv(path).columns(columns, path.name)
    found = _as_columns(_numbers(path, PAIR_KEYS[:1])["context"])
    if found.ndim != 2:
        raise ValueError(f"expected contexts (B, C) in {path.name}, found shape {found.shape}; reshape them")
    if columns and found.shape[1] != len(columns):
        hint = f"give {', '.join(columns)}"
        raise ValueError(f"expected contexts of {len(columns)} features in {path.name}, found {found.shape[1]}; {hint}")
    return found


def _is_csv(path: Path) -> bool:
    if path.is_dir():
        raise ValueError(f"there is no file {path}, which is a folder; give a .npz or .csv file")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path.suffix.lower() == ".csv"


def _split(table: Table, target: Sequence[str], context: Sequence[str], file: str) -> Pairs:
    """Splits the columns of a table into contexts and targets."""
    t = table.columns(target, file)
    rest = list(context) or [name for name in table.names if name not in set(target)]
    if not target or not rest:
        raise ValueError(f"name the columns to predict, and leave some: --target NAME; {file} has {', '.join(table.names)}")
    return Pairs(table.columns(rest, file), t[:, 0] if len(target) == 1 else t, (rest, list(target)))


def _as_columns(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 else values


def _numbered(name: str, values: Array) -> list[str]:
    return [f"{name}_{i}" for i in range(1 if values.ndim == 1 else values.shape[1])]


def _numbers(path: Path, keys: Sequence[str]) -> dict[str, Array]:
    """Reads arrays of numbers with at least one row; the array of a ``.npy`` file is the first of the keys."""
    if path.suffix.lower() not in (".npz", ".npy"):
        raise ValueError(f"cannot read '{path.name}': expected a .npz, .npy or .csv file")
    arrays, names = read_arrays(path, (*keys, "arr_0"), ON_DISK)
    if names == ["arr_0"]:
        arrays = {keys[0]: arrays["arr_0"]}
    for key in keys:
        if key not in arrays and len(names) == 1 and names[0] in keys:
            raise ValueError(
                f"expected the arrays {' and '.join(keys)} in {path.name}, found only the array {names[0]}; add {key}"
            )
        if key not in arrays:
            hint = f"found no {key} among {', '.join(names) or 'no arrays'}"
            raise ValueError(f"expected the arrays {' and '.join(keys)} in {path.name}, {hint}; rename its arrays")
        if arrays[key].dtype.kind not in "fiub":
            raise ValueError(f"expected numbers in {key} of {path.name}, found {arrays[key].dtype}; convert them")
        if arrays[key].size == 0:
            lacks = "column" if len(arrays[key]) else "row"
            raise ValueError(f"expected at least 1 {lacks} in {key} of {path.name}, found shape {arrays[key].shape}")
        _require_finite(arrays[key], f"{key} of {path.name}")
    return {key: arrays[key] for key in keys}


def _require_finite(values: Array, name: str) -> None:
    rows = np.atleast_1d(values)
    for start in range(0, len(rows), BLOCK):  # a file may be on the disk
        bad = ~np.isfinite(rows[start : start + BLOCK]).reshape(len(rows[start : start + BLOCK]), -1).all(1)
        if bad.any():
            raise not_finite(name, start + int(bad.argmax()))


# CSV


def read_csv(path: Path) -> Table:
    """Reads a ``.csv`` file of numbers below one line of column names.

    Columns are separated by commas, semicolons or tabs, whichever the first two lines agree on. Between semicolons and tabs
    numbers may have decimal commas, but not in the same file as decimal points.

    Raises:
        ValueError: The file is not text in UTF-8, or its lines are not different names and as many numbers each.
    """
    try:
        return _read_csv(path)
    except UnicodeDecodeError:
        raise ValueError(f"expected UTF-8 text in {path.name}, found other bytes; save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"expected lines of numbers in {path.name}, found a line that is not CSV: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _read_csv(path: Path) -> Table:
    delimiter = _delimiter(path)
    lines, number = _lines(path, delimiter), _Numbers(path.name, delimiter)
    _, names = next(lines, (0, []))
    values, n = array.array("d"), 0
    for line, row in lines:
        if len(row) != len(names):
            raise ValueError(f"line {line} of {path.name}: expected {len(names)} values, found {len(row)}")
        values.extend(number(text, line, name) for text, name in zip(row, names, strict=True))
        n += 1
    if n == 0:
        found = "found 0 lines" if not names else "found the names alone"
        raise ValueError(f"expected a line of column names and lines of numbers in {path.name}, {found}")
    if len(set(names)) < len(names):
        raise ValueError(f"expected different column names in {path.name}, found {', '.join(names)}; rename some")
    return Table(tuple(names), np.frombuffer(values).reshape(n, len(names)))


def _lines(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, fields) of every line that is not blank."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter)
        yield from ((reader.line_num, row) for row in reader if row)


def _delimiter(path: Path) -> str:
    """Returns the delimiter that gives the first two lines the same number of columns, at least two; else a comma."""
    for delimiter in DELIMITERS:
        lines = _lines(path, delimiter)
        (_, names), (_, row) = next(lines, (0, [])), next(lines, (0, []))
        if len(names) == len(row) >= 2:
            return delimiter
    return ","


class _Numbers:
    """Turns the fields of one file into numbers; decimal commas are allowed unless commas separate the columns."""

    def __init__(self, file: str, delimiter: str) -> None:
        self.file, self.commas = file, delimiter != ","
        self.point = self.comma = ""

    def __call__(self, text: str, line: int, name: str) -> float:
        """Returns the number of a field.

        Raises:
            ValueError: The field is not a number, or the file has both decimal points and decimal commas.
        """
        if self.commas:
            self.comma = self.comma or (text if "," in text else "")
            self.point = self.point or (text if "." in text else "")
            if self.comma and self.point:
                found = f"found '{self.point}' and '{self.comma}'"
                raise ValueError(
                    f"line {line} of {self.file}: expected decimal points or decimal commas, {found}; use one of them"
                )
        try:
            value = float(text.replace(",", ".") if self.commas else text)
            if not math.isfinite(value) or "_" in text:
                raise ValueError
            return value
        except ValueError:
            shown = repr(text if len(text) <= 40 else f"{text[:40]}...")
            raise ValueError(f"line {line} of {self.file}: expected a number in column {name}, found {shown}") from None
