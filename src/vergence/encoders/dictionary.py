r"""Image features without gradient descent: a dictionary of whitened patches, and an affine map of its pooled responses.

A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", AISTATS 2011. For the
patch p of F = C P P numbers at every position of an image in [0, 1],

    n(p) = (p - mean p) / sqrt(var p + eps)                      contrast normalization, eps = 10 / 255^2
    q = Z (n(p) - m),  Z = U diag((w + r)^{-1/2}) U^T            whitening with mean m and covariance U diag(w) U^T of n(p)
    r_k = d_k . q = v_k . n(p) - v_k . m,  V = D Z               responses of K unit vectors (spherical k-means)
    a = [max(r - theta, 0); max(-r - theta, 0)]                  two-sided soft threshold
    f = (weighted mean of a in each of pool x pool cells)^(1/3)  2 K pool^2 features; the cells overlap, see `cells`

The threshold and the pooling are fused, a block of atoms of a few images at a time: with s = softshrink(r), the two parts of a
are (|s| + s) / 2 and (|s| - s) / 2, so that both pooled maps follow from two products with a matrix of the cells,
in bfloat16 where the hardware supports it.
"""

import dataclasses
import hashlib
import math
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.pixels import resize, to_unit
from vergence.utils.checks import Checked, require_count, require_positive
from vergence.utils.names import quoted, unknown

__all__ = [
    "PatchEncoder",
    "PatchMaps",
    "PatchSample",
    "PatchSettings",
    "learn_dictionary",
    "normalized_patches",
    "sampled_patches",
    "spherical_k_means",
    "whitening",
]

EPS = 10 / 255**2
WHITENING = 0.1  # r
ITERATIONS = 10
N_PATCHES = 100_000
LARGE, LARGE_SIDE = 48, 32  # pixels: images of a larger side are resized
SMALL, SMALL_PATCH, SMALL_SHIFT = 16, 4, 0.125  # pixels: images of a smaller side have smaller patches, and views moved by more
ROOT = 3  # of the pooled responses
BLOCK = 256  # atoms whose responses are kept at a time
RESPONSES = 400_000  # numbers of such a block: those of all positions of a few images stay in a processor's cache
TOGETHER = 8  # images whose patches are sampled at a time
WINDOW = 0.44  # standard deviation of a cell's weights, in sides of a cell
NAME = "patches"


@dataclass(frozen=True, kw_only=True)
class PatchSettings(Checked):
    """Settings of a closed-form encoder; its name is ``patches:atoms=512,pool=2,...`` with any of them.

    Attributes:
        atoms: Unit vectors K of the dictionary.
        patch: Side P of a patch, in pixels.
        stride: Distance of neighboring patches, in pixels.
        side: Shorter side that larger images are resized to, in pixels; 0 keeps their size.
        threshold: Soft threshold theta.
        pool: Cells per side of the pooling; they overlap.
        directions: Principal directions of the features that the joint embedding is solved in.
        dim: Width of the embedding.
        views: Random views of each image, at least 2.
        shift: Share of its sides that a view is moved by at most, with reflected borders, before its other changes.
        ridge: Regularization of the views' covariance, as a multiple of its mean diagonal.
        power: Exponent of the eigenvalues that the components are multiplied by.
        copies: Copies of an image whose embeddings are averaged, after the fit: copy j = 0, 1, ... leaves out the first
            j stride / copies rows and columns, so that its patches lie between those of the image.
        mirror: 1 mirrors every second copy.
    """

    least: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("atoms", "patch", "stride", "pool", "directions", "dim", "copies"), 1),
        **dict.fromkeys(("side", "threshold", "shift", "ridge", "power", "mirror"), 0),
        "views": 2,
    }
    most: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("patch", "stride", "side", "pool", "views", "copies", "mirror"), 4096),
        **dict.fromkeys(("threshold", "shift", "ridge", "power"), 1e6),
    }

    atoms: int = 2048
    patch: int = 6
    stride: int = 1
    side: int = 0
    threshold: float = 1.0
    pool: int = 2
    directions: int = 2048
    dim: int = 512
    views: int = 2
    shift: float = 0.075
    ridge: float = 0.01
    power: float = 2.0
    copies: int = 1
    mirror: int = 0

    @classmethod
    def parse(cls, name: str, shape: Sequence[int]) -> "PatchSettings":
        """Returns the settings of an encoder's name for images of ``shape`` (C, H, W): those named, and defaults for the size.

        Raises:
            ValueError: A setting is unknown or out of its range, or the images are smaller than the pooled patches.

        Example:
            >>> PatchSettings.parse("patches:atoms=64", (3, 96, 96)).side
            32
        """
        if len(shape) != 3:
            raise ValueError(f"expected images for encoder 'patches', found vectors of {shape[0]} features; use --encoder mlp")
        side = min(shape[1:])
        given = dict(pair.partition("=")[::2] for pair in name.partition(":")[2].split(",") if pair)
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        for key in given:
            if key not in kinds:
                raise unknown("setting of encoder 'patches'", key, kinds)
        defaults: dict[str, Any] = {"patch": SMALL_PATCH, "shift": SMALL_SHIFT} if side < SMALL else {}
        if side > LARGE:
            defaults["side"] = LARGE_SIDE
        settings = cls(**{**defaults, **{key: _number(key, value, kinds[key]) for key, value in given.items()}})
        settings.require_size(shape)
        return settings

    @property
    def name(self) -> str:
        """The encoder's name with every setting."""
        return f"{NAME}:" + ",".join(f"{key}={value:g}" for key, value in dataclasses.asdict(self).items())

    @property
    def features(self) -> int:
        """Number of pooled responses, 2 K pool^2."""
        return 2 * self.atoms * self.pool**2

    def averaged(self, f: Tensor, atoms: int | None = None) -> Tensor:
        """Returns responses f (B, 2 K pool^2) averaged over cells, (B, 2 K), or those of the first ``atoms`` of the K alone."""
        signs: Tensor = f.unflatten(1, (2, self.atoms, self.pool**2))
        return signs[:, :, :atoms].mean(3).flatten(1)

    def require_size(self, shape: Sequence[int]) -> None:
        """Raises a ValueError unless images of ``shape`` (C, H, W) have a patch in every cell of the pooling."""
        least = self.patch + (self.pool - 1) * self.stride + (self.copies - 1) * self.stride // self.copies
        resized = 0 < self.side < min(shape[1:])
        if (self.side if resized else min(shape[1:])) < least:
            found = f"{shape[1]} x {shape[2]}" + (f" that are resized to {self.side}" if resized else "")
            raise ValueError(f"expected images of at least {least} x {least} pixels, found {found}; use smaller patches or pools")


