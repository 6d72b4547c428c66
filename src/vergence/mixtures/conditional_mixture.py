r"""Gaussian mixture over context and target by expectation maximization: GMJE-EM of arXiv 2603.26799 on fixed data.

With p(c, t) = sum_k pi_k N([c; t]; mu_k, S_k),  p(t | c) = sum_k gamma_k(c) N(t; m_k, C_k),

    gamma_k proportional to pi_k N(c; mu_ck, S_cck),  A_k = S_tck S_cck^{-1},
    m_k = mu_tk + A_k (c - mu_ck),  C_k = S_ttk - A_k S_ctk
"""

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin
from torch import Tensor

from vergence.densities import em
from vergence.densities.covariance import Dense, LowRank
from vergence.densities.em.structures import Mixture, Structure
from vergence.densities.gaussian import GaussianMixture
from vergence.mixtures.core import Conditional, Scale, seed_of
from vergence.utils.devices import as_device
from vergence.utils.terminal import late_bar

__all__ = ["ConditionalMixture"]


EARLY, FEW = 30, 6  # iterations of all starts, and starts that go on


class ConditionalMixture(Conditional):
    """p(target | context) of a Gaussian mixture over both: as many answers as components that know the context.

    EM runs on standardized features from ``n_init`` starts side by side: 30 iterations of all, then the 6 likeliest to the end,
    of which the likeliest is kept. All start from k-means++ seeds: half of them with equal weights and the covariance of all
    items for each component, which finds the better ends with ten components on long branches, half with the partition by the
    nearest seed, which does so with thirty. With K = 1 it is `ConditionalGaussian`.

    Args:
        n_components: K, 1 to N.
        covariance: ``full``, or ``low_rank``: diag d + U U^T with U (C + T, rank), for C + T of 64 and more.
        rank: r of ``low_rank``.
        n_init: Starts.
        tol: EM stops when the mean log-likelihood gains less, in nats.
        max_iter: Iterations of EM.
        reg_covar: Added to the variance of each standardized feature.
        precision: ``double`` or ``mixed``, as of `vergence.mixtures.GaussianMixture`.
        device: Where to compute, as torch names it.
        random_state: Seed of the starts and of `sample`.

    Attributes:
        weights_: (K,).
        means_: (K, C + T), context first.
        covariances_: (K, C + T, C + T), or (K, C + T, 1 + rank): d, then U.
        lower_bound_: Mean joint log-likelihood of the items, in nats, in the units of the data.
        converged_: Whether EM did.
        n_iter_: Its iterations.
        n_features_in_: C.
        n_targets_: T.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, side = rng.uniform(-1, 1, 2000), rng.choice([-1.0, 1.0], 2000)
        >>> y = side * (1 + x) + 0.05 * rng.normal(size=2000)       # two answers: 1 + x and -1 - x
        >>> model = ConditionalMixture(2, random_state=0).fit(x[:, None], y)
        >>> given = model.conditional([[0.5]])
        >>> given.component_distribution.mean.flatten().sort().values.round(decimals=1).tolist()
        [-1.5, 1.5]
        >>> given.mixture_distribution.probs.round(decimals=1).flatten().tolist()
        [0.5, 0.5]
    """

    def __init__(
        self,
        n_components: int = 3,
        *,
        covariance: str = "full",
        rank: int = 8,
        n_init: int = 20,
        tol: float = 1e-6,
        max_iter: int = 500,
        reg_covar: float = 1e-6,
        precision: str = "double",
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.covariance = covariance
        self.rank = rank
        self.n_init = n_init
        self.tol = tol
        self.max_iter = max_iter
        self.reg_covar = reg_covar
        self.precision = precision
        self.device = device
        self.random_state = random_state

    def _fit(self, c: Tensor, t: Tensor) -> None:
        self._require_settings(len(c))
        Z = torch.cat([c, t], 1)
        scale, kind = Scale.of(Z), em.structure(self.covariance, self.rank)
        data = em.Data(scale.to(Z), None, torch.zeros(Z.shape[1], dtype=torch.float64), Z.device)
        begin = self._starts(data, kind)
        how: dict[str, Any] = {"tol": self.tol, "reg": self.reg_covar, "precision": self.precision}
        most = self.max_iter
        with late_bar("EM", self.max_iter, "iterations") as advance:
            how["progress"] = lambda bound: advance(1, note=f"log-likelihood {bound:.5g}")
            if len(begin.weights) > FEW and most > EARLY:
                early = em.run(data, kind, begin, max_iter=EARLY, **how)
                begin, most = early.mixture.select(early.order()[:FEW]), most - EARLY
            found = em.run(data, kind, begin, max_iter=most, **how)
        best = found.order()[0]
        self._keep(found.mixture.select([best]), scale)
        self.lower_bound_ = found.bounds[best][-1] - float(scale.std.log().sum())
        self.converged_, self.n_iter_ = found.converged[best], len(found.bounds[best]) + self.max_iter - most
        if not self.converged_:
            what = f"EM did not converge in {self.max_iter} iterations (last gain above {self.tol:g} nats)"
            warnings.warn(f"{what}: raise max_iter or tol", ConvergenceWarning, stacklevel=3)

    def _require_settings(self, N: int) -> None:
        em.require_settings(self.n_components, self.n_init, self.max_iter, self.tol, self.reg_covar, self.precision, iterations=1)
        if self.n_components > N:
            raise ValueError(f"expected n_components from 1 to the {N} items, found {self.n_components}")
        if self.covariance not in ("full", "low_rank"):
            raise ValueError(f"expected covariance 'full' or 'low_rank', found '{self.covariance}'")

    def _starts(self, data: em.Data, kind: Structure) -> Mixture:
        """Returns R mixtures from k-means++ seeds: half of them broad, half the partitions by the nearest seed."""
        R, K, X = (1 if self.n_components == 1 else self.n_init), self.n_components, data.X.cpu().numpy()
        one = em.initialize(data, kind, torch.ones(1, 1, len(X), dtype=torch.float64), self.reg_covar)
        if K == 1:
            return one
        drawn = np.random.default_rng(seed_of(self.random_state)).integers(2**31 - 1, size=R)
        seeds = np.stack([kmeans_plusplus(X, K, random_state=int(s))[0] for s in drawn])
        half = R // 2
        labels = np.stack([pairwise_distances_argmin(X, seed) for seed in seeds[half:]])
        r = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), K).movedim(-1, 1).double()
        parted = em.initialize(data, kind, r, self.reg_covar)
        broad = Mixture(
            torch.full((half, K), 1 / K).to(one.means),
            torch.from_numpy(seeds[:half]).to(one.means),
            one.covariances.expand(half, K, *one.covariances.shape[2:]),
        )
        pairs = ((broad.weights, parted.weights), (broad.means, parted.means), (broad.covariances, parted.covariances))
        return Mixture(*(torch.cat(pair) for pair in pairs))

    def _keep(self, found: Mixture, scale: Scale) -> None:
        """Sets the attributes, in the units of the data."""
        std, S = scale.std, found.covariances[0].cpu()
        self.weights_, self.means_ = found.weights[0].cpu().numpy(), (found.means[0].cpu() * std + scale.mean).numpy()
        if self.covariance == "low_rank":
            S = torch.cat([S[..., :1] * std.square()[:, None], S[..., 1:] * std[:, None]], -1)
        else:
            S = S * std[:, None] * std
        self.covariances_ = S.numpy()

    def joint(self) -> GaussianMixture:
        """Returns the density over [context; target]."""
        weights, means, S = (
            torch.from_numpy(v).to(as_device(self.device)) for v in (self.weights_, self.means_, self.covariances_)
        )
        kept = LowRank(S[..., 0], S[..., 1:]) if self.covariance == "low_rank" else Dense.of(S)
        return GaussianMixture(weights.log(), means, kept, context=self.n_features_in_)

    def _conditional(self, c: Tensor) -> GaussianMixture:
        return self.joint().conditional(c)

    def _width(self) -> int:
        return int(self.means_.size)
