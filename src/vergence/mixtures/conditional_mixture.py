r"""One Gaussian over context and target (GJE of arXiv 2603.26799 on fixed data), and a mixture of them by EM (GMJE-EM).

Conditioning is that of `vergence.densities.gaussian`. One Gaussian of the items' mean and covariance (divided by N: maximum
likelihood) is linear regression with an intercept and the covariance of its residuals.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.densities.covariance import Dense, Diagonal, LowRank
from vergence.densities.em import fit as em
from vergence.densities.em.gaps import fit_with_gaps
from vergence.densities.em.structures import Mixture, Structure
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.mixtures.core import Conditional, Scale, one_gaussian, shared_seed, shrunk, warn_unfinished
from vergence.utils import linalg
from vergence.utils.checks import expect, require_choice, require_within

__all__ = ["ConditionalGaussian", "ConditionalMixture"]

EARLY_ITERATIONS = 30  # of all initializations
FEW = 20  # rows a column below which there is a ridge
RIDGES = tuple(10.0 ** (k / 2) for k in range(-10, 7))  # of standardized contexts
FINALISTS = 6  # initializations that are iterated further


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalGaussian(Conditional):
    """p(target | context) of one Gaussian: a mean linear in the context, and one covariance for all contexts.

    With few rows the maximum of the likelihood fits noise. There the mean is a ridge regression in standardized units, whose
    penalty has the highest likelihood of left-out rows in closed form (residual / (1 - leverage)), and the covariance is that of
    these residuals. Gaps are integrated over (EM).

    Args:
        ridge: Penalty, >= 0; ``auto`` is 0 for at least 20 (C + T) rows, and chosen as above for fewer.
        reg_covar: Regularization added to the variance of each standardized feature, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        means_: (C + T,), context first.
        covariances_: (C + T, C + T).
        ridge_: The penalty.
        jitter_: Value added to the standardized variances to make the covariance positive definite; 0.0 for most data.

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

    ridge: float | str = "auto"
    reg_covar: float = 0.0
    fits_gaps: ClassVar[bool] = True

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        require_within("[0, inf)", reg_covar=self.reg_covar)
        chosen = isinstance(self.ridge, str)
        if chosen:
            require_choice("ridge", self.ridge, ("auto",), "or give a number")
        else:
            require_within("[0, inf)", ridge=self.ridge)
        Z = torch.cat([c, t], 1)
        scale, C, N = Scale.of(Z, w), c.shape[1], _total(Z, w)
        few = N < FEW * Z.shape[1]
        X = scale.to(Z)
        gaps = bool(X.isnan().any())
        if gaps:
            mean, S = one_gaussian(X, w, reg=1e-9, tol=1e-9, max_iter=500)
        else:
            mean, S = X.new_zeros(X.shape[1]), _second_moments(X, w)
        if chosen and few and gaps:
            S = S + torch.eye(len(S)).to(S) * len(S) / N
        self.ridge_ = 0.0 if chosen else float(self.ridge)
        if chosen and few and not gaps:
            self.ridge_, S = ridged(X, w, S, C)
        elif self.ridge_:
            penalty = S[:C, :C] + self.ridge_ * torch.eye(C).to(S)
            A = torch.linalg.solve(penalty, S[:C, C:]).T  # the residuals' covariance is that under S
            S = _assembled(penalty, A, S[C:, C:] - A @ S[:C, C:] - S[C:, :C] @ A.T + A @ S[:C, :C] @ A.T)
        S = S + self.reg_covar * torch.eye(X.shape[1]).to(X)
        L, self.jitter_ = linalg.cholesky(S)
        L = scale.std.to(L)[:, None] * L
        self.means_ = (scale.mean + mean.cpu() * scale.std).numpy()
        self.covariances_ = (L @ L.T).cpu().numpy()
        self.cholesky_ = L.cpu().numpy()

    def joint(self) -> JointGaussian:
        """Returns the density over [context; target]."""
        check_is_fitted(self)
        mean, L = self._tensors(self.means_, self.cholesky_)
        return JointGaussian(mean, Dense(L), context=self.n_features_in_)


def _total(X: Tensor, w: Tensor | None) -> float:
    """Returns how many rows items X (N, D) of weights w (N,) stand for."""
    return float(len(X) if w is None else w.sum())


def _second_moments(X: Tensor, w: Tensor | None) -> Tensor:
    """Returns the covariance (D, D) of standardized items; a constant column, which has only rounding errors, has zeros."""
    S = (X if w is None else w[:, None] * X).T @ X / _total(X, w)
    varies = (S.diagonal() > 0.5).to(S)
    return S * varies * varies[:, None]


def _assembled(S_cc: Tensor, A: Tensor, residual: Tensor) -> Tensor:
    S_ct = S_cc @ A.T
    return torch.cat([torch.cat([S_cc, S_ct], 1), torch.cat([S_ct.T, residual + A @ S_ct], 1)])


