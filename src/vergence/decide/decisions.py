r"""Decisions from the scores of any model: p-values by calibration, a rate of false discoveries or of false alarms.

Calibration scores are those of normal items that nothing was fitted to, by the same score function. What holds, and for what:

- p-values: P(p <= a) <= a for a normal new item of the same source (`p_values`); with groups, within each of them.
- ``fdr``: the share of false alarms among the flags of a table, 0 in a table without a flag, is at most ``fdr`` on average over
  tables and calibration sets. Tables with few anomalies have fewer flags, of which more are false.
- ``fpr``: at most this share of normal items is flagged, with ``confidence`` over calibration sets (`fpr_threshold`).

Nothing holds if the new items come from another source than the calibration items; `Decisions.shift` says if their scores differ.
Shapes: n calibration items, m new items.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from vergence.decide import conformal
from vergence.decide.conformal import CHANGES, Certificate
from vergence.decide.inputs import Values, array_of, as_values, labels_of
from vergence.utils.checks import counted, expect, in_percent, require_count, require_within
from vergence.utils.dtypes import Floats
from vergence.utils.terminal import Tabular

__all__ = ["Counts", "Decisions", "Tally", "calibrate", "decided", "explain"]

CONFIDENCE = 0.95
FLIPPED = dict(zip(CHANGES[:2], CHANGES[1::-1], strict=True))  # words for scores of which lower ones are anomalous
LEAST = 10  # calibration items, in all and of each group
SHIFTED, FEW = 0.01, 20  # largest probability at which a change is reported, and fewest items
CHANGED, SPREAD, CERTAIN = 0.2, 0.1, 0.001  # least change, of the spread too, and largest probability that void the rate
HELD = 48  # most anomalous items that are held for the page
RARE = 0.01  # share of normal items, below which a feature set is part of a reason
RARE_ALONE = 0.1  # the same of a feature set that is the whole reason
COLUMNS = ("name", "score", "p_value", "feature_set", "nearest", "reason", "seen")  # that q-values, flags and the page need


@dataclass(frozen=True, repr=False)
class Decisions(Tabular):
    """Which of some new items are anomalous.

    Attributes:
        columns: What is known of each of R items, (R,) each: of all m, or the 48 most anomalous of a long table, these first;
            of `vergence density score` of none.

            - ``p_value``; ``q_value``, the least false-discovery rate at which an item is flagged; ``flag``, 1 if it is.
            - where they are known ``name``; ``score``, larger is more anomalous; ``feature_set``, that of the largest deviation;
              of anomalies ``nearest``, the most similar normal items, separated by ``; ``, and ``reason``, in words.
        total: m, the items with a decision.
        flagged: Items that were flagged.
        calibration: n, the calibration items; 0 for none.
        fdr: The rate, or None with a certificate.
        certificate: The threshold that holds a rate of false alarms, or None.
        shift: Probability that scores of normal items differ as much from those of the calibration items; with groups, from those
            of their own, and only in being higher or lower.
        excess: How much they differ: the statistic of `drift_of_counts`, of the location a share of the new items.
        why_none: Why no item is flagged, in words, where that is so.
        excluded: Items without a decision, since the calibration or a fit has seen them.
        missing: Rows without a score, or with values that are not finite.
        advice: What to do about the excluded items.
        noun: What one item is called.
        change: In what way the scores differ: higher, lower, more spread or less spread.
        confidence: Probability that ``fdr`` holds for these calibration items, or None where it is an average over these, too.
        lower_is_anomalous: Whether lower scores are more anomalous; the columns hold them negated.
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
    excluded: int = 0
    missing: int = 0
    advice: str = ""
    noun: str = "item"
    change: str = CHANGES[0]
    confidence: float | None = None
    lower_is_anomalous: bool = False

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return {name: np.asarray(values).tolist() for name, values in self.columns.items()}

    def _order(self, n: int) -> Sequence[int]:
        score = np.asarray(self.columns.get("score", -self.p_value))
        return [int(i) for i in np.lexsort((-score, self.p_value))]

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
        """Items in all, with a decision or without."""
        return self.total + self.excluded + self.missing

    def most_anomalous(self, n: int) -> list[dict[str, Any]]:
        """Returns what is known of at most n items of ``columns``, the most anomalous first."""
        order = self._order(len(self.p_value))[:n]
        return [{"row": i + 1, **{name: values[i] for name, values in self.columns.items()}} for i in order]

    @property
    def changed(self) -> bool:
        """Whether the scores differ so much from those of the calibration items that no rate holds."""
        least = CHANGED if self.change in CHANGES[:2] else SPREAD
        return self.total >= FEW and self.shift is not None and self.excess >= least and self.shift <= CERTAIN

    @property
    def shifted(self) -> bool:
        """Whether `sentences` say that the scores differ from those of the calibration items."""
        return self.total >= FEW and self.shift is not None and self.shift <= SHIFTED

    @property
    def sentences(self) -> list[str]:
        """What was found, its condition, and what to be aware of."""
        found = [*self._flagged()] if self.total else [] if self.excluded else [f"0 {self.noun}s: nothing to decide."]
        if self.shifted:
            found.append(f"{'warning: ' if self.changed else ''}{self._changed()}")
        if self.excluded:
            fitted = "since the model was fitted to or calibrated on equal ones"
            found.append(f"warning: {counted(self.excluded, self.noun)} excluded, {fitted}{self.advice}.")
        if self.missing:
            found.append(f"warning: {counted(self.missing, 'row')} skipped: the column error says why.")
        return found

    def _changed(self) -> str:
        """Returns how the new scores differ, and what that means."""
        least = f"; at least {in_percent(round(self.excess, 2))} of the {self.noun}s differ" if self.changed else ""
        change = FLIPPED.get(self.change, self.change) if self.lower_is_anomalous else self.change
        how = f"The new scores are {change} overall (p = {self.shift:.2g}{least if self.change in CHANGES[:2] else ''})."
        if self.change == CHANGES[0]:
            return f"{how} Either many {self.noun}s are anomalous, or they come from another source; then the rate does not hold."
        missed = "" if self.change == CHANGES[2] else ", and anomalies may be missed"
        holds = f"the rate {'does' if self.changed else 'may'} not hold{missed}"
        return f"{how} The {self.noun}s seem to come from another source or to be of another kind: {holds}."

    def _flagged(self) -> Iterator[str]:
        """Yields what was flagged, and what that means, unless the scores have changed or it is a single item."""
        if self.total == self.flagged == 1 and self.fdr is not None and len(self.columns):
            yield f"The {self.noun} is flagged (p = {self.p_value[0]:.2g})."
            return
        yield f"{self.flagged:,} of {counted(self.total, self.noun)} flagged."
        if self.changed:
            return
        if self.fdr is None or not self.flagged:
            yield str(self.certificate or self.why_none).replace("item", self.noun)
            return
        source = f"if new and calibration {self.noun}s come from one source"
        yield f"On average at most {in_percent(self.fdr)} of flags are false alarms, {source}."
        if self.confidence is not None:
            yield f"With {in_percent(self.confidence)} confidence this average holds for these calibration {self.noun}s."


