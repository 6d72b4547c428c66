"""What columns are and what is read of them: dates, declared columns, lists, identifiers, categories; refusals in one line."""

import datetime
import json
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.refusals import refuses

from vergence.data.arrays import doubts, of_table, one_per_row, read_for_model, read_pairs
from vergence.data.dates import cycles_of, day_of, formats_of
from vergence.data.table_files import read_table
from vergence.data.tables import column_kinds, column_of, read_features, roles, rows_where

DAYS = [datetime.date(2023, 11, 28) + datetime.timedelta(days=9 * i) for i in range(40)]
SINCE = [(day - datetime.date(1970, 1, 1)).days for day in DAYS]


def write(path, **columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("written", "form"),
    [
        *((form, form) for form in ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d.%m.%y", "%d-%m-%Y", "%m/%d/%y", "%d-%b-%y")),
        *((form, form) for form in ("%d %B %Y", "%B %d, %Y", "%b %d, %Y", "%d%b%Y", "%d. %B %Y")), ("%Y-%m-%d", ""),
        ("%Y/%m/%d", ""), ("%Y-%m-%dT%H:%M:%S", ""), ("%d/%m/%Y %H:%M", "%d/%m/%Y"), ("%m/%d/%Y %I:%M %p", "%m/%d/%Y"),
    ],
)  # fmt: skip
def test_dates_of_which_one_reading_is_possible(tmp_path, written, form):
    texts = [day.strftime(written) for day in DAYS]
    assert formats_of(texts) == (form,) and [day_of(text, form) for text in texts] == SINCE
    file = write(tmp_path / "a.csv", when=texts, x=np.arange(40) % 7, y=np.arange(40) % 11)
    assert one_per_row(read_table(file), "when", "a.csv").tolist() == SINCE
    pairs = read_pairs(file, ["y"])
    assert pairs.columns[0][0] == f"when:{form}".rstrip(":") and pairs.context[:, 0].tolist() == SINCE
    real = pa.table({"when": DAYS[:2], "x": [1, 2]})
    assert read_features(real, pairs.columns[0][:1]).tolist() == [[SINCE[0]], [SINCE[1]]]


@pytest.mark.parametrize(
    ("texts", "days"),
    [
        (["2024-3-5", "2024-03-05 06:00", "2024-03-05T12:00:00Z", "2024-03-05 12:00+06:00"], [0, 0.25, 0.5, 0.25]),
        (["Mar 2024", "Apr 2024"], [-4, 27]), (["2024-03", "2024-04"], [-4, 27]), (["Q1 2024", "Q2 2024"], [-64, 27]),
        (["2024Q1", "2024Q2"], [-64, 27]), (["2024-Q2"], [27]),
    ],
)  # fmt: skip
def test_months_quarters_times_and_zones(texts, days):
    (form,) = formats_of(texts)
    assert np.subtract([day_of(text, form) for text in texts], 19787) == pytest.approx(days)


@pytest.mark.parametrize(
    "text", ["", "red", "Mar", "12:30", "1.2.3", "20240301", "12 345", "9/9", "2024-13-01", "31/31/2024", "5 %"]
)
def test_what_is_no_date(text):
    assert formats_of([text]) == ()


def test_an_order_is_never_that_of_texts(tmp_path):
    unclear = ["05/03/2024", "01/04/2024"]
    for texts, match in ((["Jan", "Feb"], "found 'Jan'"), (unclear, "%d/%m/%Y or %m/%d/%Y; give `dates=FORMAT`")):
        file = write(tmp_path / "a.csv", when=texts, x=[1, 2], y=[2, 1])
        assert one_per_row(read_table(file), "when", "a.csv", codes=True).tolist() == np.argsort(texts).tolist()
        refuses(match, one_per_row, read_table(file), "when", "a.csv")
        refuses(match, read_pairs, file, ["y"], ordered="when")
    assert read_pairs(file, ["y"]).notes == ("when holds dates as %d/%m/%Y or %m/%d/%Y: `dates=FORMAT`?",)
    assert read_pairs(file, ["y"], ordered="when", dates=["%d/%m/%Y"]).order.tolist() == [19787, 19814]
    assert read_pairs(file, ["y"], ordered="when", dates=["%m/%d/%Y"]).order.tolist() == [19846, 19726]
    refuses(r"a column of dates as %Y.%m in a.csv, found none", read_pairs, file, ["y"], dates=["%Y.%m"])


def test_periods_of_dates_are_features_where_the_dates_tell_something_of_them():
    day = np.arange(800.0) + 0.5
    assert cycles_of(day) == ("year", "week") and cycles_of(day[:300]) == ("week",) and cycles_of(day[:10]) == ()
    assert cycles_of(day[::7]) == ("year",) and cycles_of(np.arange(30) * 365.2425) == ()
    assert cycles_of(np.arange(100) / 24) == ("day",)
    when = pa.array(day.astype("datetime64[D]"))
    (column,) = column_kinds(pa.table({"when": when})).values()
    assert column.features == ("when", *(f"when:{part}" for part in ("year_sine", "year_cosine", "week_sine", "week_cosine")))
    x = read_features(pa.table({"when": when}), column.features)
    angle = 2 * np.pi * np.floor(day) / 365.2425
    np.testing.assert_allclose(x[:, 1:3], np.column_stack([np.sin(angle), np.cos(angle)]), atol=1e-12)
    assert np.abs(x[7:, 3:] - x[:-7, 3:]).max() < 1e-9 and {column_of(name) for name in column.features} == {"when"}
    assert read_features(pa.table({"when": ["1970-01-01", None]}), column.features)[:, :3].tolist()[0] == [0, 0, 1]
    assert roles(pa.table({"when": when, "x": day}), target=["when"]).target[0].features == ("when",)


def test_columns_that_are_declared_and_pandas_categories(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"dose": [1, 10, 2, 10], "on": [True, False, True, True], "x": [0.5, 1, 2, 3]})
    coded = pa.Table.from_pandas(frame.astype({"dose": "category", "on": "category"}))
    names = ["dose=1", "dose=10", "dose=2"]
    assert [str(kind) for kind in column_kinds(coded).values()] == ["dose (category, 3 values)", "on (category, 2 values)", "x"]
    for table in (coded, pa.Table.from_pandas(frame), pa.table({"dose": [1.0, 10.0, 2.0, 10.0]})):
        assert read_features(table, names).argmax(1).tolist() == [0, 1, 2, 1]
    file = write(tmp_path / "a.csv", **frame)
    assert read_pairs(file, ["x"], category=["dose"]).columns[0] == [*names, "on"]
    assert read_pairs(file, ["x"], ["dose"]).columns[0] == ["dose"]
    many = write(tmp_path / "a.csv", code=range(300), y=np.arange(300) % 7)
    refuses("1 to 200 values in the category code, found 300", read_pairs, many, ["y"], category=["code"])
    file = write(tmp_path / "a.csv", id=[3, 1, 2], t=[1, 2, 3], c=["u", "v", "u"], y=[1.5, 2, 3])
    assert read_pairs(file, ["y"], number=["id,t"]).columns[0] == ["id", "t"]
    refuses("numbers in the column c of the table", read_pairs, file, ["y"], number=["c"])


