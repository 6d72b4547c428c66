r"""A Gaussian process over contexts: the dual-space RBF baseline of arXiv 2603.26799, a flexible mean under one unimodal band.

In standardized units, with K_ij = s_f^2 exp(-|c_i - c_j|^2 / 2 l^2), K_y = K + s_n^2 I over the N items, and targets t (N, T),

    p(t | c*) = N(t; k*^T K_y^{-1} t, (s_f^2 - k*^T K_y^{-1} k* + s_n^2) I)
    NLL = 1/2 tr(t^T K_y^{-1} t) + (T/2) log |K_y| + (N T/2) log 2 pi

in O(N^3). Many items are seen through m inducing points u, in O(N m^2): K becomes Q = K_fu K_uu^{-1} K_uf, and the bound is

    NLL <= -log N(t; 0, Q + s_n^2 I) + (T / 2 s_n^2) tr(K - Q)

Sources: Gaussian Processes for Machine Learning (2006), chapters 2 and 5; Variational learning of inducing variables in sparse
Gaussian processes (2009), whose bound and predictive these are.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.mixtures.core import Conditional, Scale, seed_of, warn_unfinished
from vergence.utils import linalg
from vergence.utils.terminal import bar

__all__ = ["KernelConditional"]

EXPLORE = 500  # items on which starts are compared
FAINT = 0.1  # a signal in standardized units that more items may change
RANGES = ((1e-2, 1e2), (1e-3, 1e2), (1e-4, 1e1))  # of l / sqrt(C), s_f and s_n, in standardized units
NEGLIGIBLE = 1e-12  # of a point's variance, left once the inducing points are known
ROWS = 4096  # items at a time

Array = np.ndarray
Bounds = list[tuple[float, float]]  # equal ones fix a hyper-parameter
Objective = Callable[[Array], tuple[float, Array]]


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


def minimize(f: Objective, start: Array, bounds: Bounds, max_iter: int, tol: float) -> tuple[Array, float, bool]:
    """Returns where f is least between bounds, its value there, and whether L-BFGS stopped before ``max_iter`` steps."""
    options = {"maxiter": max_iter, "maxfun": 10 * max_iter, "gtol": tol, "ftol": 1e-10}
    found = optimize.minimize(f, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return found.x, float(found.fun), found.nit < max_iter


def needed(x: Tensor, ell: float) -> Tensor:
    """Returns the indices of the points x (N, C) that are not known from the others, those that tell most first.

    It is a pivoted Cholesky factor of K, which ends where no point has more than a 1e-12th of its variance left.
    """
    left, rows, chosen = x.new_ones(len(x)), x.new_zeros(len(x), len(x)), []
    for row in range(len(x)):
        i = int(left.argmax())
        if left[i] < NEGLIGIBLE:
            break
        rows[row] = (gram(x[i : i + 1], x, ell, 1.0)[0] - rows[:row, i] @ rows[:row]) / left[i].sqrt()
        left = (left - rows[row].square()).clamp(min=0)
        left[i] = 0
        chosen.append(i)
    return torch.tensor(chosen, device=x.device)


def inducing(x: Tensor, m: int, ell: float, seed: int) -> Tensor:
    """Returns at most m inducing points of items x (N, C): k-means centers, or the items, without what the others tell."""
    from sklearn.cluster import KMeans

    x = x.unique(dim=0)
    if len(x) > m:
        centers = KMeans(m, n_init=1, max_iter=30, random_state=seed).fit(x.cpu().numpy()).cluster_centers_
        x = torch.from_numpy(centers).to(x)
    return x[needed(x, ell)]


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
    unseen = 0.5 * T * (N * (s_f / s_n) ** 2 - float(B.diagonal().sum() - m))  # T tr(K - Q) / 2 s_n^2
    return torch.stack([L, R]), w, -(negative_log(quadratic, R, t) + N * T * math.log(s_n) + unseen)


class KernelConditional(Conditional):
    """p(target | context) of Gaussian-process regression: one Gaussian per context, the same in all targets but for its mean.

    Hyper-parameters that are not given maximize the marginal likelihood of at most ``search_limit`` items at random: L-BFGS from
    ``n_init`` starts on 500 of them, then from the best of these on all.

    The predictive is exact, in time O(N^3) and memory O(N^2). With more than ``exact_limit`` items it is that of at most
    ``n_inducing`` inducing points, k-means centers of 16 times as many items at random, in time O(N n_inducing^2).

    Args:
        length_scale: l in standardized units of the context, > 0; None to fit it.
        signal: s_f in standardized units of the target, > 0; None to fit it.
        noise: s_n in standardized units of the target, > 0; None to fit it.
        search_limit: The most items by which hyper-parameters are chosen, >= 2; a step takes O(search_limit^3).
        exact_limit: The most items of the exact form, >= 0.
        n_inducing: The most inducing points, >= 1. Fewer are used where they already tell every item's value.
        n_init: Starts of the search, >= 1.
        max_iter: Steps of L-BFGS, >= 1.
        tol: Gradient of the mean NLL, in nats per number and unit of log hyper-parameter, at which the search ends; > 0.
        device: Where to compute, as torch names it.
        random_state: Seed of starts, of subsets and of `sample`.

    Attributes:
        length_scale_: l in standardized units.
        signal_: s_f in standardized units.
        noise_: s_n in standardized units.
        log_marginal_likelihood_: Of the N targets, in nats, in units of the data; its lower bound in the inducing form.
        points_: (m, C), standardized: the items (m = N), or the inducing points.
        factors_: (1, m, m) or (2, m, m), lower triangular.
        whitened_: (m, T).
        context_mean_: (C,), and context_std_.
        target_mean_: (T,), and target_std_.
        n_features_in_: C.
        n_targets_: T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-3, 3, size=(300, 1))
        >>> model = KernelConditional(random_state=0).fit(x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=300))
        >>> given = model.conditional([[0.5 * np.pi], [100.0]])
        >>> [round(v, 1) for v in given.mean[:, 0].tolist()], [round(v, 1) for v in given.stddev[:, 0].tolist()]
        ([1.0, 0.1], [0.1, 1.4])
    """

    def __init__(
        self,
        *,
        length_scale: float | None = None,
        signal: float | None = None,
        noise: float | None = None,
        search_limit: int = 2000,
        exact_limit: int = 5000,
        n_inducing: int = 512,
        n_init: int = 5,
        max_iter: int = 100,
        tol: float = 1e-4,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.length_scale = length_scale
        self.signal = signal
        self.noise = noise
        self.search_limit = search_limit
        self.exact_limit = exact_limit
        self.n_inducing = n_inducing
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state

    def _fit(self, c: Tensor, t: Tensor) -> None:
        self._check()
        g = torch.Generator().manual_seed(seed_of(self.random_state))
        of_c, of_t = Scale.of(c), Scale.of(t)
        x, y = of_c.to(c), of_t.to(t)
        h = self._hyperparameters(x, y, g)
        if len(x) <= self.exact_limit:
            u = x
            factors, whitened, found = exact(x, y, *h)
        else:
            some = _some(len(x), 16 * self.n_inducing, g).to(x.device)
            u = inducing(x[some], self.n_inducing, h[0], g.initial_seed() % 2**32)
            factors, whitened, found = sparse(x, y, u, *h)
        self.length_scale_, self.signal_, self.noise_ = h
        self.log_marginal_likelihood_ = found - len(y) * float(of_t.std.log().sum())
        self.points_, self.factors_, self.whitened_ = (v.cpu().contiguous().numpy() for v in (u, factors, whitened))
        self.context_mean_, self.context_std_ = of_c.mean.numpy(), of_c.std.numpy()
        self.target_mean_, self.target_std_ = of_t.mean.numpy(), of_t.std.numpy()

    def _check(self) -> None:
        for name in ("length_scale", "signal", "noise", "tol"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected {name} > 0, found {value}")
        for name, least in (("search_limit", 2), ("exact_limit", 0), ("n_inducing", 1), ("n_init", 1), ("max_iter", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} of at least {least}, found {getattr(self, name)}")

    def _hyperparameters(self, x: Tensor, t: Tensor, g: torch.Generator) -> list[float]:
        """Returns l, s_f and s_n: those given, the others of the most marginal likelihood."""
        given = (self.length_scale, self.signal, self.noise)
        if None not in given:
            return [float(v) for v in given if v is not None]
        best = np.exp(self._search(x, t, self._bounds(x.shape[1]), g))
        return [float(b if v is None else v) for v, b in zip(given, best, strict=True)]

    def _search(self, x: Tensor, t: Tensor, bounds: Bounds, g: torch.Generator) -> Array:
        most = min(self.search_limit, len(x))
        starts, done = _starts(bounds, self.n_init, g), True
        first = starts[0]
        with bar("marginal likelihood", len(starts) + (most > EXPLORE), "searches") as advance:
            for n in sorted({min(EXPLORE, most), most}):
                f = _objective(x, t, _some(len(x), n, g).to(x.device))
                found = []
                for start in starts:
                    found.append(minimize(f, start, bounds, self.max_iter, self.tol))
                    advance(1)
                best, _, done = min(found, key=lambda run: run[1])
                starts = [best] if best[1] > math.log(FAINT) else [best, first]
        if not done:
            warn_unfinished("the search for hyper-parameters", self.max_iter)
        return best

    def _bounds(self, C: int) -> Bounds:
        """Returns the least and the largest log l, log s_f and log s_n."""
        given = (self.length_scale, self.signal, self.noise)
        units = (math.sqrt(C), 1.0, 1.0)
        ranges = [(a * unit, b * unit) if v is None else (v, v) for (a, b), unit, v in zip(RANGES, units, given, strict=True)]
        return [(math.log(a), math.log(b)) for a, b in ranges]

    def _conditional(self, c: Tensor) -> JointGaussian:
        u, factors, w = (torch.from_numpy(v).to(c.device) for v in (self.points_, self.factors_, self.whitened_))
        v = gram(u, Scale(self.context_mean_, self.context_std_).to(c), self.length_scale_, self.signal_)
        left = torch.full_like(c[:, 0], self.signal_**2)
        for sign, L in zip((-1, 1), factors, strict=False):
            v = torch.linalg.solve_triangular(L, v, upper=False)
            left = left + sign * v.square().sum(0)
        variance = left.clamp(min=0) + self.noise_**2
        p = JointGaussian(v.T @ w, Diagonal(variance[:, None].expand(-1, w.shape[1])))
        answer: JointGaussian = Scale(self.target_mean_, self.target_std_).back(p)
        return answer

    def _width(self) -> int:
        return max(len(self.points_), self.n_targets_)


def _some(N: int, n: int, g: torch.Generator) -> Tensor:
    """Returns n of N indices at random, or all."""
    return torch.randperm(N, generator=g)[:n] if n < N else torch.arange(N)


def _starts(bounds: Bounds, n: int, g: torch.Generator) -> list[Array]:
    """Returns n starts, (3,) each: the first of a signal as slow as the data and as strong as the noise, the others below it."""
    low, high = np.array(bounds).T
    first = np.array([0.5 * (low + high)[0], -0.35, -0.35])  # l = sqrt(C), s_f^2 = s_n^2 = 1/2
    less = torch.rand(n, 3, generator=g, dtype=torch.float64).numpy() * [1.5, 0.3, 1.5]
    less[0] = 0
    return list((first - less).clip(low, high))


def _objective(x: Tensor, t: Tensor, index: Tensor) -> Objective:
    """Returns the NLL of some items, per number, as a function of log hyper-parameters."""
    d2, y = squared_distances(x[index], x[index]), t[index]

    def f(log_h: Array) -> tuple[float, Array]:
        nll, gradient = likelihood(d2, y, log_h)
        return nll / y.numel(), gradient / y.numel()

    return f
