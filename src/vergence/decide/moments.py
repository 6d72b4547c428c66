"""Robust statistics: deviations, moments without the least likely items, random numbers of items (N, D)."""

from typing import Any

import numpy as np
import torch
from scipy.special import chdtr, gammaincinv

from vergence.decide.inputs import generator
from vergence.densities.moments import StandardizedMoments, blocks, principal, standardized_moments
from vergence.mixtures.core import numbered
from vergence.utils.checks import expect, in_percent, require_within

__all__ = ["robust_scale"]

START = 10_000  # items that the robust initialization reads
STEPS = 50  # concentration steps at most
NULL = 1e-10  # deviation relative to a larger one, below which it is rounding


def robust_scale(x: np.ndarray) -> np.ndarray:
    """Returns the median absolute value of each centered column, as a Gaussian's deviation; else its deviation, else 1."""
    mad = np.median(np.abs(x), axis=0) / 0.6744897501960817
    std = np.sqrt(np.mean(x * x, axis=0))
    return np.where(mad > NULL * std, mad, np.where(std > 0, std, 1.0))


def consistency(D: int, trim: float) -> float:
    """Returns the factor that corrects the covariance of the most likely share 1 - trim of a Gaussian's items.

    (1 - h) / P(chi2_{D+2} <= q), q the (1 - h)-quantile of chi2_D (Croux, Haesbroeck, Influence function and efficiency of the
    minimum covariance determinant scatter matrix estimator, 1999).
    """
    return 1.0 if trim == 0 else float((1 - trim) / chdtr(D + 2, 2 * gammaincinv(D / 2, 1 - trim)))


def trimmed(
    X: np.ndarray, w: np.ndarray | None, trim: float, shrinkage: str | float, *, standardize: bool = True
) -> StandardizedMoments:
    """Returns the moments of the most likely share 1 - trim of the items, corrected for consistency with a Gaussian.

    From a robust initialization (spatial signs, rescaled along their principal directions as in Hubert, Rousseeuw, Verdonck, A
    deterministic algorithm for robust location and scatter, 2012), the share is chosen by the Mahalanobis distance under the
    moments of the last share until it does not change. One cluster of anomalies does not attract the initialization. The share
    ``trim`` in [0, 0.5) is one of the weight w (N,); the shrinkage is as for `StandardizedMoments.shrunk`.
    """
    require_within("[0, 0.5)", trim=trim)
    if trim == 0:
        return standardized_moments(X, w, standardize=standardize)
    likely = nearest_share(_distances(X, *_signs(X)), w, trim)
    differ = (X[likely] != X[likely][:1]).any() or (X == X[:1]).all()
    expect(differ, f"less than {in_percent(1 - trim)} equal items", in_percent(likely.mean()), "leave duplicates out")
    for _ in range(STEPS):
        m = standardized_moments(X[likely], None if w is None else w[likely], standardize=standardize)
        values, vectors = principal(m.shrunk(shrinkage))
        root = (vectors / values.sqrt() / m.scale[:, None]).numpy()
        again = nearest_share(_distances(X, m.location.numpy(), root), w, trim)
        if (again == likely).all():
            break
        likely = again
    factor = consistency(len(m.covariance), trim)
    return StandardizedMoments(m.n, m.location, m.scale, factor * m.covariance, factor**2 * m.fourth)


def _signs(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a robust location (D,) and a robust whitening matrix (D, D) of at most 10,000 items."""
    x = np.asarray(X[np.argsort(uniform(X, 0), kind="stable")[:START]] if len(X) > START else X, dtype=np.float64)
    location = np.median(x, axis=0)
    x = x - location
    scale = robust_scale(x)
    x /= scale
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    sign = x / np.where(norm > 0, norm, 1.0)
    vectors = principal(torch.from_numpy(sign.T @ sign))[1].numpy()
    spread = robust_scale(x @ vectors)
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


def uniform(X: np.ndarray, random_state: Any) -> np.ndarray:
    """Returns a random number in [0, 1) for each item (N, D), the same for equal ones: it depends on values and not on places."""
    distinct = numbered(_key(X).round(9))
    if distinct.max() + 1 < len(distinct):
        robust = numbered(_key(X, robust=True).round(9))
        distinct = robust if robust.max() > distinct.max() else distinct
    n = int(distinct.max()) + 1
    return np.asarray(generator(random_state).permutation(n)[distinct] / n)


def _key(X: np.ndarray, robust: bool = False) -> np.ndarray:
    """Returns a number for each item (N, D): a coordinate in a fixed direction, of features in units of their range.

    With ``robust`` the range is that of their quartiles, where one extreme item does not make the numbers of all others equal.
    """
    direction = np.random.default_rng(0).normal(size=(X.shape[1],))
    low, high = (np.asarray(end, dtype=np.float64) for end in (X.min(0), X.max(0)))
    width = high - low
    if robust:
        first, last = np.quantile(X, (0.25, 0.75), axis=0)
        width = np.where(last > first, last - first, width)
    direction = direction / np.where(width > 0, width, 1.0)
    return np.concatenate([(X[rows] - low) @ direction for rows in blocks(X)])
