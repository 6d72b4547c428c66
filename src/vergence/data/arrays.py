"""Rows of numbers: arrays and tables, and the NumPy, Parquet and CSV files that hold them, with labels and names."""

import re
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data import tables
from vergence.data.config import Form
from vergence.data.images import written_name
from vergence.data.items import Array, ArrayItems, PairItems, RowNames, Source, batches, spaced
from vergence.data.table_files import TABLES, is_table_file, lines_of, notes_of, read_table
from vergence.data.tables import Column, Roles, column_kinds, different_texts, held, read_features, roles, vectors
from vergence.utils.checks import counted, expect, refuse, require_choice, shortened
from vergence.utils.devices import total_memory
from vergence.utils.files import DAMAGE
from vergence.utils.linalg import as_array
from vergence.utils.terminal import note

__all__ = ["Pairs", "from_array", "holds_pairs", "read_for_model", "read_pairs"]

ARRAY_KEYS = ("images", "x", "data", "X", "features", "z", "embeddings", "arr_0")
LABEL_KEYS = ("labels", "y", "label")
LABELS = ("labels", "label")  # of tables, where y is a column like x
NAME_KEYS = ("names", "name")
PART_KEYS = (("x_train", "x_test"), ("y_train", "y_test"))
PAIR_KEYS = ("context", "target")
TEST_KEYS = tuple(f"{key}_test" for key in (*PAIR_KEYS, *LABEL_KEYS))
SPLIT = "split"
MOST_CLASSES = 100_000
MAGIC = b"\x93NUMPY"
SAMPLE = 10_000  # rows at most, by which it is judged whether float32 tells them apart
COARSE = 0.01  # largest rounding error of a column, in units of its standard deviation
BLOCK = 1 << 16  # rows that are checked at a time
ON_DISK = 64 << 20  # bytes of a .npy file above which it is memory-mapped, where its items are only scored
TYPES = {  # of the numbers of each kind: numpy's letters, words, and what to do about others
    "tokens": ("iu", "whole numbers, the ids of tokens,", "convert them"),
    "array": ("biuf", "numbers", "convert them"),
    "vector": ("iuf", "numbers", "convert them"),
    "image": ("bf", "images as uint8, uint16 or floats in [0, 1]", "divide them by the end of their range or say `kind='array'`"),
}
LONGEST = 4  # ratio of the sides of images, at most, in an array of which nothing else is known


def from_array(
    array: Array | Tensor, name: str = "the array", *, kind: Form | None = None, double: bool = False, gaps: bool = False
) -> ArrayItems:
    """Checks an array and returns its rows as items.

    Args:
        array: Vectors (N, D) of numbers; or images (N, H, W), (N, H, W, C) or (N, C, H, W) with C = 1 or 3 (channels last
            if both are possible), in uint8, uint16 or as floats in [0, 1]; or any other numbers (N, ...).
        name: Name of the array in error messages.
        kind: What it holds; by default vectors or images, and an ``array`` where it cannot be images: of more than four
            dimensions, or (N, C, T) with one side more than four times the other, in another type than bytes.
        double: Whether vectors that float32 may round are read as float64.
        gaps: Whether there may be no rows, and vectors that are not finite.

    Example:
        >>> from_array(np.zeros((5, 28, 28), dtype=np.uint8)).shape
        (1, 28, 28)
    """
    array = as_array(array) if isinstance(array, Tensor) else array
    sides = array.shape[1:]
    strip = array.ndim == 3 and array.dtype != np.uint8 and max(sides) > LONGEST * min(sides) and sides[1] not in (1, 3)
    kind = kind or ("vector" if array.ndim == 2 else "array" if strip or array.ndim > 4 else "image")
    types, form, hint = TYPES[kind]
    usable = array.dtype.kind in types or (kind == "image" and array.dtype in (np.uint8, np.uint16))
    expect(usable, f"{form} in {name}", f"type {array.dtype}", hint)
    expect(kind != "image" or array.ndim != 2, f"images in {name}", f"shape {array.shape}", "leave kind out, or reshape them")
    array = array.reshape(len(array), -1) if kind == "vector" and array.ndim > 2 and array.size else array
    given = kind if kind in ("array", "tokens") else ""
    items = ArrayItems(channels_first(array, name, 1 - gaps, bool(given)), double=double, form=given)
    if items.dtype != torch.uint8 and not (gaps and array.ndim == 2):
        for index, x in items.stream(batches(len(items), items.chunk)):
            bad = ~x.flatten(1).isfinite().all(1)
            if bad.any():
                refuse(f"finite numbers in {name}", f"NaN or infinity in row {index[bad][0]}", "repair or drop such rows")
            if items.kind == "image" and (x.min() < 0 or x.max() > 1):
                found = f"{x.min():.4g} to {x.max():.4g}"
                refuse(f"float images in [0, 1] in {name}", found, "rescale them, or say `kind='array'`")
    if items.dtype == torch.float32 and array.ndim == 2 and array.dtype.itemsize > 4 and len(array) > 1 and not gaps:
        _require_resolution(array, name, min(SAMPLE, items.chunk))
    return items