@pytest.mark.parametrize("name", ["id", "subject", "patient_id", "PatientID", "Sample ID", "firm", "plot.no"])
def test_identifiers_that_repeat_are_named_with_a_question(tmp_path, name):
    file = write(tmp_path / "a.csv", **{name: np.arange(60) % 10 + 5, "x": np.arange(60) % 7, "y": np.arange(60) % 11})
    assert read_pairs(file, ["y"]).notes == (f"{name} has 10 values, 6 rows each: `groups={name}`?",)
    assert read_pairs(file, ["y"], drop=[name]).notes == () and read_pairs(file, ["y"], groups=name).notes == ()


def test_neighbors_of_one_value_are_subjects_under_any_name():
    code = np.repeat(np.arange(40) * 37 % 101, 3)
    for values in (code, [f"c{i}" for i in code]):
        table = pa.table({"who": values})
        assert doubts(table, column_kinds(table).values()) == ["who has 40 values, 3 rows each: `groups=who`?"]
    for values in (code[::-1][np.argsort(np.arange(120) % 7)], np.sort(np.random.default_rng(0).poisson(9, 300)), np.arange(120)):
        table = pa.table({"amount": values})
        assert doubts(table, column_kinds(table).values()) == []


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (["Male", "male", "Female", "Female"] * 3, "v has 'Male' and 'male', which differ by case or spaces alone"),
        (["new  york", "New York ", "Rome"] * 3, "which differ by case"),
        ([-999.0, *range(9)] * 3, r"v is -999 in 3 rows \(10%\), apart from all other values: a code for a gap"),
        ([9999, *range(9)] * 3, "v is 9999"), ([-1, 0, 2, 3, 4, 5, 9] * 3, "v is -1"), ([-2, -1, 0, 1, 2, 3, 4] * 3, None),
        ([*range(100)] * 2, None), ([99, *range(50, 98)] * 2, None), (["u", "v", "w"] * 3, None),
    ],
)  # fmt: skip
def test_values_to_ask_about(values, match):
    table = pa.table({"v": values})
    found = doubts(table, column_kinds(table).values())
    assert len(found) == (match is not None) and (not found or re.search(match, found[0]))