def _number(key: str, text: str, kind: object) -> Any:
    try:
        return float(text) if kind in (float, "float") else int(text)
    except ValueError:
        raise ValueError(f"expected a number for setting '{key}' of encoder 'patches', found {quoted(text)}") from None


def normalized_patches(x: Tensor, size: int, stride: int = 1) -> Tensor:
    """Returns n(p) of all patches of images (B, C, H, W) in [0, 1], (B, L, F) with the L positions by rows.

    Example:
        >>> normalized_patches(torch.full((1, 1, 4, 4), 0.5), 2).abs().max().item()
        0.0
    """
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
        nearest = torch.cat([(part @ D.T).argmax(1) for part in q.split(2_000)])
        total = torch.zeros_like(D).index_add_(0, nearest, q)
        norm = total.norm(dim=1, keepdim=True)
        D = torch.where(norm > 0, total / norm.clamp(min=torch.finfo(D.dtype).tiny), D)
    return D


class PatchSample:
    """A uniform sample of at most ``n`` normalized patches of a stream of images, whatever the sizes of its batches.

    Args:
        n: Largest number of patches.
        size: Side P of a patch, in pixels.
        stride: Distance of neighboring patches, in pixels.
        seed: Seed of the sample.
    """

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

    def _keys(self, image: int, positions: int) -> Tensor:
        mark = hashlib.blake2b(f"{self.seed}/{image}".encode(), digest_size=4).digest()  # torch uses 32 bits of a seed
        generator = torch.Generator().manual_seed(int.from_bytes(mark, "big"))
        return torch.rand(positions, generator=generator, dtype=torch.float64)


