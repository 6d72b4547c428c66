"""Conformal p-values of anomaly scores, the items to report with a bounded false-discovery rate, and bounds with a confidence.

Larger scores are more anomalous. The guarantees hold if the calibration items are exchangeable with the normal items among the
new ones: of the same source, seen by no fit that made the scores, without near duplicates among the training items, in no order
of time. `Calibrated` has weighted and cross-conformal p-values; more strategies are in the package nonconform.

The bounds rest on the joint law of the p-values of normal items, which depends only on the numbers of items. Without
ties N_k, the number of p-values at most k / (n + 1), is a Polya urn's count: given the n + 1 spacings of n uniform numbers, the m
items fall into them independently (Marandon, Lei, Mary, Roquain, Adaptive novelty detection with false discovery rate guarantee,
2022; Gazin, Blanchard, Roquain, Transductive conformal inference with adaptive scores, 2023).

Shapes: n calibration items, m new items, N items of a folder, G ranks of a grid.
"""

import bisect
import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple, cast, overload

import numpy as np

from vergence.decide.inputs import Values, array_of, as_values, labels_of, like, p_values_of
from vergence.utils.checks import EXACT, LARGEST, expect, in_percent, require_count, require_within
from vergence.utils.dtypes import Array, Floats, Ints, Tensor, is_tensor

__all__ = ["certain_levels", "certify", "counts_of", "drift_of_counts", "fpr_threshold", "label_trim", "needed_calibration"]
__all__ += ["needed_for_fpr", "p_values", "q_values", "ranked", "reportable", "select", "simultaneous_bounds", "tail_p_values"]
__all__ += ["to_label", "weighted"]

ROUNDING = 1e-12  # relative; p = a k / m counts as p <= a k / m
SURVIVORS = 0.5  # ten or more p-values, all below this, look like the selected part of a longer list
FEWEST = 100  # scores, for a tail of about 15
TAIL, MOST = 0.15, 0.1  # share of the scores that a tail is fitted to; largest share of anomalies
CAUTION = 1.6449  # standard errors that are taken from the rate of a tail: its lower 95 % limit
LEAST = 10  # scores in a tail
OVERFLOW = 600.0  # exponent, short of an overflow
SIMULATIONS = 4000  # of the law, for a bound
GRID = 100  # ranks, about
SAMPLES = 1999  # of a statistic, for a test
CHANGES = ("higher", "lower", "more spread", "less spread")  # of the scores of a batch
TAILS, EPSILON = (0.02, 0.3), 1e-12  # shares in a tail, in which spread is looked for


@overload
def p_values(calibration: Values, scores: Tensor) -> Tensor: ...
@overload
def p_values(calibration: Values, scores: Array | Sequence[float]) -> Array: ...
def p_values(calibration: Values, scores: Values) -> Any:
    r"""Returns the conformal p-value of each score: the share of normal items that are at least as anomalous.

        p = (1 + #{i : s_i >= s}) / (n + 1),

    which satisfies P(p <= a) <= a for a normal item and any score (Vovk, Gammerman, Shafer, Algorithmic learning in a
    random world, 2005). The p-values of one batch depend on each other positively, so that `select` keeps its rate (Bates et al.,
    Testing for outliers with conformal p-values, 2023). It warns if many scores are equal.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        scores: Scores (m,) of new items; the p-values are a tensor if these are one, else an array of float64.

    Example:
        >>> p_values([0.1, 0.2, 0.3, 0.4], [0.25, 9.0])
        array([0.6, 0.2])
    """
    s, s_cal = as_values("scores", scores), as_values("calibration", calibration)
    _check(s_cal, s)
    return like(scores, ranked(s_cal, s))


def ranked(calibration: np.ndarray, scores: np.ndarray) -> Floats:
    """Returns the p-values (m,) of `p_values` for scores that need no check, of which there may be none."""
    below = np.searchsorted(np.sort(calibration), scores)
    return np.asarray((1.0 + (len(calibration) - below)) / (len(calibration) + 1))


