"""Files as spreadsheets, instruments and other programs write them: their numbers, or a refusal or a note that names the line."""

import gzip

import pytest
from tests.refusals import refuses

from vergence.data.table_files import as_written, lines_of, notes_of, read_table

G = None  # a gap
TENS = "".join(f"{i}\n" for i in range(10, 20))
READ = {
    # decimal marks and thousands
    "tabs, thousands": ("a\tc\n987\t1\n1,012\t2\n12,125\t3\n", {"a": [987, 1012, 12125]}),
    "semicolons, thousands beside decimal commas": ("a;c\n987;1,5\n1.012;2,5\n", {"a": [987, 1012], "c": [1.5, 2.5]}),
    "all thousands beside decimal commas": ("a;c\n2.701;2,70\n6.434;6,43\n", {"a": [2701, 6434], "c": [2.7, 6.43]}),
    "thousands beside decimal points": ("a\tc\n2,701\t2.70\n6,434\t6.43\n", {"a": [2701, 6434], "c": [2.7, 6.43]}),
    "quoted decimal commas": ('a,c\n"0,436",1\n"0,500",2\n"12,125",3\n', {"a": [0.436, 0.5, 12.125], "c": [1, 2, 3]}),
    "quoted decimal commas, points as thousands": ('a,c\n1.012,"2,70"\n987,"3,5"\n', {"a": [1012, 987], "c": [2.7, 3.5]}),
    "quoted thousands": ('a,c\n"1,234",2.5\n"12,125",3\n', {"a": [1234, 12125]}),
    "both separators": ("a;b\n1.234,5;2\n0,125;3\n", {"a": [1234.5, 0.125]}),
    "millions say what the mark is": ("a;b\n1.234.567;1.012\n1.000.000;2.500\n", {"a": [1234567, 1000000], "b": [1012, 2500]}),
    "points as usual": ("a;b\n1.012;2.5\n0.987;3.5\n", {"a": [1.012, 0.987]}),
    "three decimals, one number above a thousand": ("a\tb\n1.012\tu\n1234.125\tv\n", {"a": [1.012, 1234.125]}),
    "each column has its own mark": ("a;b\n1.5;1,5\n2.5;2,5\n", {"a": [1.5, 2.5], "b": [1.5, 2.5]}),
    "gaps beside thousands": ("a\tc\nNA\t1\n1,012\t2\n987\t3\n", {"a": [G, 1012, 987]}),
    "scientific": ("a\n1e3\n-2.5E-1\n+4\n", {"a": [1000, -0.25, 4]}),
    "without a zero": ("a;b\n.5;1\n-.25;2\n", {"a": [0.5, -0.25]}),
    # units, spaces, signs
    "dollars": ('a,b\n"$1,234.50",1\n$7.25,2\n-$3,3\n', {"a": [1234.5, 7.25, -3]}),
    "accountants": ('a,b\n"$1,234.50",1\n($7.25),2\n', {"a": [1234.5, -7.25]}),
    "euros": ("a;b\n1.234,50 €;1\n0,99 €;2\n", {"a": [1234.5, 0.99]}),
    "codes of currencies": ("a,b\nUSD 5,1\nUSD 2.5,2\n", {"a": [5, 2.5]}),
    "percent behind a space": ("a;b\n50 %;1\n2,5 %;2\n", {"a": [50, 2.5]}),
    "degrees Celsius": ("a,b\n20.5 °C,1\n-3 °C,2\n", {"a": [20.5, -3]}),
    "spaces": ("a,b\n12 345,1\n1 234 567.5,2\n987,3\n", {"a": [12345, 1234567.5, 987]}),
    "narrow spaces": ("a;b\n12\u202f345;1,5\n987;2\n", {"a": [12345, 987]}),
    "no-break spaces": ("a;b\n12\u00a0345,5;1\n987\u00a0;2\n", {"a": [12345.5, 987]}),
    "apostrophes": ("a;b\n12'345.5;1\n987;2\n", {"a": [12345.5, 987]}),
    "unicode minus": ("a,b\n\u22121.5,1\n2.5,2\n", {"a": [-1.5, 2.5]}),
    "padded": ("a,b\n 1.5 ,1\n  2.5,2\n", {"a": [1.5, 2.5]}),
    # gaps
    "a point alone": ("a\n.\n" + TENS, {"a": [G, *range(10, 20)]}),
    "a dash alone": ("a,b\n-,1\n2.5,2\n-,3\n", {"a": [G, 2.5, G]}),
    "two dashes": ("a,b\n--,1\n2,2\n", {"a": [G, 2]}),
    "padded NA": ("a,b\n NA,1\n2.5,2\n", {"a": [G, 2.5]}),
    "gaps alone": ("a,b\n,1\n,2\n", {"a": [G, G]}),
    # texts stay
    "texts": ("a,b\nred,1\n.,2\n-,3\n", {"a": ["red", ".", "-"]}),
    "codes": ("a,b\n12B,1\n13B,2\n", {"a": ["12B", "13B"]}),
    "versions": ("a,b\n1.2.3,1\n1.10.4,2\n", {"a": ["1.2.3", "1.10.4"]}),
    "two units": ("a,b\n$5,1\n€6,2\n", {"a": ["$5", "€6"]}),
    "codes beside numbers": ("a\n" + TENS + "12B\n", {"a": [*map(str, range(10, 20)), "12B"]}),
    "codes with zeros": ("a\n" + TENS + "007\nnone yet\n", {"a": [*map(str, range(10, 20)), "007", "none yet"]}),
    "half numbers": ("a,b\n1,1\n2,2\nlow,3\nhigh,4\n", {"a": ["1", "2", "low", "high"]}),
    "quoted words of gaps": ('a,b\n"NA",1\nDE,2\n', {"a": ["NA", "DE"]}),
    # layouts
    "names of rows, texts": ('"x","z"\n"Mazda",21,6\n"Fiat",22.8,4\n', {"": ["Mazda", "Fiat"], "x": [21, 22.8], "z": [6, 4]}),
    "names of rows, a gap in the first": ('"x","z"\n"u",NA,red\n"v",2.5,blue\n', {"": ["u", "v"], "x": [G, 2.5]}),
    "names of rows, counts": ("x,z\n1,21,6\n2,22.8,4\n", {"": [1, 2], "x": [21, 22.8]}),
    "names of rows, quoted numbers": ('"x","z"\n"3",21,6\n"17",22.8,4\n', {"": [3, 17], "x": [21, 22.8]}),
    "a delimiter behind each row": ("x,z,y\n1.5,2,3,\n2.5,3,4,\n", {"x": [1.5, 2.5], "z": [2, 3], "y": [3, 4]}),
    "a semicolon behind each row": ("x;z\n1,5;2;\n2,5;3;\n", {"x": [1.5, 2.5], "z": [2, 3]}),
    "a delimiter behind the names": ("x,z,\n1.5,2\n2.5,3\n", {"x": [1.5, 2.5], "z": [2, 3]}),
    "a comment": ("# made today, in Rome\nx,z\n1,2\n3,4\n", {"x": [1, 3], "z": [2, 4]}),
    "comments": ("# a\n## b, c\n#d\nx,z\n1,2\n3,4\n", {"x": [1, 3], "z": [2, 4]}),
    "names in a comment": ("# x,z\n1,2\n3,4\n", {"x": [1, 3], "z": [2, 4]}),
    "a number sign is a name": ("#,z\n1,2\n2,4\n", {"#": [1, 2], "z": [2, 4]}),
    "a title": ("Results of 2022\n\nx,z\n1,2\n3,4\n", {"x": [1, 3], "z": [2, 4]}),
    "a title above a semicolon table": ("Results\nx;z\n1,5;2\n3,5;4\n", {"x": [1.5, 3.5], "z": [2, 4]}),
    "a title of a spreadsheet": ("Results,,\nx,z,y\n1,2,3\n3,4,5\n", {"x": [1, 3], "z": [2, 4], "y": [3, 5]}),
    "sep": ("sep=;\nx;z\n1,5;2\n3,5;4\n", {"x": [1.5, 3.5], "z": [2, 4]}),
    "line ends of old": ("x,z\r1,2\r3,4\r", {"x": [1, 3], "z": [2, 4]}),
    "a lone return in a cell": ('x,z\n1,"a\rb\nc, d\re"\n3,f\n', {"x": [1, 3], "z": ["a\rb\nc, d\re", "f"]}),
    "line ends of Windows": ('x,z\r\n"1",2\r\n3,4e2\r\n', {"x": [1, 3], "z": [2, 400]}),
    "blank lines": ("x,z\n\n1,2\n   \n3,4\n\n", {"x": [1, 3], "z": [2, 4]}),
    "long lines between tabs": ("\t".join(f"g{i:05}" for i in range(20_000)) + "\n" + "\t".join("7" * 20_000), {"g00009": [7]}),
    "pipes": ("x|z\n1|2.5\n", {"x": [1], "z": [2.5]}),
}  # fmt: skip


