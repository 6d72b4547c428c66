import csv
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from vergence.utils.files import HOST, open_table, original, remove_leftovers, replacing


def parts():
    rng = np.random.default_rng(0)
    for n in (3, 1, 5):
        yield {
            "name": [f'ä {i}, "{n}"' for i in range(n)],
            "score": rng.normal(size=n).astype(np.float32),
            "z": rng.normal(size=(n, 4)).astype(np.float32),
        }


def whole():
    given = list(parts())
    return {
        "name": [x for p in given for x in p["name"]],
        "score": np.concatenate([p["score"] for p in given]),
        "z": np.concatenate([p["z"] for p in given]),
    }


def write(path):
    with open_table(path) as table:
        for columns in parts():
            table.append(columns)


def test_npz_holds_what_was_appended(tmp_path):
    write(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as found:
        assert found["name"].tolist() == whole()["name"]
        assert np.array_equal(found["score"], whole()["score"]) and np.array_equal(found["z"], whole()["z"])
    assert [p.name for p in tmp_path.iterdir()] == ["t.npz"]


def test_npz_holds_a_matrix_of_texts(tmp_path):
    rows = np.array([["a", "bc"], ["", "d"]])
    with open_table(tmp_path / "t.npz") as table:
        table.append({"x": rows[:1]})
        table.append({"x": rows[1:]})
    with np.load(tmp_path / "t.npz") as found:
        assert found["x"].tolist() == rows.tolist()


def test_csv_holds_what_was_appended(tmp_path):
    write(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["name"] for r in rows] == whole()["name"]
    assert list(rows[0]) == ["name", "score", "z_0", "z_1", "z_2", "z_3"]
    assert np.allclose([float(r["z_3"]) for r in rows], whole()["z"][:, 3], rtol=1e-6)


FORMULAS = ["=1+1.png", "+1", "-2+3.png", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-", "'"]
FORMULAS += ["'tis.png", "a=1.png", "", "cat.png", "-"]


def test_no_text_of_a_csv_is_a_formula_and_each_comes_back(tmp_path):
    score = np.array([-1.5, float("-inf"), *range(len(FORMULAS) - 2)])
    with open_table(tmp_path / "t.csv") as table:
        table.append({"name": FORMULAS, "=label": -np.arange(len(FORMULAS)), "score": score, "known": score > 0})
    with (tmp_path / "t.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["name", "'=label", "score", "known"]
    assert not any(row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n")) for row in rows)
    assert [original(row[0]) for row in rows] == FORMULAS
    assert [row[0] for row in rows][-5:] == ["'tis.png", "a=1.png", "", "cat.png", "'-"]
    assert [int(row[1]) for row in rows] == [-i for i in range(len(FORMULAS))]
    assert [float(row[2]) for row in rows] == score.tolist() and rows[0][2] == "-1.5"


def test_parquet_holds_what_was_appended(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    write(tmp_path / "t.parquet")
    found = parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert found["name"] == whole()["name"]
    assert np.array_equal(np.asarray(found["z"], dtype=np.float32), whole()["z"])


@pytest.mark.parametrize("name", ["t.txt", "t", "no/folder/t.csv"])
def test_unusable_paths_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot write"), open_table(tmp_path / name):
        pass


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "no" / "a.json") as part:
        part.write_text("new")
    assert caught.value.filename == str(tmp_path / "no" / "a.json") and ".part" not in str(caught.value)


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a.json") as part:
        part.write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and (tmp_path / "a.json").read_text() == "old"


def test_a_full_disk_keeps_the_rows_so_far_and_says_where(tmp_path):
    code = f"""
import resource, sys, numpy as np
from pathlib import Path
from vergence.utils.files import open_table
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with open_table(Path({str(tmp_path / "t.csv")!r})) as table:
        for i in range(1000):
            table.append({{"name": [str(i)] * 100, "z": np.full((100, 8), 0.123456)}})
except ValueError as error:
    print(error)
    sys.exit(2)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    assert "t.partial.csv" in found.stdout and found.stdout.count("\n") == 1
    kept = (tmp_path / "t.partial.csv").read_text().splitlines()
    assert len(kept) > 500 and kept[0].startswith("name,z_0")
    assert not (tmp_path / "t.csv").exists()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


def test_temporary_files_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [tmp_path / f".a.json.{HOST}.{dead.pid}.part", tmp_path / f".t.npz.{HOST}.{dead.pid}.parts"]
    left[0].write_text("half")
    left[1].mkdir()
    other = [tmp_path / f".b.json.{HOST}.{dead.pid}.part", tmp_path / f".a.json.another-host.{dead.pid}.part"]
    other += [tmp_path / f".a.json.{HOST}.{os.getppid()}.part", tmp_path / ".a.json.part"]
    for file in other:
        file.write_text("half")
    with replacing(tmp_path / "a.json") as part:
        part.write_text("whole")
    assert not left[0].exists() and left[1].exists() and all(file.exists() for file in other)
    remove_leftovers(tmp_path)
    assert not left[1].exists() and [file.exists() for file in other] == [False, True, True, True]


@pytest.mark.parametrize("name", ["t.csv", "t.npz"])
def test_sigterm_removes_temporary_files_at_once(tmp_path, name):
    code = f"""
import time, numpy as np
from pathlib import Path
from vergence.utils.files import open_table
with open_table(Path({str(tmp_path / name)!r})) as table:
    table.append({{"z": np.zeros((100, 8))}})
    print("open", flush=True)
    for _ in range(600):  # a signal just before a long sleep would wait for its end
        time.sleep(0.1)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n" and list(tmp_path.iterdir())
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM and said == ""
    assert list(tmp_path.iterdir()) == []
