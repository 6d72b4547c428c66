r"""Image features without gradient descent: pooled responses of a dictionary, of a second layer on them, and an affine map.

f_1 = pooled responses of K whitened patches                 see `vergence.encoders.dictionary` and `vergence.encoders.pooling`
f_2 = those of a second dictionary, of patches of windows    see `vergence.encoders.second_layer`
z = W [f_1; f_2] + w_0                                       set by `vergence.training.closed_form`
"""

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.pixels import resize, to_unit
from vergence.encoders.dictionary import N_PATCHES, PatchSample, normalized_patches
from vergence.encoders.pooling import cells, pooled
from vergence.encoders.second_layer import BELOW, GRID, POOL, SecondLayer
from vergence.utils.checks import Checked, require_count, require_positive
from vergence.utils.devices import fast_bfloat16
from vergence.utils.names import quoted, unknown

__all__ = ["PatchEncoder", "PatchMaps", "PatchSettings", "sampled_patches"]

LARGE, LARGE_SIDE = 48, 32  # pixels: images of a larger side are resized
SMALL, SMALL_PATCH, SMALL_SHIFT = 16, 4, 0.125  # pixels: images of a smaller side have smaller patches, and views moved by more
TWO_LAYERS: dict[str, Any] = {"atoms": 512, "second": 2048, "power": 2.5}  # defaults where there is a second layer
BLOCK = 256  # atoms whose responses are kept at a time; the first block has those that the second layer reads
RESPONSES = 400_000  # numbers of such a block: those of all positions of a few images stay in a processor's cache
NAME = "patches"


