"""Tables of columns: features in Parquet or Arrow tables; pairs of contexts and targets in CSV and NumPy files."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vergence.data.arrays import (
    ARRAY_KEYS,
    LABEL_KEYS,
    NAME_KEYS,
    PAIR_KEYS,
    checked_names,
    from_array,
    labels_of,
    not_finite,
    read_arrays,
)
from vergence.data.items import Array, Source
from vergence.utils.checks import shortened
from vergence.utils.names import did_you_mean

__all__ = ["Pairs", "open_table", "read_contexts", "read_pairs"]

SPLIT = "split"
DELIMITERS = (",", ";", "\t")
BLOCK = 1 << 16  # rows that are checked at a time
ON_DISK = 64 << 20  # bytes of a .npy file above which it is memory-mapped


# Features


def open_table(path: Path, columns: Sequence[str] = (), *, double: bool = False) -> Source:
    """Opens a ``.parquet`` table of features, as the command embed and other programs write them; see `of_table`.

    Raises:
        ValueError: The file is damaged, or as `of_table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        expected = f"expected a Parquet table at {path}, found one that cannot be read"
        raise ValueError(f"{expected} ({shortened(error)}); write it again") from None
    return of_table(table, path.name, columns, double=double)


def of_table(table: Any, name: str, columns: Sequence[str] = (), *, double: bool = False) -> Source:
    """Returns the items of an Arrow table, one a row.

    The features of an item are a list of numbers in one column (features, z, embeddings, x, data), or numbers in a column each:
    then all columns are features that are not named label, labels or y, name or names, or split. ``split`` is ``train`` or
    ``test`` and makes the test part.

    Args:
        table: A ``pyarrow.Table``.
        name: What errors call it.
        columns: Names of the features to read, in this order; all by default. One column may hold lists.
        double: Whether features that float32 may round are read as float64.

    Raises:
        ValueError: The table has no rows, no features, not those that are named, or other values.
    """
    twice = {column for column in table.column_names if table.column_names.count(column) > 1}
    if table.num_rows < 1 or twice:
        found = f"the column {min(twice)} twice" if twice else "no rows"
        raise ValueError(f"expected rows and different column names in {name}, found {found}")
    x, features = _read_features(table, tuple(columns), name)
    items = from_array(x, name, double=double)
    classes: tuple[str, ...] = ()
    label, named = (next((key for key in keys if key in table.column_names), None) for keys in (LABEL_KEYS, NAME_KEYS))
    if label is not None:
        items.labels, classes = labels_of(_column(table, label), len(items), label, name)
    if named is not None:
        items.names = checked_names(_column(table, named), len(items), f"{named} of {name}")
    test = _test_part(table, name) if SPLIT in table.column_names else None
    return Source(items, classes, test, "" if test is None else f"{SPLIT} of the table", columns=features)


def _read_features(table: Any, columns: tuple[str, ...], file: str) -> tuple[Array, tuple[str, ...]]:
    """Returns the features (N, D), and the names of the columns that hold one each."""
    lists = [key for key in columns or ARRAY_KEYS if key in table.column_names and _is_list(table[key])]
    if lists and len(columns) < 2:
        return _vectors(table[lists[0]], lists[0], file), ()
    special = {*LABEL_KEYS, *NAME_KEYS, SPLIT}
    names = columns or tuple(name for name in table.column_names if name not in special)
    if not names:
        raise ValueError(f"expected columns of features in {file}, found {', '.join(table.column_names)} alone; add the features")
    return np.stack([_numbers_of(table, name, file) for name in names], axis=1), names


def _is_list(column: Any) -> bool:
    import pyarrow as pa

    kind = column.type
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _vectors(column: Any, key: str, file: str) -> Array:
    """Returns a column of lists as (N, D)."""
    merged = column.combine_chunks()
    lengths = set(merged.value_lengths().to_pylist())
    values = merged.flatten()
    if len(lengths) != 1 or None in lengths or values.null_count:
        raise ValueError(f"expected lists of one length without gaps in {key} of {file}, found other ones; drop such rows")
    return _as_float(values, f"{key} of {file}").reshape(len(merged), -1)


def _numbers_of(table: Any, name: str, file: str) -> Array:
    if name not in table.column_names:
        hint = did_you_mean(name, table.column_names) or f"it has {', '.join(table.column_names[:5])}, ..."
        raise ValueError(f"expected the features that the model was trained on, found no column {name} in {file}; {hint}")
    column = table[name].combine_chunks()
    if column.null_count:
        raise ValueError(f"expected numbers in column {name} of {file}, found {column.null_count} gaps; drop such rows")
    return _as_float(column, f"column {name} of {file}")


def _as_float(values: Any, where: str) -> Array:
    import pyarrow as pa

    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"expected numbers in {where}, found type {kind}; drop the column, or name it label, name or split")
    single = pa.types.is_float16(kind) or pa.types.is_float32(kind) or pa.types.is_boolean(kind)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float32 if single else np.float64)


def _column(table: Any, key: str) -> Array:
    """Returns a column of labels or names: whole numbers, or texts; anything else as objects, which is refused later."""
    values = table[key].to_pylist()
    if all(isinstance(value, str) for value in values):
        return np.asarray(values, dtype=np.str_)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return np.asarray(values)
    return np.asarray([repr(value) for value in values], dtype=object)


def _test_part(table: Any, file: str) -> torch.Tensor:
    parts = table[SPLIT].to_pylist()
    if other := [part for part in parts if part not in ("train", "test")]:
        raise ValueError(f"expected train or test in {SPLIT} of {file}, found {str(other[0])[:40]!r}; correct the column")
    return torch.tensor([part == "test" for part in parts])


# Pairs


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
    arrays = _numbers(path, PAIR_KEYS)
    c, t = _as_columns(arrays["context"]), arrays["target"]
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
        return _columns(read_csv(path), columns, path.name)
    x = _as_columns(_numbers(path, PAIR_KEYS[:1])["context"])
    if x.ndim != 2:
        raise ValueError(f"expected contexts (B, C) in {path.name}, found shape {x.shape}; reshape them")
    if columns and x.shape[1] != len(columns):
        hint = f"give {', '.join(columns)}"
        raise ValueError(f"expected contexts of {len(columns)} features in {path.name}, found {x.shape[1]}; {hint}")
    return x


def _is_csv(path: Path) -> bool:
    if path.is_dir():
        raise ValueError(f"there is no file {path}, which is a folder; give a .npz or .csv file")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path.suffix.lower() == ".csv"


def _split(table: dict[str, Array], target: Sequence[str], context: Sequence[str], file: str) -> Pairs:
    """Splits the columns of a table into contexts and targets."""
    t = _columns(table, target, file)
    rest = list(context) or [name for name in table if name not in set(target)]
    if not target or not rest:
        raise ValueError(f"name the columns to predict, and leave some: --target NAME; {file} has {', '.join(table)}")
    return Pairs(_columns(table, rest, file), t[:, 0] if len(target) == 1 else t, (rest, list(target)))


def _columns(table: dict[str, Array], names: Sequence[str], file: str) -> Array:
    """Returns the columns of some names, (N, len(names))."""
    for name in names:
        if name not in table:
            hint = did_you_mean(name, table) or f"it has {', '.join(table)}"
            raise ValueError(f"{file} has no column {name}; {hint}")
    return np.stack([table[name] for name in names], axis=1) if names else np.empty((0, 0))


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
        if key not in arrays:
            lone = len(names) == 1 and names[0] in keys
            others = ", ".join(names) or "no arrays"
            hint = f"only the array {names[0]}; add {key}" if lone else f"no {key} among {others}; rename its arrays"
            raise ValueError(f"expected the arrays {' and '.join(keys)} in {path.name}, found {hint}")
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


def read_csv(path: Path) -> dict[str, Array]:
    """Reads a ``.csv`` file of numbers below one line of column names; returns float64 columns (N,) by name.

    Columns are separated by commas, semicolons or tabs, whichever the first two lines agree on. Between semicolons and tabs
    numbers may have decimal commas, but not in the same file as decimal points.

    Raises:
        ValueError: The file is not text in UTF-8, or its lines are not different names and as many finite numbers each.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow

    text = _text(path)
    head = [line for line in text.split("\n", 100) if line.strip()][:2]
    mark = _delimiter(head)
    names = _fields(head[0], mark) if head else []
    if len(head) < 2 or len(set(names)) < len(names):
        reason = f"different column names in {path.name}, found {', '.join(names)}; rename some"
        empty = f"a line of column names and lines of numbers in {path.name}, found {'the names alone' if head else '0 lines'}"
        raise ValueError(f"expected {empty if len(head) < 2 else reason}")
    comma = mark != "," and "," in text.partition("\n")[2]
    types = arrow.ConvertOptions(
        column_types=dict.fromkeys(names, pa.float64()), null_values=[], decimal_point="," if comma else "."
    )
    try:
        table = arrow.read_csv(
            pa.BufferReader(text.encode()),
            read_options=arrow.ReadOptions(use_threads=False),  # errors then say the row
            parse_options=arrow.ParseOptions(delimiter=mark),
            convert_options=types,
        )
    except pa.ArrowException as error:
        raise ValueError(f"expected numbers in {path.name}, found other lines: {shortened(error)}") from None
    columns = {name: table[name].to_numpy() for name in names}
    for name, values in columns.items():
        _require_finite(values, f"column {name} of {path.name}")
    return columns


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"expected UTF-8 text in {path.name}, found other bytes; save it as UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _delimiter(head: list[str]) -> str:
    """Returns the delimiter that gives the first two lines the same number of columns, at least two; else a comma."""
    for mark in DELIMITERS:
        widths = {len(_fields(line, mark)) for line in head}
        if len(widths) == 1 and min(widths) > 1:
            return mark
    return ","


def _fields(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark))
    except csv.Error as error:
        raise ValueError(f"expected column names and numbers, found a line that is not CSV: {error}") from None
