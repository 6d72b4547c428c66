"""Several processes of torch.distributed find what one finds, each all of it; VERGENCE_PROCESSES is their number, or 2."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.linear import processes
from tests.linear.checks import close

from vergence.linear import reading


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 1)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """What each of several processes found in each case; a process that dies leaves out the rest."""
    folder = tmp_path_factory.mktemp("several")
    try:
        torch.multiprocessing.spawn(processes.work, (str(folder),), nprocs=processes.PROCESSES)
    except Exception as error:
        (folder / "error").write_text(str(error))
    return folder


def found_by(folder: Path, rank, name):
    path = folder / f"{rank}-{list(processes.CASES).index(name)}.pt"
    assert path.exists(), "the process died: " + (folder / "error").read_text()
    found = torch.load(path, weights_only=False)
    assert isinstance(found, dict), found
    return found


def assert_same(found, expected, names):
    for name in names:
        if expected[name].dtype.kind == "f":
            close(found[name], expected[name], rtol=1e-10, atol=1e-10)
        else:
            assert np.array_equal(found[name], expected[name]), name


@pytest.mark.parametrize("name", processes.CASES)
def test_several_processes_are_one(name, several, small_blocks):
    one = processes.facts(name)
    assert isinstance(one, dict), one
    for rank in range(processes.PROCESSES):
        assert_same(found_by(several, rank, name), one, set(one) - {"transformed", "objective_se_"})


def test_each_of_several_processes_transforms_all(several, small_blocks):
    for rank in range(processes.PROCESSES):
        assert_same(found_by(several, rank, "covariance"), processes.facts("covariance"), ["transformed"])


@pytest.mark.parametrize("name", ["callable", "one block"])
def test_each_of_several_processes_knows_the_sampling_error(name, several, small_blocks):
    for rank in range(processes.PROCESSES):
        assert_same(found_by(several, rank, name), processes.facts(name), ["objective_se_"])
