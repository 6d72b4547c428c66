r"""Gaussian process regression on contexts: the dual-space RBF baseline of arXiv 2603.26799, a flexible mean and one mode.

In standardized units, with K_ij = s_f^2 exp(-1/2 sum_d (c_id - c_jd)^2 / l_d^2), K_y = K + s_n^2 I over the N items, and targets
t (N, T),

    p(t | c*) = N(t; k*^T K_y^{-1} t, (s_f^2 - k*^T K_y^{-1} k* + s_n^2) I)
    NLL = 1/2 tr(t^T K_y^{-1} t) + (T/2) log |K_y| + (N T/2) log 2 pi

in O(N^3). For many items K is approximated through m inducing points u, Q = K_fu K_uu^{-1} K_uf, in O(N m^2), with the bound

    NLL <= -log N(t; 0, Q + s_n^2 I) + (T / 2 s_n^2) tr(K - Q)

An item of weight w_i counts as w_i equal ones: its noise is s_n^2 / w_i, and the NLL has (T/2) sum_i ((w_i - 1) log 2 pi s_n^2
+ log w_i) more. With M = (dNLL / dK_y) * K and z_id = c_id / l_d, dNLL / d log l_d = 2 (sum_ij M_ij z_id^2 - z_d^T M z_d).

Sources: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5; Titsias, Variational Learning
of Inducing Variables in Sparse Gaussian Processes (2009), for the bound and the sparse predictive distribution.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize
from scipy.linalg import lapack
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.mixtures.core import Conditional, Predictive, seed_of, warn_unfinished
from vergence.utils import linalg
from vergence.utils.checks import require_count, require_within
from vergence.utils.limits import check_time
from vergence.utils.terminal import bar

__all__ = ["KernelConditional"]

EXPLORE = 500  # items on which initial hyper-parameters are compared
FAINT = 0.1  # in standardized units; a weaker signal may come from too few items
RANGES = ((1e-2, 1e2), (1e-3, 1e2), (1e-4, 1e1))  # limits of l / sqrt(C), s_f and s_n, in standardized units
NEGLIGIBLE = 1e-12  # fraction of a point's variance, given the inducing points, below which the point is redundant
ROWS = 4096  # items in a block

Array = np.ndarray
Objective = Callable[[Array], tuple[float, Array]]  # value and gradient


def gram(x: Tensor, y: Tensor, ell: Tensor | float, s_f: float) -> Tensor:
    """Returns K_ij (N, M) for lengths ell, (C,) or one for all columns."""
    x, y = x / ell, y / ell
    square = (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp(min=0)
    return s_f**2 * square.mul_(-0.5).exp()


def likelihood(x: Tensor, t: Tensor, w: Tensor, log_h: Array) -> tuple[float, Array]:
    """Returns NLL in nats and its gradient (C + 2,) in log_h = (log l, log s_f, log s_n), for items of weights w (N,)."""
    n2, T = math.exp(2 * log_h[-1]), t.shape[1]
    z = x / torch.from_numpy(np.exp(log_h[:-2])).to(x)
    K = gram(z, z, 1.0, math.exp(log_h[-2]))
    L = factor(K, n2 / w)
    a = torch.cholesky_solve(t, L)
    G = torch.addmm(torch.cholesky_inverse(L), a, a.T, beta=0.5 * T, alpha=-0.5)  # dNLL / dK_y
    noise = 2 * n2 * float((G.diagonal() / w).sum()) + T * float(w.sum() - len(w))
    M = G.mul_(K)
    lengths = 2 * (M.sum(1) @ z.square() - (z * (M @ z)).sum(0))
    gradient = np.array([*lengths.tolist(), 2 * float(M.sum()), noise])
    return negative_log(0.5 * (t * a).sum(), L, t, w, n2), gradient


def factor(K: Tensor, n2: Tensor) -> Tensor:
    """Returns the Cholesky factor of K_y, for the variances n2 (N,) of the noise."""
    K_y = K.clone()
    K_y.diagonal().add_(n2)
    return linalg.cholesky(K_y)[0]


def negative_log(quadratic: Tensor, L: Tensor, t: Tensor, w: Tensor, n2: float) -> float:
    """Returns the NLL in nats of targets t (N, T) for its quadratic term and the factor L of K_y."""
    repeated = 0.5 * float((w - 1).sum() * math.log(n2) + w.log().sum())
    return float(quadratic + t.shape[1] * (L.diagonal().log().sum() + repeated + 0.5 * w.sum() * math.log(2 * math.pi)))


def inducing(x: Tensor, m: int, ell: Tensor, seed: int) -> Tensor:
    """Returns at most m inducing points of items x (N, C): k-means centers or the items themselves, without redundant points.

    The pivots of a Cholesky factorization of K stay, which ends when no other point has more than 1e-12 of its variance.
    """
    from sklearn.cluster import KMeans

    x = x.unique(dim=0)
    if len(x) > m:
        centers = KMeans(m, n_init=1, max_iter=30, random_state=seed).fit((x / ell).cpu().numpy()).cluster_centers_
        x = ell * torch.from_numpy(centers).to(x)
    _, pivots, rank, _ = lapack.dpstrf(gram(x, x, ell, 1.0).cpu().numpy(), tol=NEGLIGIBLE, lower=1)
    return x[torch.from_numpy(pivots[:rank] - 1).long().to(x.device)]


def exact(x: Tensor, t: Tensor, w: Tensor, ell: Tensor, s_f: float, s_n: float) -> tuple[Tensor, Tensor, float]:
    """Returns the factors (1, N, N) of K_y, the whitened targets L^{-1} t (N, T), and -NLL."""
    L = factor(gram(x, x, ell, s_f), s_n**2 / w)
    white = torch.linalg.solve_triangular(L, t, upper=False)
    return L[None], white, -negative_log(0.5 * white.square().sum(), L, t, w, s_n**2)


def sparse(x: Tensor, t: Tensor, w: Tensor, u: Tensor, ell: Tensor, s_f: float, s_n: float) -> tuple[Tensor, Tensor, float]:
    r"""Returns the factors (2, m, m), the whitened targets (m, T) and the bound of -NLL.

    With K_uu = L L^T and A = L^{-1} K_uf W^{1/2} / s_n (m, N): B = I + A A^T = R R^T, whitened targets R^{-1} A W^{1/2} t / s_n.
    """
    T, m, root = t.shape[1], len(u), w.sqrt()[:, None] / s_n
    L, _ = linalg.cholesky(gram(u, u, ell, s_f))
    B, b = torch.eye(m).to(x), x.new_zeros(m, T)
    for part, target, scale in zip(x.split(ROWS), t.split(ROWS), root.split(ROWS), strict=True):
        A = torch.linalg.solve_triangular(L, gram(u, part, ell, s_f), upper=False) * scale.T
        B += A @ A.T
        b += A @ (scale * target)
    R, _ = linalg.cholesky(B)
    white = torch.linalg.solve_triangular(R, b, upper=False)
    quadratic = 0.5 * ((root * t).square().sum() - white.square().sum())
    residual = 0.5 * T * (s_f**2 * root.square().sum() - (B.diagonal().sum() - m))  # T tr(W (K - Q)) / 2 s_n^2
    logs = T * (R.diagonal().log().sum() + w.sum() * math.log(s_n * math.sqrt(2 * math.pi)))
    return torch.stack([L, R]), white, -float(quadratic + logs + residual)


@dataclass(eq=False, repr=False, kw_only=True)
class KernelConditional(Conditional):
    """p(target | context) of Gaussian process regression: one Gaussian per context, of one variance in standardized targets.

    Hyper-parameters maximize the marginal likelihood of a random subset of at most ``search_limit`` items:
    L-BFGS on 500 of them, from ``n_init`` initial values with one length for all columns, then with a length a column (under a
    prior that keeps their logarithms together), which is kept where it gains a nat a further length (AIC), then on all of them.

    The predictive distribution is exact, in time O(N^3) and memory O(N^2). With more than ``exact_limit`` items it is
    approximated through at most ``n_inducing`` inducing points, k-means centers of a random subset of 16 n_inducing items, in
    time O(N n_inducing^2).

    Args:
        search_limit: Maximum number of items in the search for hyper-parameters, >= 2; a step takes O(search_limit^3).
        exact_limit: Maximum number of items of the exact form, >= 0.
        n_inducing: Maximum number of inducing points, >= 1; redundant ones are left out.
        n_init: Initial values of the search, >= 1.
        max_iter: Maximum number of L-BFGS steps, >= 1.
        tol: Gradient of the mean NLL, in nats per target value and unit of log hyper-parameter, at which the search ends; > 0.
        device: Where to compute, as torch names it.
        random_state: Seed of initial values, of subsets and of `sample`.

    Attributes:
        length_scale_, signal_, noise_: l (C,), s_f and s_n in standardized units. A long l: the column hardly matters.
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

    search_limit: int = 1000
    exact_limit: int = 5000
    n_inducing: int = 512
    n_init: int = 5
    max_iter: int = 100
    tol: float = 1e-4

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        require_within("(0, inf)", tol=self.tol)
        require_count(0, exact_limit=self.exact_limit)
        require_count(1, n_inducing=self.n_inducing, n_init=self.n_init, max_iter=self.max_iter)
        require_count(2, search_limit=self.search_limit)
        g = torch.Generator().manual_seed(seed_of(self.random_state))
        w = c.new_ones(len(c)) if w is None else w
        x, y = self._standardized(c, t, w)
        *found, s_f, s_n = np.exp(self._search(x, y, w, g)).tolist()
        ell, h = np.broadcast_to(found, x.shape[1]).copy(), (s_f, s_n)
        lengths = torch.from_numpy(ell).to(x)
        if len(x) <= self.exact_limit:
            u = x
            factors, whitened, log_likelihood = exact(x, y, w, lengths, *h)
        else:
            subset = _subset(len(x), 16 * self.n_inducing, g).to(x.device)
            u = inducing(x[subset], self.n_inducing, lengths, g.initial_seed() % 2**32)
            factors, whitened, log_likelihood = sparse(x, y, w, u, lengths, *h)
        self.length_scale_, self.signal_, self.noise_ = ell, *h
        self.log_marginal_likelihood_ = log_likelihood - float(w.sum()) * float(np.log(self.target_std_).sum())
        self.points_, self.factors_, self.whitened_ = (v.cpu().contiguous().numpy() for v in (u, factors, whitened))

    def _search(self, x: Tensor, t: Tensor, w: Tensor, g: torch.Generator) -> Array:
        """Returns the log hyper-parameters (3,) or (C + 2,) of the highest marginal likelihood within `RANGES`."""
        limit, C = min(self.search_limit, len(x)), x.shape[1]
        bounds = np.log(np.multiply(RANGES, [[math.sqrt(C)], [1.0], [1.0]]))
        starts, separate = _starts(bounds, self.n_init, g), C > 1
        options = {"maxiter": self.max_iter, "maxfun": 10 * self.max_iter, "gtol": self.tol, "ftol": 0.1 * self.tol}
        with bar("marginal likelihood", len(starts) + separate + (limit > EXPLORE), "searches") as advance:

            def search(n: int, starts: list[Array], wide: int) -> Any:
                f, runs = _objective(x, t, w, _subset(len(x), n, g).to(x.device)), []
                for h in starts:
                    how: Any = {"bounds": _spread(bounds, wide), "options": options}
                    runs.append(optimize.minimize(f, _spread(h, wide), jac=True, method="L-BFGS-B", **how))
                    advance(1)
                return min(runs, key=lambda run: float(run.fun))

            few = min(EXPLORE, limit)
            best, first, n = search(few, starts, 1), starts[0], few * t.shape[1]
            if separate:
                other = search(few, _strong(best.x, first), C)
                best = other if n * (best.fun - other.fun) > C - 1 else best
            if limit > few:
                best = search(limit, _strong(best.x, first), len(best.x) - 2)
        if best.nit >= self.max_iter:
            warn_unfinished("the search for hyper-parameters", self.max_iter)
        return np.asarray(best.x)

    def _predictive(self) -> Predictive:
        u, factors, w, ell = self._tensors(self.points_, self.factors_, self.whitened_, self.length_scale_)
        context, target = self._scales()

        def predictive(c: Tensor) -> JointGaussian:
            v = gram(u, context.to(c), ell, self.signal_)
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


