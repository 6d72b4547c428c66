"""The features in which both problems are solved: the items' own numbers, or pooled responses to a dictionary of patches."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from vergence.data.items import Items, batches, spaced
from vergence.data.pixels import center_crop
from vergence.data.views import ImageViews
from vergence.encoders.config import Patches
from vergence.encoders.dictionary import learn_dictionary
from vergence.encoders.patch_maps import PatchMaps, sampled_patches
from vergence.linear.reading import Features

__all__ = ["ATOMS", "FEATURES", "patch_features"]

FEATURES = ("raw", "patches")
ATOMS = 256  # of the dictionary: 2,048 features
IMAGES = 4_000  # that the dictionary's patches are sampled from
BATCH = 200


def patch_features(items: Items, augmentation: Any, *, atoms: int = ATOMS, seed: int = 0, device: str = "cpu") -> Features:
    """Returns the map from images (B, C, H, W) in [0, 1] to features (B, 8 K) of `vergence.encoders.patch_maps`, of one layer.

    The dictionary is learned from at most 100,000 patches of at most 4,000 images, evenly spaced in the source.

    Args:
        items: Images.
        augmentation: The augmentation; images are cropped as its views are.
        atoms: K; at most a tenth of the number of patches.
        seed: Seed of the sample of patches.
        device: Where the features are computed, as torch names it.

    Raises:
        ValueError: The items are not images, are smaller than the pooled patches, or have fewer distinct patches than atoms.
    """
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    shape = items.shape if crop is None else (items.shape[0], crop, crop)
    if len(shape) != 3:
        raise ValueError(f"expected images for features 'patches', found items of shape {shape}; use features='raw'")
    settings = Patches(atoms=atoms, second=0).complete(shape)
    maps = PatchMaps(shape[0], settings)  # reads the images; the dictionary follows from them
    some = spaced(len(items), IMAGES)
    stream = items.stream(some[index] for index in batches(len(some), BATCH))
    patches = sampled_patches((x if crop is None else center_crop(x, crop) for _, x in stream), maps, seed=seed)
    settings = dataclasses.replace(settings, atoms=min(atoms, max(2, len(patches) // 10)))
    maps = PatchMaps(shape[0], settings)
    maps.set(*learn_dictionary(patches, settings.atoms))
    maps.to(device)

    def features(x: Tensor) -> Tensor:
        return torch.cat([maps(part) for part in x.split(BATCH)])

    return features
