r"""Decisions from the scores of any model: p-values by calibration, a rate of false discoveries or of false alarms.

Calibration scores are those of normal items that nothing was fitted to, by the same score function. What holds, and for what:

- p-values: P(p <= a) <= a for a normal new item of the same source (`p_values`); with groups, within each of them.
- ``fdr``: the share of false alarms among the flags of a table, 0 in a table without a flag, is at most ``fdr`` on average over
  tables and calibration sets. Tables with few anomalies have fewer flags, of which more are false.
- ``fpr``: at most this share of normal items is flagged, with ``confidence`` over calibration sets (`fpr_threshold`).

Nothing holds if the new items come from elsewhere than the calibration items; `Decisions.shift` says if they do as a whole.
Shapes: n calibration items, m new items.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from vergence.decide import conformal
from vergence.decide.conformal import CHANGES, Certificate
from vergence.decide.inputs import Values, as_values, labels_of
from vergence.utils.checks import counted, expect, require_within
from vergence.utils.terminal import Tabular

__all__ = ["Counts", "Decisions", "Tally", "calibrate", "decided"]

CONFIDENCE = 0.95
LEAST = 10  # calibration items, in all and of each group
SHIFTED, FEW = 0.01, 20  # probability up to which new items are said to be of another kind, and items from which on it is said
CHANGED, SPREAD, CERTAIN = 0.2, 0.1, 0.001  # least change, of the spread too, and largest probability at which no rate is said
HELD = 48  # strangest items that are held for the page
COLUMNS = ("name", "score", "p_value", "feature_set", "nearest", "reason", "seen")  # that q-values, flags and the page need


@dataclass(frozen=True)
class Decisions(Tabular):
    """What is unusual among new items.

    Attributes:
        columns: What is known of each of R items, (R,) each: of all m, or the 48 most anomalous of a long table, these first;
            of `vergence density score` of none.

            - ``p_value``; ``q_value``, the least false-discovery rate at which an item is flagged; ``flag``, 1 if it is.
            - where they are known ``name``; ``score``, larger is more anomalous; ``feature_set``, that of the largest deviation;
              of anomalies ``nearest``, the most similar normal items, separated by ``; ``, and ``reason``, in words.
        total: m, the items that were judged.
        flagged: Items that were flagged.
        calibration: n, the calibration items; 0 for none.
        fdr: The rate, or None with a certificate.
        certificate: The threshold that holds a rate of false alarms, or None.
        shift: Probability that normal items differ as much from the calibration items as a whole; with groups, as those of
            their own, and stranger or less strange alone.
        excess: How much they differ: the statistic of `drift_of_counts`, of the location a share of the new items.
        why_none: Why no item is flagged, in words, where that is so.
        unjudged: Items that were not judged, as those that the calibration or a fit has seen.
        missing: Rows without a score, or with values that are not finite, which are not judged either.
        advice: What to do about these.
        noun: What one item is called.
        change: In what way they differ: stranger, less strange, more spread or less spread.
        confidence: Probability that ``fdr`` holds for these calibration items, or None where it is an average over these, too.
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
    missing: int = 0
    advice: str = ""
    noun: str = "item"
    change: str = CHANGES[0]
    confidence: float | None = None

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
        return self.total + self.unjudged + self.missing

    def most_anomalous(self, n: int) -> list[dict[str, Any]]:
        """Returns what is known of at most n items of ``columns``, the strangest first."""
        order = np.lexsort((-np.asarray(self.columns["score"]), self.p_value))[:n]
        return [{"row": int(i) + 1, **{name: values[i] for name, values in self.columns.items()}} for i in order]

    @property
    def changed(self) -> bool:
        """Whether the items as a whole differ so much from the calibration items that no rate holds."""
        least = CHANGED if self.change in CHANGES[:2] else SPREAD
        return self.total >= FEW and self.shift is not None and self.excess >= least and self.shift <= CERTAIN

    @property
    def shifted(self) -> bool:
        """Whether it is said that the items as a whole are not like the calibration items."""
        return self.total >= FEW and self.shift is not None and self.shift <= SHIFTED

    @property
    def sentences(self) -> list[str]:
        """What was found and what it means, the most important first."""
        said = [self._flagged()] if self.total else [] if self.unjudged else [f"0 {self.noun}s: nothing to judge"]
        if self.shifted:
            whole = self._changed()
            said = [f"warning: {whole}", *said] if self.changed else [*said, whole]
        if self.unjudged:
            equal = "not judged, as the model was fitted to or calibrated on equal ones"
            said.append(f"warning: {counted(self.unjudged, self.noun)} {equal}{self.advice}")
        if self.missing:
            said.append(f"warning: {counted(self.missing, 'row')} not judged: the column error says why")
        return said

    def _changed(self) -> str:
        """Returns how the new items differ as a whole, and what that means."""
        least = f", {self.excess:.0%} of them at least" if self.changed and self.change in CHANGES[:2] else ""
        causes = {"stranger": ", or many are anomalous; in the first case no rate holds", "more spread": ", so no rate holds"}
        why = causes.get(self.change, ", so no rate holds and anomalies may be missed")
        than = f"{self.change} than the calibration items (p-value {self.shift:.2g}){least}"
        return f"as a whole the new items are {than}: they come from elsewhere{why}"

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
        tables = "Tables like this one"
        if self.confidence is not None:
            tables = f"With confidence {self.confidence:g}, tables judged by these calibration items"
        share = f"on average a share of at most {self.fdr:g} of false alarms (those without a flag count as 0)"
        return f"{k:,} {of}{void or f' {rate}. {tables} have {share}'}"


