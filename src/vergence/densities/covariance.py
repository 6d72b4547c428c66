"""Covariances by their structure: dense, diagonal, diagonal plus low rank, and that for pairs of views.

Each computes its log-determinant, quadratic form, samples, blocks and Schur complement at the cost of its structure. All are
batched and differentiable. Shapes: batch (...), D features, r the rank.
"""

import abc
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions.utils import _standard_normal

from vergence.utils import linalg

__all__ = ["Covariance", "Dense", "Diagonal", "LowRank", "PairedLowRank", "rotated"]


class Covariance(abc.ABC):
    """A batch (...) of covariances over D features."""

    @property
    @abc.abstractmethod
    def shape(self) -> torch.Size:
        """(..., D)."""

    @abc.abstractmethod
    def expand(self, batch: torch.Size) -> "Covariance":
        """Returns the covariances with this batch shape, without copying."""

    @abc.abstractmethod
    def log_det(self) -> Tensor:
        """Returns log |S|, (...)."""

    @abc.abstractmethod
    def quadratic(self, x: Tensor) -> Tensor:
        """Returns x^T S^{-1} x, (...), for x (..., D) that broadcasts against the batch."""

    @abc.abstractmethod
    def rsample(self, shape: torch.Size) -> Tensor:
        """Returns samples of N(0, S) of this full shape (*sample, ..., D), differentiable in the covariance's parameters."""

    @abc.abstractmethod
    def dense(self) -> Tensor:
        """Returns S, (..., D, D)."""

    @abc.abstractmethod
    def variance(self) -> Tensor:
        """Returns the diagonal of S, (..., D)."""

    @abc.abstractmethod
    def index_components(self, k: Tensor) -> "Covariance":
        """Returns the covariances of a batch (..., K) at the indices k (*sample, ...)."""

    @abc.abstractmethod
    def scaled(self, a: Tensor) -> "Covariance":
        """Returns the covariance of a * x for factors a (..., D) > 0."""

    @abc.abstractmethod
    def block(self, features: slice) -> "Covariance":
        """Returns the covariance of a slice of the features."""

    @abc.abstractmethod
    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "Covariance"]:
        """Returns A x (..., D - c) and the Schur complement C, for a centered context x (..., c)."""


@dataclass(frozen=True)
class Dense(Covariance):
    """S = L L^T.

    Attributes:
        L: Lower triangular with a positive diagonal, (..., D, D).

    Example:
        >>> Dense.of(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).L
        tensor([[2., 0.],
                [1., 1.]])
    """

    L: Tensor

    @classmethod
    def of(cls, S: Tensor) -> "Dense":
        """Returns the factor of a symmetric S, computed in float64 with `vergence.utils.linalg.covariance_cholesky`.

        Raises:
            ValueError: S is not symmetric, not finite or not positive semidefinite.
        """
        linalg.require_symmetric(S)
        return cls(linalg.covariance_cholesky(S.double())[0].to(S.dtype))

    @property
    def shape(self) -> torch.Size:
        return self.L.shape[:-1]

    def expand(self, batch: torch.Size) -> "Dense":
        return Dense(self.L.expand(*batch, *self.L.shape[-2:]))

    def log_det(self) -> Tensor:
        return 2 * self.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        return _solve(self.L, x).square().sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        return _apply(self.L, _standard_normal(shape, self.L.dtype, self.L.device))

    def dense(self) -> Tensor:
        return self.L @ self.L.mT

    def variance(self) -> Tensor:
        return self.L.square().sum(-1)

    def index_components(self, k: Tensor) -> "Dense":
        return Dense(index_components(self.L, k, 2))

    def scaled(self, a: Tensor) -> "Dense":
        return Dense(a[..., None] * self.L)

    def block(self, features: slice) -> "Dense":
        rows = self.L[..., features, :]
        start, _, step = features.indices(self.L.shape[-1])
        if start == 0 and step == 1:
            return Dense(rows[..., features])  # the leading block of a factor is the factor of the leading block
        rows = rows.double()
        return Dense(linalg.covariance_cholesky(rows @ rows.mT)[0].to(self.L.dtype))

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "Dense"]:
        shift = _apply(self.L[..., c:, :c], _solve(self.L[..., :c, :c], x))
        return shift, Dense(self.L[..., c:, c:])  # the trailing block of a factor is the factor of the Schur complement


