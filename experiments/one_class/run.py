"""One class of CIFAR-10 or Fashion-MNIST against the other nine: VJE's own scores, other detectors on the same encoder, controls.

The protocol of the VJE paper (arXiv:2602.05639v1, section on one-class detection): an encoder is trained on the training
images of one class, test images of that class are typical and all others anomalous, AUROC. The paper's mean of .903 over
CIFAR-10's classes is of a ResNet-18 trained for 800 epochs on the 5,000 images of a class, at beta = 1 and nu = 0.5.

    python -m experiments.one_class.run --data-root DATA                                           # two CPU cores
    python -m experiments.one_class.run --data-root DATA --encoders vje --limit 1000 --beta 0.75 1 1.5 --nu 0.25 0.5 3
    python -m experiments.one_class.run --data-root DATA --scratch FOLDER --whole --device cuda    # the paper's training

By default a small network and 2,000 training images of each class (a fifth of them calibrates the run's detector), 2,000 test
images, half of them of the class. A row of results/one_class.jsonl has the AUROC of every score of one encoder for one class:

- vje, patches, pretrained: the run's detector (``detector``), the objective's own scores (``own joint``, ...), and on the
  embedding z one Gaussian (Mahalanobis distance), kNN, an isolation forest and a one-class SVM; for vje also on z of the
  untrained network. pretrained is the ImageNet network of pretrained.py, at 96 pixels.
- pixels: the same on pixels and their principal components, on statistics, and the default detector without an encoder.
- svdd: Deep SVDD (deep_svdd.py).

Settings of detectors are fixed beforehand; test images serve no choice. ``--scratch`` keeps the runs, so that a training goes on
where it was stopped; rows that the ledger has from the same commit are skipped.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, SIZE, network
from experiments.detection.run import images, pixel_levels, seeded
from experiments.one_class.deep_svdd import DeepSvdd
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM
from torch import Tensor

import vergence
from experiments import ledger
from vergence.cli.options import parse_settings
from vergence.data.config import DataConfig
from vergence.data.items import Items
from vergence.data.sources import Data, open_data
from vergence.detection import GaussianDetector, NeighborDetector, default_detector
from vergence.evaluation import features
from vergence.runs.detector import opened
from vergence.runs.evaluate import untrained_encoder
from vergence.runs.run import objective_scores

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


def whole(items: Items) -> Tensor:
    return images(items, torch.arange(len(items)))


def of_pixels(data: Data, test: Items, seed: int) -> Scores:
    """Returns the scores that need no encoder."""
    x, y = whole(data.train), whole(test)
    levels = pixel_levels(x)
    with torch.inference_mode():
        parts = [[levels(b) for b in part.split(250)] for part in (x, y)]
    train, other = ({name: torch.cat([one[name].float() for one in part]) for name in part[0]} for part in parts)
    found = scored("pixels", train["pixels"], other["pixels"], seed, ("kNN, cosine",))
    pca = features.pca(train["pixels"], other["pixels"], COMPONENTS)
    found |= scored("PCA", *pca, seed, ("Gaussian", "isolation forest", "one-class SVM"))
    found |= scored("statistics", train["statistics"], other["statistics"], seed, ("Gaussian",))
    known, new = ({name: part[name].numpy() for name in ("statistics", "patches")} for part in (train, other))
    return found | {"detector without an encoder": default_detector(known).fit(known).anomaly_score(new)}


def of_run(run: vergence.Run, test: Items, seed: int, untrained: bool) -> Scores:
    """Returns the scores of a run: its detector's, its objective's own, and those of other detectors on its embedding."""
    train, found = opened(run.folder).train, {"detector": run.anomaly_score(test).numpy()}
    z = run.embed(train), run.embed(test)
    if run.has_density:
        with torch.inference_mode():
            own = objective_scores(run.method, z[1].to(run.device))
        found |= {f"own {name}": values.cpu().numpy() for name, values in own.items()}
    found |= scored("z", *z, seed)
    if untrained:
        net = untrained_encoder(run).eval()
        z = tuple(features.collect_features(net, part, size=run.size, device=run.device)[0] for part in (train, test))
        found |= scored("untrained z", *z, seed, ("Gaussian", "kNN, cosine"))
    return found


def trained(a: argparse.Namespace, folder: Path, source: str, settings: dict[str, Any]) -> vergence.Run:
    """Returns a run with settings; opens a finished one, and goes on with one that was stopped."""
    words = "-".join(f"{name}={value}" for name, value in settings.items() if name not in ("root", "weights", "device"))
    out = folder / f"{source}-{words}".replace("/", "_").replace(" ", "")
    if (out / "model.safetensors").exists():
        return vergence.load(out, device=a.device, trust_code=True)
    if (out / "config.json").exists():
        return vergence.train(None, out=out, resume=True, trust_code=True)
    return vergence.train(source, out=out, **settings)


def settings_of(a: argparse.Namespace, key: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the run of a row."""
    found = {"root": a.data_root, "keep_classes": (key["label"],), "limit": a.limit, "seed": key["seed"], "device": a.device}
    found = {name: value for name, value in found.items() if value is not None}
    if key["encoder"] == "patches":
        return {**found, "recipe": "patches", **a.patches}
    if key["encoder"] == "pretrained":
        return {**found, **network(), "size": SIZE}
    changes = parse_settings(a.set)
    options = {"beta": key["beta"], "nu": key["nu"], **changes.pop("options", {})}
    short = {} if a.epochs is None else {"epochs": a.epochs}
    return {**found, "recipe": key["recipe"], "knn_every": 0, "options": options, **short, **changes}


