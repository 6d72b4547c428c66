r"""Gaussian process regression on contexts: the dual-space RBF baseline of arXiv 2603.26799, a flexible mean and one mode.

In standardized units, with K_ij = s_f^2 exp(-|c_i - c_j|^2 / 2 l^2), K_y = K + s_n^2 I over the N items, and targets t (N, T),

    p(t | c*) = N(t; k*^T K_y^{-1} t, (s_f^2 - k*^T K_y^{-1} k* + s_n^2) I)
    NLL = 1/2 tr(t^T K_y^{-1} t) + (T/2) log |K_y| + (N T/2) log 2 pi

in O(N^3). For many items K is approximated through m inducing points u, Q = K_fu K_uu^{-1} K_uf, in O(N m^2), with the bound

    NLL <= -log N(t; 0, Q + s_n^2 I) + (T / 2 s_n^2) tr(K - Q)

Sources: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5; Titsias, Variational Learning
of Inducing Variables in Sparse Gaussian Processes (2009), for the bound and the sparse predictive distribution.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.mixtures.core import Conditional, Objective, Predictive, log_bounds, lowest, seed_of, warn_unfinished
from vergence.utils import linalg
from vergence.utils.checks import require_count, require_within
from vergence.utils.terminal import bar

__all__ = ["KernelConditional"]

EXPLORE = 500  # items on which initial hyper-parameters are compared
FAINT = 0.1  # in standardized units; a weaker signal may come from too few items
RANGES = ((1e-2, 1e2), (1e-3, 1e2), (1e-4, 1e1))  # limits of l / sqrt(C), s_f and s_n, in standardized units
NEGLIGIBLE = 1e-12  # fraction of a point's variance, given the inducing points, below which the point is redundant
ROWS = 4096  # items in a block

Array = np.ndarray


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns |x_i - y_j|^2, (N, M), for x (N, C) and y (M, C)."""
    return (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp(min=0)


def gram(x: Tensor, y: Tensor, ell: float, s_f: float) -> Tensor:
    """Returns K_ij = s_f^2 exp(-|x_i - y_j|^2 / 2 ell^2), (N, M)."""
    return s_f**2 * torch.exp(-squared_distances(x, y) / (2 * ell**2))


def likelihood(d2: Tensor, t: Tensor, log_h: Array) -> tuple[float, Array]:
    """Returns NLL in nats and its gradient (3,) in log_h = (log l, log s_f, log s_n), for squared distances d2 (N, N)."""
    l2, f2, n2 = np.exp(2 * log_h).tolist()
    K = torch.exp(d2 * (-0.5 / l2)).mul_(f2)
    L = factor(K, n2)
    a = torch.cholesky_solve(t, L)
    G = torch.addmm(torch.cholesky_inverse(L), a, a.T, beta=0.5 * t.shape[1], alpha=-0.5)  # dNLL / dK_y
    trace = float(G.diagonal().sum())
    G *= K
    gradient = np.array([float(G.ravel() @ d2.ravel()) / l2, 2 * float(G.sum()), 2 * n2 * trace])
    return negative_log(0.5 * (t * a).sum(), L, t), gradient


def factor(K: Tensor, n2: float) -> Tensor:
    """Returns the Cholesky factor of K_y = K + s_n^2 I, for n2 = s_n^2."""
    K_y = K.clone()
    K_y.diagonal().add_(n2)
    return linalg.cholesky(K_y)[0]


def negative_log(quadratic: Tensor, L: Tensor, t: Tensor) -> float:
    """Returns the NLL in nats of targets t (N, T) for its quadratic term and the factor L of K_y."""
    return float(quadratic + t.shape[1] * L.diagonal().log().sum()) + 0.5 * t.numel() * math.log(2 * math.pi)


def inducing(x: Tensor, m: int, ell: float, seed: int) -> Tensor:
    """Returns at most m inducing points of items x (N, C): k-means centers or the items themselves, without redundant points.

    The pivots of a Cholesky factorization of K stay, which ends when no other point has more than 1e-12 of its variance.
    """
    from sklearn.cluster import KMeans

    x = x.unique(dim=0)
    if len(x) > m:
        centers = KMeans(m, n_init=1, max_iter=30, random_state=seed).fit(x.cpu().numpy()).cluster_centers_
        x = torch.from_numpy(centers).to(x)
    _, pivots, rank, _ = lapack.dpstrf(gram(x, x, ell, 1.0).cpu().numpy(), tol=NEGLIGIBLE, lower=1)
    return x[torch.from_numpy(pivots[:rank] - 1).long().to(x.device)]


def exact(x: Tensor, t: Tensor, ell: float, s_f: float, s_n: float) -> tuple[Tensor, Tensor, float]:
    """Returns the factors (1, N, N) of K_y, the whitened targets L^{-1} t (N, T), and -NLL."""
    L = factor(gram(x, x, ell, s_f), s_n**2)
    w = torch.linalg.solve_triangular(L, t, upper=False)
    return L[None], w, -negative_log(0.5 * w.square().sum(), L, t)


def sparse(x: Tensor, t: Tensor, u: Tensor, ell: float, s_f: float, s_n: float) -> tuple[Tensor, Tensor, float]:
    r"""Returns the factors (2, m, m), the whitened targets (m, T) and the bound of -NLL.

    With K_uu = L L^T and A = L^{-1} K_uf / s_n (m, N): B = I + A A^T = R R^T, whitened targets R^{-1} A t / s_n.
    """
    (N, T), m = t.shape, len(u)
    L, _ = linalg.cholesky(gram(u, u, ell, s_f))
    B, b = torch.eye(m).to(x), x.new_zeros(m, T)
    for part, target in zip(x.split(ROWS), t.split(ROWS), strict=True):
        A = torch.linalg.solve_triangular(L, gram(u, part, ell, s_f), upper=False) / s_n
        B += A @ A.T
        b += A @ target
    R, _ = linalg.cholesky(B)
    w = torch.linalg.solve_triangular(R, b, upper=False) / s_n
    quadratic = 0.5 * (t.square().sum() / s_n**2 - w.square().sum())
    residual = 0.5 * T * (N * (s_f / s_n) ** 2 - float(B.diagonal().sum() - m))  # T tr(K - Q) / 2 s_n^2
    return torch.stack([L, R]), w, -(negative_log(quadratic, R, t) + N * T * math.log(s_n) + residual)


@dataclass(eq=False, repr=False, kw_only=True)
class KernelConditional(Conditional):
    """p(target | context) of Gaussian process regression: one Gaussian per context, of one variance in standardized targets.

    Hyper-parameters that are not given maximize the marginal likelihood of a random subset of at most ``search_limit`` items:
    L-BFGS from ``n_init`` initial values on 500 of them, then from the best result on all of them.

    The predictive distribution is exact, in time O(N^3) and memory O(N^2). With more than ``exact_limit`` items it is
    approximated through at most ``n_inducing`` inducing points, k-means centers of a random subset of 16 n_inducing items, in
    time O(N n_inducing^2).

    Args:
        length_scale: l in standardized units of the context, from 1e-100 to 1e100; None fits it.
        signal: s_f in standardized units of the target, from 1e-100 to 1e100; None fits it.
        noise: s_n in standardized units of the target, from 1e-100 to 1e100; None fits it.
        search_limit: Maximum number of items in the search for hyper-parameters, >= 2; a step takes O(search_limit^3).
        exact_limit: Maximum number of items of the exact form, >= 0.
        n_inducing: Maximum number of inducing points, >= 1; redundant ones are left out.
        n_init: Initial values of the search, >= 1.
        max_iter: Maximum number of L-BFGS steps, >= 1.
        tol: Gradient of the mean NLL, in nats per target value and unit of log hyper-parameter, at which the search ends; > 0.
        device: Where to compute, as torch names it.
        random_state: Seed of initial values, of subsets and of `sample`.

    Attributes:
        length_scale_, signal_, noise_: l, s_f and s_n in standardized units.
        log_marginal_likelihood_: That of the N targets, in nats and the units of the data; a lower bound in the inducing form.
        points_: (m, C), standardized: the items (m = N) or the inducing points.
        factors_: (1, m, m) or (2, m, m), lower triangular.
        whitened_: (m, T).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-3, 3, size=(300, 1))
        >>> model = KernelConditional(random_state=0).fit(x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=300))
        >>> given = model.conditional([[0.5 * np.pi], [100.0]])
        >>> [round(v, 1) for v in given.mean[:, 0].tolist()], [round(v, 1) for v in given.stddev[:, 0].tolist()]
        ([1.0, 0.1], [0.1, 1.4])
    """

    length_scale: float | None = None
    signal: float | None = None
    noise: float | None = None
    search_limit: int = 2000
    exact_limit: int = 5000
    n_inducing: int = 512
    n_init: int = 5
    max_iter: int = 100
    tol: float = 1e-4
    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        self._require_settings()
        g = torch.Generator().manual_seed(seed_of(self.random_state))
        x, y = self._standardized(c, t)
        h = self._hyperparameters(x, y, g)
        if len(x) <= self.exact_limit:
            u = x
            factors, whitened, log_likelihood = exact(x, y, *h)
        else:
            subset = _subset(len(x), 16 * self.n_inducing, g).to(x.device)
            u = inducing(x[subset], self.n_inducing, h[0], g.initial_seed() % 2**32)
            factors, whitened, log_likelihood = sparse(x, y, u, *h)
        self.length_scale_, self.signal_, self.noise_ = h
        self.log_marginal_likelihood_ = log_likelihood - len(y) * float(np.log(self.target_std_).sum())
        self.points_, self.factors_, self.whitened_ = (v.cpu().contiguous().numpy() for v in (u, factors, whitened))

    def _require_settings(self) -> None:
        given = {"length_scale": self.length_scale, "signal": self.signal, "noise": self.noise}
        given = {name: value for name, value in given.items() if value is not None}
        require_within("(0, inf)", tol=self.tol, **given)
        require_within("[1e-100, 1e100]", **given)  # their squares are finite and above 0
        require_count(0, exact_limit=self.exact_limit)
        require_count(1, n_inducing=self.n_inducing, n_init=self.n_init, max_iter=self.max_iter)
        require_count(2, search_limit=self.search_limit)

    def _hyperparameters(self, x: Tensor, t: Tensor, g: torch.Generator) -> list[float]:
        """Returns l, s_f and s_n: those given, and for the others the maximum of the marginal likelihood."""
        given = (self.length_scale, self.signal, self.noise)
        if None not in given:
            return [float(v) for v in given if v is not None]
        bounds = log_bounds(given, RANGES, (math.sqrt(x.shape[1]), 1.0, 1.0))
        best = np.exp(self._search(x, t, bounds, g))
        return [float(b if v is None else v) for v, b in zip(given, best, strict=True)]

    def _search(self, x: Tensor, t: Tensor, bounds: list[tuple[float, float]], g: torch.Generator) -> Array:
        """Returns the log hyper-parameters (3,) of the highest marginal likelihood within bounds."""
        limit = min(self.search_limit, len(x))
        starts = _starts(bounds, self.n_init, g)
        first, options = starts[0], {"maxiter": self.max_iter, "maxfun": 10 * self.max_iter, "gtol": self.tol, "ftol": 1e-10}
        with bar("marginal likelihood", len(starts) + (limit > EXPLORE), "searches") as advance:
            for n in sorted({min(EXPLORE, limit), limit}):
                best = lowest(_objective(x, t, _subset(len(x), n, g).to(x.device)), starts, bounds, advance, **options)
                starts = [best.x] if best.x[1] > math.log(FAINT) else [best.x, first]
        if best.nit >= self.max_iter:
            warn_unfinished("the search for hyper-parameters", self.max_iter)
        return np.asarray(best.x)

    def _predictive(self) -> Predictive:
        u, factors, w = self._tensors(self.points_, self.factors_, self.whitened_)
        context, target = self._scales()

        def predictive(c: Tensor) -> JointGaussian:
            v = gram(u, context.to(c), self.length_scale_, self.signal_)
            variance = torch.full_like(c[:, 0], self.signal_**2)
            for sign, L in zip((-1, 1), factors, strict=False):
                v = torch.linalg.solve_triangular(L, v, upper=False)
                variance = variance + sign * v.square().sum(0)
            variance = variance.clamp(min=0) + self.noise_**2
            p: JointGaussian = target.back(JointGaussian(v.T @ w, Diagonal(variance[:, None].expand(-1, w.shape[1]))))
            return p

        return predictive

    def _width(self) -> int:
        return max(len(self.points_), self.n_targets_)


def _subset(N: int, n: int, g: torch.Generator) -> Tensor:
    """Returns n random indices below N, or all of them in order where n >= N."""
    return torch.randperm(N, generator=g)[:n] if n < N else torch.arange(N)


def _starts(bounds: list[tuple[float, float]], n: int, g: torch.Generator) -> list[Array]:
    """Returns n initial log hyper-parameters, (3,) each.

    The first has a length scale as wide as the data and a signal as strong as the noise; the others have smaller values.
    """
    low, high = np.array(bounds).T
    first = np.array([0.5 * (low + high)[0], -0.35, -0.35])  # l = sqrt(C), s_f^2 = s_n^2 = 1/2
    less = torch.rand(n, 3, generator=g, dtype=torch.float64).numpy() * [1.5, 0.3, 1.5]
    less[0] = 0
    return list((first - less).clip(low, high))


def _objective(x: Tensor, t: Tensor, index: Tensor) -> Objective:
    """Returns the function from log hyper-parameters to the NLL of a subset of items, in nats per target value."""
    d2, y = squared_distances(x[index], x[index]), t[index]

    def f(log_h: Array) -> tuple[float, Array]:
        nll, gradient = likelihood(d2, y, log_h)
        return nll / y.numel(), gradient / y.numel()

    return f
