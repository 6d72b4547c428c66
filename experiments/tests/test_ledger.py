"""The ledger: every row says where it comes from, rows are only added, and experiments import public names."""

import argparse
import ast
import importlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from experiments import ledger, runner

from vergence.utils import version

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*/results.jsonl"))
SCRIPTS = sorted(path for path in (ROOT / "experiments").rglob("*.py") if not {"programs", "tests"} & {*path.parts})
JOINT = ROOT / "experiments" / "joint" / "results.jsonl"
LEDGERS = sorted({row["ledger"] for file in FILES for row in ledger.read(file)})


@pytest.mark.parametrize("name", LEDGERS)
def test_every_dated_row_says_where_it_comes_from(name):
    """Rows without a date were written before rows had one, and come first."""
    rows = ledger.rows(name)
    dated = [row for row in rows if "date" in row]
    for row in dated:
        assert [field for field in ledger.ORIGIN if field not in row] == []
        assert datetime.fromisoformat(row["date"]).tzinfo is not None
        assert row["versions"].startswith("python ") and "torch" in row["versions"]
        assert "tiny" not in row["command"].split(), "a tiny run measures nothing"


def test_notes_name_rows_that_exist():
    for note in ledger.read(ROOT / "experiments" / "notes.jsonl"):
        assert note["note"].endswith(".")
        assert all(1 <= first <= last <= len(ledger.rows(note["ledger"])) for first, last in note["lines"])


def test_the_ledger_stays_small():
    files = [*FILES, *(ROOT / "experiments").glob("*.jsonl")]
    assert sum(file.stat().st_size for file in files) <= 1_690_000


def exported(module):
    """Returns the public names of a module of the library."""
    return set(getattr(importlib.import_module(module), "__all__", ()))


INNER = {"objective_scores", "columns_of"}  # of scoring, whose parts `speed` and `one_class` measure by themselves
INNER |= {"cells", "pooled", "normalized_patches", "whitening"}  # of the default encoder, whose parts `background` draws


def test_every_experiment_imports_public_names():
    for path in SCRIPTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vergence"):
                folder = ROOT / "src" / Path(*node.module.split("."))
                public = exported(node.module) | {file.stem for file in folder.glob("*")} | INNER
                assert {name.name for name in node.names} <= public, (path, node.module)


@pytest.mark.slow
def test_tables_agree_with_the_ledger():
    done = subprocess.run([sys.executable, "-m", "experiments.tables", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_new_row_has_all_fields(tmp_path, capsys):
    row = ledger.row({"value": 1.5}, seed=3, peers=("scipy", "no-such-package"))
    out = ledger.Out(tmp_path / "rows.jsonl", "mine")
    ledger.add(out, row)
    (stored,) = ledger.rows(out)
    assert {name: stored[name] for name in row} == row and stored["ledger"] == "mine"
    assert {*ledger.ORIGIN, "value", "seed"} == set(row)
    assert [part.split()[0] for part in row["versions"].split(", ")] == ["python", "torch", "scikit-learn", "numpy", "scipy"]
    assert row["device"].startswith("cpu, ") and row["threads"] >= 1
    assert json.loads(capsys.readouterr().out) == {"value": 1.5, "seed": 3}


def parsed(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["x.py", *map(str, words)])
    options = {
        "data_root": "data",
        "seeds": [0, 1],
        "set": runner.SETTINGS,
        "limit": int,
        "shown": runner.hidden(5),
        "choose": False,
    }
    return runner.parse("", "joint", options, {"seeds": runner.first, "limit": 3})


def test_options_follow_from_their_defaults(monkeypatch):
    a = parsed(monkeypatch, "--seeds", 4, 5, "--set", "lr=0.5", "--set", "jitter=[1, 2]")
    assert (a.seeds, a.set, a.limit, a.shown) == ([4, 5], {"lr": 0.5, "jitter": (1, 2)}, None, 5)
    a = parsed(monkeypatch, "--tiny", "--seeds", 4, 5)
    assert (a.seeds, a.limit) == ([4], 3)


def test_a_tiny_run_does_not_write_into_the_ledger(monkeypatch, capsys):
    assert parsed(monkeypatch, "--tiny").out is None and parsed(monkeypatch, "--choose").out is None
    assert parsed(monkeypatch).out == ledger.Out(JOINT, "joint")
    with pytest.raises(SystemExit):
        parsed(monkeypatch, "--tiny", "--out", JOINT)
    assert "measure nothing" in capsys.readouterr().err


def test_a_data_root_that_is_no_folder_is_refused_before_the_work(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        parsed(monkeypatch, "--data-root", tmp_path / "none")
    assert stopped.value.code == 2 and "expected --data-root to be a folder" in capsys.readouterr().err


def test_the_runner_measures_what_the_ledger_lacks(tmp_path):
    out = ledger.Out(tmp_path / "rows.jsonl", "mine")

    def cells(a):
        return [{"setting": name, "sizes": (1, 2), "seed": 0} for name in a.settings]

    def measure(a, cell):
        assert a.scratch.is_dir()
        return [{"value": n} for n in range(2)] if cell["setting"] == "a" else {"value": 7}

    for settings, expected in ((["a"], [0, 1]), (["a", "b"], [0, 1, 7]), (["b"], [0, 1, 7])):
        runner.run(argparse.Namespace(out=out, settings=settings), cells, measure)
        assert [row["value"] for row in ledger.rows(out)] == expected
    assert ledger.holds(out, setting="a", sizes=(1, 2)) and not ledger.holds(None, setting="a")
    ledger.add(out, ledger.row({"setting": "c"}, seed=0) | {"commit": "0123456789ab"})
    assert not ledger.holds(out, setting="c"), "a row of another commit is measured again"


def test_command_lines_name_no_folder_of_this_machine():
    given = ["/a/experiments/joint/run.py", "--data-root=/data", "--only", "gmje, K = 3", "--runs", "/tmp/runs"]
    assert ledger.command_line(given) == "python -m experiments.joint.run --data-root DATA --only 'gmje, K = 3'"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one source file that stands for the library's, and a ledger."""
    source, results = tmp_path / "src" / "version.py", tmp_path / "experiments" / "joint"
    source.parent.mkdir()
    results.mkdir(parents=True)
    source.write_text("x = 1\n")
    (results / "results.jsonl").write_text("")

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
    (checkout / "experiments" / "joint" / "results.jsonl").write_text("{}\n")
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
