"""Every test: float64 (float32 where marked), a seed of its own, warnings are errors."""

import gzip
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread only waits, and on a busy machine for long

import numpy as np
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


os.environ["VERGENCE_ENCODER"] = "patches"  # tests of networks name theirs


@pytest.fixture(autouse=True)
def _numerics(request):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if request.node.get_closest_marker("float32") else torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)


QUICK = {"batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}  # settings of trainings of a second


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A run on the digits, 8 x 8 gray images: a small network and VJE, with a calibration part of 287. Tests do not change it."""
    return _trained(tmp_path_factory, "digits", encoder="small", objective="vje", epochs=1)


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A run on 600 vectors of 5 features, with VJE. Tests do not change it."""
    source = tmp_path_factory.mktemp("table") / "x.npy"
    np.save(source, np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32))
    return _trained(tmp_path_factory, str(source), encoder="mlp", objective="vje", epochs=1)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A run on 2,500 pairs of `angle_pairs`, with GJE and a calibration part of 500. Tests do not change it."""
    source = tmp_path_factory.mktemp("pairs") / "pairs.npz"
    context, target = angle_pairs(2500, 0)
    np.savez(source, context=context, target=target)
    return _trained(tmp_path_factory, str(source), encoder="mlp", objective="gje", projector=(6,), epochs=8)


def angle_pairs(n, seed):
    """Two kinds of vectors, each (n, 3), with one cause: an angle."""
    r = np.random.default_rng(seed)
    angle = r.uniform(0, 2 * np.pi, n)
    noise = 0.05 * r.normal(size=(2, n, 3))
    context = np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)], 1) + noise[0]
    target = np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle)], 1) + noise[1]
    return context.astype(np.float32), target.astype(np.float32)


def _trained(tmp_path_factory, source, **settings):
    import vergence

    with torch.random.fork_rng(devices=[]):
        return vergence.train(source, out=tmp_path_factory.mktemp("runs") / "run", **QUICK, **settings)
