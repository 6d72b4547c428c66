"""The short forms of ``make kill``: kills of every command, and long trainings of every objective."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.kill.long import GROWTH, trained

from vergence.learn import objectives

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def test_killed_commands_leave_what_uninterrupted_ones_do():
    done = subprocess.run([sys.executable, HERE / "run.py", "--short"], capture_output=True, text=True)
    assert done.returncode == 0 and ", 0 findings" in done.stdout, done.stdout + done.stderr


def changing():
    """Returns the objectives whose state is not learned by gradient alone: banks, moving averages, prototypes."""
    return [name for name in objectives.names() if objectives.get(name).update is not objectives.Objective.update]


@pytest.mark.float32
@pytest.mark.parametrize("name", changing())
def test_values_stay_finite_and_memory_flat(name):
    done, memory = trained(name, 200, seconds=20)
    assert done >= 100 and memory[-1] - memory[0] <= GROWTH
