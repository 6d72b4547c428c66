"""Moments of items without the least likely ones, and random numbers of items."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from vergence.densities.moments import StandardizedMoments, principal, standardized_moments
from vergence.detection.core import blocks
from vergence.detection.parts.kinds import generator
from vergence.detection.parts.robust import NULL, deviation
from vergence.utils.checks import require_within

__all__ = [
    "consistency",
    "nearest_share",
    "residuals",
    "trimmed",
    "uniform",
]

START = 10_000  # items that the robust initialization reads
STEPS = 50  # concentration steps at most


def consistency(D: int, trim: float) -> float:
    """Returns the factor that corrects the covariance of the most likely share 1 - trim of a Gaussian's items.

    (1 - h) / P(chi2_{D+2} <= q), q the (1 - h)-quantile of chi2_D (Croux, Haesbroeck, Influence function and efficiency of the
    minimum covariance determinant scatter matrix estimator, 1999).

    Example:
        >>> consistency(3, 0.0), round(consistency(1, 0.5), 2)
        (1.0, 7.01)
    """
    return 1.0 if trim == 0 else float((1 - trim) / chi2.cdf(chi2.ppf(1 - trim, D), D + 2))


def trimmed(
    X: np.ndarray, w: np.ndarray | None, trim: float, shrinkage: str | float, *, standardize: bool = True
) -> StandardizedMoments:
    """Returns the moments of the most likely share 1 - trim of the items, corrected for consistency with a Gaussian.

    From a robust initialization (spatial signs, rescaled along their principal directions as in Hubert, Rousseeuw, Verdonck, A
    deterministic algorithm for robust location and scatter, 2012), the share is chosen by the Mahalanobis distance under the
    moments of the last share until it does not change. One cluster of oddities does not attract the initialization.

    Args:
        X: Items (N, D).
        w: Weights (N,), or None.
        trim: Share h of the weight that is left out, in [0, 0.5).
        shrinkage: As for `StandardizedMoments.shrunk`.
        standardize: Whether features are standardized.
    """
    require_within("[0, 0.5)", trim=trim)
    if trim == 0:
        return standardized_moments(X, w, standardize=standardize)
    kept = nearest_share(_distances(X, *_signs(X)), w, trim)
    if (X[kept] == X[kept][:1]).all() and not (X == X[:1]).all():
        raise ValueError(f"expected less than {1 - trim:.0%} equal items, found {kept.mean():.0%}: leave copies out")
    for _ in range(STEPS):
        m = standardized_moments(X[kept], None if w is None else w[kept], standardize=standardize)
        values, vectors = principal(m.shrunk(shrinkage))
        root = (vectors / values.sqrt() / m.scale[:, None]).numpy()
        again = nearest_share(_distances(X, m.location.numpy(), root), w, trim)
        if (again == kept).all():
            break
        kept = again
    factor = consistency(len(m.covariance), trim)
    return StandardizedMoments(m.n, m.location, m.scale, factor * m.covariance, factor**2 * m.fourth)


def _signs(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a robust location (D,) and a robust whitening matrix (D, D) of at most 10,000 items."""
    x = np.asarray(X[np.argsort(uniform(X, 0), kind="stable")[:START]] if len(X) > START else X, dtype=np.float64)
    location = np.median(x, axis=0)
    x = x - location
    scale = deviation(x)
    x /= scale
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    sign = x / np.where(norm > 0, norm, 1.0)
    vectors = principal(torch.from_numpy(sign.T @ sign))[1].numpy()
    spread = deviation(x @ vectors)
    return location, vectors / np.maximum(spread, NULL * spread.max()) / scale[:, None]


def _distances(X: np.ndarray, location: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Returns |root^T (x - location)|^2 of each item, (N,)."""
    return np.concatenate([np.square((X[rows] - location) @ root).sum(1) for rows in blocks(X)])


def nearest_share(distance: np.ndarray, w: np.ndarray | None, trim: float) -> np.ndarray:
    """Returns which items belong to the nearest share 1 - trim of the weight, (N,) of bool; at least two do."""
    order = np.argsort(distance, kind="stable")
    below = np.cumsum(np.ones(len(distance)) if w is None else w[order])
    last = max(2, int(np.searchsorted(below, (1 - trim) * below[-1] * (1 - 1e-12))) + 1)
    return np.asarray(distance <= distance[order[min(last, len(order)) - 1]])


def uniform(X: np.ndarray | Mapping[str, np.ndarray], random_state: Any) -> np.ndarray:
    """Returns a random number in [0, 1) for each item (N, D) that depends on its values and not on its place.

    Items that are equal have the same number, so that a threshold splits items and keeps equal ones together. Of levels of
    features, a dictionary of matrices, the first one decides if it tells as many items apart as all of them do; else all do.

    Example:
        >>> X = np.array([[1.0, 2.0], [3.0, 5.0], [9.0, 1.0], [1.0, 2.0]])
        >>> u = uniform(X, 0)
        >>> bool(u[0] == u[3]), bool((u[::-1] == uniform(X[::-1], 0)).all())
        (True, True)
    """
    levels = list(X.values()) if isinstance(X, Mapping) else [X]
    distinct = _numbered(_key(levels[0]))
    if distinct.max() + 1 < len(distinct):
        of_all = _numbered(_key(np.stack([_key(x, robust=True) for x in levels], 1), robust=True))
        distinct = of_all if of_all.max() > distinct.max() else distinct
    n = int(distinct.max()) + 1
    return np.asarray(generator(random_state).permutation(n)[distinct] / n)


def _numbered(key: np.ndarray) -> np.ndarray:
    """Returns the number of each item among the different keys (N,), from 0 in ascending order."""
    return np.unique(np.round(key, 9), return_inverse=True)[1]


def _key(X: np.ndarray, robust: bool = False) -> np.ndarray:
    """Returns a number for each item (N, D), which units of the features do not change: a coordinate in a fixed direction.

    Features are divided by their range, or with ``robust`` by that of their quartiles, where one extreme item does not make the
    numbers of all others equal.
    """
    direction = np.random.default_rng(0).normal(size=(X.shape[1],))
    low, high = (np.asarray(end, dtype=np.float64) for end in (X.min(0), X.max(0)))
    width = high - low
    if robust:
        first, last = np.quantile(X, (0.25, 0.75), axis=0)
        width = np.where(last > first, last - first, width)
    direction = direction / np.where(width > 0, width, 1.0)
    return np.concatenate([(X[rows] - low) @ direction for rows in blocks(X)])


def residuals(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the squared length of items x (n, D) outside of their coordinates y (n, k), (n,); infinity where it overflows."""
    whole = np.square(x).sum(1)
    return np.asarray(np.maximum(whole - np.where(np.isinf(whole), 0.0, np.square(y).sum(1)), 0.0))
