"""Standard errors of measures, from the number of items alone."""

import math

from vergence.utils.checks import require_count, require_within

__all__ = ["accuracy_error", "auroc_error"]


def accuracy_error(accuracy: float, n: int) -> float:
    """Returns the standard error of an accuracy on n items, sqrt(p (1 - p) / n).

    Args:
        accuracy: p, in [0, 1].
        n: Number of items, >= 1.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> round(accuracy_error(0.875, 359), 4)
        0.0175
    """
    require_within("[0, 1]", accuracy=accuracy)
    require_count(n=n)
    return math.sqrt(accuracy * (1 - accuracy) / n)


def auroc_error(auroc: float, n_anomalies: int, n_others: int) -> float:
    r"""Returns the standard error of an AUROC, from the number of items alone.

        sqrt((A (1 - A) + (n - 1) (A / (2 - A) - A^2) + (m - 1) (2 A^2 / (1 + A) - A^2)) / (n m))

    That is the formula of Hanley and McNeil (The Meaning and Use of the Area under a ROC Curve, Radiology 1982), which is exact
    for exponential scores. The difference of two scores of the same items has a smaller error where they are correlated.

    Args:
        auroc: A, in [0, 1].
        n_anomalies: n, >= 1.
        n_others: m, >= 1.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> round(auroc_error(0.83, 30, 329), 3)
        0.047
    """
    require_within("[0, 1]", auroc=auroc)
    require_count(n_anomalies=n_anomalies, n_others=n_others)
    A, n, m = auroc, n_anomalies, n_others
    both_anomalies, both_others = A / (2 - A), 2 * A**2 / (1 + A)
    variance = A * (1 - A) + (n - 1) * (both_anomalies - A**2) + (m - 1) * (both_others - A**2)
    return math.sqrt(max(variance, 0.0) / (n * m))