def index_components(x: Tensor, k: Tensor, event: int) -> Tensor:
    """Returns x[..., k, (event)] for x (..., K, (event)) and indices k (*sample, ...); ``event`` is the number of last axes."""
    shape = x.shape[x.ndim - event :]
    index = k.reshape(*k.shape, *(1,) * (event + 1)).expand(*k.shape, 1, *shape)
    chosen: Tensor = x.expand(*k.shape, *x.shape[x.ndim - event - 1 :]).gather(k.ndim, index)
    return chosen.squeeze(k.ndim)


def _solve(L: Tensor, x: Tensor) -> Tensor:
    """Returns L^{-1} x for vectors x (*sample, *batch, D) and factors L (*batch, D, D), with one solve per factor."""
    L, columns, shape = _aligned(L, x)
    solved: Tensor = torch.linalg.solve_triangular(L, columns, upper=False)
    return solved.movedim(-1, 0).reshape(*shape, L.shape[-1])


def _apply(A: Tensor, x: Tensor) -> Tensor:
    """Returns A x for vectors x (*sample, *batch, D) and matrices A (*batch, E, D), with one product per matrix."""
    A, columns, shape = _aligned(A, x)
    return (A @ columns).movedim(-1, 0).reshape(*shape, A.shape[-2])


def _solve_both(R: Tensor, x: Tensor) -> Tensor:
    """Returns (R R^T)^{-1} x for vectors x (*sample, *batch, r) and factors R (*batch, r, r)."""
    R, columns, shape = _aligned(R, x)
    return torch.cholesky_solve(columns, R).movedim(-1, 0).reshape(*shape, R.shape[-1])


def _capacitance(U: Tensor, V: Tensor) -> Tensor:
    """Returns R, R R^T = I + U^T V for V = B^{-1} U, both (..., D, r); in float64, where float32 would lose the I."""
    eye = torch.eye(U.shape[-1], dtype=torch.float64, device=U.device)
    R: Tensor = torch.linalg.cholesky_ex(eye + U.double().mT @ V.double())[0]
    return R.to(U.dtype)


def _aligned(A: Tensor, x: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Returns matrices (*batch, E, D), vectors as columns (*batch, D, M), and the vectors' batch shape (*sample, *batch)."""
    shape = torch.Size(np.broadcast_shapes(x.shape[:-1], A.shape[:-2]))
    batch = shape[len(shape) - A.ndim + 2 :]
    columns = x.expand(*shape, x.shape[-1]).reshape(-1, *batch, x.shape[-1]).movedim(0, -1)
    return A.expand(*batch, *A.shape[-2:]), columns, shape


@dataclass(frozen=True)
class Diagonal(Covariance):
    """S = diag d.

    Attributes:
        d: Variances (..., D), > 0.
    """

    d: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.d.shape

    def expand(self, batch: torch.Size) -> "Diagonal":
        return Diagonal(self.d.expand(*batch, self.d.shape[-1]))

    def log_det(self) -> Tensor:
        return self.d.log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        return (x.square() / self.d).sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        return self.d.sqrt() * _standard_normal(shape, self.d.dtype, self.d.device)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.d)

    def variance(self) -> Tensor:
        return self.d

    def index_components(self, k: Tensor) -> "Diagonal":
        return Diagonal(index_components(self.d, k, 1))

    def scaled(self, a: Tensor) -> "Diagonal":
        return Diagonal(a.square() * self.d)

    def block(self, features: slice) -> "Diagonal":
        return Diagonal(self.d[..., features])

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "Diagonal"]:
        rest = self.block(slice(c, None))
        return x.new_zeros(*x.shape[:-1], rest.shape[-1]), rest  # independent features say nothing about each other


