"""Robust statistics: deviations, moments without the least likely items, tails of scores, random numbers of items.

Shapes: N items, D features.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.special import chdtr, gammaincinv

from vergence.decide.inputs import generator
from vergence.densities.moments import StandardizedMoments, blocks, principal, standardized_moments
from vergence.utils.checks import expect, require_within

__all__ = ["robust_scale"]

START = 10_000  # items that the robust initialization reads
STEPS = 50  # concentration steps at most
NULL = 1e-10  # deviation relative to a larger one, below which it is rounding
SHARE = 0.1  # of the typical scores that a tail is fitted to
FEWEST = 10  # scores in a tail, below which it is exponential


def robust_scale(x: np.ndarray) -> np.ndarray:
    """Returns the median absolute value of each centered column, as a Gaussian's deviation; else its deviation, else 1."""
    mad = np.median(np.abs(x), axis=0) / 0.6744897501960817
    std = np.sqrt(np.mean(x * x, axis=0))
    return np.where(mad > NULL * std, mad, np.where(std > 0, std, 1.0))


def consistency(D: int, trim: float) -> float:
    """Returns the factor that corrects the covariance of the most likely share 1 - trim of a Gaussian's items.

    (1 - h) / P(chi2_{D+2} <= q), q the (1 - h)-quantile of chi2_D (Croux, Haesbroeck, Influence function and efficiency of the
    minimum covariance determinant scatter matrix estimator, 1999).

    Example:
        >>> consistency(3, 0.0), round(consistency(1, 0.5), 2)
        (1.0, 7.01)
    """
    return 1.0 if trim == 0 else float((1 - trim) / chdtr(D + 2, 2 * gammaincinv(D / 2, 1 - trim)))


def trimmed(
    X: np.ndarray, w: np.ndarray | None, trim: float, shrinkage: str | float, *, standardize: bool = True
) -> StandardizedMoments:
    """Returns the moments of the most likely share 1 - trim of the items, corrected for consistency with a Gaussian.

    From a robust initialization (spatial signs, rescaled along their principal directions as in Hubert, Rousseeuw, Verdonck, A
    deterministic algorithm for robust location and scatter, 2012), the share is chosen by the Mahalanobis distance under the
    moments of the last share until it does not change. One cluster of outliers does not attract the initialization. The share
    ``trim`` in [0, 0.5) is one of the weight w (N,); the shrinkage is as for `StandardizedMoments.shrunk`.
    """
    require_within("[0, 0.5)", trim=trim)
    if trim == 0:
        return standardized_moments(X, w, standardize=standardize)
    likely = nearest_share(_distances(X, *_signs(X)), w, trim)
    differ = (X[likely] != X[likely][:1]).any() or (X == X[:1]).all()
    expect(differ, f"less than {1 - trim:.0%} equal items", f"{likely.mean():.0%}", "leave copies out")
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


def uniform(X: np.ndarray | Mapping[str, np.ndarray], random_state: Any) -> np.ndarray:
    """Returns a random number in [0, 1) for each item (N, D), the same for equal ones: it depends on values and not on places.

    Of levels of features, a dictionary of matrices, the first decides if it tells as many items apart as all do; else all do.

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
    """Returns the number of each item among the different keys (N,), in ascending order."""
    return np.unique(np.round(key, 9), return_inverse=True)[1]


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


class Tail:
    r"""Log-probabilities that a typical score is at least as large as a given one, from scores (n,) and their weights w.

    Up to the 0.9-quantile u of the scores the empirical share is interpolated; beyond it the excess follows a generalized
    Pareto distribution, P(s > u + y) = q (1 + xi y / sigma)^(-1/xi), fitted by probability-weighted moments (Hosking, Wallis,
    Parameter and quantile estimation for the generalized Pareto distribution, 1987) with xi from 1/m to 0.9. With xi = 1/m it is
    the predictive distribution of an exponential tail whose rate is known from m excesses, under the prior 1 / rate. It ranks
    items beyond the largest typical score and guarantees no rate: calibrate what is computed from it.

    Example:
        >>> tail = Tail(np.random.default_rng(0).exponential(size=20_000))
        >>> (-tail.log_probability(np.array([1.0, 5.0, 12.0]))).round(1).tolist()
        [1.0, 5.0, 12.0]
    """

    def __init__(self, scores: np.ndarray, w: np.ndarray | None = None) -> None:
        order = np.argsort(scores, kind="stable")
        s, weight = scores[order], (np.ones(len(scores)) if w is None else w[order])
        total = weight.sum()
        above = np.cumsum(weight[::-1])[::-1]  # weight at or above each score
        self.scores, first = np.unique(s, return_index=True)
        self.log_share = np.log(above[first] / (total + 1))
        tail = above <= max(SHARE * total, above[-1]) * (1 + 1e-12)
        start = int(np.flatnonzero(tail)[0])
        below = s[:start][s[:start] < s[start]]
        self.threshold = float(below[-1]) if len(below) else float(s[start])
        self.log_rate = float(np.interp(self.threshold, self.scores, self.log_share))
        self.sigma, self.xi = _pareto(s[tail] - self.threshold, weight[tail], float(np.ptp(s)))

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Tail":
        """Returns the tail whose attributes these are."""
        tail = cls.__new__(cls)
        vars(tail).update(state)
        return tail

    def log_probability(self, scores: np.ndarray) -> np.ndarray:
        """Returns log p of each score, (N,), at most 0; it decreases strictly beyond the threshold."""
        inside = np.interp(scores, self.scores, self.log_share, left=0.0)
        excess = np.maximum(scores - self.threshold, 0.0) / self.sigma
        beyond = self.log_rate - (np.log1p(self.xi * excess) / self.xi if self.xi > 0 else excess)
        return np.asarray(np.where(scores > self.threshold, beyond, inside))


def _pareto(excess: np.ndarray, w: np.ndarray, spread: float) -> tuple[float, float]:
    """Returns sigma and xi of excesses (m,) in ascending order."""
    total = w.sum()
    mean = float(w @ excess / total)
    if not mean > 0:
        return spread if spread > 0 else 1.0, 0.0
    least = min(float(np.sum(w**2)) / total**2, 0.9)  # 1 / m, where m counts equal weights
    survival = (np.cumsum(w[::-1])[::-1] - w / 2) / total
    first = float(w @ (survival * excess) / total)
    if total < FEWEST or not mean > 2 * first:
        return mean, least
    xi = min(max(2 - mean / (mean - 2 * first), least), 0.9)
    return mean * (1 - xi), xi
