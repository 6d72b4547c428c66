"""Any detector with a calibration part: p-values and flags with a rate."""

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from vergence.decide import conformal
from vergence.decide.decisions import LEAST, Counts, Decisions, calibrate, decided
from vergence.decide.inputs import as_values
from vergence.decide.splits import apart, grouped
from vergence.densities.storage import Stored
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import expect, require_count, require_within

__all__ = ["Calibrated"]

SHARE = 0.3  # of the items of `Calibrated.fit` that calibrate


@dataclass(eq=False, repr=False)
class Calibrated(Stored):
    """Any detector with a calibration part that it is not fitted to: p-values and flags with a rate.

    The detector is one of this library, of scikit-learn (``score_samples``), PyOD (``decision_function``, larger is stranger),
    pytorch-ood (``fit_features`` and ``predict_features``), or any estimator with ``fit`` and a function of one's own. Items of a
    group are on one side of the split; without groups, equal items and near copies are.

    Args:
        detector: The detector, which is cloned.
        share: Share of the items of `fit` that calibrate, in (0, 1).
        folds: Instead, number of parts that calibrate in turn, each by a detector of the others; a new item is compared with each
            part by its detector (cross-conformal). P(p <= a) is then bounded by little more than 2 a, and is mostly near a; the
            rate of a list is measured, not proven. 0 for one split, of which all rates are proven.
        score: Function (fitted detector, X) -> scores (N,), larger is stranger; by default the detector's own.
        weights: Function X -> weights (N,) > 0, the density of new items over that of the items of the fit, up to a factor,
            for a known change of normal items. p-values hold; the rate of a list is measured, not proven. Not with ``folds``.
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
        """Returns by which detector each item is held out (N,), -1 for none; items of a group, or near copies, are together."""
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
        """Returns the scores of items (m,), with ``folds`` the means over detectors; larger is stranger."""
        check_is_fitted(self, "detector_")
        return np.asarray(np.mean([self._scores(one, X) for one in self.detectors_], axis=0))

    def _scores(self, fitted: Any, X: Any) -> np.ndarray:
        """Returns a fitted detector's scores of items (m,); larger is stranger."""
        if self.score is not None:
            found = self.score(fitted, X)
        elif hasattr(fitted, "anomaly_score"):
            found = fitted.anomaly_score(X)
        elif hasattr(fitted, "decision_scores_"):  # PyOD, whose scores are larger for outliers
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
        expect(not options, "fdr alone with folds or weights", ", ".join(options), "leave it out, or fit without these")
        if self.weights_ is not None:
            scores = self.scores(X)
            p = conformal.weighted(self.calibration_, scores, self.weights_, self._weights(X))
            found = decided(p, fdr, len(self.calibration_), score=scores)
            return replace(found, why_none="no p-value is small enough; the order is still the one to look in")
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
