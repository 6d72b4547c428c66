r"""A second layer: dictionary, thresholds and pooling again, on the pooled maps of the first.

The responses of the first layer's first K' atoms are pooled in 6 x 6 windows, which gives maps of 2 K' channels. For the patch p
of F = 8 K' numbers in every 2 x 2 of these windows,

    n(p) = (p - mean p) / |p - mean p|
    q = Z^T (n(p) - m),  Z = U diag((w + 0.1 mean w)^{-1/2})     the d largest of the eigenvalues w of the covariance of n(p)
    r_k = d_k . q / c                                            K unit vectors (spherical k-means); c: deviation of all d_k . q
    f = thresholded and pooled r, 8 K features                   see `vergence.encoders.pooling`

A patch of neighboring windows holds which edges lie beside each other, as in corners and outlines. What each part adds is
measured in ``docs/patches.md``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.encoders.config import GRID, POOL
from vergence.encoders.config import SIZE_ABOVE as SIZE
from vergence.encoders.dictionary import PART, distinct, mark, spherical_k_means
from vergence.encoders.pooling import cells, pooled

__all__ = ["SecondLayer"]

DIMENSIONS = 64  # d, at most
REGULARIZATION = 0.1  # of the eigenvalues, in units of their mean
TOGETHER = 64  # images at a time


class SecondLayer(nn.Module):
    """Maps (B, 2, K', 36) of the first layer -> features (B, 8 K); random until `learn`.

    Args:
        below: Atoms K' of the first layer.
        atoms: Atoms K.
        threshold: Soft threshold, in deviations of the responses.

    Example:
        >>> SecondLayer(3, 5, 0.25)(torch.rand(4, 2, 3, 36)).shape
        torch.Size([4, 40])
    """

    def __init__(self, below: int, atoms: int, threshold: float) -> None:
        super().__init__()
        width = 2 * below * SIZE**2
        d = min(DIMENSIONS, width)
        self.threshold = threshold
        self.basis = nn.Parameter(torch.randn(width, d), requires_grad=False)  # Z
        self.center = nn.Parameter(torch.zeros(d), requires_grad=False)  # Z^T m
        self.atoms = nn.Parameter(F.normalize(torch.randn(atoms, d), dim=1), requires_grad=False)  # d_k / c

    def patches(self, maps: Tensor) -> Tensor:
        """Returns n(p) of the patches of maps (B, 2, K', 36), (B, 25, F)."""
        windows = maps.unflatten(3, (GRID, GRID)).unfold(3, SIZE, 1).unfold(4, SIZE, 1)  # (B, 2, K', 5, 5, 2, 2)
        p = windows.permute(0, 3, 4, 1, 2, 5, 6).flatten(3).flatten(1, 2)
        return F.normalize(p - p.mean(2, keepdim=True), dim=2)

    def learn(self, parts: Sequence[Tensor], generator: torch.Generator) -> None:
        """Sets Z, m and the atoms from patches n(p), in parts (n, F) of any type; atoms beyond the distinct patches are zero.

        The sums are those of the CPU, which are the same in every process.

        Args:
            parts: Parts with at least two patches together, on the CPU.
            generator: Orders the patches, the first of which are the atoms that the iterations start from.
        """
        own = self.basis.cpu()
        n, d = sum(len(p) for p in parts), own.shape[1]
        m = torch.stack([p.to(own).sum(0) for p in parts]).sum(0) / n
        S = own.new_zeros(len(own), len(own))
        for p in parts:
            c = p.to(own) - m
            S.addmm_(c.T, c)
        w, U = torch.linalg.eigh(S / (n - 1))
        w, U = w[-d:].clamp(min=0), U[:, -d:]
        Z = U * (w + REGULARIZATION * w.mean() + torch.finfo(own.dtype).eps).rsqrt()
        order = torch.randperm(n, generator=generator)
        q = torch.cat([(p.to(own) - m) @ Z for p in parts])[order]
        first = distinct(torch.cat([mark(p) for p in parts])[order])[: len(self.atoms)]
        D = spherical_k_means(q, F.normalize(q[first], dim=1))
        self.basis.copy_(Z)
        self.center.copy_(m @ Z)
        self.atoms.zero_()
        self.atoms[: len(D)] = (D / _deviation(q, D)).to(self.atoms)

    def forward(self, maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns f (B, 8 K) of maps, in their type.

        Args:
            maps: Maps (B, 2, K', 36) of the first layer.
            dtype: Type of the products; that of the maps by default.
        """
        side, dtype = GRID - SIZE + 1, maps.dtype if dtype is None else dtype
        A = cells(side, side, POOL).T.to(maps).to(dtype)
        Z, center, atoms = (part.to(dtype) for part in (self.basis, self.center, self.atoms.T))
        out = []
        for part in maps.split(TOGETHER):
            q = torch.addmm(-center, self.patches(part).to(dtype).flatten(0, 1), Z)
            s = F.softshrink(q @ atoms, self.threshold).unflatten(0, (len(part), side**2))
            out.append(pooled(s, A, maps.dtype).flatten(1))
        return torch.cat(out)


def _deviation(q: Tensor, D: Tensor) -> Tensor:
    """Returns the standard deviation of all responses D q of vectors q (n, d), or 1 where there is none."""
    total, square = (torch.zeros((), dtype=torch.float64) for _ in range(2))
    for part in q.split(PART):
        r = part @ D.T
        total += r.sum(dtype=torch.float64)
        square += r.square().sum(dtype=torch.float64)
    n = len(q) * len(D)
    variance = (square / n - (total / n).square()).to(q)
    return variance.clamp(min=0).sqrt() if variance > 0 else torch.ones_like(variance)
