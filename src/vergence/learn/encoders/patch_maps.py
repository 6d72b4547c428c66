r"""Image features without gradient descent: pooled responses of a dictionary, of a second layer on them, and an affine map.

f_1 = pooled responses of K whitened patches                 see `vergence.learn.encoders.dictionary`
f_2 = those of a second dictionary, of patches of windows    see `SecondLayer`
z = W [f_1; f_2] + w_0                                       set by `vergence.learn.training.closed_form`

Responses r (B, L, K) of K atoms at L positions are pooled with soft thresholds, windows that overlap, and a root:

    a = [max(r - theta, 0); max(-r - theta, 0)]                  two-sided soft threshold
    f = (weighted mean of a in each of pool x pool cells)^(1/3)  2 K pool^2 features; the cells overlap, see `cells`

With s = softshrink(r), the two parts of a are (|s| + s) / 2 and (|s| - s) / 2, so that both pooled maps follow from two products
with a matrix of the cells.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.pixels import resize, to_unit
from vergence.learn.encoders import dictionary
from vergence.learn.encoders.config import GRID, POOL, Patches, PatchSettings
from vergence.learn.encoders.config import SIZE_ABOVE as SIZE
from vergence.learn.encoders.networks import standardization
from vergence.utils.checks import refuse
from vergence.utils.devices import exporting, fast_bfloat16

__all__ = ["ROOT", "PatchEncoder", "PatchMaps", "RefinedEncoder", "patch_dictionary", "sampled_patches", "wide_features"]

ROOT = 3  # of the pooled responses
WINDOW = 0.44  # standard deviation of a cell's weights, in sides of a cell
BLOCK = 256  # atoms whose responses are kept at a time; the first block has those that the second layer reads
RESPONSES = 400_000  # numbers of such a block: those of all positions of a few images stay in a processor's cache
DIMENSIONS = 64  # d of the second layer, at most
REGULARIZATION = 0.1  # of its eigenvalues, in units of their mean
TOGETHER = 64  # images at a time in the second layer
LEAST = 1e-2  # eigenvalue that a refined encoder's component is divided by


def pooled(s: Tensor, A: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns f (B, 2, K, cells) in ``dtype``: the pooled positive parts, and the negative ones, of thresholded responses.

    They are softshrink(r), s (B, L, K), changed in place; A (cells, L) are weights of the positions, in the type of s.

    Example:
        >>> pooled(torch.tensor([[[8.0], [-1.0]]]), torch.eye(2), torch.float32).squeeze().tolist()
        [[2.0, 0.0], [0.0, 1.0]]
    """
    signed = (A @ s).mT.to(dtype)
    size = (A @ s.abs_()).mT.to(dtype)
    return torch.stack([size + signed, size - signed], 1).div_(2).clamp_(min=0).pow_(1 / ROOT)


