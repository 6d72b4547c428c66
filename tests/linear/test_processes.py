"""Two processes of torch.distributed find what one finds, each all of it."""

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
def two(tmp_path_factory):
    """What each of two processes found in each case; a process that dies leaves out the rest."""
    folder = tmp_path_factory.mktemp("two")
    try:
        torch.multiprocessing.spawn(processes.work, (str(folder),), nprocs=2)
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
def test_two_processes_are_one(name, two, small_blocks):
    one = processes.facts(name)
    assert isinstance(one, dict), one
    for rank in range(2):
        assert_same(found_by(two, rank, name), one, set(one) - {"transformed", "objective_se_"})


def test_each_of_two_processes_transforms_all(two, small_blocks):
    for rank in range(2):
        assert_same(found_by(two, rank, "covariance"), processes.facts("covariance"), ["transformed"])


@pytest.mark.parametrize("name", ["callable", "one block"])
def test_each_of_two_processes_knows_the_sampling_error(name, two, small_blocks):
    for rank in range(2):
        assert_same(found_by(two, rank, name), processes.facts(name), ["objective_se_"])
