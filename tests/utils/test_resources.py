"""What a command computes with: page faults of repeated large blocks, the number of threads, and what is restored."""

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
from vergence.utils.devices import resources

BLOCK, LEAST = 64 << 20, 32  # bytes of a block, and its least page faults: of pages of 2 MiB, which a system may choose
glibc = pytest.mark.skipif(not sys.platform.startswith("linux") or module._adjustable() is None, reason="glibc's malloc only")

PROGRAM = """
import resource
from vergence.utils.devices import resources

def faults(times=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        b"x" * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

print(faults())
with resources():
    faults(1)
    print(faults())
    with resources():
        pass
    print(faults())
    inside = resident()
print(inside - resident())
print(faults())
"""


def measured(**environment):
    """Returns the numbers that the program prints, in a process of its own."""
    clean = {k: v for k, v in os.environ.items() if k not in module.VARIABLES}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return [int(line) for line in run.stdout.split()]


@pytest.mark.slow
@glibc
def test_a_freed_block_is_taken_again_without_a_page_fault_and_returned_at_the_end():
    before, kept, nested, returned, after = measured()
    assert before > 9 * LEAST and after > 9 * LEAST, "each of ten blocks is new without the context"
    assert kept < before / 10 and nested < before / 10, "an inner context that ends changes nothing"
    assert returned * os.sysconf("SC_PAGE_SIZE") > 0.9 * BLOCK, "what is free returns when the outermost context ends"


@pytest.mark.slow
@glibc
def test_settings_of_the_environment_are_left_as_they_are():
    before, kept, *_ = measured(MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    assert kept > before / 2 > 4 * LEAST


@pytest.fixture
def timed(monkeypatch):
    """Two threads, with which work takes nine times as long as with one; collects the numbers that are tried."""
    tried = []
    monkeypatch.setattr(module, "_seconds", lambda threads, limit=0.0: tried.append(threads) or {1: 1.0, 2: 9.0}[threads])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tried
    torch.set_num_threads(before)


def test_the_number_is_measured_once_and_restored_also_after_an_error(timed):
    with pytest.raises(KeyError), resources():
        assert torch.get_num_threads() == 1
        with resources():
            assert torch.get_num_threads() == 1
        with resources(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1 and module._depth == [1]
        raise KeyError
    assert timed == [1, 2] and torch.get_num_threads() == 2 and module._depth == [0]


@pytest.mark.parametrize(("seconds", "number"), [({1: 1.0, 2: 0.99}, 1), ({1: 1.0, 2: 0.6}, 2)])
def test_more_threads_must_pay(timed, monkeypatch, seconds, number):
    monkeypatch.setattr(module, "_seconds", lambda threads, limit=0.0: seconds[threads])
    with resources():
        assert torch.get_num_threads() == number


def test_a_number_that_is_given_or_without_measuring_is_not_tried(timed):
    with resources(1), resources(measure=False):
        assert torch.get_num_threads() == 1
    with resources(measure=False):
        assert torch.get_num_threads() == 2
    assert not timed


def test_zero_threads_are_refused_and_thousands_are_bounded():
    with pytest.raises(ValueError, match="threads"), resources(0):
        pass
    most = max(module.MOST, module.EACH * (os.cpu_count() or 1))
    with resources(most + 1):
        assert torch.get_num_threads() == most, "OpenMP ends the process where the memory of so many threads is not to be had"


@pytest.mark.slow
@pytest.mark.float32
def test_a_training_records_its_number_and_a_resumed_one_takes_it(tmp_path, timed, monkeypatch):
    append, settings = RunFolder.append, {"encoder": "mlp", "epochs": 2, "limit": 200, "batch_size": 64, "knn_every": 0}

    def interrupting(self, row):
        append(self, row)
        if row["step"] == 2:
            raise Interrupted(2, row["step"])

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(RunFolder, "append", interrupting)
        vergence.train("digits", out=tmp_path / "run", device="cpu", checkpoint_seconds=0.0, **settings)
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)["threads"] == 1
    monkeypatch.setattr(module, "_faster", lambda most: most)
    vergence.train(None, out=tmp_path / "run", resume=True)
    assert [json.loads(line)["threads"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [1, 1]
    assert torch.get_num_threads() == 2
