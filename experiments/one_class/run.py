"""One class of CIFAR-10 or Fashion-MNIST against the other nine: VJE's own scores, other detectors on its encoder, baselines.

README.md says how.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, SIZE, network
from experiments.detection.run import combined, pixel_levels
from experiments.one_class.deep_svdd import DeepSvdd
from experiments.runner import DATA, SETTINGS, first, hidden, parse, run, some
from experiments.shared import Timer, auroc, embedded, folder_name, images, kept_run, seeded
from sklearn.ensemble import IsolationForest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM
from torch import Tensor

import vergence
from vergence.data.config import DataConfig
from vergence.data.items import Items
from vergence.data.sources import Data, open_data
from vergence.decide import GaussianDetector, NeighborDetector
from vergence.learn.evaluation import features
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.detector import opened
from vergence.learn.runs.evaluate import untrained_encoder
from vergence.learn.runs.rows import objective_scores
from vergence.learn.runs.train import collapse_of

ENCODERS = ("vje", "patches", "pixels", "svdd", "pretrained")
COMPONENTS = 64  # principal components of the pixels
Scores = dict[str, np.ndarray]


def detectors(seed: int) -> dict[str, Any]:
    """Returns unfitted detectors on a matrix of features, whose ``score_samples`` are larger for typical items."""
    return {
        "Gaussian": GaussianDetector(),
        "kNN, cosine": NeighborDetector(metric="cosine", standardize=False),
        "isolation forest": IsolationForest(random_state=seed),
        "one-class SVM": make_pipeline(StandardScaler(), OneClassSVM(nu=0.1)),
    }


def scored(level: str, train: Tensor, test: Tensor, seed: int, names: tuple[str, ...] | None = None) -> Scores:
    """Returns the anomaly scores (M,) of test features (M, D) by detectors that are fitted to training features (N, D)."""
    chosen = detectors(seed) if names is None else {name: detectors(seed)[name] for name in names}
    return {f"{level}: {name}": -one.fit(train.numpy()).score_samples(test.numpy()) for name, one in chosen.items()}


def test_items(data: Data, label: int, most: int | None) -> tuple[Items, np.ndarray]:
    """Returns test items, and which are anomalous: all items, or at most so many, half of them of the class."""
    labels = data.test.labels
    assert labels is not None, "data with classes"
    rows = torch.arange(len(labels))
    if most is not None and most < len(labels):
        order = torch.randperm(len(labels), generator=seeded(1))
        own = labels[order] == label
        typical = order[own][: most // 2]
        rows = torch.cat([typical, order[~own][: most - len(typical)]]).sort().values
    return data.test.subset(rows), (labels[rows] != label).numpy()


def of_pixels(data: Data, test: Items, seed: int) -> Scores:
    """Returns the scores that need no encoder."""
    x, y = images(data.train), images(test)
    levels = pixel_levels(x)
    with torch.inference_mode():
        batches = [[levels(b) for b in part.split(250)] for part in (x, y)]
    train, other = ({name: torch.cat([b[name].float() for b in part]) for name in part[0]} for part in batches)
    scores = scored("pixels", train["pixels"], other["pixels"], seed, ("kNN, cosine",))
    pca = features.pca(train["pixels"], other["pixels"], COMPONENTS)
    scores |= scored("PCA", *pca, seed, ("Gaussian", "isolation forest", "one-class SVM"))
    scores |= scored("statistics", train["statistics"], other["statistics"], seed, ("Gaussian",))
    fitted, new = ({name: part[name].numpy() for name in ("statistics", "patches")} for part in (train, other))
    half = np.arange(len(train["statistics"])) % 2 == 0
    known, apart = ({name: f[rows] for name, f in fitted.items()} for rows in (half, ~half))
    return scores | {"detector without an encoder": combined(fitted).fit(known).calibrate(apart).anomaly_score(new)}


def of_run(trained: vergence.Run, test: Items, seed: int, untrained: bool) -> Scores:
    """Returns the scores of a run: its detector's, its objective's own, and those of other detectors on its embedding."""
    train, scores = opened(trained.folder).train, {"detector": trained.anomaly_score(test).numpy()}
    z = trained.embed(train), trained.embed(test)
    if isinstance(trained.method.objective, DensityObjective):
        with torch.inference_mode():
            own = objective_scores(trained.method, z[1].to(trained.device))
        scores |= {f"own {name}": values.cpu().numpy() for name, values in own.items()}
    scores |= scored("z", *z, seed)
    if untrained:
        z0 = embedded(trained, train, test, net=untrained_encoder(trained))
        scores |= scored("untrained z", *z0, seed, ("Gaussian", "kNN, cosine"))
    return scores


def settings_of(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the run of a row."""
    common = {"root": a.data_root, "keep_classes": (cell["label"],), "limit": a.limit, "seed": cell["seed"], "device": a.device}
    common = {name: value for name, value in common.items() if value is not None}
    if cell["encoder"] == "patches":
        return {**common, "recipe": "patches", **a.patches}
    if cell["encoder"] == "pretrained":
        return {**common, **network(), "size": SIZE}
    options = {"beta": cell["beta"], "nu": cell["nu"], **a.set.get("options", {})}
    short = {} if a.epochs is None else {"epochs": a.epochs}
    return {**common, "recipe": cell["recipe"], "knn_every": 0, **short, **a.set, "options": options}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what names each row, whole encoders first, so that a stop leaves few gaps."""
    for seed, source, encoder in itertools.product(a.seeds, a.data, a.encoders):
        vje = encoder == "vje"
        epochs = {"vje": a.epochs, "svdd": a.svdd_epochs}.get(encoder)
        named = {"data": source, "encoder": encoder, "recipe": a.recipe if vje else None, "epochs": epochs}
        named |= {"set": [f"{name}={value}" for name, value in a.set.items()] if vje else [], "limit": a.limit, "tests": a.tests}
        grid = itertools.product(a.beta, a.nu) if vje else [(None, None)]
        for (beta, nu), label in itertools.product(grid, a.classes):
            yield {**named, "beta": beta, "nu": nu, "label": label, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an encoder for one class."""
    timer, encoder, label, seed = Timer(), cell["encoder"], cell["label"], cell["seed"]
    about: dict[str, Any] = {}
    if encoder in ("pixels", "svdd"):
        data = open_data(DataConfig(source=cell["data"], root=a.data_root, keep_classes=(label,), limit=a.limit))
        test, anomalous = test_items(data, label, a.tests)
        n_train = len(data.train)
        if encoder == "pixels":
            scores = of_pixels(data, test, seed)
        else:
            steps = {"lr": 1e-4, "batch_size": 200} if a.whole else {"lr": 1e-3, "batch_size": 64}
            svdd = DeepSvdd(a.svdd_epochs, device=a.device, **steps).fit(images(data.train), seed)
            scores = {"Deep SVDD": svdd.anomaly_score(images(test))}
            about["distances"] = [round(svdd.distances[i], 3) for i in (0, -1)]
    else:
        settings = settings_of(a, cell)
        trained = kept_run(a.scratch / folder_name(cell["data"], **settings), cell["data"], **settings)
        test, anomalous = test_items(open_data(trained.folder.config.data), label, a.tests)
        scores, config = of_run(trained, test, seed, untrained=encoder == "vje"), trained.folder.config
        n_train = trained.folder.metadata.n_train
        about = {"collapse": collapse_of(trained), "trained_at": trained.folder.metadata.commit, "epochs_run": config.fit.epochs}
        about |= {"network": str(config.model.encoder)}
    counts = {"n_train": n_train, "n_typical": int((~anomalous).sum()), "n_anomalous": int(anomalous.sum())}
    return {**counts, **about, **timer.both(), "auroc": {name: auroc(anomalous, values) for name, values in scores.items()}}