def weighted(calibration: np.ndarray, scores: np.ndarray, weights: np.ndarray, new: np.ndarray) -> Floats:
    r"""Returns p-values (m,) for given weights w: the density of new items over that of the calibration items.

        p = (w(x) + sum_i w_i [s_i >= s]) / (w(x) + sum_i w_i),

    with P(p <= a) <= a for a normal item (Tibshirani, Barber, Candes, Ramdas, Conformal prediction under covariate shift, 2019).
    Weights (n,) and (m,) are positive, up to a factor.

    Example:
        >>> weighted(np.array([1.0, 2.0, 3.0]), np.array([2.5]), np.array([1.0, 1.0, 2.0]), np.array([1.0])).tolist()
        [0.6]
    """
    order = np.argsort(calibration)
    reach = np.r_[np.cumsum(weights[order][::-1])[::-1], 0.0][np.searchsorted(calibration[order], scores)]
    return np.asarray(np.minimum((new + reach) / (new + weights.sum()), 1.0))  # sums in another order


def _check(calibration: Floats, s: Floats) -> None:
    """Raises or warns about calibrations that cannot be meant: equal scores, items that are on both sides."""
    n, m, top = len(calibration), len(s), calibration.max()
    differ = n == 1 or bool((calibration != top).any()) or bool((s != top).any())
    expect(differ, "scores that differ", f"{float(top):g} in all {n + m} items", "the score separates nothing")
    shared = int((calibration == top).sum())
    if shared > max(2, n / 100):
        least = f"so an item that has it too gets no p-value below {(shared + 1) / (n + 1):.2g}"
        warnings.warn(f"{shared} of {n} calibration scores share the largest value, {least}", stacklevel=3)
    unique, count = np.unique(calibration, return_counts=True)
    tied = float(count[count > 1].sum()) / n
    repeated, expected = int(np.isin(s, unique).sum()), tied * m  # more than calibration scores repeat each other
    if tied < 0.5 and repeated > expected + 4 * math.sqrt(expected) + max(2, 0.01 * m):
        wrong = "items that are on both sides make the p-values of the others wrong; leave them out of the calibration"
        warnings.warn(f"{repeated} of {m} scores equal a calibration score to the last digit: {wrong}", stacklevel=3)


def q_values(p_values: Values) -> Any:
    """Returns the q-value (m,) of each item: the least false-discovery rate at which Benjamini-Hochberg reports it.

    Args:
        p_values: Those (m,) of all new items.

    Example:
        >>> q_values([0.01, 0.02, 0.9])
        array([0.03, 0.03, 0.9 ])
    """
    p = p_values_of(p_values)
    order, q = np.argsort(p), np.empty_like(p)
    q[order] = np.minimum.accumulate((p[order] * (len(p) / np.arange(1, len(p) + 1)))[::-1])[::-1]
    return like(p_values, np.minimum(q, 1.0))


@overload
def select(p_values: Tensor, fdr: float = 0.1) -> Tensor: ...
@overload
def select(p_values: Array | Sequence[float], fdr: float = 0.1) -> Array: ...
def select(p_values: Values, fdr: float = 0.1) -> Any:
    r"""Returns which items to report, of which on average at most a share ``fdr`` is normal.

    Benjamini-Hochberg (Controlling the false discovery rate, 1995) reports the k items of least p for the largest k with
    p_(k) <= a k / m. With split-conformal p-values the rate is at most a times the share of normal items (Bates et al. 2023).
    It holds for one call on all new items, not for a cut that was chosen after looking at the list (`simultaneous_bounds`). It
    warns if they look like a selected part.

    Args:
        p_values: Those (m,) of all new items, in [0, 1].
        fdr: a, in (0, 1).

    Example:
        >>> select([0.001, 0.01, 0.3, 0.8], fdr=0.1)
        array([ True,  True, False, False])
    """
    require_within("(0, 1)", fdr=fdr)
    p = p_values_of(p_values)
    m = len(p)
    if m >= 10 and bool((p <= SURVIVORS).all()):
        words = "if they were selected from a longer list, pass it all; if not, nearly all items are unlike the calibration items"
        warnings.warn(f"all {m} p-values are at most {float(p.max()):.2g}: {words}", stacklevel=2)
    return like(p_values, at_most(q_values(p), fdr))


def at_most(q: Any, level: float) -> Any:
    """Returns which q-values are at most a level, up to rounding."""
    return q <= level * (1 + ROUNDING)


