"""Every test: float64 (float32 where marked), a seed of its own, warnings are errors."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits, and on a busy machine for long

import pytest
import torch

DATA_ROOT = Path(os.environ.get("VERGENCE_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _numerics(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if request.node.get_closest_marker("float32") else torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)
