"""Calibration items with oddities among them: take out what a person has confirmed, and nothing else.

Oddities among the calibration items make p-values too large: errors stay bounded, and power is lost. Leaving out the
strangest calibration items without looking at them makes p-values too small.

Shapes: n calibration items.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Values, as_values, like
from vergence.utils.checks import require_count

__all__ = ["label_trim", "tail_p_values", "to_label"]

FEWEST = 200  # scores for quantiles that fix a tail
CAUTION = 0.5  # about half the sampling error of xi, in units of 1 / sqrt(0.1 N)


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
    out = np.unique(np.asarray(confirmed.cpu() if isinstance(confirmed, Tensor) else confirmed, dtype=np.int64))
    shown = set(np.asarray(to_label(s.cpu().numpy(), budget)).tolist())
    other = [int(i) for i in out if int(i) not in shown]
    if other:
        raise ValueError(
            f"expected confirmed oddities among the {budget} strangest calibration items, found {len(other)} elsewhere "
            f"(first: {other[0]}): an item is looked at because of its score alone, so raise the budget or leave it in"
        )
    if len(out) == len(s):
        raise ValueError(f"expected calibration items to remain, found all {len(s)} confirmed as odd: pass typical items")
    keep = torch.ones(len(s), dtype=torch.bool)
    keep[torch.from_numpy(out)] = False
    return like(calibration, s[keep.to(s.device)])


def tail_p_values(scores: Values) -> Any:
    r"""Returns p-values of a folder judged by itself, from a tail that continues as the middle of the scores suggests.

    Beyond the 0.8-quantile b of all scores, P(S > s) = 0.2 (1 + xi (s - b) / sigma)^(-1 / xi), a generalized Pareto law through
    the quantiles a = q(0.6), b and c = q(0.9): xi = log_2((c - b) / (b - a)), at least 0, plus half its sampling error,
    0.5 / sqrt(0.1 N) (Pickands, Statistical inference using extreme order statistics, 1975); sigma = xi (c - b) / (2^xi - 1).
    Up to b the p-value is the share of scores that are at least as large. Oddities in the largest tenth of the scores do not
    move the quantiles much, and what they do makes p larger.

    This is a model, not a guarantee: it is right or cautious where the tail gets no heavier beyond the 0.9-quantile, as that of
    any log-concave law. `select` at 0.1 reports something in 3 % of clean folders with an exponential tail, in none of 150 with
    squared distances of Gaussian features, and in most folders with squared distances of heavy-tailed features (Student's t
    with 5 degrees of freedom), but in 3 % with the logarithms of these distances: use scores with light tails.

    Args:
        scores: (N,), N >= 200, out-of-fold scores of all items of the folder, larger is stranger.

    Returns:
        (N,) of float64 in [0, 1], of the kind given.

    Raises:
        ValueError: There are too few scores, or their quantiles coincide.

    Example:
        >>> s = np.r_[-np.log(1 - (np.arange(990) + 0.5) / 990), np.full(10, 30.0)]  # exponential, and ten oddities
        >>> p = tail_p_values(s)
        >>> bool((p[:990] > 1e-4).all()), bool((p[990:] < 1e-6).all())
        (True, True)
    """
    s = as_values("scores", scores, least=FEWEST)
    n = len(s)
    a, b, c = torch.quantile(s, torch.tensor([0.6, 0.8, 0.9], dtype=s.dtype, device=s.device)).tolist()
    if not -math.inf < a < b < c < math.inf:
        raise ValueError(f"expected scores with different quantiles at 0.6, 0.8 and 0.9, found {a:g}, {b:g}, {c:g}")
    xi = max(0.0, math.log2((c - b) / (b - a))) + CAUTION / math.sqrt(0.1 * n)
    sigma = xi * (c - b) / (2**xi - 1)
    log_p = -torch.log1p(xi * (s - b).clamp(min=0) / sigma) / xi
    at_least = n - torch.searchsorted(s.sort().values, s.contiguous())
    return like(scores, torch.where(s > b, 0.2 * log_p.exp(), (at_least / n).to(s)))
