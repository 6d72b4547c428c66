"""Starting a training: where it may write, and what it refuses before it does."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import vergence

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 256, "device": "cpu", "precision": "fp32", "knn_every": 0}
CLI = [sys.executable, "-m", "vergence.cli.commands", "train"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@pytest.mark.parametrize("out", ["data", "."])
def test_a_run_folder_that_holds_the_data_is_refused(tmp_path, out, monkeypatch):
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", np.zeros((20, 3), dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="expected a run folder apart from the data") as caught:
        vergence.train("data/x.npy", out=out, **QUICK)
    assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["x.npy"]


def test_no_data_is_named(tmp_path):
    for source in (None, ""):
        with pytest.raises(ValueError, match="expected data, found none"):
            vergence.train(source, out=tmp_path / "run", **QUICK)


def test_a_second_training_and_a_resume_beside_a_running_one_are_refused(tmp_path):
    run = tmp_path / "run"
    arguments = ["digits", "--out", str(run), "--epochs", "400", "--device", "cpu", "--set", "checkpoint_seconds=1e9"]
    process = subprocess.Popen([*CLI, *arguments], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None
        with pytest.raises(ValueError, match=f"in use by process {process.pid} on "):
            vergence.train(out=run, resume=True)
        with pytest.raises(ValueError, match=f"in use by process {process.pid} on "):
            vergence.train("digits", out=run, **QUICK)
    finally:
        process.kill()
        process.wait()


def test_a_run_that_died_before_its_first_checkpoint_is_replaced(tmp_path):
    vergence.train("digits", out=tmp_path / "run", **QUICK)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "model.safetensors").unlink()
    run = vergence.train("digits", out=tmp_path / "run", seed=3, **QUICK)
    assert vergence.load(tmp_path / "run").folder.config.fit.seed == 3 == run.folder.config.fit.seed
    assert [row["step"] for row in run.folder.metrics()] == [4]
    with pytest.raises(ValueError, match="already holds a run"):
        vergence.train("digits", out=tmp_path / "run", **QUICK)


def test_a_finished_run_leaves_no_lock_and_no_temporary_files(tmp_path):
    vergence.train("digits", out=tmp_path / "run", **QUICK)
    found = {p.name for p in (tmp_path / "run").iterdir()}
    assert found == {"config.json", "metrics.jsonl", "checkpoints", "model.safetensors", "checksums.json"}
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["last.pt"]


def test_other_data_than_the_run_started_with_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", encoder="mlp", **{**QUICK, "limit": None})
    np.save(tmp_path / "x.npy", x[:, :5])
    with pytest.raises(ValueError, match=r"found shape \(5,\) instead of \(6,\)"):
        vergence.train(out=tmp_path / "run", resume=True)


def test_a_checkpoint_of_another_model_is_one_line(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", **QUICK)
    run.folder.save_checkpoint({"model": {}, "optimizer": {}, "step": 2})
    with pytest.raises(ValueError, match="does not fit the run's description") as caught:
        vergence.train(out=tmp_path / "run", resume=True)
    assert "\n" not in str(caught.value)
