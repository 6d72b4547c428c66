r"""Feature sets in one anomaly score: log-distances of each on one scale, a mean of them, and p-values next to a reference.

Each feature set gives log-distances t of items to what the reference is like. With their median and deviation over reference
items that were not fitted to,

    z = max((t - median) / deviation, -3),    s = log (sum over feature sets of w exp(a z)) / a,

with weights w that add up to 1 and a sharpness a: the score is the weighted mean of the z for a = 0, and for a > 0 it lies
between that and the largest, so that an item that is far out in one set is not hidden by others. Nor does one that lies very
close in one set look normal in all.

The p-value of a new item is conformal where one fit gives the scores of all, and cross-conformal where K fits do, each without a
fold of the reference (Vovk, Cross-conformal predictors, 2015):

    p(x) = (1 + sum_k #{i in fold k : s_i >= s_k(x)}) / (n + 1).

For a normal item P(p <= a) is at most a with one fit, and at most 2 a + (1 - K / n) / (K + 1) with K (Barber et al., Predictive
inference with the jackknife+, 2021), close to a in practice. Two numbers of each feature set, median and deviation, are those of
items that calibrate. Where n items are of G groups, none of which is a new item's, each counts 1 / n_g among the n_g of its
group, and p has the denominator G + 1 (Lee, Barber & Willett, Distribution-free inference with hierarchical data, 2023).

Shapes: n reference items, M new ones, K folds, L feature sets, D features.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtri
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from vergence.decide.core import Detector
from vergence.decide.density import RidgeGaussian
from vergence.densities.storage import Stored
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import expect, require_within
from vergence.utils.dtypes import Bools, Floats, Ints

__all__ = ["FeatureSets"]

TAIL = 0.01  # of the reference, whose log-distances are large
LEAST = 0.02  # deviation of log-distances, at least
LOWEST = -3.0  # deviations


def middle_and_deviation(t: Floats, tail: float = TAIL) -> tuple[float, float]:
    """Returns the median of log-distances (n,) and their deviation.

    The deviation is that of a Gaussian of the same median and 1 - ``tail`` quantile, and at least the median absolute
    deviation's: a set in which some reference items lie far out counts less, and no single one moves it. NaN are left out.
    """
    t = t[np.isfinite(t)]
    middle = float(np.median(t))
    upper = (float(np.quantile(t, 1 - tail)) - middle) / float(ndtri(1 - tail))
    return middle, max(1.4826 * float(np.median(np.abs(t - middle))), upper, LEAST)


def standardized(t: Floats, middle: Any, deviation: Any) -> Floats:
    """Returns log-distances in deviations from the median, at least -3; NaN stay."""
    return np.asarray(np.maximum((t - middle) / deviation, LOWEST))


def soft_mean(z: Floats, w: Any, sharpness: float) -> Floats:
    """Returns scores (...,) of deviations (..., L) by weights (L,) that add up to 1."""
    if sharpness == 0:
        return np.asarray(z @ np.asarray(w))
    return np.asarray(logsumexp(sharpness * z, b=np.asarray(w), axis=-1) / sharpness)


def shares(names: Iterable[str], weights: Mapping[str, float]) -> dict[str, float]:
    """Returns the weights of some names, divided by their sum."""
    given = {name: weights[name] for name in names}
    return {name: value / sum(given.values()) for name, value in given.items()}


@dataclass(frozen=True)
class FeatureSet:
    """Log-distances of one feature set: of the reference, out of fold, (n,), and of new items without each fold, (M, K)."""

    reference: Floats
    new: Floats

    @classmethod
    def of_vectors(cls, reference: Floats, new: Floats, fold: Ints) -> "FeatureSet":
        """Returns the distances of rows (n, D) and (M, D) under Gaussians with a ridge; a fold below 0 is fitted to alone."""
        t, columns = np.full(len(reference), np.nan), []
        for k in np.unique(fold[fold >= 0]):
            gaussian = RidgeGaussian(reference[fold != k])
            t[fold == k] = gaussian.log_distance(reference[fold == k])
            columns.append(gaussian.log_distance(new))
        return cls(t, np.stack(columns, 1))

    def standardized(self, tail: float = TAIL) -> "FeatureSet":
        """Returns the same in deviations from the median of the reference."""
        middle, deviation = middle_and_deviation(self.reference, tail)
        return FeatureSet(standardized(self.reference, middle, deviation), standardized(self.new, middle, deviation))


def combined(
    sets: Mapping[str, FeatureSet], w: Mapping[str, float], sharpness: float = 0.0, tail: float = TAIL
) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Returns scores of the reference (n,) and of new items (M, K), and what each feature set adds to the latter, (M,)."""
    z, weights = [one.standardized(tail) for one in sets.values()], [w[name] for name in sets]
    both = [one.reference for one in z], [one.new for one in z]
    reference, new = (soft_mean(np.stack(parts, -1), weights, sharpness) for parts in both)
    added = {name: w[name] * one.new.mean(1) for name, one in zip(sets, z, strict=True)}
    return reference, new, added


