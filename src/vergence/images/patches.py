r"""Features of an image at every position, without a network: what texture and color each cell of a grid has.

    q = Z (p - m)                                      Z the 32 leading directions of patches p of 6 x 6 pixels, whitened
    d_k = |q - a_k|,   k = 1..K                        to K atoms (k-means of q)
    c = [max(mean d - d_k, 0) for all k; log(|q|^2 / 32); log min d]

c is averaged over the patches of each cell, at full and at half size; so are the color, and the logarithms of edges and of noise;
then all over the 3 x 3 cells around it. The triangle code
max(mean d - d_k, 0) is that of A. Coates, A. Y. Ng, H. Lee, "An Analysis of Single-Layer Networks in Unsupervised Feature
Learning", AISTATS 2011; what no atom explains shows in the last two numbers.

Shapes: C = 3 channels; an image (C, H, W) in [0, 1]; cells (D, r, c), D = 2 (K + 2) + 5.
"""

import math
from collections.abc import Sequence

import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import luma
from vergence.utils.checks import expect

PATCH, DIRECTIONS, ATOMS = 6, 64, 64
CELL, CELLS = 4, 32  # least side of a cell in pixels; cells along the shorter side, at most
LARGE = 128  # pixels of the shorter side, from which on every second patch of each row and column is read
PATCHES, PER_IMAGE = 100_000, 400  # that the dictionary is learned from: at most, and of one image
TOGETHER = 4096  # patches whose codes are computed at a time, so that they stay in the processor's cache
LEVEL = 1 / 512  # half a step of bytes, added before logarithms
FLOOR = 1e-6  # of variances, relative to the largest, and of squared lengths
SMALLEST = 2 * PATCH  # pixels per side; smaller images are continued by their borders
DECIMALS = 5  # of the dictionary's numbers, so that the order of sums does not matter


def grid_of(height: int, width: int) -> tuple[int, int]:
    """Returns the rows and columns of cells of an image."""
    side = max(CELL, math.ceil(min(height, width) / CELLS))
    return max(1, height // side), max(1, width // side)


class PatchCells:
    """Maps images to features of cells, by a dictionary of patches of ``images`` (3, H, W) in [0, 1] of any sizes."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        expect(len(images), "images to learn what is normal from", "none", "give others")
        each = min(PER_IMAGE, PATCHES // len(images) + 1)
        p = torch.cat([_sampled(_large_enough(x), each) for x in images]).double()
        m = p.mean(0)
        w, U = torch.linalg.eigh((p - m).T @ (p - m) / len(p))
        w, U = w[-DIRECTIONS:], U[:, -DIRECTIONS:]
        Z = (U * w.clamp(min=FLOOR * float(w[-1]) + 1e-12).rsqrt()).T
        q = ((p - m) @ Z.T).float()
        k = min(ATOMS, len(torch.unique(q.round(decimals=DECIMALS), dim=0)))
        fitted = MiniBatchKMeans(k, n_init=1, max_iter=20, batch_size=4096, random_state=0).fit(q.numpy())
        self.atoms = torch.from_numpy(fitted.cluster_centers_).float()  # (K, 32)
        self.filters = Z.float().view(-1, 3, PATCH, PATCH)
        self.bias = -(Z @ m).float()

    def __call__(self, x: Tensor) -> Tensor:
        """Returns features (D, r, c) of an image; one channel stands for three equal ones."""
        rows, columns = grid_of(*x.shape[1:])
        x = _large_enough(x.float())[None]
        stride = 2 if min(x.shape[2:]) >= LARGE else 1
        half = _large_enough(F.avg_pool2d(x, 2, ceil_mode=True)[0])[None]
        maps = [F.adaptive_avg_pool2d(self._code(part, step), (rows, columns)) for part, step in ((x, stride), (half, 1))]
        maps.append(F.adaptive_avg_pool2d(_plain(x), (rows, columns)))
        return around(torch.cat(maps, 1))[0]

    def _code(self, x: Tensor, stride: int) -> Tensor:
        """Returns c of all patches of an image, (1, K + 2, h, w)."""
        q = F.conv2d(x, self.filters if x.shape[1] == 3 else self.filters.sum(1, keepdim=True), self.bias, stride=stride)
        shape = q.shape[2:]
        parts, length = [], self.atoms.square().sum(1)[:, None]
        for part in q[0].flatten(1).split(TOGETHER, 1):  # (64, L)
            square = part.square().sum(0)
            d = torch.addmm(square[None] + length, self.atoms, part, alpha=-2).clamp_(min=0).sqrt_()
            numbers = torch.stack([square / len(part), d.amin(0)]).add_(FLOOR).log_()
            parts.append(torch.cat([(d.mean(0) - d).clamp_(min=0), numbers]))
        return torch.cat(parts, 1).view(1, -1, *shape)


def around(maps: Tensor) -> Tensor:
    """Returns the mean of the 3 x 3 cells around each cell of maps (B, D, r, c); at a border, of the nearest whole 3 x 3.

    All cells are then means of as many others, so that those at borders vary no more.

    Example:
        >>> around(torch.arange(16.0).view(1, 1, 4, 4))[0, 0, 0].tolist()
        [5.0, 5.0, 6.0, 6.0]
    """
    if min(maps.shape[2:]) < 3:
        return F.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False)
    return F.pad(F.avg_pool2d(maps, 3, stride=1), (1, 1, 1, 1), mode="replicate")


def _plain(x: Tensor) -> Tensor:
    """Returns color, and the logarithms of edges and of noise, at each pixel of an image (1, 3, H, W)."""
    light = F.pad(luma(x), (1, 1, 1, 1), mode="replicate")
    second = [-1.0, 2.0, -1.0]
    edge = light.new_tensor([[0, -1, 0], [-1, 4, -1], [0, -1, 0]])
    noise = torch.outer(light.new_tensor(second), light.new_tensor(second))
    found = F.conv2d(light, torch.stack([edge, noise])[:, None]).abs()
    small = F.avg_pool2d(found, 3, stride=1, padding=1, count_include_pad=False)
    return torch.cat([x.expand(-1, 3, -1, -1), (small + LEVEL).log()], 1)


def _large_enough(x: Tensor) -> Tensor:
    """Returns an image (3, H, W) with sides of at least 12 pixels, continued by its borders."""
    height, width = (max(0, SMALLEST - side) for side in x.shape[1:])
    return x if not (height or width) else F.pad(x[None], (0, width, 0, height), mode="replicate")[0]


def _sampled(x: Tensor, most: int) -> Tensor:
    """Returns about ``most`` patches (n, F) of an image at evenly spaced positions."""
    p = x.unfold(1, PATCH, 1).unfold(2, PATCH, 1).permute(1, 2, 0, 3, 4)
    step = max(1, math.isqrt(p.shape[0] * p.shape[1] // most))
    return p[::step, ::step].flatten(2).flatten(0, 1)
