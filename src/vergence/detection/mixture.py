"""A Gaussian mixture in the leading directions of the features, chosen by the likelihood of items that were held out."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from vergence.densities.moments import principal
from vergence.detection.core import Detector, blocks
from vergence.detection.parts.moments import consistency, nearest_share, residuals, trimmed, uniform
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.utils.checks import require_choice, require_count

__all__ = ["MixtureDetector"]

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of components that are tried
TYPES = ("full", "diag", "tied", "spherical")
HELD_OUT = 5  # one item in five chooses
SEARCH = 10_000  # items that the choice reads at most
SEARCH_STEPS = 20  # iterations of EM while choosing
STEPS = 10  # concentration steps at most
PATIENCE = 2  # numbers of components without a gain that end the search


class MixtureDetector(Detector):
    """The log-density of a Gaussian mixture on the leading principal directions, and of an isotropic Gaussian on the residual.

    The principal coordinates have unit variance. The smallest number of components is kept whose held-out likelihood is within
    one standard error of the best.

    Args:
        n_components: K; None chooses among 1, 2, 3, 4, 6, 8, 12, 16, 24 and 32.
        covariance_type: ``full``, ``diag``, ``tied`` or ``spherical``; None chooses between the first two.
        n_directions: Principal directions, at least 1; at most D are used, of which all keep no residual.
        trim: Share h in [0, 0.5) of the items, the least likely ones, that is left out (trimmed likelihood; García-Escudero et
            al., A general trimming approach to robust cluster analysis, 2008). Covariances are corrected as for one Gaussian.
        reg_covar: Added to the variances in the principal coordinates.
        random_state: Seed of the held-out part and of the initialization; the order of the items does not matter.
        contamination: Share of the items of `fit` that `predict` calls outliers, in (0, 0.5].

    Attributes:
        mixture_: The fitted `vergence.mixtures.GaussianMixture`.
        n_components_: K.
        covariance_type_: Its structure.
        held_out_: Mean held-out log-likelihood, in nats, by "structure K"; empty where nothing was chosen.
        location_: Mean (D,).
        scale_: Unit of each feature (D,).
        components_: Principal directions (k, D) of the features in these units.
        variances_: Their variances (k,).
        noise_variance_: Variance of the residual in each of its directions, in standardized units; 0 without residual.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> centers = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
        >>> X = np.concatenate([rng.normal(c, 1.0, (300, 2)) for c in centers])
        >>> detector = MixtureDetector().fit(X)
        >>> detector.n_components_
        3
        >>> detector.anomaly_score([[2.7, 2.7]]) > detector.anomaly_score([[8.0, 0.0]])  # between the clusters, in one of them
        array([ True])
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        covariance_type: str | None = None,
        n_directions: int = 64,
        trim: float = 0.0,
        reg_covar: float = 1e-3,
        random_state: int | None = 0,
        contamination: float = 0.05,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.n_directions = n_directions
        self.trim = trim
        self.reg_covar = reg_covar
        self.random_state = random_state
        self.contamination = contamination

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        require_count(n_directions=self.n_directions)
        if self.n_components is not None:
            require_count(n_components=self.n_components)
        if self.covariance_type is not None:
            require_choice("covariance_type", self.covariance_type, TYPES)
        self._project(X, w)
        chance = uniform(X, self.random_state)
        order = np.argsort(chance, kind="stable")
        y = np.concatenate([self._coordinates(X[rows])[0] for rows in blocks(X)])[order]
        v = None if w is None else w[order]
        held = chance[order] < 1 / HELD_OUT
        first = slice(SEARCH // HELD_OUT), slice(SEARCH - SEARCH // HELD_OUT)
        parts = [(y[side][few], None if v is None else v[side][few]) for side, few in zip((held, ~held), first, strict=True)]
        structure, K = self._chosen(*parts[1], *parts[0])
        self.mixture_ = self._trimmed(structure, K, y, v)
        self.covariance_type_, self.n_components_ = structure, int(self.mixture_.n_components)

    def _project(self, X: np.ndarray, w: np.ndarray | None) -> None:
        """Sets the principal coordinates."""
        m = trimmed(X, w, self.trim, "ledoit_wolf")
        values, vectors = (part.numpy() for part in principal(m.shrunk("ledoit_wolf")))
        k = min(self.n_directions, len(values))
        rest = values[k:].mean() if k < len(values) else 0.0
        self.location_, self.scale_ = m.location.numpy(), m.scale.numpy()
        self.noise_variance_ = float(rest)
        self.variances_, self.components_ = values[:k], np.ascontiguousarray(vectors[:, :k].T)

    def _coordinates(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the whitened principal coordinates (n, k), and the squared length of the residual (n,)."""
        x = (block - self.location_) / self.scale_
        y = x @ self.components_.T
        return y / np.sqrt(self.variances_), residuals(x, y)

    def _chosen(self, train: np.ndarray, w: Any, held: np.ndarray, v: Any) -> tuple[str, int]:
        """Returns the structure and K, given or chosen by the likelihood of the held-out items."""
        structures: Sequence[str] = TYPES[:2] if self.covariance_type is None else (self.covariance_type,)
        self.held_out_: dict[str, float] = {}
        if len(held) < 2 or len(train) < 2:
            return structures[0], self.n_components or 1
        if len(structures) == 1 and self.n_components is not None:
            return structures[0], self.n_components
        found: dict[tuple[str, int], np.ndarray] = {}
        for structure in structures:
            for K in COMPONENTS if self.n_components is None else (self.n_components,):
                if K * (train.shape[1] if structure == "full" else 1) * 2 > len(train) and K > 1:
                    break
                found[structure, K] = self._trimmed(structure, K, train, w, max_iter=SEARCH_STEPS).score_samples(held)
                means = [float(values.mean()) for (s, _), values in found.items() if s == structure]
                if len(means) - 1 - int(np.argmax(means)) >= PATIENCE:
                    break
        return self._simplest(found, v) if found else (structures[0], self.n_components or 1)

    def _simplest(self, found: dict[tuple[str, int], np.ndarray], w: np.ndarray | None) -> tuple[str, int]:
        """Returns the model of fewest components within one standard error of the best."""
        weight = np.ones(len(next(iter(found.values())))) if w is None else w
        best = max(found.values(), key=lambda values: float(weight @ values))
        kept = nearest_share(-best, w, self.trim)
        weight = weight[kept] / weight[kept].sum()
        near = []
        for (structure, K), values in found.items():
            self.held_out_[f"{structure} {K}"] = float(weight @ values[kept])
            loss = best[kept] - values[kept]
            mean = float(weight @ loss)
            error = math.sqrt(float(weight @ np.square(loss - mean)) / len(loss))
            if mean <= error:
                near.append((K, -float(weight @ values[kept]), structure))
        K, _, structure = min(near)
        return structure, K

    def _trimmed(self, structure: str, K: int, y: np.ndarray, w: np.ndarray | None, max_iter: int = 100) -> GaussianMixture:
        """Returns the mixture of the most likely share of the items, found by concentration steps."""
        settings: dict[str, Any] = {"covariance_type": structure, "reg_covar": self.reg_covar, "random_state": self.random_state}
        model = GaussianMixture(min(K, len(y)), warm_start=True, max_iter=max_iter, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the next step continues
            model.fit(y, sample_weight=w)
            kept = np.ones(len(y), dtype=bool)
            for _ in range(STEPS if self.trim else 0):
                again = nearest_share(-model.score_samples(y), w, self.trim)
                if (again == kept).all():
                    break
                kept = again
                model.fit(y[kept], sample_weight=None if w is None else w[kept])
        _widen(model, consistency(y.shape[1], self.trim))
        return model

    def _score(self, block: np.ndarray) -> np.ndarray:
        y, residual = self._coordinates(block)
        density = self.mixture_.score_samples(y) - 0.5 * np.log(self.variances_).sum() - np.log(self.scale_).sum()
        rest = len(self.location_) - y.shape[1]
        if rest:
            density -= 0.5 * (rest * math.log(2 * math.pi * self.noise_variance_) + residual / self.noise_variance_)
        return np.asarray(density)


def _widen(model: Any, factor: float) -> None:
    """Multiplies the covariances of a mixture."""
    model.covariances_ = model.covariances_ * factor
    model.precisions_ = model.precisions_ / factor
    model.precisions_cholesky_ = model.precisions_cholesky_ / math.sqrt(factor)