def group_weights(groups: Any) -> Floats:
    """Returns 1 / n_g for each item (n,) of a group of n_g."""
    group = np.unique(np.asarray(groups), return_inverse=True)[1]
    return np.asarray(1 / np.bincount(group)[group])


@dataclass(frozen=True)
class ReferenceScores:
    """Scores of the reference items that calibrate."""

    scores: Floats  # score, fold and name of each, (n,)
    fold: Ints
    names: Sequence[str]
    seen: Bools  # which new items are among them, (M,)
    weight: Floats | None = None  # of each, (n,): 1 / n_g in a group of n_g that counts as one example
    groups: tuple[Ints, Ints] | None = None  # of these (n,) and of new items (M,), compared only within their group

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def folds(self) -> int:
        """K; 1 where half of the reference calibrates."""
        return int(self.fold.max()) + 1

    @property
    def grouped(self) -> str:
        """How groups calibrate: ``within`` each, ``between`` them, or empty without any."""
        return "within" if self.groups is not None else "between" if self.weight is not None else ""

    @cached_property
    def least(self) -> Floats:
        """The least p-value that each new item can have, (M,)."""
        return self.p_values(np.full((len(self.seen), self.folds), np.inf))

    @property
    def examples(self) -> int:
        """Independent items that a new one is compared with, at least: n, groups, or items of the smallest group."""
        return round(1 / float(self.least.max(initial=1 / (len(self) + 1)))) - 1

    def p_values(self, scores: Floats) -> Floats:
        """Returns p-values (M,) of scores (M, K)."""
        if self.groups is None:
            return self._among(scores, np.ones(len(self), dtype=bool))
        own, new = self.groups
        p = np.ones(len(scores))
        for group in np.unique(new):
            p[new == group] = self._among(scores[new == group], own == group)
        return p

    def _among(self, scores: Floats, items: Bools) -> Floats:
        """Returns p-values (M,) of scores (M, K) among some items (n,)."""
        weight = np.ones(len(self)) if self.weight is None else self.weight
        at_least = np.zeros(len(scores))
        for k in range(self.folds):
            rows = np.flatnonzero(items & (self.fold == k))
            rows = rows[np.argsort(self.scores[rows], kind="stable")]
            from_here = np.append(np.cumsum(weight[rows][::-1])[::-1], 0.0)
            at_least += from_here[np.searchsorted(self.scores[rows], scores[:, k])]
        return np.asarray(np.minimum((1 + at_least) / (weight[items].sum() + 1), 1.0))


