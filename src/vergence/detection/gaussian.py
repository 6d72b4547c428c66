"""One Gaussian with a shrunk covariance, robust on request."""

import math

import numpy as np

from vergence.densities.moments import principal
from vergence.detection.core import Detector
from vergence.detection.parts.moments import trimmed
from vergence.utils.checks import require_count

__all__ = ["GaussianDetector"]


class GaussianDetector(Detector):
    """The log-density of one Gaussian, with shrinkage of its covariance towards a multiple of the identity.

    With ``n_components`` the density is that of the projection on the leading principal directions, and what lies outside of
    them is not seen.

    Args:
        n_components: Principal directions, 1 to D; None for all features.
        shrinkage: ``ledoit_wolf``, ``oas``, or the share a in [0, 1] of the identity.
        trim: Share h in [0, 0.5) of the items, the least likely ones, that is left out of the fit (trimmed likelihood); choose it
            above the share of oddities that is expected. The covariance is corrected as for a Gaussian.
        standardize: Whether features are divided by their deviation first, which makes scores independent of their units.
        contamination: Share of the items of `fit` that `predict` calls outliers, in (0, 0.5].

    Attributes:
        location_: Mean (D,).
        root_: Matrix (D, k) whose product with x - ``location_`` is white.
        log_norm_: Log-density at the mean, in nats.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 2)) @ np.array([[1.0, 0.9], [0.0, 0.4]])
        >>> detector = GaussianDetector().fit(X)
        >>> detector.anomaly_score([[2.0, 2.0], [2.0, -2.0]]).round(0).tolist()
        [3.0, 46.0]
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        shrinkage: str | float = "ledoit_wolf",
        trim: float = 0.0,
        standardize: bool = True,
        contamination: float = 0.05,
    ) -> None:
        self.n_components = n_components
        self.shrinkage = shrinkage
        self.trim = trim
        self.standardize = standardize
        self.contamination = contamination

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        k = X.shape[1] if self.n_components is None else self.n_components
        require_count(n_components=k)
        if k > X.shape[1]:
            raise ValueError(f"expected n_components of at most the {X.shape[1]} features, found {k}: lower it")
        m = trimmed(X, w, self.trim, self.shrinkage, standardize=self.standardize)
        values, vectors = principal(m.shrunk(self.shrinkage))
        self.location_ = m.location.numpy()
        self.root_ = (vectors[:, :k] / values[:k].sqrt() / m.scale[:, None]).numpy()
        units = m.scale.log().sum() if k == X.shape[1] else 0.0  # projections are in standardized units
        self.log_norm_ = float(-0.5 * (k * math.log(2 * math.pi) + values[:k].log().sum()) - units)

    def _score(self, block: np.ndarray) -> np.ndarray:
        return np.asarray(self.log_norm_ - 0.5 * np.square((block - self.location_) @ self.root_).sum(1))
