"""Covariances of mixture components as EM stores, evaluates and estimates them: full, diagonal, low rank.

Shapes: D features, R mixtures of K components each, F = R K, r the rank, B items in a block.
"""

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vergence.utils import linalg
from vergence.utils.checks import expect

__all__ = ["ROUNDING", "inverse_roots"]

CELLS, LARGE_CELLS = 1 << 19, 1 << 26  # numbers in the largest array of a block, on a CPU and on an accelerator
ROUNDING = 1e-13  # share of a feature's variance over all items: a component's variance below it is rounding and is set to it


@dataclass(frozen=True)
class Mixture:
    """Parameters of R mixtures.

    Covariances are stored as the structure needs them: full (R, K, D, D), diag (R, K, D), low_rank (R, K, D, 1 + rank) with d in
    the first column and U in the others: S = diag d + U U^T.
    """

    weights: Tensor  # (R, K)
    means: Tensor  # (R, K, D)
    covariances: Tensor

    def select(self, r: list[int]) -> "Mixture":
        """Returns the mixtures at the indices r."""
        return Mixture(self.weights[r], self.means[r], self.covariances[r])

    def replaced(self, r: list[int], other: "Mixture") -> "Mixture":
        """Returns the mixtures with those at the indices r replaced by others."""
        pairs = ((self.weights, other.weights), (self.means, other.means), (self.covariances, other.covariances))
        index = torch.tensor(r, device=self.means.device)
        return Mixture(*(a.index_copy(0, index, b) for a, b in pairs))


@dataclass
class Sums:
    """Sums over all items of one pass, around the components' centers a_k."""

    N: Tensor  # sum_n r_nk, (F,)
    first: Tensor  # sum_n r_nk (x_n - a_k), (F, D)
    second: Tensor  # second moments, shaped as the structure needs them
    log_likelihood: Tensor  # sums of the items' log-densities, (R,), in nats
    lowest: Tensor  # the lowest log-density of an item, (R,)
    lowest_item: Tensor  # the index of that item, (R,)


