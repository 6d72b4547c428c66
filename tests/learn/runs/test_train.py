"""Starting a training: where it may write, and what it refuses before it does."""

import copy
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import forked
from tests.refusals import refuses

import vergence
from vergence.data.config import DataConfig
from vergence.learn.training.config import RunConfig

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 256, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.mark.parametrize("out", ["data", "."])
def test_a_run_folder_that_holds_the_data_is_refused(tmp_path, out, monkeypatch):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.zeros((20, 3), dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    refuses("apart from what is read", vergence.train, "data/x.npy", out=out, objective="vje", **QUICK)
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["x.npy"]


def test_a_run_finds_its_own_data_from_any_folder(tmp_path, monkeypatch, capsys):
    x = np.random.default_rng(0).normal(size=(2, 300, 5)).astype(np.float32)
    for part, values in zip(("a", "b"), x, strict=True):
        (tmp_path / part).mkdir()
        np.save(tmp_path / part / "x.npy", values)
    monkeypatch.chdir(tmp_path / "a")
    run = vergence.train("x.npy", out=tmp_path / "run", objective="vje", **QUICK)
    assert run.folder.config.data.source == str(tmp_path / "a" / "x.npy")
    monkeypatch.chdir(tmp_path / "b")  # which has other data of this name
    assert vergence.evaluate(run, probes=False).protocol.note.count("changed") == 0
    assert vergence.train(tmp_path / "a" / "x.npy", out=tmp_path / "run", resume=True, **QUICK).folder.path == tmp_path / "run"
    refuses("source was", vergence.train, "x.npy", out=tmp_path / "run", resume=True, **QUICK)


def test_a_run_whose_data_has_grown_is_evaluated_on_items_that_it_does_not_know(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x[:300])
    run = vergence.train(tmp_path / "x.npy", out=tmp_path / "run", objective="vje", **{**QUICK, "limit": None})
    np.save(tmp_path / "x.npy", x)
    record = vergence.evaluate(run, probes=False)
    printed = capsys.readouterr().err
    assert "has changed since the training: 320 training and 80 test items instead of 240 and 60" in printed
    left = int(printed.rpartition("; ")[2].partition(" ")[0].replace(",", ""))
    assert 0 < left < 80 and record.protocol.test == 80 - left and f"{left} test items that it knows" in record.protocol.note
    (tmp_path / "x.npy").unlink()
    refuses("expected data at", vergence.evaluate, run, probes=False)


def test_no_data_is_named(tmp_path):
    for source in (None, "", " "):
        refuses("expected data, found none", vergence.train, source, out=tmp_path / "run", objective="vje", **QUICK)
    refuses("expected data", vergence.train, RunConfig(data=DataConfig(source="")), out=tmp_path / "run")


@pytest.mark.slow
def test_a_second_training_and_a_resume_beside_a_running_one_are_refused(tmp_path):
    run = tmp_path / "run"
    arguments = ["digits", "--out", str(run), "--recipe", "vje_small", "--epochs", "400", "--device", "cpu"]
    arguments += ["--set", "checkpoint_seconds=1e9"]
    process = forked.popen("train", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None
        refuses(f"in use by process {process.pid} on ", vergence.train, out=run, resume=True)
        refuses(f"in use by process {process.pid} on ", vergence.train, "digits", out=run, objective="vje", **QUICK)
    finally:
        process.kill()
        process.wait()


def test_a_run_that_died_before_its_first_checkpoint_is_resumed_from_step_0(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", objective="vje", **QUICK)
    before = run.folder.metrics()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "model.safetensors").unlink()
    resumed = vergence.train(out=tmp_path / "run", resume=True)
    after = resumed.folder.metrics()
    assert [(row["step"], row["loss"]) for row in after] == [(row["step"], row["loss"]) for row in before]
    assert "training starts again from step 0" in (tmp_path / "run" / "log.txt").read_text()
    assert (tmp_path / "run" / "checkpoints" / "last.pt").exists()


def test_a_finished_run_leaves_no_lock_and_no_temporary_files(tmp_path):
    vergence.train("digits", out=tmp_path / "run", objective="vje", **QUICK)
    found = {p.name for p in (tmp_path / "run").iterdir()}
    files = {"config.json", "metrics.jsonl", "checkpoints", "model.safetensors", "detector.safetensors", "checksums.json"}
    assert found - {"log.txt"} == files  # the log is there if a training of three steps warns of its embedding
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["last.pt"]


def test_other_data_than_the_run_started_with_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", encoder="mlp", **{**QUICK, "limit": None})
    np.save(tmp_path / "x.npy", x[:, :5])
    refuses(r"found shape \(5,\) instead of \(6,\)", vergence.train, out=tmp_path / "run", resume=True)


def other_weights(state):
    state["model"] = {name: torch.zeros(3) for name in state["model"]}


def another_kind(state):
    for kept in state["optimizer"]["state"].values():
        kept["momentum_buffer"] = kept.pop("exp_avg")
        del kept["exp_avg_sq"], kept["step"]


def a_foreign_parameter(state):
    state["optimizer"]["state"][10**6] = state["optimizer"]["state"][0]


def other_shapes(state):
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(2)


def far_ahead(state):
    state["step"] = 10**9


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("trained") / "run", objective="vje", **QUICK).folder


DAMAGES = [other_weights, another_kind, a_foreign_parameter, other_shapes, far_ahead]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_of_another_training_is_one_line(trained, damage):
    state = trained.load_checkpoint()
    state["step"] = 2
    before = copy.deepcopy(state)
    damage(state)
    trained.save_checkpoint(state)
    refuses(r"does not fit the run's description|at most 3 steps", vergence.train, out=trained.path, resume=True)
    trained.save_checkpoint(before)


def test_a_checkpoint_of_another_optimizers_settings_is_trained_with_the_runs_own(trained):
    state = trained.load_checkpoint()
    state["step"] = 2
    trained.save_checkpoint(state)
    expected = vergence.train(out=trained.path, resume=True).method.state_dict()
    state["optimizer"]["param_groups"][0] |= {"weight_decay": 1e3, "betas": "x", "capturable": [], "eps": 1e9}
    trained.save_checkpoint(state)
    found = vergence.train(out=trained.path, resume=True).method.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.float32
def test_few_items_lower_the_batch_of_the_default_recipe_alone(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 5)))
    settings = {"objective": "vje", "epochs": 2, "device": "cpu", "precision": "fp32", "knn_every": 0}
    run = vergence.train(tmp_path / "x.npy", out=tmp_path / "run", **settings)
    assert run.folder.config.fit.batch_size == run.folder.metadata.n_train == 16
    assert "note: a batch of 16 instead of 64, since there are 16 training items" in capsys.readouterr().err
    for asked in ({"batch_size": 64}, {"recipe": "vje_small", "encoder": "mlp"}):
        refuses("lower `batch_size`", vergence.train, tmp_path / "x.npy", out=tmp_path / "other", **settings, **asked)


