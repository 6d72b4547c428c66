"""Covariances of mixture components as EM keeps, uses and estimates them: full, tied, diagonal, spherical, low rank.

Shapes: D features, R mixtures of K components each, F = R K, B items in a block.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from vergence import linalg

__all__ = [
    "Diagonal",
    "Full",
    "LowRank",
    "Mixture",
    "Spherical",
    "Structure",
    "Sums",
    "Tied",
    "inverse_roots",
    "is_count",
    "least_variance",
    "structure",
]

CELLS = 1 << 19  # numbers in the largest array of a block
ROUNDING = 1e-13  # of a feature's variance over all items: a component's below that is rounding, and set to it


@dataclass(frozen=True)
class Mixture:
    """Parameters of R mixtures.

    Attributes:
        weights: (R, K).
        means: (R, K, D).
        covariances: As the structure keeps them: full (R, K, D, D), tied (R, D, D), diag (R, K, D), spherical (R, K),
            low_rank (R, K, D, 1 + rank), of which the first column is d and the others U: S = diag d + U U^T.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor

    def of(self, r: list[int]) -> "Mixture":
        """Returns some of the mixtures."""
        return Mixture(self.weights[r], self.means[r], self.covariances[r])

    def put(self, r: list[int], other: "Mixture") -> "Mixture":
        """Returns the mixtures with others in the place of some."""
        pairs = ((self.weights, other.weights), (self.means, other.means), (self.covariances, other.covariances))
        where = torch.tensor(r, device=self.means.device)
        return Mixture(*(a.index_copy(0, where, b) for a, b in pairs))


@dataclass
class Sums:
    """What a pass over the items leaves, of components around their centres a_k.

    Attributes:
        N: sum_n r_nk, (F,).
        first: sum_n r_nk (x_n - a_k), (F, D).
        second: Second moments, as the structure needs them.
        log_likelihood: (R,).
        worst: The lowest log-density of an item, (R,).
        where: That item, (R,).
    """

    N: Tensor
    first: Tensor
    second: Tensor
    log_likelihood: Tensor
    worst: Tensor
    where: Tensor


