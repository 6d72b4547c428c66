"""Gaussians that have not seen an item's fold, and do not follow anomalies among the items that they are fitted to.

Shapes: N items, D features, K folds.
"""

import numpy as np

from vergence.decide.density import GaussianDetector, RidgeGaussian
from vergence.decide.moments import robust_scale
from vergence.utils.dtypes import Floats, Ints

TRIM = 0.25  # share of the items that no fit sees
FLOOR = 0.05  # of a feature's deviation, relative to the median one
WIDE = 1.0  # features for each item, from which on a Gaussian has a ridge
JITTER = 1e-6  # of the median deviation, so that features may be constant


class CrossFitted:
    """One Gaussian for each fold, fitted without it.

    Args:
        x: Features (N, D) of the items that are fitted to.
        fold: Fold of each, (N,), 0..K-1. With one fold alone the Gaussian sees all items: for a reference that is apart.
        clean: Whether all items are taken to be normal, so that none is left out of a fit.
    """

    def __init__(self, x: Floats, fold: Ints, *, clean: bool = False) -> None:
        self.location = np.median(x, 0)
        unit = robust_scale(x - self.location)
        self.unit = np.maximum(unit, FLOOR * np.median(unit))
        y, folds = self.in_units(x), np.unique(fold)
        parts = [fold != k if len(folds) > 1 else fold == k for k in folds]
        self.detectors = {int(k): _gaussian(y[part], clean) for k, part in zip(folds, parts, strict=True)}

    def in_units(self, x: Floats) -> Floats:
        """Returns features (M, D) less the medians, in units of the robust deviations."""
        return np.asarray((x - self.location) / self.unit, dtype=np.float64)

    def white(self, x: Floats) -> Floats:
        """Returns features (M, D) as the first fold's Gaussian sees them: it has mean zero and unit covariance."""
        first = next(iter(self.detectors.values()))
        assert isinstance(first, GaussianDetector), "of few features"
        return np.asarray((self.in_units(x) - first.location_) @ first.root_)

    def log_distance(self, x: Floats, fold: Ints) -> Floats:
        """Returns log d^2 of items (M, D) under the Gaussian of their fold, (M,)."""
        y, t = self.in_units(x), np.zeros(len(x))
        for k, detector in self.detectors.items():
            rows = fold == k
            t[rows] = detector.log_distance(y[rows]) if rows.any() else 0.0
        return t


def _gaussian(x: Floats, clean: bool) -> GaussianDetector | RidgeGaussian:
    """Returns the Gaussian of the likeliest three quarters of items, of all where they are clean or half of them are equal.

    Of many features, for which there are too few items, it is one with a ridge.
    """
    if x.shape[1] > WIDE * len(x):
        return RidgeGaussian(x, trim=0.0 if clean else TRIM)
    equal = np.unique(x, axis=0, return_counts=True)[1].max() > len(x) / 2
    if equal or clean:  # constant features get a deviation that is small next to the others'
        return GaussianDetector(standardize=False).fit(x + JITTER * np.random.default_rng(0).standard_normal(x.shape))
    return GaussianDetector(trim=TRIM, standardize=False).fit(x)
