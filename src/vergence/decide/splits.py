"""Splits of items into those of a fit and those that calibrate, so that no item is judged by its own copy."""

import numpy as np

from vergence.mixtures.core import alike

__all__ = ["apart"]


def apart(x: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns which items calibrate (N,); nearly equal ones are on one side."""
    label = alike(x, x[:, :0])
    order = np.random.default_rng(seed).permutation(label.max() + 1)
    counts = np.bincount(label)[order].cumsum()
    chosen = order[: int(np.searchsorted(counts, share * len(x))) + 1]
    return np.isin(label, chosen)
