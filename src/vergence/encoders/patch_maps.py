r"""Image features without gradient descent: pooled responses of a dictionary, of a second layer on them, and an affine map.

f_1 = pooled responses of K whitened patches                 see `vergence.encoders.dictionary` and `vergence.encoders.pooling`
f_2 = those of a second dictionary, of patches of windows    see `vergence.encoders.second_layer`
z = W [f_1; f_2] + w_0                                       set by `vergence.training.closed_form`

`RefinedEncoder` trains a residual network behind it: with c = z, whose components have eigenvalues omega and are multiplied by
omega^power, z = c + U relu(norm(V c / omega^power + v)). The closed form stays as it was fitted. U starts at zero, so that
before the first step z = c.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.pixels import resize, to_unit
from vergence.encoders.config import GRID, PatchSettings
from vergence.encoders.dictionary import N_PATCHES, PatchSample, normalized_patches
from vergence.encoders.pooling import cells, pooled
from vergence.encoders.second_layer import SecondLayer
from vergence.utils.devices import fast_bfloat16

__all__ = ["PatchEncoder", "PatchMaps", "RefinedEncoder", "sampled_patches"]

BLOCK = 256  # atoms whose responses are kept at a time; the first block has those that the second layer reads
RESPONSES = 400_000  # numbers of such a block: those of all positions of a few images stay in a processor's cache
LEAST = 1e-2  # eigenvalue that a refined encoder's component is divided by


class PatchMaps(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> features f (B, F), ordered by layer, sign (positive parts first), atom and cell.

    The first layer has 2 K pool^2 features, and the second 8 for each of its atoms. Both are random until they are learned.

    Args:
        channels: Number of channels C.
        settings: Settings; see `vergence.encoders.config.Patches`.

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
        """Returns the copies of images whose features are averaged; see `vergence.encoders.config.Patches`."""
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
        settings: Settings; see `vergence.encoders.config.Patches`.

    Example:
        >>> encoder = PatchEncoder(1, PatchSettings(atoms=4, patch=3, dim=5))
        >>> encoder(torch.rand(2, 1, 8, 8, dtype=encoder.weight.dtype)).shape
        torch.Size([2, 5])
    """

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
        return F.linear(self.maps(x), self.weight, self.offset)


class RefinedEncoder(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> embeddings (B, dim): a closed form without gradient, and a trained residual network.

    Args:
        channels: Number of channels C.
        settings: Settings of the closed form, whose ``dim`` is the width of the embedding.

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
            c = self.closed_form(x)
            scale = self.closed_form.eigenvalues.clamp(min=LEAST) ** self.closed_form.settings.power
        z: Tensor = c + self.outer(F.relu(self.norm(self.inner(c / scale))))
        return z
