"""Levels of features of items for which no encoder was trained, and plain descriptions of images."""

import torch
from torch import Tensor, nn

from vergence.data.items import Items
from vergence.data.pixels import to_unit
from vergence.detection import measure, pixel_statistics
from vergence.detection.parts.thumbnails import SIDE as THUMBNAIL
from vergence.detection.parts.thumbnails import cell_means
from vergence.encoders.dictionary import learn_dictionary
from vergence.encoders.patch_maps import PatchMaps, PatchSettings, sampled_patches
from vergence.encoders.pooling import ROOT
from vergence.runs.levels import Leveled
from vergence.runs.robust import SUMMARY

__all__ = ["Described", "FolderLevels"]

ATOMS, SIDE, PATCH = 128, 32, 6  # of the dictionary of patches
PATCHES, IMAGES, BLOCK = 20_000, 1_000, 100  # that the dictionary is learned from
COLORLESS = 1 / 512  # added to differences of channels in [0, 1], half a step of bytes


class Described:
    """Levels, and of images ``measured`` (`vergence.detection.measure`) and ``thumbnail`` (at most 16 x 16 means), too.

    Args:
        levels: The levels of a batch.
    """

    extras = ("measured", "thumbnail")

    def __init__(self, levels: Leveled) -> None:
        self.levels = levels

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch, and the descriptions."""
        found = self.levels(x)
        if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < 4:
            return found
        table = torch.from_numpy(measure(x).table) if len(x) else torch.zeros(0, 7)
        return {**found, "measured": table.float(), "thumbnail": cell_means(to_unit(x, torch.float32)).flatten(1)}

    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level, the largest of the descriptions included."""
        return {**self.levels.widths(), "thumbnail": 3 * THUMBNAIL**2}


class FolderLevels(nn.Module):
    """Levels of items that no encoder was trained on: ``pixels``, ``summary`` and ``patches`` of images, ``inputs`` of vectors.

    ``pixels`` are `vergence.detection.pixel_statistics`; ``summary`` are those of the whole image and, of color images, the
    logarithms of the channels' differences, few numbers that some hundred items suffice for. ``patches`` are responses of images,
    resized to 32 pixels, to a dictionary of 128 patches of the same folder, averaged over positions
    (`vergence.encoders.patch_maps`). They are plain averages, without the root that encoders take, which would hide images of
    many and strong edges, such as noise.

    Args:
        items: Items that the dictionary is learned from; at most 1,000 of them are read.
        seed: Seed of their choice.
    """

    def __init__(self, items: Items, seed: int = 0) -> None:
        super().__init__()
        self.shape = tuple(items.shape)
        self.maps: PatchMaps | None = None
        if len(self.shape) == 3 and min(self.shape[1:]) >= PATCH:
            self.maps = _dictionary(items, seed)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch of items, each (B, D)."""
        if len(self.shape) == 1:
            return {"inputs": x.float()}
        if min(self.shape[1:]) < 2:
            return {"inputs": to_unit(x, torch.float32).flatten(1)}
        found = {"pixels": pixel_statistics(x), SUMMARY: _summary(x)}
        if self.maps is not None:
            found["patches"] = self.maps(to_unit(x, torch.float32)) ** ROOT
        return found

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        return {name: f.shape[1] for name, f in self(torch.zeros(1, *self.shape)).items()}


def _summary(x: Tensor) -> Tensor:
    """Returns statistics of whole images: color, contrast, sharpness, noise; (B, 28) of color images, (B, 14) of gray ones."""
    found = [pixel_statistics(x, grid=1)]
    if x.shape[1] == 3:
        light = to_unit(x, torch.float32)
        found.append(((light - light.roll(1, 1)).abs().mean((2, 3)) + COLORLESS).log().to(found[0]))
    return torch.cat(found, 1)


@torch.no_grad()
def _dictionary(items: Items, seed: int) -> PatchMaps | None:
    """Returns the responses to patches of some items; None where they have too few different patches."""
    maps = PatchMaps(items.shape[0], PatchSettings(atoms=ATOMS, patch=PATCH, side=SIDE, pool=1))
    chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:IMAGES].sort().values
    stream = items.subset(chosen).stream(torch.arange(len(chosen)).split(BLOCK))
    try:
        maps.set(*learn_dictionary(sampled_patches((x for _, x in stream), maps, n=PATCHES, seed=seed), ATOMS))
    except ValueError:  # nothing could be read, or nearly all patches are equal: the level would say nothing
        return None
    return maps
