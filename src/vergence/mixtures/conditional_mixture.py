r"""One Gaussian over context and target (GJE of arXiv 2603.26799 on fixed data), and a mixture of them by EM (GMJE-EM).

With p(c, t) = sum_k pi_k N([c; t]; mu_k, S_k),  p(t | c) = sum_k gamma_k(c) N(t; m_k, C_k),

    gamma_k proportional to pi_k N(c; mu_ck, S_cck),  A_k = S_tck S_cck^{-1},
    m_k = mu_tk + A_k (c - mu_ck),  C_k = S_ttk - A_k S_ctk

One Gaussian of the items' mean and covariance (divided by N: maximum likelihood) is linear regression with an intercept and the
covariance of its residuals.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin
from torch import Tensor

from vergence.densities import em
from vergence.densities.covariance import Dense, Diagonal, LowRank
from vergence.densities.em.structures import Mixture, Structure
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.mixtures.core import Conditional, Scale, shared_seed, warn_unfinished
from vergence.utils import linalg
from vergence.utils.checks import expect, require_choice, require_within

__all__ = ["ConditionalGaussian", "ConditionalMixture"]

EARLY_ITERATIONS = 30  # of all initializations
FINALISTS = 6  # initializations that are iterated further


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalGaussian(Conditional):
    """p(target | context) of one Gaussian: a mean linear in the context, and one covariance for all contexts.

    Args:
        reg_covar: Regularization added to the variance of each standardized feature, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        means_: (C + T,), context first.
        covariances_: (C + T, C + T).
        jitter_: Value added to the standardized variances to make the covariance positive definite; usually 0.0.
        n_features_in_, n_targets_: C and T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 1))
        >>> model = ConditionalGaussian().fit(x, 2 * x[:, 0] + 0.5 * rng.normal(size=2000))
        >>> given = model.conditional([[1.0]])
        >>> [round(v, 1) for v in (given.mean.item(), given.variance.item() ** 0.5)]
        [2.0, 0.5]
        >>> model.intervals([[1.0]], level=0.9).round(1).tolist()
        [[1.2, 2.8]]
    """

    reg_covar: float = 0.0
    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor) -> None:
        require_within("[0, inf)", reg_covar=self.reg_covar)
        Z = torch.cat([c, t], 1)
        scale = Scale.of(Z)
        X = scale.to(Z)
        S = X.T @ X / len(X)
        varies = (S.diagonal() > 0.5).to(S)  # a constant column has only the rounding error of its mean
        S = S * varies * varies[:, None] + self.reg_covar * torch.eye(X.shape[1]).to(X)
        L, self.jitter_ = linalg.cholesky(S)
        L = scale.std.to(L)[:, None] * L
        self.means_ = scale.mean.numpy()
        self.covariances_ = (L @ L.T).cpu().numpy()
        self.cholesky_ = L.cpu().numpy()

    def joint(self) -> JointGaussian:
        """Returns the density over [context; target]."""
        mean, L = self._tensors(self.means_, self.cholesky_)
        return JointGaussian(mean, Dense(L), context=self.n_features_in_)


@dataclass(eq=False, repr=False)
class ConditionalMixture(Conditional):
    """p(target | context) of a Gaussian mixture over context and target: up to K modes for each context.

    EM runs on standardized features from ``n_init`` initializations in parallel: 30 iterations of all, then the 6 of the highest
    likelihood until they converge, of which the best is kept. All use k-means++ seeds as means. Half of them have equal weights
    and the covariance of all items in each component, which gave the higher likelihood with ten components on long branches;
    the other half have the partition by the nearest seed, which did with thirty. With K = 1 it is `ConditionalGaussian`.

    Args:
        n_components: K, 1 to N.
        covariance_type: ``full``, or ``low_rank``: diag d + U U^T with U (C + T, rank), for C + T of 64 and more.
        rank: r of ``low_rank``, >= 1.
        n_init: Initializations, >= 1.
        tol: Gain of the mean log-likelihood, in nats, below which EM stops; >= 0.
        max_iter: Maximum number of EM iterations, >= 1.
        reg_covar: Regularization added to the variance of each standardized feature, >= 0.
        precision: ``double`` or ``mixed``, as in `vergence.mixtures.GaussianMixture`.
        device: Where to compute, as torch names it.
        random_state: Seed of the initializations and of `sample`.

    Attributes:
        weights_: (K,).
        means_: (K, C + T), context first.
        covariances_: (K, C + T, C + T), or (K, C + T, 1 + rank): d, then U.
        lower_bound_: Mean joint log-likelihood of the items, in nats and the units of the data.
        converged_, n_iter_: Whether EM converged, and after how many iterations.
        n_features_in_, n_targets_: C and T.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, side = rng.uniform(-1, 1, 2000), rng.choice([-1.0, 1.0], 2000)
        >>> y = side * (1 + x) + 0.05 * rng.normal(size=2000)       # two branches: 1 + x and -1 - x
        >>> model = ConditionalMixture(2, random_state=0).fit(x[:, None], y)
        >>> given = model.conditional([[0.5]])
        >>> given.component_distribution.mean.flatten().sort().values.round(decimals=1).tolist()
        [-1.5, 1.5]
        >>> given.mixture_distribution.probs.round(decimals=1).flatten().tolist()
        [0.5, 0.5]
    """

    n_components: int = 3
    _: KW_ONLY
    covariance_type: str = "full"
    rank: int = 8
    n_init: int = 20
    tol: float = 1e-6
    max_iter: int = 500
    reg_covar: float = 1e-6
    precision: str = "double"
    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor) -> None:
        em.require_settings(self.n_components, self.n_init, self.max_iter, self.tol, self.reg_covar, self.precision, iterations=1)
        expect(self.n_components <= len(c), f"n_components from 1 to the {len(c)} items", self.n_components)
        require_choice("covariance_type", self.covariance_type, ("full", "low_rank"))
        Z = torch.cat([c, t], 1)
        scale, structure = Scale.of(Z), em.structure(self.covariance_type, self.rank)
        data = em.Data(scale.to(Z), None, torch.zeros(Z.shape[1], dtype=torch.float64), Z.device)
        initial, iterations = self._initial(data, structure), self.max_iter
        how: dict[str, Any] = {"tol": self.tol, "reg": self.reg_covar, "precision": self.precision}
        if len(initial.weights) > FINALISTS and iterations > EARLY_ITERATIONS:
            early = em.run(data, structure, initial, max_iter=EARLY_ITERATIONS, **how)
            initial, iterations = early.mixture.select(early.order()[:FINALISTS]), iterations - EARLY_ITERATIONS
        outcome = em.run(data, structure, initial, max_iter=iterations, **how)
        best = outcome.order()[0]
        self._keep(outcome.mixture.select([best]), scale)
        self.lower_bound_ = outcome.bounds[best][-1] - float(scale.std.log().sum())
        self.converged_, self.n_iter_ = outcome.converged[best], len(outcome.bounds[best]) + self.max_iter - iterations
        if not self.converged_:
            warn_unfinished("EM", self.max_iter)

    def _initial(self, data: em.Data, structure: Structure) -> Mixture:
        """Returns R initial mixtures: half with the covariance of all items, half from partitions by the nearest seed."""
        R, K, X = (1 if self.n_components == 1 else self.n_init), self.n_components, data.X.cpu().numpy()
        whole = em.initialize(data, structure, torch.ones(1, 1, len(X), dtype=torch.float64), self.reg_covar)
        if K == 1:
            return whole
        random_states = np.random.default_rng(shared_seed(self.random_state, self.device)).integers(2**31 - 1, size=R)
        seeds = np.stack([kmeans_plusplus(X, K, random_state=int(s))[0] for s in random_states])
        half = R // 2
        labels = np.stack([pairwise_distances_argmin(X, seed) for seed in seeds[half:]])
        r = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), K).movedim(-1, 1).double()
        partitioned = em.initialize(data, structure, r, self.reg_covar)
        first = torch.from_numpy(seeds[:half]).to(whole.means)
        covariances = whole.covariances.expand(half, K, *whole.covariances.shape[2:])
        return Mixture(
            torch.cat([torch.full((half, K), 1 / K).to(first), partitioned.weights]),
            torch.cat([first, partitioned.means]),
            torch.cat([covariances, partitioned.covariances]),
        )

    def _keep(self, mixture: Mixture, scale: Scale) -> None:
        """Sets the fitted attributes, in the units of the data."""
        std, S = scale.std, mixture.covariances[0].cpu()
        self.weights_, self.means_ = mixture.weights[0].cpu().numpy(), (mixture.means[0].cpu() * std + scale.mean).numpy()
        if self.covariance_type == "low_rank":
            S = torch.cat([S[..., :1] * std.square()[:, None], S[..., 1:] * std[:, None]], -1)
        else:
            S = S * std[:, None] * std
        self.covariances_ = S.numpy()

    def joint(self) -> MixtureOfGaussians:
        """Returns the density over [context; target]."""
        weights, means, S = self._tensors(self.weights_, self.means_, self.covariances_)
        covariance = LowRank(Diagonal(S[..., 0]), S[..., 1:]) if self.covariance_type == "low_rank" else Dense.of(S)
        return MixtureOfGaussians(weights.log(), means, covariance, context=self.n_features_in_)
