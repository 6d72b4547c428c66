"""The number of threads that a command computes with: what is set and restored, recorded and taken again."""

import json
import os
import subprocess
import sys

import pytest
import torch

import vergence
from vergence.learn.training.folder import RunFolder
from vergence.learn.training.loop import Interrupted
from vergence.utils import devices as module
from vergence.utils.devices import cpu_threads


@pytest.fixture
def two():
    """Torch's own number is two."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_is_restored_also_after_an_error(two):
    with pytest.raises(KeyError), cpu_threads(1):
        assert torch.get_num_threads() == 1
        with cpu_threads():
            assert torch.get_num_threads() == 1
        with cpu_threads(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
        raise KeyError
    with cpu_threads():
        assert torch.get_num_threads() == 2


def test_zero_threads_are_refused_and_thousands_are_bounded():
    with pytest.raises(ValueError, match="threads"), cpu_threads(0):
        pass
    most = max(module.MOST, module.EACH * (os.cpu_count() or 1))
    with cpu_threads(most + 1):
        assert torch.get_num_threads() == most, "OpenMP ends the process where the memory of so many threads is not to be had"


@pytest.mark.parametrize(("given", "policy"), [(None, "passive"), ("active", "active")])
def test_threads_that_wait_sleep_unless_the_environment_says_otherwise(given, policy):
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    program = "import os, vergence; print(os.environ['OMP_WAIT_POLICY'])"
    environment = clean | ({"OMP_WAIT_POLICY": given} if given else {})
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == policy


@pytest.mark.slow
@pytest.mark.float32
def test_a_training_records_its_number_and_a_resumed_one_takes_it(tmp_path, two, monkeypatch):
    append, settings = RunFolder.append, {"encoder": "mlp", "epochs": 2, "limit": 200, "batch_size": 64, "knn_every": 0}

    def interrupting(self, row):
        append(self, row)
        if row["step"] == 2:
            raise Interrupted(2, row["step"])

    with monkeypatch.context() as patch, cpu_threads(1), pytest.raises(Interrupted):
        patch.setattr(RunFolder, "append", interrupting)
        vergence.train("digits", out=tmp_path / "run", device="cpu", checkpoint_seconds=0.0, **settings)
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["threads"] == 1
    vergence.train(None, out=tmp_path / "run", resume=True)
    assert [json.loads(line)["threads"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [1, 1]
    assert torch.get_num_threads() == 2