LIMITED = """
import sys
from tests.fuzz.judge import limits
import vergence

with limits(200 << 20):
    try:
        vergence.train(sys.argv[1], out=sys.argv[2], recipe="vje_small", encoder="mlp", objective="moco", device="cpu")
    except ValueError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_network_without_memory_left_is_one_line(tmp_path):
    """The first weights take 170 MB of 200, and their copy, the teacher, as many; a new process has nothing free already."""
    np.save(tmp_path / "x.npy", np.zeros((40, 3, 168, 168), np.uint8))
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "x.npy"), str(tmp_path / "run")]
    found = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    (line,) = found.stdout.splitlines()
    assert re.search(r"fits into memory, found none left .*; lower `batch_size`", line), line


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"lr": 1e-3}, True), ({"lr": 1e-3, "encoder_lr": 1.0}, False), ({"objective": "gje", "lr": 1e-3}, False)],
)
def test_a_learning_rate_that_is_not_the_encoders_is_told(tmp_path, capsys, settings, told):
    own = {"epochs": 1, "batch_size": 16, "limit": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}
    vergence.train("digits", out=tmp_path / "run", recipe=None if "objective" in settings else "vje_small", **own, **settings)
    assert ("encoder's learning rate is 0.2 times 0.001, as in the recipe" in capsys.readouterr().err) == told