def needed_calibration(n_items: int, n_anomalies: int, fdr: float = 0.1) -> int:
    """Returns how many calibration items are needed to report R = ``n_anomalies`` of m = ``n_items`` at a false-discovery rate a.

    The least p-value is 1 / (n + 1), and Benjamini-Hochberg reports R of m items only if their p <= a R / m: n >= m / (a R) - 1.

    Args:
        n_items: m, number of new items.
        n_anomalies: R, 1 to m.
        fdr: a, in (0, 1).

    Example:
        >>> needed_calibration(10_000, 10, fdr=0.1)
        9999
    """
    require_count(1, n_items=n_items, n_anomalies=n_anomalies)
    require_within("(0, 1)", fdr=fdr)
    expect(n_anomalies <= n_items, "n_anomalies of at most n_items", f"{n_anomalies} of {n_items}")
    return max(1, math.ceil(n_items / (fdr * n_anomalies) * (1 - ROUNDING)) - 1)


@dataclass(frozen=True)
class Reportable:
    """What numbers of items allow at a false-discovery rate: no fewer than ``fewest`` anomalies can be flagged."""

    n_calibration: int
    n_items: int
    fdr: float
    fewest: int

    def __str__(self) -> str:
        """Returns what the numbers allow in one sentence."""
        have, rate = f"{self.n_calibration:,} calibration items", f"of {self.n_items:,} items at a rate of {in_percent(self.fdr)}"
        if self.fewest == 1:
            return f"{have} are enough to flag one {rate}."
        flagged = f"to flag one {rate}" if self.fewest > self.n_items else f"to flag fewer than {self.fewest:,} {rate}"
        return f"{have} are too few {flagged}. To flag one, {needed_calibration(self.n_items, 1, self.fdr):,} are needed."


def reportable(n_calibration: int, n_items: int, fdr: float = 0.1) -> Reportable:
    """Returns what numbers of items allow: how many anomalies there must be for any to be flagged.

    Args:
        n_calibration: Number of calibration items.
        n_items: Number of new items.
        fdr: False-discovery rate, in (0, 1).

    Example:
        >>> print(reportable(500, 1000, fdr=0.1))
        500 calibration items are too few to flag fewer than 20 of 1,000 items at a rate of 10 %. To flag one, 9,999 are needed.
    """
    require_count(1, n_calibration=n_calibration, n_items=n_items)
    require_within("(0, 1)", fdr=fdr)
    fewest = math.ceil(n_items / (fdr * (n_calibration + 1)) * (1 - ROUNDING))
    return Reportable(n_calibration, n_items, fdr, max(1, fewest))


def to_label(calibration: Values, budget: int) -> Any:
    """Returns the indices of the ``budget`` most anomalous calibration items, which a person should look at, as an array.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        budget: Number of items, 1 to n.

    Example:
        >>> to_label([0.1, 0.9, 0.5], 2)
        array([1, 2])
    """
    s = as_values("calibration", calibration)
    require_count(1, budget=budget)
    expect(budget <= len(s), f"a budget of at most the {len(s)} calibration items", budget)
    return like(calibration, np.argsort(-s, kind="stable")[:budget])


def label_trim(calibration: Values, confirmed: Any, budget: int) -> Any:
    """Returns the calibration scores without the confirmed anomalies among the ``budget`` most anomalous items: Label-Trim.

    A person looks at these calibration items (`to_label`) and confirms the anomalies; normal ones stay, which keeps the p-values
    valid (Bashari, Sesia, Romano, Robust conformal outlier detection under contaminated reference data, arXiv:2502.04807).

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        confirmed: Indices (R,) of the anomalies among these.
        budget: Number of items that were looked at, 1 to n.

    Example:
        >>> label_trim([0.1, 0.9, 0.5], [1], budget=2)
        array([0.1, 0.5])
    """
    s = as_values("calibration", calibration)
    given = array_of("confirmed", confirmed)
    is_mask = (given if is_tensor(confirmed) else np.asarray(confirmed)).dtype == bool
    expect(not is_mask, "the indices of the confirmed anomalies", "a mask", "pass np.flatnonzero(mask)")
    out = np.unique(given)
    others = out[~np.isin(out, to_label(s, budget))]
    expected = f"confirmed anomalies among the {budget} most anomalous calibration items"
    advice = "raise the budget, or leave these in: only the score may decide which items are looked at"
    expect(not len(others), expected, f"{len(others)} others (first: {others[0]:g})" if len(others) else "none", advice)
    expect(len(out) < len(s), "calibration items to remain", f"all {len(s)} confirmed as anomalies", "pass normal items")
    return like(calibration, np.delete(s, out.astype(np.int64)))


