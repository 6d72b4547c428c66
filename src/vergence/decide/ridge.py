r"""Squared distances under one Gaussian with a ridge, for features that may be wider than there are rows, and out of fold.

Of standardized features z, with covariance S of the rows that are fitted to and its mean eigenvalue c,

    d^2(z) = (z - m)^T (S + a c I)^{-1} (z - m).

The eigenvectors of S come from the smaller of the two Gram matrices, (N, N) or (D, D); what lies outside of their span has the
variance a c. A fit takes O(N D min(N, D)) steps and O(N D) numbers. Shapes: N rows, D features, K folds.
"""

from collections.abc import Mapping

import numpy as np

from vergence.utils.dtypes import Floats, Ints

__all__ = ["RidgeGaussian"]


RIDGE = 0.03  # a
NEGLIGIBLE = 1e-10  # of the largest eigenvalue
FLOOR = 1e-6  # of the median deviation, that of constant features
TINY = 1e-300


class RidgeGaussian:
    """The Gaussian of rows (N, D), N >= 2, with a ridge; a second fit leaves out the share ``trim`` of them, the farthest."""

    def __init__(self, x: Floats, *, trim: float = 0.0) -> None:
        self._fit(np.asarray(x, dtype=np.float64))
        if trim:
            d = self.log_distance(x)
            self._fit(np.asarray(x[d <= np.quantile(d, 1 - trim)], dtype=np.float64))

    def _fit(self, x: Floats) -> None:
        self.location, deviation = x.mean(0), x.std(0)
        self.scale = np.maximum(deviation, FLOOR * (float(np.median(deviation)) or 1.0))
        z = (x - self.location) / self.scale
        n, width = z.shape
        values, vectors = np.linalg.eigh((z @ z.T if n < width else z.T @ z) / n)
        some = values > NEGLIGIBLE * max(values[-1], TINY)
        self.values, vectors = values[some], vectors[:, some]
        self.vectors = z.T @ vectors / np.sqrt(n * self.values) if n < width else vectors  # (D, r)
        self.ridge = RIDGE * max(float(self.values.sum()) / width, FLOOR)

    def components(self, x: Floats, k: int) -> Floats:
        """Returns the k leading principal components of rows (M, D), (M, k), in units of their deviations."""
        return np.asarray((x - self.location) / self.scale @ self.vectors[:, -k:] / np.sqrt(self.values[-k:]))

    def log_distance(self, x: Floats) -> Floats:
        """Returns log d^2 of rows (M, D), (M,)."""
        z = (x - self.location) / self.scale
        inside = z @ self.vectors
        outside = np.maximum(np.square(z).sum(1) - np.square(inside).sum(1), 0.0)
        d = (np.square(inside) / (self.values + self.ridge)).sum(1) + outside / self.ridge
        return np.asarray(np.log(np.maximum(d, TINY)))


def out_of_fold(x: Floats, fold: Ints) -> tuple[Floats, Mapping[int, RidgeGaussian]]:
    """Returns log d^2 of rows under the Gaussian of the other folds, and these Gaussians by fold.

    Rows (N, D) of a fold below 0 are fitted to alone: they calibrate nothing, and their log d^2 is NaN.
    """
    gaussians = {int(k): RidgeGaussian(x[fold != k]) for k in np.unique(fold[fold >= 0])}
    t = np.full(len(x), np.nan)
    for k, gaussian in gaussians.items():
        t[fold == k] = gaussian.log_distance(x[fold == k])
    return t, gaussians