class Counts:
    """q-values and flags, which need all p-values k / (n + 1): how many items have each k, counted part by part.

    Of n calibration items, whose own counts ``own`` (n + 2,) tell ties; by ``certificate`` items are flagged instead of ``fdr``.
    With a ``confidence`` the rate holds for these calibration items (`certain_levels`). An ``adaptive`` rate multiplies q-values
    by the estimated share of normal items (1 + #{p >= t}) / (m (1 - t)), where t is the p-value of rank floor((n + 1) / 2).
    Items without a p-value are ``missing``: they have no q-value and no flag, and do not count.

    Example:
        >>> counts = Counts(9, fdr=0.5)
        >>> counts.see({"p_value": np.array([0.1, 0.9])})
        >>> counts.see({"p_value": np.array([0.2, np.nan])})
        >>> counts.columns({"p_value": np.array([0.1, 0.9, np.nan])})
        {'q_value': array([0.3, 0.9, nan]), 'flag': array([1, 0, 0])}
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
        self.counts, self.missing = np.zeros(n + 2, dtype=np.int64), 0

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows."""
        there = ~np.isnan(columns["p_value"])
        self.missing += int((~there).sum())
        self.counts += conformal.counts_of(columns["p_value"][there], self.n)
        if self.certificate is not None:
            self.above += int((columns["score"] > self.certificate.threshold).sum())

    @property
    def flagged(self) -> int:
        """Items that are flagged among those that were seen."""
        flagged = conformal.at_most(self._q_values(), self.fdr)
        return int(self.counts[flagged].sum()) if self.certificate is None else self.above

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        p = np.asarray(columns["p_value"])
        q = np.where(np.isnan(p), np.nan, self._q_values()[conformal.ranks_of(np.nan_to_num(p, nan=1.0), self.n)])
        flag = conformal.at_most(q, self.fdr) if self.certificate is None else columns["score"] > self.certificate.threshold
        return {"q_value": q, "flag": (np.asarray(flag) & ~np.isnan(p)).astype(np.int64)}

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
        if plain and self.counts[:2].any():  # above all calibration items: with more of these they might be flagged
            return str(conformal.reportable(self.n, total, self.fdr))
        q = self._q_values()
        least = float(q[self.counts > 0].min())
        many = int(self.counts[q <= least].sum())
        return f"The smallest q-value is {least:.2g} ({counted(many, 'item')}): look at the smallest p-values first."

    def _q_values(self) -> np.ndarray:
        """Returns the q-value of each p-value k / (n + 1), k = 0..n + 1, as `q_values` does."""
        p = np.arange(self.n + 2) / (self.n + 1) if self.confidence is None else conformal.certain_levels(self.n, self.confidence)
        half = (self.n + 1) // 2
        normal = (1 + self.counts[half:].sum()) / (1 - p[half]) if self.adaptive else self.counts.sum()
        q = p * (normal / np.maximum(np.cumsum(self.counts), 1))
        return np.asarray(np.minimum(np.minimum.accumulate(q[::-1])[::-1], 1.0))


