"""Conformal p-values of anomaly scores, and the choice of the items to report with a bounded false-discovery rate.

Scores are larger for stranger items. The guarantees hold if the calibration items are exchangeable with the typical items
among those that are judged: of the same source, seen by no fit that made the scores, without near-duplicates among the
training items, in no order of time. A folder that is judged by itself has no calibration items; `tail_p_values` takes a model.

Shapes: n calibration items, m judged items, N items of a folder.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Values, as_values, like, numeric, require_p_values
from vergence.utils.checks import require_count, require_within

__all__ = [
    "Reportable",
    "at_most",
    "label_trim",
    "needed_calibration",
    "p_values",
    "q_values",
    "reportable",
    "select",
    "tail_p_values",
    "to_label",
]

ROUNDING = 1e-12  # relative; p = a k / m counts as p <= a k / m
SURVIVORS = 0.5  # ten or more p-values, all below this, look like the selected part of a longer list
FEWEST = 100  # scores, for a tail of about 15
TAIL, MOST = 0.15, 0.1  # share of the scores that a tail is fitted to; largest share that may be odd
CAUTION = 1.6449  # standard errors that are taken from the rate of a tail: its lower 95 % limit
LEAST = 10  # scores in a tail
LARGEST = 600.0  # exponent, short of an overflow


def p_values(calibration: Values, scores: Values) -> Any:
    r"""Returns the conformal p-value of each score: the share of typical items that are at least as strange.

        p = (1 + #{i : s_i >= s}) / (n + 1),

    which satisfies P(p <= a) <= a for a typical item, whatever the score (Vovk, Gammerman, Shafer, Algorithmic learning in a
    random world, 2005). The least possible value is 1 / (n + 1). The p-values of one batch depend on each other through the
    calibration items, positively, so that `select` keeps its rate (Bates, Candes, Lei, Romano, Sesia, Testing for outliers with
    conformal p-values, 2023).

    Args:
        calibration: Scores (n,) of typical items that no fit has seen.
        scores: Scores (m,) of the items to judge.

    Returns:
        (m,) of float64 in (0, 1], a tensor if ``scores`` is one, otherwise an array.

    Raises:
        ValueError: Values are missing or NaN, or all scores are equal.

    Warns:
        UserWarning: The largest calibration score is shared by many items, or scores repeat calibration scores exactly.

    Example:
        >>> p_values([0.1, 0.2, 0.3, 0.4], [0.25, 9.0])
        array([0.6, 0.2])
    """
    s = as_values("scores", scores)
    s_cal = as_values("calibration", calibration).to(s.device)
    _check(s_cal, s)
    ordered = s_cal.sort().values
    below = torch.searchsorted(ordered, s.contiguous())
    return like(scores, (1.0 + (len(ordered) - below).double()) / (len(ordered) + 1))


def _check(calibration: Tensor, s: Tensor) -> None:
    """Raises or warns about calibrations that cannot be meant."""
    n, m = len(calibration), len(s)
    top = calibration.max()
    if n > 1 and bool((calibration == top).all()) and bool((s == top).all()):
        raise ValueError(f"expected scores that differ, found {float(top):g} in all {n + m} items: the score tells nothing apart")
    shared = int((calibration == top).sum())
    if shared > max(2, n / 100):
        warnings.warn(
            f"{shared} of {n} calibration scores share the largest value, so an item that has it too gets no p-value below "
            f"{(shared + 1) / (n + 1):.2g}",
            stacklevel=3,
        )
    _check_overlap(calibration, s)


def _check_overlap(calibration: Tensor, s: Tensor) -> None:
    """Warns if more scores repeat a calibration score to the last digit than calibration scores repeat each other."""
    n, m = len(calibration), len(s)
    unique, count = calibration.unique(return_counts=True)
    tied = float(count[count > 1].sum()) / n
    repeated = int(torch.isin(s, unique).sum())
    usual = tied * m
    if tied < 0.5 and repeated > usual + 4 * math.sqrt(usual) + max(2, 0.01 * m):
        warnings.warn(
            f"{repeated} of {m} scores equal a calibration score to the last digit: items that are on both sides make the "
            "p-values of the others wrong; leave them out of the calibration",
            stacklevel=4,
        )


def q_values(p_values: Values) -> Any:
    """Returns the q-value of each item: the least false-discovery rate at which Benjamini-Hochberg reports it.

    Args:
        p_values: (m,) in [0, 1], of all items that were judged.

    Returns:
        (m,) of float64 in [0, 1], of the kind given.

    Example:
        >>> q_values([0.01, 0.02, 0.9])
        array([0.03, 0.03, 0.9 ])
    """
    from scipy.stats import false_discovery_control

    p = require_p_values(p_values)
    return like(p_values, torch.from_numpy(false_discovery_control(p.cpu().numpy())).to(p.device))


def select(p_values: Values, fdr: float = 0.1) -> Any:
    r"""Returns which items to report, so that on average at most a share ``fdr`` of the reported ones is typical.

    Benjamini-Hochberg (Controlling the false discovery rate, 1995) reports the k items of least p for the largest k with
    p_(k) <= a k / m. With split-conformal p-values the rate is at most a times the share of typical items (Bates et al. 2023).

    The rate holds for one call on all items that were judged, not for a second call on the items that a first one reported,
    nor for a cut that was chosen after looking at the list: for that, see `vergence.detection.simultaneous_bounds`. It holds
    for p-values of one score: combine several levels first and calibrate the combination.

    Args:
        p_values: (m,) in [0, 1], of all items that were judged.
        fdr: False-discovery rate a, in (0, 1).

    Returns:
        (m,) of bool, of the kind given.

    Raises:
        ValueError: A value is outside [0, 1], there are p-values of several levels, or ``fdr`` is out of range.

    Warns:
        UserWarning: The p-values look like the selected part of a longer list.

    Example:
        >>> select([0.001, 0.01, 0.3, 0.8], fdr=0.1)
        array([ True,  True, False, False])
    """
    require_within("(0, 1)", fdr=fdr)
    p = require_p_values(p_values)
    m = len(p)
    if m >= 10 and bool((p <= SURVIVORS).all()):
        warnings.warn(
            f"all {m} p-values are at most {float(p.max()):.2g}: if these items were selected from a longer list, pass the "
            "whole list, since the rate does not hold for a selection; if not, nearly all are unlike the calibration items",
            stacklevel=2,
        )
    ordered = p.sort().values
    allowed = fdr * (1 + ROUNDING) / m * torch.arange(1, m + 1, dtype=p.dtype, device=p.device)
    passed = (ordered <= allowed).nonzero()
    return like(p_values, p <= ordered[passed[-1, 0]] if len(passed) else torch.zeros_like(p, dtype=torch.bool))


def at_most(q: Any, level: float) -> Any:
    """Returns which q-values are at most a level, up to rounding."""
    return q <= level * (1 + ROUNDING)


def needed_calibration(n_items: int, n_odd: int, fdr: float = 0.1) -> int:
    """Returns how many calibration items are needed to report ``n_odd`` of ``n_items`` at a false-discovery rate.

    The least p-value is 1 / (n + 1), and Benjamini-Hochberg reports R of m items only if their p <= a R / m: n >= m / (a R) - 1.

    Args:
        n_items: Items to judge, m >= 1.
        n_odd: Items to report, R in 1..m.
        fdr: False-discovery rate a, in (0, 1).

    Example:
        >>> needed_calibration(10_000, 10, fdr=0.1)
        9999
    """
    require_count(1, n_items=n_items, n_odd=n_odd)
    require_within("(0, 1)", fdr=fdr)
    if n_odd > n_items:
        raise ValueError(f"expected n_odd of at most n_items, found {n_odd} of {n_items}")
    return max(1, math.ceil(n_items / (fdr * n_odd) * (1 - ROUNDING)) - 1)


@dataclass(frozen=True)
class Reportable:
    """What numbers of items allow before any score is known; see `reportable`.

    Attributes:
        n_calibration: Calibration items n.
        n_items: Items to judge m.
        fdr: False-discovery rate.
        least_p_value: 1 / (n + 1).
        fewest: Fewest oddities that can be reported; above ``n_items`` where none can.
    """

    n_calibration: int
    n_items: int
    fdr: float
    least_p_value: float
    fewest: int

    def __str__(self) -> str:
        """Returns what the numbers allow in one sentence."""
        given, among = f"with {self.n_calibration:,} calibration items", f"among {self.n_items:,} items"
        if self.fewest == 1:
            return f"{given}, a single oddity {among} can be reported at {self.fdr:g}"
        needed = f"{needed_calibration(self.n_items, 1, self.fdr):,} calibration items are needed to report"
        if self.fewest > self.n_items:
            return f"{given}, no oddity {among} can be reported at {self.fdr:g}; {needed} one"
        return f"{given}, fewer than {self.fewest:,} oddities {among} cannot be reported at {self.fdr:g}; {needed} a single one"


def reportable(n_calibration: int, n_items: int, fdr: float = 0.1) -> Reportable:
    """Returns what numbers of items allow: how many oddities there must be for any to be reported.

    Args:
        n_calibration: Calibration items n >= 1.
        n_items: Items to judge m >= 1.
        fdr: False-discovery rate a, in (0, 1).

    Example:
        >>> print(reportable(500, 1000, fdr=0.1))
        with 500 calibration items, fewer than 20 oddities among 1,000 items cannot be reported at 0.1; 9,999 calibration items
        are needed to report a single one
    """
    require_count(1, n_calibration=n_calibration, n_items=n_items)
    require_within("(0, 1)", fdr=fdr)
    fewest = math.ceil(n_items / (fdr * (n_calibration + 1)) * (1 - ROUNDING))
    return Reportable(n_calibration, n_items, fdr, 1 / (n_calibration + 1), max(1, fewest))


def to_label(calibration: Values, budget: int) -> Any:
    """Returns the indices of the calibration items that a person should look at: the strangest, the strangest first.

    Args:
        calibration: Scores (n,).
        budget: Items to look at, 1 to n.

    Example:
        >>> to_label([0.1, 0.9, 0.5], 2)
        array([1, 2])
    """
    s = as_values("calibration", calibration)
    require_count(1, budget=budget)
    if budget > len(s):
        raise ValueError(f"expected a budget of at most the {len(s)} calibration items, found {budget}")
    return like(calibration, s.argsort(descending=True, stable=True)[:budget])


def label_trim(calibration: Values, confirmed: Any, budget: int) -> Any:
    """Returns the calibration scores without the confirmed oddities among the ``budget`` strangest: Label-Trim.

    A person looks at the ``budget`` strangest calibration items (`to_label`) and confirms which are odd. Items that were
    looked at and found typical stay, which is what keeps the p-values valid (Bashari, Sesia, Romano, Robust conformal outlier
    detection under contaminated reference data, arXiv:2502.04807).

    Args:
        calibration: Scores (n,).
        confirmed: Indices (R,) of the confirmed oddities.
        budget: Items that the person looked at, from the strangest on.

    Returns:
        Scores (n - R,), in their order.

    Raises:
        ValueError: A confirmed item is not among the strangest ``budget``, or nothing would be left.

    Example:
        >>> label_trim([0.1, 0.9, 0.5], [1], budget=2)
        array([0.1, 0.5])
    """
    s = as_values("calibration", calibration)
    given = numeric("confirmed", confirmed)
    if (confirmed if isinstance(confirmed, torch.Tensor) else np.asarray(confirmed)).dtype in (torch.bool, np.dtype(bool)):
        raise ValueError("expected the indices of the confirmed oddities, found a mask: pass np.flatnonzero(mask)")
    out = np.unique(given.cpu().numpy())
    shown = set(np.asarray(to_label(s.cpu().numpy(), budget)).tolist())
    other = [i for i in out.tolist() if i not in shown]
    if other:
        raise ValueError(
            f"expected confirmed oddities among the {budget} strangest calibration items, found {len(other)} elsewhere "
            f"(first: {other[0]:g}): an item is looked at because of its score alone, so raise the budget or leave it in"
        )
    if len(out) == len(s):
        raise ValueError(f"expected calibration items to remain, found all {len(s)} confirmed as odd: pass typical items")
    keep = torch.ones(len(s), dtype=torch.bool)
    keep[torch.from_numpy(out).long()] = False
    return like(calibration, s[keep.to(s.device)])


def tail_p_values(scores: Values) -> Any:
    r"""Returns p-values of a folder judged by itself: each item against a tail that is fitted to the less strange items alone.

    For the k-th largest score t, k up to a tenth of N, the items below t decide: their largest 15 %, m scores from u on,
    follows an exponential law that is truncated at t,

        f(s) = lambda exp(-lambda (s - u)) / (1 - exp(-lambda (t - u))),    u <= s < t,

    with lambda at the lower 95 % limit of its maximum-likelihood estimate. It expects E = m / (exp(lambda (t - u)) - 1) typical
    items beyond t, and p = E / N. A cluster of oddities thus never hides: the items below it alone say how many typical ones
    should be where it is. A stranger item has no larger p than a less strange one; beyond the largest tenth p is the share of the
    items that are at least as strange. `select` then reports the k strangest items for the largest k with E <= fdr k.

    This is a model, not a guarantee: it is right or cautious where the tail gets no heavier beyond the 0.85-quantile, as that of
    log-concave laws and of logarithms of distances. In simulations of 100 to 2,000 items, clean or with 0.2 to 5 % oddities, the
    mean false-discovery proportion of `select` at 0.1 is below 0.1 for normal, exponential and chi-squared scores and for
    logarithms of squared distances of Student's t with 5 degrees of freedom. It is too large for distances without logarithm, and
    where a tenth of the typical items comes from a wider law than the others.

    Args:
        scores: (N,), N >= 100, out-of-fold scores of all items of the folder, larger is stranger.

    Returns:
        (N,) of float64 in [0, 1], of the kind given.

    Raises:
        ValueError: There are too few scores, or the largest tenth is one value.

    Example:
        >>> s = np.r_[-np.log(1 - (np.arange(990) + 0.5) / 990), np.full(10, 30.0)]  # exponential, and ten oddities
        >>> p = tail_p_values(s)
        >>> bool((p[:990] > 3e-4).all()), bool((p[990:] < 1e-6).all())
        (True, True)
    """
    s = as_values("scores", scores, least=FEWEST)
    ordered, order = s.cpu().numpy().astype(np.float64), s.argsort(descending=True, stable=True)
    ordered = np.sort(ordered)
    n = len(ordered)
    if not np.isfinite(ordered).all() or not ordered[int((1 - MOST) * n)] < ordered[-1]:
        found = ", ".join(f"{ordered[int(share * n)]:g}" for share in (0.5, 1 - MOST)) + f", {ordered[-1]:g}"
        raise ValueError(f"expected finite scores whose largest tenth differs, found quantiles {found} at 0.5, {1 - MOST:g}, 1")
    p = np.arange(1, n + 1) / n
    most = int(MOST * n)
    p[:most] = np.minimum(_expected(ordered, np.arange(1, most + 1)) / n, 1.0)
    p = np.minimum.accumulate(p[::-1])[::-1].copy()
    p = np.minimum(p, 1.0)[np.searchsorted(-ordered[::-1], -ordered[::-1], side="right") - 1]  # equal scores have equal p
    out = torch.empty_like(s)
    out[order] = torch.from_numpy(p).to(s)
    return like(scores, out)


def _expected(ordered: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Returns how many typical scores are expected to be at least the k-th largest, by a tail fitted to those below it.

    Args:
        ordered: Scores (N,), ascending.
        k: (K,), from 1 to N / 10.
    """
    below = len(ordered) - k  # items below the k-th largest
    first = ((1 - TAIL) * below).astype(np.int64)
    sums = np.concatenate([[0.0], np.cumsum(ordered - ordered[0])])
    m, u = below - first - 1, ordered[first]
    T = ordered[below] - u
    mean = (sums[below] - sums[first + 1]) / np.maximum(m, 1) - (u - ordered[0])
    falls = (m >= LEAST) & (mean > 0) & (mean < T / 2)  # otherwise the density does not fall toward t
    mean, T = np.where(falls, mean, 0.25), np.where(falls, T, 1.0)
    rate = _truncated_rate(mean, T)
    information = 1 / rate**2 - (T / (2 * np.sinh(np.minimum(rate * T, LARGEST) / 2))) ** 2
    rate = np.maximum(rate - CAUTION / np.sqrt(np.maximum(information, 1e-300) * np.maximum(m, 1)), 1e-12 / T)
    return np.where(falls, (m + 1) / np.expm1(np.minimum(rate * T, LARGEST)), len(ordered))


def _truncated_rate(mean: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Returns the rate of exponential laws truncated to [0, T] with the given means, below T / 2, by bisection.

    It solves mean = 1 / rate - T / (exp(rate T) - 1), whose right side falls from T / 2 to 0.

    Example:
        >>> rate = _truncated_rate(np.array([0.25]), np.array([1.0]))
        >>> (1 / rate - 1 / np.expm1(rate)).round(6).tolist()
        [0.25]
    """
    low, high = 1e-9 / T, 1 / mean
    for _ in range(60):
        rate = np.sqrt(low * high)
        above = 1 / rate - T / np.expm1(np.minimum(rate * T, LARGEST)) > mean
        low, high = np.where(above, rate, low), np.where(above, high, rate)
    return np.asarray(np.sqrt(low * high))
