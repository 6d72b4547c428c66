"""Tables of numbers and pairs: every separator, every refusal, one line each."""

import numpy as np
import pytest

from vergence.data.arrays import read_contexts, read_csv, read_pairs


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def refused(call, *args, match):
    with pytest.raises(ValueError, match=match) as caught:
        call(*args)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_columns_by_name_in_any_order(tmp_path):
    file = write(tmp_path / "a.csv", "a,b,c\n1,2,3\n4,5,6\n")
    pairs = read_pairs(file, ["c"])
    assert pairs.context.tolist() == [[1, 2], [4, 5]] and pairs.target.tolist() == [3, 6]
    assert pairs.columns == (["a", "b"], ["c"])
    two = read_pairs(file, ["c", "a"])
    assert two.target.tolist() == [[3, 1], [6, 4]] and two.context.tolist() == [[2], [5]]
    assert read_pairs(file, ["c"], ["b", "a"]).context.tolist() == [[2, 1], [5, 4]]
    assert read_contexts(file, ["b", "a"]).tolist() == [[2, 1], [5, 4]]


@pytest.mark.parametrize("text", ["a;b\n1,5;2,25\n-3,0;4e2\n", "a\tb\n1.5\t2.25\n-3.0\t4e2\n", "a,b\n1.5,2.25\n-3.0,4e2\n\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_separators_and_decimal_commas(tmp_path, text, encoding):
    table = read_csv(write(tmp_path / "a.csv", text, encoding))
    assert {name: values.tolist() for name, values in table.items()} == {"a": [1.5, -3], "b": [2.25, 400]}


def test_one_column_and_blank_lines(tmp_path):
    assert read_csv(write(tmp_path / "a.csv", "a\n1\n\n2\n\n"))["a"].tolist() == [1, 2]
    assert read_contexts(write(tmp_path / "B.CSV", "a\n1\n2\n"), ["a"]).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a;b\n1,5;2.5\n", "column #1: Row #2: .* invalid value '2.5'"),
        ('a,b\n"1,234",2\n', "column #0: Row #2: .* invalid value '1,234'"),
        ("a,b\n1,2\n3\n", "Row #3: Expected 2 columns, got 1"),
        ("a,b\n1,\n", "column #1: Row #2"),
        ("a,a\n1,2\n", "different column names"),
        ("a,b\n", "found the names alone"),
        ("", "found 0 lines"),
        ("a,b\n1,nan\n", "NaN or infinity in row 0"),
        ("a,b\n1," + "9" * 200_000 + "\n", "not CSV: field larger"),
        ("a,b\n1," + "x" * 100_000 + "\n", "invalid value 'xxx"),
        ('a,b\n1,"x\ny"\n', "invalid value 'x"),
    ],
)
def test_refused_tables(tmp_path, text, match):
    refused(read_csv, write(tmp_path / "a.csv", text), match=match)


def test_other_encodings_are_refused(tmp_path):
    refused(read_csv, write(tmp_path / "a.csv", "größe,b\n1,2\n", "latin-1"), match="UTF-8 text in a.csv, .* save it as UTF-8")
    refused(read_csv, write(tmp_path / "a.csv", "a,b\n1,2\n", "utf-16"), match="UTF-8 text in a.csv")


def test_arrays_of_pairs_and_contexts(tmp_path):
    c, t = np.arange(6.0).reshape(3, 2), np.arange(3)
    np.savez(tmp_path / "a.npz", context=c, target=t, other=np.array([{}], dtype=object))
    pairs = read_pairs(tmp_path / "a.npz")
    assert np.array_equal(pairs.context, c) and np.array_equal(pairs.target, t) and pairs.context.dtype == np.float64
    assert pairs.columns == (["context_0", "context_1"], ["target_0"])
    assert np.array_equal(read_contexts(tmp_path / "a.npz", []), c)
    np.save(tmp_path / "c.npy", c[:, 0])
    assert np.array_equal(read_contexts(tmp_path / "c.npy", []), c[:, :1])


ONE = np.ones((3, 2))
ODD = np.array([[1.0], [2.0], [np.nan]])


@pytest.mark.parametrize(
    ("arrays", "call", "word"),
    [
        ({"context": 3.0, "target": ONE}, read_pairs, "shapes"),
        ({"context": ONE, "target": 3.0}, read_pairs, "shapes"),
        ({"context": 3.0}, lambda file: read_contexts(file, []), "shape"),
        ({"context": ONE[:0], "target": ONE[:0]}, read_pairs, "1 row"),
        ({"context": ONE}, read_pairs, "add target"),
        ({"context": ONE, "goal": ONE}, read_pairs, "add target"),
        ({"context": ONE, "target": np.array(["a"] * 3)}, read_pairs, "numbers"),
        ({"context": ODD, "target": ONE}, read_pairs, "row 2"),
        ({"context": ODD}, lambda file: read_contexts(file, []), "row 2"),
        ({"context": ONE}, lambda file: read_contexts(file, ["a"]), "give a"),
        ({"context": ONE, "target": ONE}, lambda file: read_pairs(file, ["t"], ["a", "b"]), "targets of 1"),
        ({"context": ONE, "target": np.array([{}] * 3)}, read_pairs, "Python objects"),
        ({}, read_pairs, "found none"),
        (None, read_pairs, "no file"),
    ],
)
def test_refused_arrays_of_pairs(tmp_path, arrays, call, word):
    if arrays is not None:
        np.savez(tmp_path / "a.npz", **arrays)
    refused(call, tmp_path / "a.npz", match=word)
    refused(call, tmp_path, match="folder")
