"""A training on two processes that is stopped, or of which one is killed: both end, with one message; the run can be resumed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.learn.training.test_processes import largest_difference

import vergence
from vergence.learn.training.loop import AGREE_EVERY

pytestmark = [pytest.mark.float32, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SETTINGS = {
    "objective": "vje",
    "epochs": 40, "limit": 128, "batch_size": 64, "device": "cpu", "precision": "fp64", "projector": (4,), "knn_every": 0,
    "checkpoint_seconds": 0, "optimizer": "sgd", "lr": 0.01, "calibration_share": 0.0,
}  # fmt: skip
ENV = {k: v for k, v in os.environ.items() if k != "LOCAL_RANK"} | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
LONGEST = 120.0  # seconds, on a busy machine


def command(*arguments):
    return [sys.executable, "-m", "vergence.cli.commands", "train", *arguments]


def started(out):
    """Starts a training of 80 steps on two processes; returns the one that starts both."""
    options = [f"{name}={value}" for name, value in SETTINGS.items()]
    arguments = ["digits", "--out", str(out), "--devices", "2", *(word for option in options for word in ("--set", option))]
    return subprocess.Popen(command(*arguments), env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def process_of(started, rank):
    """Returns the process number of a process of the training, or None before it has started."""
    for child in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended in the meantime
            if b"LOCAL_RANK=%d\0" % rank in Path(f"/proc/{child}/environ").read_bytes():
                return int(child)
    return None


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "moment"), [(1, "training"), (0, "training"), (1, "starting")])
def test_a_process_that_is_killed_ends_both_with_one_message(rank, moment, tmp_path):
    out = tmp_path / "run"
    with started(out) as launcher:
        try:
            process = wait_for(lambda: process_of(launcher, rank))
            if moment == "training":
                wait_for((out / "checkpoints" / "last.pt").exists)
            os.kill(process, signal.SIGKILL)
            error = launcher.communicate(timeout=LONGEST)[1]  # the pipe closes when both have ended
        finally:
            launcher.kill()
    assert launcher.returncode == 2, error
    message = "ended early, and the training with it; continue from the last checkpoint with: vergence train --resume"
    lines = [line for line in error.splitlines() if "error" in line.lower() or "Traceback" in line]
    assert lines == [f"error: process {rank + 1} of 2 (SIGKILL) {message} {out}"], error
    if (rank, moment) == (1, "training"):
        subprocess.run(command("--resume", str(out)), env=ENV, check=True, capture_output=True)
        require_like_one_process(out, tmp_path / "one")


def load_checkpoint(out):
    return torch.load(out / "checkpoints" / "last.pt", weights_only=True)


def require_like_one_process(run, out):
    vergence.train("digits", out=out, **SETTINGS)
    assert largest_difference(run, out) < 1e-6  # rounding, after 80 steps


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_saves_a_checkpoint(number, tmp_path):
    out = tmp_path / "run"
    with started(out) as launcher:
        wait_for((out / "checkpoints" / "last.pt").exists)
        launcher.send_signal(number)
        error = launcher.communicate(timeout=LONGEST)[1]
    assert launcher.returncode == 128 + number, error
    assert error.count(f"to resume: vergence train --resume {out}") == 1 and "Traceback" not in error
    assert load_checkpoint(out)["step"] % AGREE_EVERY == 0 and not (out / "model.safetensors").exists()


@pytest.mark.slow
def test_an_error_of_all_processes_is_said_once(tmp_path):
    out = tmp_path / "run"
    words = ("digits", "--devices", "2", "--set", "limit=50", "--batch-size", "3", "--objective", "vje", "--out", out)
    done = subprocess.run(command(*words), env=ENV, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "error: expected a batch" in done.stderr, done.stderr