def table(tmp_path, text, name="t.csv", **more):
    (tmp_path / name).write_bytes(text.encode())
    return read_table(tmp_path / name, **more)


@pytest.mark.parametrize("case", READ)
def test_what_is_read(tmp_path, case):
    text, expected = READ[case]
    found = table(tmp_path, text)
    assert {name: found[name].to_pylist() for name in expected} == expected
    assert len(expected) in (1, 2, found.num_columns) and as_written(tmp_path / "t.csv", found).num_rows == found.num_rows


SPACES = {
    "x z\n1.5 2\n3 4\n": {"x": [1.5, 3], "z": [2, 4]}, "  x     z\n  1.5   2\n 13     4  \n": {"x": [1.5, 13], "z": [2, 4]},
    '"x" "z"\n"a b" 1 2\n"c" 3 4\n': {"": ["a b", "c"], "x": [1, 3], "z": [2, 4]},
    "# a comment\nx z\n1.5 2\n3 4\n": {"x": [1.5, 3], "z": [2, 4]}, "x\tz\n1.5\t2\n3\t4\n": {"x": [1.5, 3], "z": [2, 4]},
    "my amount\n12 345\n1 234\n": {"my amount": [12345, 1234]},
    "name\nJohn Smith\nMary Jones\n": {"name": ["John Smith", "Mary Jones"]},
}  # fmt: skip


