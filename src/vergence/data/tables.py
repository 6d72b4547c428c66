r"""Tables: data frames and Arrow tables, and what each of their columns is taken for.

========== =================================================================================================================
number     numbers; text that holds them with decimal commas or thousands separators
boolean    true and false, as 1 and 0
date       days since 1970-01-01, ``COLUMN`` or ``COLUMN:FORMAT``, see `vergence.data.dates`; where the dates tell something of
           it also the sine and cosine of the year, week or day, such as ``COLUMN:year_sine``
category   text of few values; pandas categories, whatever they hold; what is asked for: one feature ``COLUMN=VALUE`` a value, 1
           where the column has it, else 0
list       lists of numbers of one length, such as embeddings: ``COLUMN[0]``, ``COLUMN[1]``, ...
identifier text or whole numbers that differ in each row and name it, such as row numbers: no feature
text       text of many values: no feature, unless it is asked for
empty      gaps alone: no feature
other      bytes and so on: no feature
========== =================================================================================================================

The names of features say how they were made, so that a list of names reads another table in the same way. Gaps are NaN.
Shapes: N rows, D features.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vergence.data.dates import PARTS, cycles_of, day_of, formats_of, wave_of
from vergence.data.table_files import GAPS, POINT, as_written, lines_of, listed
from vergence.utils.checks import counted, did_you_mean, expect, refuse, require_choice
from vergence.utils.dtypes import Array

__all__ = ["as_table", "column_kinds", "column_of", "read_features"]

MOST_VALUES = 30  # different texts of a category
SHOWN = 12  # columns of a role
ASKED = 200  # of one that is asked for by name, or that pandas calls one
HOLDS = {  # how the Arrow types are written that hold something
    **{"boolean": "bool", "integer": r"u?int\d+", "real": "halffloat|float|double|decimal.*", "date": "date.*|timestamp.*"},
    **{"text": "(large_)?string(_view)?", "list": "(large_|fixed_size_)?list<.*", "category": "dictionary<.*"},
}
NUMBERS = ("boolean", "integer", "real")
PLAIN = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{0,16}[1-9]|\.0)?([eE][-+]?\d+)?")  # numbers that come back as the same text
NAMES_ROWS = re.compile(
    r"|unnamed: ?\d+|\.{3}1|#|index|row[_ ]?(name|id|nr|number)?s?|(.*[_ .])?id|__index_level_\d+__", re.IGNORECASE
)
CONDITION = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>==|!=|=|\bnot in\b|\bin\b)\s*(?P<values>.+?)\s*")


@dataclass(frozen=True)
class Column:
    """What a column is taken for."""

    name: str
    kind: str  # as in the table above
    values: tuple[str, ...] = ()  # of a category, in order
    found: int = 0  # different values of text
    forms: tuple[str, ...] = ()  # formats of written dates; several where it is unclear which one holds
    cycles: tuple[str, ...] = ()  # periods of dates that are features
    width: int = 0  # of lists

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that it gives, none for identifiers, text and gaps."""
        if self.kind in ("number", "boolean"):
            return (self.name,)
        if self.kind == "date":
            days = f"{self.name}:{self.forms[0]}" if self.forms[:1] > ("",) else self.name
            return (days, *(f"{days}:{part}" for part in PARTS if part.partition("_")[0] in self.cycles))
        return tuple(f"{self.name}={value}" for value in self.values) + tuple(f"{self.name}[{i}]" for i in range(self.width))

    @property
    def held(self) -> str:
        """What the column holds, in words of messages."""
        texts = {"identifier": "text" if self.found else "numbers that name the rows", "category": "text of few values"}
        return {**texts, "empty": "gaps alone", "date": "dates", "list": "lists", "other": "other data"}.get(self.kind, self.kind)

    def __str__(self) -> str:
        if self.kind == "number":
            return self.name
        more = {"category": f", {counted(len(self.values), 'value')}", "text": f", {counted(self.found, 'value')}"}
        more |= {"date": "".join(f", {one}" for one in (*self.forms, *self.cycles) if one), "list": f", {self.width} numbers"}
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
        return "; ".join(f"{role}: {listed(columns, SHOWN)}" for role, columns in named.items() if columns)


def require_column(name: str, there: Iterable[str], file: str) -> None:
    """Raises a ValueError unless a table has a column."""
    if name not in (there := list(there)):
        raise ValueError(f"{file} has no column {name!r}; {did_you_mean(name, there) or f'it has {listed(there, SHOWN)}'}")


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


