"""Hostile values, and valid files with some of their structure or bytes changed, as strategies of hypothesis."""

import copy
import io
import json
import struct
import warnings
import zipfile

import numpy as np
from hypothesis import strategies as st

DEEP = 3000  # levels of nesting that no reader should follow

values = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 10**6]),
    st.sampled_from([0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), 1.5]),
    st.sampled_from(["", "a", "nan", "inf", "1", "-1", "../..", "/dev/zero", "\x00", "\ud800", "‮é", "<script>", "x" * 10_000]),
    st.sampled_from(["a\nb", "'\"", "{{ 7 * 7 }}", "%s%n", "=1+1", "cuda", "auto", "gje", "mlp", "digits", "\r", "💥"]),
    st.sampled_from(
        [[], {}, [[]], [None], {"a": 1}, [0], [1, 2], ["a"], [-1, -1], [10**12], [1e300, 1.0], {"": {}}, [[1], [2]]]
    ).map(copy.deepcopy),  # edits change what they meet, in place
    st.integers(),
    st.floats(),
    st.text(max_size=8),
)


def _paths(tree, path=()):
    """Yields the path of every part of a JSON tree but the root."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in pairs:
        yield (*path, key)
        yield from _paths(part, (*path, key))


def _edit(draw, tree):
    """Replaces, drops, renames, repeats, wraps or buries one part of a JSON tree, in place."""
    paths = list(_paths(tree))
    if not paths:
        return
    *way, last = draw(st.sampled_from(paths))
    for key in way:
        tree = tree[key]
    how = draw(st.sampled_from(["value"] * 6 + ["drop", "rename", "repeat", "wrap", "swap", "scale"]))
    part = tree[last]
    if how == "value":
        tree[last] = draw(values)
    elif how == "drop":
        del tree[last]
    elif how == "rename" and isinstance(tree, dict):
        tree[draw(st.text(max_size=6) | st.sampled_from([str(last).upper(), "self", "__class__", "facts"]))] = tree.pop(last)
    elif how == "repeat" and isinstance(part, list):
        tree[last] = part * draw(st.sampled_from([2, 50]))
    elif how == "wrap":
        tree[last] = draw(st.sampled_from([[part], {"x": part}, [part, part], str(part)[:100]]))
    elif how == "swap":
        other = draw(st.sampled_from(paths))
        if not way and other[:1] != (last,) and len(other) == 1:
            tree[last], tree[other[0]] = tree[other[0]], tree[last]
    elif how == "scale" and isinstance(part, int | float):
        tree[last] = part * draw(st.sampled_from([-1, 10, 1000, 10**9, 0, 0.5]))


@st.composite
def json_bytes(draw, original):
    """A JSON file with one to three edits of its tree, and now and then of its text."""
    tree = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        _edit(draw, tree)
    if draw(st.integers(0, 19)) == 0:
        tree = draw(values)
    text = json.dumps(tree)
    if draw(st.integers(0, 19)) == 0:
        key = draw(st.sampled_from(list(original)))
        text = text.replace(json.dumps(key) + ":", f"{json.dumps(key)}: {'[' * DEEP}{']' * DEEP}, {json.dumps(key)}:", 1)
    data = text.encode()
    return draw(damaged(data)) if draw(st.integers(0, 9)) == 0 else data


@st.composite
def json_lines(draw, rows):
    """A file of JSON lines in which some lines are changed, cut or repeated."""
    lines = [json.dumps(row).encode() for row in rows]
    for _ in range(draw(st.integers(1, 4))):
        i = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["tree", "tree", "tree", "bytes", "value", "repeat", "deep"]))
        if how == "tree":
            lines[i] = draw(json_bytes(rows[i % len(rows)]))
        elif how == "value":
            lines[i] = json.dumps(draw(values)).encode()
        elif how == "deep":
            lines[i] = b"[" * DEEP
        else:
            lines[i] = lines[i] * 2 if how == "repeat" else draw(damaged(lines[i]))
    return b"\n".join(lines) + b"\n"


@st.composite
def damaged(draw, original):
    """A file with one to five changes of its bytes: flipped bits, huge sizes, parts cut or repeated, or its end lost."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 5))):
        if not data:
            break
        near = min(len(data), 128)
        at = draw(
            st.one_of(st.integers(0, near - 1), st.integers(len(data) - near, len(data) - 1), st.integers(0, len(data) - 1))
        )
        length = draw(st.integers(1, 16))
        how = draw(st.sampled_from(["flip", "flip", "byte", "number", "cut", "insert", "repeat", "end", "zero"]))
        if how == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "byte":
            data[at] = draw(st.integers(0, 255))
        elif how == "number":
            number = draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF, 0x80000000, 1 << 24]))
            data[at : at + 4] = struct.pack(draw(st.sampled_from(["<I", ">I"])), number)
        elif how == "cut":
            del data[at : at + length]
        elif how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif how == "repeat":
            data[at:at] = data[at : at + length] * draw(st.sampled_from([1, 100]))
        elif how == "zero":
            data[at : at + length] = bytes(length)
        else:
            del data[at:]
    return bytes(data)


