"""Conformal p-values of anomaly scores, and the choice of the items to report with a bounded false-discovery rate.

Scores are larger for stranger items. The guarantees hold if the calibration items are exchangeable with the typical items
among those that are judged: of the same source, seen by no fit that made the scores, without near-duplicates among the
training items, in no order of time.

Shapes: n calibration items, m items, K folds.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Seed, Values, as_values, labels_of, like, require_p_values, uniforms
from vergence.utils.checks import require_choice, require_count, require_within

__all__ = ["Reportable", "cross_p_values", "needed_calibration", "p_values", "q_values", "reportable", "select"]

ROUNDING = 1e-12  # relative; p = a k / m counts as p <= a k / m
SURVIVORS = 0.5  # ten or more p-values, all below this, look like the selected part of a longer list


def p_values(
    calibration: Values,
    scores: Values,
    *,
    ties: Literal["conservative", "random"] = "conservative",
    groups: tuple[Any, Any] | None = None,
    random_state: Seed = None,
) -> Any:
    r"""Returns the conformal p-value of each score: the share of typical items that are at least as strange.

        p = (1 + #{i : s_i >= s}) / (n + 1),

    which satisfies P(p <= a) <= a for a typical item, whatever the score (Vovk, Gammerman, Shafer, Algorithmic learning in a
    random world, 2005). The least possible value is 1 / (n + 1). The p-values of one batch depend on each other through the
    calibration items, positively, so that `select` keeps its rate (Bates, Candes, Lei, Romano, Sesia, Testing for outliers with
    conformal p-values, 2023).

    Args:
        calibration: Scores (n,) of typical items that no fit has seen.
        scores: Scores (m,) of the items to judge.
        ties: ``conservative`` counts equal scores as stranger; ``random`` counts a uniform share of them, which makes
            P(p <= a) = a for any score: p = (#{s_i > s} + U (1 + #{s_i = s})) / (n + 1).
        groups: Labels (n,) and (m,), of which each item is compared with its own group only (Mondrian): the guarantee then
            holds within each group.
        random_state: Seed of ``ties="random"``.

    Returns:
        (m,) of float64 in (0, 1], a tensor if ``scores`` is one, otherwise an array.

    Raises:
        ValueError: Values are missing or NaN, a group has no calibration item, or all scores are equal.

    Warns:
        UserWarning: The largest calibration score is shared by many items, or scores repeat calibration scores exactly.

    Example:
        >>> p_values([0.1, 0.2, 0.3, 0.4], [0.25, 9.0])
        array([0.6, 0.2])
    """
    require_choice("ties", ties, ("conservative", "random"))
    s = as_values("scores", scores)
    s_cal = as_values("calibration", calibration).to(s.device)
    _check(s_cal, s, ties)
    u = uniforms(len(s), random_state, s) if ties == "random" else None
    if groups is None:
        return like(scores, _p_values(s_cal, s, u))
    p = torch.empty_like(s)
    for mine, own in _by_group(groups, len(s_cal), len(s)):
        mine, own = (torch.from_numpy(index).to(s.device) for index in (mine, own))
        p[own] = _p_values(s_cal[mine], s[own], None if u is None else u[own])
    return like(scores, p)


def _p_values(calibration: Tensor, s: Tensor, u: Tensor | None) -> Tensor:
    above, equal = _counts(calibration, s)
    n = len(calibration)
    return (1 + above + equal) / (n + 1) if u is None else (above + (1 - u) * (1 + equal)) / (n + 1)


def _counts(calibration: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how many calibration scores are above each score, and how many are equal to it."""
    ordered = calibration.sort().values
    below, up_to = (torch.searchsorted(ordered, s.contiguous(), right=right) for right in (False, True))
    return (len(ordered) - up_to).double(), (up_to - below).double()


def _by_group(groups: tuple[Any, Any], n: int, m: int) -> list[tuple[Any, Any]]:
    """Returns the indices of the calibration items and of the items of each group."""
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise ValueError("expected groups to be two: the labels of the calibration items and those of the scored ones")
    labels, own = labels_of("groups", groups[0], "calibration", n), labels_of("groups", groups[1], "scored", m)
    found = [(np.flatnonzero(labels == g), np.flatnonzero(own == g)) for g in np.unique(own)]
    empty = [str(own[mine[0]]) for index, mine in found if not len(index)]
    if empty:
        raise ValueError(f"expected calibration items in every group, found none in {', '.join(empty)}: add some or join groups")
    return found


def _check(calibration: Tensor, s: Tensor, ties: str) -> None:
    """Raises or warns about calibrations that cannot be meant."""
    n, m = len(calibration), len(s)
    top = calibration.max()
    if n > 1 and bool((calibration == top).all()) and bool((s == top).all()):
        raise ValueError(f"expected scores that differ, found {float(top):g} in all {n + m} items: the score tells nothing apart")
    shared = int((calibration == top).sum())
    if ties == "conservative" and shared > max(2, n / 100):
        warnings.warn(
            f"{shared} of {n} calibration scores share the largest value, so an item that has it too gets no p-value below "
            f"{(shared + 1) / (n + 1):.2g}: ties='random' makes the p-values exact",
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


def cross_p_values(
    calibration: Values,
    folds: Any,
    scores: Values | None = None,
    *,
    ties: Literal["conservative", "random"] = "conservative",
    random_state: Seed = None,
) -> Any:
    r"""Returns conformal p-values from cross-fitted scores, which use every item for fitting and for calibration.

        p = (1 + \sum_k #{i in fold k : s_i >= s^{(k)}}) / (n + 1),

    where s_i is the score of calibration item i by the fit without its fold k, and s^(k) the score of the new item by that fit.
    In the worst case P(p <= a) <= 2 a, for stable fits about a (Vovk, Cross-conformal predictors, 2015; Barber, Candes, Ramdas,
    Tibshirani, Predictive inference with the jackknife+, 2021).

    Without ``scores``, the calibration items themselves are judged (a folder judged by itself): each is compared with the
    items of the other folds. Items compared with each other this way take all ranks, so that `select` reports nothing, or
    next to nothing, among them however odd they are: remove confirmed oddities from the calibration first
    (`vergence.detection.label_trim`), or use `vergence.detection.tail_p_values`.

    Args:
        calibration: Out-of-fold scores (n,): item i by the fit without its fold.
        folds: Labels (n,) of the folds.
        scores: Scores (K, m) of new items by each fit, in the sorted order of the fold labels.
        ties: As in `p_values`.
        random_state: Seed of ``ties="random"``.

    Returns:
        (m,) or, without ``scores``, (n,), of float64.

    Raises:
        ValueError: Shapes do not fit, or there is only one fold.

    Example:
        >>> cross_p_values([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], [[0.15], [0.5]])
        array([0.4])
        >>> cross_p_values([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
        array([1.        , 1.        , 0.33333333, 0.33333333])
    """
    require_choice("ties", ties, ("conservative", "random"))
    s_cal = as_values("calibration", calibration)
    names, fold = np.unique(labels_of("folds", folds, "calibration", len(s_cal)), return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"expected at least 2 folds, found {len(names)}: pass the fold of each item")
    index = torch.from_numpy(fold).to(s_cal.device)
    if scores is None:
        u = uniforms(len(s_cal), random_state, s_cal) if ties == "random" else None
        p = torch.empty_like(s_cal)
        for k in range(len(names)):
            own = index == k
            p[own] = _p_values(s_cal[~own], s_cal[own], None if u is None else u[own])
        return like(calibration, p)
    return like(scores, _new_items(s_cal, index, _by_fold(scores, len(names)), ties, random_state))


def _by_fold(scores: Values, k: int) -> list[Tensor]:
    if hasattr(scores, "shape"):  # a sparse matrix has no length
        rows = scores.shape[0] if scores.shape else 0
    else:
        rows = len(scores) if hasattr(scores, "__len__") else 0
    if rows != k:
        raise ValueError(f"expected scores (K, m) with one row for each of the {k} folds, found {rows} rows")
    return [as_values("scores", row) for row in scores]


def _new_items(calibration: Tensor, fold: Tensor, scores: list[Tensor], ties: str, random_state: Seed) -> Tensor:
    counts = [_counts(calibration[fold == k], s.to(calibration.device)) for k, s in enumerate(scores)]
    above, equal = (torch.stack(part).sum(0) for part in zip(*counts, strict=True))
    n = len(calibration)
    if ties == "conservative":
        return (1 + above + equal) / (n + 1)
    return (above + (1 - uniforms(len(above), random_state, calibration)) * (1 + equal)) / (n + 1)


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


def select(p_values: Values, fdr: float = 0.1, method: Literal["bh", "storey"] = "bh") -> Any:
    r"""Returns which items to report, so that on average at most a share ``fdr`` of the reported ones is typical.

    Benjamini-Hochberg (Controlling the false discovery rate, 1995) reports the k items of least p for the largest k with
    p_(k) <= a k / m. With split-conformal p-values the rate is at most a times the share of typical items (Bates et al. 2023).
    Storey's correction divides the p-values' bound by an estimate of that share, (1 + #{p > 1/2}) / (m / 2), and reports no p
    above 1/2; it reports more where many items are odd (Storey, Taylor, Siegmund, 2004; for conformal p-values Bates et al.).

    The rate holds for one call on all items that were judged, not for a second call on the items that a first one reported,
    nor for a cut that was chosen after looking at the list: for that, see `vergence.detection.simultaneous_bounds`. It holds
    for p-values of one score: combine several levels first and calibrate the combination.

    Args:
        p_values: (m,) in [0, 1], of all items that were judged.
        fdr: False-discovery rate a, in (0, 1).
        method: ``bh`` or ``storey``.

    Returns:
        (m,) of bool, of the kind given.

    Raises:
        ValueError: A value is outside [0, 1], there are p-values of several levels, or a setting is wrong.

    Warns:
        UserWarning: The p-values look like the selected part of a longer list.

    Example:
        >>> select([0.001, 0.01, 0.3, 0.8], fdr=0.1)
        array([ True,  True, False, False])
    """
    require_choice("method", method, ("bh", "storey"))
    require_within("(0, 1)", fdr=fdr)
    p = require_p_values(p_values)
    if len(p) >= 10 and bool((p <= SURVIVORS).all()):
        warnings.warn(
            f"all {len(p)} p-values are at most {float(p.max()):.2g}: if these items were selected from a longer list, pass the "
            "whole list, since the rate does not hold for a selection; if not, nearly all are unlike the calibration items",
            stacklevel=2,
        )
    if method == "storey":
        share = min(1.0, 2 * (1 + float((p > 0.5).sum())) / len(p))
        return like(p_values, _benjamini_hochberg(p, fdr / share) & (p <= 0.5))
    return like(p_values, _benjamini_hochberg(p, fdr))


def at_most(q: Any, level: float) -> Any:
    """Returns which q-values are at most a level, up to rounding."""
    return q <= level * (1 + ROUNDING)


def _benjamini_hochberg(p: Tensor, level: float) -> Tensor:
    m = len(p)
    ordered = p.sort().values
    allowed = level * (1 + ROUNDING) / m * torch.arange(1, m + 1, dtype=p.dtype, device=p.device)
    passed = (ordered <= allowed).nonzero()
    return p <= ordered[passed[-1, 0]] if len(passed) else torch.zeros_like(p, dtype=torch.bool)


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