@dataclass(frozen=True, kw_only=True)
class PatchSettings(Checked):
    """Settings of a closed-form encoder; its name is ``patches:atoms=512,pool=2,...`` with any of them.

    Without arguments there is one layer; `parse` adds the second where the images have room for it.

    Attributes:
        atoms: Unit vectors K of the dictionary.
        patch: Side P of a patch, in pixels.
        stride: Distance of neighboring patches, in pixels.
        side: Shorter side that larger images are resized to, in pixels; 0 keeps their size.
        threshold: Soft threshold theta of the first layer.
        pool: Cells per side of the first layer's pooling; they overlap.
        second: Atoms of the second layer; 0 for none.
        second_threshold: Soft threshold of the second layer, in deviations of its responses.
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
        **dict.fromkeys(("side", "threshold", "second", "second_threshold", "shift", "ridge", "power", "mirror"), 0),
        "views": 2,
    }
    most: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("patch", "stride", "side", "pool", "views", "copies", "mirror"), 4096),
        **dict.fromkeys(("threshold", "second_threshold", "shift", "ridge", "power"), 1e6),
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
    second: int = 0
    second_threshold: float = 0.25

    @classmethod
    def parse(cls, name: str, shape: Sequence[int]) -> "PatchSettings":
        """Returns the settings of an encoder's name for images of ``shape`` (C, H, W): those named, and defaults for the size.

        Images that have, once they are resized, at least 16 pixels a side and room for every copy's 6 positions have a second
        layer unless the name says otherwise: 2,048 atoms on a first layer of 512, and eigenvalues to the power of 2.5.

        Raises:
            ValueError: A setting is unknown or out of its range, or the images are smaller than the pooled patches.

        Example:
            >>> PatchSettings.parse("patches:atoms=64", (3, 96, 96)).side
            32
        """
        if len(shape) != 3:
            raise ValueError(f"expected images for encoder 'patches', found vectors of {shape[0]} features; use --encoder mlp")
        side = min(shape[1:])
        given = _given(name)
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        for key in given:
            if key not in kinds:
                raise unknown("setting of encoder 'patches'", key, kinds)
        defaults: dict[str, Any] = {"patch": SMALL_PATCH, "shift": SMALL_SHIFT} if side < SMALL else {}
        if side > LARGE:
            defaults["side"] = LARGE_SIDE
        settings = cls(**{**defaults, **{key: _number(key, value, kinds[key]) for key, value in given.items()}})
        two = dataclasses.replace(settings, **{key: value for key, value in TWO_LAYERS.items() if key not in given})
        resized = min(settings.shrunk(shape[1], shape[2]))
        roomy = "second" not in given and resized >= max(SMALL, two.least_side)
        if settings.second or roomy:
            settings = two
        settings.require_size(shape)
        return settings

    @property
    def name(self) -> str:
        """The encoder's name with every setting."""
        return f"{NAME}:" + ",".join(f"{key}={value:g}" for key, value in dataclasses.asdict(self).items())

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each layer: 2 K pool^2 of the first, and 8 per atom of the second, if there is one."""
        first, second = 2 * self.atoms * self.pool**2, 2 * self.second * POOL**2
        return (first, second) if second else (first,)

    @property
    def features(self) -> int:
        """Number of features of all layers."""
        return sum(self.widths)

    @property
    def below(self) -> int:
        """Number of atoms whose responses the second layer reads."""
        return min(BELOW, self.atoms) if self.second else 0

    def averaged(self, f: Tensor, atoms: int | None = None) -> Tensor:
        """Returns the first layer's part of features f, averaged over cells, (B, 2 K), or of the first ``atoms`` of the K."""
        signs: Tensor = f[:, : self.widths[0]].unflatten(1, (2, self.atoms, self.pool**2))
        return signs[:, :, :atoms].mean(3).flatten(1)

    def positions(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns the rows and columns of patches of images of ``shape`` (C, H, W)."""
        rows, columns = (max(0, (n - self.patch) // self.stride + 1) for n in self.shrunk(shape[1], shape[2]))
        return rows, columns

    def shrunk(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size that images are resized to: the settings' side, if both of their sides are larger."""
        small = min(height, width)
        if not 0 < self.side < small:
            return height, width
        return round(height * self.side / small), round(width * self.side / small)

    @property
    def least_side(self) -> int:
        """Smallest side of images, in pixels, with a patch of every copy in every cell of the pooling."""
        cells = max(self.pool, GRID if self.second else 1)
        return self.patch + (cells - 1) * self.stride + (self.copies - 1) * self.stride // self.copies

    def require_size(self, shape: Sequence[int]) -> None:
        """Raises a ValueError unless images of ``shape`` (C, H, W), once they are resized, have the least side."""
        side, least = min(self.shrunk(shape[1], shape[2])), self.least_side
        if side < least:
            resized = f" that are resized to {side}" if side < min(shape[1:]) else ""
            alone = dataclasses.replace(self, second=0).least_side <= side
            advice = "use second=0" if self.second and alone else "use smaller patches or pools"
            found = f"{shape[1]} x {shape[2]}{resized}"
            raise ValueError(f"expected images of at least {least} x {least} pixels, found {found}; {advice}")


def _given(name: str) -> dict[str, str]:
    """Returns the settings in an encoder's name."""
    return dict(pair.partition("=")[::2] for pair in name.partition(":")[2].split(",") if pair)


def _number(key: str, text: str, kind: object) -> Any:
    try:
        return float(text) if kind in (float, "float") else int(text)
    except ValueError:
        raise ValueError(f"expected a number for setting '{key}' of encoder 'patches', found {quoted(text)}") from None


class PatchMaps(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> features f (B, F), ordered by layer, sign (positive parts first), atom and cell.

    The first layer has 2 K pool^2 features, and the second 8 for each of its atoms. Both are random until they are learned.

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
        self.second = SecondLayer(settings.below, settings.second, settings.second_threshold) if settings.second else None

    def set(self, filters: Tensor, bias: Tensor) -> None:
        """Sets the dictionary: V (K, F) and V m (K,)."""
        self.filters.copy_(filters)
        self.bias.copy_(bias)

    def arithmetic(self) -> torch.dtype:
        """Returns the type of the products: bfloat16 for float32 filters where that is faster."""
        own = self.filters.dtype
        return torch.bfloat16 if own == torch.float32 and fast_bfloat16(self.filters.device.type) else own

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
        """Returns the copies of images whose features are averaged; see `PatchSettings`."""
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
        out = x.new_empty(len(x), 2, s.atoms, s.pool**2)
        windows = x.new_empty(len(x), 2, s.below, GRID**2)
        together = max(1, RESPONSES // (rows * columns * min(BLOCK, s.atoms)))
        for f, below, images in zip(out.split(together), windows.split(together), x.split(together), strict=True):
            p = normalized_patches(images, s.patch, s.stride).to(dtype).flatten(0, 1)
            for i, (v, minus) in enumerate(blocks):
                a = F.softshrink(torch.addmm(minus, p, v), s.threshold).unflatten(0, (-1, rows * columns))
                found = pooled(a, torch.cat(A) if i == 0 else A[0], x.dtype)
                f[:, :, i * BLOCK : (i + 1) * BLOCK] = found[..., : s.pool**2]
                if i == 0 and s.below:
                    below.copy_(found[:, :, : s.below, s.pool**2 :])
        return out.flatten(1), windows


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


class PatchEncoder(nn.Module):
    """Features of one or two layers, and an affine map to the embedding; random until its tensors are set.

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
