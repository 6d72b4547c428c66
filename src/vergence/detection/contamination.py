"""Calibration items with oddities among them: take out what a person has confirmed, and nothing else.

Oddities among the calibration items make p-values too large: errors stay bounded, and power is lost. Leaving out the
strangest calibration items without looking at them makes p-values too small.

Shapes: n calibration items.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.detection.parts.kinds import Values, as_values, like
from vergence.utils.checks import require_count

__all__ = ["label_trim", "to_label"]


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