OPTIONS = {"data_root": DATA, "data": ["cifar10", "fashion_mnist"], "classes": list(range(10)), "seeds": [0]}
OPTIONS |= {"encoders": some(ENCODERS, ENCODERS[:4]), "limit": 2000, "tests": 2000, "epochs": 20, "svdd_epochs": 5}
OPTIONS |= {"beta": [1.0], "nu": [0.5], "recipe": "vje_small", "set": SETTINGS, "scratch": Path, "device": "cpu", "whole": False}
OPTIONS["patches"] = hidden({})
TINY = dict.fromkeys(("classes", "data", "beta", "nu", "seeds"), first) | {"limit": 60, "tests": 40, "epochs": 1}
TINY |= {"svdd_epochs": 1, "recipe": "vje_small", "device": "cpu", "set": lambda settings: {**settings, "batch_size": 16}}
TINY["patches"] = {"encoder": "patches:atoms=16,second=16,directions=32,dim=16,views=2"}


def options() -> argparse.Namespace:
    """Returns the options; the numbers 0 stand for all, or for the recipe's."""
    a = parse(__doc__, "one_class", OPTIONS, TINY)
    if a.whole and not a.tiny:
        a.recipe, a.limit, a.tests, a.epochs, a.svdd_epochs = "vje_oneclass_cifar10", 0, 0, 0, 150
    a.limit, a.tests, a.epochs = a.limit or None, a.tests or None, a.epochs or None
    return a


if __name__ == "__main__":
    shown = ("data", "encoder", "label", "seed", "beta", "nu", "seconds", "auroc")
    run(options(), cells, measure, peers=PEERS, shown=shown)
