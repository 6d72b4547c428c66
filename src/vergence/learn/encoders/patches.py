"""Patch features of one layer for scikit-learn; see `vergence.learn.encoders.patch_maps`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state

from vergence.data.arrays import from_array
from vergence.data.items import Items, batches
from vergence.data.pixels import to_unit
from vergence.data.sources import open_items
from vergence.learn.encoders.config import PatchSettings
from vergence.learn.encoders.dictionary import N_PATCHES, PatchSample, learn_dictionary
from vergence.learn.encoders.patch_maps import PatchMaps
from vergence.utils.checks import expect, require_choice, require_count, require_within

__all__ = ["PatchFeatures"]

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _parts(X: Any) -> Iterator[Any]:
    """Yields the parts of what is given: those of an iterator, or the whole."""
    yield from X if isinstance(X, Iterator) else [X]


class PatchFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Pooled responses of images to a dictionary of whitened patches (Coates, Lee, Ng, AISTATS 2011).

    Images are arrays (N, H, W), (N, H, W, C) or (N, C, H, W) of uint8, or of floats in [0, 1]; a path of a folder of images or of
    a ``.npy`` file, or the name of a built-in set; `Items`, which may stay on disk; or an iterator over parts, each any of these.
    The same seed gives the same features, byte for byte, whatever the sizes of the batches.

    Args:
        n_atoms: Unit vectors K of the dictionary.
        patch_size: Side of a patch, in pixels.
        threshold: Soft threshold of the responses, at least 0.
        pool: Cells per side of the pooling; they overlap (`vergence.learn.encoders.patch_maps.cells`).
        stride: Distance of neighboring patches, in pixels.
        size: Shorter side that larger images are resized to, in pixels; 0 keeps their size.
        n_patches: Largest number of patches, sampled at random, that the dictionary is learned from.
        dtype: ``float32`` (products in bfloat16 where that is faster) or ``float64``.
        batch_size: Images at a time.
        random_state: Seed of the sample; None for another one each time.

    Attributes:
        filters_: Whitened dictionary V = D Z, (K, C P P).
        bias_: V m, (K,).
        n_images_: Number of images that the sample was taken from.
        n_features_in_: Number of pixels of an image, C H W.

    Example:
        >>> images = np.random.default_rng(0).random((20, 12, 12))
        >>> PatchFeatures(n_atoms=8).fit_transform(images).shape
        (20, 64)
    """

    def __init__(
        self,
        n_atoms: int = 512,
        patch_size: int = 6,
        threshold: float = 1.0,
        pool: int = 2,
        *,
        stride: int = 1,
        size: int = 0,
        n_patches: int = N_PATCHES,
        dtype: str = "float32",
        batch_size: int = 200,
        random_state: int | None = 0,
    ) -> None:
        self.n_atoms, self.patch_size, self.threshold, self.pool = n_atoms, patch_size, threshold, pool
        self.stride, self.size, self.n_patches = stride, size, n_patches
        self.dtype, self.batch_size, self.random_state = dtype, batch_size, random_state

    def fit(self, X: Any, y: Any = None) -> "PatchFeatures":
        """Learns the dictionary from a random sample of the patches of all images; ``y`` is ignored."""
        self.__dict__.pop("_sample", None)
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: Any = None) -> "PatchFeatures":
        """Adds images to the sample and learns the dictionary again; the order and the sizes of the parts do not matter.

        The order matters only for which patches a sample smaller than all patches holds.
        """
        require_count(**{name: getattr(self, name) for name in ("n_atoms", "patch_size", "pool", "stride", "batch_size")})
        require_count(2, n_patches=self.n_patches)
        require_count(0, size=self.size)
        require_within("[0, inf)", threshold=self.threshold)
        require_choice("dtype", self.dtype, DTYPES)
        for part in _parts(X):
            items = self._items(part, fitting=not hasattr(self, "_sample"))
            if not hasattr(self, "_sample"):
                seed = self.random_state
                seed = seed if isinstance(seed, int) else int(check_random_state(seed).randint(2**31))
                self._shape = tuple(items.shape)
                self._sample = PatchSample(self.n_patches, self.patch_size, self.stride, seed)
            maps = self._maps()
            for _, x in items.stream(batches(len(items), self.batch_size)):
                self._sample.add(maps.shrunk(to_unit(x, DTYPES[self.dtype])))
        expect(hasattr(self, "_sample"), "images", "none that can be read", "give others")
        V, bias = learn_dictionary(self._sample.sampled(), self.n_atoms)
        self.filters_, self.bias_ = V.numpy(), bias.numpy()
        self.n_images_, self.n_features_in_ = self._sample.images, int(np.prod(self._shape))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Returns the features (N, 2 K pool^2) of N images; of a folder, resized, of those that can be read."""
        check_is_fitted(self, "filters_")
        maps, found = self._maps(), list[np.ndarray]()
        maps.set(torch.from_numpy(self.filters_), torch.from_numpy(self.bias_))
        for items in map(self._items, _parts(X)):
            stream = items.stream(batches(len(items), self.batch_size))
            found += [maps(to_unit(x, DTYPES[self.dtype])).numpy() for _, x in stream]
        return np.concatenate(found)

    @property
    def _n_features_out(self) -> int:
        return self._settings().features

    def _settings(self) -> PatchSettings:
        names = {"atoms": self.n_atoms, "patch": self.patch_size, "stride": self.stride, "side": self.size}
        return PatchSettings(**names, threshold=self.threshold, pool=self.pool)

    def _maps(self) -> PatchMaps:
        with torch.random.fork_rng(devices=[]):  # its atoms are random before they are set
            return PatchMaps(self._shape[0], self._settings()).to(DTYPES[self.dtype])

    def _items(self, X: Any, fitting: bool = False) -> Items:
        if isinstance(X, str | Path):
            items = open_items(str(X)) if fitting else open_items(str(X), shape=self._shape)
        else:
            items = X if isinstance(X, Items) else from_array(X if isinstance(X, torch.Tensor) else np.asarray(X), "X")
        forms = "images (N, H, W), (N, H, W, C) or (N, C, H, W) in X"
        expect(len(items.shape) == 3, forms, f"items of shape {items.shape}", "reshape them")
        self._settings().require_size(items.shape)
        same = fitting or tuple(items.shape) == self._shape
        expect(same, f"images of shape {'' if fitting else self._shape} as in fit", items.shape, "resize them")
        return items
