"""Tables with one class held out: the detectors of `vergence.detection` against PyOD's five most used ones.

    python -m experiments.detection.held_out_classes        # rows of results/held_out_classes.jsonl
    python -m experiments.tables                  # the table of docs/detection_measured.md

Iris, wine, breast_cancer and digits are the sets with classes that scikit-learn brings along. Each class in turn is the
anomaly. A detector is fitted to a random half of the items of the other classes; reported is the AUROC of the class that was
held out against the other half. All detectors have the settings that they come with, none was chosen on these sets. Ours
standardize features themselves; PyOD's get features that are standardized by the items of the fit. "raw" marks features as they
are, for both.
"""

import argparse
import time
from typing import Any

import numpy as np
from experiments.detection import peers as detection_peers
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import roc_auc_score

from experiments import ledger
from vergence.detection import GaussianDetector, MixtureDetector, NeighborDetector, default_detector

SETS = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}


def split(y: np.ndarray, held_out: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the fit, and those of the test: the class that is held out and the other half of the rest."""
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(y != held_out))
    half = len(rest) // 2
    return rest[:half], np.r_[rest[half:], np.flatnonzero(y == held_out)]


def detectors(seed: int) -> dict[str, Any]:
    """Returns unfitted detectors by name."""
    ours = {
        "default_detector()": default_detector(),
        'default_detector(["inputs"])': default_detector(["inputs"], columns={"inputs": slice(None)}),
        "GaussianDetector": GaussianDetector(),
        "MixtureDetector": MixtureDetector(),
        "NeighborDetector": NeighborDetector(),
    }
    raw = {
        "GaussianDetector": GaussianDetector(standardize=False),
        "NeighborDetector": NeighborDetector(standardize=False),
        **detection_peers.of_pyod(seed, standardize=False),
    }
    return ours | detection_peers.of_pyod(seed) | {f"{name}, raw": one for name, one in raw.items()}


def measured(X: np.ndarray, y: np.ndarray, held_out: int, seed: int) -> ledger.Row:
    """Returns the AUROC of every detector and the seconds of its fit and scores."""
    fitted, tested = split(y, held_out, seed)
    auroc, seconds = {}, {}
    for name, detector in detectors(seed).items():
        start = time.perf_counter()
        scores = detector.fit(X[fitted]).anomaly_score(X[tested])
        seconds[name] = round(time.perf_counter() - start, 3)
        auroc[name] = round(float(roc_auc_score(y[tested] == held_out, scores)), 4)
    counts = {"fitted": len(fitted), "anomalies": int((y == held_out).sum()), "others": int((y[tested] != held_out).sum())}
    return {**counts, "features": X.shape[1], "auroc": auroc, "seconds": seconds}


def main() -> None:
    """Adds a row for each set, class and seed that the ledger lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = ledger.parse(parser, "held_out_classes")
    detection_peers.require("pyod")
    if args.tiny:
        args.data, args.seeds = ["iris"], [0]
    for name in args.data:
        X, y = SETS[name](return_X_y=True)
        for held_out in range(1 if args.tiny else int(y.max()) + 1):
            for seed in args.seeds:
                fields = {"data": name, "held_out": held_out, "seed": seed}
                if not ledger.holds(args.out, **fields):
                    row = {**fields, **measured(X, y, held_out, seed)}
                    ledger.add(args.out, ledger.row(row, seed=seed, peers=("pyod",)), shown=(*fields, "auroc"))


if __name__ == "__main__":
    main()