def test_rows_without_a_group_or_time_are_left_out_where_they_are_few(tmp_path):
    who = np.array([f"s{i % 5}" for i in range(60)], dtype=object)
    who[[7, 30]] = ""
    file = write(tmp_path / "a.csv", who=who, w=np.arange(60) % 3, x=np.arange(60) % 7, y=np.arange(60))
    pairs = read_pairs(file, ["y"], groups="who", weights="w")
    assert pairs.notes == ("2 rows without who left out, the first at row 9 of the file",)
    assert pairs.target.tolist() == [i for i in range(60) if i not in (7, 30)] and pairs.weights[:4].tolist() == [0, 1, 2, 0]
    assert pairs.rows[6:9].tolist() == [8, 10, 11] and len(pairs.groups) == len(pairs.context) == 58
    who[:20] = ""
    file = write(tmp_path / "a.csv", who=who, x=np.arange(60) % 7, y=np.arange(60))
    refuses(r"values in the column who of a.csv, found 21 rows without who; fill them", read_pairs, file, ["y"], groups="who")
    refuses("weights of at least 0", read_pairs, write(tmp_path / "a.csv", w=[1, -1], x=[1, 2], y=[2, 1]), ["y"], weights="w")


def test_unknown_categories_are_gaps_that_are_told_or_refused(tmp_path):
    names = ["c=a", "c=b"]
    (tmp_path / "t.csv").write_text("A title\n\ny,c\n1,b\n2,z\n")
    found = read_for_model(tmp_path / "t.csv", (names, ["y"]), paired=True)
    assert found.context[0].tolist() == [0, 1] and np.isnan(found.context[1]).all() and found.rows.tolist() == [4, 5]
    assert found.notes[1:] == ("c is 'z' in 1 row (line 5), which the fit did not see: taken for a gap",)
    refuses(r"the column C in t.csv, found none; it has y, c", read_for_model, tmp_path / "t.csv", (["C=a"], []), paired=False)
    with pytest.warns(UserWarning, match=r"c is 'z' or 'w' in 2 rows \(first row 1\), which the fit did not see"):
        x = read_features(pa.table({"c": ["a", "z", "w", None]}), names)
    assert np.isnan(x[1:]).all() and x[0].tolist() == [1, 0]
    refuses("'a', 'b' in the column c of the table, found 'z'", read_features, pa.table({"c": ["z"]}), names, unknown="refuse")
    assert read_features(pa.table({"c": pa.nulls(0), "when": pa.nulls(0)}), [*names, "when", "when:year_sine"]).shape == (0, 4)


def test_a_column_named_like_a_category_is_refused_by_name(tmp_path):
    file = write(tmp_path / "a.csv", **{"color": ["red", "blue"] * 5, "color=red": np.arange(10) % 3, "y": range(10)})
    refuses(r"one meaning of color=red in a.csv, found a column of this name and the value 'red'", read_pairs, file, ["y"])
    table = pa.table({"a": [1.0, 2], "a=b": ["u=v", "u=v"], "a[0]": [3.0, 4]})
    assert read_features(table, ["a", "a=b=u=v", "a[0]"]).tolist() == [[1, 1, 3], [2, 1, 4]]


def test_lists_of_one_length_are_features(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 3)
    for lists in (list(x), fixed):
        pq.write_table(pa.table({"path": list("abcdef"), "v": np.arange(6.0), "embedding": lists}), tmp_path / "t.parquet")
        pairs = read_pairs(tmp_path / "t.parquet", ["v"])
        assert pairs.columns[0] == ["embedding[0]", "embedding[1]", "embedding[2]"] and np.array_equal(pairs.context, x)
        source = of_table(read_table(tmp_path / "t.parquet"), "t")
        assert source.columns == ("v", *pairs.columns[0]) and source.items.shape == (4,)
        found = read_for_model(tmp_path / "t.parquet", (pairs.columns[0][1:2], []), paired=False)
        assert np.array_equal(found.context[:, 0], x[:, 1])
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"v": i, "z": [i, 0.5]}) + "\n" for i in range(3)))
    assert read_pairs(tmp_path / "t.jsonl", ["v"]).context.tolist() == [[i, 0.5] for i in range(3)]
    gap = pa.table({"embedding": [[1.0, 2.0], None, [3.0, None]]})
    np.testing.assert_array_equal(read_features(gap, ["embedding[1]"])[:, 0], [2, np.nan, np.nan])
    assert np.isnan(read_features(gap.slice(1, 1), ["embedding[1]"])).all()
    assert read_features(gap.slice(0, 0), ["embedding[1]"]).shape == (0, 1)
    assert column_kinds(pa.table({"e": [[1.0], [1.0, 2.0]], "f": [["a"], ["b"]]}))["e"].kind == "other"


def saved(path, text):
    path.write_text(text)
    return path


def contexts(file, names):
    return read_for_model(file, (names, []), paired=False).context