def column_kinds(
    table: Any, *, category: Sequence[str] = (), number: Sequence[str] = (), dates: Sequence[str] = (), cycles: bool = True
) -> dict[str, Column]:
    """Returns what each column of an Arrow table is taken for, by name.

    Args:
        table: The table.
        category: Names of columns that are categories, whatever they hold, with at most 200 values.
        number: Names of columns that are measurements, though they are named like identifiers or were made categories.
        dates: Formats of written dates, before those that are tried by themselves.
        cycles: Whether dates also give sines and cosines of their periods.
    """
    found = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        column = _column(name, _decoded(values) if name in number else values, dates)
        if name in category:
            column = _as_category(name, values)
        elif name in number:
            column = _as_number(column, "the table", "column")
        elif column.kind == "date" and cycles:
            column = replace(column, cycles=cycles_of(_days(_decoded(values), (*column.forms, "")[0], name, "the table")))
        found[name] = column
    return found


def column_of(feature: str) -> str:
    """Returns the name of the column that a feature was made of."""
    parts = "|".join(PARTS)
    return re.sub(rf"=.*|\[\d+\]$|(:[^:=]*%.*?)?(:({parts}))?$", "", feature, count=1)


def _column(name: str, values: Any, dates: Sequence[str]) -> Column:
    kind, n = held(values.type), len(values)
    if values.null_count == n:
        return Column(name, "empty")
    if kind == "category":
        different = len(values.unique())
        return _as_category(name, values) if different <= ASKED else _column(name, _decoded(values), dates)
    if kind in ("integer", "real"):
        names_rows = kind == "integer" and NAMES_ROWS.fullmatch(name.strip()) and not values.null_count
        return Column(name, "identifier" if names_rows and len(values.unique()) == n else "number")
    if kind != "text":
        width = _width(values)
        return Column(name, "other" if kind == "list" and not width else kind, width=width)
    different = values.unique().drop_null().to_pylist()
    forms = formats_of(different, dates)
    if len(forms) == 1:
        return Column(name, "date", forms=forms)
    if len(different) == n:
        return Column(name, "identifier", found=n, forms=forms)
    few = 2 <= len(different) <= min(MOST_VALUES, n // 2)
    return Column(name, "category" if few else "text", tuple(sorted(different)) if few else (), len(different), forms)


def _as_category(name: str, values: Any) -> Column:
    different = different_texts(values)
    expect(0 < len(different) <= ASKED, f"1 to {ASKED} values in the category {name}", len(different), "leave it out")
    return Column(name, "category", tuple(different), len(different))


def texts_of(values: Any) -> list[str | None]:
    """Returns the values of a column as texts: 1 and 1.0 are "1"."""
    return list(_decoded(values).cast("string").to_pylist())


def different_texts(values: Any) -> list[str]:
    """Returns the different values of a column as texts, in order, without gaps."""
    return sorted(_decoded(values).cast("string").unique().drop_null().to_pylist())


def _decoded(values: Any) -> Any:
    return values.cast(values.type.value_type) if held(values.type) == "category" else values


def held(kind: Any) -> str:
    """Returns what values of an Arrow type are, a key of `HOLDS`; "other" where it has none."""
    return next((name for name, form in HOLDS.items() if re.fullmatch(form, str(kind), re.DOTALL)), "other")


def _width(values: Any) -> int:
    """Returns the length that all lists of numbers of a column have; 0 for other columns."""
    if held(values.type) != "list" or held(values.type.value_type) not in NUMBERS:
        return 0
    lengths = values.combine_chunks().value_lengths().unique().drop_null().to_pylist()
    return int(lengths[0]) if len(lengths) == 1 else 0


def counts_rows(values: Any) -> bool:
    """Returns whether a column of whole numbers is 0, 1, 2, ... or 1, 2, 3, ... from top to bottom."""
    if held(values.type) != "integer" or values.null_count or len(values) < 3:
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
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    dates: Sequence[str] = (),
    name: str = "the table",
) -> Roles:
    """Returns what the columns of an Arrow table are used for. Without ``context`` it is every other column that has features.

    Columns are given by name; by ranges, ``FIRST:LAST``; or several between commas. ``category``, ``number`` and ``dates`` are
    those of `column_kinds`.
    """
    there = dict.fromkeys(table.column_names)
    declared = {"category": _resolved(category, there, name), "number": _resolved(number, there, name)}
    kinds = column_kinds(table, category=declared["category"], number=declared["number"], dates=dates)
    unused = [form for form in dates if not any(form in column.forms for column in kinds.values())]
    expect(not unused, f"a column of dates as {''.join(unused[:1])} in {name}", "none", "mend the format, or leave it out")
    given = {"target": target, "context": context, "drop": drop, "ids": ids}
    asked = {role: _resolved(names, kinds, name) for role, names in given.items()}
    seen: dict[str, str] = {}
    for role, names in asked.items():
        for key in names:
            expect(key not in seen, f"one role for the column {key}", f"{seen.get(key)} and {role}", "name it once")
            seen[key] = role
    expect(asked["target"], f"`target=NAME` to name some of the columns of {name} to predict", ", ".join(kinds))
    t = tuple(_as_number(kinds[column], name) for column in asked["target"])
    named = [kinds[column] for column in asked["ids"]]
    if asked["context"]:
        c = [_as_feature(kinds[column], table[column]) for column in asked["context"]]
        return Roles(tuple(c), t, tuple(named))
    rest = [column for key, column in kinds.items() if key not in seen]
    for column in rest:
        unclear = column.kind == "number" and column.name not in declared["number"] and counts_rows(table[column.name])
        advice = f"give `ids={column.name}`, `drop={column.name}`, or all contexts with `context`"
        expect(not unclear, f"columns of measurements in {name}", f"{column.name}, which counts the rows", advice)
    named += [column for column in rest if column.kind == "identifier"]
    c = [column for column in rest if column.features]
    expect(c, f"contexts next to the target in {name}", ", ".join(kinds), "give `context=NAME`")
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
                require_column(part, there, name)
    return list(dict.fromkeys(found))