class Structure(abc.ABC):
    """How the covariances of mixtures are stored, evaluated and estimated.

    Subclasses implement the abstract methods; the others are final. ``prepared`` is what `prepare` returns for a mixture: the
    numbers that the densities and sums of a block need, in the block's precision.
    """

    around_means: ClassVar[bool]  # whether moments are taken around the current means, where nothing cancels, or the origin
    initial_passes: ClassVar[int]  # passes that estimate the first covariances, once the means are mixture

    @abc.abstractmethod
    def unit(self, mixture: Mixture) -> Mixture:
        """Returns a mixture with the means of another and covariances of one, around which the first second moments are taken."""

    @abc.abstractmethod
    def prepare(self, mixture: Mixture, dtype: torch.dtype) -> Any:
        """Returns what the methods below take as ``prepared``."""

    @abc.abstractmethod
    def log_density(self, prepared: Any, x: Tensor) -> Tensor:
        """Returns log N(x; mu, S) + D/2 log 2 pi in nats, (F, B)."""

    @abc.abstractmethod
    def second(self, prepared: Any, x: Tensor, r: Tensor) -> Tensor:
        """Returns a block's second moments under responsibilities r (F, B)."""

    @abc.abstractmethod
    def zeros(self, prepared: Any) -> Tensor:
        """Returns zeros in float64 of the second moments' shape."""

    @abc.abstractmethod
    def estimate(self, prepared: Any, sums: Sums, N: Tensor, means: Tensor, reg: float, *, initial: bool = False) -> Tensor:
        """Returns covariances around the new means (R, K, D); ``initial`` if the sums were taken around `unit`."""

    @abc.abstractmethod
    def corrected(self, S: Tensor, floor: Tensor) -> Tensor:
        """Returns covariances whose variances below ``floor`` (D,) are set to it, and which are positive definite."""

    @abc.abstractmethod
    def cells(self, F: int, D: int) -> int:
        """Returns how many numbers each item needs in a block."""

    def center(self, mixture: Mixture) -> Tensor:
        """Returns the centers a (R, K, D) of the moments."""
        return mixture.means if self.around_means else torch.zeros_like(mixture.means)

    def first(self, prepared: Any, x: Tensor, r: Tensor) -> Tensor:
        """Returns a block's sums of r (x - a), (F, D)."""
        total = r @ x
        return total - r.sum(-1, keepdim=True) * prepared.mu if self.around_means else total

    def rows(self, F: int, D: int, device: str = "cpu") -> int:
        """Returns the number of items in a block; larger ones where each takes many kernels."""
        return max(64, (CELLS if device == "cpu" else LARGE_CELLS) // self.cells(F, D))

    def revive(self, mixture: Mixture, r: int, k: int, x: Tensor, weight: float) -> None:
        """Moves component k of mixture r to an item x (D,), with the mean of the other covariances and this weight, in place."""
        mixture.means[r, k] = x
        others = torch.arange(mixture.weights.shape[1], device=x.device) != k
        mixture.covariances[r, k] = mixture.covariances[r, others].mean(0)
        mixture.weights[r, k] = weight
        mixture.weights[r] /= mixture.weights[r].sum()


def unflat(x: Tensor, like: Tensor) -> Tensor:
    """Returns numbers of components (F, ...) as (R, K, ...)."""
    of_mixtures: Tensor = x.unflatten(0, like.shape[:2])
    return of_mixtures


def variance_floor(variance: Tensor, square: Tensor) -> Tensor:
    """Returns the lowest variances (D,) of components, for the variances of all items (0 counts as 1) and their mean squares."""
    return ROUNDING * torch.where(variance > 1e-28 * square, variance, 1.0)


def inverse_roots(S: Tensor) -> tuple[Tensor, Tensor]:
    """Returns P upper triangular with P P^T = S^{-1}, and log |S|, for S (..., D, D); singular matrices get a jitter.

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
class _Factors:
    mu: Tensor  # (F, D)
    P: Tensor  # (F, D, D)
    log_det: Tensor  # (F,)


class Full(Structure):
    """One covariance per component, with moments around the current means.

    ``prior`` is the sum of squares (D, D) of one item that each component has seen before the data (MAP, inverse Wishart).
    """

    around_means, initial_passes = True, 1

    def __init__(self, prior: Tensor | None = None) -> None:
        self.prior = prior

    def unit(self, mixture: Mixture) -> Mixture:
        return Mixture(mixture.weights, mixture.means, torch.diag_embed(torch.ones_like(mixture.means)))

    def prepare(self, mixture: Mixture, dtype: torch.dtype) -> _Factors:
        P, log_det = inverse_roots(mixture.covariances.flatten(0, 1))
        return _Factors(mixture.means.flatten(0, 1).to(dtype), P.to(dtype), log_det.to(dtype))

    def log_density(self, prepared: _Factors, x: Tensor) -> Tensor:
        y = torch.bmm(x - prepared.mu[:, None], prepared.P)
        return -0.5 * (y.square_().sum(-1) + prepared.log_det[:, None])

    def second(self, prepared: _Factors, x: Tensor, r: Tensor) -> Tensor:
        delta = x - prepared.mu[:, None]
        return torch.bmm((delta * r[..., None]).mT, delta)

    def zeros(self, prepared: _Factors) -> Tensor:
        return torch.zeros_like(prepared.P, dtype=torch.float64)

    def estimate(self, prepared: _Factors, sums: Sums, N: Tensor, means: Tensor, reg: float, *, initial: bool = False) -> Tensor:
        delta = sums.first / N[:, None]
        S = sums.second / N[:, None, None] - delta[..., None] * delta[..., None, :]
        if self.prior is not None:
            n = N[:, None, None]
            S = (n * S + self.prior) / (n + 1)
        S.diagonal(dim1=-2, dim2=-1).add_(reg)
        return unflat(S, means)

    def corrected(self, S: Tensor, floor: Tensor) -> Tensor:
        S = S.tril() + S.tril(-1).mT
        diagonal = S.diagonal(dim1=-2, dim2=-1)
        diagonal.copy_(torch.maximum(diagonal, floor))
        L, failed = torch.linalg.cholesky_ex(S)
        noise = 4 * len(floor) * torch.finfo(S.dtype).eps * diagonal
        singular = (L.diagonal(dim1=-2, dim2=-1).square() < noise).any(-1) | (failed > 0)
        for i in map(tuple, singular.nonzero().tolist()):  # plus the jitter, in units of the variances, that makes it definite
            expect(bool(S[i].isfinite().all()), "finite covariances", "NaN or infinity", "check the data for extreme values")
            unit = torch.maximum(floor / ROUNDING, S[i].diagonal())
            lowest = float(torch.linalg.eigvalsh(S[i] / unit.sqrt() / unit.sqrt()[:, None])[0])
            S[i] = S[i] + torch.diag(max(ROUNDING, 32 * len(unit) * torch.finfo(S.dtype).eps, -2 * lowest) * unit)
        return S

    def cells(self, F: int, D: int) -> int:
        return F * D


@dataclass
class Axes:
    """Means and inverse variances of components."""

    mu: Tensor  # (F, D)
    w: Tensor  # (F, D), 1 / variances


def squares(axes: Axes, x: Tensor) -> Tensor:
    """Returns sum_d w_d (x - mu)_d^2, (F, B)."""
    Q = axes.w @ x.square().mT - 2 * (axes.w * axes.mu) @ x.mT + (axes.w * axes.mu.square()).sum(-1, keepdim=True)
    return Q.clamp(min=0)


class Diagonal(Structure):
    """One variance per feature and component, with moments around the origin."""

    around_means, initial_passes = False, 1

    def unit(self, mixture: Mixture) -> Mixture:
        return Mixture(mixture.weights, mixture.means, torch.ones_like(mixture.means))

    def prepare(self, mixture: Mixture, dtype: torch.dtype) -> Axes:
        mu, w = mixture.means.flatten(0, 1), 1 / mixture.covariances.flatten(0, 1)
        return Axes(mu.to(dtype), w.to(dtype))

    def corrected(self, S: Tensor, floor: Tensor) -> Tensor:
        return torch.maximum(S, floor)

    def estimate(self, prepared: Axes, sums: Sums, N: Tensor, means: Tensor, reg: float, *, initial: bool = False) -> Tensor:
        S = unflat(sums.second / N[:, None], means) - means.square()
        return S.clamp(min=0) + reg

    def log_density(self, prepared: Axes, x: Tensor) -> Tensor:
        return -0.5 * (squares(prepared, x) - prepared.w.log().sum(-1)[:, None])

    def second(self, prepared: Axes, x: Tensor, r: Tensor) -> Tensor:
        return r @ x.square()

    def zeros(self, prepared: Axes) -> Tensor:
        return torch.zeros_like(prepared.mu, dtype=torch.float64)

    def cells(self, F: int, D: int) -> int:
        return F + D


@dataclass
class _Loadings(Axes):
    V: Tensor  # (F, D, r): |V^T (x - mu)|^2 is subtracted from the diagonal's quadratic form
    beta: Tensor  # (F, D, r), the transpose of U^T S^{-1}
    U: Tensor  # (F, D, r)
    log_det: Tensor  # (F,)


class LowRank(Structure):
    """S = diag d + U U^T: mixtures of factor analyzers, with one step of their own EM for d and U in every M step.

    With S the moments around the new means, beta = U^T (diag d + U U^T)^{-1} and A = S beta^T:
    U <- A (I - beta U + beta A)^{-1},  d <- diag(S) - sum over columns of U A. Cost O(N K D r), never O(D^2).
    """

    around_means, initial_passes = False, 4

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def unit(self, mixture: Mixture) -> Mixture:
        """Returns d = 1 and orthonormal U: random directions first, later those of the previous pass."""
        if mixture.covariances.ndim == 4:
            U = mixture.covariances[..., 1:]
        else:
            g = torch.Generator().manual_seed(0)
            U = torch.randn(*mixture.means.shape, self.rank, generator=g, dtype=torch.float64).to(mixture.means)
        Q: Tensor = torch.linalg.qr(U)[0]
        return Mixture(mixture.weights, mixture.means, torch.cat([torch.ones_like(Q[..., :1]), Q], -1))

    def _initial(self, prepared: _Loadings, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        """Returns the largest directions of one step of subspace iteration: beta is Q / 2 here, and S Q = V Lambda W."""
        diagonal, A = self._moments(prepared, sums, N, means)
        V, values, _ = torch.linalg.svd(2 * A, full_matrices=False)
        rest = (diagonal.sum(-1) - values.sum(-1)).clamp(min=0) / max(1, diagonal.shape[-1] - values.shape[-1])
        U = V * torch.maximum(values - rest[:, None], 1e-3 * values)[:, None].sqrt()
        d = torch.maximum(diagonal - U.square().sum(-1), 0.05 * diagonal).clamp(min=reg)
        return unflat(torch.cat([d[..., None], U], -1), means)

    def prepare(self, mixture: Mixture, dtype: torch.dtype) -> _Loadings:
        d, U = mixture.covariances[..., 0].flatten(0, 1), mixture.covariances[..., 1:].flatten(0, 1)
        scaled = U / d[..., None]
        eye = torch.eye(U.shape[-1], dtype=d.dtype, device=d.device)
        L: Tensor = torch.linalg.cholesky(eye + U.mT @ scaled)
        V = torch.linalg.solve_triangular(L, scaled.mT, upper=False).mT
        beta = torch.linalg.solve_triangular(L.mT, V.mT, upper=True).mT
        log_det = d.log().sum(-1) + 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        parts = (mixture.means.flatten(0, 1), 1 / d, V, beta, U, log_det)
        return _Loadings(*(part.to(dtype) for part in parts))

    def log_density(self, prepared: _Loadings, x: Tensor) -> Tensor:
        projected = x @ prepared.V - (prepared.mu[:, None] @ prepared.V)
        return -0.5 * ((squares(prepared, x) - projected.square().sum(-1)).clamp(min=0) + prepared.log_det[:, None])

    def second(self, prepared: _Loadings, x: Tensor, r: Tensor) -> Tensor:
        shared = x.mT @ ((x @ prepared.beta) * r[..., None])
        return torch.cat([(r @ x.square())[..., None], shared], -1)

    def zeros(self, prepared: _Loadings) -> Tensor:
        return torch.zeros(*prepared.U.shape[:2], prepared.U.shape[2] + 1, dtype=torch.float64, device=prepared.U.device)

    def estimate(self, prepared: _Loadings, sums: Sums, N: Tensor, means: Tensor, reg: float, *, initial: bool = False) -> Tensor:
        if initial:
            return self._initial(prepared, sums, N, means, reg)
        diagonal, A = self._moments(prepared, sums, N, means)
        beta, U = prepared.beta.double(), prepared.U.double()
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        new: Tensor = torch.linalg.solve(eye - beta.mT @ U + beta.mT @ A, A, left=False)
        d = (diagonal - (new * A).sum(-1)).clamp(min=reg)
        return unflat(torch.cat([d[..., None], new], -1), means)

    def corrected(self, S: Tensor, floor: Tensor) -> Tensor:
        return torch.cat([torch.maximum(S[..., :1], floor[:, None]), S[..., 1:]], -1)

    def _moments(self, prepared: _Loadings, sums: Sums, N: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Returns diag(S) (F, D) and A = S beta^T (F, D, r)."""
        mu, moments = means.flatten(0, 1), sums.second / N[:, None, None]
        return moments[..., 0] - mu.square(), moments[..., 1:] - mu[..., None] * (mu[:, None] @ prepared.beta.double())

    def cells(self, F: int, D: int) -> int:
        return F * self.rank + D
