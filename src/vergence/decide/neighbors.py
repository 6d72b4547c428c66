"""The distance to the k-th nearest item of the fit, or center of its items."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch

from vergence.decide.core import Detector
from vergence.decide.moments import uniform
from vergence.densities.moments import blocks, standardized_moments
from vergence.utils.checks import expect, require_choice, require_count
from vergence.utils.neighbors import nearest_rows

__all__ = ["NeighborDetector"]

ITERATIONS = 4  # of k-means
TINY = 1e-12  # distance, at least
MEMBERS = 10  # items for each center, at most


@dataclass(eq=False, repr=False)
class NeighborDetector(Detector):
    """Minus the distance to the k-th nearest item of the fit; an item of the fit is not its own neighbor.

    It is not a density. More than k similar anomalies are each other's neighbors, which hides them.

    Args:
        n_neighbors: k, >= 1; at most N - 1 are used.
        max_items: Largest number of items that are kept; None keeps all. Scoring takes time and memory in proportion.
        keep: What is kept where there are more: ``random``, a random part of them with their weights, or ``centers``, the centers
            of as many clusters (k-means on at most ten items for each), each with a weight of 1, whose distances depend less
            on chance.
        metric: ``euclidean``, or ``cosine`` for 1 - cosine; a zero vector has cosine 0 to everything.
        standardize: Whether features are centered and divided by their deviation first.
        random_state: Seed of the part, or of the first centers; the order of the items does not matter.
        contamination: Share of the items of `fit` that `predict` calls anomalies, in (0, 0.5].

    Attributes:
        items_: Items or centers that are kept (N, D), standardized or normalized.
        weights_: Their weights (N,).
        location_: (D,).
        scale_: (D,).

    Example:
        >>> X = np.array([[0.0], [1.0], [2.0], [10.0]])
        >>> NeighborDetector(n_neighbors=1, standardize=False).fit(X).anomaly_score(X).tolist()
        [1.0, 1.0, 1.0, 8.0]
    """

    n_neighbors: int = 5
    _: KW_ONLY
    max_items: int | None = None
    keep: str = "random"
    metric: str = "euclidean"
    standardize: bool = True
    random_state: int | None = 0
    contamination: float = 0.05

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        require_count(n_neighbors=self.n_neighbors)
        require_choice("metric", self.metric, ["euclidean", "cosine"])
        require_choice("keep", self.keep, ["random", "centers"])
        if self.max_items is not None:
            require_count(2, max_items=self.max_items)
        self.location_, self.scale_ = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            m = standardized_moments(X, w)
            self.location_, self.scale_ = m.location.numpy(), m.scale.numpy()
        w = np.ones(len(X)) if w is None else w
        if self.max_items is not None and len(X) > self.max_items:
            chance = uniform(X, self.random_state)
            part = np.argsort(chance, kind="stable")[: self.max_items * (MEMBERS if self.keep == "centers" else 1)]
            X, w = X[part], w[part]
            if self.keep == "centers":
                self.items_ = self._centers(X, w, chance[part])
                self.weights_ = np.ones(len(self.items_))
                return
        self.items_, self.weights_ = np.empty_like(X, order="C"), w
        for rows in blocks(X):
            self.items_[rows] = self._scaled(X[rows])
        expect(w.sum() > 1, "weights that count items", f"a sum of {w.sum():g}", "multiply them")

    def _centers(self, X: np.ndarray, w: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Returns the centers of clusters of items in the order of their random numbers; the first distinct ones start."""
        x = self._scaled(X).astype(X.dtype)
        centers = x[np.unique(chance, return_index=True)[1][: self.max_items]]
        for _ in range(ITERATIONS):
            nearest = _nearest(centers, x, 1, self.metric == "cosine")[:, 0]
            members = np.argsort(nearest, kind="stable")
            used, start = np.unique(nearest[members], return_index=True)
            total = np.add.reduceat(w[members], start)
            mean = np.add.reduceat(x[members] * w[members, None], start) / total[:, None]
            centers[used] = self._unit(mean) if self.metric == "cosine" else mean
        return centers

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        x = (X - self.location_) / self.scale_
        return self._unit(x) if self.metric == "cosine" else np.asarray(x)

    @staticmethod
    def _unit(x: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        return np.asarray(x / np.where(norm > 0, norm, 1.0))

    def log_distance(self, X: Any) -> np.ndarray:
        """Returns the logarithm of each item's distance to its k-th nearest, (N,)."""
        return np.asarray(np.log(np.maximum(self.anomaly_score(X), TINY)))

    def _score(self, block: np.ndarray) -> np.ndarray:
        x = self._scaled(block).astype(self.items_.dtype)
        total = np.cumsum(np.sort(self.weights_))
        k = min(self.n_neighbors, total[-1] - 1)
        m = min(int(np.searchsorted(total, k + 1)) + 1, len(self.items_))  # so many always hold the weight k + 1
        index = _nearest(self.items_, x, m, self.metric == "cosine")
        itself = _first_equal(self.items_, x, index)
        weight = np.cumsum(self.weights_[index] - itself * np.minimum(self.weights_[index], 1.0), axis=1)
        kth = np.minimum((weight < k * (1 - 1e-12)).sum(1), m - 1)
        near = self.items_[index[np.arange(len(x)), kth]]
        with np.errstate(over="ignore"):  # refused by `fit`
            d = np.linalg.norm(x - near, axis=1).astype(np.float64)
        return -np.where(x.any(1) & near.any(1), d**2 / 2, 1.0) if self.metric == "cosine" else np.asarray(-d)


def _nearest(items: np.ndarray, x: np.ndarray, k: int, cosine: bool) -> np.ndarray:
    """Returns the indices of the k nearest items, (n, k), the nearest first."""
    bank, rows = (torch.from_numpy(np.ascontiguousarray(a)) for a in (items, x))
    return nearest_rows(bank, rows, k, directions=cosine).numpy()


def _first_equal(items: np.ndarray, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns 1 where a neighbor is the first that equals the query, else 0, (n, k); equal items have an equal first feature."""
    equal = items[index, 0] == x[:, :1]
    for column in np.flatnonzero(equal.any(0)).tolist():
        rows = np.flatnonzero(equal[:, column])
        equal[rows, column] = (items[index[rows, column]] == x[rows]).all(1)
    return np.asarray(equal & (np.cumsum(equal, axis=1) == 1), dtype=np.float64)