@dataclass(frozen=True)
class LowRank(Covariance):
    r"""S = diag d + U U^T, in O(D r^2) instead of O(D^3).

    With K = I_r + U^T diag(d)^{-1} U = R R^T and w = K^{-1} U^T (x / d), the posterior mean of the shared directions,

        log |S| = sum log d + log |K|,   x^T S^{-1} x = (x - U w)^T (x - U w) / d + |w|^2

    The quadratic form is a minimum over w, so that rounding of w changes it in second order only; the usual difference
    x^T x / d - |R^{-1} U^T (x / d)|^2 cancels. The Schur complement diag d_t + U_t K_c^{-1} U_t^T of a context has low rank too.

    Attributes:
        d: (..., D), > 0.
        U: (..., D, r).
    """

    d: Tensor
    U: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.d.shape

    def expand(self, batch: torch.Size) -> "LowRank":
        return LowRank(self.d.expand(*batch, self.d.shape[-1]), self.U.expand(*batch, *self.U.shape[-2:]))

    def _capacitance(self) -> Tensor:
        """Returns R."""
        return _capacitance(self.U, self.U / self.d[..., None])

    def log_det(self) -> Tensor:
        return self.d.log().sum(-1) + 2 * self._capacitance().diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        w = _solve_both(self._capacitance(), _apply(self.U.mT, x / self.d))
        return ((x - _apply(self.U, w)).square() / self.d).sum(-1) + w.square().sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        own = self.d.sqrt() * _standard_normal(shape, self.d.dtype, self.d.device)
        shared = _standard_normal(torch.Size((*shape[:-1], self.U.shape[-1])), self.d.dtype, self.d.device)
        return own + _apply(self.U, shared)

    def dense(self) -> Tensor:
        return torch.diag_embed(self.d) + self.U @ self.U.mT

    def variance(self) -> Tensor:
        return self.d + self.U.square().sum(-1)

    def index_components(self, k: Tensor) -> "LowRank":
        return LowRank(index_components(self.d, k, 1), index_components(self.U, k, 2))

    def scaled(self, a: Tensor) -> "LowRank":
        return LowRank(a.square() * self.d, a[..., None] * self.U)

    def block(self, features: slice) -> "LowRank":
        return LowRank(self.d[..., features], self.U[..., features, :])

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "LowRank"]:
        context, rest = self.block(slice(0, c)), self.block(slice(c, None))
        R = context._capacitance()
        projected = _apply(context.U.mT, x / context.d)
        W = torch.linalg.solve_triangular(R, rest.U.mT, upper=False).mT  # U_t R^{-T}: W W^T = U_t K_c^{-1} U_t^T
        return _apply(W, _solve(R, projected)), LowRank(rest.d, W)


