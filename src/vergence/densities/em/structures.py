"""Covariances of mixture components as EM keeps, uses and estimates them: full, tied, diagonal, spherical.

Shapes: D features, R mixtures of K components each, F = R K, B items in a block.
"""

import abc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence.utils import linalg

__all__ = [
    "Axes",
    "Diagonal",
    "Full",
    "Mixture",
    "Spherical",
    "Structure",
    "Sums",
    "Tied",
    "inverse_roots",
    "least_variance",
    "squares",
    "unflat",
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

    def to_device(self, r: list[int], other: "Mixture") -> "Mixture":
        """Returns the mixtures with others in the place of some."""
        pairs = ((self.weights, other.weights), (self.means, other.means), (self.covariances, other.covariances))
        where = torch.tensor(r, device=self.means.device)
        return Mixture(*(a.index_copy(0, where, b) for a, b in pairs))


@dataclass
class Sums:
    """What a pass over the items leaves, of components around their centers a_k.

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

    def raw(self, a: Tensor, total: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns N, first and second moments around the origin, as a share of ``total``, from those around centers a (K, D)."""
        N, second = self.N[:, None], self.second
        if bool(a.any()):  # the means, for full covariances
            cross = self.first[..., None] * a[:, None]
            second = second + cross + cross.mT + N[..., None] * a[..., None] * a[:, None]
        return self.N / total, (self.first + N * a) / total, second / total

    def least(self, origin: Tensor) -> Tensor:
        """Returns the variances that are told from zero, (D,), of moments around an origin."""
        diagonals = self.second if self.second.ndim == 2 else self.second.diagonal(dim1=-2, dim2=-1)
        mean = self.first.sum(0) / self.N.sum()
        variance = diagonals.reshape(-1, len(mean)).sum(0) / self.N.sum() - mean.square()
        return least_variance(variance, variance + (mean + origin.to(mean)).square())


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
    def corrected(self, S: Tensor, least: Tensor) -> Tensor:
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

    def center(self, mixture: Mixture) -> Tensor:
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

    def center(self, mixture: Mixture) -> Tensor:
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

    def corrected(self, S: Tensor, least: Tensor) -> Tensor:
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

    def center(self, mixture: Mixture) -> Tensor:
        return Structure.center(self, mixture)

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
class Axes:
    """Means and inverse variances of components."""

    mu: Tensor  # (F, D)
    w: Tensor  # (F, D), 1 / variances


class Diagonal(Structure):
    """A variance for each feature of each component."""

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.ones_like(known.means))

    def use(self, mixture: Mixture, dtype: torch.dtype) -> Axes:
        d = mixture.covariances.flatten(0, 1)
        return Axes(mixture.means.flatten(0, 1).to(dtype), (1 / d).to(dtype))

    def log_density(self, use: Axes, x: Tensor) -> Tensor:
        return -0.5 * (squares(use, x) - use.w.log().sum(-1)[:, None])

    def second(self, use: Axes, x: Tensor, r: Tensor) -> Tensor:
        return r @ x.square()

    def empty(self, use: Axes) -> Tensor:
        return torch.zeros_like(use.mu, dtype=torch.float64)

    def estimate(self, use: Axes, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        S = unflat(sums.second / N[:, None], means) - means.square()
        return S.clamp(min=0) + reg

    def corrected(self, S: Tensor, least: Tensor) -> Tensor:
        return torch.maximum(S, least)

    def dense(self, mixture: Mixture) -> Tensor:
        return torch.diag_embed(mixture.covariances)

    def parameters(self, K: int, D: int) -> int:
        return K * D


def squares(use: Axes, x: Tensor) -> Tensor:
    """Returns sum_d w_d (x - mu)_d^2, (F, B)."""
    Q = use.w @ x.square().mT - 2 * (use.w * use.mu) @ x.mT + (use.w * use.mu.square()).sum(-1, keepdim=True)
    return Q.clamp(min=0)


class Spherical(Diagonal):
    """One variance a component."""

    def begin(self, known: Mixture) -> Mixture:
        return Mixture(known.weights, known.means, torch.ones_like(known.weights))

    def use(self, mixture: Mixture, dtype: torch.dtype) -> Axes:
        return super().use(Mixture(mixture.weights, mixture.means, self._axes(mixture)), dtype)

    def estimate(self, use: Axes, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        return super().estimate(use, sums, N, means, reg).mean(-1)

    def corrected(self, S: Tensor, least: Tensor) -> Tensor:
        return torch.maximum(S, least.mean())

    def dense(self, mixture: Mixture) -> Tensor:
        return torch.diag_embed(self._axes(mixture))

    def parameters(self, K: int, D: int) -> int:
        return K

    @staticmethod
    def _axes(mixture: Mixture) -> Tensor:
        return mixture.covariances[..., None].expand_as(mixture.means).contiguous()