def _as_number(column: Column, name: str, role: str = "target") -> Column:
    valid = column.kind in ("number", "boolean", "date") or (column.kind == "identifier" and not column.found)
    hint = "a classifier suits classes" if column.kind == "category" else "name a column of numbers"
    expect(valid, f"numbers in the {role} {column.name} of {name}", column.held, hint)
    return Column(column.name, "number") if column.kind == "identifier" else replace(column, cycles=())


def _as_feature(column: Column, values: Any) -> Column:
    """Returns a column that is asked for as one that has features."""
    if column.kind in ("text", "identifier") and column.found:
        return _as_category(column.name, values)
    column = Column(column.name, "number") if column.kind == "identifier" else column
    valid = f"numbers, dates or categories in the context {column.name}"
    expect(column.features, valid, column.held, "leave it out")
    return column


# Numbers of columns


def read_features(
    table: Any, names: Sequence[str], name: str = "the table", *, unknown: str = "gap", notes: list[str] | None = None
) -> Array:
    """Returns features by their names, (N, D) in float64, with NaN in gaps; see `Column.features`.

    Args:
        table: An Arrow table.
        names: Names of the features.
        name: What the table is called in messages.
        unknown: Whether a category without a feature of its own is a ``gap`` in all features of its column, or ``refuse``.
        notes: Takes notes on gaps that were made so, with the lines of the file; without it there is a warning.
    """
    require_choice("unknown", unknown, ("gap", "refuse"))
    index = {key: i for i, key in enumerate(table.column_names)}
    origins = [_origin(feature, index, table, name) for feature in names]
    made: dict[str, list[str]] = {}
    for column, how in origins:
        made.setdefault(column, []).append(how)
    gaps: list[str] = []
    read = {column: _made(table, index[column], how, name, unknown, gaps) for column, how in made.items()}
    for text in gaps:
        warnings.warn(text, stacklevel=3) if notes is None else notes.append(text)
    return np.stack([read[column][how] for column, how in origins], axis=1) if names else np.empty((table.num_rows, 0))


