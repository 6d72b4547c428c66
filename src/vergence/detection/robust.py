r"""Robust detectors over levels of features of items among which oddities are, without a reference.

1. Of each level, K Gaussians are fitted to all but one fold, each to its most likely 60 % (`GaussianDetector` with a trimmed
   likelihood): a cluster of oddities then attracts none of them.
2. The squared Mahalanobis distance d^2 of each item in the fold that was left out, t = log d^2, is compared with all others by
   quantiles that oddities do not move: s = (t - median) / ((upper quartile - median) / 0.6745).
3. The level ``summary`` has few features, so d is the distance to the fifth neighbor in the other folds instead, with each
   feature in units of its robust deviation: one Gaussian does not fit items of several kinds, and neighbors need few items.
4. The score is the largest s over the levels: an oddity shows at one level, and looks most typical at others.

Shapes: N items, L levels.
"""

from collections.abc import Mapping

import numpy as np

from vergence.detection.conformal import tail_p_values
from vergence.detection.core import cross_fit
from vergence.detection.density import GaussianDetector
from vergence.detection.moments import Tail, deviation
from vergence.detection.neighbors import NeighborDetector

__all__ = ["RobustDetector"]

SUMMARY = "summary"  # level that neighbors score
NEIGHBORS = 5

TRIM = 0.4  # largest share of oddities that no fit sees, with the most extreme of the typical items
FOLDS = 5
QUARTILE = 0.6744897501960817  # of the standard normal distribution
FEWEST_TAIL = 100  # scores of `tail_p_values`


class RobustDetector:
    """Scores of the items that it is fitted to, out of fold, and of others; ``seed`` is that of the folds.

    Attributes:
        levels_: Names of the levels.
        contributions_: Anomaly scores (N, L) of the items of `fit` at each level.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(400, 3))
        >>> x[:40] = 0.1 * x[:40] + 9.0  # a cluster
        >>> score = RobustDetector().fit({"x": x}).contributions_.max(1)
        >>> bool(score[:40].min() > score[40:].max())
        True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, X: Mapping[str, np.ndarray], groups: np.ndarray | None = None) -> "RobustDetector":
        """Fits the detectors of all levels to their features (N, D), N >= 20; a group, such as copies, is in one fold."""
        self.levels_ = list(X)
        self._detectors: dict[str, GaussianDetector | NeighborDetector] = {}  # of the first fold
        self._units: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # medians and deviations of levels that neighbors score
        self._scale: dict[str, tuple[float, float]] = {}
        self.contributions_ = np.stack([self._fit(name, X[name], groups) for name in self.levels_], -1)
        return self

    def contributions(self, X: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the anomaly scores (M, L) of items that no fit has seen."""
        if not len(X[self.levels_[0]]):  # a batch of files of which none could be read
            return np.zeros((0, len(self.levels_)))
        columns = []
        for name in self.levels_:
            detector = self._detectors[name]
            scores = detector.anomaly_score(self._in_units(name, X[name]))
            columns.append(self._standardized(name, _log_distance(detector, scores)))
        return np.stack(columns, -1)

    def p_values(self, score: np.ndarray, level: int | None = None) -> np.ndarray:
        """Returns how probable it is that a typical item has at least each anomaly score (M,), most of which `fit` has seen.

        Each score is compared with a tail of the smaller ones (`vergence.detection.tail_p_values`); of few or equal ones the
        tail is fitted to the largest tenth, which hides oddities among them. A score is the largest contribution of an item, or
        that of the level of the given number.
        """
        if len(score) >= FEWEST_TAIL and np.quantile(score, 0.9) < score.max():
            return np.asarray(tail_p_values(score))
        typical = self.contributions_.max(1) if level is None else self.contributions_[:, level]
        return np.asarray(np.exp(Tail(typical).log_probability(score)))

    def _fit(self, name: str, x: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
        detector: GaussianDetector | NeighborDetector = GaussianDetector(trim=TRIM)
        if name == SUMMARY:
            detector = NeighborDetector(NEIGHBORS, standardize=False)
            middle = np.median(x, 0)
            self._units[name] = middle, deviation(x - middle)
        scores, folds, detectors = cross_fit(detector, self._in_units(name, x), FOLDS, groups, self.seed)
        self._detectors[name] = detectors[0]
        t = np.empty(len(scores))
        for fold, fitted in enumerate(detectors):
            t[folds == fold] = _log_distance(fitted, scores[folds == fold])
        median, upper = np.quantile(t, [0.5, 0.75])
        self._scale[name] = float(median), max(float(upper - median), 1e-12) / QUARTILE
        return self._standardized(name, t)

    def _in_units(self, name: str, x: np.ndarray) -> np.ndarray:
        if name not in self._units:
            return x
        middle, unit = self._units[name]
        return np.asarray((x - middle) / unit)

    def _standardized(self, name: str, t: np.ndarray) -> np.ndarray:
        median, spread = self._scale[name]
        return (t - median) / spread


def _log_distance(detector: GaussianDetector | NeighborDetector, scores: np.ndarray) -> np.ndarray:
    """Returns log d^2, the squared distance from the mean of a Gaussian, or log d, that to a neighbor."""
    d = 2 * (scores + detector.log_norm_) if hasattr(detector, "log_norm_") else scores
    return np.asarray(np.log(np.maximum(d, np.finfo(np.float64).tiny)))
