"""Tables of numbers and pairs: every separator, every refusal, one line each."""

import zipfile

import numpy as np
import pytest

from vergence.data.tables import read_contexts, read_csv, read_pairs


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


def test_refused_arrays_of_pairs(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    one = np.ones((3, 2))
    for scalar in ({"context": 3.0, "target": one}, {"context": one, "target": 3.0}):
        refused(read_pairs, save(**scalar), match=r"context \(N, C\) and target \(N, T\) in a.npz, found shapes")
    refused(read_contexts, save(context=3.0), [], match=r"expected contexts \(B, C\) in a.npz, found shape \(\)")
    refused(read_pairs, save(context=one[:0], target=one[:0]), match=r"at least 1 row in context of a.npz, found shape \(0, 2\)")
    refused(read_contexts, save(context=one[:0]), [], match="at least 1 row")
    refused(read_pairs, save(context=one), match="found only the array context; add target")
    refused(read_pairs, save(target=one), match="found only the array target; add context")
    refused(read_pairs, tmp_path, match="there is no file .*, which is a folder; give a .npz or .csv file")
    refused(read_pairs, save(context=one, goal=one), match="found no target among context, goal")
    refused(read_pairs, save(context=one, target=np.array(["a"] * 3)), match="expected numbers in target")
    odd = np.array([[1.0], [2.0], [np.nan]])
    end = np.array([1.0, np.inf, 2.0])
    refused(read_pairs, save(context=odd, target=one), match="in context of a.npz, found NaN or infinity in row 2; repair")
    refused(read_pairs, save(context=one, target=end), match="in target of a.npz, found NaN or infinity in row 1")
    refused(read_contexts, save(context=odd), [], match="in context of a.npz, found NaN or infinity in row 2")
    refused(read_contexts, save(context=one), ["a"], match="contexts of 1 features in a.npz, found 2; give a")
    assert read_pairs(save(context=one, target=end[:1].repeat(3)), ["t"], ["a", "b"]).context.shape == (3, 2)
    refused(read_pairs, save(context=one, target=one), ["t"], ["a", "b"], match="targets of 1 in a.npz, found 2 features and 2;")
    refused(read_pairs, save(context=one, target=one), ["t", "u"], ["a"], match="found 2 features and 2; give a and t, u")
    refused(read_pairs, save(context=one, target=np.array([{}] * 3)), match="cannot be read .*Python objects")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("context", b"not an array")
    refused(read_pairs, tmp_path / "a.npz", match="found no context among no arrays")
    refused(read_pairs, tmp_path / "none.npz", match="there is no file")
    refused(read_pairs, tmp_path, match="there is no file")
