"""A deviation that a few extreme values do not change."""

import numpy as np

__all__ = ["NULL", "deviation"]

NULL = 1e-10  # deviation relative to a larger one, below which it is rounding


def deviation(x: np.ndarray) -> np.ndarray:
    """Returns the median absolute value of each centered column, as a Gaussian's deviation; else its deviation, else 1."""
    mad = np.median(np.abs(x), axis=0) / 0.6744897501960817
    std = np.sqrt(np.mean(x * x, axis=0))
    return np.where(mad > NULL * std, mad, np.where(std > 0, std, 1.0))