DTYPES = ["<f4", "<f8", "<f2", "|u1", "<i8", "<i4", "|i1", "<u2", "<u8", "|b1", "<c8", "<U3", "|S3", "<M8[s]", ">f4", "<f4,<i4"]
FILLS = [
    "normal", "unit", "zero", "one", "huge", "tiny", "nan", "inf", "minus_inf", "one_nan", "small_ints", "limits",
]  # fmt: skip
SHAPES = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 8, 40, 130]), max_size=4).filter(lambda s: np.prod(s, dtype=float) <= 20_000),
    st.sampled_from([[40, 6], [130, 6], [40, 3, 8, 8], [40, 8, 8], [6], [1, 6], [2, 6], [40, 1], [130, 2], [], [0, 6], [40, 0]]),
)


def usual(shapes, dtypes=("<f4", "<f8"), fills=("normal",)):
    """Descriptions of arrays that a caller accepts."""
    parts = {"shape": shapes, "dtype": dtypes, "fill": fills, "seed": range(10)}
    return st.fixed_dictionaries({name: st.sampled_from(list(values)) for name, values in parts.items()}).map(
        lambda array: {**array, "shape": list(array["shape"])}
    )


@st.composite
def near(draw, valid, odd, counts=None):
    """A case of valid parts of which none, some or all are odd, or as many as one of the counts; both are strategies by name."""
    n = draw(st.sampled_from(counts or [0, 1, 1, 2, len(odd)]))
    changed = draw(st.lists(st.sampled_from(sorted(odd)), min_size=min(n, len(odd)), max_size=n, unique=True))
    return {name: draw(odd[name] if name in changed else part) for name, part in valid.items()}


@st.composite
def arrays(draw, likely=(), dtypes=DTYPES):
    """The description of an array: shape, type, what fills it, seed; shapes that a caller expects are likely."""
    shape = draw(st.sampled_from([list(s) for s in likely])) if likely and draw(st.integers(0, 3)) else draw(SHAPES)
    dtype = draw(st.sampled_from(dtypes if draw(st.booleans()) else ["<f4", "<f8"]))
    fill = draw(st.sampled_from(FILLS if draw(st.booleans()) else ["normal", "unit", "small_ints"]))
    return {"shape": shape, "dtype": dtype, "fill": fill, "seed": draw(st.integers(0, 9))}