def cells(rows: int, columns: int, pool: int) -> Tensor:
    """Returns the matrix (rows columns, pool^2) whose product with maps is their weighted average in each cell.

    The weights are Gaussians around the centers of pool x pool equal cells, with a deviation of 0.44 of a cell's side, so that
    neighboring cells overlap; one cell averages all positions.

    Example:
        >>> cells(1, 4, 1).flatten().tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    return torch.kron(_windows(rows, pool), _windows(columns, pool))


def _windows(n: int, pool: int) -> Tensor:
    """Returns the weights (n, pool) of n positions in the cells along one side; each column adds up to 1."""
    if pool == 1:
        return torch.full((n, 1), 1 / n, dtype=torch.float64)
    u, center = (((torch.arange(m, dtype=torch.float64) + 0.5) / m) for m in (n, pool))
    a = (-0.5 * ((u[:, None] - center) * (pool / WINDOW)).square()).exp()
    return a / a.sum(0)


def _some(x: Tensor, most: int) -> Sequence[Tensor]:
    """Returns parts of at most so many rows; the whole while a graph is exported, whose number of rows is free."""
    return [x] if exporting() else x.split(most)


class SecondLayer(nn.Module):
    r"""Maps (B, 2, K', 36) of the first layer -> features (B, 8 K); random until `learn`.

    The responses of the first layer's first K' atoms are pooled in 6 x 6 windows, which gives maps of 2 K' channels. For the
    patch p of F = 8 K' numbers in every 2 x 2 of these windows,

        n(p) = (p - mean p) / |p - mean p|
        q = Z^T (n(p) - m),  Z = U diag((w + 0.1 mean w)^{-1/2})     the d largest eigenvalues w of the covariance of n(p)
        r_k = d_k . q / c                                            K unit vectors (spherical k-means); c: deviation of d_k . q
        f = thresholded and pooled r, 8 K features

    A patch of neighboring windows holds which edges lie next to each other, as in corners and outlines.

    ``below`` is K', ``atoms`` K, ``threshold`` in deviations of the responses.
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

        The sums are those of the CPU, which are the same in every process. The generator orders the patches; the first ones
        are the atoms that the iterations start from.
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
        first = dictionary.distinct(torch.cat([dictionary.mark(p) for p in parts])[order])[: len(self.atoms)]
        D = dictionary.spherical_k_means(q, F.normalize(q[first], dim=1))
        self.basis.copy_(Z)
        self.center.copy_(m @ Z)
        self.atoms.zero_()
        self.atoms[: len(D)] = (D / _deviation(q, D)).to(self.atoms)

    def forward(self, maps: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns f (B, 8 K) of maps (B, 2, K', 36), in their type, by products in ``dtype``, or in that of the maps."""
        side, dtype = GRID - SIZE + 1, maps.dtype if dtype is None else dtype
        A = cells(side, side, POOL).T.to(maps).to(dtype)
        Z, center, atoms = (part.to(dtype) for part in (self.basis, self.center, self.atoms.T))
        out = []
        for part in _some(maps, TOGETHER):
            q = torch.addmm(-center, self.patches(part).to(dtype).flatten(0, 1), Z)
            s = F.softshrink(q @ atoms, self.threshold).unflatten(0, (-1, side**2))
            out.append(pooled(s, A, maps.dtype).flatten(1))
        return torch.cat(out)


def _deviation(q: Tensor, D: Tensor) -> Tensor:
    """Returns the standard deviation of all responses D q of vectors q (n, d), or 1 where there is none."""
    total, square = (torch.zeros((), dtype=torch.float64) for _ in range(2))
    for part in q.split(dictionary.PART):
        r = part @ D.T
        total += r.sum(dtype=torch.float64)
        square += r.square().sum(dtype=torch.float64)
    n = len(q) * len(D)
    variance = (square / n - (total / n).square()).to(q)
    return variance.clamp(min=0).sqrt() if variance > 0 else torch.ones_like(variance)


class PatchMaps(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> features f (B, F), ordered by layer, sign (positive parts first), atom and cell.

    The first layer has 2 K pool^2 features, and the second 8 for each of its atoms. Both are random until they are learned.

    Args:
        channels: Number of channels C.
        settings: Settings; see `vergence.learn.encoders.config.Patches`.
    """

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        self.settings = settings
        unit = F.normalize(torch.randn(settings.atoms, channels * settings.patch**2), dim=1)
        self.filters = nn.Parameter(unit, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(settings.atoms), requires_grad=False)
        self.second = SecondLayer(settings.below, settings.second, settings.second_threshold) if settings.second else None
        self.plain = False  # whether products are in the type of the filters whatever is faster

    def set(self, filters: Tensor, bias: Tensor) -> None:
        """Sets the dictionary: V (K, F) and V m (K,)."""
        self.filters.copy_(filters)
        self.bias.copy_(bias)

    def arithmetic(self) -> torch.dtype:
        """Returns the type of the products: bfloat16 for float32 filters where that is faster."""
        own = self.filters.dtype
        fast = own == torch.float32 and not self.plain and fast_bfloat16(self.filters.device.type)
        return torch.bfloat16 if fast else own

    def shrunk(self, x: Tensor) -> Tensor:
        """Returns images resized to the settings' side if both of their sides are larger."""
        size = self.settings.shrunk(x.shape[2], x.shape[3])
        return x if size == tuple(x.shape[2:]) else resize(x, *size)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Returns f (B, F) of images, in the type of the filters: the mean over their copies."""
        first, *others = self.copies(self.shrunk(x.to(self.filters.dtype)))
        f = self.responses(first)
        for other in others:
            f += self.responses(other)
        return f.div_(1 + len(others))

    def copies(self, x: Tensor) -> list[Tensor]:
        """Returns the changed versions of images whose features are averaged; see `vergence.learn.encoders.config.Patches`."""
        s = self.settings
        cut = [x[:, :, j * s.stride // s.copies :, j * s.stride // s.copies :] for j in range(s.copies)]
        return [y.flip(3) if s.mirror and j % 2 else y for j, y in enumerate(cut)]

    def responses(self, x: Tensor) -> Tensor:
        """Returns f (B, F) of images themselves, in the type of the filters."""
        first, windows = self.layers(x)
        return first if self.second is None else torch.cat([first, self.second(windows, self.arithmetic())], 1)

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the features (B, 2 K pool^2) of the first layer, and its maps (B, 2, K', 36) that the second one reads.

        The threshold and the pooling are fused, a block of atoms of a few images at a time, in bfloat16 where that is
        faster.
        """
        s, dtype = self.settings, self.arithmetic()
        x = self.shrunk(x.to(self.filters.dtype))
        rows, columns = ((n - s.patch) // s.stride + 1 for n in x.shape[2:])
        A = [cells(rows, columns, n).T.to(self.filters).to(dtype) for n in ((s.pool, GRID) if s.below else (s.pool,))]
        V, b = (part.to(dtype).split(BLOCK) for part in (self.filters, -self.bias))
        blocks = [(v.T.contiguous(), minus) for v, minus in zip(V, b, strict=True)]
        out = x.new_empty(x.shape[0], 2, s.atoms, s.pool**2)
        windows = x.new_empty(x.shape[0], 2, s.below, GRID**2)
        together = max(1, RESPONSES // (rows * columns * min(BLOCK, s.atoms)))
        for f, below, images in zip(*(_some(part, together) for part in (out, windows, x)), strict=True):
            p = dictionary.normalized_patches(images, s.patch, s.stride).to(dtype).flatten(0, 1)
            for i, (v, minus) in enumerate(blocks):
                a = F.softshrink(torch.addmm(minus, p, v), s.threshold).unflatten(0, (-1, rows * columns))
                both = pooled(a, torch.cat(A) if i == 0 else A[0], x.dtype)
                f[:, :, i * BLOCK : (i + 1) * BLOCK] = both[..., : s.pool**2]
                if i == 0 and s.below:
                    below.copy_(both[:, :, : s.below, s.pool**2 :])
        return out.flatten(1), windows


def sampled_patches(images: Iterable[Tensor], maps: PatchMaps, *, seed: int = 0) -> Tensor:
    """Returns a uniform sample of at most 100,000 normalized patches (n, F) of images that are resized as ``maps`` resizes them.

    Images are batches (B, C, H, W), uint8 or floats in [0, 1]; empty ones are skipped.
    """
    sample = dictionary.PatchSample(dictionary.N_PATCHES, maps.settings.patch, maps.settings.stride, seed)
    for x in images:
        if len(x):
            sample.add(maps.shrunk(to_unit(x, maps.filters.dtype)).cpu())
    return sample.sampled()


def patch_dictionary(images: Iterable[Tensor], shape: Sequence[int], settings: Patches, seed: int = 0) -> PatchMaps:
    """Returns the maps of one layer whose dictionary is learned from images; it has at most a tenth as many atoms as patches.

    Images of ``shape`` (C, H, W), and the seed, are those of `sampled_patches`.
    """
    full = settings.complete(shape)
    patches = sampled_patches(images, PatchMaps(shape[0], full), seed=seed)  # whose dictionary is not used
    full = dataclasses.replace(full, atoms=min(full.atoms, max(2, len(patches) // 10)))
    maps = PatchMaps(shape[0], full)
    maps.set(*dictionary.learn_dictionary(patches, full.atoms))
    return maps


class PatchEncoder(nn.Module):
    """Features of one or two layers, and an affine map to the embedding; random until its tensors are set."""

    eigenvalues: Tensor

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        self.settings = settings
        self.maps = PatchMaps(channels, settings)
        self.weight = nn.Parameter(torch.randn(settings.dim, settings.features) / settings.features**0.5, requires_grad=False)
        self.offset = nn.Parameter(torch.zeros(settings.dim), requires_grad=False)
        self.register_buffer("eigenvalues", torch.ones(settings.dim))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the embedding (B, dim) of images (B, C, H, W) in [0, 1]."""
        return self.embedding(self.maps(x))

    def embedding(self, f: Tensor) -> Tensor:
        """Returns the embedding (B, dim) of features (B, F)."""
        return F.linear(f, self.weight, self.offset)


def wide_features(encoder: nn.Module) -> nn.Module:
    """Returns the part of an encoder of images that computes f (B, F), the features before the affine map.

    They hold more than the embedding does, and suit a linear classifier with labels (`vergence.learn.evaluation.ridge_probe`).

    Example:
        >>> from vergence.learn.encoders.networks import Standardize
        >>> net = nn.Sequential(Standardize(torch.zeros(1), torch.ones(1)), PatchEncoder(1, PatchSettings(atoms=4, patch=3)))
        >>> wide_features(net)(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 32])
    """
    maps = next((m for m in encoder.modules() if isinstance(m, PatchMaps)), None)
    if maps is None:
        refuse("the encoder patches for wide features", "another encoder", "leave wide out")
    return nn.Sequential(standardization(encoder), maps)


class RefinedEncoder(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> embeddings (B, dim): a closed form without gradient, and a trained residual network.

    With c, the closed form's embedding, whose components have eigenvalues omega and are multiplied by omega^power,
    z = c + U relu(norm(V c / omega^power + v)). U starts at zero, so that before the first step z = c.

    Example:
        >>> encoder = RefinedEncoder(1, PatchSettings(atoms=4, patch=3, dim=5)).eval()
        >>> x = torch.rand(2, 1, 8, 8, dtype=encoder.closed_form.weight.dtype)
        >>> torch.equal(encoder(x), encoder.closed_form(x))
        True
    """

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        self.closed_form = PatchEncoder(channels, settings)
        self.inner = nn.Linear(settings.dim, 2 * settings.dim)
        self.norm = nn.BatchNorm1d(2 * settings.dim)
        self.outer = nn.Linear(2 * settings.dim, settings.dim, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns z (B, dim)."""
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            f = self.maps(x)
        return self.embedding(f)

    @property
    def maps(self) -> PatchMaps:
        """The features of the closed form."""
        return self.closed_form.maps

    def embedding(self, f: Tensor) -> Tensor:
        """Returns z (B, dim) of features (B, F)."""
        with torch.no_grad(), torch.autocast(f.device.type, enabled=False):
            c = self.closed_form.embedding(f)
            scale = self.closed_form.eigenvalues.clamp(min=LEAST) ** self.closed_form.settings.power
        z: Tensor = c + self.outer(F.relu(self.norm(self.inner(c / scale))))
        return z
