"""Features in a ``.parquet`` table, one item a row, as the command embed and other programs write them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vergence.data.arrays import ARRAY_KEYS, LABEL_KEYS, NAME_KEYS, checked_names, from_array, labels_of
from vergence.data.items import Array, Source
from vergence.utils.names import did_you_mean

__all__ = ["open_table"]

SPLIT = "split"


def open_table(path: Path, columns: Sequence[str] = (), *, double: bool = False) -> Source:
    """Opens a table of features.

    The features of an item are a list of numbers in one column (features, z, embeddings, x, data), or numbers in a column each:
    then all columns are features that are not named label, labels or y, name or names, or split. ``split`` is ``train`` or
    ``test`` and makes the test part.

    Args:
        path: The file; it is read whole.
        columns: Names of the features to read, in this order; all by default.
        double: Whether features that float32 may round are read as float64.

    Raises:
        ValueError: The file is damaged, has no features, not those that are named, or other values.
    """
    table = _read(path)
    x, features = _read_features(table, tuple(columns), path.name)
    items = from_array(x, path.name, double=double)
    classes: tuple[str, ...] = ()
    label, named = (next((key for key in keys if key in table.column_names), None) for keys in (LABEL_KEYS, NAME_KEYS))
    if label is not None:
        items.labels, classes = labels_of(_column(table, label), len(items), label, path.name)
    if named is not None:
        items.names = checked_names(_column(table, named), len(items), f"{named} of {path.name}")
    test = _test_part(table, path.name) if SPLIT in table.column_names else None
    return Source(items, classes, test, "" if test is None else f"{SPLIT} of the table", columns=features)


def _read_features(table: Any, columns: tuple[str, ...], file: str) -> tuple[Array, tuple[str, ...]]:
    """Returns the features (N, D), and the names of the columns that hold one each."""
    lists = [key for key in ARRAY_KEYS if key in table.column_names and _is_list(table[key])]
    if lists and not columns:
        return _vectors(table[lists[0]], lists[0], file), ()
    names = columns or _features(table)
    if not names:
        raise ValueError(f"expected columns of features in {file}, found {', '.join(table.column_names)} alone; add the features")
    return np.stack([_numbers(table, name, file) for name in names], axis=1), names


def _read(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"expected a Parquet table at {path}, found one that cannot be read ({reason}); write it again"
        ) from None
    twice = {name for name in table.column_names if table.column_names.count(name) > 1}
    if table.num_rows < 1 or twice:
        found = f"the column {min(twice)} twice" if twice else "no rows"
        raise ValueError(f"expected rows and different column names in {path.name}, found {found}")
    return table


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


def _features(table: Any) -> tuple[str, ...]:
    special = {*LABEL_KEYS, *NAME_KEYS, SPLIT}
    return tuple(name for name in table.column_names if name not in special)


def _numbers(table: Any, name: str, file: str) -> Array:
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