def _starts(bounds: Array, n: int, g: torch.Generator) -> list[Array]:
    """Returns n initial log hyper-parameters, (3,) each; the first has a length as wide as the data."""
    low, high = bounds.T
    first = np.array([0.5 * (low + high)[0], -0.35, -0.35])  # l = sqrt(C), s_f^2 = s_n^2 = 1/2
    less = torch.rand(n, 3, generator=g, dtype=torch.float64).numpy() * [1.5, 0.3, 1.5]
    less[0] = 0
    return list((first - less).clip(low, high))


def _spread(values: Any, C: int) -> Array:
    """Returns (log l, log s_f, log s_n), or their bounds, with C equal lengths, of one or C of them."""
    values = np.asarray(values)
    return np.concatenate([np.broadcast_to(values[:-2], (C, *values.shape[1:])), values[-2:]])


def _strong(best: Array, first: Array) -> list[Array]:
    """Returns the starts of a further search: the best of the last, and another where it found hardly a signal."""
    return [best] if best[-2] > math.log(FAINT) else [best, first]


def _objective(x: Tensor, t: Tensor, w: Tensor, index: Tensor) -> Objective:
    """Returns the function from log hyper-parameters, with one or C lengths, to the NLL of some items in nats a target value.

    Logarithms of lengths have a normal prior of deviation 1 around their mean: without it few rows choose lengths that fit them
    without noise.
    """
    x, t, w = x[index], t[index], w[index]

    def f(log_h: Array) -> tuple[float, Array]:
        check_time()
        nll, gradient = likelihood(x, t, w, _spread(log_h, x.shape[1]))
        if len(log_h) < len(gradient):
            gradient = np.array([gradient[:-2].sum(), *gradient[-2:]])
        apart = log_h[:-2] - log_h[:-2].mean()
        nll, gradient[:-2] = nll + 0.5 * apart @ apart, gradient[:-2] + apart
        return nll / t.numel(), gradient / t.numel()

    return f
