"""Bounds that hold with a stated confidence: false discoveries in any list, the false-positive rate above a threshold, drift.

All rest on the joint law of conformal p-values of typical items, which depends on nothing but the numbers of items. Let n
calibration items and m typical ones be exchangeable, without ties. Then N_k, the number of p-values at most k / (n + 1), is a
Polya urn's count: given the n + 1 spacings of n uniform numbers, the m items fall into them independently (Marandon, Lei, Mary,
Roquain, Adaptive novelty detection with false discovery rate guarantee, 2022; Gazin, Blanchard, Roquain, Transductive conformal
inference with adaptive scores, 2023). Ranks k of a grid are sampled directly, so that the effort does not depend on n and m.

Shapes: n calibration items, m items that are judged, G ranks of a grid.
"""

import functools
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Values, as_values, require_matching, require_p_values
from vergence.utils.checks import EXACT, LARGEST, require_count, require_within, shown

__all__ = [
    "Certificate",
    "Drift",
    "SimultaneousBounds",
    "certify",
    "drift_of_counts",
    "fpr_threshold",
    "needed_for_fpr",
    "simultaneous_bounds",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SIMULATIONS = 4000  # of the law, for a bound
SAMPLES = 1999  # of a statistic, for a test
ROUNDING = 1e-12  # relative


def rank_grid(n: int, size: int = 100) -> Ints:
    """Returns about ``size`` increasing ranks of 1..n, all small ones and then ever wider apart.

    Example:
        >>> rank_grid(5), rank_grid(10_000, 6)
        (array([1, 2, 3, 4, 5]), array([    1,     6,    40,   251,  1585, 10000]))
    """
    return np.unique(np.round(np.geomspace(1, n, size)).astype(np.int64))


def null_counts(n: int, m: int, ranks: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Returns ``size`` samples of N_k at increasing ranks k, (size, G), for n calibration items and m typical ones.

    Example:
        >>> null_counts(9, 20, np.array([1, 5, 9]), 20_000, np.random.default_rng(0)).mean(0).round(1)  # m k / (n + 1)
        array([ 2., 10., 18.])
    """
    spacing = rng.standard_gamma(np.diff(ranks, prepend=0, append=n + 1), (size, len(ranks) + 1))
    cells = rng.multinomial(m, spacing / spacing.sum(1, keepdims=True))
    return cells[:, :-1].cumsum(1)


def count_tail(n: int, m: int, k: int) -> Floats:
    """Returns P(N_k >= v) for v = 0..m, of the beta-binomial law of m items, k and n + 1 - k.

    Example:
        >>> count_tail(9, 2, 5).round(3)  # 1, P(at least one), P(both)
        array([1.   , 0.727, 0.273])
    """
    from scipy.special import betaln, gammaln

    v = np.arange(m + 1)
    log_pmf = gammaln(m + 1) - gammaln(v + 1) - gammaln(m - v + 1) + betaln(k + v, n + 1 - k + m - v) - betaln(k, n + 1 - k)
    return np.asarray(np.minimum(1.0, np.exp(log_pmf)[::-1].cumsum()[::-1]))


class Drift(NamedTuple):
    """The outcome of `drift_of_counts`: the statistic, and the probability of one at least as large if nothing has changed."""

    statistic: float
    p_value: float


def drift_of_counts(counts: Ints) -> Drift:
    r"""Returns whether a batch as a whole is stranger than the calibration items, though perhaps no single item is unusual.

    The statistic is max_k N_k / m - k / (n + 1) over the ranks k of a grid, the largest excess of the p-values' distribution
    function over the uniform one. It is compared with samples of its law for n calibration items and m typical ones, whose
    p-values are not independent: the usual tables reject far too often where m is not much smaller than n. Equal scores make
    p-values too large, which is no excess.

    Args:
        counts: (n + 2,), how many items have the p-value k / (n + 1), for k = 0..n + 1; m in all.

    Example:
        >>> drift_of_counts(np.bincount(np.arange(1, 1001) // 2 + 1, minlength=1001)).p_value
        0.0005
    """
    n, m = len(counts) - 2, int(counts.sum())
    ranks = rank_grid(n)
    statistic = float(_excess(np.cumsum(counts)[ranks], n, m, ranks))
    p_value = (1 + float((_null_excess(n, m) >= statistic * (1 - ROUNDING)).sum())) / (SAMPLES + 1)
    return Drift(statistic, p_value)


@functools.lru_cache(maxsize=32)
def _null_excess(n: int, m: int) -> Floats:
    """Returns samples of the statistic for typical items."""
    ranks = rank_grid(n)
    return _excess(null_counts(n, m, ranks, SAMPLES, np.random.default_rng(0)), n, m, ranks)


def _excess(counts: Ints, n: int, m: int, ranks: Ints) -> Floats:
    """Returns the statistic of counts at the ranks, over the last axis."""
    return np.asarray(np.maximum(counts / m - ranks / (n + 1), 0.0).max(-1))


@dataclass(frozen=True)
class SimultaneousBounds:
    """Upper bounds on the false discoveries in every list of items at once; see `simultaneous_bounds`.

    With probability ``confidence`` all bounds hold together, so that a list may be chosen after looking at the scores, the
    items, and these bounds.

    Attributes:
        confidence: Probability that all bounds hold.
        p_values: (m,) float64.
        thresholds: (G,), increasing.
        most: (G,) int64: with the stated confidence at most so many typical items have p-values up to each threshold.
    """

    confidence: float
    p_values: Tensor
    thresholds: Floats
    most: Ints

    def false_discoveries(self, chosen: Any) -> int:
        """Returns an upper bound of the number of typical items in a list.

        Args:
            chosen: (m,) of bool.
        """
        mask = torch.as_tensor(chosen).to(self.p_values.device)
        require_matching("chosen", mask, "judged", len(self.p_values))
        p = np.sort(self.p_values[mask.bool()].cpu().numpy())
        return int(self._bound(np.searchsorted(p, self.thresholds, side="right"), np.array([len(p)]))[0])

    def proportion(self, chosen: Any) -> float:
        """Returns the largest share of typical items that a list can have; 0 for an empty list."""
        size = int(torch.as_tensor(chosen).sum())
        return self.false_discoveries(chosen) / size if size else 0.0

    def by_length(self) -> Floats:
        """Returns the largest share of typical items among the k items of least p-value, for k = 1..m."""
        p = np.sort(self.p_values.cpu().numpy())
        k = np.arange(1, len(p) + 1)
        inside = np.searchsorted(p, self.thresholds, side="right")
        return np.asarray(self._bound(inside, k) / k)

    def longest(self, proportion: float = 0.1) -> Any:
        """Returns the longest list of least p-values of which at most a share is typical, as a mask (m,).

        Args:
            proportion: Largest share of typical items, in [0, 1).
        """
        require_within("[0, 1)", proportion=proportion)
        good = np.flatnonzero(self.by_length() <= proportion)
        order = self.p_values.argsort(stable=True)
        mask = torch.zeros(len(order), dtype=torch.bool, device=order.device)
        mask[order[: int(good[-1]) + 1 if len(good) else 0]] = True
        return mask

    def _bound(self, inside: Ints, k: Ints) -> Ints:
        """Returns min_g most_g + (k - inside_g)^+, at most k: typical items up to a threshold, and all items beyond it."""
        best: Ints = k.copy()
        for v, c in zip(self.most, inside, strict=True):
            np.minimum(best, v + np.maximum(0, k - c), out=best)
        return best


def simultaneous_bounds(p_values: Values, n_calibration: int, confidence: float = 0.95) -> SimultaneousBounds:
    r"""Returns upper bounds on the false discoveries in every list of items, for people who look first and cut afterwards.

    For thresholds t_k = k / (n + 1) on a grid of ranks k, N_k typical items have p <= t_k; with fewer typical items than m each
    N_k is smaller. The template V(k), the largest v with P(N_k >= v) >= c, is calibrated by sampling the joint law of (N_k): c is
    the floor(delta (S + 1))-th least of min_k P(N_k >= N_k^(s)) over S samples, which gives P(N_k <= V(k) for all k) >=
    1 - delta exactly, the sampling included. A list R then holds at most min_k V(k) + #{i in R : p_i > t_k} typical items
    (Goeman, Solari, Multiple testing for exploratory research, 2011; Blanchard, Neuvial, Roquain, Post hoc confidence bounds on
    false positives using reference families, 2020; for conformal p-values Gazin, Blanchard, Roquain, 2023, and Song, Jin, Candes,
    arXiv:2605.20726).

    Args:
        p_values: (m,) of `vergence.detection.p_values` of all judged items.
        n_calibration: Calibration items n that they were computed with.
        confidence: Probability 1 - delta, in (0, 0.9999].

    Example:
        >>> p = np.r_[np.full(30, 0.001), np.linspace(0.01, 1, 170)]  # 30 oddities, 999 calibration items
        >>> bounds = simultaneous_bounds(p, 999)
        >>> bounds.false_discoveries(p < 0.005), int(bounds.longest(0.2).sum())
        (3, 33)
    """
    require_count(1, EXACT, n_calibration=n_calibration)
    require_within("(0, 0.9999]", confidence=confidence)
    p = require_p_values(p_values)
    return SimultaneousBounds(confidence, p, *_template(n_calibration, len(p), confidence))


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
    """A bound on the rate at which typical items are flagged; see `certify`.

    Attributes:
        threshold: Items with a score above it are flagged.
        fpr: Upper bound of the rate.
        confidence: Probability that the bound holds.
        n_calibration: Calibration items n.
        exceeding: Calibration items above the threshold.
    """

    threshold: float
    fpr: float
    confidence: float
    n_calibration: int
    exceeding: int

    def __str__(self) -> str:
        """Returns the certificate in one sentence."""
        return (
            f"scores above {self.threshold:.6g} flag at most {self.fpr:.3g} of typical items, with confidence "
            f"{self.confidence:g} ({self.exceeding:,} of {self.n_calibration:,} calibration items are above)"
        )


def certify(
    calibration: Values, threshold: float | None = None, *, rank: int | None = None, confidence: float = 0.95
) -> Certificate:
    r"""Returns an upper bound on the false-positive rate above a threshold, by order statistics of the calibration scores.

    The rate above the k-th largest of n calibration scores has the law Beta(k, n - k + 1), or is smaller if there are ties.
    The rate above a fixed threshold that k - 1 calibration scores exceed is bounded by the same quantile (Clopper, Pearson,
    1934).

    The threshold or the rank must be fixed without looking at the scores: a threshold that was chosen among several because its
    rate looked low has no certificate.

    Args:
        calibration: Scores (n,) of typical items that no fit has seen.
        threshold: Fixed threshold; or
        rank: k in 1..n, for the k-th largest calibration score as the threshold.
        confidence: Probability that the rate is below the bound, over calibration sets, in (0, 1).

    Raises:
        ValueError: Neither or both of threshold and rank are given, or one is out of range.

    Example:
        >>> print(certify(range(1000), rank=3))
        scores above 997 flag at most 0.00628 of typical items, with confidence 0.95 (2 of 1,000 calibration items are above)
    """
    s = as_values("calibration", calibration).sort(descending=True).values
    require_within("(0, 1)", confidence=confidence)
    if (threshold is None) == (rank is None):
        raise ValueError("expected either a threshold or a rank, found both or neither: pass one of them")
    n = len(s)
    if rank is None:
        if not isinstance(threshold, Real) or threshold != threshold or (isinstance(threshold, int) and abs(threshold) > LARGEST):
            raise ValueError(f"expected the threshold to be a number of at most {LARGEST:,}, found {shown(threshold)}")
        exceeding = int((s > float(threshold)).sum())
        return Certificate(float(threshold), _upper(exceeding + 1, n, confidence), confidence, n, exceeding)
    require_count(1, rank=rank)
    if rank > n:
        raise ValueError(f"expected a rank of at most the {n} calibration items, found {rank}")
    t = float(s[rank - 1])
    return Certificate(t, _upper(rank, n, confidence), confidence, n, int((s > t).sum()))


def _upper(k: int, n: int, confidence: float) -> float:
    """Returns the quantile of Beta(k, n - k + 1); 1 for k > n."""
    from scipy.special import betaincinv

    return float(betaincinv(k, n - k + 1, confidence)) if k <= n else 1.0


def fpr_threshold(calibration: Values, fpr: float, confidence: float = 0.95) -> Certificate:
    """Returns the lowest threshold that is certified to flag at most a share ``fpr`` of typical items.

    Args:
        calibration: Scores (n,) of typical items that no fit has seen.
        fpr: False-positive rate, in (0, 1).
        confidence: Probability that the rate is not larger, in (0, 1).

    Raises:
        ValueError: There are too few calibration items; the message says how many are needed.

    Example:
        >>> fpr_threshold(range(5000), 0.001).exceeding
        1
        >>> fpr_threshold(range(500), 0.001)
        Traceback (most recent call last):
        ValueError: expected at least 2,995 calibration items to certify a rate of 0.001 with confidence 0.95, found 500, which
        can certify 0.00597: pass more items or allow a larger rate
    """
    s = as_values("calibration", calibration)
    needed, n = needed_for_fpr(fpr, confidence), len(s)
    if n < needed:
        raise ValueError(
            f"expected at least {needed:,} calibration items to certify a rate of {fpr:g} with confidence {confidence:g}, found "
            f"{n:,}, which can certify {_upper(1, n, confidence):.3g}: pass more items or allow a larger rate"
        )
    low, high = 1, n  # the largest rank whose bound is at most the rate
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _upper(middle, n, confidence) <= fpr else (low, middle - 1)
    return certify(s, rank=low, confidence=confidence)


def needed_for_fpr(fpr: float, confidence: float = 0.95) -> int:
    """Returns how many calibration items are needed to certify a false-positive rate: log(1 - confidence) / log(1 - fpr).

    Example:
        >>> needed_for_fpr(0.001, 0.95)
        2995
    """
    require_within("(0, 1)", fpr=fpr, confidence=confidence)
    return math.ceil(math.log1p(-confidence) / math.log1p(-fpr) * (1 - ROUNDING))
