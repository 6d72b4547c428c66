"""The built-in data sets: scikit-learn's digits and torchvision's image sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import channels_first
from vergence.data.items import Array, ArrayItems, RowNames, Source

__all__ = ["BUILT_IN", "Part", "built_in", "part_named"]

TORCHVISION = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "stl10": "STL10",
}
BUILT_IN = ("digits", *TORCHVISION)
Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class _Images:
    """One part of a torchvision set: images as torchvision keeps them, labels (N,) int64, and the labels' names."""

    images: Array
    labels: Tensor
    classes: tuple[str, ...]


def built_in(name: str, root: str | None, download: bool, parts: Sequence[Part] = PARTS) -> Source:
    """Returns parts of a built-in set, the training part first; ``digits``, which has no parts, as a whole.

    Args:
        name: One of `BUILT_IN`.
        root: Folder that holds torchvision's data sets; ``data`` by default.
        download: Whether torchvision may download what is missing.
        parts: The parts to read.

    Raises:
        ValueError: The set is missing and is not to be downloaded, or cannot be.
    """
    if name == "digits":
        return _digits()
    read = [_torchvision(name, root or "data", download, part) for part in parts]
    rows = torch.cat([torch.arange(len(one.labels)) for one in read])
    test = torch.cat([torch.full((len(one.labels),), part == "test") for part, one in zip(parts, read, strict=True)])
    images = channels_first(np.concatenate([one.images for one in read]), name)
    items = ArrayItems(images, torch.cat([one.labels for one in read]), names=RowNames(rows))
    return Source(items, read[0].classes, test, "official test split")


def part_named(source: str) -> tuple[str, Part] | None:
    """Returns the set and the part that ``NAME`` (its test part), ``NAME:test`` or ``NAME:train`` means; None for other names.

    Raises:
        ValueError: The set is built in, but the part is another.

    Example:
        >>> part_named("digits"), part_named("mnist:train"), part_named("photos")
        (('digits', 'test'), ('mnist', 'train'), None)
    """
    name, colon, part = source.partition(":")
    if name not in BUILT_IN:
        return None
    for known in PARTS:
        if part == known or (known == "test" and not colon):
            return name, known
    raise ValueError(f"expected {name}:train or {name}:test, found {source}")


def _digits() -> Source:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images * (255 / 16)).round().astype(np.uint8)
    return Source(ArrayItems(x[:, None], torch.as_tensor(digits.target)), tuple(str(i) for i in digits.target_names))


def _torchvision(name: str, root: str, download: bool, part: Part) -> _Images:
    from torchvision import datasets

    stl10 = name == "stl10"
    which: dict[str, Any] = {"train": part == "train"}
    if stl10:
        which = {"split": "train+unlabeled" if part == "train" else "test"}
    try:
        opened = getattr(datasets, TORCHVISION[name])(root, download=download, **which)
    except (RuntimeError, OSError, ValueError, AssertionError) as error:  # torchvision's of damaged files
        if download:
            raise ValueError(f"expected to download {name} into {root}, found: {error}; check connection and disk") from None
        hint = "pass --download to fetch it, or --data-root FOLDER where torchvision's copy lies"
        raise ValueError(f"expected {name} in the folder {root}, found it missing or incomplete; {hint}") from None
    labels = torch.as_tensor(opened.labels if stl10 else opened.targets).to(torch.int64)
    return _Images(np.asarray(opened.data), labels, tuple(opened.classes))