def refused(call, *args, match, **more):
    with pytest.raises(ValueError, match=match) as caught:
        call(*args, **more)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_columns_by_name_in_any_order(tmp_path):
    file = saved(tmp_path / "a.csv", "a,b,c\n1,2,3\n4,5,6\n")
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
    table = read_table(saved(tmp_path / "a.csv", KINDS))
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
        pairs = read_pairs(saved(tmp_path / "a.csv", f"{name},x,y\n1,2,3.5\n2,5,6.5\n3,1,2\n"), ["y"])
        assert pairs.columns == (["x"], ["y"]) and pairs.ids[name].tolist() == ["1", "2", "3"]
    file = saved(tmp_path / "a.csv", "t,x,y\n1,2,3.5\n2,5,6.5\n3,1,2\n")
    refused(read_pairs, file, ["y"], match="counts the rows")
    assert read_pairs(file, ["y"], ids=["t"]).columns == (["x"], ["y"])
    assert read_pairs(file, ["y"], ["t", "x"]).columns == (["t", "x"], ["y"])
    years = saved(tmp_path / "a.csv", "year,x,y\n2001,2,3.5\n2002,5,6.5\n2003,1,2\n")
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
        ("a,b\n1,2\n1,3\n", [], "`target=NAME` to name some of the columns of a.csv to predict, found a, b"),
        ("a,b\n1,x\n2,x\n3,y\n4,y\n", ["b"], "numbers in the target b .* found text of few values; a classifier"),
        ("a,b\n1,\n2,\n", ["b"], "numbers in the target b of a.csv, found gaps alone"),
        ("a,b\n1,2\n2,inf\n", ["b"], "finite numbers in the column b of a.csv, found infinity"),
        ("a,b\nu,2\nv,3\n", ["b"], "contexts next to the target"),
        ("a,b\n1.5,2\n2.5,3\n", ["a", "b"], "contexts next to the target"),
        ("a,bee\n1,2\n2,3\n", ["be"], "did you mean 'bee'"),
    ],
)
def test_refused_pairs(tmp_path, text, target, match):
    refused(read_pairs, saved(tmp_path / "a.csv", text), target, match=match)


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
        ({"context": 3.0, "target": ONE}, read_pairs, "shapes"), ({"context": ONE, "target": 3.0}, read_pairs, "shapes"),
        ({"context": 3.0}, lambda file: contexts(file, []), "shape"),
        ({"context": ONE[:0], "target": ONE[:0]}, read_pairs, "1 row"), ({"context": ONE}, read_pairs, "add target"),
        ({"context": ONE, "goal": ONE}, read_pairs, "add target"),
        ({"context": ONE, "target": np.array(["a"] * 3)}, read_pairs, "numbers"),
        ({"context": ODD, "target": ONE}, read_pairs, "row 2"), ({"context": ODD}, lambda file: contexts(file, []), "row 2"),
        ({"context": ONE}, lambda file: contexts(file, ["a"]), "give a"),
        ({"context": ONE, "target": ONE}, lambda file: read_for_model(file, (["a", "b"], ["t"]), paired=True), "targets of 1 in"),
        ({"context": ONE, "target": np.array([{}] * 3)}, read_pairs, "Python objects"), ({}, read_pairs, "found none"),
        (None, read_pairs, "no file"),
    ],
)  # fmt: skip
def test_refused_arrays_of_pairs(tmp_path, arrays, call, word):
    if arrays is not None:
        np.savez(tmp_path / "a.npz", **arrays)
    refused(call, tmp_path / "a.npz", match=word)
    refused(call, tmp_path, match="folder")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("text = DMSO", [0, 1]), ("text != DMSO", [2]), ("text = ''", [3, 4]), ("text not in DMSO,x", []),
        ("number != 1.50", [1, 2]), ("number in 0, 2", [1, 2]), ("is = true", [0, 3]), ("is = 0", [1, 4]), ("id = 7", [1]),
        ("spelled in DMSO,dmso", [0, 1]),
    ],
)  # fmt: skip
def test_conditions_compare_numbers_as_numbers_and_texts_without_spaces(where, rows):
    texts = {"text": ["DMSO ", " DMSO", "x", None, ""], "id": ["007", "7", "x", "", "y"], "spelled": ["DMSO", "dmso", "", "", ""]}
    table = pa.table({**texts, "number": [1.5, 0.0, 2, None, 1.5], "is": [True, False, None, True, False]})
    if rows:
        assert [i for i, holds in enumerate(rows_where(table, where, "rows", "the table")[0]) if holds] == rows
    else:
        refuses(f"expected rows where {where}, found none in the table", rows_where, table, where, "rows", "the table")
    refuses("one spelling in spelled, found DMSO, dmso", rows_where, table, "spelled = DMSO", "rows", "the table")
