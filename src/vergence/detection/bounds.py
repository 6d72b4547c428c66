"""Bounds that hold with a stated confidence: false discoveries in any list, and the false-positive rate above a threshold.

Shapes: n calibration items, m items that are judged.
"""

import functools
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Seed, Values, as_values, generator, require_matching, require_p_values
from vergence.detection.parts.urn import null_counts, rank_grid, tail
from vergence.utils.checks import EXACT, LARGEST, require_count, require_within, shown

__all__ = ["Certificate", "SimultaneousBounds", "certify", "fpr_threshold", "needed_for_fpr", "simultaneous_bounds"]

SIMULATIONS = 4000


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
    thresholds: npt.NDArray[np.float64]
    most: npt.NDArray[np.int64]

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

    def by_length(self) -> npt.NDArray[np.float64]:
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

    def _bound(self, inside: npt.NDArray[Any], k: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns min_g most_g + (k - inside_g)^+, at most k: typical items up to a threshold, and all items beyond it."""
        best: npt.NDArray[Any] = k.copy()
        for v, c in zip(self.most, inside, strict=True):
            np.minimum(best, v + np.maximum(0, k - c), out=best)
        return best


def simultaneous_bounds(
    p_values: Values, n_calibration: int, confidence: float = 0.95, *, random_state: Seed = 0
) -> SimultaneousBounds:
    r"""Returns upper bounds on the false discoveries in every list of items, for people who look first and cut afterwards.

    For thresholds t_k = k / (n + 1) on a grid of ranks k, N_k typical items have p <= t_k. The joint law of (N_k) is known
    (`vergence.detection.parts.urn`), and with fewer typical items than m each N_k is smaller. The template V(k), the largest v
    with P(N_k >= v) >= c, is calibrated by sampling that law: c is the floor(delta (S + 1))-th least of min_k P(N_k >=
    N_k^(s)) over S samples, which gives P(N_k <= V(k) for all k) >= 1 - delta exactly, the sampling included. A list R then
    holds at most min_k V(k) + #{i in R : p_i > t_k} typical items (Goeman, Solari, Multiple testing for exploratory research,
    2011; Blanchard, Neuvial, Roquain, Post hoc confidence bounds on false positives using reference families, 2020; for conformal
    p-values Gazin, Blanchard, Roquain, 2023, and Song, Jin, Candes, arXiv:2605.20726).

    Args:
        p_values: (m,) of `vergence.detection.p_values` (not cross-fitted, grouped or weighted ones) of all judged items.
        n_calibration: Calibration items n that they were computed with.
        confidence: Probability 1 - delta, in (0, 0.9999].
        random_state: Seed of the sampling.

    Example:
        >>> p = np.r_[np.full(30, 0.001), np.linspace(0.01, 1, 170)]  # 30 oddities, 999 calibration items
        >>> bounds = simultaneous_bounds(p, 999)
        >>> bounds.false_discoveries(p < 0.005), int(bounds.longest(0.2).sum())
        (3, 33)
    """
    require_count(1, EXACT, n_calibration=n_calibration)
    require_within("(0, 0.9999]", confidence=confidence)
    p = require_p_values(p_values)
    template = _template if isinstance(random_state, int) else _template.__wrapped__  # only a seed gives the same again
    thresholds, most = template(n_calibration, len(p), confidence, random_state)
    return SimultaneousBounds(confidence, p, thresholds, most)


@functools.lru_cache(maxsize=32)
def _template(n: int, m: int, confidence: float, random_state: Seed) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Returns the thresholds t_k and V(k)."""
    delta = 1 - confidence
    ranks = rank_grid(n)
    size = max(SIMULATIONS, math.ceil(20 / delta))
    samples = null_counts(n, m, ranks, size, generator(random_state))
    least = np.ones(size)
    for k, sampled in zip(ranks, samples.T, strict=True):
        least = np.minimum(least, tail(n, m, int(k))[sampled])
    c = np.sort(least)[min(math.floor(delta * (size + 1) + 1e-9), size) - 1]
    most = np.array([np.searchsorted(-tail(n, m, int(k)), -c, side="right") - 1 for k in ranks])
    thresholds = ranks / (n + 1) * (1 + 1e-12)
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
    return math.ceil(math.log1p(-confidence) / math.log1p(-fpr) * (1 - 1e-12))