def _origin(feature: str, index: Mapping[str, int], table: Any, name: str) -> tuple[str, str]:
    """Returns the column of a feature, and how it is made of it: "", =VALUE, [PLACE], or :FORMAT and :PART of a date."""
    heads = [feature[: sign.start()] for sign in re.finditer(r"[=:\[]", feature)][::-1]
    head = next((head for head in heads if head in index), None)
    if feature not in index:
        if head is None:
            hint = did_you_mean(feature, index) or f"it has {', '.join(list(index)[:20])}"
            refuse(f"the column {column_of(feature)} in {name}", "none", hint)
        return head, feature[len(head) :]
    if head is not None and (value := feature[len(head) :])[0] == "=" and value[1:] in texts_of(table.column(index[head])):
        found = f"a column of this name and the value {value[1:]!r} of the column {head}"
        refuse(f"one meaning of {feature} in {name}", found, "rename the column")
    return feature, ""


def _made(table: Any, place: int, how: list[str], name: str, unknown: str, notes: list[str]) -> dict[str, Array]:
    """Returns the features that are made of a column (N,), by how they are made."""
    column, values = table.field(place).name, _decoded(table.column(place))
    if known := [one[1:] for one in how if one[:1] == "="]:
        texts = np.asarray(texts_of(values), dtype=object)
        gaps = np.asarray([text is None for text in texts], dtype=bool)
        unseen = np.asarray([text not in known for text in texts], dtype=bool) & ~gaps
        if unseen.any():
            expected = f"{', '.join(map(repr, known[:8]))} in the column {column} of {name}"
            advice = "leave such rows out, or take them for gaps with `unknown='gap'`"
            expect(unknown == "gap", expected, repr(texts[unseen][0]), advice)
            notes.append(_unseen(column, texts, unseen, lines_of(table)))
        return {f"={value}": np.where(gaps | unseen, np.nan, (texts == value).astype(np.float64)) for value in known}
    if how[0][:1] == "[":
        most = max(int(one[1:-1]) for one in how)
        gaps = values.null_count == len(values)
        x = np.full((len(values), most + 1), np.nan) if gaps else vectors(values, f"{column} of {name}")
        expect(most < x.shape[1], f"lists of at least {most + 1} numbers in {column} of {name}", x.shape[1])
        return {one: x[:, int(one[1:-1])] for one in how}
    parts = {one: next((part for part in PARTS if one.endswith(f":{part}")), "") for one in how}
    forms = {one: one.removesuffix(f":{part}").removeprefix(":") for one, part in parts.items()}
    written = {form: _days(values, form, column, name) if form else _floats(values, column, name) for form in {*forms.values()}}
    return {one: wave_of(written[forms[one]], part) if part else written[forms[one]] for one, part in parts.items()}


def _unseen(column: str, texts: Array, unseen: Array, lines: Array | None) -> str:
    """Returns which values of a category have no feature, and in which line of the file, or row of the table."""
    others, n, first = list(dict.fromkeys(texts[unseen])), int(unseen.sum()), int(unseen.argmax())
    where = f"{'first ' * (n > 1)}{f'row {first}' if lines is None else f'line {lines[first]}'}"
    where = f" in {counted(n, 'row')} ({where})" if len(texts) > 1 else ""
    shown = " or ".join(map(repr, others[:3])) + (f" or {len(others) - 3} others" if len(others) > 3 else "")
    return f"{column} is {shown}{where}, which the fit did not see: taken for a gap"


def vectors(values: Any, where: str) -> Array:
    """Returns a column of lists of numbers as (N, D), with NaN in rows without a list."""
    width = _width(values)
    expect(width, f"lists of numbers of one length in {where}", "other ones", "drop such rows")
    single = str(values.type.value_type) in ("float", "halffloat", "bool")
    x = np.full((len(values), width), np.nan, dtype=np.float32 if single else np.float64)
    flat = values.combine_chunks().drop_null().flatten()
    x[np.asarray(values.is_valid())] = flat.to_numpy(zero_copy_only=False).reshape(-1, width)
    return x


def _days(values: Any, form: str, column: str, name: str) -> Array:
    """Returns dates, written in a format or not, as days since 1970-01-01 (N,), with NaN in gaps."""
    import pyarrow as pa

    if held(values.type) == "date":
        values = values.cast(pa.timestamp("us", getattr(values.type, "tz", None))).cast(pa.int64())
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy()) / 86_400e6
    days: dict[Any, float | None] = {None: np.nan}
    for text in texts_of(values):
        if days.setdefault(text, day_of(text or "", form)) is None:
            refuse(f"dates as {form or '2024-03-05'} in the column {column} of {name}", repr(text)[:60], "give `dates=FORMAT`")
    return np.asarray([days[text] for text in texts_of(values)], dtype=np.float64)


