"""Detectors of PyOD and pytorch-ood under the names of ours, `fit` and `anomaly_score`, with the settings that they come with."""

import importlib.util
import sys
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

MODULES = {"pyod": "pyod", "pytorch-ood": "pytorch_ood"}  # distribution -> module


class PyOD:
    """A detector of PyOD on a matrix of features, standardized by the items of the fit unless ``standardize`` is False."""

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

    detectors = {"ECOD": ECOD(), "IForest": IForest(random_state=seed), "KNN": KNN(), "LOF": LOF(), "OCSVM": OCSVM()}
    return {f"pyod {name}": PyOD(detector, standardize=standardize) for name, detector in detectors.items()}


def of_packages(packages: list[str], seed: int) -> dict[str, PyOD | PytorchOOD]:
    """Returns the detectors of some packages, by name; of pytorch-ood those that need features alone."""
    detectors: dict[str, PyOD | PytorchOOD] = dict(of_pyod(seed)) if "pyod" in packages else {}
    if "pytorch-ood" in packages:
        from pytorch_ood.detector import KNN, Mahalanobis

        detectors |= {f"pytorch-ood {type(one).__name__}": PytorchOOD(one) for one in (KNN(None), Mahalanobis(None))}
    return detectors
