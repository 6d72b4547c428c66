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
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from vergence.decide.conformal import (
    Certificate,
    at_most,
    counts_of,
    drift_of_counts,
    fpr_threshold,
    q_values,
    ranked,
    ranks_of,
    reportable,
)
from vergence.decide.inputs import Values, as_values, labels_of
from vergence.densities.storage import Stored
from vergence.mixtures.core import alike, to_numpy
from vergence.utils.checks import counted, expect, require_within
from vergence.utils.terminal import Tabular

__all__ = ["Calibrated", "Counts", "Decisions", "Tally", "calibrate", "decided"]

LEAST = 10  # calibration items, in all and of each group
SHIFTED, FEW = 0.01, 20  # probability up to which new items are said to be of another kind, and items from which on it is said
CHANGED, CERTAIN = 0.2, 0.001  # least difference of distributions, and largest probability, at which the rate is said not to hold
SHARE = 0.3  # of the items of `Calibrated.fit` that calibrate
HELD = 48  # strangest items that are held for the page
COLUMNS = ("name", "score", "p_value", "level", "nearest", "reason", "seen")  # that q-values, flags and the page need


@dataclass(frozen=True)
class Decisions(Tabular):
    """What is unusual among new items.

    Attributes:
        columns: What is known of each of R items, (R,) each: of all m, or of those of a long table the 48 strangest, these first;
            of `vergence density score` of none.

            - ``p_value``; ``q_value``, the least false-discovery rate at which an item is flagged; ``flag``, 1 if it is.
            - where they are known ``name``; ``score``, larger is stranger; ``level`` that says so; of unusual items ``nearest``,
              the most similar typical items, separated by ``; ``, and ``reason``, in words.
        total: m, the items that were judged.
        flagged: Items that were flagged.
        calibration: n, the calibration items; 0 for none.
        fdr: The rate, or None with a certificate.
        certificate: The threshold that holds a rate of false alarms, or None.
        shift: Probability that ordinary items are as strange as the new ones as a whole; None with groups.
        excess: Share of the new items at least by which they are stranger as a whole.
        why_none: Why no item is flagged, in words, where that is so.
        unjudged: Items that were not judged, as those that the calibration or a fit has seen.
        advice: What to do about these.
        noun: What one item is called.
    """

    columns: Mapping[str, Any]
    total: int
    flagged: int
    calibration: int
    fdr: float | None
    certificate: Certificate | None = None
    shift: float | None = None
    excess: float = 0.0
    why_none: str = ""
    unjudged: int = 0
    advice: str = ""
    noun: str = "item"

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return {name: np.asarray(values).tolist() for name, values in self.columns.items()}

    @property
    def names(self) -> list[str]:
        """Name of each item in ``columns``."""
        return list(self.columns["name"])

    @property
    def p_value(self) -> np.ndarray:
        """p-value of each item in ``columns``, (R,)."""
        return np.asarray(self.columns["p_value"])

    @property
    def q_value(self) -> np.ndarray:
        """q-value of each item in ``columns``, (R,)."""
        return np.asarray(self.columns["q_value"])

    @property
    def flag(self) -> np.ndarray:
        """Whether each item in ``columns`` is flagged, (R,) bool."""
        return np.asarray(self.columns["flag"], dtype=bool)

    @property
    def rows(self) -> int:
        """Items in all, judged or not."""
        return self.total + self.unjudged

    def strangest(self, n: int) -> list[dict[str, Any]]:
        """Returns what is known of at most n items of ``columns``, the strangest first."""
        order = np.lexsort((-np.asarray(self.columns["score"]), self.p_value))[:n]
        return [{"row": int(i) + 1, **{name: values[i] for name, values in self.columns.items()}} for i in order]

    @property
    def changed(self) -> bool:
        """Whether the items as a whole are so much stranger than the calibration items that no rate holds."""
        return self.total >= FEW and self.shift is not None and self.excess >= CHANGED and self.shift <= CERTAIN

    @property
    def sentences(self) -> list[str]:
        """What was found and what it means, the most important first."""
        said = [self._flagged()] if self.total else []
        if self.shift is not None and self.shift <= SHIFTED and self.total >= FEW:
            least = f", {self.excess:.0%} of them at least" if self.changed else ""
            whole = (
                f"as a whole the new items are stranger than the calibration items (p-value {self.shift:.2g}){least}: they come "
                "from elsewhere, or many are unusual; in the first case no rate holds"
            )
            said = [f"warning: {whole}", *said] if self.changed else [*said, whole]
        if self.unjudged:
            equal = "not judged, as the model was fitted to or calibrated on equal ones"
            said.append(f"warning: {counted(self.unjudged, self.noun)} {equal}{self.advice}")
        return said

    def _flagged(self) -> str:
        """Returns what was flagged and what that means; no rate where the items as a whole have changed."""
        k, of = self.flagged, f"of {counted(self.total, self.noun)} flagged"
        void = ", but the items as a whole are unlike the calibration items, so the rate does not hold" if self.changed else ""
        if self.fdr is None:
            return f"{k:,} {of}: {self.certificate}{void}"
        rate = f"at a false-discovery rate of {self.fdr:g}"
        if not k:
            return f"none {of} {rate}: {self.why_none}"
        if self.total == 1 and len(self.columns):
            return f"the {self.noun} is flagged (p = {self.p_value[0]:.2g})"
        return f"{k:,} {of}{void or f' {rate}; about {self.fdr * k:.2g} of them ordinary on average, at most'}"