def _floats(values: Any, column: str, name: str) -> Array:
    """Returns a column as float64, dates in days since 1970-01-01, with NaN in gaps."""
    import pyarrow as pa

    kind = held(values.type)
    if values.null_count == len(values):
        return np.full(len(values), np.nan)
    forms = formats_of(values.unique().drop_null().to_pylist()) if kind == "text" else ()
    if kind == "date" or len(forms) == 1:
        return _days(values, "".join(forms), column, name)
    if kind not in NUMBERS:
        wrong = next((value for value in values.drop_null().to_pylist() if not POINT.fullmatch(str(value))), None)
        refuse(
            f"numbers in the column {column} of {name}",
            "text" if wrong is None else repr(wrong)[:60],
            "leave the column out, or mend it",
        )
    x = np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    expect(not np.isinf(x).any(), f"finite numbers in the column {column} of {name}", "infinity", "replace it, or drop the row")
    return x


def rows_where(table: Any, where: str, wanted: str, name: str) -> tuple[list[bool], str]:
    """Returns for which rows of an Arrow table a condition holds, such as ``compound = DMSO``, and the column that it is on.

    Signs are =, !=, ``in`` and ``not in``, with values between commas; '' is an empty cell. Numbers are compared as numbers. A
    message says what was ``wanted``, and what the table is.
    """
    found = CONDITION.fullmatch(where)
    if found is None:
        refuse("a condition such as 'compound = DMSO'", f"'{where}'", "correct it")
    column = found["name"].strip("'\"` ")
    require_choice(f"the column of '{where}'", column, table.column_names)
    texts = found["values"].strip("()[] ").split(",") if "in" in found["sign"] else [found["values"]]
    asked = {text.strip(" '\"") for text in texts}
    values = {*asked, *map(_number, asked)}
    cells = [(c or "").strip() if isinstance(c, str | None) else _number(str(c)) for c in table[column].to_pylist()]
    others = {str(cell) for cell in {*cells} - values if str(cell).lower() in {text.lower() for text in asked}}
    expect(not others, f"one spelling in {column}", ", ".join(sorted(asked | others)), "correct the table or the condition")
    without = found["sign"] in ("!=", "not in")  # which an empty cell does not tell
    holds = [cell not in {*values, ""} if without else cell in values for cell in cells]
    expect(any(holds), f"{wanted} where {where}", f"none in {name}", "correct the condition")
    return holds, column


def _number(text: str) -> str | float:
    """Returns the number in a text, 1 for true and 0 for false, or the text."""
    try:
        return float({"true": "1", "false": "0"}.get(text.lower(), text))
    except ValueError:
        return text


def typed(values: Any) -> Array:
    """Returns an Arrow column as numbers, where it has them, else as texts."""
    import pyarrow.types as types

    if types.is_floating(values.type) or (types.is_integer(values.type) and not values.null_count):
        return numbers_of(values)
    return np.asarray(["" if value is None else str(value) for value in values.to_pylist()], dtype=np.str_)


def kept_columns(path: Path, table: Any, rows: Any, ending: str) -> dict[str, Array]:
    """Returns columns of a file for one with an ending: as they stand in its text, or as numbers where nothing is lost."""
    written = as_written(path, table) if table.column_names else table
    written = written.take(rows) if written.num_rows > len(rows) else written

    def kept(name: str) -> Array:
        values = typed(table[name])
        texts = None if written is table else ["" if cell is None else str(cell) for cell in written[name].to_pylist()]
        if texts is None and ending in ("", ".jsonl"):
            return np.fromiter(table[name].to_pylist(), dtype=object, count=len(values))
        numbers = values.dtype.kind != "U"
        if texts is None or (numbers and ending != ".csv" and all(text in GAPS or PLAIN.fullmatch(text) for text in texts)):
            return values.astype(object) if ending == ".csv" and values.dtype.kind == "f" else values
        return np.asarray(texts, dtype=object if numbers and ending == ".csv" else np.str_)

    return {name: kept(name) for name in table.column_names}


def numbers_of(values: Any) -> Array:
    """Returns an Arrow column of numbers as an array; without gaps without pandas, which ``to_numpy`` loads."""
    import pyarrow.types as types

    direct = not values.null_count and (types.is_floating(values.type) or types.is_integer(values.type))
    return np.asarray(np.from_dlpack(values.combine_chunks()) if direct else values.to_numpy())
