"""The package nonconform, in this Python or in the one that NONCONFORM_PYTHON names (it needs Python 3.12)."""

import os
import subprocess
import sys

import numpy as np
import pytest


@pytest.fixture
def nonconform(tmp_path):
    """Returns a function that runs code, in which arrays have their names, and returns its array ``result``."""
    python = os.environ.get("NONCONFORM_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import nonconform"], capture_output=True).returncode:
        pytest.skip("nonconform is not installed: set NONCONFORM_PYTHON to a Python that has it")

    def run(code, **arrays):
        np.savez(tmp_path / "in.npz", **arrays)
        lines = ["import numpy as np", "globals().update(np.load('in.npz'))", code, "np.save('out.npy', result)"]
        subprocess.run([python, "-c", "\n".join(lines)], cwd=tmp_path, check=True)
        return np.load(tmp_path / "out.npy")

    return run