def channels_first(array: Array, name: str, least: int = 1, given: bool = False) -> Array:
    """Returns vectors, and what is ``given`` in any shape, as they are; of images a view (N, C, H, W)."""
    shape = array.shape
    forms = f"{name} as (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W)"
    expect((array.ndim in (2, 3, 4) or (given and array.ndim)) and min(shape[1:], default=0) >= 1, forms, shape, "reshape it")
    expect(shape[0] >= least, f"at least 1 row in {name}", f"shape {shape}", "give some data")
    if array.ndim == 2 or given:
        return array
    if array.ndim == 3:
        advice = "give (N, H, W, C), or `kind='array'`"
        expect(shape[2] not in (1, 3), f"several images in {name}", f"{shape}, which looks like one", advice)
        return array[:, None]
    color = shape[3] in (1, 3) or shape[1] in (1, 3)
    expect(color, f"1 or 3 channels, second or last, in {name}", f"shape {shape}", "drop the others, or say `kind='array'`")
    return np.moveaxis(array, 3, 1) if shape[3] in (1, 3) else array


def _require_resolution(array: Array, name: str, most: int) -> None:
    """Raises a ValueError where float32 rounds a column (N, D) by more than a hundredth of its deviation, in some rows."""
    x = np.asarray(array[spaced(len(array), max(2, most)).numpy()], dtype=np.float64)
    std, error = x.std(0), np.abs(x - x.astype(np.float32)).max(0)
    if len(coarse := np.flatnonzero(error > COARSE * std)):
        j = int(coarse[0])
        found = f"numbers near {x[:, j].mean():.7g} with a deviation of {std[j]:.2g} in column {j}"
        refuse(f"columns that float32 tells apart in {name}", found, "subtract the column's mean")