def build(description):
    """Returns the array of a description."""
    shape, dtype, fill = tuple(description["shape"]), np.dtype(description["dtype"]), description["fill"]
    rng = np.random.default_rng(description["seed"])
    constants = {"zero": 0, "one": 1, "huge": 1e30, "tiny": 1e-30, "nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
    if fill in constants:
        x = np.full(shape, float(constants[fill]))
    elif fill == "small_ints":
        x = rng.integers(0, 3, shape).astype(float)
    elif fill == "limits":
        x = rng.choice([-3.4e38, 3.4e38, 1e-45, 0.0], shape)
    else:
        x = np.asarray(rng.random(shape) if fill == "unit" else rng.normal(size=shape))
    if fill == "one_nan" and x.size:
        x.flat[0] = np.nan
    if dtype.names:
        return np.zeros(shape, dtype)
    with np.errstate(all="ignore"):
        if dtype.kind in "US":
            return np.where(x > 0, "a", "bc").astype(dtype)
        if dtype.kind in "iuM":
            x = np.nan_to_num(x, nan=0, posinf=100, neginf=-100).clip(-100, 200)
        return x.astype("i8").astype(dtype) if dtype.kind == "M" else x.astype(dtype)


X, PAIRS, LABELS = usual([(40, 6)]), usual([(40, 2)]), usual([(40,)], ["<i8"], ["small_ints"])
IMAGES = usual([(40, 10, 10, 3)], ["|u1"], ["small_ints", "unit"])
LAYOUTS = [  # of archives that are read
    {"x": X},
    {"x": X, "y": LABELS},
    {"images": IMAGES, "labels": LABELS},
    {"x_train": X, "y_train": LABELS, "x_test": X, "y_test": LABELS},
    {"context": PAIRS, "target": PAIRS},
    {"context": X, "target": LABELS},
]
NAMES = ["x", "images", "y", "labels", "x_train", "x_test", "y_train", "y_test", "context", "target", "arr_0", "odd", "a/b", "é"]


@st.composite
def npz_bytes(draw, layouts=LAYOUTS):
    """An archive that is read, with up to three arrays replaced, renamed, left out, added or damaged; or with damaged bytes."""
    members = [(f"{name}.npy", _npy(build(draw(array)))) for name, array in draw(st.sampled_from(layouts)).items()]
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        at = draw(st.integers(0, len(members) - 1))
        name, data = members[at]
        how = draw(st.sampled_from(["array", "array", "rename", "drop", "add", "damage", "ending"]))
        if how in ("array", "add"):
            data = _npy(build(draw(arrays(likely=[(40, 6), (40, 3, 8, 8), (40,), (40, 2), (2, 6), (1, 6), (0, 6)]))))
        if how in ("rename", "add"):
            name = draw(st.sampled_from(NAMES)) + ".npy"
        members[at] = (name.removesuffix(".npy") if how == "ending" else name, draw(damaged(data)) if how == "damage" else data)
        if how == "add":
            members.append((f"{draw(st.sampled_from(NAMES))}.npy", data))
        elif how == "drop" and len(members) > 1:
            del members[at]
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", draw(st.sampled_from([0, zipfile.ZIP_DEFLATED]))) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, data in members:
            archive.writestr(name, data)
    return draw(damaged(file.getvalue())) if draw(st.sampled_from([False] * 5 + [True])) else file.getvalue()


def _npy(x):
    file = io.BytesIO()
    np.lib.format.write_array(file, x, allow_pickle=False)
    return file.getvalue()


@st.composite
def npy_bytes(draw):
    """One array in NumPy's format: as it is read, any other, with damaged bytes, or under a header that claims something else."""
    how = draw(st.sampled_from(["usual", "usual", "whole", "damaged", "header"]))
    data = _npy(build(draw(arrays(likely=[(40, 6), (40, 3, 8, 8), (40, 8, 8)]) if how == "whole" else X | IMAGES)))
    if how == "damaged":
        return draw(damaged(data))
    if how == "header":
        shape = draw(
            st.sampled_from(["(40,6)", "(10**12,)", "(1099511627776, 6)", "(-1, 6)", "()", "(40.0, 6)", "None", "(True,)"])
        )
        descr = draw(st.sampled_from(["'<f4'", "'|O'", "'<f16'", "[('a', '<f4')]", "'<U1000000'", "1", "'|V8'", "'<m8'"]))
        header = (
            f"{{'descr': {descr}, 'fortran_order': {draw(st.sampled_from(['False', 'True', '3']))}, 'shape': {shape}, }}".encode()
        )
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + data[128:]
    return data


@st.composite
def csv_bytes(draw):
    """A table of numbers with odd fields, quotes, delimiters, lengths and encodings."""
    delimiter = draw(st.sampled_from([","] * 6 + [";", "\t", " ", "|"]))
    odd_names = st.sampled_from(["a", "b", "y", "context_0", "target", "a b", "é", "", '"q"', "=x"])
    expected = draw(st.sampled_from([True, True, True, False]))
    names = ["a", "b", "y"] if expected else draw(st.lists(odd_names, min_size=1, max_size=5))
    usual = st.sampled_from(["1", "2.5", "-3e2", "0", "4"])
    odd = st.sampled_from(
        ["nan", "inf", "", "x", "1,5", '"', '"1"', "1e999", "9" * 400, "1_000", "٣", "x" * 140_000, "\x00", "0x10", " 1 "]
    )
    n = draw(st.sampled_from([30, 5, 2, 1, 0]))
    rows = [[draw(usual) for _ in names] for _ in range(n)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 5])) if rows else 0):
        row = draw(st.sampled_from(rows))
        how = draw(st.sampled_from(["odd", "odd", "odd", "more", "less"]))
        if row and how == "odd":
            row[draw(st.integers(0, len(row) - 1))] = draw(odd)
        elif how == "more":
            row.append(draw(usual))
        else:
            del row[:1]
    lines = [delimiter.join(row) for row in [names, *rows]]
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))
    data = text.encode(draw(st.sampled_from(["utf-8"] * 5 + ["utf-8-sig", "utf-16"])))
    return draw(damaged(data)) if draw(st.integers(0, 5)) == 0 else data
