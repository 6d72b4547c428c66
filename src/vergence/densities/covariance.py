"""Covariances by their structure: dense, diagonal, diagonal for pairs of views, and these two plus low rank.

Each computes its log-determinant, quadratic form, samples, blocks and Schur complement at the cost of its structure. All are
batched and differentiable. Shapes: batch (...), D features, r the rank.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions.utils import _standard_normal

from vergence.utils import linalg

__all__ = ["Covariance", "Dense", "Diagonal", "LowRank", "Paired", "rotated"]

C = TypeVar("C", bound="Covariance")


class Covariance(abc.ABC):
    """A batch (...) of covariances over D features; a concrete class is a dataclass of tensors and covariances."""

    axes: ClassVar[tuple[int, ...]]  # number of axes of each field that follow the batch

    @property
    @abc.abstractmethod
    def shape(self) -> torch.Size:
        """(..., D)."""

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
    def scaled(self: C, a: Tensor) -> C:
        """Returns the covariance of a * x for factors a (..., D) > 0."""

    @abc.abstractmethod
    def block(self, features: slice) -> "Covariance":
        """Returns the covariance of a slice of the features."""

    @abc.abstractmethod
    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "Covariance"]:
        """Returns A x (..., D - c) and the Schur complement C, for a centered context x (..., c)."""

    def map(self: C, f: Callable[[Tensor, int], Tensor]) -> C:
        """Returns the covariances whose tensors are a function of these and of the number of their feature axes."""
        fields = zip(vars(self).values(), self.axes, strict=True)
        return type(self)(*(part.map(f) if isinstance(part, Covariance) else f(part, axes) for part, axes in fields))

    def expand(self: C, batch: torch.Size) -> C:
        """Returns the covariances with this batch shape, without copying."""
        return self.map(lambda x, axes: x.expand(*batch, *x.shape[x.ndim - axes :]))

    def index_components(self: C, k: Tensor) -> C:
        """Returns the covariances of a batch (..., K) at the indices k (*sample, ...)."""
        return self.map(lambda x, axes: index_components(x, k, axes))


def index_components(x: Tensor, k: Tensor, event: int) -> Tensor:
    """Returns x[..., k, (event)] for x (..., K, (event)) and indices k (*sample, ...); ``event`` is the number of last axes."""
    shape = x.shape[x.ndim - event :]
    index = k.reshape(*k.shape, *(1,) * (event + 1)).expand(*k.shape, 1, *shape)
    chosen: Tensor = x.expand(*k.shape, *x.shape[x.ndim - event - 1 :]).gather(k.ndim, index)
    return chosen.squeeze(k.ndim)


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
    axes = (2,)

    @classmethod
    def of(cls, S: Tensor) -> "Dense":
        """Returns the factor of a symmetric positive semidefinite S, computed in float64."""
        linalg.require_symmetric(S)
        return cls(linalg.covariance_cholesky(S.double())[0].to(S.dtype))

    @property
    def shape(self) -> torch.Size:
        return self.L.shape[:-1]

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


def _solve(L: Tensor, x: Tensor) -> Tensor:
    """Returns L^{-1} x for vectors x (*sample, *batch, D) and factors L (*batch, D, D), with one solve per factor."""
    L, columns, shape = _aligned(L, x)
    solved: Tensor = torch.linalg.solve_triangular(L, columns, upper=False)
    return solved.movedim(-1, 0).reshape(*shape, L.shape[-1])


def _apply(A: Tensor, x: Tensor) -> Tensor:
    """Returns A x for vectors x (*sample, *batch, D) and matrices A (*batch, E, D), with one product per matrix."""
    A, columns, shape = _aligned(A, x)
    return (A @ columns).movedim(-1, 0).reshape(*shape, A.shape[-2])


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
    axes = (1,)

    @property
    def shape(self) -> torch.Size:
        return self.d.shape

    def solve(self, x: Tensor) -> Tensor:
        """Returns S^{-1} x, (..., D)."""
        return x / self.d

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

    def scaled(self, a: Tensor) -> "Diagonal":
        return Diagonal(a.square() * self.d)

    def block(self, features: slice) -> "Diagonal":
        return Diagonal(self.d[..., features])

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "Diagonal"]:
        rest = self.block(slice(c, None))
        return x.new_zeros(*x.shape[:-1], rest.shape[-1]), rest  # independent features say nothing about each other


@dataclass(frozen=True)
class Paired(Covariance):
    """S = [[diag p_a, diag q], [diag q, diag p_b]] over pairs [z_a; z_b] of H features each, D = 2 H.

    Two views of one item agree feature by feature. The block of a view and its Schur complement are diagonal.

    Attributes:
        pa: (..., H), > 0.
        pb: (..., H), > 0.
        q: (..., H), q^2 < pa pb.
    """

    pa: Tensor
    pb: Tensor
    q: Tensor
    axes = (1, 1, 1)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.pa.shape[:-1], 2 * self.pa.shape[-1]))

    def _det(self) -> Tensor:
        return self.pa * self.pb - self.q.square()

    def solve(self, x: Tensor) -> Tensor:
        """Returns S^{-1} x, (..., D)."""
        (a, b), det = x.chunk(2, -1), self._det()
        return torch.cat([(self.pb * a - self.q * b) / det, (self.pa * b - self.q * a) / det], -1)

    def log_det(self) -> Tensor:
        return self._det().log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        (a, b), slope = x.chunk(2, -1), self.q / self.pa
        return (a.square() / self.pa + (b - slope * a).square() / (self.pb - slope * self.q)).sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        first, second = _standard_normal(shape, self.q.dtype, self.q.device).chunk(2, -1)
        slope, a = self.q / self.pa, self.pa.sqrt() * first
        return torch.cat([a, slope * a + (self.pb - slope * self.q).sqrt() * second], -1)

    def dense(self) -> Tensor:
        pa, pb, q = (torch.diag_embed(part) for part in (self.pa, self.pb, self.q))
        return torch.cat([torch.cat([pa, q], -1), torch.cat([q, pb], -1)], -2)

    def variance(self) -> Tensor:
        return torch.cat([self.pa, self.pb], -1)

    def scaled(self, a: Tensor) -> "Paired":
        first, second = a.chunk(2, -1)
        return Paired(first.square() * self.pa, second.square() * self.pb, first * second * self.q)

    def block(self, features: slice) -> Diagonal:
        half = self.pa.shape[-1]
        start, stop, step = features.indices(2 * half)
        assert step == 1 and (start, stop) in ((0, half), (half, 2 * half)), "pairs have two blocks, the views"
        return Diagonal(self.pb if start else self.pa)

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, Diagonal]:
        assert c == self.pa.shape[-1], "the context of pairs is the first view"
        slope = self.q / self.pa
        return slope * x, Diagonal(self.pb - slope * self.q)


@dataclass(frozen=True)
class LowRank(Covariance):
    r"""S = B + U U^T, in O(D r^2) instead of O(D^3).

    With K = I_r + U^T B^{-1} U = R R^T and w = K^{-1} U^T B^{-1} x, the posterior mean of the shared directions,

        log |S| = log |B| + log |K|,   x^T S^{-1} x = (x - U w)^T B^{-1} (x - U w) + |w|^2

    The quadratic form is a minimum over w, so that rounding of w changes it in second order only; the naive difference
    x^T B^{-1} x - |R^{-1} U^T B^{-1} x|^2 cancels. With the blocks of B, its A_B and its Schur complement C_B, the Schur
    complement of a context has low rank too: C = C_B + W W^T, W = (U_t - A_B U_c) R_c^{-T}.

    Attributes:
        base: B, a `Diagonal` or a `Paired`.
        U: (..., D, r).

    Example:
        >>> LowRank(Diagonal(torch.ones(2)), torch.ones(2, 1)).dense().tolist()
        [[2.0, 1.0], [1.0, 2.0]]
    """

    base: Diagonal | Paired
    U: Tensor
    axes = (1, 2)

    @classmethod
    def of_sums(cls, d: Tensor, U: Tensor) -> "LowRank":
        """Returns the covariance of pairs whose [(a + b), (a - b)] / sqrt(2) has diag d + U U^T: d (..., D), U (..., D, r)."""
        plus, minus = d.chunk(2, -1)
        p, q = 0.5 * (plus + minus), 0.5 * (plus - minus)
        return cls(Paired(p, p, q), torch.cat(_rotated_halves(*U.chunk(2, -2)), -2))

    @property
    def shape(self) -> torch.Size:
        return self.base.shape

    def _columns(self) -> Diagonal | Paired:
        """Returns B for vectors (..., r, D), the rows of U^T."""
        return self.base.map(lambda x, _: x[..., None, :])

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Returns B^{-1} U and R; by float64, since the I is lost where float32 rounds U^T B^{-1} U."""
        V: Tensor = self._columns().map(lambda x, _: x.double()).solve(self.U.mT.double()).mT
        eye = torch.eye(V.shape[-1], dtype=torch.float64, device=V.device)
        R: Tensor = torch.linalg.cholesky_ex(eye + self.U.double().mT @ V)[0]
        return V.to(self.U.dtype), R.to(self.U.dtype)

    def log_det(self) -> Tensor:
        return self.base.log_det() + 2 * self._factors()[1].diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def quadratic(self, x: Tensor) -> Tensor:
        V, R = self._factors()
        R, columns, shape = _aligned(R, _apply(V.mT, x))
        w = torch.cholesky_solve(columns, R).movedim(-1, 0).reshape(*shape, R.shape[-1])  # (R R^T)^{-1} V^T x
        return self.base.quadratic(x - _apply(self.U, w)) + w.square().sum(-1)

    def rsample(self, shape: torch.Size) -> Tensor:
        noise = self.base.rsample(shape)
        return noise + _apply(self.U, _standard_normal(torch.Size((*shape[:-1], self.U.shape[-1])), noise.dtype, noise.device))

    def dense(self) -> Tensor:
        return self.base.dense() + self.U @ self.U.mT

    def variance(self) -> Tensor:
        return self.base.variance() + self.U.square().sum(-1)

    def scaled(self, a: Tensor) -> "LowRank":
        return LowRank(self.base.scaled(a), a[..., None] * self.U)

    def block(self, features: slice) -> "LowRank":
        return LowRank(self.base.block(features), self.U[..., features, :])

    def conditional(self, c: int, x: Tensor) -> tuple[Tensor, "LowRank"]:
        context, shift_of_U = self.block(slice(0, c)), self._columns().conditional(c, self.U[..., :c, :].mT)[0].mT
        R = context._factors()[1]
        W = torch.linalg.solve_triangular(R, (self.U[..., c:, :] - shift_of_U).mT, upper=False).mT
        shift, rest = self.base.conditional(c, x)
        return shift + _apply(W, _solve(R, _apply(context.U.mT, context.base.solve(x)))), LowRank(rest, W)


def _rotated_halves(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (a + b) / sqrt(2) and (a - b) / sqrt(2)."""
    return (a + b) * 0.5**0.5, (a - b) * 0.5**0.5


def rotated(z: Tensor) -> Tensor:
    """Returns pairs [a; b] (..., D) as [(a + b); (a - b)] / sqrt(2); this rotation is its own inverse."""
    return torch.cat(_rotated_halves(*z.chunk(2, -1)), -1)