def tail_p_values(scores: Values) -> Any:
    r"""Returns p-values of a folder without a reference: each item against a tail that is fitted to items with lower scores.

    For the k-th largest score t, k up to a tenth of N, the items below t decide: their largest 15 %, m scores from u on,
    follows an exponential law that is truncated at t,

        f(s) = lambda exp(-lambda (s - u)) / (1 - exp(-lambda (t - u))),    u <= s < t,

    with lambda at the lower 95 % limit of its maximum-likelihood estimate. It expects E = m / (exp(lambda (t - u)) - 1) normal
    items beyond t, and p = E / N. A cluster of anomalies thus never hides. A higher score has no larger p than a lower one;
    beyond the largest tenth p is the share of the items with scores at least as high.

    This is a model, not a guarantee: it is right or cautious where the tail gets no heavier beyond the 0.85-quantile, as that of
    log-concave laws and of logarithms of distances, and too optimistic for distances without logarithm, or where a tenth of the
    normal items comes from a wider law than the others.

    Args:
        scores: Those (N,), N >= 100, of all items of the folder, each by a fit without the item.

    Example:
        >>> s = np.r_[-np.log(1 - (np.arange(990) + 0.5) / 990), np.full(10, 30.0)]  # exponential, and ten anomalies
        >>> p = tail_p_values(s)
        >>> bool((p[:990] > 3e-4).all()), bool((p[990:] < 1e-6).all())
        (True, True)
    """
    s = as_values("scores", scores, least=FEWEST)
    ordered, order = np.sort(s), np.argsort(-s, kind="stable")
    n = len(ordered)
    high, top = ordered[int((1 - MOST) * n)], ordered[-1]
    differ = np.isfinite(ordered).all() and high < top
    expect(differ, "finite scores whose largest tenth differs", f"quantiles {high:g}, {top:g} at 0.9, 1")
    p = np.arange(1, n + 1) / n
    most = int(MOST * n)
    p[:most] = np.minimum(_expected(ordered, np.arange(1, most + 1)) / n, 1.0)
    p = np.minimum.accumulate(p[::-1])[::-1].copy()
    p = np.minimum(p, 1.0)[np.searchsorted(-ordered[::-1], -ordered[::-1], side="right") - 1]  # equal scores have equal p
    out = np.empty_like(s)
    out[order] = p
    return like(scores, out)


