"""Augmentations that consist of named operations, and the same without one of them."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vergence.data.views import ImageViews, VectorViews, Views
from vergence.linear.reading import Augmentation, Featured

__all__ = ["IMAGES", "VECTORS", "Composed", "left_out"]

# An operation's name -> the field of its strength, and the strength that leaves an item as it is
IMAGES: Mapping[str, tuple[str, Any]] = {
    "crop": ("crop", (1.0, 1.0)),
    "flip": ("flip", 0.0),
    "jitter": ("jitter_p", 0.0),
    "grayscale": ("grayscale", 0.0),
    "blur": ("blur", 0.0),
    "solarize": ("solarize", 0.0),
}
VECTORS: Mapping[str, tuple[str, Any]] = {name: (name, 0.0) for name in ("noise", "mask", "scale")}


class Composed:
    """Named augmentations, applied one after the other.

    Example:
        >>> f = Composed({"double": lambda X, generator: 2 * X, "add": lambda X, generator: X + 1})
        >>> f(torch.ones(1, 1), torch.Generator())
        tensor([[3.]])
    """

    def __init__(self, parts: Mapping[str, Augmentation]) -> None:
        self.parts = dict(parts)

    def __call__(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Returns X after all parts."""
        for part in self.parts.values():
            X = part(X, generator)
        return X


def left_out(augmentation: Any) -> Iterator[tuple[str, Augmentation]]:
    """Yields each operation's name and the augmentation without it; nothing if the augmentation has no named operations."""
    if isinstance(augmentation, Featured):
        yield from ((name, Featured(rest, augmentation.features)) for name, rest in left_out(augmentation.augmentation))
    elif isinstance(augmentation, Composed):
        for name in augmentation.parts:
            yield name, Composed({k: v for k, v in augmentation.parts.items() if k != name})
    elif isinstance(augmentation, (ImageViews, VectorViews)):
        for name, (field, neutral) in (IMAGES if isinstance(augmentation, ImageViews) else VECTORS).items():
            config = dataclasses.replace(augmentation.config, **{field: neutral})
            if config != augmentation.config:
                yield name, _with(augmentation, config)


def _with(views: ImageViews | VectorViews, config: Any) -> Views:
    if isinstance(views, ImageViews):
        return ImageViews(config, views.size)
    return VectorViews(config, views.mean, views.std)
