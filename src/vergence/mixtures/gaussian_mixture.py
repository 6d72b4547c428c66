r"""Gaussian mixtures by expectation maximization: scikit-learn's estimator with conditioning and weights.

With p(x) = sum_k pi_k N(x; mu_k, S_k) and x split into context and target, p(target | context) is a mixture too: `condition`.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

import vergence.densities.gaussian as densities
from vergence.densities.covariance import Covariance, Dense, Diagonal, LowRank
from vergence.densities.em import fit as em
from vergence.densities.em.structures import ROUNDING, Mixture
from vergence.densities.moments import blocks
from vergence.densities.storage import Stored
from vergence.mixtures.core import to_numpy, warn_unfinished
from vergence.utils.checks import expect, is_count, require_array, require_count, require_numbers
from vergence.utils.devices import as_device

__all__ = ["GaussianMixture"]


@dataclass(eq=False, repr=False)
class GaussianMixture(DensityMixin, Stored):  # type: ignore[misc]
    r"""A Gaussian mixture in scikit-learn's way, with its numbers: the same k-means initialization gives the same result.

    It adds `condition`, ``sample_weight``, low-rank covariances, any torch device, memory-mapped data, float32
    products (``precision``) and several processes (each passes the same data and reads its share). Differences:

    - Covariances are ``full``, ``diag`` or ``low_rank``, and initializations are by k-means and iterated as one batch.
    - A component's variance below 1e-13 of the feature's variance over all items is set to that (if up to 5 % of far values
      dominate this variance, without them), and singular covariances get a jitter, where scikit-learn raises an error.
    - A component with less than one item's weight is moved to the item of lowest density, at most K times per
      initialization; ``reseeded_`` counts these moves. scikit-learn leaves the component in place.

    Args:
        n_components: K, 1 to N.
        covariance_type: ``full``, ``diag``, or ``low_rank``: diag d + U U^T with U (D, rank).
        tol: Gain of the mean log-likelihood, in nats, below which EM stops, >= 0.
        reg_covar: Added to the covariances' diagonals, >= 0; for ``low_rank``, the lower bound of d.
        max_iter: Most iterations of EM.
        n_init: Initializations; the result of highest likelihood is kept.
        random_state: Seed.
        rank: Rank r of ``low_rank``.
        precision: ``double``, or ``mixed``: products in float32 until EM converges, then in float64 until it converges again.
        device: Device to compute on, by torch's name.

    Attributes:
        weights_: (K,).
        means_: (K, D).
        covariances_: (K, D, D), or (K, D); for ``low_rank`` (K, D, 1 + rank), d first, then U.
        converged_: Whether the gain fell below ``tol``.
        n_iter_: Iterations of the initialization that was kept.
        lower_bound_: Mean log-likelihood before its last M step, in nats.
        lower_bounds_: Mean log-likelihood before each of its M steps, a list.
        reseeded_: Number of components that were moved to another item.
        n_features_in_: D.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal([0, 0], 0.1, (300, 2)), rng.normal([0, 4], 0.1, (300, 2))])
        >>> model = GaussianMixture(2, random_state=0).fit(X)
        >>> np.sort(model.means_[:, 1]).round(1).tolist()
        [0.0, 4.0]
        >>> given = model.condition([[0.0]])                 # given the first feature, the second has two modes
        >>> given.component_distribution.mean.flatten().sort().values.round(decimals=1).abs().tolist()
        [0.0, 4.0]
    """

    n_components: int = 1
    _: KW_ONLY
    covariance_type: str = "full"
    tol: float = 1e-3
    reg_covar: float = 1e-6
    max_iter: int = 100
    n_init: int = 1
    random_state: Any = None
    rank: int = 8
    precision: str = "double"
    device: str = "cpu"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "GaussianMixture":
        """Fits the mixture by EM, and returns the estimator.

        Args:
            X: Items (N, D), an array or tensor; a memory-mapped array of floats is read in blocks.
            y: Not used.
            sample_weight: (N,), >= 0, of any scale: an item of weight 2 counts as two items of weight 1.
        """
        kind = em.structure(self.covariance_type, self.rank)
        em.require_settings(self.n_components, self.n_init, self.max_iter, self.tol, self.reg_covar, self.precision)
        data = self._data(X, sample_weight)
        r = em.initial_responsibilities(data, self.n_components, self.n_init, self.random_state)
        start = em.initialize(data, kind, r, self.reg_covar)
        outcome = em.run(data, kind, start, tol=self.tol, max_iter=self.max_iter, reg=self.reg_covar, precision=self.precision)
        best = outcome.order()[0]
        self.weights_, self.covariances_ = (v[best].cpu().numpy() for v in (outcome.mixture.weights, outcome.mixture.covariances))
        self.means_ = (outcome.mixture.means[best].cpu() + data.origin).numpy()
        small = (data.variance_floor / ROUNDING < self.reg_covar).nonzero()[:, 0].tolist()
        if small:
            found = f"reg_covar is {self.reg_covar:g}, above the variance of feature {small[0]}"
            warnings.warn(f"{found}, and decides its density: lower reg_covar, or rescale the feature", UserWarning, stacklevel=2)
        self.converged_, self.n_iter_ = outcome.converged[best], len(outcome.bounds[best])
        self.lower_bounds_, self.reseeded_ = outcome.bounds[best], outcome.reseeded[best]
        self.lower_bound_: float = self.lower_bounds_[-1] if self.lower_bounds_ else -math.inf
        if not self.converged_ and self.max_iter > 0:
            warn_unfinished(f"the best of {len(outcome.bounds)} initializations", self.max_iter)
        return self

    def condition(self, context: Any, features: Any = None) -> "densities.MixtureOfGaussians":
        """Returns p(the other features | context), a torch distribution of batch (B,).

        It is a mixture over the other D - C features, in ascending order.

        Args:
            context: Values of the given features, (B, C).
            features: Indices of these C features, in the order of ``context``; the first C by default.
        """
        check_is_fitted(self)
        require_numbers(context)
        c = context if isinstance(context, Tensor) else torch.from_numpy(np.array(context, dtype=np.float64))
        c, D = c.to(as_device(self.device), torch.float64), self.n_features_in_
        require_array("contexts", c, "B", "C")
        expect(c.shape[1] < D, f"contexts of less than {D} features", f"shape {tuple(c.shape)}")
        first = list(range(c.shape[1]) if features is None else features if isinstance(features, Iterable) else [features])
        different = all(is_count(i, 0) and i < D for i in first) and len(first) == c.shape[1] == len(set(first))
        expect(different, f"the indices of {c.shape[1]} different features, each below {D}", first)
        order = first + [i for i in range(D) if i not in set(first)]
        return self.density(context=c.shape[1], order=order).conditional(c)

    def density(self, context: int = 0, order: list[int] | None = None) -> "densities.MixtureOfGaussians":
        """Returns p(x) as a torch distribution over (D,).

        Args:
            context: C, the number of leading features that are the context; 0 for none.
            order: Indices of the features in the order to return; ascending by default.
        """
        check_is_fitted(self)
        weights, means, S = self._tensors(self.weights_, self.means_, self.covariances_)
        order = list(range(means.shape[1])) if order is None else order
        if self.covariance_type == "low_rank":
            covariance: Covariance = LowRank(Diagonal(S[:, order, 0]), S[:, order, 1:])
        else:
            covariance = Diagonal(S[:, order]) if self.covariance_type == "diag" else Dense.of(S[..., order, :][..., order])
        return densities.MixtureOfGaussians(weights.log(), means[:, order], covariance, context)

    def score_samples(self, X: Any) -> np.ndarray:
        """Returns log p(x) of each item in nats, (N,)."""
        return self._over(X, lambda joint: joint.logsumexp(0))

    def score(self, X: Any, y: Any = None) -> float:
        """Returns the mean of `score_samples`."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the responsibilities p(k | x), (N, K)."""
        return self._over(X, lambda joint: joint.softmax(0).T)

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable component of each item, (N,)."""
        return self._over(X, lambda joint: joint.argmax(0))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Returns n samples (n, D), sorted by component, and their components (n,)."""
        check_is_fitted(self)
        require_count(n_samples=n_samples)
        rng = check_random_state(self.random_state)
        counts = rng.multinomial(n_samples, self.weights_)
        parts = [self._sample_component(rng, k, n) for k, n in enumerate(counts)]
        return np.vstack(parts), np.repeat(np.arange(len(counts)), counts)

    def _sample_component(self, rng: np.random.RandomState, k: int, n: int) -> np.ndarray:
        mean, S = self.means_[k], self.covariances_[k]
        if self.covariance_type == "full":
            return np.asarray(rng.multivariate_normal(mean, S, n))
        if self.covariance_type == "low_rank":
            noise = rng.standard_normal((n, len(mean))) * np.sqrt(S[:, 0])
            return np.asarray(mean + noise + rng.standard_normal((n, S.shape[1] - 1)) @ S[:, 1:].T)
        return np.asarray(mean + rng.standard_normal((n, len(mean))) * np.sqrt(S))

    def _data(self, X: Any, sample_weight: Any) -> em.Data:
        X = validate_data(self, to_numpy(X), dtype=[np.float64, np.float32], ensure_min_samples=2)
        w = None if sample_weight is None else _check_sample_weight(to_numpy(sample_weight), X, dtype=np.float64)
        if w is not None:
            expect((w >= 0).all() and w.sum() > 0, "weights of at least 0, and one above", advice="leave such items out")
            X, w = (X[w > 0], w[w > 0]) if (w == 0).any() else (X, w)
            w = w / w.max()
            w = w / w.mean()
            mean = sum(w[rows] @ X[rows].astype(np.float64) for rows in blocks(X)) / len(X)  # a file is read block by block
        else:
            mean = X.mean(0, dtype=np.float64)
        expect(len(X) >= self.n_components, f"n_samples >= n_components, which is {self.n_components}", f"n_samples = {len(X)}")
        on, weights = as_device(self.device), None if w is None else torch.from_numpy(w)
        items = _readable(X) if on.type == "cpu" else _readable(X).to(on)
        return em.Data(items, weights, torch.from_numpy(mean), on)

    @torch.no_grad()
    def _over(self, X: Any, f: Any) -> np.ndarray:
        """Returns f of the log-joint densities (K, B), block by block over all items."""
        check_is_fitted(self)
        items = validate_data(self, to_numpy(X), reset=False, dtype=[np.float64, np.float32])
        kind, origin = em.structure(self.covariance_type, self.rank), torch.from_numpy(self.means_.mean(0))
        weights, means, S = self._tensors(self.weights_, self.means_, self.covariances_)
        mixture, x = Mixture(weights[None], (means - origin.to(means))[None], S[None]), _readable(items)
        prepared = kind.prepare(mixture, torch.float64)
        values = []
        K, D = self.means_.shape
        for block in x.split(kind.rows(K, D, mixture.means.device.type)):
            b = block.to(mixture.means) - origin.to(mixture.means)
            joint = em.log_joint(kind, mixture, b, prepared)[0]
            finite = bool(joint.amax(0).isfinite().all())
            expect(finite, "items whose squares can be summed", f"values up to {float(block.abs().max()):.3g}", "leave them out")
            values.append(f(joint).cpu())
        return torch.cat(values).numpy()


def _readable(X: np.ndarray) -> Tensor:
    """Returns an array as a tensor that shares its memory, which may be read-only and is never written to."""
    X = X.copy() if min(X.strides) < 0 else X
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(X)