@dataclass(eq=False, repr=False)
class FeatureSets(Stored):
    """Fitted feature sets of items in one anomaly score; see the module.

    Features are a dictionary of matrices (N, D), by the name of their feature set.

    Args:
        detectors: Detectors with ``log_distance`` by the name of their feature set: `GaussianDetector` or `NeighborDetector`.
        weights: Weights by the name of the feature set, > 0, of which only the ratios matter; 1 for the others.
        sharpness: a >= 0: 0 for the weighted mean, larger to follow the set in which an item is farthest out.

    Attributes:
        detectors_: Fitted detectors by name.
        scale_: Median and deviation (L, 2) of the log-distances of items that were not fitted to; see `calibrate`.

    Example:
        >>> from vergence.decide import GaussianDetector, NeighborDetector
        >>> rng = np.random.default_rng(0)
        >>> def items(n):
        ...     return {"colors": rng.normal(size=(n, 3)), "z": rng.normal(size=(n, 8))}
        >>> sets = FeatureSets({"colors": GaussianDetector(), "z": NeighborDetector()}).fit(items(500))
        >>> calibration = sets.calibrate(reference := items(200)).anomaly_score(reference)
        >>> anomaly = {"colors": np.zeros((1, 3)), "z": np.full((1, 8), 4.0)}
        >>> bool(sets.anomaly_score(anomaly) > calibration.max()), sets.deviations(anomaly).argmax(1).tolist()
        (True, [1])
    """

    detectors: Mapping[str, Detector]
    _: KW_ONLY
    weights: Mapping[str, float] | None = None
    sharpness: float = 0.25

    def fit(self, X: Mapping[str, Any]) -> "FeatureSets":
        """Fits the detector of each feature set."""
        usable = isinstance(self.detectors, Mapping) and all(hasattr(d, "log_distance") for d in self.detectors.values())
        expect(usable and self.detectors, "detectors with log_distance by name", self.detectors, "such as GaussianDetector()")
        weights = self.weights or {}
        expect(isinstance(weights, Mapping) and weights.keys() <= self.detectors.keys(), "weights by these names", weights)
        require_within("[0, inf)", sharpness=self.sharpness)
        require_within("(0, inf)", **{f"weights[{name}]": weight for name, weight in weights.items()})
        self.detectors_ = {name: clone(d).fit(x) for (name, d), x in zip(self.detectors.items(), self._read(X), strict=True)}
        return self

    def _read(self, X: Mapping[str, Any]) -> list[Any]:
        """Returns the features of each set."""
        missing = isinstance(X, Mapping) and [name for name in self.detectors if name not in X]
        names = f"features by name: {', '.join(self.detectors)}"
        expect(missing == [], names, missing or f"a {type(X).__name__}", "compute them")
        items = [to_numpy(X[name]) for name in self.detectors]
        expect(len({len(x) for x in items}) == 1, "the same items in every feature set", [len(x) for x in items])
        return items

    def log_distances(self, X: Mapping[str, Any]) -> Floats:
        """Returns the log-distances (N, L) of items."""
        check_is_fitted(self)
        return np.stack([d.log_distance(x) for d, x in zip(self.detectors_.values(), self._read(X), strict=True)], 1)

    def calibrate(self, X: Mapping[str, Any]) -> "FeatureSets":
        """Sets the scale by normal items that were not fitted to."""
        return self.scaled(self.log_distances(X))

    def scaled(self, t: Floats) -> "FeatureSets":
        """Sets the scale by log-distances (n, L) of such items."""
        self.scale_ = np.array([middle_and_deviation(column) for column in t.T])
        return self

    def out_of_fold(self, X: Mapping[str, Any], fold: Ints) -> Floats:
        """Returns the log-distances (N, L) of items by fits that have not seen their fold (N,)."""
        items, t = self._read(X), np.empty((len(fold), len(self.detectors)))
        for k in np.unique(fold):
            parts = ([x[rows] for x in items] for rows in (fold == k, fold != k))
            own, others = (dict(zip(self.detectors, part, strict=True)) for part in parts)
            t[fold == k] = clone(self).fit(others).log_distances(own)
        return t

    def deviations(self, X: Mapping[str, Any]) -> Floats:
        """Returns how far each item is from the median of the reference in each feature set, in deviations, (N, L)."""
        return self.standardized(self.log_distances(X))

    def standardized(self, t: Floats) -> Floats:
        """Returns log-distances (N, L) in deviations."""
        check_is_fitted(self, "scale_")
        return standardized(t, *self.scale_.T)

    @property
    def shares(self) -> dict[str, float]:
        """The weight of each feature set; they add up to 1."""
        return shares(self.detectors, dict.fromkeys(self.detectors, 1.0) | dict(self.weights or {}))

    def combined(self, z: Floats) -> Floats:
        """Returns the anomaly scores (N,) of deviations (N, L)."""
        return soft_mean(z, list(self.shares.values()), self.sharpness)

    def anomaly_score(self, X: Mapping[str, Any]) -> Floats:
        """Returns how anomalous each item is, (N,); larger is more anomalous."""
        return self.combined(self.deviations(X))

    def _try(self) -> None:
        zeros = {name: np.zeros((1, d.n_features_in_)) for name, d in self.detectors_.items()}
        scores = self.anomaly_score(zeros)
        expect(not np.isnan(scores).any() and (self.scale_[:, 1] > 0).all(), "scores that are numbers")
