"""Calibration items with oddities among them: take out what a person has confirmed, and nothing else.

Oddities among the calibration items make p-values too large: errors stay bounded, and power is lost. Leaving out the
strangest calibration items without looking at them makes p-values too small.

Shapes: n calibration items.
"""

from typing import Any

import numpy as np
import torch

from vergence.detection.parts.kinds import Values, as_values, like, numeric
from vergence.utils.checks import require_count

__all__ = ["label_trim", "tail_p_values", "to_label"]

FEWEST = 100  # scores, for a tail of about 15
TAIL, MOST = 0.15, 0.1  # share of the scores that a tail is fitted to; largest share that may be odd
CAUTION = 1.6449  # standard errors that are taken from the rate of a tail: its lower 95 % limit
LEAST = 10  # scores in a tail
LARGEST = 600.0  # exponent, short of an overflow


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
