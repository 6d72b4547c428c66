"""Densities that score anomalies (N items, D features); anomalous targets of B pairs, T target features, by S samples."""

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vergence.decide.core import Detector
from vergence.decide.inputs import numeric
from vergence.decide.moments import robust_scale, trimmed, uniform
from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import blocks, principal, standardized_moments
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.utils.checks import expect, require_count
from vergence.utils.devices import fixed_noise
from vergence.utils.dtypes import Floats, Ints

__all__ = ["GaussianDetector", "MixtureDetector", "RidgeGaussian", "surprise"]

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of components that are tried
TYPES = ("full", "diag")
HELD_OUT = 5  # one item in five chooses
SEARCH = 10_000  # items that the choice reads at most
SEARCH_STEPS = 20  # iterations of EM while choosing
PATIENCE = 2  # numbers of components without a gain that end the search
SAMPLES = 16  # of conditional densities that are held at a time
TINY = 1e-300  # squared distance, at least
MOST_SAMPLES = 100_000  # of each conditional density
RIDGE, NEGLIGIBLE = 0.03, 1e-10  # a of a ridge; eigenvalues that count as zero, relative to the largest
FLOOR = 1e-6  # of the median deviation, that of constant features
TRIM = 0.25  # share of the items that no fit of `CrossFitted` sees
LEAST = 0.05  # of a feature's deviation there, relative to the median one
WIDE, JITTER = 1.0, 1e-6  # features for each item, from which on its Gaussian has a ridge; deviation added to constant features


@dataclass(eq=False, repr=False)
class GaussianDetector(Detector):
    """The log-density of one Gaussian, with shrinkage of its covariance towards a multiple of the identity.

    With ``n_components`` the density is that of the projection on the leading principal directions, and what lies outside of
    them is not seen.

    Args:
        n_components: Principal directions, 1 to D; None for all features.
        shrinkage: ``ledoit_wolf``, or the share a in [0, 1] of the identity.
        trim: Share h in [0, 0.5) of the items, the least likely ones, that is left out of the fit (trimmed likelihood); choose it
            above the share of anomalies that is expected. The covariance is corrected as for a Gaussian.
        standardize: Whether features are divided by their deviation first, which makes scores independent of their units.
        contamination: Share of the items of `fit` that `predict` calls anomalies, in (0, 0.5].

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

    n_components: int | None = None
    _: KW_ONLY
    shrinkage: str | float = "ledoit_wolf"
    trim: float = 0.0
    standardize: bool = True
    contamination: float = 0.05

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        k = X.shape[1] if self.n_components is None else self.n_components
        require_count(n_components=k)
        expect(k <= X.shape[1], f"n_components of at most the {X.shape[1]} features", k)
        m = trimmed(X, w, self.trim, self.shrinkage, standardize=self.standardize)
        values, vectors = principal(m.shrunk(self.shrinkage))
        self.location_ = m.location.numpy()
        self.root_ = (vectors[:, :k] / values[:k].sqrt() / m.scale[:, None]).numpy()
        units = m.scale.log().sum() if k == X.shape[1] else 0.0  # projections are in standardized units
        self.log_norm_ = float(-0.5 * (k * math.log(2 * math.pi) + values[:k].log().sum()) - units)

    def log_distance(self, X: Any) -> np.ndarray:
        """Returns the logarithm of each item's squared Mahalanobis distance, (N,)."""
        return np.asarray(np.log(np.maximum(2 * (self.anomaly_score(X) + self.log_norm_), TINY)))

    def _score(self, block: np.ndarray) -> np.ndarray:
        return np.asarray(self.log_norm_ - 0.5 * np.square((block - self.location_) @ self.root_).sum(1))