def ridged(X: Tensor, w: Tensor | None, S: Tensor, C: int) -> tuple[float, Tensor]:
    """Returns the ridge with the highest Gaussian likelihood of left-out rows, and the joint covariance of that regression.

    With the context's singular values s and left singular vectors U of rows scaled by the roots of their weights, the leverage of
    row i is sum_j U_ij^2 s_j^2 / (s_j^2 + N ridge) + 1 / N. Correlations of residuals are shrunk (Ledoit-Wolf).
    """
    N, root = _total(X, w), X.new_ones(len(X)) if w is None else w.sqrt()
    c, t = root[:, None] * X[:, :C], root[:, None] * X[:, C:]
    U, s, V = torch.linalg.svd(c, full_matrices=False)
    inside, found = U.T @ t, []
    outside = t - U @ inside
    for ridge in RIDGES:
        rest = N * ridge / (s.square() + N * ridge)  # 1 - share, which keeps its digits where the share is nearly 1
        left = (1 - U.square().sum(1)).clamp(min=0) + U.square() @ rest - root.square() / N
        residual = (outside + U @ (rest[:, None] * inside)) / left.clamp(min=1e-12)[:, None]
        covariance = shrunk(residual, N)
        found.append((float(torch.linalg.slogdet(covariance)[1]), ridge, covariance))
    _, ridge, covariance = min(found, key=lambda one: one[0])
    A = ((s / (s.square() + N * ridge))[:, None] * inside).T @ V
    return ridge, _assembled(S[:C, :C] + ridge * torch.eye(C).to(S), A, covariance)