class Tally(Counts):
    """Counts of the new items, of which the 48 most anomalous are held with their `COLUMNS`.

    Items that a run was fitted to or calibrated on are excluded, since their scores say nothing about new ones: they have the
    q-value 1 and no flag, and do not count.
    """

    needs: ClassVar[Sequence[str]] = COLUMNS
    order: ClassVar[Sequence[str]] = (*COLUMNS[:3], *Counts.names, *COLUMNS[3:])

    def __init__(self, n: int, fdr: float = 0.1, certificate: Certificate | None = None, **more: Any) -> None:
        super().__init__(n, fdr, certificate, **more)
        self.excluded = 0
        self.most_anomalous: dict[str, np.ndarray] = {name: np.array([], dtype=float) for name in COLUMNS}

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows, and holds the most anomalous items."""
        there = ~np.isnan(columns["p_value"])
        seen = (columns["seen"] != 0) & there
        self.excluded += int(seen.sum())
        super().see({name: values[~seen] for name, values in columns.items()})
        self._hold({name: columns[name][there & ~seen] for name in COLUMNS})

    def add(
        self, counts: Sequence[tuple[int, int]], excluded: int, flagged: int, most_anomalous: Mapping[str, Sequence[Any]]
    ) -> None:
        """Adds what another tally saw: how many items have each k, and its `excluded`, `flagged` and `most_anomalous`."""
        for k, n in counts:
            self.counts[k] += n
        self.excluded += excluded
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
        found, new = super().columns(columns), np.asarray(columns["seen"]) == 0
        q = np.where(new | np.isnan(found["q_value"]), found["q_value"], 1.0)
        return {"q_value": q, "flag": (found["flag"] * new).astype(np.uint8)}

    def found(self, advice: str = "") -> Decisions:
        """Returns the decisions with the most anomalous items, when all rows have been seen."""
        rows = self.most_anomalous | self.columns(self.most_anomalous)
        columns = {name: rows[name].tolist() for name in self.order if name != "seen"}
        return self.decisions(columns, excluded=self.excluded, missing=self.missing, advice=advice)


def decided(
    p: np.ndarray, fdr: float, n: int, *, left_out: Any = False, confirmed: Any = False, normal: Any = False, **columns: Any
) -> Decisions:
    """Returns the decisions on items with p-values (m,) from any laws, at a false-discovery rate.

    Items that are ``left_out`` (m,) have the q-value 1, no flag, and do not count. ``normal`` ones (m,) count, and have no flag.
    Of ``n`` calibration items; 0 without a reference.

    Anomalies that a person ``confirmed`` (m,) are not flagged, but count as discoveries with p = 0; the rate a holds for flags
    and these together. Benjamini-Hochberg rejects item i if p_i <= a R / m, with R rejections. If R does not grow with any
    p-value, normal items with P(p_i <= t) <= t and positive dependence have E[1(p_i <= a R / m) / R] <= a / m (Blanchard &
    Roquain, 2008); their sum is the rate. The p-values of anomalies may be anything, so also 0, and R stays such a function if
    smaller p-values mean no fewer marks. A mark of a flagged item changes no flag: it is one of R p-values up to a R / m anyway.
    """
    new = np.broadcast_to(~np.asarray(left_out), p.shape)
    known = new & np.asarray(confirmed)
    q, m = np.ones(len(p)), int(new.sum())
    if m:
        q[new] = conformal.q_values(np.where(known, 0.0, p)[new])
    q[known] = 1.0
    flag = conformal.at_most(q, fdr) & new & ~np.asarray(normal)
    columns = {"p_value": p, "q_value": q, "flag": flag.astype(np.uint8), **columns}
    why, total = str(conformal.reportable(n, m, fdr)) if n and m else "", m - int(known.sum())
    return Decisions(columns, total, int(flag.sum()), n, fdr, why_none=why, excluded=len(p) - total)


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
    """Returns which new items are anomalous, from the scores of any model.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen, n >= 10: an array, tensor, Series or list.
        scores: Scores (m,) of new items, m >= 0.
        fdr: Largest share of false alarms among the flags, on average over tables, in (0, 1); 0 counts for a table without flags.
        fpr: Instead, the largest share of normal items that is flagged, with ``confidence``.
        confidence: Probability of that, over calibration sets, in (0, 1), by default 0.95. With ``fdr``: the rate holds for these
            calibration items, with this probability; by default it is an average over calibration items, too.
        adaptive: Use what anomalies leave of ``fdr``, by an estimate of their share: more power where they are many.
        groups: Labels of the calibration items (n,) and of the new ones (m,): the p-values hold within each group. Only with
            ``fdr``.
        larger_is_anomalous: False for scores that are larger for normal items.

    Raises:
        ValueError: There are fewer than 10 calibration scores, or all are equal, or a setting is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = calibrate(rng.normal(size=1000), [0.1, 8.0, -0.3])
        >>> found.flag.tolist()
        [False, True, False]
        >>> found.sentences[0]
        '1 of 3 items flagged.'
        >>> print(found.sentences[1])
        On average at most 10 % of flags are false alarms, if new and calibration items come from one source.
    """
    require_within("(0, 1)", fdr=fdr)
    sign = 1.0 if larger_is_anomalous else -1.0
    given = (("calibration scores", calibration, 1), ("scores", scores, 0))
    cal, new = (sign * as_values(name, x, least=least) for name, x, least in given)
    expect(len(cal) >= LEAST, f"at least {LEAST} calibration scores", len(cal), "give more normal items")
    differ = np.ptp(cal) > 0 or groups is not None
    expect(differ, "calibration scores that differ", f"{cal[0]:g} for all", "the score separates nothing")
    _expect_apart(cal, new)
    if confidence is not None:
        require_within("(0, 0.9999]", confidence=confidence)
    certificate = None if fpr is None else conformal.fpr_threshold(cal, fpr, confidence or CONFIDENCE)
    certificate = certificate and replace(certificate, lower=not larger_is_anomalous)
    expect(fpr is None or not adaptive, "adaptive with fdr", "fpr", "leave one out")
    if groups is not None:
        others = [name for name, of in (("fpr", fpr), ("confidence", confidence), ("adaptive", adaptive)) if of]
        expect(not others, "`groups` with `fdr` alone", f"`{'`, `'.join(others)}`", "leave one out")
        return replace(_within(cal, new, groups, fdr), lower_is_anomalous=not larger_is_anomalous)
    own = conformal.counts_of(conformal.ranked(cal, cal), len(cal))
    sure = confidence if fpr is None else None
    counts = Counts(len(cal), fdr, certificate, own=own, confidence=sure, adaptive=adaptive)
    columns = {"p_value": conformal.ranked(cal, new), "score": new}
    counts.see(columns)
    found = counts.decisions({"p_value": columns["p_value"], **counts.columns(columns)})
    return replace(found, lower_is_anomalous=not larger_is_anomalous)


def _expect_apart(cal: np.ndarray, new: np.ndarray) -> None:
    """Refuses calibration scores of which the most are new scores to the last digit, where few new scores are equal."""
    (own, often), (asked, times) = (np.unique(x, return_counts=True) for x in (cal, new))
    if 10 * int((times == 1).sum()) < 9 * len(new):
        return  # rounded scores: equal ones say nothing
    same = len(np.intersect1d(own[often == 1], asked[times == 1], assume_unique=True))
    among = f"{same:,} of {len(cal):,} there"
    expect(2 * same <= len(cal), "calibration items that are not among the new ones", among, "leave them out of one")


def _within(cal: np.ndarray, new: np.ndarray, groups: tuple[Any, Any], fdr: float) -> Decisions:
    """Returns the decisions by p-values among the calibration items of the same group.

    How often new items are above calibration items of their group, summed over groups, tells a change of them all: a sum of
    rank statistics (Wilcoxon, Mann, Whitney), of n and m items with the variance n m (n + m + 1) / 12, less with ties.
    """
    label, asked = labels_of("groups of the calibration items", groups[0], len(cal)), labels_of("groups", groups[1], len(new))
    p, needs, drift, variance = np.empty(len(new)), [], 0.0, 0.0
    for group in np.unique(asked):
        own, of = cal[label == group], asked == group
        expect(len(own) >= LEAST, f"at least {LEAST} calibration items of group {group}", len(own), "give more, or merge groups")
        p[of] = conformal.ranked(own, new[of])
        drift += (len(own) + 1) / 2 * float((conformal.ranked(-own, -new[of]) - p[of]).sum())
        variance += len(own) * of.sum() * (len(own) + of.sum() + 1) / 12
        needs.append((conformal.reportable(len(own), len(new), fdr).fewest, -len(own), group))
    found = decided(p, fdr, len(cal))
    if not needs:
        return found
    shift = math.erfc(abs(drift) / math.sqrt(2 * variance))
    change, up_to = CHANGES[int(drift < 0)], np.arange(len(p) + 1) / len(p)
    excess = float((up_to[1:] - np.sort(p) if change == CHANGES[0] else np.sort(p) - up_to[:-1]).max())
    (fewest, most, _), (alone, least, group) = min(needs), max(needs)  # of the largest and of the smallest group
    more = f", or {alone:,} if all are in group {group}" if alone > fewest else ""
    sizes = f"{-least:,} to {-most:,}" if more else f"{-most:,}"
    able = f"a flag needs at least {counted(fewest, 'anomalous item')}{more}; there are {len(new):,} in all."
    why = f"Each group has {sizes} calibration items. At a rate of {in_percent(fdr)}, {able}"
    return replace(found, why_none=why, shift=shift, excess=excess, change=change)


def explain(feature_sets: Sequence[str], p_values: Any, n: int, words: Sequence[Sequence[str]] | None = None) -> list[str]:
    """Returns why each item is anomalous: the feature sets in which it is rare, the rarest first, then words about it.

    A feature set counts as rare where at most one in 100 normal items is as anomalous. Of an item that is rare in none, the
    rarest is named if at most one in 10 is. Among n normal items nothing rarer than 1 in n can be seen, so none is reported.

    Args:
        feature_sets: Names of the L feature sets.
        p_values: Shares (M, L) of the normal items that are at least as anomalous in each of them, in (0, 1].
        n: Number of normal items.
        words: More about each item (M,), lists of texts that follow.

    Example:
        >>> explain(["pixels", "z"], [[0.0001, 0.004], [0.3, 0.02]], 500, [["dark"], []])
        ['pixels rarer than 1 in 500; z 1 in 200; dark', 'z 1 in 50']
        >>> explain(["pixels", "z"], [[0.4, 0.5]], 500)
        ['']
    """
    require_count(1, n=n)
    expect(isinstance(feature_sets, Sequence), "feature_sets to be a list of names", feature_sets)
    listed = words is None or (isinstance(words, list | tuple) and all(isinstance(some, list | tuple) for some in words))
    texts = listed and all(isinstance(word, str) for some in words or () for word in some)
    expect(texts, "words to be a list of texts for each item", words)
    p = array_of("p_values", p_values).astype(np.float64)
    fits = p.ndim == 2 and p.shape[1] == len(feature_sets) and (words is None or len(words) == len(p))
    expect(fits, f"p-values (M, {len(feature_sets)}) and words (M,)", p.shape)
    return ["; ".join([*_rare_sets(feature_sets, row, n), *(words[i] if words is not None else ())]) for i, row in enumerate(p)]


def _rare_sets(feature_sets: Sequence[str], p: Floats, n: int) -> list[str]:
    order = [i for i in np.argsort(p, kind="stable").tolist() if p[i] <= RARE] or [int(p.argmin())]
    order = [i for i in order if p[i] <= RARE_ALONE]
    beyond = ", ".join(str(feature_sets[i]) for i in order if p[i] < 1 / n)
    within = [f"{feature_sets[i]} 1 in {float(f'{1 / p[i]:.1g}'):,.0f}" for i in order if p[i] >= 1 / n]
    return [f"{beyond} rarer than 1 in {n:,}", *within] if beyond else within