def measured(a: argparse.Namespace, folder: Path, key: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of an encoder for one class."""
    start, used = time.perf_counter(), time.process_time()
    encoder, label, seed = key["encoder"], key["label"], key["seed"]
    about: dict[str, Any] = {}
    if encoder in ("pixels", "svdd"):
        data = open_data(DataConfig(source=key["data"], root=a.data_root, keep_classes=(label,), limit=a.limit))
        test, anomalous = test_items(data, label, a.tests)
        if encoder == "pixels":
            scores = of_pixels(data, test, seed)
        else:
            steps = {"lr": 1e-4, "batch_size": 200} if a.whole else {"lr": 1e-3, "batch_size": 64}
            svdd = DeepSvdd(a.svdd_epochs, device=a.device, **steps).fit(whole(data.train), seed)
            scores = {"Deep SVDD": svdd.anomaly_score(whole(test))}
            about["distances"] = [round(svdd.distances[i], 3) for i in (0, -1)]
        n_train = len(data.train)
    else:
        run = trained(a, folder, key["data"], settings_of(a, key))
        test, anomalous = test_items(open_data(run.folder.config.data), label, a.tests)
        scores = of_run(run, test, seed, untrained=encoder == "vje")
        n_train = run.folder.metadata.n_train
        about = {"collapse": run.collapse, "trained_at": run.folder.metadata.commit, "epochs_run": run.folder.config.fit.epochs}
        about |= {"network": str(run.folder.config.model.encoder)}
    auroc = {name: round(float(roc_auc_score(anomalous, values)), 4) for name, values in scores.items()}
    seconds = {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    sizes = {"n_train": n_train, "n_typical": int((~anomalous).sum()), "n_anomalous": int(anomalous.sum())}
    return {**sizes, **about, **seconds, "auroc": auroc}


def keys(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what names each row, whole encoders first, so that a stop leaves few gaps."""
    for seed, source, encoder in itertools.product(a.seeds, a.data, a.encoders):
        grid = list(itertools.product(a.beta, a.nu)) if encoder == "vje" else [(None, None)]
        epochs = {"vje": a.epochs, "svdd": a.svdd_epochs}.get(encoder)
        named = {"data": source, "encoder": encoder, "recipe": a.recipe if encoder == "vje" else None, "epochs": epochs}
        named |= {"set": a.set if encoder == "vje" else [], "limit": a.limit, "tests": a.tests}
        for (beta, nu), label in itertools.product(grid, a.classes):
            yield {**named, "beta": beta, "nu": nu, "label": label, "seed": seed}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", nargs="+", default=["cifar10", "fashion_mnist"])
    parser.add_argument("--classes", nargs="+", type=int, default=list(range(10)), metavar="LABEL")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS[:4]), choices=ENCODERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--limit", type=int, default=2000, help="training images of a class; 0 for all")
    parser.add_argument("--tests", type=int, default=2000, help="test images, half of them of the class; 0 for all")
    parser.add_argument("--epochs", type=int, default=20, help="of the network; 0 for the recipe's")
    parser.add_argument("--svdd-epochs", type=int, default=5, help="of Deep SVDD, and as many of its autoencoder")
    parser.add_argument("--beta", nargs="+", type=float, default=[1.0], help="of VJE; several make a grid with --nu")
    parser.add_argument("--nu", nargs="+", type=float, default=[0.5], help="of VJE")
    parser.add_argument("--recipe", default="vje_small", help="of vje")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of vje's run or objective")
    parser.add_argument("--scratch", type=Path, help="folder that keeps the runs; none are kept by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--whole", action="store_true", help="the paper's ResNet-18 and epochs, all images, and 150 epochs of Deep SVDD"
    )
    a = ledger.parse(parser, "one_class")
    a.patches = {}
    if a.whole:
        a.recipe, a.limit, a.tests, a.epochs, a.svdd_epochs = "vje_oneclass_cifar10", 0, 0, 0, 150
    if a.tiny:
        a.classes, a.limit, a.tests, a.epochs, a.svdd_epochs, a.recipe = a.classes[:1], 60, 40, 1, 1, "vje_small"
        a.data, a.seeds, a.beta, a.nu, a.device = a.data[:1], [0], a.beta[:1], a.nu[:1], "cpu"
        a.set = [*a.set, "batch_size=16"]
        a.patches = {"encoder": "patches:atoms=16,second=16,directions=32,dim=16,views=2"}
    a.limit, a.tests, a.epochs = a.limit or None, a.tests or None, a.epochs or None
    return a


def main() -> None:
    a = options()
    with tempfile.TemporaryDirectory() as folder:
        for key in keys(a):
            if not ledger.holds(a.out, **key):
                place = Path(folder) if a.scratch is None else a.scratch
                place.mkdir(parents=True, exist_ok=True)
                values = {**key, **measured(a, place, key)}
                device = None if a.device == "cpu" else torch.cuda.get_device_name()
                row = ledger.row(values, seed=key["seed"], peers=PEERS if key["encoder"] == "pretrained" else (), device=device)
                ledger.add(a.out, row, shown=("data", "encoder", "label", "seed", "beta", "nu", "seconds", "auroc"))


if __name__ == "__main__":
    main()
