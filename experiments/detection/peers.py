"""Detectors of PyOD and pytorch-ood under the names of ours, `fit` and `anomaly_score`, with the settings that they come with."""

import importlib.util
import sys
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

MODULES = {"pyod": "pyod", "pytorch-ood": "pytorch_ood"}  # distribution -> module


class PyOD:
    """A detector of PyOD on a matrix of features.

    Args:
        detector: The detector; larger scores are more anomalous.
        standardize: Whether features are centered and divided by their deviation among the items of the fit first.
    """

    def __init__(self, detector: Any, *, standardize: bool = True) -> None:
        self.detector, self.scaler = detector, StandardScaler(with_mean=standardize, with_std=standardize)

    def fit(self, X: np.ndarray) -> "PyOD":
        self.detector.fit(self.scaler.fit_transform(X))
        return self

    def anomaly_score(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.detector.decision_function(self.scaler.transform(X)))


class PytorchOOD:
    """A detector of pytorch-ood on features of a network as they are, without labels: all items of the fit have class 0."""

    def __init__(self, detector: Any) -> None:
        self.detector = detector

    def fit(self, X: np.ndarray) -> "PytorchOOD":
        self.detector.fit_features(torch.from_numpy(X), torch.zeros(len(X), dtype=torch.int64))
        return self

    def anomaly_score(self, X: np.ndarray) -> np.ndarray:
        return self.detector.predict_features(torch.from_numpy(X)).numpy()


def require(*packages: str) -> None:
    """Ends the program with one line where a package is not installed."""
    if missing := [name for name in packages if importlib.util.find_spec(MODULES[name]) is None]:
        print(f"expected {' and '.join(missing)}, not installed: run pip install {' '.join(missing)}", file=sys.stderr)
        sys.exit(2)


def of_pyod(seed: int, *, standardize: bool = True) -> dict[str, PyOD]:
    """Returns PyOD's five detectors that are used most, by name."""
    from pyod.models.ecod import ECOD
    from pyod.models.iforest import IForest
    from pyod.models.knn import KNN
    from pyod.models.lof import LOF
    from pyod.models.ocsvm import OCSVM

    found = {"ECOD": ECOD(), "IForest": IForest(random_state=seed), "KNN": KNN(), "LOF": LOF(), "OCSVM": OCSVM()}
    return {f"pyod {name}": PyOD(one, standardize=standardize) for name, one in found.items()}


def of_pytorch_ood() -> dict[str, PytorchOOD]:
    """Returns the detectors of pytorch-ood that need features alone, by name."""
    from pytorch_ood.detector import KNN, Mahalanobis

    return {f"pytorch-ood {type(one).__name__}": PytorchOOD(one) for one in (KNN(None), Mahalanobis(None))}


def of(packages: list[str], seed: int) -> dict[str, PyOD | PytorchOOD]:
    """Returns the detectors of some packages, by name."""
    both = {"pyod": lambda: of_pyod(seed), "pytorch-ood": of_pytorch_ood}
    return {name: one for package in packages for name, one in both[package]().items()}