class Counts:
    """q-values and flags, which need all p-values k / (n + 1): how many items have each k, counted part by part.

    Of n calibration items, whose own counts ``own`` (n + 2,) tell ties; by ``certificate`` items are flagged instead of ``fdr``.
    With a ``confidence`` the rate holds for these calibration items (`certain_levels`). An ``adaptive`` rate multiplies q-values
    by the estimated share of normal items (1 + #{p >= t}) / (m (1 - t)), where t is the p-value of rank floor((n + 1) / 2).

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

    def __init__(
        self,
        n: int,
        fdr: float = 0.1,
        certificate: Certificate | None = None,
        *,
        own: np.ndarray | None = None,
        confidence: float | None = None,
        adaptive: bool = False,
    ) -> None:
        self.n, self.fdr, self.certificate, self.above, self.own = n, fdr, certificate, 0, own
        self.confidence, self.adaptive = confidence, adaptive
        self.counts = np.zeros(n + 2, dtype=np.int64)

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows."""
        self.counts += conformal.counts_of(columns["p_value"], self.n)
        if self.certificate is not None:
            self.above += int((columns["score"] > self.certificate.threshold).sum())

    @property
    def flagged(self) -> int:
        """Items that are flagged among those that were seen."""
        flagged = conformal.at_most(self._q_values(), self.fdr)
        return int(self.counts[flagged].sum()) if self.certificate is None else self.above

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        q = self._q_values()[conformal.ranks_of(columns["p_value"], self.n)]
        flag = conformal.at_most(q, self.fdr) if self.certificate is None else columns["score"] > self.certificate.threshold
        return {"q_value": q, "flag": np.asarray(flag).astype(np.int64)}

    def decisions(self, columns: Mapping[str, Any], **more: Any) -> Decisions:
        """Returns the decisions with some columns, when all rows have been seen."""
        total, flagged = int(self.counts.sum()), self.flagged
        fdr = self.fdr if self.certificate is None else None
        why = self._why_none(total) if total and not flagged else ""
        excess, shift, change = conformal.drift_of_counts(self.counts, CHANGES, self.own) if total else (0.0, None, CHANGES[0])
        given = columns, total, flagged, self.n, fdr, self.certificate, shift, excess, why
        return Decisions(*given, change=change, confidence=self.confidence, **more)

    def _why_none(self, total: int) -> str:
        """Returns why no item is flagged: what the numbers allow, or the least q-value that an item has."""
        plain = not self.adaptive and self.confidence is None
        if plain and self.counts[:2].any():  # stranger than all calibration items: with more of these they might be reported
            return str(conformal.reportable(self.n, total, self.fdr))
        q = self._q_values()
        least = float(q[self.counts > 0].min())
        many = int(self.counts[q <= least].sum())
        return f"the smallest q-value is {least:.2g}, of {counted(many, 'item')}; the order is still the one to look in"

    def _q_values(self) -> np.ndarray:
        """Returns the q-value of each p-value k / (n + 1), k = 0..n + 1, as `q_values` does."""
        p = np.arange(self.n + 2) / (self.n + 1) if self.confidence is None else conformal.certain_levels(self.n, self.confidence)
        half = (self.n + 1) // 2
        normal = (1 + self.counts[half:].sum()) / (1 - p[half]) if self.adaptive else self.counts.sum()
        q = p * (normal / np.maximum(np.cumsum(self.counts), 1))
        return np.asarray(np.minimum(np.minimum.accumulate(q[::-1])[::-1], 1.0))


