"""Tables, and rows kept in parts: a call after a stop or a full disk writes the same bytes."""

import contextlib
import csv
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from tests.refusals import refuses

from vergence.data.table_files import read_table
from vergence.utils import parts
from vergence.utils.parts import open_parts, original, write_table

JOB = {"job": "test", "model": "m"}
N, BATCH = 60, 4


def batch(start):
    """Rows of the items start .. start + 3; every seventh item has none."""
    items = [i for i in range(start, start + BATCH) if i % 7]
    rng = np.random.default_rng(start)
    columns = {
        "name": ["ä" * (i % 5) + f"{i}" for i in items],
        "score": rng.normal(size=len(items)),
        "z": rng.normal(size=(len(items), 3)),
    }
    return columns, BATCH, [(str(i), "seven") for i in range(start, start + BATCH) if i % 7 == 0]


def write(path, *, stop=N, job=JOB):
    """Writes all rows, or dies before the item ``stop``; returns the first item that was computed."""
    with open_parts(path, job, every=10) as kept:
        first = kept.done
        for start in range(first, N, BATCH):
            if start >= stop:
                raise KeyboardInterrupt
            kept.append(*batch(start))
        assert kept.skipped == [(str(i), "seven") for i in range(0, N, 7)]
    return first


def test_nothing_is_left_of_a_job_that_stopped_before_its_first_part(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t.csv", stop=8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("manifest", [None, "", "[]", '{"job": "test", "model": "other"}'])
def test_parts_of_another_job_are_discarded_with_one_line(tmp_path, manifest, capsys):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t.csv", stop=40)
    if manifest is not None:
        (tmp_path / ".t.csv.parts" / "manifest.json").write_text(manifest)
    assert write(tmp_path / "t.csv", job=JOB if manifest is not None else {**JOB, "model": "n"}) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "starting anew, since" in said[0] and "model" in said[0]
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "gone", "text"])
def test_a_damaged_part_and_all_behind_it_are_computed_again(tmp_path, damage):
    write(tmp_path / "whole.npz")
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "t.npz", stop=48)
    part = tmp_path / ".t.npz.parts" / "000001.npz"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 4
    part.write_bytes({"flipped": bytes(content), "short": bytes(content[:200])}.get(damage, b""))
    if damage == "gone":
        part.unlink()
    if damage == "text":
        names = np.load(tmp_path / ".t.npz.parts" / "000000.npz").files
        with zipfile.ZipFile(part, "w") as archive:
            for name in names:
                archive.writestr(name, "16")  # no array of NumPy's
    assert write(tmp_path / "t.npz") == 12
    assert (tmp_path / "t.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path):
    with open_parts(tmp_path / "t.csv", JOB, every=10) as kept:
        for start in range(0, N, BATCH):
            kept.append(*batch(start))
        refuses(f"t.csv is in use by process {os.getpid()}", write, tmp_path / "t.csv")
    write(tmp_path / "whole.csv")
    assert (tmp_path / "t.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def run(code, folder):
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.utils.test_parts import *; from pathlib import Path\n" + code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_a_full_disk_keeps_the_parts_and_says_how_to_go_on(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
try:
    write(Path({str(path)!r}))
except ValueError as error:
    print(error)
    sys.exit(2)
"""
    process = run(code.replace("(LIMIT, LIMIT)", "(2200, 2200)"), tmp_path)  # parts fit, all of them do not
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and errors == "", errors
    assert said.count("\n") == 1 and str(path) in said and "60 items are kept in" in said and "repeat the command" in said
    assert [p.name for p in tmp_path.iterdir()] == [f".{path.name}.parts"]
    assert all(p.name[0] != "." for p in (tmp_path / f".{path.name}.parts").iterdir())
    write(tmp_path / f"whole.{ending}")
    assert write(path) == 60
    assert path.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    for limit in (100, 10):  # not even the manifest; not even the words of the lock
        process = run(code.replace("(LIMIT, LIMIT)", f"({limit}, {limit})"), tmp_path)
        said, errors = process.communicate(timeout=60)
        assert process.returncode == 2 and said.count("\n") == 1 and "free space, or choose another --out" in said, errors
        assert str(path) in said and not (tmp_path / f".{path.name}.parts").exists()


class Ranks:
    """The share of all rows that are at most as large."""

    needs, names, order = ("value",), ("rank",), ("rank", "name")

    def __init__(self):
        self.seen = []

    def see(self, columns):
        self.seen += columns["value"].tolist()

    def columns(self, columns):
        return {"rank": (np.asarray(self.seen)[:, None] <= columns["value"]).mean(0)}


@pytest.mark.parametrize("ending", ["npz", "csv"])
def test_derived_columns_are_computed_when_all_rows_are_there_also_after_a_stop(tmp_path, ending):
    value = np.random.default_rng(0).normal(size=10)
    out = tmp_path / f"o.{ending}"
    for stop in (5, None):
        with contextlib.suppress(KeyboardInterrupt), open_parts(out, {"job": "x"}, every=2, derived=Ranks()) as parts:
            for i in range(parts.done, 10):
                if i == stop:
                    raise KeyboardInterrupt
                parts.append({"name": [str(i)], "value": value[i : i + 1]}, 1)
    if ending == "npz":
        with np.load(out) as found:
            assert found.files == ["rank", "name", "value"] and (np.argsort(found["rank"]) == np.argsort(value)).all()
            assert found["rank"].max() == 1.0 and found["rank"].min() == 0.1
    else:
        assert out.read_text().splitlines()[0] == "rank,name,value" and len(out.read_text().splitlines()) == 11


FORMULAS = ["=1+1.png", "+1", "-2+3.png", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-", "'"]
FORMULAS += ["'tis.png", "a=1.png", "", "cat.png", "-"]


def test_no_text_of_a_csv_is_a_formula_and_each_comes_back(tmp_path):
    score = np.array([-1.5, float("-inf"), *range(len(FORMULAS) - 2)])
    write_table(tmp_path / "t.csv", {"name": FORMULAS, "=label": -np.arange(len(FORMULAS)), "score": score, "known": score > 0})
    with (tmp_path / "t.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["name", "'=label", "score", "known"]
    assert not any(row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for row in rows)
    assert [original(row[0]) for row in rows] == FORMULAS
    assert [row[0] for row in rows][-5:] == ["'tis.png", "a=1.png", "", "cat.png", "'-"]
    assert [int(row[1]) for row in rows] == [-i for i in range(len(FORMULAS))]
    assert [float(row[2]) for row in rows] == score.tolist() and rows[0][2] == "-1.5"


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_a_table_holds_what_was_written(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(parts, "EVERY", 4)
    rng = np.random.default_rng(0)
    columns = {
        "name": [f'ä {i}, "{i}"' for i in range(9)],
        "score": rng.normal(size=9).astype(np.float32),
        "z": rng.normal(size=(9, 4)),
    }
    columns["text"] = np.array([["a", "b" * i] for i in range(9)]) if ending == "npz" else columns["name"]
    write_table(tmp_path / f"t.{ending}", columns)
    if ending == "npz":
        with np.load(tmp_path / "t.npz") as archive:
            assert all(archive[name].tolist() == np.asarray(values).tolist() for name, values in columns.items())
    else:
        table = read_table(tmp_path / f"t.{ending}").to_pydict()
        z = [table[f"z_{d}"] for d in range(4)] if ending == "csv" else np.transpose(table["z"])
        assert table["name"] == columns["name"] and np.allclose(z, columns["z"].T, rtol=1e-6)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["t.txt", "t", "no/folder/t.csv"])
def test_unusable_paths_are_refused(tmp_path, name):
    refuses("expected", write_table, tmp_path / name, {"x": ["a"]})


def test_names_that_look_like_formulas_are_read_back_and_a_table_without_rows_has_names(tmp_path):
    names = ["-front.png", "+1", "=a", "@b", "'=c", "plain"]
    write_table(tmp_path / "t.csv", {"path": names, "=n": [1, 2, 3, 4, 5, 6]})
    assert read_table(tmp_path / "t.csv").to_pydict() == {"path": names, "=n": [1, 2, 3, 4, 5, 6]}
    write_table(tmp_path / "e.csv", {"path": [], "reason": []})
    assert (tmp_path / "e.csv").read_text().split() == ["path,reason"]