class Counts:
    """q-values and flags, which need all p-values k / (n + 1): how many items have each k, counted part by part.

    Of n calibration items; by ``certificate`` items are flagged instead of ``fdr``.

    Example:
        >>> counts = Counts(9, fdr=0.5)
        >>> counts.see({"p_value": np.array([0.1, 0.9])})
        >>> counts.see({"p_value": np.array([0.2])})
        >>> counts.columns({"p_value": np.array([0.1, 0.9])})
        {'q_value': array([0.3, 0.9]), 'flag': array([1, 0])}
    """

    needs: ClassVar[Sequence[str]] = ("p_value",)
    names: ClassVar[Sequence[str]] = ("q_value", "flag")
    order: ClassVar[Sequence[str]] = ()

    def __init__(self, n: int, fdr: float = 0.1, certificate: Certificate | None = None) -> None:
        self.n, self.fdr, self.certificate, self.above = n, fdr, certificate, 0
        self.counts = np.zeros(n + 2, dtype=np.int64)

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows."""
        self.counts += counts_of(columns["p_value"], self.n)
        if self.certificate is not None:
            self.above += int((columns["score"] > self.certificate.threshold).sum())

    @property
    def flagged(self) -> int:
        """Items that are flagged among those that were seen."""
        return self.above if self.certificate is not None else int(self.counts[at_most(self._q_values(), self.fdr)].sum())

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        q = self._q_values()[ranks_of(columns["p_value"], self.n)]
        flag = at_most(q, self.fdr) if self.certificate is None else columns["score"] > self.certificate.threshold
        return {"q_value": q, "flag": np.asarray(flag).astype(np.int64)}

    def decisions(self, columns: Mapping[str, Any], **more: Any) -> Decisions:
        """Returns the decisions with some columns, when all rows have been seen."""
        total, flagged = int(self.counts.sum()), self.flagged
        fdr = self.fdr if self.certificate is None else None
        why = self._why_none(total) if total and not flagged else ""
        excess, shift = drift_of_counts(self.counts) if total else (0.0, None)
        return Decisions(columns, total, flagged, self.n, fdr, self.certificate, shift, excess, why, **more)

    def _why_none(self, total: int) -> str:
        """Returns why no item is flagged: what the numbers allow, or the least q-value that an item has."""
        if self.counts[:2].any():  # items stranger than all calibration items: with more of these they might be reported
            return str(reportable(self.n, total, self.fdr))
        q = self._q_values()
        least = float(q[self.counts > 0].min())
        many = int(self.counts[q <= least].sum())
        return f"the smallest q-value is {least:.2g}, of {counted(many, 'item')}; the order is still the one to look in"

    def _q_values(self) -> np.ndarray:
        """Returns the q-value of each p-value k / (n + 1), k = 0..n + 1, as `q_values` does."""
        q = np.arange(self.n + 2) / (self.n + 1) * (self.counts.sum() / np.maximum(np.cumsum(self.counts), 1))
        return np.asarray(np.minimum(np.minimum.accumulate(q[::-1])[::-1], 1.0))


class Tally(Counts):
    """Counts of the items that are judged, of which the 48 strangest are held with their `COLUMNS`.

    Items that a run was fitted to or calibrated on are not judged, since their scores say nothing about new ones: they have the
    q-value 1 and no flag, and do not count.
    """

    needs: ClassVar[Sequence[str]] = COLUMNS
    order: ClassVar[Sequence[str]] = (*COLUMNS[:3], *Counts.names, *COLUMNS[3:])

    def __init__(self, n: int, fdr: float = 0.1, certificate: Certificate | None = None) -> None:
        super().__init__(n, fdr, certificate)
        self.unjudged = 0
        self.strangest: dict[str, np.ndarray] = {name: np.array([], dtype=float) for name in COLUMNS}

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows, and holds the strangest items."""
        new = np.flatnonzero(columns["seen"] == 0)
        self.unjudged += len(columns["seen"]) - len(new)
        columns = {name: columns[name][new] for name in COLUMNS}
        super().see(columns)
        self._hold(columns)

    def add(self, counts: Sequence[tuple[int, int]], unjudged: int, flagged: int, strangest: Mapping[str, Sequence[Any]]) -> None:
        """Adds what another tally saw: how many items have each k, and its `unjudged`, `flagged` and `strangest`."""
        for k, n in counts:
            self.counts[k] += n
        self.unjudged += unjudged
        self.above += flagged
        self._hold({name: np.asarray(strangest[name]) for name in COLUMNS})

    def _hold(self, columns: Mapping[str, np.ndarray]) -> None:
        if not len(columns["score"]):
            return
        if len(self.strangest["score"]):
            columns = {name: np.concatenate([self.strangest[name], columns[name]]) for name in COLUMNS}
        order = np.argsort(-columns["score"], kind="stable")[:HELD]
        self.strangest = {name: columns[name][order] for name in COLUMNS}

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        found, new = super().columns(columns), np.asarray(columns["seen"]) == 0
        return {"q_value": np.where(new, found["q_value"], 1.0), "flag": (found["flag"] * new).astype(np.uint8)}

    def found(self, advice: str = "") -> Decisions:
        """Returns the decisions with the strangest items, when all rows have been seen."""
        rows = self.strangest | self.columns(self.strangest)
        columns = {name: rows[name].tolist() for name in self.order if name != "seen"}
        return self.decisions(columns, unjudged=self.unjudged, advice=advice)


