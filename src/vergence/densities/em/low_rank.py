r"""Components of covariance diag d + U U^T in EM: mixtures of factor analyzers.

Shapes: D features, R mixtures of K components each, F = R K, r the rank, B items in a block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.densities.em.structures import Axes, Mixture, Structure, Sums, squares, unflat


@dataclass
class _Factors(Axes):
    V: Tensor  # (F, D, r): |V^T (x - mu)|^2 is subtracted from the diagonal's quadratic form
    beta: Tensor  # (F, D, r), the transpose of U^T S^{-1}
    U: Tensor  # (F, D, r)
    log_det: Tensor  # (F,)


class LowRank(Structure):
    """S = diag d + U U^T: mixtures of factor analyzers, with one step of their own EM for d and U in every M step.

    With S the moments around the new means, beta = U^T (diag d + U U^T)^{-1} and A = S beta^T:
    U <- A (I - beta U + beta A)^{-1},  d <- diag(S) - sum over columns of U A. Cost O(N K D r), never O(D^2).

    Args:
        rank: r.
    """

    shared, around_means, initial_passes = False, False, 4

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def unit(self, known: Mixture) -> Mixture:
        """Returns d = 1 and orthonormal U: random directions first, later those of the previous pass."""
        if known.covariances.ndim == 4:
            U = known.covariances[..., 1:]
        else:
            g = torch.Generator().manual_seed(0)
            U = torch.randn(*known.means.shape, self.rank, generator=g, dtype=torch.float64).to(known.means)
        Q: Tensor = torch.linalg.qr(U)[0]
        return Mixture(known.weights, known.means, torch.cat([torch.ones_like(Q[..., :1]), Q], -1))

    def _initial(self, prepared: _Factors, sums: Sums, N: Tensor, means: Tensor, reg: float) -> Tensor:
        """Returns the largest directions of one step of subspace iteration: beta is Q / 2 here, and S Q = V Lambda W."""
        diagonal, A = self._moments(prepared, sums, N, means)
        V, values, _ = torch.linalg.svd(2 * A, full_matrices=False)
        rest = (diagonal.sum(-1) - values.sum(-1)).clamp(min=0) / max(1, diagonal.shape[-1] - values.shape[-1])
        U = V * torch.maximum(values - rest[:, None], 1e-3 * values)[:, None].sqrt()
        d = torch.maximum(diagonal - U.square().sum(-1), 0.05 * diagonal).clamp(min=reg)
        return unflat(torch.cat([d[..., None], U], -1), means)

    def prepare(self, mixture: Mixture, dtype: torch.dtype) -> _Factors:
        d, U = mixture.covariances[..., 0].flatten(0, 1), mixture.covariances[..., 1:].flatten(0, 1)
        scaled = U / d[..., None]
        eye = torch.eye(U.shape[-1], dtype=d.dtype, device=d.device)
        L: Tensor = torch.linalg.cholesky(eye + U.mT @ scaled)
        V = torch.linalg.solve_triangular(L, scaled.mT, upper=False).mT
        beta = torch.linalg.solve_triangular(L.mT, V.mT, upper=True).mT
        log_det = d.log().sum(-1) + 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        parts = (mixture.means.flatten(0, 1), 1 / d, V, beta, U, log_det)
        return _Factors(*(part.to(dtype) for part in parts))

    def log_density(self, prepared: _Factors, x: Tensor) -> Tensor:
        projected = x @ prepared.V - (prepared.mu[:, None] @ prepared.V)
        return -0.5 * ((squares(prepared, x) - projected.square().sum(-1)).clamp(min=0) + prepared.log_det[:, None])

    def second(self, prepared: _Factors, x: Tensor, r: Tensor) -> Tensor:
        shared = x.mT @ ((x @ prepared.beta) * r[..., None])
        return torch.cat([(r @ x.square())[..., None], shared], -1)

    def zeros(self, prepared: _Factors) -> Tensor:
        return torch.zeros(*prepared.U.shape[:2], prepared.U.shape[2] + 1, dtype=torch.float64, device=prepared.U.device)

    def estimate(self, prepared: _Factors, sums: Sums, N: Tensor, means: Tensor, reg: float, *, initial: bool = False) -> Tensor:
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

    def _moments(self, prepared: _Factors, sums: Sums, N: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Returns diag(S) (F, D) and A = S beta^T (F, D, r)."""
        mu, moments = means.flatten(0, 1), sums.second / N[:, None, None]
        return moments[..., 0] - mu.square(), moments[..., 1:] - mu[..., None] * (mu[:, None] @ prepared.beta.double())

    def dense(self, mixture: Mixture) -> Tensor:
        d, U = mixture.covariances[..., 0], mixture.covariances[..., 1:]
        return torch.diag_embed(d) + U @ U.mT

    def cells(self, F: int, D: int) -> int:
        return F * self.rank + D

    def parameters(self, K: int, D: int) -> int:
        r = min(self.rank, D)
        return K * min(D * (r + 1) - r * (r - 1) // 2, D * (D + 1) // 2)