def learn_dictionary(p: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    """Returns the filters V = D Z (K, F) and the bias V m (K,) of normalized patches (n, F) in random order.

    Raises:
        ValueError: There are fewer distinct patches than atoms.
    """
    m, Z = whitening(p)
    q = (p - m) @ Z
    first = _distinct(p)[:atoms]
    if len(first) < atoms or len(p) < 2:
        raise ValueError(
            f"expected at least {atoms} distinct patches for {atoms} atoms, found {len(first)}; "
            "use fewer atoms, or images that vary"
        )
    D = spherical_k_means(q, F.normalize(q[first], dim=1))
    V = D @ Z
    return V, V @ m


def _distinct(p: Tensor) -> Tensor:
    """Returns the index of the first patch of each value, ascending."""
    mark = p.double() @ torch.linspace(1, 2, p.shape[1], dtype=torch.float64).sqrt().cos()
    value, order = mark.sort(stable=True)
    new = torch.cat([value.new_ones(1, dtype=torch.bool), value.diff() > 1e-9])
    return order[new].sort().values


class PatchMaps(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> pooled responses f (B, 2 K pool^2): positive parts, then negative ones, cells last.

    Args:
        channels: Number of channels C.
        settings: Settings; see `PatchSettings`.

    Example:
        >>> maps = PatchMaps(1, PatchSettings(atoms=4, patch=3))
        >>> maps(torch.rand(2, 1, 8, 8, dtype=maps.filters.dtype)).shape
        torch.Size([2, 32])
    """

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        self.settings = settings
        unit = F.normalize(torch.randn(settings.atoms, channels * settings.patch**2), dim=1)
        self.filters = nn.Parameter(unit, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(settings.atoms), requires_grad=False)

    def set(self, filters: Tensor, bias: Tensor) -> None:
        """Sets the dictionary: V (K, F) and V m (K,)."""
        self.filters.copy_(filters)
        self.bias.copy_(bias)

    def arithmetic(self) -> torch.dtype:
        """Returns the type of the products: bfloat16 for float32 filters where the hardware supports it."""
        own = self.filters.dtype
        if own != torch.float32:
            return own
        cuda = self.filters.device.type == "cuda"
        fast = torch.cuda.is_bf16_supported() if cuda else torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if fast else own

    def shrunk(self, x: Tensor) -> Tensor:
        """Returns images resized to the settings' side if both of their sides are larger."""
        side, small = self.settings.side, min(x.shape[2:])
        if not 0 < side < small:
            return x
        height, width = (round(n * side / small) for n in x.shape[2:])
        return resize(x, height, width)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Returns f (B, 2 K pool^2) of images, in the type of the filters: the mean over their copies."""
        first, *others = self.copies(self.shrunk(x.to(self.filters.dtype)))
        f = self.responses(first)
        for other in others:
            f += self.responses(other)
        return f.div_(1 + len(others))

    def copies(self, x: Tensor) -> list[Tensor]:
        """Returns the copies of images whose features are averaged; see `PatchSettings`."""
        s = self.settings
        cut = [x[:, :, j * s.stride // s.copies :, j * s.stride // s.copies :] for j in range(s.copies)]
        return [y.flip(3) if s.mirror and j % 2 else y for j, y in enumerate(cut)]

    def responses(self, x: Tensor) -> Tensor:
        """Returns f (B, 2 K pool^2) of images themselves, in the type of the filters."""
        s, dtype = self.settings, self.arithmetic()
        x = self.shrunk(x.to(self.filters.dtype))
        rows, columns = ((n - s.patch) // s.stride + 1 for n in x.shape[2:])
        A = cells(rows, columns, s.pool).T.to(self.filters).to(dtype)
        V, b = (part.to(dtype).split(BLOCK) for part in (self.filters, -self.bias))
        blocks = [(v.T.contiguous(), minus) for v, minus in zip(V, b, strict=True)]
        out = x.new_empty(len(x), 2, s.atoms, s.pool**2)
        together = max(1, RESPONSES // (rows * columns * min(BLOCK, s.atoms)))
        for f, images in zip(out.split(together), x.split(together), strict=True):
            p = normalized_patches(images, s.patch, s.stride).to(dtype).flatten(0, 1)
            for both, (v, minus) in zip(f.split(BLOCK, 2), blocks, strict=True):
                a = F.softshrink(torch.addmm(minus, p, v), s.threshold).unflatten(0, (-1, rows * columns))
                signed = (A @ a).mT.to(x)
                size = (A @ a.abs_()).mT.to(x)
                both[:, 0], both[:, 1] = size + signed, size - signed
        return out.flatten(1).div_(2).clamp_(min=0).pow_(1 / ROOT)


def sampled_patches(images: Iterable[Tensor], maps: PatchMaps, *, n: int = N_PATCHES, seed: int = 0) -> Tensor:
    """Returns a uniform sample of at most n normalized patches (n, F) of images that are resized as ``maps`` resizes them.

    Args:
        images: Batches (B, C, H, W), uint8 or floats in [0, 1]; empty ones are skipped.
        maps: Reads the images; its dictionary is not used.
        n: Largest number of patches.
        seed: Seed of the sample.

    Raises:
        ValueError: There is no image.

    Example:
        >>> maps = PatchMaps(1, PatchSettings(atoms=4, patch=3))
        >>> sampled_patches([torch.rand(5, 1, 8, 8), torch.rand(2, 1, 8, 8)], maps, n=40).shape
        torch.Size([40, 9])
    """
    sample = PatchSample(n, maps.settings.patch, maps.settings.stride, seed)
    for x in images:
        if len(x):
            sample.add(maps.shrunk(to_unit(x, maps.filters.dtype)).cpu())
    if sample.patches is None:
        raise ValueError("expected images to learn a dictionary of patches from, found none that could be read; give others")
    return sample.patches


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


class PatchEncoder(nn.Module):
    """Pooled responses of a dictionary, and an affine map to the embedding; random until its tensors are set.

    Args:
        channels: Number of channels C.
        settings: Settings; see `PatchSettings`.

    Example:
        >>> encoder = PatchEncoder(1, PatchSettings(atoms=4, patch=3, dim=5))
        >>> encoder(torch.rand(2, 1, 8, 8, dtype=encoder.weight.dtype)).shape
        torch.Size([2, 5])
    """

    eigenvalues: Tensor

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        require_count(channels=channels)
        require_positive(features=settings.features)
        self.settings = settings
        self.maps = PatchMaps(channels, settings)
        self.weight = nn.Parameter(torch.randn(settings.dim, settings.features) / settings.features**0.5, requires_grad=False)
        self.offset = nn.Parameter(torch.zeros(settings.dim), requires_grad=False)
        self.register_buffer("eigenvalues", torch.ones(settings.dim))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the embedding (B, dim) of images (B, C, H, W) in [0, 1]."""
        return F.linear(self.maps(x), self.weight, self.offset)