def is_count(value: Any, least: int) -> bool:
    """Returns whether a setting is a whole number, and large enough.

    Example:
        >>> is_count(2, 1), is_count(0, 1), is_count(2.0, 1), is_count(True, 1)
        (True, False, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def structure(covariance_type: str, rank: int = 8) -> "Structure":
    """Returns a structure by name.

    Raises:
        ValueError: There is no such structure, or the rank is below 1.

    Example:
        >>> structure("tied").parameters(K=3, D=2)
        3
    """
    kinds: dict[str, Callable[[], Structure]] = {"full": Full, "tied": Tied, "diag": Diagonal, "spherical": Spherical}
    if covariance_type not in (*kinds, "low_rank"):
        raise ValueError(f"expected covariance_type among {', '.join((*kinds, 'low_rank'))}, found '{covariance_type}'")
    if covariance_type == "low_rank" and not is_count(rank, 1):
        raise ValueError(f"expected a rank of at least 1, a whole number, found {rank}")
    return LowRank(rank) if covariance_type == "low_rank" else kinds[covariance_type]()


class Structure(abc.ABC):
    """How covariances are kept, used and estimated. ``use`` prepares a mixture for blocks of some precision."""

    sweeps_to_start = 1  # passes that turn responsibilities into covariances, once means are known
    shared = False  # whether the components of a mixture have one covariance

    @abc.abstractmethod
    def begin(self, known: Mixture) -> Mixture:
        """Returns the mixture to take second moments around, from the means; covariances of one where there are none yet."""

    @abc.abstractmethod
    def use(self, mixture: Mixture, dtype: torch.dtype) -> Any:
        """Returns what the functions below take along."""

    @abc.abstractmethod
    def log_density(self, use: Any, x: Tensor) -> Tensor:
        """Returns log N(x; mu, S) + D/2 log 2 pi, (F, B)."""

    @abc.abstractmethod
    def second(self, use: Any, x: Tensor, r: Tensor) -> Tensor:
        """Returns a block's second moments under responsibilities r (F, B)."""

    @abc.abstractmethod
    def empty(self, use: Any) -> Tensor:
        """Returns zeros of float64 for the second moments."""

    @abc.abstractmethod
    def estimate(self, use: Any, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        """Returns covariances around the new means (R, K, D)."""

    @abc.abstractmethod
    def mended(self, S: Tensor, least: Tensor) -> Tensor:
        """Returns covariances with no variance below ``least`` (D,), which is what rounding leaves of zero."""

    @abc.abstractmethod
    def dense(self, mixture: Mixture) -> Tensor:
        """Returns (R, K, D, D)."""

    @abc.abstractmethod
    def parameters(self, K: int, D: int) -> int:
        """Returns how many free numbers the covariances are."""

    def guess(self, use: Any, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        """Returns covariances where there are none to go on from."""
        return self.estimate(use, sums, N, means, reg)

    def centre(self, mixture: Mixture) -> Tensor:
        """Returns a (R, K, D): the origin."""
        return torch.zeros_like(mixture.means)

    def first(self, use: Any, x: Tensor, r: Tensor) -> Tensor:
        """Returns a block's sums of r (x - a), (F, D)."""
        return r @ x

    def rows(self, F: int, D: int) -> int:
        """Returns the items in a block."""
        return max(64, CELLS // (F + D))

    def revive(self, mixture: Mixture, r: int, k: int, x: Tensor, weight: float) -> None:
        """Sets component k of mixture r on an item, with the mean of the covariances and some weight, in place."""
        mixture.means[r, k] = x
        if not self.shared:
            others = torch.arange(mixture.weights.shape[1], device=x.device) != k
            mixture.covariances[r, k] = mixture.covariances[r, others].mean(0)
        mixture.weights[r, k] = weight
        mixture.weights[r] /= mixture.weights[r].sum()


def unflat(x: Tensor, like: Tensor) -> Tensor:
    """Returns numbers of components (F, ...) as (R, K, ...)."""
    found: Tensor = x.unflatten(0, like.shape[:2])
    return found


def least_variance(variance: Tensor, size: Tensor) -> Tensor:
    """Returns the variances (D,) that are told from zero, for those of all items and their mean squares.

    Example:
        >>> least_variance(torch.tensor([4.0, 0.0]), torch.tensor([5.0, 9.0]))  # a constant feature keeps its unit
        tensor([4.0000e-13, 1.0000e-13])
    """
    return ROUNDING * torch.where(variance > 1e-28 * size, variance, 1.0)


def inverse_roots(S: Tensor) -> tuple[Tensor, Tensor]:
    """Returns P upper triangular with P P^T = S^{-1}, and log |S|, for S (..., D, D); the singular ones get a jitter.

    Raises:
        ValueError: A matrix is not finite or not positive semidefinite.

    Example:
        >>> P, log_det = inverse_roots(4 * torch.eye(2, dtype=torch.float64))
        >>> P.tolist(), round(log_det.item(), 3)
        ([[0.5, 0.0], [0.0, 0.5]], 2.773)
    """
    flat = S.reshape(-1, *S.shape[-2:])
    L, failed = torch.linalg.cholesky_ex(flat)
    unit = float(flat.diagonal(dim1=-2, dim2=-1).mean()) or 1.0
    for i in failed.nonzero()[:, 0].tolist():
        L[i] = linalg.cholesky(flat[i], unit=unit)[0]
    eye = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device).expand_as(L)
    P: Tensor = torch.linalg.solve_triangular(L, eye, upper=False).mT
    return P.reshape(S.shape), 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1).reshape(S.shape[:-2])


@dataclass
class _Dense:
    mu: Tensor  # (F, D)
    P: Tensor  # (F, D, D), or (R, D, D) of tied ones
    log_det: Tensor  # (F,), or (R,)
    R: int


class Full(Structure):
    """One covariance a component, its moments taken around the means of before: nothing cancels."""

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.diag_embed(torch.ones_like(known.means)))

    def centre(self, mixture: Mixture) -> Tensor:
        return mixture.means

    def use(self, mixture: Mixture, dtype: torch.dtype) -> _Dense:
        P, log_det = inverse_roots(mixture.covariances.flatten(0, 1))
        return _Dense(mixture.means.flatten(0, 1).to(dtype), P.to(dtype), log_det.to(dtype), len(mixture.means))

    def log_density(self, use: _Dense, x: Tensor) -> Tensor:
        y = torch.bmm(x - use.mu[:, None], use.P)
        return -0.5 * (y.square_().sum(-1) + use.log_det[:, None])

    def first(self, use: _Dense, x: Tensor, r: Tensor) -> Tensor:
        return r @ x - r.sum(-1, keepdim=True) * use.mu

    def second(self, use: _Dense, x: Tensor, r: Tensor) -> Tensor:
        delta = x - use.mu[:, None]
        return torch.bmm((delta * r[..., None]).mT, delta)

    def empty(self, use: _Dense) -> Tensor:
        return torch.zeros_like(use.P, dtype=torch.float64)

    def estimate(self, use: _Dense, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        delta = sums.first / N[:, None]
        S = sums.second / N[:, None, None] - delta[..., None] * delta[..., None, :]
        S.diagonal(dim1=-2, dim2=-1).add_(reg)
        return unflat(S, means)

    def mended(self, S: Tensor, least: Tensor) -> Tensor:
        """Returns covariances with a jitter for those of which a feature's variance, given those before it, is rounding."""
        L, failed = torch.linalg.cholesky_ex(S)
        noise = 4 * len(least) * torch.finfo(S.dtype).eps * S.diagonal(dim1=-2, dim2=-1)
        short = (L.diagonal(dim1=-2, dim2=-1).square() < torch.maximum(noise, least)).any(-1) | (failed > 0)
        unit = (least / ROUNDING).sqrt()
        for i in map(tuple, short.nonzero().tolist()):
            S[i].diagonal().add_(least)
            S[i].diagonal().add_(linalg.cholesky(S[i] / unit / unit[:, None], unit=1e10)[1] * unit.square())
        return S

    def dense(self, mixture: Mixture) -> Tensor:
        return mixture.covariances

    def rows(self, F: int, D: int) -> int:
        return max(64, CELLS // (F * D))

    def parameters(self, K: int, D: int) -> int:
        return K * D * (D + 1) // 2


class Tied(Full):
    """One covariance for all components of a mixture: in its coordinates all densities are of unit covariance."""

    shared = True

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.diag_embed(torch.ones_like(known.means[:, 0])))

    def centre(self, mixture: Mixture) -> Tensor:
        return Structure.centre(self, mixture)

    def use(self, mixture: Mixture, dtype: torch.dtype) -> _Dense:
        P, log_det = inverse_roots(mixture.covariances)
        return _Dense(mixture.means.flatten(0, 1).to(dtype), P.to(dtype), log_det.to(dtype), len(mixture.means))

    def log_density(self, use: _Dense, x: Tensor) -> Tensor:
        y, m = x @ use.P, use.mu.unflatten(0, (use.R, -1)) @ use.P  # (R, B, D), (R, K, D)
        Q = y.square().sum(-1)[:, None] - 2 * m @ y.mT + m.square().sum(-1)[..., None]
        log_p: Tensor = -0.5 * (Q.clamp(min=0) + use.log_det[:, None, None])
        return log_p.flatten(0, 1)

    def first(self, use: _Dense, x: Tensor, r: Tensor) -> Tensor:
        return r @ x

    def second(self, use: _Dense, x: Tensor, r: Tensor) -> Tensor:
        whole: Tensor = r.unflatten(0, (use.R, -1)).sum(1)  # (R, B): one, or the items' weights
        return (x * whole[..., None]).mT @ x

    def estimate(self, use: _Dense, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        n = unflat(N, means)
        S: Tensor = (sums.second - (n[..., None] * means).mT @ means) / n.sum(-1)[:, None, None]
        S.diagonal(dim1=-2, dim2=-1).add_(reg)
        return S

    def dense(self, mixture: Mixture) -> Tensor:
        return mixture.covariances[:, None].expand(-1, mixture.weights.shape[1], -1, -1)

    def rows(self, F: int, D: int) -> int:
        return Structure.rows(self, F, D)

    def parameters(self, K: int, D: int) -> int:
        return D * (D + 1) // 2


@dataclass
class _Axes:
    mu: Tensor  # (F, D)
    w: Tensor  # (F, D), 1 / variances


class Diagonal(Structure):
    """A variance for each feature of each component."""

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.ones_like(known.means))

    def use(self, mixture: Mixture, dtype: torch.dtype) -> _Axes:
        d = mixture.covariances.flatten(0, 1)
        return _Axes(mixture.means.flatten(0, 1).to(dtype), (1 / d).to(dtype))

    def log_density(self, use: _Axes, x: Tensor) -> Tensor:
        return -0.5 * (_squares(use, x) - use.w.log().sum(-1)[:, None])

    def second(self, use: _Axes, x: Tensor, r: Tensor) -> Tensor:
        return r @ x.square()

    def empty(self, use: _Axes) -> Tensor:
        return torch.zeros_like(use.mu, dtype=torch.float64)

    def estimate(self, use: _Axes, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        S = unflat(sums.second / N[:, None], means) - means.square()
        return S.clamp(min=0) + reg

    def mended(self, S: Tensor, least: Tensor) -> Tensor:
        return torch.maximum(S, least)

    def dense(self, mixture: Mixture) -> Tensor:
        return torch.diag_embed(mixture.covariances)

    def parameters(self, K: int, D: int) -> int:
        return K * D


def _squares(use: _Axes, x: Tensor) -> Tensor:
    """Returns sum_d w_d (x - mu)_d^2, (F, B)."""
    Q = use.w @ x.square().mT - 2 * (use.w * use.mu) @ x.mT + (use.w * use.mu.square()).sum(-1, keepdim=True)
    return Q.clamp(min=0)


class Spherical(Diagonal):
    """One variance a component."""

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.ones_like(known.weights))

    def use(self, mixture: Mixture, dtype: torch.dtype) -> _Axes:
        return super().use(Mixture(mixture.weights, mixture.means, self._axes(mixture)), dtype)

    def estimate(self, use: _Axes, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        return super().estimate(use, sums, N, means, reg).mean(-1)

    def mended(self, S: Tensor, least: Tensor) -> Tensor:
        return torch.maximum(S, least.mean())

    def dense(self, mixture: Mixture) -> Tensor:
        return torch.diag_embed(self._axes(mixture))

    def parameters(self, K: int, D: int) -> int:
        return K

    @staticmethod
    def _axes(mixture: Mixture) -> Tensor:
        return mixture.covariances[..., None].expand_as(mixture.means).contiguous()


@dataclass
class _Factors(_Axes):
    V: Tensor  # (F, D, r): |V^T (x - mu)|^2 is what the shared directions take off the diagonal's quadratic form
    beta: Tensor  # (F, D, r), the transpose of U^T S^{-1}
    U: Tensor  # (F, D, r)
    log_det: Tensor  # (F,)


class LowRank(Structure):
    """S = diag d + U U^T: mixtures of factor analysers; a step of their own EM for d and U in every M step.

    With S the moments around the new means, beta = U^T (diag d + U U^T)^{-1} and A = S beta^T:
    U <- A (I - beta U + beta A)^{-1},  d <- diag(S) - sum over columns of U A. Cost O(N K D r), never O(D^2).

    Args:
        rank: r.
    """

    sweeps_to_start = 4

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def begin(self, known: Mixture) -> Mixture:
        """Returns d = 1 and orthonormal U: random directions at first, then those that a pass has found."""
        if known.covariances.ndim == 4:
            U = known.covariances[..., 1:]
        else:
            g = torch.Generator().manual_seed(0)
            U = torch.randn(*known.means.shape, self.rank, generator=g, dtype=torch.float64).to(known.means)
        Q: Tensor = torch.linalg.qr(U)[0]
        return Mixture(known.weights, known.means, torch.cat([torch.ones_like(Q[..., :1]), Q], -1))

    def guess(self, use: _Factors, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        """Returns the largest directions that one step of subspace iteration finds: beta is Q / 2 here, and S Q = V Lambda W."""
        diagonal, A = self._moments(use, sums, N, means)
        V, values, _ = torch.linalg.svd(2 * A, full_matrices=False)
        rest = (diagonal.sum(-1) - values.sum(-1)).clamp(min=0) / max(1, diagonal.shape[-1] - values.shape[-1])
        U = V * torch.maximum(values - rest[:, None], 1e-3 * values)[:, None].sqrt()
        d = torch.maximum(diagonal - U.square().sum(-1), 0.05 * diagonal).clamp(min=reg)
        return unflat(torch.cat([d[..., None], U], -1), means)

    def use(self, mixture: Mixture, dtype: torch.dtype) -> _Factors:
        d, U = mixture.covariances[..., 0].flatten(0, 1), mixture.covariances[..., 1:].flatten(0, 1)
        scaled = U / d[..., None]
        eye = torch.eye(U.shape[-1], dtype=d.dtype, device=d.device)
        L: Tensor = torch.linalg.cholesky(eye + U.mT @ scaled)
        V = torch.linalg.solve_triangular(L, scaled.mT, upper=False).mT
        beta = torch.linalg.solve_triangular(L.mT, V.mT, upper=True).mT
        log_det = d.log().sum(-1) + 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        parts = (mixture.means.flatten(0, 1), 1 / d, V, beta, U, log_det)
        return _Factors(*(part.to(dtype) for part in parts))

    def log_density(self, use: _Factors, x: Tensor) -> Tensor:
        seen = x @ use.V - (use.mu[:, None] @ use.V)
        return -0.5 * ((_squares(use, x) - seen.square().sum(-1)).clamp(min=0) + use.log_det[:, None])

    def second(self, use: _Factors, x: Tensor, r: Tensor) -> Tensor:
        shared = x.mT @ ((x @ use.beta) * r[..., None])
        return torch.cat([(r @ x.square())[..., None], shared], -1)

    def empty(self, use: _Factors) -> Tensor:
        return torch.zeros(*use.U.shape[:2], use.U.shape[2] + 1, dtype=torch.float64, device=use.U.device)

    def estimate(self, use: _Factors, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        diagonal, A = self._moments(use, sums, N, means)
        beta, U = use.beta.double(), use.U.double()
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        new: Tensor = torch.linalg.solve(eye - beta.mT @ U + beta.mT @ A, A, left=False)
        d = (diagonal - (new * A).sum(-1)).clamp(min=reg)
        return unflat(torch.cat([d[..., None], new], -1), means)

    def mended(self, S: Tensor, least: Tensor) -> Tensor:
        return torch.cat([torch.maximum(S[..., :1], least[:, None]), S[..., 1:]], -1)

    def _moments(self, use: _Factors, sums: Sums, N: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Returns diag(S) (F, D) and A = S beta^T (F, D, r)."""
        mu, moments = means.flatten(0, 1), sums.second / N[:, None, None]
        return moments[..., 0] - mu.square(), moments[..., 1:] - mu[..., None] * (mu[:, None] @ use.beta.double())

    def dense(self, mixture: Mixture) -> Tensor:
        d, U = mixture.covariances[..., 0], mixture.covariances[..., 1:]
        return torch.diag_embed(d) + U @ U.mT

    def rows(self, F: int, D: int) -> int:
        return max(64, CELLS // (F * self.rank + D))

    def parameters(self, K: int, D: int) -> int:
        r = min(self.rank, D)
        return K * min(D * (r + 1) - r * (r - 1) // 2, D * (D + 1) // 2)
