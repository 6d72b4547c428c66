"""Every test: float64 (float32 where marked), a seed of its own, warnings are errors."""

import gzip
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits, and on a busy machine for long

import pytest
import torch

DATA_ROOT = Path(os.environ.get("VERGENCE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def torchvision_root(name, packed, tmp_path_factory):
    """The folder of torchvision's set NAME: as it lies, or unpacked from the folder ``packed``; skips where there is neither."""
    if (DATA_ROOT / name / "raw").is_dir():
        return DATA_ROOT
    files = sorted((DATA_ROOT / packed).glob("*.gz"))
    if not files:
        pytest.skip(f"no {name} in {DATA_ROOT.name}: set VERGENCE_DATA to a folder laid out for torchvision")
    root = tmp_path_factory.mktemp("torchvision")
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    for file in files:
        (raw / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return root


@pytest.fixture(autouse=True)
def _numerics(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if request.node.get_closest_marker("float32") else torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)