@dataclass(frozen=True)
class PairedLowRank(Covariance):
    r"""S = [[diag p_a, diag q], [diag q, diag p_b]] + U U^T over pairs [z_a; z_b] of H features each, D = 2 H.

    Two views of one item agree feature by feature, which a diagonal plus low rank cannot express. With B the first part,
    K = I_r + U^T B^{-1} U = R R^T and w = K^{-1} U^T B^{-1} x, still in O(D r^2):

        log |S| = log |B| + log |K|,   x^T S^{-1} x = (x - U w)^T B^{-1} (x - U w) + |w|^2

    The block of a view and its Schur complement are diagonal plus low rank.

    Attributes:
        pa: (..., H), > 0.
        pb: (..., H), > 0.
        q: (..., H), q^2 < pa pb.
        U: (..., D, r).
    """

    pa: Tensor
    pb: Tensor
    q: Tensor
    U: Tensor

    @classmethod
    def of_sums(cls, d: Tensor, U: Tensor) -> "PairedLowRank":
        """Returns the covariance of pairs whose [(a + b), (a - b)] / sqrt(2) has diag d + U U^T: d (..., D), U (..., D, r)."""
        plus, minus = d.chunk(2, -1)
        p, q = 0.5 * (plus + minus), 0.5 * (plus - minus)
        return cls(p, p, q, torch.cat(_rotated_halves(*U.chunk(2, -2)), -2))

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.pa.shape[:-1], 2 * self.pa.shape[-1]))

    def expand(self, batch: torch.Size) -> "PairedLowRank":
        pa, pb, q = (part.expand(*batch, part.shape[-1]) for part in (self.pa, self.pb, self.q))
        return PairedLowRank(pa, pb, q, self.U.expand(*batch, *self.U.shape[-2:]))

    def _solved(self, x: Tensor) -> Tensor:
        """Returns B^{-1} x for vectors (..., D)."""
        a, b = x.chunk(2, -1)
        det = self.pa * self.pb - self.q.square()
        return torch.cat([(self.pb * a - self.q * b) / det, (self.pa * b - self.q * a) / det], -1)

    def _scaled_factor(self) -> tuple[Tensor, Tensor]:
        """Returns B^{-1} U and R."""
        V = self._solved_columns().mT
        return V, _capacitance(self.U, V)

    def _solved_columns(self) -> Tensor:
        one = PairedLowRank(self.pa[..., None, :], self.pb[..., None, :], self.q[..., None, :], self.U[..., None, :, :])
        return one._solved(self.U.mT)

    def log_det(self) -> Tensor:
        R = self._scaled_factor()[1]
        return (self.pa * self.pb - self.q.square()).log().sum(-1) + 2 * R.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        V, R = self._scaled_factor()
        w = _solve_both(R, _apply(V.mT, x))
        a, b = (x - _apply(self.U, w)).chunk(2, -1)
        slope = self.q / self.pa
        own = a.square() / self.pa + (b - slope * a).square() / (self.pb - slope * self.q)  # (a, b)^T B^{-1} (a, b)
        return own.sum(-1) + w.square().sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        first, second = _standard_normal(shape, self.q.dtype, self.q.device).chunk(2, -1)
        slope = self.q / self.pa
        a = self.pa.sqrt() * first
        own = torch.cat([a, slope * a + (self.pb - slope * self.q).sqrt() * second], -1)
        shared = _standard_normal(torch.Size((*shape[:-1], self.U.shape[-1])), self.q.dtype, self.q.device)
        return own + _apply(self.U, shared)

    def dense(self) -> Tensor:
        pa, pb, q = (torch.diag_embed(part) for part in (self.pa, self.pb, self.q))
        return torch.cat([torch.cat([pa, q], -1), torch.cat([q, pb], -1)], -2) + self.U @ self.U.mT

    def variance(self) -> Tensor:
        return torch.cat([self.pa, self.pb], -1) + self.U.square().sum(-1)

    def index_components(self, k: Tensor) -> "PairedLowRank":
        pa, pb, q = (index_components(part, k, 1) for part in (self.pa, self.pb, self.q))
        return PairedLowRank(pa, pb, q, index_components(self.U, k, 2))

    def scaled(self, a: Tensor) -> "PairedLowRank":
        first, second = a.chunk(2, -1)
        pa, pb, q = first.square() * self.pa, second.square() * self.pb, first * second * self.q
        return PairedLowRank(pa, pb, q, a[..., None] * self.U)

    def block(self, features: slice) -> LowRank:
        """Returns the covariance of one of the two views.

        Raises:
            ValueError: The slice is not one of the two views.
        """
        half = self.pa.shape[-1]
        start, stop, step = features.indices(2 * half)
        if (start, stop, step) not in ((0, half, 1), (half, 2 * half, 1)):
            raise ValueError(
                f"expected one view of {half} features of pairs, found features {start} to {stop}: pass a whole view"
            )
        return LowRank(self.pb if start else self.pa, self.U[..., features, :])

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, LowRank]:
        half = self.pa.shape[-1]
        if c != half:
            raise ValueError(f"expected the first view of {half} features as the context of pairs, found {c} features")
        first, slope = LowRank(self.pa, self.U[..., :half, :]), self.q / self.pa
        R = first._capacitance()
        rest = self.U[..., half:, :] - slope[..., None] * first.U  # of the shared directions, what the slope leaves
        W = torch.linalg.solve_triangular(R, rest.mT, upper=False).mT
        shared = _solve(R, _apply(first.U.mT, x / self.pa))
        return slope * x + _apply(W, shared), LowRank(self.pb - slope * self.q, W)


def _rotated_halves(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (a + b) / sqrt(2) and (a - b) / sqrt(2)."""
    return (a + b) * 0.5**0.5, (a - b) * 0.5**0.5


def rotated(z: Tensor) -> Tensor:
    """Returns pairs [a; b] (..., D) as [(a + b); (a - b)] / sqrt(2); this rotation is its own inverse.

    Example:
        >>> rotated(rotated(torch.tensor([1.0, 2.0, 3.0, 5.0]))).round(decimals=4).tolist()
        [1.0, 2.0, 3.0, 5.0]
    """
    return torch.cat(_rotated_halves(*z.chunk(2, -1)), -1)