@dataclass(eq=False, repr=False)
class ConditionalMixture(Conditional):
    """p(target | context) of a Gaussian mixture over context and target: up to K modes for each context.

    EM runs on standardized features from ``n_init`` initializations in parallel: 30 iterations of all, then the 6 of the highest
    likelihood until they converge, of which the best is kept. All use k-means++ seeds as means. Half of them have equal weights
    and the covariance of all items in each component, which gave the higher likelihood with ten components on long branches;
    the other half have the partition by the nearest seed, which did with thirty. With K = 1 it is `ConditionalGaussian`.

    Args:
        n_components: K, 1 to N; of fewer different rows, as many as those.
        covariance_type: ``full``, or ``low_rank``: diag d + U U^T with U (C + T, rank), for C + T of 64 and more.
        rank: r of ``low_rank``, >= 1.
        n_init: Initializations, >= 1.
        tol: Gain of the mean log-likelihood, in nats, below which EM stops; >= 0.
        max_iter: Maximum number of EM iterations, >= 1.
        reg_covar: Regularization added to the variance of each standardized feature, >= 0.
        prior: Rows that each component has seen before the data, >= 0, with the shape of all items' covariance shrunk by
            K^(-2 / D) (an inverse Wishart prior; Fraley and Raftery, Bayesian regularization for normal mixture estimation,
            2007); for ``full`` covariances. It keeps components of few rows from collapsing.
        precision: ``double`` or ``mixed``, as in `vergence.mixtures.GaussianMixture`.
        device: Where to compute, as torch names it.
        random_state: Seed of the initializations and of `sample`.

    Attributes:
        weights_: (K,).
        means_: (K, C + T), context first.
        covariances_: (K, C + T, C + T), or (K, C + T, 1 + rank): d, then U.
        lower_bound_: Mean joint log-likelihood of the items, in nats and the units of the data.
        converged_, n_iter_: Whether EM converged, and after how many iterations.

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
    prior: float = 1.0
    precision: str = "double"
    fits_gaps: ClassVar[bool] = True

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        em.require_settings(self.n_components, self.n_init, self.max_iter, self.tol, self.reg_covar, self.precision, iterations=1)
        N = math.floor(_total(c, w) + 0.5)
        expect(self.n_components <= N, f"n_components from 1 to the {N} items", self.n_components)
        require_choice("covariance_type", self.covariance_type, ("full", "low_rank"))
        require_within("[0, inf)", prior=self.prior)
        Z = torch.cat([c, t], 1)
        scale = Scale.of(Z, w)
        X, gaps = scale.to(Z), bool(Z.isnan().any())
        K = min(self.n_components, len(X.nan_to_num(math.inf).unique(dim=0)))
        prior = self._scatter(X.nan_to_num(0.0), w, K)
        structure = em.structure(self.covariance_type, self.rank, prior)
        data = em.Data(X if not gaps else self._guessed(X, w), w, torch.zeros(Z.shape[1], dtype=torch.float64), Z.device)
        mixture, bounds, self.converged_ = self._best(data, structure, K)
        if gaps:
            expect(self.covariance_type == "full", "covariance_type full for rows with gaps", self.covariance_type)
            begin = mixture.weights[0], mixture.means[0], mixture.covariances[0]
            how = {"reg": self.reg_covar, "prior": prior, "tol": self.tol, "max_iter": self.max_iter}
            *fitted, bounds = fit_with_gaps(X, w, *begin, **how)  # type: ignore[arg-type]
            mixture, self.converged_ = Mixture(*(part[None] for part in fitted)), len(bounds) < self.max_iter
        self._keep(mixture, scale)
        self.lower_bound_ = bounds[-1] - float(scale.std.log().sum())
        self.n_iter_ = len(bounds)
        if not self.converged_:
            warn_unfinished("EM", self.max_iter)

    def _best(self, data: em.Data, structure: Structure, K: int) -> tuple[Mixture, list[float], bool]:
        """Returns the mixture of the highest likelihood of all initializations, its bounds, and whether it converged."""
        initial, iterations, before = self._initial(data, structure, K), self.max_iter, 0
        how: dict[str, Any] = {"tol": self.tol, "reg": self.reg_covar, "precision": self.precision}
        if len(initial.weights) > FINALISTS and iterations > EARLY_ITERATIONS:
            early = em.run(data, structure, initial, max_iter=EARLY_ITERATIONS, **how)
            initial, iterations = early.mixture.select(early.order()[:FINALISTS]), iterations - EARLY_ITERATIONS
            before = EARLY_ITERATIONS
        outcome = em.run(data, structure, initial, max_iter=iterations, **how)
        best = outcome.order()[0]
        bounds = [math.nan] * before + outcome.bounds[best]
        return outcome.mixture.select([best]), bounds, outcome.converged[best]

    def _scatter(self, X: Tensor, w: Tensor | None, K: int) -> Tensor | None:
        """Returns the prior's sum of squares (D, D) of standardized items; None for one component, which has the items' own."""
        if K == 1 or not self.prior or self.covariance_type != "full":
            return None
        S = _second_moments(X, w)
        varies = (S.diagonal() > 0.5).to(S)
        D = float(varies.sum())
        few = min(1.0, D / _total(X, w))
        S = (1 - few) * S + few * torch.diag(varies)
        return self.prior * S * K ** (-2 / D) if D else None

    def _guessed(self, X: Tensor, w: Tensor | None) -> Tensor:
        """Returns standardized items whose gaps are samples of one Gaussian, from which EM begins."""
        mean, S = one_gaussian(X, w, reg=1e-6)
        rng = torch.Generator().manual_seed(shared_seed(self.random_state, self.device))
        guess = X.clone()
        for gaps in X.isnan().unique(dim=0):
            rows = (X.isnan() == gaps).all(1)
            if gaps.any():
                order = torch.cat([(~gaps).nonzero()[:, 0], gaps.nonzero()[:, 0]])
                observed = int((~gaps).sum())
                joint = JointGaussian(mean[order], S[order[:, None], order], observed)
                p = joint.conditional(X[rows][:, ~gaps]) if observed else joint
                noise = torch.randn(int(rows.sum()), int(gaps.sum()), generator=rng, dtype=X.dtype).to(X)
                root = torch.linalg.cholesky(p.S.dense())
                guess[rows] = guess[rows].masked_scatter(gaps.expand(int(rows.sum()), -1), p.loc + noise @ root.mT)
        return guess

    def _initial(self, data: em.Data, structure: Structure, K: int) -> Mixture:
        """Returns R initial mixtures: half with the covariance of all items, half from partitions by the nearest seed."""
        R, X, w = self.n_init, data.X.cpu().numpy(), None if data.weights is None else data.weights.cpu().numpy()
        whole = em.initialize(data, structure, torch.ones(1, 1, len(X), dtype=torch.float64), self.reg_covar)
        if K == 1:
            return whole
        random_states = np.random.default_rng(shared_seed(self.random_state, self.device)).integers(2**31 - 1, size=R)
        seeds = np.stack([kmeans_plusplus(X, K, sample_weight=w, random_state=int(s))[0] for s in random_states])
        half = R // 2
        labels = np.stack([pairwise_distances_argmin(X, seed) for seed in seeds[half:]])
        r = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), K).movedim(-1, 1).double()
        partitioned = em.initialize(data, structure, r, self.reg_covar)
        first = torch.from_numpy(seeds[:half]).to(whole.means)
        weights = torch.full((half, K), 1 / K).to(first)
        covariances = whole.covariances.expand(half, K, *whole.covariances.shape[2:])
        parts = zip((weights, first, covariances), (partitioned.weights, partitioned.means, partitioned.covariances), strict=True)
        return Mixture(*map(torch.cat, parts))

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
        check_is_fitted(self)
        weights, means, S = self._tensors(self.weights_, self.means_, self.covariances_)
        covariance = LowRank(Diagonal(S[..., 0]), S[..., 1:]) if self.covariance_type == "low_rank" else Dense.of(S)
        return MixtureOfGaussians(weights.log(), means, covariance, context=self.n_features_in_)
