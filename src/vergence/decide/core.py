"""The contract of detectors: fit to features of normal items, then a score for every item. `Calibrated` judges by any.

Shapes: N items, D features. Detectors are scikit-learn estimators with its convention for anomalies, and take tensors too.
"""

import abc
import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import OutlierMixin, clone
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from typing_extensions import Self

from vergence.decide import conformal
from vergence.decide.decisions import LEAST, Counts, Decisions, calibrate, decided
from vergence.decide.inputs import as_values, generator, labels_of, numeric
from vergence.decide.splits import apart, grouped
from vergence.densities.moments import blocks
from vergence.densities.storage import Stored
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import expect, require_count, require_within

__all__ = ["Calibrated", "Detector", "cross_fit"]

SHARE = 0.3  # of the items of `Calibrated.fit` that calibrate


def weights_of(values: Any, items: Any) -> np.ndarray | None:
    """Returns the weights (N,) of checked items, given for each or as one number for all; None where none are given."""
    if values is None:
        return None
    w = numeric("sample_weight", values).double()
    weights: np.ndarray = _check_sample_weight(to_numpy(w) if w.ndim else w.item(), items, dtype=np.float64)
    usable = (weights >= 0).all() and weights.sum() > 0
    expect(usable, "weights that are not negative and not all zero", "others", "leave such items out")
    return weights


