"""The ledger: every row says where it comes from, and old rows that do not are marked."""

import argparse
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from vergence.utils import version

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LEDGERS = sorted(file.stem for file in RESULTS.glob("*.jsonl") if file.stem != "notes")
sys.path.insert(0, str(ROOT / "benchmarks"))

import ledger  # noqa: E402


def read(name):
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", LEDGERS)
def test_every_dated_row_says_where_it_comes_from(name):
    """Rows without a date were written before rows had one."""
    for number, row in enumerate(read(name), 1):
        if "date" in row:
            assert [field for field in ledger.FIELDS if field not in row] == [], f"{name}.jsonl, line {number}"
            assert datetime.fromisoformat(row["date"]).tzinfo is not None
            assert {"python", "torch", "scikit-learn"} <= set(row["versions"])
            assert "tiny" not in row["command"].split(), "a tiny run measures nothing"


@pytest.mark.parametrize("name", LEDGERS)
def test_rows_without_a_date_come_before_all_others(name):
    dated = ["date" in row for row in read(name)]
    assert dated == sorted(dated)


def test_notes_name_lines_that_exist():
    for note in read("notes"):
        lines = len(read(note["ledger"]))
        assert note["note"].endswith(".")
        for first, last in note["lines"]:
            assert 1 <= first <= last <= lines


def committed(name):
    shown = subprocess.run(
        ["git", "show", f"HEAD:benchmarks/results/{name}.jsonl"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return shown.stdout.splitlines() if shown.returncode == 0 else None


@pytest.mark.parametrize("name", LEDGERS)
def test_rows_are_only_added(name):
    before = committed(name)
    if before is None:
        pytest.skip("the ledger is not in a git checkout")
    assert (RESULTS / f"{name}.jsonl").read_text().splitlines()[: len(before)] == before


def test_a_new_row_has_all_fields(tmp_path, capsys):
    row = ledger.row({"value": 1.5}, seed=3, peers=("scipy", "no-such-package"))
    ledger.add(tmp_path / "rows.jsonl", row)
    assert ledger.rows(tmp_path / "rows.jsonl") == [row]
    assert set(ledger.FIELDS) | {"value"} == set(row)
    assert {"python", "torch", "scikit-learn", "numpy", "scipy"} == set(row["versions"])
    assert row["seed"] == 3 and row["device"].startswith("cpu, ") and row["threads"] >= 1
    assert json.loads(capsys.readouterr().out) == row


def test_a_stopped_benchmark_continues(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert not ledger.holds(file, setting="a") and not ledger.holds(None, setting="a")
    ledger.add(file, ledger.row({"setting": "a", "sizes": (1, 2)}, seed=0))
    assert ledger.holds(file, setting="a", sizes=(1, 2))
    assert not ledger.holds(file, setting="b")
    ledger.add(file, ledger.row({"setting": "b"}, seed=0) | {"commit": "0123456789ab"})
    assert not ledger.holds(file, setting="b"), "a row of another commit is measured again"


def test_a_tiny_run_does_not_write_into_the_ledger(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x.py", "--tiny"])
    assert ledger.parse(argparse.ArgumentParser(), "joint").out is None
    monkeypatch.setattr(sys, "argv", ["x.py"])
    assert ledger.parse(argparse.ArgumentParser(), "joint").out == RESULTS / "joint.jsonl"
    monkeypatch.setattr(sys, "argv", ["x.py", "--tiny", "--out", str(RESULTS / "joint.jsonl")])
    with pytest.raises(SystemExit):
        ledger.parse(argparse.ArgumentParser(), "joint")
    assert "measure nothing" in capsys.readouterr().err


def test_a_data_root_that_is_no_folder_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-root", default="data")
    monkeypatch.setattr(sys, "argv", ["x.py", "--data-root", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as stopped:
        ledger.parse(parser)
    assert stopped.value.code == 2 and "expected --data-root to be a folder" in capsys.readouterr().err


def test_command_lines_name_no_folder_of_this_machine():
    given = ["/a/experiments/bench/run.py", "step", "--out=/tmp/x", "--rounds", "3"]
    assert ledger.command_line(given) == "python experiments/bench/run.py step --rounds 3"
    given = ["/a/benchmarks/joint.py", "--data-root=/data", "--only", "gmje, K = 3", "--runs", "/tmp/runs"]
    assert ledger.command_line(given) == "python benchmarks/joint.py --data-root DATA --only 'gmje, K = 3'"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one source file that stands for the library's, and a ledger."""
    source, results = tmp_path / "src" / "version.py", tmp_path / "benchmarks" / "results"
    source.parent.mkdir()
    results.mkdir(parents=True)
    source.write_text("x = 1\n")
    (results / "rows.jsonl").write_text("")

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    monkeypatch.setattr(version, "__file__", str(source))
    version.checkout.cache_clear()
    yield tmp_path
    version.checkout.cache_clear()


def test_results_do_not_make_a_checkout_dirty(checkout):
    (checkout / "benchmarks" / "results" / "rows.jsonl").write_text("{}\n")
    commit, dirty = version.checkout()
    assert len(commit) == 12 and dirty is False and version.commit() == commit


def test_changed_code_makes_a_checkout_dirty(checkout):
    (checkout / "src" / "version.py").write_text("x = 2\n")
    commit, dirty = version.checkout()
    assert dirty is True and version.commit() == f"{commit}+"


def test_a_wheel_inside_another_checkout_names_no_commit(checkout, monkeypatch):
    """A library that is installed in a user's project must not take the project's commit for its own."""
    installed = checkout / "src" / "site-packages" / "version.py"
    installed.parent.mkdir()
    installed.write_text("x = 1\n")
    monkeypatch.setattr(version, "__file__", str(installed))
    assert version.checkout() == (None, None) and version.commit() is None