def labels_of(y: Array, n: int, key: str, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Returns the labels (N,) of n items, whole numbers >= -1 or texts in ``key`` of a file, and the names of the classes."""
    expect(y.shape in ((n,), (n, 1)), f"{n} labels in {key} of {name}, one per item", f"shape {y.shape}")
    if y.dtype.kind in "US":
        classes, y = np.unique(_texts(y.reshape(n)), return_inverse=True)
        return torch.from_numpy(y.astype(np.int64)), tuple(written_name(str(label)) for label in classes)
    hint = "number the classes 0, 1, ... (-1 for unknown), or give their names"
    expect(y.dtype.kind in "iub", f"labels as whole numbers or strings in {key} of {name}", f"type {y.dtype}", hint)
    few = y.min() >= -1 and y.max() < MOST_CLASSES
    expect(few, f"labels from -1 to {MOST_CLASSES - 1:,} in {key} of {name}", f"{y.min()} to {y.max()}", hint)
    return torch.from_numpy(y.reshape(n).astype(np.int64)), tuple(str(i) for i in range(int(y.max()) + 1))


def checked_names(names: Array, n: int, where: str) -> list[str]:
    """Returns the names of n items as they are written."""
    texts = names.shape == (n,) and names.dtype.kind in "US"
    expect(texts, f"{n} texts in {where}, the name of each item", f"{names.dtype} of shape {names.shape}", "give one per row")
    return [written_name(str(name).replace("\0", "\N{SYMBOL FOR NULL}")) for name in _texts(names)]


def _texts(values: Array) -> Array:
    """Returns texts; bytes are read as UTF-8."""
    return np.char.decode(values, "utf-8", "surrogateescape") if values.dtype.kind == "S" else values


# NumPy files


def open_arrays(path: Path, memory: int, *, kind: Form | None = None, double: bool = False, gaps: bool = False) -> Source:
    """Opens a ``.npy`` file, on disk if it has more bytes than ``memory``, or a ``.npz`` file of arrays with known keys.

    Keys: ``images`` (or x, data, X, features, z, embeddings, arr_0), ``labels`` (y, label) and ``names`` (name) of the items, as
    the command embed writes them; x_train, y_train, x_test, y_test (train comes first);
    ``context`` and ``target`` with labels, and the same followed by ``_test`` for a test part of their own. Labels are
    integers >= -1 (-1: unknown) or strings. With ``double``, single vectors that float32 may round are read as float64.
    """
    keys = (*ARRAY_KEYS, *LABEL_KEYS, *NAME_KEYS, *PART_KEYS[0], *PART_KEYS[1], *PAIR_KEYS, *TEST_KEYS)
    arrays, names = read_arrays(path, keys, memory)
    if all(key in arrays for key in PAIR_KEYS):
        return _pairs(arrays, path.name, kind)
    if all(key in arrays for key in PART_KEYS[0]):
        arrays, test = _joined(arrays, PART_KEYS, path.name)
        items = from_array(arrays["x_train"], path.name, kind=kind, double=double)
        n = int((~test).sum())
        items.names = RowNames(torch.cat([torch.arange(n), torch.arange(len(items) - n)]))
        return Source(items, _label(items, arrays, ("y_train",), path.name), test, "x_test of the file")
    key = next((key for key in ARRAY_KEYS if key in arrays), "")
    expected = f"images (or x, features, embeddings), x_train and x_test, or context and target in {path.name}"
    expect(key, expected, ", ".join(names) or "nothing", "rename its arrays")
    items = from_array(arrays[key], path.name, kind=kind, double=double, gaps=gaps)
    classes = _label(items, arrays, LABEL_KEYS, path.name)
    if (named := next((key for key in NAME_KEYS if key in arrays), None)) is not None:
        items.names = checked_names(arrays[named], len(items), f"{named} of {path.name}")
    return Source(items, classes)


def read_arrays(path: Path, keys: Sequence[str], memory: int) -> tuple[dict[str, Array], list[str]]:
    """Returns those of some arrays that a NumPy file has, and the names of all in it.

    The array of a ``.npy`` file is called ``arr_0``; one of more bytes than ``memory`` is memory-mapped.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's about headers of old or malformed files
            with path.open("rb") as file:
                single = file.read(len(MAGIC)) == MAGIC
            if not single:
                return _read_archive(path, keys)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            return {"arr_0": array if path.stat().st_size > memory else np.array(array)}, ["arr_0"]
    except DAMAGE as error:
        hint = "save numbers (no Python objects) with numpy.save or numpy.savez"
        named = path.suffix in (".npy", ".npz")
        kind = "a NumPy file" if named else "a table (.csv, .jsonl, .parquet, .xlsx), .npy or .npz"
        why = f" ({shortened(error)})" if named else ""
        raise ValueError(f"expected {kind} at {path}, found one that cannot be read{why}; {hint}") from None


def _read_archive(path: Path, keys: Sequence[str]) -> tuple[dict[str, Array], list[str]]:
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
        for key in (key for key in keys if key in members):
            fits = members[key].file_size <= total_memory(torch.device("cpu"))
            expect(fits, f"{key} to fit into memory", f"{members[key].file_size:,} bytes: a .npy file is read from the disk")
            with archive.open(members[key]) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays, list(members)


def holds_pairs(path: Path) -> bool:
    """Returns whether a file is a ``.npz`` with the arrays context and target; False where it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return path.suffix.lower() == ".npz" and {f"{key}.npy" for key in PAIR_KEYS} <= set(archive.namelist())
    except DAMAGE:
        return False


def _pairs(arrays: dict[str, Array], name: str, kind: Form | None) -> Source:
    keys = (*PAIR_KEYS, *[key for key in LABEL_KEYS if key in arrays][:1])
    test = None
    if any(f"{key}_test" in arrays for key in keys):
        arrays, test = _joined(arrays, [(key, f"{key}_test") for key in keys], name)
    context, target = (from_array(arrays[key], f"{key} of {name}", kind=kind) for key in PAIR_KEYS)
    classes = _label(context, arrays, LABEL_KEYS, name)
    return Source(PairItems(context, target), classes, test, "" if test is None else "context_test of the file")


def _joined(arrays: dict[str, Array], keys: Sequence[tuple[str, str]], name: str) -> tuple[dict[str, Array], Tensor]:
    """Returns arrays with the test part's rows below those of the training part, by the latter's key, and which are tests (N,).

    Each of the pairs of keys is there as a whole or not at all, and all of one part have as many rows.
    """
    lengths = [arrays[key].shape[:1] for key in keys[0] if key in arrays]
    joined: dict[str, Array] = {}
    for train, test in keys:
        lone, both = train if train in arrays else test, f"{train} and {test} in {name}"
        expect((train in arrays) == (test in arrays), both, f"{lone} alone", "give both or neither")
        if train not in arrays:
            continue
        a, b = arrays[train], arrays[test]
        shapes = f"{a.shape} and {b.shape}"
        expect([a.shape[:1], b.shape[:1]] == lengths, f"as many rows in {both} as in {keys[0][0]} and {keys[0][1]}", shapes)
        expect(a.shape[1:] == b.shape[1:] and 0 not in (a.ndim, b.ndim), f"{both} with items of one shape", shapes, "reshape one")
        same = a.dtype.kind == b.dtype.kind or {a.dtype.kind, b.dtype.kind} <= set("biuf")
        expect(same, f"{both} of one type", f"{a.dtype} and {b.dtype}", "convert one")
        joined[train] = np.concatenate([a, b])
    return joined, torch.arange(len(joined[keys[0][0]])) >= len(arrays[keys[0][0]])


def _label(items: ArrayItems, arrays: dict[str, Array], keys: Sequence[str], name: str) -> tuple[str, ...]:
    """Gives items the first labels that there are; returns the names of the classes."""
    key = next((key for key in keys if key in arrays), None)
    if key is None:
        return ()
    items.labels, classes = labels_of(arrays[key], len(items), key, name)
    return classes


# Tables of features


def of_table(table: Any, name: str, columns: Sequence[str] = (), *, double: bool = False, gaps: bool = False) -> Source:
    """Returns the items of an Arrow table, one per row.

    The features of an item are a list of numbers in one column (features, z, embeddings, x, data), or columns of numbers, dates
    and categories; see `vergence.data.tables` for what a column is taken for. A column label or labels of whole numbers or texts
    gives labels, name or names of texts the names of the items, and split, ``train`` or ``test``, the test part. The features of
    ``columns`` are read, in this order, by default all; with ``double``, those that float32 may round as float64.
    """
    expect(table.num_rows or gaps, f"rows in {name}", "none")
    kinds = column_kinds(table)
    special = _special(kinds, table)
    x, features = _read_features(table, kinds, tuple(columns), special, name, gaps)
    items = from_array(x, name, double=double, gaps=gaps)
    classes = _label(items, {key: _column(table, key) for key in special[:1] if key in LABELS}, LABELS, name)
    if (named := next((key for key in special if key in NAME_KEYS), None)) is not None:
        items.names = checked_names(_column(table, named), len(items), f"{named} of {name}")
    test = torch.tensor([part == "test" for part in table[SPLIT].to_pylist()]) if SPLIT in special else None
    return Source(items, classes, test, "" if test is None else f"{SPLIT} of the table", columns=features)


def _special(kinds: dict[str, Column], table: Any) -> list[str]:
    """Returns the columns of labels, names and parts, in this order."""
    whole = [key for key in LABELS if key in kinds and held(table[key].type) != "real"][:1]
    named = [key for key in NAME_KEYS if key in kinds and kinds[key].kind in ("identifier", "text", "category")][:1]
    split = SPLIT in kinds and kinds[SPLIT].kind in ("identifier", "text", "category")
    for part in set(table[SPLIT].to_pylist()) if split else ():
        require_choice(f"the values in {SPLIT}", part, ("train", "test"), "rename the column if it is a feature")
    return [*whole, *named, *([SPLIT] if split else [])]


def _read_features(
    table: Any, kinds: dict[str, Column], columns: tuple[str, ...], special: list[str], file: str, may_lack: bool
) -> tuple[Array, tuple[str, ...]]:
    """Returns the features (N, D), and their names where they come from a column each."""
    there = [key for key in columns or ARRAY_KEYS if key in kinds]
    lists = [key for key in there if kinds[key].kind in ("list", "other") and held(table[key].type) == "list"]
    if lists and len(columns) < 2:
        x = vectors(table[lists[0]], f"{lists[0]} of {file}")
        gaps = int(np.isnan(x).any(1).sum())
        expect(not gaps, f"numbers in {lists[0]} of {file}", f"gaps in {counted(gaps, 'row')}", "drop such rows")
        return x, ()
    rest = [column for key, column in kinds.items() if key not in special]
    names = columns or tuple(feature for column in rest for feature in column.features)
    expect(names, f"columns of numbers in {file}", f"{', '.join(map(str, kinds.values()))} alone", "add the features")
    if not columns and (unused := [column for column in rest if not column.features]):
        note(f"not used as features: {', '.join(map(str, unused[:12]))}; labels: {(special or ['none'])[0]}")
    notes = notes_of(table)
    x = read_features(table, names, file, unknown="gap" if may_lack else "refuse", notes=notes)
    for text in notes:
        note(text)
    gaps = np.isnan(x).sum(0)
    first = int(gaps.argmax())
    advice = "drop such rows, or the column"
    expect(may_lack or not gaps.any(), f"numbers in column {names[first]} of {file}", f"{gaps[first]} gaps", advice)
    return x, names


def _column(table: Any, key: str) -> Array:
    """Returns a column of labels or names: whole numbers, or texts; anything else as objects, which is refused later."""
    values = table[key].to_pylist()
    if all(isinstance(value, str) for value in values):
        return np.asarray(values, dtype=np.str_)
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return np.asarray(values)
    return np.asarray([repr(value) for value in values], dtype=object)


# Pairs of contexts and targets


@dataclass(frozen=True)
class Pairs:
    """Contexts and targets."""

    context: Array  # (N, C)
    target: Array  # (N, T), or (N,)
    columns: tuple[list[str], list[str]]  # names of the C context features and of the T target columns; context_0, ... of arrays
    ids: dict[str, Array] = field(default_factory=dict)  # columns that name the rows, or all that are written again, (N,) each
    roles: Roles | None = None  # what the columns of a table were taken for
    rows: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # line of the file of each row, (N,)
    groups: Array | None = None  # (N,), of whole numbers
    order: Array | None = None  # (N,), times in days or another unit
    weights: Array | None = None  # (N,) >= 0
    notes: tuple[str, ...] = ()  # what was assumed, and what to check

    def take(self, kept: Array) -> "Pairs":
        """Returns the pairs of some rows."""
        arrays: dict[str, Any] = {key: values[kept] for key, values in vars(self).items() if isinstance(values, np.ndarray)}
        return replace(self, **arrays, ids={key: values[kept] for key, values in self.ids.items()})


def one_per_row(table: Any, name: str, file: str, dates: Sequence[str] = (), codes: bool = False) -> Array:
    """Returns numbers or times (days since 1970-01-01) of a column (N,); with ``codes``, other texts numbered by their values."""
    tables.require_column(name, table.column_names, file)
    alone = table.select([name])
    column = column_kinds(alone, dates=dates)[name]
    if column.kind in ("number", "boolean", "date") or (column.kind == "identifier" and not column.found):
        return read_features(alone, column.features[:1] or [name], file)[:, 0]
    values = table[name].to_pylist()
    if codes and column.kind not in ("empty", "list", "other"):
        code = {value: float(i) for i, value in enumerate(sorted({v for v in values if v not in (None, "")}))}
        return np.asarray([code.get(value, np.nan) for value in values])
    first = repr(next((value for value in values if value is not None), "gaps alone"))[:60]
    unclear = f", which is {' or '.join(column.forms)}" if column.forms else ""
    form = (column.forms or ("%d/%m/%Y",))[0]
    refuse(f"numbers or dates in the column {name} of {file}", f"{first}{unclear}", f"give `dates=FORMAT`, such as {form}")


FEW = 0.05  # share of rows that may be left out


def read_pairs(
    path: Path,
    target: Sequence[str] = (),
    context: Sequence[str] = (),
    drop: Sequence[str] = (),
    ids: Sequence[str] = (),
    *,
    groups: str | None = None,
    ordered: str | None = None,
    weights: str | None = None,
    sheet: str | None = None,
    **kinds: Sequence[str],
) -> Pairs:
    """Reads the arrays ``context`` and ``target`` of a ``.npz`` file, or the columns of a table; see `vergence.data.tables`.

    Rows without a group, time or weight are left out where they are few, and refused otherwise.

    Args:
        path: The file.
        target: Names of the columns of a table that are the target.
        context: Names of the columns that are the context; by default all others with features. For a ``.npz`` file, whose
            arrays must have as many columns, and for a model that names its features, their names.
        drop: Names of columns of a table that are no context.
        ids: Names of columns of a table that name the rows.
        groups: Column, or array of a ``.npz`` file, of subjects.
        ordered: Column, or array, of times: dates or numbers.
        weights: Column, or array, of weights of at least 0.
        sheet: Sheet of a workbook; the first by default.
        kinds: ``category``, ``number`` and ``dates`` of `vergence.data.tables.column_kinds`.
    """
    name, extra = path.name, {"groups": groups, "order": ordered, "weights": weights}
    found: dict[str, Any] = {}
    if is_table_file(path):
        table = read_table(path, sheet)
        more = [column for column in extra.values() if column is not None]
        used = roles(table, target=target, context=context, drop=[*drop, *more], ids=ids, name=name, **kinds)
        features = [feature for column in used.context for feature in column.features]
        pairs = _of_columns(table, features, [column.features[0] for column in used.target], name)
        named = tables.kept_columns(path, table.select([column.name for column in used.ids]), range(table.num_rows), ".csv")
        seen = (*used.context, *used.target, *used.left_out, *used.ids)
        asked = doubts(table, (one for one in seen if one.name not in (*drop, *more)), grouped=groups is not None)
        dates = kinds.get("dates", ())
        for key, column in extra.items():
            found[key] = None if column is None else one_per_row(table, column, name, dates, key == "groups")
        return _complete(replace(pairs, ids=named, roles=used, notes=(*notes_of(table), *asked), **found), extra, name)
    expect(context or not target, "`target` with a table only", f"{name} with its arrays context and target")
    arrays = _numbers(path, PAIR_KEYS)
    c, t = _as_columns(arrays["context"]), arrays["target"]
    fit = c.ndim == 2 and t.ndim in (1, 2) and len(c) == len(t)
    expect(fit, f"context (N, C) and target (N, T) in {name}", f"shapes {c.shape} and {t.shape}")
    widths = c.shape[1], _as_columns(t).shape[1]
    columns = ([f"{key}_{i}" for i in range(width)] for key, width in zip(PAIR_KEYS, widths, strict=True))
    for key, array in ((key, array) for key, array in extra.items() if array is not None):
        found[key] = _numbers(path, (array,))[array]
        expect(found[key].ndim == 1, f"the array {array} (N,) in {name}", f"shape {found[key].shape}", "give one number per row")
    return _complete(Pairs(c, t, (next(columns), next(columns)), rows=np.arange(len(c)), **found), extra, name)


def _complete(pairs: Pairs, extra: dict[str, str | None], name: str) -> Pairs:
    """Returns pairs whose rows all have a group, a time and a weight; the few others are left out, with a note."""
    notes = []
    for key, column in extra.items():
        if (values := getattr(pairs, key)) is None:
            continue
        expect(len(values) == len(pairs.context), f"a value of {column} for each row of {name}", len(values))
        gone = np.isnan(values)
        without = f"{counted(int(gone.sum()), 'row')} without {column}"
        expect(gone.sum() <= FEW * len(gone), f"values in the column {column} of {name}", without, "fill them, or drop such rows")
        if gone.any():
            notes.append(f"{without} left out, the first at row {pairs.rows[gone][0]} of the file")
            pairs = pairs.take(~gone)
    w = pairs.weights
    expect(w is None or ((w >= 0).all() and w.any()), f"weights of at least 0, and one above, in {extra['weights']} of {name}")
    return replace(pairs, notes=(*pairs.notes, *notes))


def _of_columns(table: Any, features: Sequence[str], target: Sequence[str], name: str, unknown: str = "gap") -> Pairs:
    """Returns features and targets of a table by their names."""
    notes: list[str] = []
    t = read_features(table, target, name)
    gone = [column for column, values in zip(target, t.T, strict=True) if len(t) and np.isnan(values).all()]
    expect(not gone, f"values in the target {''.join(gone[:1])} of {name}", "gaps alone", "name another")
    c = read_features(table, features, name, unknown=unknown, notes=notes)
    lines = lines_of(table)
    rows = np.arange(len(c)) if lines is None else lines
    return Pairs(c, t[:, 0] if len(target) == 1 else t, (list(features), list(target)), rows=rows, notes=tuple(notes))


def read_for_model(
    path: Path,
    columns: tuple[Sequence[str], Sequence[str]],
    ids: Sequence[str] = (),
    *,
    paired: bool,
    unknown: str = "gap",
    sheet: str | None = None,
    keep: str = "",
) -> Pairs:
    """Reads what a fitted model needs from a table, or a ``.npz`` or ``.npy`` file with as many columns.

    Contexts are read by the names of their features, with ``paired`` targets too; and the ids of the table, or all columns to
    ``keep`` in a file with this ending. ``unknown`` categories are as of `vergence.data.tables.read_features`.
    """
    context, target = columns
    if is_table_file(path):
        table = read_table(path, sheet, empty=True)
        found = _of_columns(table, context, target if paired else [], path.name, unknown)
        own = table if keep else table.select([name for name in ids if name in table.column_names])
        kept = tables.kept_columns(path, own, range(table.num_rows), keep or ".csv")
        return replace(found, notes=(*notes_of(table), *found.notes), ids={name or "row": cells for name, cells in kept.items()})
    arrays = _numbers(path, PAIR_KEYS if paired else PAIR_KEYS[:1], empty=True)
    c, t = _as_columns(arrays["context"]), arrays.get("target", np.empty((0, len(target))))
    expect(c.ndim == 2, f"contexts (B, C) in {path.name}", f"shape {c.shape}", "reshape them")
    widths = (c.shape[1], _as_columns(t).shape[1])
    right = not context or widths == (len(context), len(target))
    expected = f"contexts of {len(context)} features{f' and targets of {len(target)}' if paired else ''} in {path.name}"
    there = f"{widths[0]} features and {widths[1]}" if paired else widths[0]
    expect(right, expected, there, f"give {', '.join([*context, *(target if paired else [])])}")
    return Pairs(c, t, (list(context), list(target)))


def _as_columns(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 else values


def _numbers(path: Path, keys: Sequence[str], *, empty: bool = False) -> dict[str, Array]:
    """Reads arrays of numbers, with ``empty`` also without rows; the array of a ``.npy`` file is the first of the keys."""
    expect(path.is_file(), f"a table, a .npz or a .npy file at {path}", "a folder" if path.is_dir() else "no file")
    require_choice(f"the ending of {path.name}", path.suffix.lower(), (".npz", ".npy"), f"or a table: {' '.join(TABLES)}")
    arrays, names = read_arrays(path, (*keys, "arr_0"), ON_DISK)
    if names == ["arr_0"]:
        arrays = {keys[0]: arrays["arr_0"]}
    for key in keys:
        where = f"{key} of {path.name}"
        expect(key in arrays, f"the arrays {' and '.join(keys)} in {path.name}", ", ".join(names) or "none", f"add {key}")
        x = arrays[key]
        expect(x.dtype.kind in "fiub", f"numbers in {where}", str(x.dtype), "convert them")
        short = x.shape[:1] == (0,)
        expect(x.size or (empty and short), f"at least 1 {'row' if short else 'column'} in {where}", f"shape {x.shape}")
        rows = np.atleast_1d(x)
        for start in range(0, len(rows), BLOCK):  # a file may be on the disk
            bad = np.isinf(rows[start : start + BLOCK]).reshape(len(rows[start : start + BLOCK]), -1).any(1)
            expect(not bad.any(), f"finite numbers, or NaN for gaps, in {where}", f"infinity in row {start + int(bad.argmax())}")
    return {key: arrays[key] for key in keys}


# What to ask of a table: identifiers that repeat, values that differ by case alone, codes for gaps, dates of two formats

WORDS = (
    "ids?|subject|subj|patient|person|participant|individual|animal|firm|company|plot|site|school|student|worker|household|family"
)
WORDS += "|user|customer|store|hospital|clinic|center|device|sensor|machine|batch"
NAMED = re.compile(rf"(.*[_ .-])?(?i:{WORDS})([_ .-]?(?i:id|no|nr|number|code|name))?|.*[a-z](ID|Id)")
CODE = re.compile(r"-1|-?(9{2,}|8{2,})")  # of a gap
LEAST, MANY = 5, 20  # values of an identifier that repeats, by its name or by its rows alone
SHARE = 0.05  # of the rows, that have a code


def doubts(table: Any, columns: Iterable[Column], *, grouped: bool = False) -> list[str]:
    """Returns questions about columns of an Arrow table that are used or left out; ``grouped`` where groups are known."""
    found = []
    for column in columns:
        values = table[column.name]
        if len(column.forms) > 1:
            found.append(f"{column.name} holds dates as {' or '.join(column.forms)}: `dates=FORMAT`?")
        elif column.kind in ("number", "category", "text"):
            asked = [] if grouped else _repeated(column.name, values)
            found += [*asked, *(_codes(column.name, values) if column.kind == "number" else _alike(column.name, values))]
    return found


def _repeated(name: str, values: Any) -> list[str]:
    """Asks whether a column is groups: it is named like an identifier and repeats, or its values have neighboring rows each."""
    if held(values.type) == "real" or values.null_count:
        return []
    code = values.dictionary_encode().combine_chunks().indices.to_numpy()  # leaves a dictionary as it is
    counts = np.bincount(code)
    counts = counts[counts > 0]
    steady = (counts == np.bincount(counts).argmax()).mean() > 0.5
    neighbors = steady and counts.min() > 1 and len(counts) >= MANY and (np.diff(code) != 0).sum() + 1 == len(counts)
    if len(counts) < LEAST or len(code) < 1.5 * len(counts) or not (NAMED.fullmatch(name) or neighbors):
        return []
    about = "" if np.ptp(counts) == 0 else "about "
    return [f"{name} has {len(counts):,} values, {about}{len(code) / len(counts):.0f} rows each: `groups={name}`?"]


def _alike(name: str, values: Any) -> list[str]:
    """Names texts that differ by case or spaces alone."""
    same: dict[str, list[str]] = {}
    for text in different_texts(values):
        same.setdefault("".join(text.casefold().split()), []).append(text)
    first = next((texts for texts in same.values() if len(texts) > 1), [])
    return [f"{name} has {' and '.join(map(repr, first))}, which differ by case or spaces alone: one value?"] if first else []


def _codes(name: str, values: Any) -> list[str]:
    """Names a value such as -999 in many rows, apart from the others."""
    import pyarrow as pa

    x: Array = values.cast(pa.float64(), safe=False).to_numpy()
    x = x[np.isfinite(x)]
    for end in (x.min(), x.max()) if len(x) else ():
        rest = np.unique(x[x != end]) if CODE.fullmatch(f"{end:.10g}") else x[:0]
        n = int((x == end).sum())
        if n < SHARE * len(x) or len(rest) < LEAST:
            continue
        apart = np.abs(rest - end).min() > np.diff(rest).max() or (end == -1 and rest[0] >= 0)
        if apart:
            code = f"{end:g} in {counted(n, 'row')} ({n / len(x):.0%})"
            return [f"{name} is {code}, apart from all other values: a code for a gap? leave such cells empty"]
    return []
