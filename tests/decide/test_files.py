"""``vergence calibrate``: tables and arrays in, the same rows with decisions out, and a page."""

import hashlib
import io
import json
import sqlite3
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.test_cli import call

from vergence.data.table_files import as_written, read_table

RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=300)
NEW = np.r_[RNG.normal(size=50), 9.0, 9.5]


def csv(path, scores, column="score", **columns):
    lines = [",".join([column, *columns])]
    lines += [",".join(str(v) for v in row) for row in zip(scores, *columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*words):
    found = call("calibrate", *words)
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "parquet"])
def test_every_kind_of_file_gives_the_same_decisions(kind, tmp_path):
    for name, scores in (("good", GOOD), ("new", NEW)):
        path = tmp_path / f"{name}.{kind}"
        match kind:
            case "csv":
                csv(path, scores.tolist())
            case "npy":
                np.save(path, scores)
            case "npz":
                np.savez(path, score=scores)
            case "parquet":
                pq.write_table(pa.table({"score": scores}), path)
    out = tmp_path / "out.csv"
    code, text, _ = run(tmp_path / f"good.{kind}", tmp_path / f"new.{kind}", "--out", out)
    assert code == 0
    table = read_table(out).to_pydict()
    assert [i for i, flag in enumerate(table["flag"]) if flag] == [50, 51]
    assert table["p_value"][51] == pytest.approx(1 / 301)
    np.testing.assert_allclose(table["score"], NEW)
    assert text.startswith("2 of 52 items flagged.\nOn average at most 10 % of flags are false alarms")
    page = (tmp_path / "out.csv.html").read_text()
    assert "2 of 52 items flagged" in page
    assert "<script src" not in page


def test_columns_stay_names_are_shown_and_groups_are_kept_apart(tmp_path):
    ids = [f"item-{i:03d}" for i in range(len(NEW))]
    new = csv(tmp_path / "new.csv", (-NEW).tolist(), "likelihood", name=ids, site=["a", "b"] * 26, q_value=[0.5] * 52)
    good = csv(tmp_path / "good.csv", (-GOOD).tolist(), "likelihood", name=[f"g{i}" for i in range(300)], site=["a", "b"] * 150)
    out = tmp_path / "out.parquet"
    words = (good, new, "--column", "likelihood", "--groups", "site", "--lower-is-anomalous", "--out", out)
    assert run(*words)[0] == 0
    table = read_table(out)
    own = ["likelihood", "name", "site", "q_value"]
    assert table.column_names == [*own, "p_value", "vergence_q_value", "flag", "error"]
    assert set(table["q_value"].to_pylist()) == {0.5}
    assert min(table["p_value"].to_pylist()) == pytest.approx(1 / 151)  # among those of the group
    assert "item-051" in (tmp_path / "out.parquet.html").read_text()