@dataclass(eq=False, repr=False)
class MixtureDetector(Detector):
    """The log-density of a Gaussian mixture on the leading principal directions, and of an isotropic Gaussian on the residual.

    The principal coordinates have unit variance. The fewest components whose held-out likelihood is within one standard error of
    the best are kept.

    Args:
        n_components: K; None chooses among 1, 2, 3, 4, 6, 8, 12, 16, 24 and 32.
        n_directions: Principal directions, at least 1; at most D are used, of which all keep no residual.
        reg_covar: Added to the variances in the principal coordinates.
        random_state: Seed of the held-out part and of the initialization; the order of the items does not matter.
        contamination: Share of the items of `fit` that `predict` calls anomalies, in (0, 0.5].

    Attributes:
        mixture_: The fitted `vergence.mixtures.GaussianMixture`.
        n_components_, covariance_type_: K and the structure.
        held_out_: Mean held-out log-likelihood, in nats, by "structure K"; empty where nothing was chosen.
        location_, scale_: Mean (D,) and unit (D,) of each feature.
        components_, variances_: Principal directions (k, D) of the features in these units, and their variances (k,).
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

    n_components: int | None = None
    _: KW_ONLY
    n_directions: int = 64
    reg_covar: float = 1e-3
    random_state: int | None = 0
    contamination: float = 0.05

    def _fit(self, X: np.ndarray, w: np.ndarray | None) -> None:
        require_count(n_directions=self.n_directions)
        if self.n_components is not None:
            require_count(n_components=self.n_components)
        m = standardized_moments(X, w)
        values, vectors = (part.numpy() for part in principal(m.shrunk("ledoit_wolf")))
        k = min(self.n_directions, len(values))
        self.location_, self.scale_ = m.location.numpy(), m.scale.numpy()
        self.noise_variance_ = float(values[k:].mean()) if k < len(values) else 0.0
        self.variances_, self.components_ = values[:k], np.ascontiguousarray(vectors[:, :k].T)
        chance = uniform(X, self.random_state)
        order = np.argsort(chance, kind="stable")
        y = np.concatenate([self._coordinates(X[rows])[0] for rows in blocks(X)])[order]
        v = None if w is None else w[order]
        held = chance[order] < 1 / HELD_OUT
        first = slice(SEARCH // HELD_OUT), slice(SEARCH - SEARCH // HELD_OUT)
        parts = [(y[side][few], None if v is None else v[side][few]) for side, few in zip((held, ~held), first, strict=True)]
        structure, K = self._chosen(*parts[1], *parts[0])
        self.mixture_ = self._mixture(structure, K, y, v)
        self.covariance_type_, self.n_components_ = structure, int(self.mixture_.n_components)

    def _coordinates(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the whitened principal coordinates (n, k), and the squared length of the residual (n,)."""
        x = (block - self.location_) / self.scale_
        y = x @ self.components_.T
        whole = np.square(x).sum(1)
        rest = np.maximum(whole - np.where(np.isinf(whole), 0.0, np.square(y).sum(1)), 0.0)  # infinite where it overflows
        return y / np.sqrt(self.variances_), rest

    def _chosen(self, train: np.ndarray, w: Any, held: np.ndarray, v: Any) -> tuple[str, int]:
        """Returns the structure, and K unless it is given, by the likelihood of the held-out items."""
        self.held_out_: dict[str, float] = {}
        if len(held) < 2 or len(train) < 2:
            return TYPES[0], self.n_components or 1
        likelihoods: dict[tuple[str, int], np.ndarray] = {}
        for structure in TYPES:
            for K in COMPONENTS if self.n_components is None else (self.n_components,):
                if K * (train.shape[1] if structure == "full" else 1) * 2 > len(train) and K > 1:
                    break
                model = self._mixture(structure, K, train, w, max_iter=SEARCH_STEPS)
                likelihoods[structure, K] = model.score_samples(held)
                means = [float(values.mean()) for (s, _), values in likelihoods.items() if s == structure]
                if len(means) - 1 - int(np.argmax(means)) >= PATIENCE:
                    break
        return self._simplest(likelihoods, v) if likelihoods else (TYPES[0], self.n_components or 1)

    def _simplest(self, likelihoods: dict[tuple[str, int], np.ndarray], w: np.ndarray | None) -> tuple[str, int]:
        """Returns the model of fewest components within one standard error of the best."""
        weight = np.ones(len(next(iter(likelihoods.values())))) if w is None else w
        weight = weight / weight.sum()
        best = max(likelihoods.values(), key=lambda values: float(weight @ values))
        near = []
        for (structure, K), values in likelihoods.items():
            self.held_out_[f"{structure} {K}"] = float(weight @ values)
            loss = best - values
            mean = float(weight @ loss)
            error = math.sqrt(float(weight @ np.square(loss - mean)) / len(loss))
            if mean <= error:
                near.append((K, -float(weight @ values), structure))
        K, _, structure = min(near)
        return structure, K

    def _mixture(self, structure: str, K: int, y: np.ndarray, w: np.ndarray | None, max_iter: int = 100) -> GaussianMixture:
        """Returns the mixture fitted to principal coordinates."""
        settings: dict[str, Any] = {"covariance_type": structure, "reg_covar": self.reg_covar, "random_state": self.random_state}
        model = GaussianMixture(min(K, len(y)), max_iter=max_iter, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", "reg_covar is")  # directions without variance are meant to have this one
            return model.fit(y, sample_weight=w)

    def _score(self, block: np.ndarray) -> np.ndarray:
        y, residual = self._coordinates(block)
        density = self.mixture_.score_samples(y) - 0.5 * np.log(self.variances_).sum() - np.log(self.scale_).sum()
        rest = len(self.location_) - y.shape[1]
        if rest:
            density -= 0.5 * (rest * math.log(2 * math.pi * self.noise_variance_) + residual / self.noise_variance_)
        return np.asarray(density)


def surprise(density: Any, target: Tensor, n_samples: int = 64, random_state: int = 0) -> Tensor:
    r"""Returns how unlikely each target is among what its own density predicts, (B,); larger is more anomalous.

        s = (-log p(t) - h) / d,    h and d the mean and standard deviation of -log p(T) for T ~ p,

    Unlike -log p(t) it does not call every target of a wide density anomalous, and it does not depend on the units of the target.
    Of a `JointGaussian` in T dimensions it is (m^2 - T) / sqrt(2 T), with m the Mahalanobis distance. Otherwise h and d come from
    S samples, whose noise the pairs of a mixture share; the relative error of d is about 1 / sqrt(S).

    Args:
        density: One of batch (B,) over (T,), as of `vergence.mixtures.ConditionalGaussian.conditional`.
        target: (B, T).
        n_samples: S, 2 to 100,000; not used for a `JointGaussian`.
        random_state: Seed of the samples.

    Example:
        >>> normal = JointGaussian(torch.zeros(1, 8), 9 * torch.eye(8))
        >>> surprise(normal, torch.tensor([[3.0] * 8])).abs().round(decimals=3).item()  # m^2 = T: as expected
        0.0
    """
    require_count(2, MOST_SAMPLES, n_samples=n_samples)
    require_count(0, random_state=random_state)
    t = numeric("target", target)
    if isinstance(density, JointGaussian):
        h, d = density.entropy(), torch.as_tensor(t.shape[-1] / 2).to(density.loc).sqrt()
    else:
        sample = getattr(density, "common_samples", lambda n: density.sample(torch.Size((n,))))  # noise that the batch shares
        with fixed_noise(random_state), torch.no_grad():
            sizes = [len(part) for part in torch.arange(n_samples).split(SAMPLES)]  # for any batch: they set the noise
            d, h = torch.std_mean(torch.cat([-density.log_prob(sample(n)) for n in sizes]), dim=0)
    s: Tensor = (-density.log_prob(t) - h) / d.clamp(min=torch.finfo(d.dtype).eps)
    return s


class RidgeGaussian:
    r"""The Gaussian of rows (N, D), N >= 2, with a ridge; a second fit leaves out the share ``trim`` of them, the farthest.

    Of standardized features z, with covariance S of the rows that are fitted to and its mean eigenvalue c,

        d^2(z) = (z - m)^T (S + a c I)^{-1} (z - m).

    The eigenvectors of S come from the smaller of the two Gram matrices, (N, N) or (D, D); what lies outside of their span has
    the variance a c. A fit takes O(N D min(N, D)) steps and O(N D) numbers.
    """

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


class CrossFitted:
    """One Gaussian for each of K folds, fitted without it; it does not follow anomalies among the items.

    Args:
        x: Features (N, D) of the items that are fitted to.
        fold: Fold of each, (N,), 0..K-1. With one fold alone the Gaussian sees all items: for a reference that is apart.
        clean: Whether all items are taken to be normal, so that none is left out of a fit.
    """

    def __init__(self, x: Floats, fold: Ints, *, clean: bool = False) -> None:
        self.location = np.median(x, 0)
        unit = robust_scale(x - self.location)
        self.unit = np.maximum(unit, LEAST * np.median(unit))
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
