r"""Tables: data frames and Arrow tables, and what each of their columns is taken for.

========== =================================================================================================================
number     numbers; text that holds them with decimal commas or thousands separators
boolean    true and false, as 1 and 0
date       days since 1970-01-01
category   text of few values: one feature ``COLUMN=VALUE`` a value, 1 where the column has it, else 0
identifier text or whole numbers that differ in each row and name it, such as row numbers: no feature
text       text of many values: no feature, unless it is asked for
empty      gaps alone: no feature
other      lists, bytes and so on: no feature
========== =================================================================================================================

The names of features say how they were made, so that a list of names reads another table in the same way. Gaps are NaN.
Shapes: N rows, D features.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vergence.data.items import Array
from vergence.data.table_files import POINT
from vergence.utils.checks import counted, did_you_mean, expect, refuse, require_choice

__all__ = ["Column", "as_table", "column_kinds", "read_features", "roles"]

MOST_VALUES = 30  # different texts of a category
ASKED = 200  # of one that is asked for by name
NAMES_ROWS = re.compile(
    r"|unnamed: ?\d+|\.{3}1|#|index|row[_ ]?(name|id|nr|number)?s?|(.*[_ .])?id|__index_level_\d+__", re.IGNORECASE
)


@dataclass(frozen=True)
class Column:
    """What a column is taken for."""

    name: str
    kind: str  # as in the table above
    values: tuple[str, ...] = ()  # of a category, in order
    found: int = 0  # different values of text

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that it gives, none for identifiers, text and gaps."""
        if self.kind in ("number", "boolean", "date"):
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.values)

    def __str__(self) -> str:
        if self.kind == "number":
            return self.name
        more = {"category": f", {counted(len(self.values), 'value')}", "text": f", {counted(self.found, 'value')}"}
        return f"{self.name} ({self.kind}{more.get(self.kind, '')})"


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are used for."""

    context: tuple[Column, ...]
    target: tuple[Column, ...]
    ids: tuple[Column, ...] = ()  # that name the rows
    left_out: tuple[Column, ...] = ()

    def __str__(self) -> str:
        named = {"context": self.context, "target": self.target, "names of rows": self.ids, "left out": self.left_out}
        return "; ".join(f"{role}: {_listed(columns)}" for role, columns in named.items() if columns)


def _listed(columns: Sequence[Column], most: int = 12) -> str:
    more = [f"{len(columns) - most} more"] if len(columns) > most else []
    return ", ".join([*map(str, columns[:most]), *more])


def as_table(source: Any) -> Any:
    """Returns a pandas, polars or Arrow table as an Arrow table; None for other objects."""
    if not hasattr(source, "columns") and not hasattr(source, "column_names"):
        return None
    import pyarrow as pa

    try:
        if isinstance(source, pa.Table):
            return source
        if hasattr(source, "to_arrow"):  # polars
            return source.to_arrow()
        if hasattr(source, "iloc"):
            named = source if all(isinstance(name, str) for name in source.columns) else source.rename(columns=str)
            return pa.Table.from_pandas(named, preserve_index=False)
        return pa.table(source) if hasattr(source, "__arrow_c_stream__") else None
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"expected a table with columns of numbers or texts, found: {error}; convert them") from None


# What columns are


def column_kinds(table: Any) -> dict[str, Column]:
    """Returns what each column of an Arrow table is taken for, by name.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"id": ["a", "b", "c", "d"], "size": [1.5, None, 2.0, 3.5], "color": ["red", "red", "blue", "red"]})
        >>> [str(column) for column in column_kinds(table).values()]
        ['id (identifier)', 'size', 'color (category, 2 values)']
    """
    return {name: _column(name, values) for name, values in zip(table.column_names, table.columns, strict=True)}


def _column(name: str, values: Any) -> Column:
    import pyarrow.types as kinds

    values = _decoded(values)
    kind, n = values.type, len(values)
    if values.null_count == n:
        return Column(name, "empty")
    if kinds.is_boolean(kind):
        return Column(name, "boolean")
    if kinds.is_integer(kind):
        names_rows = NAMES_ROWS.fullmatch(name.strip()) and not values.null_count and len(values.unique()) == n
        return Column(name, "identifier" if names_rows else "number")
    if kinds.is_floating(kind) or kinds.is_decimal(kind):
        return Column(name, "number")
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return Column(name, "date")
    if str(kind) not in ("string", "large_string", "string_view"):
        return Column(name, "other")
    different = [value for value in values.unique().to_pylist() if value is not None]
    if len(different) == n:
        return Column(name, "identifier", found=n)
    few = 2 <= len(different) <= min(MOST_VALUES, n // 2)
    return Column(name, "category" if few else "text", tuple(sorted(different)) if few else (), len(different))


def _decoded(values: Any) -> Any:
    import pyarrow.types as kinds

    return values.cast(values.type.value_type) if kinds.is_dictionary(values.type) else values


def counts_rows(values: Any) -> bool:
    """Returns whether a column of whole numbers is 0, 1, 2, ... or 1, 2, 3, ... from top to bottom."""
    import pyarrow.types as kinds

    if not kinds.is_integer(values.type) or values.null_count or len(values) < 3:
        return False
    x = values.to_numpy()
    return bool(x[0] in (0, 1) and (np.diff(x) == 1).all())


def roles(
    table: Any,
    *,
    target: Sequence[str],
    context: Sequence[str] = (),
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    name: str = "the table",
) -> Roles:
    """Returns what the columns of an Arrow table are used for. Without ``context`` it is every other column that has features.

    Columns are given by name; by ranges, ``FIRST:LAST``; or several between commas.
    """
    kinds = column_kinds(table)
    asked = {
        role: _resolved(given, kinds, name)
        for role, given in (("target", target), ("context", context), ("drop", drop), ("ids", ids))
    }
    seen: dict[str, str] = {}
    for role, given in asked.items():
        for key in given:
            expect(key not in seen, f"one role for the column {key}", f"{seen.get(key)} and {role}", "name it once")
            seen[key] = role
    expect(asked["target"], f"--target NAME to name some of the columns of {name} to predict", ", ".join(kinds))
    t = tuple(_as_number(kinds[column], name) for column in asked["target"])
    named = [kinds[column] for column in asked["ids"]]
    if asked["context"]:
        c = [_as_feature(kinds[column], table[column]) for column in asked["context"]]
        return Roles(tuple(c), t, tuple(named))
    rest = [column for key, column in kinds.items() if key not in seen]
    for column in rest:
        unclear = column.kind == "number" and counts_rows(table[column.name])
        advice = f"give --id {column.name}, --drop {column.name}, or all contexts with --context"
        expect(not unclear, f"columns of measurements in {name}", f"{column.name}, which counts the rows", advice)
    named += [column for column in rest if column.kind == "identifier"]
    c = [column for column in rest if column.features]
    expect(c, f"contexts next to the target in {name}", ", ".join(kinds), "give --context NAME")
    used = {column.name for column in (*c, *t, *named)}
    return Roles(tuple(c), t, tuple(named), tuple(column for key, column in kinds.items() if key not in used))


def _resolved(given: Sequence[str], there: Mapping[str, Any], name: str) -> list[str]:
    """Returns the columns that are named: by a name, by a range FIRST:LAST, or several between commas."""
    order, found = list(there), []
    for text in given:
        for part in [text] if text in there else text.split(","):
            first, colon, last = part.partition(":")
            if part in there:
                found.append(part)
            elif colon and first in there and last in there:
                a, b = order.index(first), order.index(last)
                expect(a <= b, f"a range of columns of {name}", part, f"write {last}:{first}")
                found += order[a : b + 1]
            else:
                require_choice(f"the column {part} of {name}", part, there)
    return list(dict.fromkeys(found))


def _as_number(column: Column, name: str) -> Column:
    usual = column.kind in ("number", "boolean", "date") or (column.kind == "identifier" and not column.found)
    hint = "a classifier suits classes" if column.kind == "category" else "name a column of numbers"
    expect(usual, f"numbers in the target {column.name} of {name}", f"a column of kind {column.kind}", hint)
    return Column(column.name, "number") if column.kind == "identifier" else column


def _as_feature(column: Column, values: Any) -> Column:
    """Returns a column that is asked for as one that has features."""
    if column.kind in ("text", "identifier") and column.found:
        expect(column.found <= ASKED, f"at most {ASKED} values in the context {column.name}", column.found, "leave it out")
        return Column(column.name, "category", tuple(sorted(v for v in values.unique().to_pylist() if v is not None)))
    column = Column(column.name, "number") if column.kind == "identifier" else column
    expect(
        column.features, f"numbers, dates or categories in the context {column.name}", f"the kind {column.kind}", "leave it out"
    )
    return column


# Numbers of columns


def read_features(table: Any, names: Sequence[str], name: str = "the table") -> Array:
    """Returns features by their names, (N, D) in float64, with NaN in gaps; see `Column.features`.

    Example:
        >>> import pyarrow as pa
        >>> read_features(pa.table({"a": [1.5, None], "color": ["red", "blue"]}), ["a", "color=blue", "color=red"]).tolist()
        [[1.5, 0.0, 1.0], [nan, 1.0, 0.0]]
    """
    index = {key: i for i, key in enumerate(table.column_names)}
    known: dict[str, list[str]] = {}
    for feature in names:
        column = feature if feature in index else feature.partition("=")[0]
        if column not in index:
            hint = did_you_mean(feature, index) or f"it has {', '.join(list(index)[:20])}"
            refuse(f"the column {column} in {name}", "none", hint)
        if feature != column:
            known.setdefault(column, []).append(feature[len(column) + 1 :])
    columns = {column: _indicators(_decoded(table[column]), values, column, name) for column, values in known.items()}
    numbers = (
        columns[f.partition("=")[0]][f] if f not in index else _floats(_decoded(table.column(index[f])), f, name) for f in names
    )
    return np.stack(list(numbers), axis=1) if names else np.empty((table.num_rows, 0))


def _indicators(values: Any, known: list[str], column: str, name: str) -> dict[str, Array]:
    texts = np.asarray(values.cast("string").to_pylist(), dtype=object)
    gaps = np.asarray([text is None for text in texts], dtype=bool)
    strange = sorted(set(texts[~gaps].tolist()) - set(known))
    found = f"{strange[0]!r}" if strange else None
    expect(not strange, f"{', '.join(map(repr, known[:8]))} in the column {column} of {name}", found, "leave such rows out")
    return {f"{column}={value}": np.where(gaps, np.nan, (texts == value).astype(np.float64)) for value in known}


def _floats(values: Any, column: str, name: str) -> Array:
    """Returns a column as float64, dates in days since 1970-01-01, with NaN in gaps."""
    import pyarrow as pa
    import pyarrow.types as kinds

    kind = values.type
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", getattr(kind, "tz", None))).cast(pa.int64())
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy()) / 86_400e6
    usable = (
        kinds.is_floating(kind)
        or kinds.is_integer(kind)
        or kinds.is_boolean(kind)
        or kinds.is_decimal(kind)
        or kinds.is_null(kind)
    )
    if not usable:
        wrong = next((value for value in values.to_pylist() if value is not None and not POINT.fullmatch(str(value))), kind)
        refuse(f"numbers in the column {column} of {name}", repr(wrong)[:60], "leave the column out, or mend it")
    x = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    expect(not np.isinf(x).any(), f"finite numbers in the column {column} of {name}", "infinity", "replace it, or drop the row")
    return x
