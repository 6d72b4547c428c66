"""Intervals of differences and overlaps.

Three errors can enter: which items the probes were tested on, which items the solutions saw, and which views were sampled.
Half-samples of the groups, and the jackknife over groups, cover the first two; the two halves of the draws cover the third.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats
from torch import Tensor

__all__ = ["Interval", "bootstrap", "half_sampled", "jackknife", "standard_error", "widened"]

Interval = tuple[float, float]


def standard_error(values: Tensor) -> float:
    """Returns the jackknife's standard error from (1 + G,) values: of all items, and without each of G groups in turn."""
    G = len(values) - 1
    return float(((G - 1) / G * (values[1:] - values[1:].mean()).square().sum()).sqrt())


def jackknife(values: Tensor, level: float = 0.05) -> Interval:
    """Returns Student's interval of the first of (1 + G,) values: of all items, and without each of G groups in turn.

    Everything is computed again without each group, so that the error of the solutions is included. A bootstrap would shift
    overlaps, as repeated items determine the solutions less well.

    Args:
        values: (1 + G,).
        level: Probability that an interval misses, in (0, 1).

    Example:
        >>> import torch
        >>> [round(bound, 2) for bound in jackknife(torch.tensor([2.0, 1.9, 2.0, 2.1]))]
        [1.5, 2.5]
    """
    return _student(float(values[0]), standard_error(values), len(values) - 2, level)


def half_sampled(values: Tensor, level: float = 0.05) -> Interval:
    """Returns Student's interval of the first of (1 + H,) values: of all items, and of H balanced half-samples of the groups.

    The standard error is the standard deviation over the half-samples. This is the jackknife that deletes half of the groups.
    For accuracies it is preferred to deleting one group: where spectra are nearly tied, solutions jump, and a jackknife is
    consistent only if it deletes many (Shao and Wu, 1989, A general theory for jackknife variance estimation).

    Args:
        values: (1 + H,).
        level: Probability that an interval misses, in (0, 1).

    Example:
        >>> import torch
        >>> [round(bound, 2) for bound in half_sampled(torch.tensor([2.0, 1.9, 2.0, 2.1]))]
        [1.57, 2.43]
    """
    return _student(float(values[0]), float(values[1:].std()), len(values) - 2, level)


def _student(value: float, error: float, df: int, level: float) -> Interval:
    reach = float(stats.t.ppf(1 - level / 2, df)) * error
    return value - reach, value + reach


def bootstrap(a: Tensor, b: Tensor, level: float = 0.05) -> Interval:
    """Returns the bootstrap interval of the difference of two accuracies on the same items; the solutions stay as they are.

    Each item's difference is -1, 0 or 1, so that resampling items is a multinomial draw of their numbers.

    Args:
        a: Whether the first is right, (M,) bool.
        b: Whether the second is right, (M,) bool.
        level: Probability that an interval misses, in (0, 1).
    """
    n = len(a)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    draws = np.random.default_rng(0).multinomial(n, [only_a / n, only_b / n, 1 - (only_a + only_b) / n], size=40_000)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, [level / 2, 1 - level / 2])
    return float(low), float(high)


def widened(interval: Interval, value: float, halves: Sequence[float]) -> Interval:
    """Returns the interval widened by the error that sampling the augmentation leaves.

    That error falls with the number of draws at least as 1 / m: the difference from the mean of the values with half as many
    draws is about the difference that infinitely many would make.

    Args:
        interval: Of the value.
        value: With all draws.
        halves: The value with either half of the draws; empty where nothing was sampled.
    """
    drift = value - sum(halves) / len(halves) if halves else 0.0
    return interval[0] + min(drift, 0.0), interval[1] + max(drift, 0.0)
