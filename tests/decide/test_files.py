"""``vergence calibrate``: tables and arrays in, the same rows with decisions out, and a page."""

import dataclasses

import numpy as np
import pytest

from vergence.cli.commands import main
from vergence.data.tables import read_table

RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=300)
NEW = np.r_[RNG.normal(size=50), 9.0, 9.5]


def csv(path, scores, column="score", **columns):
    lines = [",".join([column, *columns])]
    lines += [",".join(str(v) for v in row) for row in zip(scores, *columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(capsys, *words):
    code = 0
    try:
        main(["calibrate", *map(str, words)])
    except SystemExit as error:
        code = error.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "parquet"])
def test_every_kind_of_file_gives_the_same_decisions(kind, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    code, text, _ = run(capsys, tmp_path / f"good.{kind}", tmp_path / f"new.{kind}", "--out", out)
    assert code == 0
    table = read_table(out).to_pydict()
    assert [i for i, flag in enumerate(table["flag"]) if flag] == [50, 51]
    assert table["p_value"][51] == pytest.approx(1 / 301)
    np.testing.assert_allclose(table["score"], NEW)
    assert text.startswith("2 of 52 items flagged at a false-discovery rate of 0.1")
    page = (tmp_path / "out.csv.html").read_text()
    assert "2 of 52 items flagged" in page
    assert "<script src" not in page


def test_columns_stay_names_are_shown_and_groups_are_kept_apart(tmp_path, capsys):
    ids = [f"item-{i:03d}" for i in range(len(NEW))]
    new = csv(tmp_path / "new.csv", (-NEW).tolist(), "likelihood", name=ids, site=["a", "b"] * 26, q_value=[0.5] * 52)
    good = csv(tmp_path / "good.csv", (-GOOD).tolist(), "likelihood", name=[f"g{i}" for i in range(300)], site=["a", "b"] * 150)
    out = tmp_path / "out.parquet"
    words = (good, new, "--column", "likelihood", "--groups", "site", "--lower-is-stranger", "--out", out)
    assert run(capsys, *words)[0] == 0
    table = read_table(out)
    assert table.column_names == ["likelihood", "name", "site", "p_value", "q_value", "flag"]
    assert min(table["p_value"].to_pylist()) == pytest.approx(1 / 151)  # among those of the group
    assert "item-051" in (tmp_path / "out.parquet.html").read_text()


def test_a_rate_of_false_alarms_is_certified(tmp_path, capsys):
    paths = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    code, text, _ = run(capsys, *paths, "--fpr", "0.05", "--out", tmp_path / "out.csv")
    assert code == 0
    assert "with confidence 0.95" in text


@pytest.mark.parametrize(
    ("good", "new", "options", "message"),
    [
        ("score\n1\n", None, [], "at least 10 calibration"),
        (None, "score\n1\nnan\n", [], "expected"),
        (None, "other,more\n1,2\n3,4\n", [], "a column score"),
        (None, "score\na\nb\n", [], "numbers in the column score"),
        (None, None, ["--column", "scroe"], "did you mean 'score'"),
        (None, None, ["--groups", "place"], "place"),
        (None, None, ["--fdr", "2"], "fdr"),
        (None, None, ["--fpr", "1e-6"], "calibration items"),
        (None, None, ["--out", "out.txt"], "out.txt"),
    ],
)
def test_what_cannot_be_decided_is_one_line(good, new, options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a, b = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    if good:
        a.write_text(good)
    if new:
        b.write_text(new)
    code, _, error = run(capsys, a, b, *options)
    assert code == 2
    assert message in error
    assert len([line for line in error.strip().splitlines() if not line.startswith("note: ")]) == 1
    assert not list(tmp_path.glob("decisions-*"))


def test_items_of_both_files_and_a_file_that_is_no_file_are_refused(tmp_path, capsys):
    a = csv(tmp_path / "good.csv", GOOD.tolist(), name=[f"i{i}" for i in range(300)])
    b = csv(tmp_path / "new.csv", NEW.tolist(), name=[f"i{i + 299}" for i in range(52)])
    code, _, error = run(capsys, a, b, "--out", tmp_path / "out.csv")
    assert code == 2
    assert "['i299'] in both" in error
    assert run(capsys, a, a, "--out", tmp_path / "out.csv")[0] == 2
    assert "no file" in run(capsys, tmp_path / "none.npy", b, "--out", tmp_path / "out.csv")[2]
    assert "a folder" in run(capsys, tmp_path, b, "--out", tmp_path / "out.csv")[2]


@pytest.mark.parametrize("name", ["good.csv", "new.csv"])
def test_files_that_are_read_are_never_overwritten(name, tmp_path, capsys):
    a, b = csv(tmp_path / "good.csv", GOOD.tolist()), csv(tmp_path / "new.csv", NEW.tolist())
    before = (tmp_path / name).read_bytes()
    code, _, error = run(capsys, a, b, "--out", tmp_path / name)
    assert code == 2 and "other than the files that are read" in error
    assert (tmp_path / name).read_bytes() == before


def test_the_page_has_both_histograms_and_the_curve(tmp_path):
    from vergence.decide import calibrate
    from vergence.decide.page import write_decisions

    found = calibrate(GOOD, NEW)
    columns = {**found.columns, "name": [f"<b>{i}" for i in range(len(NEW))], "score": NEW}
    whole = dataclasses.replace(found, columns=columns)
    text = write_decisions(tmp_path / "p.html", whole, name="new & old", calibration=GOOD).read_text()
    assert text.count('class="figure"') == 2
    assert "\\u003cb\\u003e51" in text
    assert "new &amp; old" in text
    assert "fitted to neither" in text
