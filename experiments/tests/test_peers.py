"""The comparison with other libraries: its clock, its counts and its intervals."""

import importlib.util
import math
import sys
import time
from pathlib import Path

import pytest
import torch
from experiments.speed import peers
from scipy import stats
from torch.optim.optimizer import register_optimizer_step_post_hook

PROGRAMS = Path(__file__).parents[1] / "speed" / "programs"
PROGRAM = '''"""A program.

With two paragraphs.
"""

import torch
from network import backbone

# a comment
x = 1
if x:  # a choice
    y = 2  # contrastive
else:  # a choice
    y = 3  # vicreg
    z = 4  # vicreg
'''


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_lines_are_those_of_one_method(program):
    assert [peers.lines(program, method) for method in peers.METHODS] == [4, 5]


@pytest.mark.parametrize("library", peers.LIBRARIES)
def test_every_program_has_both_methods_and_the_shared_network(library):
    file = peers.program(library)
    whole = sum(bool(line.strip()) for line in file.read_text().splitlines())
    assert "network" in file.read_text() and peers.imports(file).count("import") >= 3
    assert all(0 < peers.lines(file, method) < whole for method in peers.METHODS)


def test_interval_is_that_of_the_mean_logarithm():
    ratios = [1.5, 2.0, 2.5, 2.2]
    found = peers.interval(ratios)
    logs = torch.tensor(ratios, dtype=torch.float64).log().numpy()
    expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert found == pytest.approx([math.exp(x) for x in (logs.mean(), expected.low, expected.high)], abs=5e-4)
    assert peers.interval([2.0]) == [2.0, None, None]
    assert peers.interval([2.0, 2.0]) == [2.0, 2.0, 2.0]


def test_both_reach_the_lower_of_their_last_accuracies():
    here = {"epochs": [1.0, 2.0, 3.0], "knn": [20.0, 31.0, 35.0]}
    there = {"epochs": [4.0, 8.0, 12.0], "knn": [10.0, 20.0, 30.0]}
    assert peers.to_accuracy(here, there) == (30.0, (2.0, 12.0))
    assert peers.to_accuracy(there, here) == (30.0, (12.0, 2.0))


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """A module ``network`` and a clock for two epochs of two steps."""
    torch.save(torch.nn.Linear(2, 1), tmp_path / "network.pt")
    monkeypatch.setenv("NETWORK", str(tmp_path / "network.pt"))
    monkeypatch.syspath_prepend(str(PROGRAMS))
    monkeypatch.delitem(sys.modules, "network", raising=False)
    spec = importlib.util.spec_from_file_location("measure", PROGRAMS / "measure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Clock(2, tmp_path, False)
    sys.modules.pop("network", None)


def test_the_clock_keeps_the_trained_network_and_leaves_its_own_time_out(clock, tmp_path, monkeypatch):
    import network

    monkeypatch.setattr(torch, "save", lambda *given, save=torch.save: (time.sleep(0.2), save(*given)))
    nets = [network.backbone() for _ in range(2)]
    optimizer = torch.optim.SGD(nets[0].parameters(), lr=0.1)  # the second one is not trained
    handle = register_optimizer_step_post_hook(clock)
    after = []
    try:
        for _ in range(4):
            nets[0](torch.ones(3, 2)).sum().backward()
            optimizer.step()
            after.append(nets[0].weight.detach().clone())
    finally:
        handle.remove()
    assert len(clock.marks) == 4
    assert [torch.equal(torch.load(tmp_path / f"epoch {n}.pt")["weight"], after[2 * n - 1]) for n in (1, 2)] == [True, True]
    walls = [wall for _, wall in clock.marks]
    assert walls == sorted(walls) and walls[2] - walls[1] < 0.2 <= clock.paused[1] / 2
