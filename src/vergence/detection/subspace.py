"""Probabilistic principal components: a Gaussian in the leading directions, an isotropic one outside of them."""

import math

import numpy as np

from vergence.detection.core import Detector
from vergence.detection.parts.moments import Moments, nearest_share, principal, residuals, trimmed, uniform
from vergence.utils.checks import require_count

__all__ = ["SubspaceDetector"]

MOST_HELD_OUT = 2000  # of these, at most
HELD_OUT = 5  # one item in five chooses the number of directions
FLOOR = 1e-9  # of the noise variance, in units of the mean variance


class SubspaceDetector(Detector):
    r"""The log-density of probabilistic principal components (Tipping, Bishop, Probabilistic principal component analysis, 1999).

        log N(x; m, U diag(l_1..l_k) U^T + s^2 (I - U U^T)),   s^2 = mean of l_{k+1}..l_D

    The residual is kept: what leaves the subspace of the typical items is anomalous in proportion to its squared length / s^2.

    Args:
        n_components: Directions k, 0 to D - 1; None chooses k by the likelihood of a fifth of the items that is held out, and
            then fits to all.
        trim: Share h in [0, 0.5) of the items, the least likely ones, that is left out of the fit (trimmed likelihood).
        standardize: Whether features are divided by their deviation first, which makes scores independent of their units.
        random_state: Seed of the held-out part; the order of the items does not matter.
        contamination: Share of the items of `fit` that `predict` calls outliers, in (0, 0.5].

    Attributes:
        n_components_: k.
        location_: Mean m (D,).
        scale_: Unit of each feature (D,).
        components_: U^T, (k, D), of the features in these units.
        variances_: l_1..l_k.
        noise_variance_: s^2.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(1000, 2)) @ rng.normal(size=(2, 20)) + 0.1 * rng.normal(size=(1000, 20))
        >>> detector = SubspaceDetector(standardize=False).fit(X)
        >>> detector.n_components_
        2
        >>> typical, off = X[:1], X[:1] + rng.normal(size=(1, 20))
        >>> bool(detector.anomaly_score(off) > detector.anomaly_score(typical) + 100)
        True
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        trim: float = 0.0,
        standardize: bool = True,
        random_state: int | None = 0,
        contamination: float = 0.05,
    ) -> None:
        self.n_components = n_components
        self.trim = trim
        self.standardize = standardize
        self.random_state = random_state
        self.contamination = contamination

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        D = X.shape[1]
        k = self.n_components
        if k is None:
            k = self._chosen(X, w)
        require_count(0, n_components=k)
        if k >= D:
            raise ValueError(f"expected n_components < n_features = {D}, found {k}: lower it, or take GaussianDetector")
        m = self._moments(X, w)
        values, vectors = principal(m.covariance)
        floor = FLOOR * values.mean()
        self.n_components_, self.location_, self.scale_ = int(k), m.location, m.scale
        self.components_ = np.ascontiguousarray(vectors[:, :k].T)
        self.noise_variance_ = float(max(values[k:].mean(), floor))
        self.variances_ = np.maximum(values[:k], self.noise_variance_)

    def _moments(self, X: np.ndarray, w: np.ndarray | None) -> Moments:
        return trimmed(X, w, self.trim, "ledoit_wolf", standardize=self.standardize)

    def _chosen(self, X: np.ndarray, w: np.ndarray | None) -> int:
        """Returns the number of directions of the largest held-out likelihood; a trimmed mean where the fit is trimmed."""
        chance = uniform(X, self.random_state)
        held = chance < 1 / HELD_OUT
        if not held.any() or (X[~held] == X[~held][:1]).all():
            return 0
        m = self._moments(X[~held], None if w is None else w[~held])
        values, vectors = principal(m.covariance)
        scored = np.flatnonzero(held)[np.argsort(chance[held], kind="stable")[:MOST_HELD_OUT]]
        likelihood = log_likelihoods((X[scored] - m.location) / m.scale, values, vectors)
        weight = np.ones(len(likelihood)) if w is None else w[scored]
        first = likelihood[:, (weight @ likelihood).argmax()]
        kept = nearest_share(-first, weight, self.trim)
        return int((weight[kept] @ likelihood[kept]).argmax())

    def _score(self, block: np.ndarray) -> np.ndarray:
        x = (block - self.location_) / self.scale_
        y = x @ self.components_.T
        residual = residuals(x, y) / self.noise_variance_
        D, k = len(self.location_), len(self.variances_)
        log_volume = np.log(self.variances_).sum() + (D - k) * math.log(self.noise_variance_) + 2 * np.log(self.scale_).sum()
        distance = np.square(y / np.sqrt(self.variances_)).sum(1) + residual
        return np.asarray(-0.5 * (D * math.log(2 * math.pi) + log_volume + distance))


def log_likelihoods(x: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns the log-density of items under the model of each number of directions 0..D - 1, up to a constant.

    Args:
        x: Centered items (n, D).
        values: Eigenvalues l_1 >= ... >= l_D.
        vectors: Eigenvectors as columns, (D, D).

    Returns:
        (n, D): column k is for k directions, with the residual's variance s^2 = mean of l_{k+1}..l_D.
    """
    D = len(values)
    noise = np.maximum(np.cumsum(values[::-1])[::-1] / np.arange(D, 0, -1), FLOOR * values.mean())
    variance = np.maximum(values, noise)
    square = np.square(x @ vectors)
    inside = np.cumsum(square / variance, axis=1) - square / variance
    outside = np.cumsum(square[:, ::-1], axis=1)[:, ::-1] / noise
    log_volume = np.cumsum(np.log(variance)) - np.log(variance) + np.arange(D, 0, -1) * np.log(noise)
    return np.asarray(-0.5 * (inside + outside + log_volume))