@pytest.mark.parametrize(
    ("good", "new", "options", "message"),
    [
        ("score\n1\n", None, [], "at least 10 calibration"),
        ("score\n1\n2\nnan\n" + "3\n" * 20, None, [], "a score in each row of good.csv, found none in row 3"),
        (None, None, ["--fail-on", "lines"], "--fail-on of flagged, shift, errors or any"),
        (None, None, ["--append", "good.csv"], "apart from what is read"),
        *((None, None, ["--out", file], "apart from what is read") for file in ("good.csv", "new.csv")),
        (None, "other,more\n1,2\n3,4\n", [], "a column score"), (None, "score\na\nb\n", [], "numbers in the column score"),
        (None, None, ["--column", "scroe"], "did you mean 'score'"), (None, None, ["--groups", "place"], "place"),
        (None, None, ["--fdr", "2"], "fdr"), (None, None, ["--fpr", "1e-6"], "calibration items"),
        (None, None, ["--out", "out.txt"], "out.txt"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_is_one_line(good, new, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    if good:
        a.write_text(good)
    if new:
        b.write_text(new)
    before = a.read_bytes(), b.read_bytes()
    code, _, error = run(a, b, *options)
    assert code == 2 and message in error and (a.read_bytes(), b.read_bytes()) == before
    assert len([line for line in error.strip().splitlines() if not line.startswith("note: ")]) == 1
    assert not list(tmp_path.glob("decisions-*"))


def test_items_of_both_files_and_a_file_that_is_no_file_are_refused(tmp_path):
    a = csv(tmp_path / "good.csv", GOOD.tolist(), name=[f"i{i}" for i in range(300)])
    b = csv(tmp_path / "new.csv", NEW.tolist(), name=[f"i{i + 299}" for i in range(52)])
    code, _, error = run(a, b, "--out", tmp_path / "out.csv")
    assert code == 2
    assert "['i299'] in both" in error
    assert run(a, a, "--out", tmp_path / "out.csv")[0] == 2
    assert "no file" in run(tmp_path / "none.npy", b, "--out", tmp_path / "out.csv")[2]
    assert "a folder" in run(tmp_path, b, "--out", tmp_path / "out.csv")[2]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
def test_names_and_own_columns_stay_as_they_are(ending, tmp_path):
    part, version = [f"{i:05d}" for i in range(52)], [f"1.{i % 3}0" for i in range(52)]
    own = {"part": part, "version": version, "what": ["NA", "=1+1"] * 26, "flag": ["keep"] * 52, "size": range(52)}
    good = csv(tmp_path / "good.csv", GOOD.tolist())
    new = csv(tmp_path / "new.csv", (-NEW).tolist(), **own)
    out = tmp_path / f"out.{ending}"
    code, _, error = run(good, new, "--lower-is-anomalous", "--out", out)
    assert code == 0 and "the new file already has flag: the added columns are vergence_flag" in error
    if ending == "npz":
        table = {name: values.tolist() for name, values in np.load(out).items()}
    else:
        typed = read_table(out)
        table = (as_written(out, typed) if ending == "csv" else typed).to_pydict()
    for name in ("part", "version", "what", "flag"):
        assert table[name] == list(own[name])
    assert [str(v) for v in table["size"]] == [str(v) for v in range(52)]  # numbers where nothing is lost
    assert [float(v) for v in table["score"]] == (-NEW).tolist()
    if ending == "csv":
        assert out.read_text().splitlines()[1].startswith(f"{-NEW[0]},00000,1.00,NA,keep,0")


@pytest.mark.parametrize("ending", ["csv", "db"])
def test_one_table_has_the_normal_rows_and_the_new_ones(ending, tmp_path):
    normal = np.random.default_rng(1).permutation(np.r_[np.ones(300), np.zeros(52)]) == 1
    scores = np.empty(352)
    scores[normal], scores[~normal] = GOOD, NEW
    kind = np.where(normal, "DMSO", "a").tolist()
    both = csv(tmp_path / "both.csv", scores.tolist(), kind=kind)
    if ending == "db":
        with sqlite3.connect(tmp_path / "both.db") as file:
            file.execute("create table Experiment (id)")
            file.execute("create table My_Per_Image (score real, kind text)")
            file.executemany("insert into My_Per_Image values (?, ?)", zip(scores.tolist(), kind, strict=True))
        both = tmp_path / "both.db"
    out, two = tmp_path / "one.csv", tmp_path / "two.csv"
    assert run(str(both), "--against-where", "kind = DMSO", "--out", str(out))[0] == 0
    run(str(csv(tmp_path / "g.csv", GOOD.tolist())), str(csv(tmp_path / "n.csv", NEW.tolist())), "--out", str(two))
    one = read_table(out)
    assert one["kind"].to_pylist() == ["a"] * 52 and one["p_value"].to_pylist() == read_table(two)["p_value"].to_pylist()
    gap = csv(tmp_path / "gap.csv", [*scores.tolist()[:-1], ""], kind=[*kind[:-1], "DMSO"])
    assert (
        "row 352" in run(str(gap), "--against-where", "kind = DMSO", "--out", str(out))[2]
    )  # of the file, not of the normal ones
    code, _, error = run(str(both), "--against-where", "kind = water", "--out", str(out))
    assert code == 2 and f"expected normal rows where kind = water, found none in both.{ending}" in error


def test_a_night_without_rows_is_answered(tmp_path):
    good = csv(tmp_path / "good.csv", GOOD.tolist(), name=[f"g{i}" for i in range(300)])
    (tmp_path / "head.csv").write_text("name,score\n")
    (tmp_path / "none.jsonl").write_text("")
    np.save(tmp_path / "none.npy", np.empty(0))
    for new, header in (("head.csv", "name,score,"), ("none.jsonl", "score,"), ("none.npy", "score,")):
        out = tmp_path / f"{new}.out.csv"
        code, text, _ = run(good, tmp_path / new, "--out", out, "--fail-on", "any")
        assert code == 0 and text.startswith("0 items: nothing to decide.\nwrote 0 rows")
        assert out.read_text().split() == [f"{header}p_value,q_value,flag,error"]
        assert "0 items: nothing to decide" in (tmp_path / f"{new}.out.csv.html").read_text()
    assert run(good, tmp_path / "head.csv", "--groups", "name", "--out", tmp_path / "o.parquet")[0] == 0
    assert read_table(tmp_path / "o.parquet", empty=True).column_names[:2] == ["name", "score"]


def test_a_row_without_a_score_has_an_error_and_the_others_their_decision(tmp_path):
    good = csv(tmp_path / "good.csv", GOOD.tolist())
    whole = csv(tmp_path / "whole.csv", NEW.tolist())
    gaps = csv(tmp_path / "gaps.csv", ["nan", "", *NEW.tolist()], name=range(54))
    assert run(good, whole, "--out", tmp_path / "a.csv")[0] == 0
    code, text, error = run(good, gaps, "--out", tmp_path / "b.csv", "--fail-on", "errors")
    assert code == 1 and "failed: 2 errors" in error and "warning: 2 rows skipped" in text and "wrote 54 rows" in text
    a, b = (read_table(tmp_path / name).to_pydict() for name in ("a.csv", "b.csv"))
    assert b["p_value"] == [None, None, *a["p_value"]] and b["flag"] == [0, 0, *a["flag"]]
    assert b["error"][:3] == ["no score: the cell is empty or NaN"] * 2 + [None]
    np.save(tmp_path / "gaps.npy", np.r_[np.nan, np.inf, NEW])
    assert run(good, tmp_path / "gaps.npy", "--out", tmp_path / "c.csv")[0] == 0
    assert read_table(tmp_path / "c.csv").to_pydict()["flag"][:2] == [0, 1]


@pytest.mark.parametrize(
    ("shift", "what", "code"), [(0, "flagged", 1), (0, "shift", 0), (2, "shift", 1), (0, "any", 1), (-20, "flagged", 0)]
)
def test_a_gate_has_a_code(shift, what, code, tmp_path):
    good, new = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", (NEW + shift).tolist())
    found, _, error = run(good, new, "--out", tmp_path / "out.csv", "--fail-on", what)
    assert found == code and ("failed: " in error) == bool(code)
    assert len(read_table(tmp_path / "out.csv")["flag"]) == 52


def test_json_lines_in_and_out(tmp_path, monkeypatch):
    rows = [{"id": f"{i:03d}", "score": s, "tags": [i, 1], "seen": None} for i, s in enumerate(NEW.tolist())]
    lines = "".join(json.dumps(row) + "\n" for row in [*rows, {"id": "\u2028x"}])
    good = csv(tmp_path / "good.csv", GOOD.tolist())
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(lines.encode())))
    code, text, error = run(good, "-", "--fail-on", "flagged")
    assert code == 1 and "2 of 52 items flagged" in error and not list(tmp_path.glob("*.html"))
    found = [json.loads(line) for line in text.splitlines()]
    assert [row["flag"] for row in found] == [0] * 50 + [1, 1, 0]
    assert [{key: row[key] for key in rows[0]} for row in found[:52]] == rows
    assert found[52]["id"] == "\u2028x" and found[52]["p_value"] is None and "no score" in found[52]["error"]
    (tmp_path / "bad.jsonl").write_text('{"score": 1}\n[2]\n')
    assert "in line 2 of bad.jsonl" in run(good, tmp_path / "bad.jsonl", "--out", tmp_path / "o.jsonl")[2]


def test_a_log_tells_what_was_decided_by_what(tmp_path):
    good, new = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    log = tmp_path / "log.jsonl"
    words = ("--out", tmp_path / "out.csv", "--append", log)
    assert run(good, new, *words)[0] == 0
    first = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(first) == 53 and first[0]["items"] == 52 and first[0]["flagged"] == 2 and first[0]["new"] == "new.csv"
    assert {line["calibration_sha256"] for line in first} == {hashlib.sha256(good.read_bytes()).hexdigest()}
    assert {line["fdr"] for line in first} == {0.1} and first[52]["decision"]["flag"] == 1
    with log.open("a") as file:
        file.write('{"time": "20')  # of a call that was killed
    assert run(good, new, *words, "--fpr", "0.05")[0] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[:53] == first and len(lines) == 106 and lines[53]["confidence"] == 0.95 and lines[53]["fdr"] is None
    code, _, error = run(good, new, "--out", tmp_path / "out.csv", "--append", csv(tmp_path / "other.csv", [1]))
    assert code == 2 and "or a log of --append" in error
    assert first[0]["adaptive"] is False and first[0]["groups"] is None
    log.write_text('{"time": "20')  # the first line was torn
    assert run(good, new, *words, "--adaptive")[0] == 0
    assert all(json.loads(line)["adaptive"] for line in log.read_text().splitlines())


def test_a_file_of_others_is_not_overwritten(tmp_path):
    good, new = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    (tmp_path / "d.csv.html").write_text("my notes")
    code, _, error = run(good, new, "--out", tmp_path / "d.csv")
    assert code == 2 and "an earlier page" in error and (tmp_path / "d.csv.html").read_text() == "my notes"
    page = tmp_path / "log.csv.html"
    assert run(good, new, "--out", tmp_path / "log.csv", "--append", page)[0] == 2 and not page.exists()
    other = csv(tmp_path / "other.csv", [1.0], name=["mine"])
    code, _, error = run(good, new, "--out", other)
    assert code == 2 and "no file, or an earlier result" in error and "mine" in other.read_text()
    for _ in range(2):  # results are
        assert run(good, new, "--out", tmp_path / "out.parquet")[0] == 0