class Tally(Counts):
    """Counts of the items that are judged, of which the 48 strangest are held with their `COLUMNS`.

    Items that a run was fitted to or calibrated on are not judged, since their scores say nothing about new ones: they have the
    q-value 1 and no flag, and do not count. Nor do items without a p-value, which have no q-value.
    """

    needs: ClassVar[Sequence[str]] = COLUMNS
    order: ClassVar[Sequence[str]] = (*COLUMNS[:3], *Counts.names, *COLUMNS[3:])

    def __init__(self, n: int, fdr: float = 0.1, certificate: Certificate | None = None, **more: Any) -> None:
        super().__init__(n, fdr, certificate, **more)
        self.unjudged, self.missing = 0, 0
        self.most_anomalous: dict[str, np.ndarray] = {name: np.array([], dtype=float) for name in COLUMNS}

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows, and holds the strangest items."""
        seen, there = columns["seen"] != 0, ~np.isnan(columns["p_value"])
        new = np.flatnonzero(~seen & there)
        self.unjudged, self.missing = self.unjudged + int((seen & there).sum()), self.missing + int((~there).sum())
        columns = {name: columns[name][new] for name in COLUMNS}
        super().see(columns)
        self._hold(columns)

    def add(
        self, counts: Sequence[tuple[int, int]], unjudged: int, flagged: int, most_anomalous: Mapping[str, Sequence[Any]]
    ) -> None:
        """Adds what another tally saw: how many items have each k, and its `unjudged`, `flagged` and `strangest`."""
        for k, n in counts:
            self.counts[k] += n
        self.unjudged += unjudged
        self.above += flagged
        self._hold({name: np.asarray(most_anomalous[name]) for name in COLUMNS})

    def _hold(self, columns: Mapping[str, np.ndarray]) -> None:
        if not len(columns["score"]):
            return
        if len(self.most_anomalous["score"]):
            columns = {name: np.concatenate([self.most_anomalous[name], columns[name]]) for name in COLUMNS}
        order = np.argsort(-columns["score"], kind="stable")[:HELD]
        self.most_anomalous = {name: columns[name][order] for name in COLUMNS}

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        p, new = np.asarray(columns["p_value"]), np.asarray(columns["seen"]) == 0
        found = super().columns({**columns, "p_value": np.nan_to_num(p, nan=1.0)})
        q = np.where(np.isnan(p), np.nan, np.where(new, found["q_value"], 1.0))
        return {"q_value": q, "flag": (found["flag"] * new * ~np.isnan(p)).astype(np.uint8)}

    def found(self, advice: str = "") -> Decisions:
        """Returns the decisions with the strangest items, when all rows have been seen."""
        rows = self.most_anomalous | self.columns(self.most_anomalous)
        columns = {name: rows[name].tolist() for name in self.order if name != "seen"}
        return self.decisions(columns, unjudged=self.unjudged, missing=self.missing, advice=advice)


def decided(p: np.ndarray, fdr: float, n: int, *, left_out: Any = False, fine: Any = False, **columns: Any) -> Decisions:
    """Returns the decisions on items with p-values (m,) from any laws, at a false-discovery rate.

    Items that are ``left_out`` (m,) are not judged: they have the q-value 1 and no flag; ``fine`` ones (m,) are judged and not
    flagged. Of ``n`` calibration items; 0 where the items are judged by themselves.
    """
    judged = np.broadcast_to(~np.asarray(left_out), p.shape)
    q, m = np.ones(len(p)), int(judged.sum())
    if m:
        q[judged] = conformal.q_values(p[judged])
    flag = conformal.at_most(q, fdr) & judged & ~np.asarray(fine)
    columns = {"p_value": p, "q_value": q, "flag": flag.astype(np.uint8), **columns}
    why = str(conformal.reportable(n, m, fdr)) if n and m else ""
    return Decisions(columns, m, int(flag.sum()), n, fdr, why_none=why, unjudged=len(p) - m)


def calibrate(
    calibration: Values,
    scores: Values,
    *,
    fdr: float = 0.1,
    fpr: float | None = None,
    confidence: float | None = None,
    adaptive: bool = False,
    groups: tuple[Any, Any] | None = None,
    larger_is_anomalous: bool = True,
) -> Decisions:
    """Returns which new items are unusual, from the scores of any model.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen, n >= 10: an array, tensor, Series or list.
        scores: Scores (m,) of the items to judge, m >= 0.
        fdr: Share of false alarms among the flags of tables like this one, on average at most, in (0, 1).
        fpr: Instead, the share of normal items that is flagged at most, with ``confidence``.
        confidence: Probability of that, over calibration sets, in (0, 1), by default 0.95. With ``fdr``: the rate holds for
            tables judged by these calibration items, with this probability; by default it is an average over these, too.
        adaptive: Use what anomalies leave of ``fdr``, by an estimate of their share: more power where they are many.
        groups: Labels of the calibration items (n,) and of the new ones (m,): the p-values hold within each group. With ``fdr``
            alone.
        larger_is_anomalous: False for scores that are larger for normal items.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = calibrate(rng.normal(size=1000), [0.1, 8.0, -0.3])
        >>> found.flag.tolist()
        [False, True, False]
        >>> print(found.sentences[0])
        1 of 3 items flagged at a false-discovery rate of 0.1. Tables like this one have on average a share of at most 0.1 of
        false alarms (those without a flag count as 0)
    """
    require_within("(0, 1)", fdr=fdr)
    sign = 1.0 if larger_is_anomalous else -1.0
    given = (("calibration scores", calibration, 1), ("scores", scores, 0))
    cal, new = (sign * as_values(name, x, least=least) for name, x, least in given)
    expect(len(cal) >= LEAST, f"at least {LEAST} calibration scores", len(cal), "give more normal items")
    differ = np.ptp(cal) > 0 or groups is not None
    expect(differ, "calibration scores that differ", f"{cal[0]:g} for all", "the score tells nothing")
    _expect_apart(cal, new)
    if confidence is not None:
        require_within("(0, 0.9999]", confidence=confidence)
    certificate = None if fpr is None else conformal.fpr_threshold(cal, fpr, confidence or CONFIDENCE)
    expect(fpr is None or not adaptive, "adaptive with fdr", "fpr", "leave one out")
    if groups is not None:
        expect(fpr is None and confidence is None and not adaptive, "groups with fdr alone", "another option", "leave one out")
        return _within(cal, new, groups, fdr)
    own = conformal.counts_of(conformal.ranked(cal, cal), len(cal))
    sure = confidence if fpr is None else None
    counts = Counts(len(cal), fdr, certificate, own=own, confidence=sure, adaptive=adaptive)
    columns = {"p_value": conformal.ranked(cal, new), "score": new}
    counts.see(columns)
    return counts.decisions({"p_value": columns["p_value"], **counts.columns(columns)})


def _expect_apart(cal: np.ndarray, new: np.ndarray) -> None:
    """Refuses calibration scores of which the most are new scores to the last digit, where few new scores are equal."""
    (known, often), (asked, times) = (np.unique(x, return_counts=True) for x in (cal, new))
    if 10 * int((times == 1).sum()) < 9 * len(new):
        return  # rounded scores: equal ones say nothing
    same = len(np.intersect1d(known[often == 1], asked[times == 1], assume_unique=True))
    among = f"{same:,} of {len(cal):,} among the new ones"
    expect(2 * same <= len(cal), "calibration items that are not judged", among, "leave them out of one")


def _within(cal: np.ndarray, new: np.ndarray, groups: tuple[Any, Any], fdr: float) -> Decisions:
    """Returns the decisions by p-values among the calibration items of the same group.

    How often new items are above calibration items of their group, summed over groups, tells a change of them all: a sum of
    rank statistics (Wilcoxon, Mann, Whitney), of n and m items with the variance n m (n + m + 1) / 12, less with ties.
    """
    known, asked = labels_of("groups of the calibration items", groups[0], len(cal)), labels_of("groups", groups[1], len(new))
    p, needs, drift, variance = np.empty(len(new)), [], 0.0, 0.0
    for group in np.unique(asked):
        own, of = cal[known == group], asked == group
        expect(len(own) >= LEAST, f"at least {LEAST} calibration items of group {group}", len(own), "give more, or merge groups")
        p[of] = conformal.ranked(own, new[of])
        drift += (len(own) + 1) / 2 * float((conformal.ranked(-own, -new[of]) - p[of]).sum())
        variance += len(own) * of.sum() * (len(own) + of.sum() + 1) / 12
        needs.append((conformal.reportable(len(own), len(new), fdr, f"calibration items of group {group}"), int(of.sum())))
    found = decided(p, fdr, len(cal))
    if not needs:
        return found
    shift = math.erfc(abs(drift) / math.sqrt(2 * variance))
    change, up_to = CHANGES[int(drift < 0)], np.arange(len(p) + 1) / len(p)
    excess = float((up_to[1:] - np.sort(p) if change == CHANGES[0] else np.sort(p) - up_to[:-1]).max())
    able = sum(need.fewest <= m for need, m in needs)
    most = max((need for need, _ in needs), key=lambda need: need.fewest)
    why = f"{able:,} of {counted(len(needs), 'group')} could have flags by anomalies of its own. {most}"
    return replace(found, why_none=why, shift=shift, excess=excess, change=change)
