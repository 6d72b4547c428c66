r"""A dictionary of whitened patches of images: normalization, whitening, spherical k-means, and samples of patches of a stream.

A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011. For the
patch p of F = C P P numbers at every position of an image in [0, 1],

    n(p) = (p - mean p) / sqrt(var p + eps)                      contrast normalization, eps = 10 / 255^2
    q = Z (n(p) - m),  Z = U diag((w + r)^{-1/2}) U^T            whitening with mean m and covariance U diag(w) U^T of n(p)
    r_k = d_k . q = v_k . n(p) - v_k . m,  V = D Z               responses of K unit vectors (spherical k-means)
"""

import hashlib
import math
import typing

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect

__all__ = ["learn_dictionary"]

EPS = 10 / 255**2
WHITENING = 0.1  # r
ITERATIONS = 10
N_PATCHES = 100_000
TOGETHER = 8  # images whose patches are sampled at a time
PART = 2_000  # vectors at a time


def normalized_patches(x: Tensor, size: int, stride: int = 1) -> Tensor:
    """Returns n(p) of all patches of images (B, C, H, W) in [0, 1], (B, L, F) with the L positions by rows."""
    windows = x.unfold(2, size, stride).unfold(3, size, stride).permute(0, 2, 3, 1, 4, 5)  # (B, rows, columns, C, P, P)
    p = windows.flatten(3).flatten(1, 2)
    p = p - p.mean(2, keepdim=True)
    return p.mul_((p.square().mean(2, keepdim=True) + EPS).rsqrt_())


def whitening(p: Tensor, regularization: float = WHITENING) -> tuple[Tensor, Tensor]:
    """Returns the mean m (F,) and Z (F, F) of normalized patches (n, F)."""
    m = p.mean(0)
    w, U = torch.linalg.eigh(torch.cov(p.T))
    return m, (U * (w.clamp(min=0) + regularization).rsqrt()) @ U.T


def spherical_k_means(q: Tensor, D: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Returns unit vectors (K, F) after iterations of d_k <- normalized sum of the rows of ``q`` (n, F) nearest to d_k.

    No iteration lowers mean_i max_k d_k . q_i. An atom without rows stays.
    """
    for _ in range(iterations):
        nearest = torch.cat([(part @ D.T).argmax(1) for part in q.split(PART)])
        total = torch.zeros_like(D).index_add_(0, nearest, q)
        norm = total.norm(dim=1, keepdim=True)
        D = torch.where(norm > 0, total / norm.clamp(min=torch.finfo(D.dtype).tiny), D)
    return D


class PatchSample:
    """A uniform sample of at most ``n`` normalized patches of a stream of images, whatever the sizes of its batches."""

    def __init__(self, n: int, size: int, stride: int = 1, seed: int = 0) -> None:
        self.n, self.size, self.stride, self.seed = n, size, stride, seed
        self.images = 0
        self.keys = torch.zeros(0, dtype=torch.float64)
        self.patches: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Adds images (B, C, H, W) in [0, 1]; the patches with the smallest random keys are kept."""
        positions = math.prod((n - self.size) // self.stride + 1 for n in x.shape[2:])
        keys = torch.stack([self._keys(self.images + i, positions) for i in range(len(x))])
        self.images += len(x)
        last = self.keys[-1] if len(self.keys) == self.n else torch.inf
        new = keys < last
        parts = zip(x.split(TOGETHER), new.split(TOGETHER), strict=True)
        rows = torch.cat([normalized_patches(part, self.size, self.stride)[chosen] for part, chosen in parts])
        rows = rows if self.patches is None else torch.cat([self.patches, rows])
        self.keys, order = torch.cat([self.keys, keys[new]]).sort()
        self.keys, self.patches = self.keys[: self.n], rows[order[: self.n]]

    def sampled(self) -> Tensor:
        """Returns the patches (n, F), in random order; a ValueError says that there was no image."""
        expect(self.patches is not None, "images to learn a dictionary of patches from", "none that can be read", "give others")
        return typing.cast(Tensor, self.patches)

    def _keys(self, image: int, positions: int) -> Tensor:
        digest = hashlib.blake2b(f"{self.seed}/{image}".encode(), digest_size=4).digest()  # torch uses 32 bits of a seed
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        return torch.rand(positions, generator=generator, dtype=torch.float64)


def learn_dictionary(p: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    """Returns the filters V = D Z (K, F) and the bias V m (K,) of normalized patches (n, F) in random order."""
    m, Z = whitening(p)
    q = (p - m) @ Z
    first = distinct(mark(p))[:atoms]
    enough, expected = len(first) >= atoms and len(p) > 1, f"at least {atoms} distinct patches for {atoms} atoms"
    expect(enough, expected, f"{len(first)}", "use fewer atoms, or images that vary")
    D = spherical_k_means(q, F.normalize(q[first], dim=1))
    V = D @ Z
    return V, V @ m


def mark(p: Tensor) -> Tensor:
    """Returns a number in float64 for each of vectors (n, F), (n,): equal ones have the same one, up to rounding."""
    weights = torch.linspace(1, 2, p.shape[1], dtype=torch.float64, device=p.device).sqrt().cos()
    return torch.cat([part.double() @ weights for part in p.split(PART)])


def distinct(marks: Tensor) -> Tensor:
    """Returns the index of the first vector of each value, ascending, from the vectors' marks (n,)."""
    value, order = marks.sort(stable=True)
    new = torch.cat([value.new_ones(1, dtype=torch.bool), value.diff() > 1e-9])
    return order[new].sort().values
