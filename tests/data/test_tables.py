"""Tables as people have them: every separator, gap, date and category; what columns are taken for; every refusal in one line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vergence.data.arrays import of_table, read_for_model, read_pairs
from vergence.data.table_files import read_table
from vergence.data.tables import column_kinds, read_features, roles


def write(path, text):
    path.write_text(text)
    return path


def contexts(file, names):
    return read_for_model(file, (names, []), paired=False).context


def refused(call, *args, match, **more):
    with pytest.raises(ValueError, match=match) as caught:
        call(*args, **more)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_columns_by_name_in_any_order(tmp_path):
    file = write(tmp_path / "a.csv", "a,b,c\n1,2,3\n4,5,6\n")
    pairs = read_pairs(file, ["c"])
    assert pairs.context.tolist() == [[1, 2], [4, 5]] and pairs.target.tolist() == [3, 6]
    assert pairs.columns == (["a", "b"], ["c"]) and str(pairs.roles) == "context: a, b; target: c"
    two = read_pairs(file, ["c", "a"])
    assert two.target.tolist() == [[3, 1], [6, 4]] and two.context.tolist() == [[2], [5]]
    assert read_pairs(file, ["c,a"]).columns == (["b"], ["c", "a"]) and read_pairs(file, ["b:c"]).columns == (["a"], ["b", "c"])
    assert read_pairs(file, ["c"], drop=["a"]).columns == (["b"], ["c"])
    assert read_pairs(file, ["c"], ["b", "a"]).context.tolist() == [[2, 1], [5, 4]]
    assert contexts(file, ["b", "a"]).tolist() == [[2, 1], [5, 4]]
    refused(read_pairs, file, ["a"], ["a", "b"], match="one role")
    refused(read_pairs, file, ["c:a"], match="write a:c")


KINDS = """id,when,size,count,color,flag,remark,nothing,sold
a1,2024-01-01,1.5,3,red,true,first words,,2024-01-01 12:00:00
a2,2024-01-03,,5,blue,false,other words,,2024-01-02 00:00:00
a3,2024-01-02,2.5,9,red,true,words,,2024-01-02 06:00:00
a4,2024-01-05,3.5,2,NA,false,words,,2024-01-03 00:00:00
"""


def test_kinds_of_columns(tmp_path):
    table = read_table(write(tmp_path / "a.csv", KINDS))
    kinds = {name: column.kind for name, column in column_kinds(table).items()}
    assert kinds == {
        **{"id": "identifier", "when": "date", "size": "number", "count": "number", "color": "category", "flag": "boolean"},
        **{"remark": "text", "nothing": "empty", "sold": "date"},
    }
    used = roles(table, target=["size"])
    assert str(used) == (
        "context: when (date), count, color (category, 2 values), flag (boolean), sold (date); target: size; "
        "names of rows: id (identifier); left out: remark (text, 3 values), nothing (empty)"
    )
    names = [name for column in used.context for name in column.features]
    assert names == ["when", "count", "color=blue", "color=red", "flag", "sold"]
    x = read_features(table, names)
    assert x[:, 0].tolist() == [19723, 19725, 19724, 19727] and x[:, 5].tolist() == [19723.5, 19724, 19724.25, 19725]
    assert x[:3, 3].tolist() == [1, 0, 1] and np.isnan(x[3, 2:4]).all() and x[:, 4].tolist() == [1, 0, 1, 0]
    assert np.isnan(read_pairs(tmp_path / "a.csv", ["size"]).target[1])


def test_names_of_rows_are_no_context(tmp_path):
    for name in ("", "Unnamed: 0", "rownames", "id", "patient_id"):
        pairs = read_pairs(write(tmp_path / "a.csv", f"{name},x,y\n1,2,3.5\n2,5,6.5\n3,1,2\n"), ["y"])
        assert pairs.columns == (["x"], ["y"]) and pairs.ids[name or "row"].tolist() == ["1", "2", "3"]
    file = write(tmp_path / "a.csv", "t,x,y\n1,2,3.5\n2,5,6.5\n3,1,2\n")
    refused(read_pairs, file, ["y"], match="counts the rows")
    assert read_pairs(file, ["y"], ids=["t"]).columns == (["x"], ["y"])
    assert read_pairs(file, ["y"], ["t", "x"]).columns == (["t", "x"], ["y"])
    years = write(tmp_path / "a.csv", "year,x,y\n2001,2,3.5\n2002,5,6.5\n2003,1,2\n")
    assert read_pairs(years, ["y"]).columns == (["year", "x"], ["y"])
    assert roles(pa.table({"__index_level_0__": [7, 9], "a": [1.0, 2], "b": [1.0, 2]}), target=["b"]).ids[0].kind == "identifier"


def test_a_column_called_y_is_a_feature_and_fractions_are_no_labels():
    table = pa.table({"x": [1, 2, 3], "y": [0, 1, 0], "label": [0.5, 1.5, 2.5]})
    assert of_table(table, "t").columns == ("x", "y", "label")
    labeled = of_table(pa.table({"x": [1, 2, 3], "labels": [0, 1, 1], "names": ["a", "b", "c"], "word": ["u", "v", "w"]}), "t")
    assert (
        labeled.columns == ("x",) and labeled.items.labels.tolist() == [0, 1, 1] and list(labeled.items.names) == ["a", "b", "c"]
    )


def test_thousands_of_columns_are_read_in_linear_time(tmp_path):
    import time

    seconds = []
    for n in (1000, 8000):
        pq.write_table(pa.table({f"gene{i}": np.random.default_rng(i).normal(size=20) for i in range(n)}), tmp_path / "t.parquet")
        start = time.process_time()
        assert of_table(read_table(tmp_path / "t.parquet"), "t").items.shape == (n,)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 4 + 24 * seconds[0]


@pytest.mark.parametrize(
    ("text", "target", "match"),
    [
        ("a,b\n1,2\n1,3\n", [], "--target NAME to name some of the columns of a.csv to predict, found a, b"),
        ("a,b\n1,x\n2,x\n3,y\n4,y\n", ["b"], "numbers in the target b .* found a column of kind category; a classifier"),
        ("a,b\n1,\n2,\n", ["b"], "numbers in the target b of a.csv, found a column of kind empty"),
        ("a,b\n1,2\n2,inf\n", ["b"], "finite numbers in the column b of a.csv, found infinity"),
        ("a,b\nu,2\nv,3\n", ["b"], "contexts next to the target"),
        ("a,b\n1.5,2\n2.5,3\n", ["a", "b"], "contexts next to the target"),
        ("a,bee\n1,2\n2,3\n", ["be"], "did you mean 'bee'"),
    ],
)
def test_refused_pairs(tmp_path, text, target, match):
    refused(read_pairs, write(tmp_path / "a.csv", text), target, match=match)


def test_arrays_of_pairs_and_contexts(tmp_path):
    c, t = np.arange(6.0).reshape(3, 2), np.arange(3)
    np.savez(tmp_path / "a.npz", context=c, target=t, other=np.array([{}], dtype=object))
    pairs = read_pairs(tmp_path / "a.npz")
    assert np.array_equal(pairs.context, c) and np.array_equal(pairs.target, t) and pairs.context.dtype == np.float64
    assert pairs.columns == (["context_0", "context_1"], ["target_0"])
    assert np.array_equal(contexts(tmp_path / "a.npz", []), c)
    np.save(tmp_path / "c.npy", c[:, 0])
    assert np.array_equal(contexts(tmp_path / "c.npy", []), c[:, :1])


ONE = np.ones((3, 2))
ODD = np.array([[1.0], [2.0], [np.inf]])


@pytest.mark.parametrize(
    ("arrays", "call", "word"),
    [
        ({"context": 3.0, "target": ONE}, read_pairs, "shapes"),
        ({"context": ONE, "target": 3.0}, read_pairs, "shapes"),
        ({"context": 3.0}, lambda file: contexts(file, []), "shape"),
        ({"context": ONE[:0], "target": ONE[:0]}, read_pairs, "1 row"),
        ({"context": ONE}, read_pairs, "add target"),
        ({"context": ONE, "goal": ONE}, read_pairs, "add target"),
        ({"context": ONE, "target": np.array(["a"] * 3)}, read_pairs, "numbers"),
        ({"context": ODD, "target": ONE}, read_pairs, "row 2"),
        ({"context": ODD}, lambda file: contexts(file, []), "row 2"),
        ({"context": ONE}, lambda file: contexts(file, ["a"]), "give a"),
        ({"context": ONE, "target": ONE}, lambda file: read_for_model(file, (["a", "b"], ["t"]), paired=True), "targets of 1 in"),
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
