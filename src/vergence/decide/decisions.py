r"""Decisions from the scores of any model: p-values by calibration, a rate of false discoveries or of false alarms.

Calibration scores are those of ordinary items that nothing was fitted to, by the same score function. What holds, and for what:

- p-values: P(p <= a) <= a for an ordinary new item of the same source (`p_values`); with groups, within each of them.
- ``fdr``: of what is flagged in one table, a share of at most ``fdr`` is ordinary on average over tables, not in each one.
- ``fpr``: at most this share of ordinary items is flagged, with ``confidence`` over calibration sets (`fpr_threshold`).

Nothing holds if the new items come from elsewhere than the calibration items; `Decisions.shift` says if they do as a whole.
Shapes: n calibration items, m new items.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from vergence.decide.conformal import Certificate, at_most, drift_of_counts, fpr_threshold, q_values, ranked, reportable
from vergence.decide.inputs import Values, as_values, labels_of
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import counted, expect, require_within
from vergence.utils.terminal import Tabular

__all__ = ["Calibrated", "Decisions", "calibrate"]

LEAST = 10  # calibration items, in all and of each group
SHIFTED = 0.01  # probability below which new items are said to be of another kind
SHARE = 0.3  # of the items of `Calibrated.fit` that calibrate
DIGITS = 3  # of standardized features, to which items are nearly equal


@dataclass(frozen=True)
class Decisions(Tabular):
    """What is unusual among new items.

    Attributes:
        p_value: (m,).
        q_value: (m,), the least false-discovery rate at which an item is flagged.
        flag: (m,) booleans.
        calibration: n.
        fdr: The rate, or None with a certificate.
        certificate: The threshold that holds a rate of false alarms, or None.
        shift: Probability that ordinary items are as strange as the new ones as a whole; None with groups.
    """

    p_value: np.ndarray
    q_value: np.ndarray
    flag: np.ndarray
    calibration: int
    fdr: float | None
    certificate: Certificate | None = None
    shift: float | None = None

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return {"p_value": self.p_value.tolist(), "q_value": self.q_value.tolist(), "flag": self.flag.astype(int).tolist()}

    @property
    def sentences(self) -> list[str]:
        """What was found and what it means, the most important first."""
        m, k = len(self.flag), int(self.flag.sum())
        found = []
        if self.shift is not None and self.shift <= SHIFTED:
            found.append(
                f"as a whole the new items are stranger than the calibration items (p-value {self.shift:.2g}): they come from "
                "elsewhere, or many are unusual; in the first case no rate holds"
            )
        if self.certificate is not None:
            return [f"{k:,} of {counted(m, 'item')} flagged: {self.certificate}", *found]
        assert self.fdr is not None
        if k:
            expected = f"about {self.fdr * k:.2g} of them ordinary on average, at most"
            return [f"{k:,} of {counted(m, 'item')} flagged at a false-discovery rate of {self.fdr:g}; {expected}", *found]
        why = str(reportable(self.calibration, m, self.fdr))
        return [f"none of {counted(m, 'item')} flagged at a false-discovery rate of {self.fdr:g}: {why}", *found]


def calibrate(
    calibration: Values,
    scores: Values,
    *,
    fdr: float = 0.1,
    fpr: float | None = None,
    confidence: float = 0.95,
    groups: tuple[Any, Any] | None = None,
    larger_is_stranger: bool = True,
) -> Decisions:
    """Returns which new items are unusual, from the scores of any model.

    Args:
        calibration: Scores (n,) of ordinary items that no fit has seen, n >= 10: an array, tensor, Series or list.
        scores: Scores (m,) of the items to judge.
        fdr: Share of the flagged items that is ordinary, on average at most, in (0, 1).
        fpr: Instead, the share of ordinary items that is flagged at most, with ``confidence``.
        confidence: Probability of that, over calibration sets, in (0, 1).
        groups: Labels of the calibration items (n,) and of the new ones (m,): the p-values hold within each group. Not with
            ``fpr``.
        larger_is_stranger: False for scores that are larger for ordinary items.

    Raises:
        ValueError: Scores are NaN, calibration scores are fewer than 10 or all equal, a group has fewer than 10, or the
            calibration items are among the new ones.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = calibrate(rng.normal(size=1000), [0.1, 8.0, -0.3])
        >>> found.flag.tolist()
        [False, True, False]
        >>> print(found.sentences[0])
        1 of 3 items flagged at a false-discovery rate of 0.1; about 0.1 of them ordinary on average, at most
    """
    require_within("(0, 1)", fdr=fdr)
    sign = 1.0 if larger_is_stranger else -1.0
    cal, new = (sign * as_values(name, x).cpu().numpy() for name, x in (("calibration scores", calibration), ("scores", scores)))
    expect(len(cal) >= LEAST, f"at least {LEAST} calibration scores", len(cal), "give more ordinary items")
    expect(
        np.ptp(cal) > 0 or groups is not None, "calibration scores that differ", f"{cal[0]:g} for all", "the score tells nothing"
    )
    _expect_apart(cal, new)
    certificate = None if fpr is None else fpr_threshold(cal, fpr, confidence)
    if groups is None:
        p = ranked(cal, new)
        counts = np.bincount(np.rint(p * (len(cal) + 1)).astype(np.int64), minlength=len(cal) + 2)
        shift = drift_of_counts(counts).p_value
    else:
        expect(fpr is None, "groups with fdr", "fpr", "leave one out")
        p, shift = _within(cal, new, groups), None
    q = q_values(p)
    flag = at_most(q, fdr) if certificate is None else new > certificate.threshold
    return Decisions(p, q, np.asarray(flag), len(cal), fdr if certificate is None else None, certificate, shift)


def _expect_apart(cal: np.ndarray, new: np.ndarray) -> None:
    """Refuses calibration scores, no two equal, of which the most are new scores to the last digit."""
    if len(np.unique(cal)) < len(cal):
        return  # equal scores say nothing
    same = int(np.isin(cal, new).sum())
    expect(
        2 * same <= len(cal),
        "calibration items that are not judged",
        f"{same:,} of {len(cal):,} among the new ones",
        "leave them out of one",
    )


def _within(cal: np.ndarray, new: np.ndarray, groups: tuple[Any, Any]) -> np.ndarray:
    """Returns p-values among the calibration items of the same group."""
    known, asked = labels_of("groups of the calibration items", groups[0], len(cal)), labels_of("groups", groups[1], len(new))
    p = np.empty(len(new))
    for group in np.unique(asked):
        own = cal[known == group]
        expect(len(own) >= LEAST, f"at least {LEAST} calibration items of group {group}", len(own), "give more, or merge groups")
        p[asked == group] = ranked(own, new[asked == group])
    return p


class Calibrated(BaseEstimator):  # type: ignore[misc]
    """Any detector with a calibration part that it is not fitted to: p-values and flags with a rate.

    The detector is one of this library, of scikit-learn (``score_samples``), PyOD (``decision_function``, larger is stranger),
    pytorch-ood (``fit_features`` and ``predict_features``), or any estimator with ``fit`` and a function of one's own. Equal and
    nearly equal items are on one side of the split.

    Args:
        detector: The detector, which is cloned.
        share: Share of the items of `fit` that calibrate, in (0, 1).
        score: Function (fitted detector, X) -> scores (N,), larger is stranger; by default the detector's own.
        random_state: Seed of the split.

    Attributes:
        detector_: The fitted detector.
        calibration_: Scores of the calibration items (n,).

    Example:
        >>> from sklearn.ensemble import IsolationForest
        >>> rng = np.random.default_rng(0)
        >>> model = Calibrated(IsolationForest(random_state=0)).fit(rng.normal(size=(1000, 2)))
        >>> model.decide([[0.0, 0.0], [9.0, 9.0]]).flag.tolist()
        [False, True]
    """

    def __init__(
        self,
        detector: Any,
        *,
        share: float = SHARE,
        score: Callable[[Any, Any], Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.detector = detector
        self.share = share
        self.score = score
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "Calibrated":
        """Fits to a part of ordinary items (N, D), and scores the other part."""
        require_within("(0, 1)", share=self.share)
        x = np.asarray(to_numpy(X))
        side = apart(x.reshape(len(x), -1), self.share, self.random_state)
        expect(side.sum() >= LEAST, f"at least {LEAST} calibration items", int(side.sum()), "give more items, or a larger share")
        self.detector_ = _fitted(self.detector, x[~side])
        self.calibration_ = self.scores(X[side])
        return self

    def scores(self, X: Any) -> np.ndarray:
        """Returns the scores of items (m,); larger is stranger."""
        check_is_fitted(self, "detector_")
        if self.score is not None:
            found = self.score(self.detector_, X)
        elif hasattr(self.detector_, "anomaly_score"):
            found = self.detector_.anomaly_score(X)
        elif hasattr(self.detector_, "decision_scores_"):  # PyOD, whose scores are larger for outliers
            found = self.detector_.decision_function(X)
        elif hasattr(self.detector_, "predict_features"):  # pytorch-ood, likewise
            found = self.detector_.predict_features(torch.as_tensor(np.asarray(X), dtype=torch.float32))
        else:
            usable = hasattr(self.detector_, "score_samples")
            expect(usable, "a detector with scores", type(self.detector_).__name__, "pass score=")
            found = -np.asarray(self.detector_.score_samples(X))
        return as_values("scores", found).cpu().numpy()

    def p_values(self, X: Any) -> np.ndarray:
        """Returns the p-value of each item, (m,)."""
        return self.decide(X).p_value

    def decide(self, X: Any, *, fdr: float = 0.1, fpr: float | None = None, confidence: float = 0.95) -> Decisions:
        """Returns which items are unusual; see `calibrate`."""
        scores = self.scores(X)
        return calibrate(self.calibration_, scores, fdr=fdr, fpr=fpr, confidence=confidence)

    def predict(self, X: Any) -> np.ndarray:
        """Returns -1 for flagged items and 1 for others, as scikit-learn does, at a false-discovery rate of 0.1."""
        return np.where(self.decide(X).flag, -1, 1)


def _fitted(detector: Any, x: np.ndarray) -> Any:
    """Returns a copy of a detector that is fitted to items."""
    if hasattr(detector, "get_params"):
        return clone(detector).fit(x)
    copied = copy.deepcopy(detector)
    if hasattr(copied, "fit_features"):  # pytorch-ood, whose ordinary items are those of a class >= 0
        return copied.fit_features(torch.as_tensor(x, dtype=torch.float32), torch.zeros(len(x), dtype=torch.int64))
    return copied.fit(x)


def apart(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns which items calibrate (N,); nearly equal ones are on one side."""
    deviation = x.std(0)
    near = np.round((x - x.mean(0)) / np.where(deviation > 0, deviation, 1.0), DIGITS)
    label = np.unique(near, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.random.default_rng(seed).permutation(label.max() + 1)
    counts = np.bincount(label)[order].cumsum()
    chosen = order[: int(np.searchsorted(counts, share * len(x))) + 1]
    return np.isin(label, chosen)
