"""Tables with one class held out: the detectors of `vergence.decide` against PyOD's five most used ones.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from experiments.detection import peers
from experiments.runner import SEEDS, main, some
from experiments.shared import Timer, auroc
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from vergence.decide import GaussianDetector, MixtureDetector, NeighborDetector

SETS = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}


def split(y: np.ndarray, held_out: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the fit, and those of the test: the class that is held out and the other half of the rest."""
    rest = np.random.default_rng(seed).permutation(np.flatnonzero(y != held_out))
    half = len(rest) // 2
    return rest[:half], np.r_[rest[half:], np.flatnonzero(y == held_out)]


def detectors(seed: int) -> dict[str, Any]:
    """Returns unfitted detectors by name."""
    ours = {
        "GaussianDetector": GaussianDetector(),
        "MixtureDetector": MixtureDetector(),
        "NeighborDetector": NeighborDetector(),
    }
    raw = {
        "GaussianDetector, raw": GaussianDetector(standardize=False),
        "NeighborDetector, raw": NeighborDetector(standardize=False),
        **{f"{name}, raw": detector for name, detector in peers.of_pyod(seed, standardize=False).items()},
    }
    return ours | peers.of_pyod(seed) | raw


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    peers.require("pyod")
    for data in a.data:
        for held_out in range(1 if a.tiny else int(SETS[data](return_X_y=True)[1].max()) + 1):
            for seed in a.seeds:
                yield {"data": data, "held_out": held_out, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the AUROC of every detector and the seconds of its fit and scores."""
    X, y = SETS[cell["data"]](return_X_y=True)
    odd = y == cell["held_out"]
    fitted, tested = split(y, cell["held_out"], cell["seed"])
    aurocs, seconds = {}, {}
    for name, detector in detectors(cell["seed"]).items():
        timer = Timer()
        aurocs[name] = auroc(odd[tested], detector.fit(X[fitted]).anomaly_score(X[tested]))
        seconds[name] = round(timer.seconds(), 3)
    counts = {"fitted": len(fitted), "anomalies": int(odd.sum()), "others": int((~odd[tested]).sum())}
    return {**counts, "features": X.shape[1], "auroc": aurocs, "seconds": seconds}


if __name__ == "__main__":
    tiny = {"data": ["iris"], "seeds": [0]}
    main(__doc__, "held_out_classes", {"data": some(SETS), "seeds": SEEDS}, cells, measure, tiny=tiny, peers=("pyod",))