@pytest.mark.parametrize("text", SPACES)
@pytest.mark.parametrize("ending", [".txt", ".dat"])
def test_spaces_between_cells(tmp_path, text, ending):
    assert table(tmp_path, text, f"t{ending}").to_pydict() == SPACES[text]


MANY = "x,z\n" + "".join(f"{i}.5,{i}\n" for i in range(10, 30))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x,z\n1,2\n3\n4,5\n", r"expected 2 fields in each line of t.csv, found 1 in line 3; mend the line"),
        ("x,z\n1,2\n3,4,5\n4,5\n", "found 3 in line 3"), ("x,z,y\n1,2,3,4\n4,5,6\n7,8,9\n", "found 4 in line 2"),
        (MANY + "\n4,5,6\n", "found 3 in line 23"), ('x,z\n1,"a\nb"\n\n4,5,6\n1,c\n', "found 3 in line 5"),
        (MANY + "Source: an office\n", "found 1 in line 22; mend the line, or leave out what stands below the table"),
        ("x,z\n21,5,3\n21,7,4\n", "as many column names as fields in t.csv, found 2 above the 3 fields of line 2; .* semicolons"),
        ("x,z,y,w\n21,5\n21,7\n", "found 4 above the 2 fields of line 2"),
        ("x;z;y\n1,5;2;3;4\n2,5;2;3;4\n", "found 3 above the 4 fields of line 2"),
        ("Results\n1,2\n3,4\n", "found 1 above the 2 fields|as many column names"), ("# alone\n", "found the names alone"),
        ("a,b\n", "found the names alone"), ("", "found 0 lines"), ("a,a\n1,2\n", "different column names"),
        ("a,b\n1," + "x" * 200_000 + "\n", "not CSV: field larger"), ("a,b\n1,\0\n", "found bytes that are none"),
        ("a;b\n1,012;2,70\n1.013;2,5\n", "one decimal mark in the column a, found '1,012' in line 2 and '1.013' in line 3"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, text, match):
    with pytest.raises(ValueError, match=match) as caught:
        table(tmp_path, text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


STRANGE = "z,x\n" + "".join(f"{i},{i}.5\n" for i in range(10, 17))


@pytest.mark.parametrize("cell", ["<0.5", "#DIV/0!", "n.d.", "unknown", "5 €", "3,5,5", "7..5"])
def test_a_cell_among_numbers_that_is_none_is_named_with_its_line(tmp_path, cell):
    found = table(tmp_path, f'{STRANGE}\n20,"{cell}"\n21,3\n')
    assert found["x"].to_pylist() == [i + 0.5 for i in range(10, 17)] + [None, 3]
    assert notes_of(found) == [f"x: {cell!r} in line 10 is no number and is taken for a gap"]
    assert as_written(tmp_path / "t.csv", found)["x"].to_pylist()[7] == cell


TOLD = "is read as {} ({!r} in line {}), but no column tells"
NOTED = {
    "a\tb\n987\tu\n1,012\tv\n": ("a: ',' " + TOLD.format("a separator of thousands", "1,012", 3), [987, 1012]),
    "a\tb\n1,012\tu\n1,125\tv\n": ("a: ',' " + TOLD.format("the decimal mark", "1,012", 2), [1.012, 1.125]),
    "a;b\n1.012;u\n1.125;v\n": ("a: '.' " + TOLD.format("the decimal mark", "1.012", 2), [1.012, 1.125]),
    "a,b\n1.012,u\n1.125,v\n": ("", [1.012, 1.125]),
    "a,b\nNA,1\nDE,2\nFR,3\nNA,4\nDE,5\nFR,6\n": ("taken for gaps: NA in 2 rows of a", [G, "DE", "FR", G, "DE", "FR"]),
    "a,b\n,1\nDE,2\nDE,3\n": ("", [G, "DE", "DE"]), "a,b\nNA,1\n2,2\n3,3\n": ("", [G, 2, 3]),
    "Title\na,b\n1,2\n3,4\n": ("left out above the names in line 2: 'Title'", [1, 3]),
    "a\nu\n" + TENS + "v\n": ("a: 'u' in line 2 is no number and is taken for a gap, as is 1 other cell", [G, *range(10, 20), G]),
}  # fmt: skip


@pytest.mark.parametrize("text", NOTED)
def test_what_was_assumed_is_told(tmp_path, text):
    found = table(tmp_path, text)
    assert ("; ".join(notes_of(found)), found.column(0).to_pylist()) == NOTED[text]


def test_sheets_of_a_workbook(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book, path = openpyxl.Workbook(), tmp_path / "t.xlsx"
    book.active.title = "First"
    rows = [[i + 0.012, f"${i}.50", "a", None, "007"] for i in range(1, 8)]
    for row in (["Results"], [], ["x", "z", "kind", None, "id"], *rows, ["<1", "-", "NA"]):
        book.active.append(row)
    for row in (["y"], [1], [2]):
        book.create_sheet("Other").append(row) if len(book.worksheets) == 1 else book["Other"].append(row)
    book.save(path)
    found = read_table(path)
    assert found.column_names == ["x", "z", "kind", "id"] and found["z"].to_pylist() == [*(i + 0.5 for i in range(1, 8)), None]
    assert found["id"].to_pylist() == ["007"] * 7 + [None]
    assert found["x"].to_pylist() == [*(i + 0.012 for i in range(1, 8)), None] and found["kind"].to_pylist()[6:] == ["a", None]
    assert notes_of(found) == [
        "the sheet First is read; `sheet=NAME` reads another: Other",
        "left out above the names in line 3: 'Results'",
        "x: '<1' in line 11 is no number and is taken for a gap",
        "taken for gaps: NA in 1 row of kind",
    ]
    assert as_written(path, found)["z"].to_pylist()[:1] == ["$1.50"] and as_written(path, found)["kind"].to_pylist()[-1] == "NA"
    other = read_table(path, "Other")
    assert other.to_pydict() == {"y": [1, 2]} == as_written(path, other).to_pydict() and notes_of(other) == []
    refuses(r"the sheet of t.xlsx among First, Other, found 'Othr'; did you mean 'Other'", read_table, path, "Othr")
    refuses(r"a workbook with the sheet Other, found t.csv", table, tmp_path, "a\n1\n", sheet="Other")
    refuses("expected a workbook", table, tmp_path, "no workbook", "b.xlsx")
    assert lines_of(found).tolist() == [*range(4, 12)]


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_and_packed_files(tmp_path, coding):
    text = "naïve;b\n1,5;ä\n-3,0;€\n".encode(coding)
    (tmp_path / "A.CSV").write_bytes(text)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(text))
    for file in tmp_path.iterdir():
        assert read_table(file).to_pydict() == {"naïve": [1.5, -3], "b": ["ä", "€"]}


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("t.csv", "x,z\n1,2\n3,4\n", [2, 3]), ("t.csv", "Title\n\nx,z\n\n1,2\n\n   \n3,4\n\n", [5, 8]),
        ("t.csv", 'x,z\n1,"a\nb"\n3,c\n', [2, 4]), ("t.csv", "x,z\n", []), ("t.jsonl", '{"x": 1}\n\n{"x": 2}\n', [1, 3]),
    ],
)  # fmt: skip
def test_lines_of_the_file_in_which_rows_begin(tmp_path, name, text, lines):
    assert lines_of(table(tmp_path, text, name, empty=True)).tolist() == lines