def _expected(ordered: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Returns how many normal ones of ascending scores (N,) are expected to reach the k-th largest, k (K,) in 1..N / 10."""
    below = len(ordered) - k  # items below the k-th largest
    first = ((1 - TAIL) * below).astype(np.int64)
    sums = np.concatenate([[0.0], np.cumsum(ordered - ordered[0])])
    m, u = below - first - 1, ordered[first]
    T = ordered[below] - u
    mean = (sums[below] - sums[first + 1]) / np.maximum(m, 1) - (u - ordered[0])
    falls = (m >= LEAST) & (mean > 0) & (mean < T / 2)  # otherwise the density does not fall toward t
    mean, T = np.where(falls, mean, 0.25), np.where(falls, T, 1.0)
    low, high = 1e-9 / T, 1 / mean  # of the rate: mean = 1 / rate - T / (exp(rate T) - 1), which falls from T / 2 to 0
    for _ in range(60):
        rate = np.sqrt(low * high)
        above = 1 / rate - T / np.expm1(np.minimum(rate * T, OVERFLOW)) > mean
        low, high = np.where(above, rate, low), np.where(above, high, rate)
    rate = np.sqrt(low * high)
    information = 1 / rate**2 - (T / (2 * np.sinh(np.minimum(rate * T, OVERFLOW) / 2))) ** 2
    rate = np.maximum(rate - CAUTION / np.sqrt(np.maximum(information, 1e-300) * np.maximum(m, 1)), 1e-12 / T)
    return np.where(falls, (m + 1) / np.expm1(np.minimum(rate * T, OVERFLOW)), len(ordered))


def rank_grid(n: int, size: int = GRID) -> Ints:
    """Returns about ``size`` increasing ranks of 1..n, all small ones and then ever wider apart.

    Example:
        >>> rank_grid(5), rank_grid(10_000, 6)
        (array([1, 2, 3, 4, 5]), array([    1,     6,    40,   251,  1585, 10000]))
    """
    return np.unique(np.round(np.geomspace(1, n, size)).astype(np.int64))


def null_counts(n: int, m: int, ranks: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Returns ``size`` samples of N_k at increasing ranks k, (size, G), for n calibration items and m normal ones."""
    spacing = rng.standard_gamma(np.diff(ranks, prepend=0, append=n + 1), (size, len(ranks) + 1))
    cells = rng.multinomial(m, spacing / spacing.sum(1, keepdims=True))
    return cells[:, :-1].cumsum(1)


def count_tail(n: int, m: int, k: int) -> Floats:
    """Returns P(N_k >= v) for v = 0..m, of the beta-binomial law of m items, k and n + 1 - k."""
    from scipy.special import betaln, gammaln

    v = np.arange(m + 1)
    log_pmf = gammaln(m + 1) - gammaln(v + 1) - gammaln(m - v + 1) + betaln(k + v, n + 1 - k + m - v) - betaln(k, n + 1 - k)
    return np.asarray(np.minimum(1.0, np.exp(log_pmf)[::-1].cumsum()[::-1]))


def ranks_of(p_values: np.ndarray, n: int) -> Ints:
    """Returns k of p-values k / (n + 1), (m,)."""
    return np.asarray(np.rint(p_values * (n + 1)), dtype=np.int64)


def counts_of(p_values: np.ndarray, n: int) -> Ints:
    """Returns how many of p-values (m,) by n calibration items are k / (n + 1), k = 0..n + 1."""
    return np.bincount(ranks_of(p_values, n), minlength=n + 2)


class Drift(NamedTuple):
    """The statistic of `drift_of_counts`, the probability of one as large if nothing has changed, and which change it is of."""

    statistic: float
    p_value: float
    change: str


def drift_of_counts(counts: Ints, changes: Sequence[str] = CHANGES[:1], own: Ints | None = None) -> Drift:
    r"""Returns whether scores of a batch differ from those of the calibration items, though perhaps no single item is anomalous.

    With e_k = N_k / m - k / (n + 1) at ranks k of a grid, the statistics of ``changes`` are

        higher        max_k e_k                                     lower          max_k -e_k
        more spread   max_k min(e_k, -e_(n + 1 - k)) / sd_k         less spread    max_k min(-e_k, e_(n + 1 - k)) / sd_k

    with sd_k^2 = t (1 - t) of the tails t = k / (n + 1) in [0.02, 0.3]: anomalies add to one tail only, not to the spread.
    Each is centered and scaled by samples of its law for n calibration items and m normal ones, and the largest of them is
    compared with those of the samples: tables for independent p-values reject far too often where m is not much
    smaller than n. Where scores are equal -e_k counts all items that may be below k, which makes the test cautious. Of ``counts``
    (n + 2,), m in all, the k-th is how many items have the p-value k / (n + 1); ``own`` (n + 2,) are those of the calibration
    items, without which a batch below all of these is not distinguished from ties.
    """
    n, m, which = len(counts) - 2, int(counts.sum()), [CHANGES.index(change) for change in changes]
    ranks, up_to, seen = _both_ends(n), np.cumsum(counts), np.flatnonzero(counts if own is None else counts + own)
    above = seen[np.minimum(np.searchsorted(seen, ranks, side="right"), len(seen) - 1)]  # an item may tie with lower ranks
    found, null = _changes(up_to[ranks], up_to[np.maximum(above, ranks)], n, m), _null_changes(n, m)
    center, scale = null.mean(0), null.std(0) + EPSILON
    found_z, null_z = (((x - center) / scale)[..., which] for x in (found, null))
    p_value = (1 + float((null_z.max(-1) >= found_z.max() - ROUNDING).sum())) / (SAMPLES + 1)
    best = which[int(found_z.argmax())]
    return Drift(float(found[best]), p_value, CHANGES[best])


def _both_ends(n: int) -> Ints:
    """Returns ranks of 1..n that are dense at both ends, k with n + 1 - k."""
    ranks = rank_grid(n)
    return np.unique(np.r_[ranks, n + 1 - ranks])


@functools.lru_cache(maxsize=32)
def _null_changes(n: int, m: int) -> Floats:
    """Returns samples of the statistics for normal items, (samples, 4)."""
    counts = null_counts(n, m, _both_ends(n), SAMPLES, np.random.default_rng(0))
    return _changes(counts, counts, n, m)


def _changes(least: Ints, most: Ints, n: int, m: int) -> Floats:
    """Returns the four statistics (..., 4) of the least and the most items (..., G) that are up to the ranks of the grid."""
    t = _both_ends(n) / (n + 1)
    more, less = least / m - t, t - most / m
    k = np.flatnonzero((t >= TAILS[0]) & (t <= TAILS[1]))
    sd = np.sqrt(t[k] * (1 - t[k]))
    spread = [np.minimum(a[..., k], b[..., -1 - k]) / sd for a, b in ((more, less), (less, more))]
    return np.stack([x.max(-1, initial=0.0) for x in (more, less, *spread)], axis=-1)


@dataclass(frozen=True)
class SimultaneousBounds:
    """Upper bounds on the false discoveries in every list of items at once; see `simultaneous_bounds`.

    With probability ``confidence`` all bounds hold together, so that a list may be chosen after looking: at most ``most`` (G,)
    normal items have p-values (m,) up to each of the increasing ``thresholds`` (G,).
    """

    confidence: float
    p_values: Floats
    thresholds: Floats
    most: Ints

    def false_discoveries(self, chosen: Any) -> int:
        """Returns an upper bound of the number of normal items in a list, whose items are ``chosen`` (m,) of bool."""
        p = np.sort(self.p_values[labels_of("chosen", chosen, len(self.p_values)).astype(bool)])
        return int(self._bound(np.searchsorted(p, self.thresholds, side="right"), np.array([len(p)]))[0])

    def by_length(self) -> Floats:
        """Returns the largest share of normal items among the k items of least p-value, for k = 1..m."""
        p = np.sort(self.p_values)
        k = np.arange(1, len(p) + 1)
        inside = np.searchsorted(p, self.thresholds, side="right")
        return np.asarray(self._bound(inside, k) / k)

    def longest(self, proportion: float = 0.1) -> Array:
        """Returns the longest list of least p-values of which at most a proportion is normal, as a mask (m,)."""
        require_within("[0, 1)", proportion=proportion)
        within = np.flatnonzero(self.by_length() <= proportion)
        order = np.argsort(self.p_values, kind="stable")
        return np.isin(np.arange(len(order)), order[: int(within[-1]) + 1 if len(within) else 0])

    def _bound(self, inside: Ints, k: Ints) -> Ints:
        """Returns min_g most_g + (k - inside_g)^+, at most k: normal items up to a threshold, and all items beyond it."""
        best: Ints = k.copy()
        for v, c in zip(self.most, inside, strict=True):
            np.minimum(best, v + np.maximum(0, k - c), out=best)
        return best


def simultaneous_bounds(p_values: Values, n_calibration: int, confidence: float = 0.95) -> SimultaneousBounds:
    r"""Returns upper bounds on the false discoveries in every list of items, for people who look first and cut afterwards.

    For thresholds t_k = k / (n + 1) on a grid of ranks k, N_k normal items have p <= t_k; with fewer normal items than m each
    N_k is smaller. The template V(k), the largest v with P(N_k >= v) >= c, is calibrated by sampling the joint law of (N_k): c is
    the floor(delta (S + 1))-th least of min_k P(N_k >= N_k^(s)) over S samples, so that P(N_k <= V(k) for all k) >= 1 - delta,
    the sampling included. A list R then holds at most min_k V(k) + #{i in R : p_i > t_k} normal items
    (Goeman, Solari, Multiple testing for exploratory research, 2011; Blanchard, Neuvial, Roquain, Post hoc confidence bounds on
    false positives using reference families, 2020; for conformal p-values Gazin, Blanchard, Roquain, 2023, and Song, Jin, Candes,
    arXiv:2605.20726).

    Args:
        p_values: Those (m,) of all new items, as of `p_values`.
        n_calibration: n, number of calibration items.
        confidence: 1 - delta, in (0, 0.9999].

    Example:
        >>> p = np.r_[np.full(30, 0.001), np.linspace(0.01, 1, 170)]  # 30 anomalies, 999 calibration items
        >>> bounds = simultaneous_bounds(p, 999)
        >>> bounds.false_discoveries(p < 0.005), int(bounds.longest(0.2).sum())
        (3, 33)
    """
    require_count(1, EXACT, n_calibration=n_calibration)
    require_within("(0, 0.9999]", confidence=confidence)
    p = p_values_of(p_values)
    return SimultaneousBounds(confidence, p, *_template(n_calibration, len(p), confidence))


@functools.lru_cache(maxsize=32)
def certain_levels(n: int, confidence: float) -> Floats:
    r"""Returns p-values (n + 2,) that hold for the calibration items at hand, that of rank k in place of k / (n + 1).

    U_k, the share of all normal items that reach the k-th largest of n calibration scores, is the k-th least of n uniform numbers
    (less with ties). With b_k the quantile 1 - c of its law Beta(k, n + 1 - k), and c so small that P(U_k <= b_k for all k) is at
    least the confidence, the p-values b_k of new items are independent and P(b <= a) <= a given the calibration items, with
    that confidence (Bates et al. 2023, calibration-conditional p-values). c is sampled as in `simultaneous_bounds`.
    """
    from scipy.special import betainc, betaincinv

    ranks = rank_grid(n, 2 * GRID)
    size = max(SIMULATIONS, math.ceil(20 / (1 - confidence)))
    spacing = np.random.default_rng(0).standard_gamma(np.diff(ranks, prepend=0, append=n + 1), (size, len(ranks) + 1))
    uniform = spacing[:, :-1].cumsum(1) / spacing.sum(1, keepdims=True)
    least = np.sort(betainc(n + 1 - ranks, ranks, 1 - uniform).min(1))  # P(U_k >= u)
    c = least[math.floor((1 - confidence) * (size + 1) + 1e-9) - 1]
    levels: Floats = np.r_[0.0, (1 - betaincinv(n + 1 - ranks, ranks, c))[np.searchsorted(ranks, np.arange(1, n + 1))], 1.0]
    levels.flags.writeable = False  # the next call gets this array
    return levels


@functools.lru_cache(maxsize=32)
def _template(n: int, m: int, confidence: float) -> tuple[Floats, Ints]:
    """Returns the thresholds t_k and V(k)."""
    delta = 1 - confidence
    ranks = rank_grid(n)
    size = max(SIMULATIONS, math.ceil(20 / delta))
    samples = null_counts(n, m, ranks, size, np.random.default_rng(0))
    least = np.ones(size)
    for k, sampled in zip(ranks, samples.T, strict=True):
        least = np.minimum(least, count_tail(n, m, int(k))[sampled])
    c = np.sort(least)[min(math.floor(delta * (size + 1) + 1e-9), size) - 1]
    most = np.array([np.searchsorted(-count_tail(n, m, int(k)), -c, side="right") - 1 for k in ranks])
    thresholds = ranks / (n + 1) * (1 + ROUNDING)
    thresholds.flags.writeable = most.flags.writeable = False  # the next call with the same numbers gets these arrays
    return thresholds, most


@dataclass(frozen=True)
class Certificate:
    """A bound ``fpr`` on the share of normal items above a threshold, which ``exceeding`` calibration items exceed."""

    threshold: float
    fpr: float
    confidence: float
    n_calibration: int
    exceeding: int
    lower: bool = False  # whether scores were negated, since lower ones are anomalous

    def __str__(self) -> str:
        """Returns the certificate in one sentence."""
        share = in_percent(self.fpr, bound=True)
        most = f"With {in_percent(self.confidence)} confidence, at most {share} of normal items have scores"
        side = f"below {-self.threshold:.6g}" if self.lower else f"above {self.threshold:.6g}"
        return f"{most} {side} ({self.exceeding:,} of {self.n_calibration:,} calibration items do)."


def certify(
    calibration: Values, threshold: float | None = None, *, rank: int | None = None, confidence: float = 0.95
) -> Certificate:
    r"""Returns an upper bound on the false-positive rate above a threshold, by order statistics of the calibration scores.

    The rate above the k-th largest of n calibration scores has the law Beta(k, n - k + 1), or is smaller if there are ties.
    The rate above a fixed threshold that k - 1 calibration scores exceed is bounded by the same quantile (Clopper, Pearson,
    1934). The threshold or the rank must be fixed without looking at the scores.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        threshold: Score above which items are flagged; not with ``rank``.
        rank: k, 1 to n: the threshold is the k-th largest calibration score.
        confidence: Probability, over calibration sets, that the bound holds, in (0, 1).

    Example:
        >>> print(certify(range(1000), rank=3))
        With 95 % confidence, at most 0.63 % of normal items have scores above 997 (2 of 1,000 calibration items do).
    """
    s = np.sort(as_values("calibration", calibration))[::-1]
    require_within("(0, 1)", confidence=confidence)
    expect((threshold is None) != (rank is None), "either a threshold or a rank", "both or neither", "pass one of them")
    n = len(s)
    if rank is None:
        number = isinstance(threshold, Real) and abs(threshold) <= (LARGEST if isinstance(threshold, int) else math.inf)
        expect(number, "a threshold that is a number", threshold)
        t = float(cast(float, threshold))
        exceeding = int((s > t).sum())
        return Certificate(t, _upper(exceeding + 1, n, confidence), confidence, n, exceeding)
    require_count(1, rank=rank)
    expect(rank <= n, f"a rank of at most the {n} calibration items", rank)
    t = float(s[rank - 1])
    return Certificate(t, _upper(rank, n, confidence), confidence, n, int((s > t).sum()))


def _upper(k: int, n: int, confidence: float) -> float:
    """Returns the quantile of Beta(k, n - k + 1); 1 for k > n."""
    from scipy.special import betaincinv

    return float(betaincinv(k, n - k + 1, confidence)) if k <= n else 1.0


def fpr_threshold(calibration: Values, fpr: float, confidence: float = 0.95) -> Certificate:
    """Returns the lowest threshold that is certified to flag at most a share ``fpr`` of normal items; see `certify`.

    Args:
        calibration: Scores (n,) of normal items that no fit has seen.
        fpr: Largest share of normal items above the threshold, in (0, 1).
        confidence: As of `certify`.

    Example:
        >>> fpr_threshold(range(5000), 0.001).exceeding
        1
        >>> fpr_threshold(range(500), 0.001)
        Traceback (most recent call last):
        ValueError: expected at least 2,995 calibration items for a rate of 0.1 % with 95 % confidence, found 500, which allow
        0.6 %; pass more or allow a larger rate
    """
    s = as_values("calibration", calibration)
    needed, n = needed_for_fpr(fpr, confidence), len(s)
    expected = f"at least {needed:,} calibration items for a rate of {in_percent(fpr)} with {in_percent(confidence)} confidence"
    found = f"{n:,}, which allow {in_percent(_upper(1, n, confidence), bound=True)}"
    expect(n >= needed, expected, found, "pass more or allow a larger rate")
    more = bisect.bisect_right(range(2, n + 1), fpr, key=lambda rank: _upper(rank, n, confidence))  # ranks of such a bound
    return certify(s, rank=1 + more, confidence=confidence)


def needed_for_fpr(fpr: float, confidence: float = 0.95) -> int:
    """Returns how many calibration items are needed to certify a false-positive rate: log(1 - confidence) / log(1 - fpr).

    Args:
        fpr: Largest share of normal items that is flagged, in (0, 1).
        confidence: Probability of that, over calibration sets, in (0, 1).

    Example:
        >>> needed_for_fpr(0.001, 0.95)
        2995
    """
    require_within("(0, 1)", fpr=fpr, confidence=confidence)
    return math.ceil(math.log1p(-confidence) / math.log1p(-fpr) * (1 - ROUNDING))
