"""A training on two processes of which one is killed: both end, with one message, and the run can be resumed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

import vergence
from vergence.learn.training.processes import GRACE, together

pytestmark = [pytest.mark.float32, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SETTINGS = {
    "objective": "vje",
    "epochs": 40, "limit": 128, "batch_size": 64, "device": "cpu", "precision": "fp64", "projector": (4,), "knn_every": 0,
    "checkpoint_seconds": 0, "optimizer": "sgd", "lr": 0.01, "calibration_share": 0.0,
}  # fmt: skip
ENV = {k: v for k, v in os.environ.items() if k != "LOCAL_RANK"} | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
LONGEST = 60.0 + GRACE  # seconds, on a busy machine


def command(*arguments):
    return [sys.executable, "-m", "vergence.cli.commands", "train", *arguments]


def started(out):
    """Starts a training of 80 steps on two processes; returns the first."""
    options = [f"{name}={value}" for name, value in SETTINGS.items()]
    arguments = ["digits", "--out", str(out), "--devices", "2", *(word for option in options for word in ("--set", option))]
    return subprocess.Popen(command(*arguments), env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def second_of(first):
    """Returns the process number of the second process, or None before it has started."""
    for child in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it has ended in the meantime
            if b"LOCAL_RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
                return int(child)
    return None


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not (result := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "moment"),
    [
        ("second", "training"),
        ("first", "training"),
        ("second", "starting"),
    ],
)
def test_a_process_that_is_killed_ends_both_with_one_message(which, moment, tmp_path):
    out = tmp_path / "run"
    with started(out) as first:
        try:
            second = wait_for(lambda: second_of(first))
            if moment == "training":
                wait_for((out / "checkpoints" / "last.pt").exists)
            os.kill(first.pid if which == "first" else second, signal.SIGKILL)
            error = first.communicate(timeout=LONGEST)[1]  # the pipe closes when both have ended
        finally:
            first.kill()
    assert first.returncode == (-signal.SIGKILL if which == "first" else 2), error
    name = "process 1" if which == "first" else "process 2 of 2 (SIGKILL)"
    message = f"error: {name} ended early, and the training with it; go on from the last checkpoint with: "
    lines = [line for line in error.splitlines() if "error" in line.lower() or "Traceback" in line]
    assert lines == [f"{message}vergence train --resume {out}"], error
    if (which, moment) == ("second", "training"):
        subprocess.run(command("--resume", str(out)), env=ENV, check=True, capture_output=True)
        require_like_one_process(out, tmp_path / "one")


def require_like_one_process(run, out):
    vergence.train("digits", out=out, **SETTINGS)
    found, expected = (load_file(folder / "model.safetensors") for folder in (run, out))
    assert max((found[k].double() - expected[k].double()).abs().max() for k in expected) < 1e-6  # rounding, after 80 steps


@pytest.mark.slow
def test_errors_of_a_process_itself_stay_as_they_are(tmp_path):
    for kind in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(kind, match="of its own"), together(tmp_path):
            raise kind("of its own")