class Detector(OutlierMixin, Stored, abc.ABC):  # type: ignore[misc]
    """A score of how normal an item is, fitted to features of items that are mostly normal.

    A concrete class has ``_fit(X, w)`` for items (N, D) of float32 or float64 and weights (N,) or None, and
    ``_score(block)`` for some of the items, (n, D) in float64. Fitted state is in attributes with a trailing underscore.
    scikit-learn's interface for anomalies wants `score_samples`; `anomaly_score` has the sign of all scores of this library.

    Attributes:
        offset_: Threshold of `score_samples`: the share ``contamination`` of the items of `fit` lies below it.
        n_features_in_: D.
    """

    contamination: float

    @abc.abstractmethod
    def _fit(self, X: Any, w: np.ndarray | None) -> None: ...

    @abc.abstractmethod
    def _score(self, block: np.ndarray) -> np.ndarray: ...

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fits to features (N, D), N >= 2; an item of ``sample_weight`` (N,) 2 counts as two items, and ``y`` is not used."""
        require_within("(0, 0.5]", contamination=self.contamination)
        items = self._read(X, reset=True)
        w = weights_of(sample_weight, items)
        items, w = (items, w) if w is None or (w > 0).all() else (items[w > 0], w[w > 0])
        expect(len(items) >= 2, "at least 2 items of positive weight", "one", "give more")
        self._fit(items, w)
        scores = self._over(items)
        order = np.argsort(scores)  # the largest score that has at most this share of the weight strictly below it
        below = np.cumsum(np.ones(len(scores)) if w is None else w[order])
        first = np.searchsorted(below, self.contamination * below[-1] * (1 + 1e-12), side="right")
        offset = float(scores[order][min(first, len(scores) - 1)])
        finite = np.isfinite(offset) and not np.isnan(scores).any()
        expect(finite, "features whose squares can be summed", "larger ones", "divide them by a number")
        self.offset_ = offset
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Returns how normal each item is, (N,); larger is more normal. Log-densities are in nats."""
        check_is_fitted(self)
        return self._over(self._read(X, reset=False))

    def anomaly_score(self, X: Any) -> np.ndarray:
        """Returns how anomalous each item is, (N,): minus `score_samples`."""
        return -self.score_samples(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Returns `score_samples` minus ``offset_``, (N,): negative for anomalies."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Returns -1 for anomalies and 1 for all other items, (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _try(self) -> None:
        expect(not np.isnan(self.decision_function(np.zeros((1, self.n_features_in_)))).any(), "scores that are numbers")

    def _read(self, X: Any, *, reset: bool) -> Any:
        """Returns checked items."""
        return validate_data(self, to_numpy(X), reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=2 if reset else 1)

    def _over(self, X: Any) -> np.ndarray:
        """Returns the scores of checked items, block by block."""
        return np.concatenate([self._score(np.asarray(X[rows], dtype=np.float64)) for rows in blocks(X)])


def cross_fit(detector: Any, X: Any, n_folds: int = 5, groups: Any = None, random_state: Any = 0) -> Any:
    """Returns out-of-fold anomaly scores: each item is scored by a detector that has not seen it, nor its group.

    Args:
        detector: Unfitted detector, which is cloned for each fold: one of this library, one of scikit-learn with
            ``score_samples``, or a pipeline that ends in one.
        X: Features (N, D).
        n_folds: Folds, 2 to N.
        groups: Group of each item, (N,), for instance of near-duplicates, which is in one fold; by default each item is a group.
        random_state: Seed of the folds.

    Returns:
        The scores (N,); the fold of each item, (N,); and the fitted detector of each fold, which has seen all other folds.

    Example:
        >>> from vergence.decide import GaussianDetector
        >>> X = np.random.default_rng(0).normal(size=(100, 3))
        >>> X[7] = 9.0
        >>> scores, folds, detectors = cross_fit(GaussianDetector(), X)
        >>> int(scores.argmax()), len(detectors)
        (7, 5)
    """
    require_count(2, n_folds=n_folds)
    expect(hasattr(detector, "score_samples") and not isinstance(detector, type), "a detector with score_samples", detector)
    X = _matrix(X)
    folds = folds_of(len(X), n_folds, groups, random_state)
    scores, fitted = np.empty(len(folds)), []
    for fold in range(n_folds):
        inside = folds == fold
        fitted.append(clone(detector).fit(X[~inside]))
        scores[inside] = -fitted[-1].score_samples(X[inside])
    return scores, folds, fitted


def _matrix(X: Any) -> Any:
    """Returns features that have rows."""
    X = to_numpy(X)
    X = np.asarray(X) if isinstance(X, (list, tuple)) or issparse(X) else X
    expect(getattr(X, "ndim", 0) == 2, "features (N, D)", f"a {type(X).__name__}", "pass an array")
    return X


def folds_of(n: int, n_folds: int, groups: Any = None, random_state: Any = 0) -> np.ndarray:
    """Returns the fold of each item; folds have about equally many items, the largest groups are placed first."""
    labels = np.arange(n) if groups is None else labels_of("groups", groups, n)
    _, group, size = np.unique(labels, return_inverse=True, return_counts=True)
    expect(len(size) >= n_folds, f"at least {n_folds} items or groups for {n_folds} folds", len(size), "lower n_folds")
    order = generator(random_state).permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    fold, filled = np.empty(len(size), dtype=np.int64), np.zeros(n_folds, dtype=np.int64)
    for index in order:
        fold[index] = filled.argmin()
        filled[fold[index]] += size[index]
    return fold[group]


@dataclass(eq=False, repr=False)
class Calibrated(Stored):
    """Any detector with a calibration part that it is not fitted to: p-values and flags with a rate.

    The detector is one of this library, of scikit-learn (``score_samples``), PyOD (``decision_function``), pytorch-ood
    (``fit_features`` and ``predict_features``), or any estimator with ``fit`` and your own function. Items of a group are on one
    side of the split; without groups, near duplicates are.

    Args:
        detector: The detector, which is cloned.
        share: Share of the items of `fit` that calibrate, in (0, 1).
        folds: Instead, number of parts that calibrate in turn, each by a detector of the others; a new item is compared with each
            part by its detector (cross-conformal). P(p <= a) is then bounded by little more than 2 a, and is mostly near a; the
            rate of a list is measured, not proven. 0 for one split, of which all rates are proven.
        score: Function (fitted detector, X) -> scores (N,), larger is more anomalous; by default the detector's own.
        weights: Function X -> weights (N,) > 0, the density of new items over that of the items of the fit, up to a factor,
            for a given change of normal items. p-values hold; the rate of a list is measured, not proven. Not with ``folds``.
        random_state: Seed of the split.

    Attributes:
        detector_: The fitted detector; with ``folds`` that of the first.
        calibration_: Scores of the calibration items (n,).

    Example:
        >>> from sklearn.ensemble import IsolationForest
        >>> rng = np.random.default_rng(0)
        >>> model = Calibrated(IsolationForest(random_state=0)).fit(rng.normal(size=(1000, 2)))
        >>> model.decide([[0.0, 0.0], [9.0, 9.0]]).flag.tolist()
        [False, True]
    """

    detector: Any
    _: KW_ONLY
    share: float = SHARE
    folds: int = 0
    score: Callable[[Any, Any], Any] | None = None
    weights: Callable[[Any], Any] | None = None
    random_state: int = 0

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> "Calibrated":
        """Fits to a part of normal items (N, D), and scores the other part; items of one of ``groups`` (N,) stay together."""
        require_within("(0, 1)", share=self.share)
        require_count(0, folds=self.folds)
        expect(self.folds != 1, "folds of 0, or of at least 2", 1)
        expect(not self.folds or self.weights is None, "weights or folds", "both", "leave one out")
        x = np.asarray(to_numpy(X))
        part = self._parts(x.reshape(len(x), -1), groups)
        self.detectors_ = [_fitted(self.detector, x[part != k]) for k in range(max(part) + 1)]
        self.parts_ = [self._scores(one, x[part == k]) for k, one in enumerate(self.detectors_)]
        self.detector_, self.calibration_ = self.detectors_[0], np.concatenate(self.parts_)
        self.weights_ = None if self.weights is None else self._weights(x[part == 0])
        return self

    def _parts(self, x: np.ndarray, groups: Any) -> np.ndarray:
        """Returns by which detector each item is held out (N,), -1 for none; a group or near duplicates are together."""
        group = grouped(groups, x)
        part, shares = np.full(len(x), -1), [1 / (self.folds - k) for k in range(self.folds - 1)] or [self.share]
        for k, share in enumerate(shares):
            left = np.flatnonzero(part < 0)
            part[left[apart(np.unique(group[left], return_inverse=True)[1], share, self.random_state + k)]] = k
        if self.folds:
            part[part < 0] = self.folds - 1
        least = int(np.bincount(part[part >= 0], minlength=self.folds).min()) * max(self.folds, 1)
        expect(least >= LEAST, f"at least {LEAST} calibration items", least, "give more items or groups, or a larger share")
        return part

    def _weights(self, X: Any) -> np.ndarray:
        """Returns the weights of items (N,)."""
        assert self.weights is not None
        found = as_values("weights", self.weights(X))
        expect(np.isfinite(found).all() and (found > 0).all(), "finite weights above 0", f"{found.min():g} to {found.max():g}")
        return found

    def scores(self, X: Any) -> np.ndarray:
        """Returns the scores of items (m,), with ``folds`` the means over detectors; larger is more anomalous."""
        check_is_fitted(self, "detector_")
        return np.asarray(np.mean([self._scores(one, X) for one in self.detectors_], axis=0))

    def _scores(self, fitted: Any, X: Any) -> np.ndarray:
        """Returns a fitted detector's scores of items (m,); larger is more anomalous."""
        if self.score is not None:
            found = self.score(fitted, X)
        elif hasattr(fitted, "anomaly_score"):
            found = fitted.anomaly_score(X)
        elif hasattr(fitted, "decision_scores_"):  # PyOD, whose scores are larger for anomalies
            found = fitted.decision_function(X)
        elif hasattr(fitted, "predict_features"):  # pytorch-ood, likewise
            found = fitted.predict_features(torch.as_tensor(np.asarray(X), dtype=torch.float32))
        else:
            usable = hasattr(fitted, "score_samples")
            expect(usable, "a detector with scores", type(fitted).__name__, "pass score=")
            found = -np.asarray(fitted.score_samples(X))
        return as_values("scores", found)

    def p_values(self, X: Any) -> np.ndarray:
        """Returns the p-value of each item, (m,)."""
        return self.decide(X).p_value

    def decide(self, X: Any, *, fdr: float = 0.1, **options: Any) -> Decisions:
        """Returns which items are anomalous; ``options`` are those of `calibrate`."""
        check_is_fitted(self, "detector_")
        if not self.folds and self.weights_ is None:
            return calibrate(self.calibration_, self.scores(X), fdr=fdr, **options)
        require_within("(0, 1)", fdr=fdr)
        expect(not options, "fdr only, with folds or weights", ", ".join(options), "leave it out, or fit without these")
        if self.weights_ is not None:
            scores = self.scores(X)
            p = conformal.weighted(self.calibration_, scores, self.weights_, self._weights(X))
            found = decided(p, fdr, len(self.calibration_), score=scores)
            return replace(found, why_none="No p-value is small enough: look at the smallest first.")
        n, new = len(self.calibration_), [self._scores(one, X) for one in self.detectors_]
        reach = sum(conformal.ranked(cal, s) * (len(cal) + 1) - 1 for cal, s in zip(self.parts_, new, strict=True))
        counts, columns = Counts(n, fdr), {"p_value": (1 + np.rint(reach)) / (n + 1), "score": np.mean(new, axis=0)}
        counts.see(columns)
        return replace(counts.decisions({**columns, **counts.columns(columns)}), shift=None)

    def predict(self, X: Any) -> np.ndarray:
        """Returns -1 for flagged items and 1 for others, as scikit-learn does, at a false-discovery rate of 0.1."""
        return np.where(self.decide(X).flag, -1, 1)

    def save(self, path: str | Path) -> None:
        """Writes the detector, one of this library, and its calibration scores to one ``.safetensors`` file."""
        own = isinstance(self.detector, Stored) and self.score is None
        found, advice = type(self.detector if self.score is None else self.score).__name__, "keep its calibration_ scores instead"
        expect(own, "a detector of this library, which is saved without pickle", found, advice)
        super().save(path)

    def _try(self) -> None:
        self.scores(np.zeros((1, self.detector_.n_features_in_)))


def _fitted(detector: Any, x: np.ndarray) -> Any:
    """Returns a copy of a detector that is fitted to items."""
    if hasattr(detector, "get_params"):
        return clone(detector).fit(x)
    copied = copy.deepcopy(detector)
    if hasattr(copied, "fit_features"):  # pytorch-ood, whose normal items are those of a class >= 0
        return copied.fit_features(torch.as_tensor(x, dtype=torch.float32), torch.zeros(len(x), dtype=torch.int64))
    return copied.fit(x)
