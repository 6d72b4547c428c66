"""What numbers allow to say: standard errors from the number of items, and a collapse by its statistics.

Imports no torch, which a report does not need.
"""

import math
from collections.abc import Mapping

from vergence.utils.checks import require_count, require_within

__all__ = ["accuracy_error", "auroc_error", "collapse_warning"]

ADVICE = (
    "Try AdamW, a smaller learning rate, warm-up, a larger batch, or a narrow `projector=(256,32)`. "
    "For images, `recipe='patches'` starts from a closed form. Check the views, too"
)


def accuracy_error(accuracy: float, n: int) -> float:
    """Returns the standard error of an accuracy p in [0, 1] on n >= 1 items, sqrt(p (1 - p) / n).

    Example:
        >>> round(accuracy_error(0.875, 359), 4)
        0.0175
    """
    require_within("[0, 1]", accuracy=accuracy)
    require_count(n=n)
    return math.sqrt(accuracy * (1 - accuracy) / n)


def auroc_error(auroc: float, n_anomalies: int, n_others: int) -> float:
    r"""Returns the standard error of an AUROC A in [0, 1] of n anomalies and m others, at least one each.

        sqrt((A (1 - A) + (n - 1) (A / (2 - A) - A^2) + (m - 1) (2 A^2 / (1 + A) - A^2)) / (n m))

    That is the formula of Hanley and McNeil (The Meaning and Use of the Area under a ROC Curve, Radiology 1982), which is exact
    for exponential scores. The difference of two scores of the same items has a smaller error where they are correlated.

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


def collapse_warning(stats: Mapping[str, float], dim: int | None = None, advice: str = "") -> str | None:
    """Returns one line that names the collapse and what to try, without its last period; None where there is none.

    Args:
        stats: Statistics with ``std`` and ``effective_rank``, as from `collapse`.
        dim: Number of features D. A small rank is ignored for D below 8, a small spread for D = 1; None assumes a wide embedding.
        advice: What else to try with the objective at hand; an imperative clause, or empty.

    Example:
        >>> collapse_warning({"std": 0.02, "effective_rank": 5.0}, dim=256).split(". ")[0]
        'the embedding collapses to one direction (spread 0.02, below 0.1)'
        >>> collapse_warning({"std": 0.9, "effective_rank": 40.0}, dim=256) is None
        True
    """
    std, rank = stats["std"], stats["effective_rank"]
    remedy = ADVICE + (f". {advice[0].upper()}{advice[1:]}" if advice else "")
    if std < 0.1 and dim != 1:  # the direction of one feature is its sign
        return f"the embedding collapses to one direction (spread {std:.2g}, below 0.1). {remedy}"
    if rank < 2 and (dim is None or dim >= 8):
        return f"the embedding collapses to a line (effective rank {rank:.2g}, below 2). {remedy}"
    return None