def decided(p: np.ndarray, fdr: float, n: int, *, left_out: Any = False, fine: Any = False, **columns: Any) -> Decisions:
    """Returns the decisions on items with p-values (m,) from any laws, at a false-discovery rate.

    Items that are ``left_out`` (m,) are not judged: they have the q-value 1 and no flag; ``fine`` ones (m,) are judged and not
    flagged. Of ``n`` calibration items; 0 where the items are judged by themselves.
    """
    judged = np.broadcast_to(~np.asarray(left_out), p.shape)
    q, m = np.ones(len(p)), int(judged.sum())
    if m:
        q[judged] = q_values(p[judged])
    flag = at_most(q, fdr) & judged & ~np.asarray(fine)
    columns = {"p_value": p, "q_value": q, "flag": flag.astype(np.uint8), **columns}
    why = str(reportable(n, m, fdr)) if n and m else ""
    return Decisions(columns, m, int(flag.sum()), n, fdr, why_none=why, unjudged=len(p) - m)


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
    differ = np.ptp(cal) > 0 or groups is not None
    expect(differ, "calibration scores that differ", f"{cal[0]:g} for all", "the score tells nothing")
    _expect_apart(cal, new)
    certificate = None if fpr is None else fpr_threshold(cal, fpr, confidence)
    if groups is not None:
        expect(fpr is None, "groups with fdr", "fpr", "leave one out")
        p, largest = _within(cal, new, groups)
        why = str(reportable(largest, len(new), fdr, "calibration items in a group")) if len(new) else ""
        return replace(decided(p, fdr, len(cal)), why_none=why)
    counts, columns = Counts(len(cal), fdr, certificate), {"p_value": ranked(cal, new), "score": new}
    counts.see(columns)
    return counts.decisions({"p_value": columns["p_value"], **counts.columns(columns)})


def _expect_apart(cal: np.ndarray, new: np.ndarray) -> None:
    """Refuses calibration scores, no two equal, of which the most are new scores to the last digit."""
    if len(np.unique(cal)) < len(cal):
        return  # equal scores say nothing
    same = int(np.isin(cal, new).sum())
    among = f"{same:,} of {len(cal):,} among the new ones"
    expect(2 * same <= len(cal), "calibration items that are not judged", among, "leave them out of one")


def _within(cal: np.ndarray, new: np.ndarray, groups: tuple[Any, Any]) -> tuple[np.ndarray, int]:
    """Returns p-values among the calibration items of the same group, and how many the largest group has."""
    known, asked = labels_of("groups of the calibration items", groups[0], len(cal)), labels_of("groups", groups[1], len(new))
    p, largest = np.empty(len(new)), 0
    for group in np.unique(asked):
        own = cal[known == group]
        largest = max(largest, len(own))
        expect(len(own) >= LEAST, f"at least {LEAST} calibration items of group {group}", len(own), "give more, or merge groups")
        p[asked == group] = ranked(own, new[asked == group])
    return p, largest


@dataclass(eq=False, repr=False)
class Calibrated(Stored):
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

    detector: Any
    _: KW_ONLY
    share: float = SHARE
    score: Callable[[Any, Any], Any] | None = None
    random_state: int = 0

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
    if hasattr(copied, "fit_features"):  # pytorch-ood, whose ordinary items are those of a class >= 0
        return copied.fit_features(torch.as_tensor(x, dtype=torch.float32), torch.zeros(len(x), dtype=torch.int64))
    return copied.fit(x)


def apart(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns which items calibrate (N,); nearly equal ones are on one side."""
    label = alike(x, x[:, :0])
    order = np.random.default_rng(seed).permutation(label.max() + 1)
    counts = np.bincount(label)[order].cumsum()
    chosen = order[: int(np.searchsorted(counts, share * len(x))) + 1]
    return np.isin(label, chosen)
