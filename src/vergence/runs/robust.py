r"""Scores of items among which oddities are, without a reference: robust fits, each on other items than it scores.

1. Of each level of features, K Gaussians are fitted to all but one fold, each to its most likely 60 % (`GaussianDetector` with a
   trimmed likelihood): a cluster of oddities then attracts none of them.
2. The squared Mahalanobis distance d^2 of each item in the fold that was left out, t = log d^2, is compared with all others by
   quantiles that oddities do not move: s = (t - median) / ((upper quartile - median) / 0.6745).
3. The level ``summary`` has few features, so d is the distance to the fifth neighbor in the other folds instead, with each
   feature in units of its robust deviation: one Gaussian does not fit items of several kinds, and neighbors need few items.
4. The score is the largest s over the levels: an oddity shows at one level, and looks most typical at others.
"""

from collections.abc import Mapping

import numpy as np

from vergence.detection import GaussianDetector, NeighborDetector, cross_fit
from vergence.detection.parts.robust import deviation
from vergence.runs.levels import Arrays

__all__ = ["SUMMARY", "RobustScores"]

SUMMARY = "summary"  # level that neighbors score
NEIGHBORS = 5

TRIM = 0.4  # largest share of oddities that no fit sees, with the most extreme of the typical items
FOLDS = 5
QUARTILE = 0.6744897501960817  # of the standard normal distribution


class RobustScores:
    """The scores of items that were fitted to, out of fold, and of others; larger is more anomalous.

    Args:
        levels: Features (N, D) by level, with at least 20 items.
        groups: Group of each item, (N,), such as copies; a group is in one fold. None makes each item a group.
        seed: Seed of the folds.

    Attributes:
        each: Scores (N, L) of the levels.
        names: Names of the levels.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(400, 3))
        >>> x[:40] = 0.1 * x[:40] + 9.0  # a cluster
        >>> found = RobustScores({"x": x})
        >>> bool(found.total[:40].min() > found.total[40:].max())
        True
    """

    def __init__(self, levels: Mapping[str, np.ndarray], groups: np.ndarray | None = None, seed: int = 0) -> None:
        self.names = list(levels)
        self._detectors: dict[str, GaussianDetector | NeighborDetector] = {}  # of the first fold
        self._units: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # medians and deviations of levels that neighbors score
        self._scale: dict[str, tuple[float, float]] = {}
        self.each = np.stack([self._fit(name, levels[name], groups, seed) for name in self.names], -1)

    @property
    def total(self) -> np.ndarray:
        """Scores (N,) of the items that were fitted to."""
        return np.asarray(self.each.max(1))

    def _fit(self, name: str, x: np.ndarray, groups: np.ndarray | None, seed: int) -> np.ndarray:
        detector: GaussianDetector | NeighborDetector = GaussianDetector(trim=TRIM)
        if name == SUMMARY:
            detector = NeighborDetector(NEIGHBORS, standardize=False)
            middle = np.median(x, 0)
            self._units[name] = middle, deviation(x - middle)
        scores, folds, detectors = cross_fit(detector, self._in_units(name, x), FOLDS, groups, seed)
        self._detectors[name] = detectors[0]
        t = np.empty(len(scores))
        for fold, one in enumerate(detectors):
            t[folds == fold] = _log_distance(one, scores[folds == fold])
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

    def of(self, levels: Arrays) -> np.ndarray:
        """Returns the scores (M, L) of items that no fit has seen."""
        if not len(levels[self.names[0]]):  # a batch of files of which none could be read
            return np.zeros((0, len(self.names)))
        found = []
        for name in self.names:
            one = self._detectors[name]
            scores = one.anomaly_score(self._in_units(name, levels[name]))
            found.append(self._standardized(name, _log_distance(one, scores)))
        return np.stack(found, -1)


def _log_distance(detector: GaussianDetector | NeighborDetector, scores: np.ndarray) -> np.ndarray:
    """Returns log d^2, the squared distance from the mean of a Gaussian, or log d, that to a neighbor."""
    d = 2 * (scores + detector.log_norm_) if isinstance(detector, GaussianDetector) else scores
    return np.asarray(np.log(np.maximum(d, np.finfo(np.float64).tiny)))
