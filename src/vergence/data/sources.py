"""Where the items come from: built-in sets, folders of images, arrays and pairs. The only place that knows data sets."""

import dataclasses
import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import Source, channels_first, from_array, open_arrays
from vergence.data.config import DataConfig
from vergence.data.folders import ENDINGS, base, channels, listing, readable
from vergence.data.images import ImageFiles
from vergence.data.items import ArrayItems, Items, PairItems, RowNames, Skipped, batches
from vergence.data.loading import load

__all__ = [
    "BUILT_IN",
    "ArrayItems",
    "Data",
    "ImageFiles",
    "Items",
    "PairItems",
    "Skipped",
    "batches",
    "from_array",
    "open_data",
    "open_items",
]

TORCHVISION = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "stl10": "STL10",
}
BUILT_IN = ("digits", *TORCHVISION)
FOLDER_SIZE = 64
Kind = Literal["image", "vector", "pairs"]


@dataclass(frozen=True)
class Data:
    """The two parts of a data set.

    Attributes:
        name: What the source is called.
        kind: ``image``, ``vector`` or ``pairs``.
        train: What the model learns from.
        test: What it is evaluated on.
        classes: Name of each label 0, 1, ...; empty where there are no labels.
        skipped: What could not be read.
        note: How the test part was made.
        size: Side of the square images that the encoder sees, in pixels (a folder's are read 8/7 as large, to be cropped);
            None for vectors, and for images that are not square.
    """

    name: str
    kind: Kind
    train: Items
    test: Items
    classes: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    note: str
    size: int | None = None


def open_data(config: DataConfig, *, memory: int = 2 << 30, workers: int = 2) -> Data:
    """Opens a source and splits it into a training and a test part.

    A folder whose decoded images fit into ``memory`` is decoded once into one array; a larger one is decoded once to check
    it and then streamed. A ``.npy`` file larger than ``memory`` stays on disk; every other array is held whole. A source
    without a test part of its own is split at random with seed 0, each label in the same shares.

    Args:
        config: The source and how it is read.
        memory: Most bytes for decoded items.
        workers: Processes that decode.

    Raises:
        ValueError: The source is missing, empty, of an unknown kind or holds what cannot be used, or the settings ask for
            what it does not have.

    Example:
        >>> data = open_data(DataConfig(source="digits"))
        >>> len(data.train), len(data.test), data.train.shape, data.note
        (1438, 359, (1, 8, 8), '20 % held out at random, seed 0, stratified by label')
    """
    _check_settings(config)
    source = _open(config, memory, workers)
    items, n = source.items, len(source.items)
    if n < 4:
        raise ValueError(f"expected at least 4 items in {config.source}, found {n}; give more data")
    test, note = _holdout(items, config.holdout) if source.test is None else (source.test, source.note)
    train = _limited(_kept(items.subset(_where(~test)), source.classes, config.keep_classes), config.limit)
    held_out = items.subset(_where(test))
    if len(train) < 2 or len(held_out) < 1:
        found = f"found {len(train)} and {len(held_out)}; give more data, or change holdout, limit or classes"
        raise ValueError(f"expected at least 2 items to train on and 1 to test, {found}")
    name = config.source if config.source in BUILT_IN else Path(config.source).resolve().name
    return Data(name, _kind(items), train, held_out, source.classes, tuple(items.skipped), note, source.size)


def open_items(
    source: str,
    *,
    shape: tuple[int, ...],
    root: str | None = None,
    download: bool = False,
    holdout: float = 0.2,
    strict: bool = False,
    memory: int = 2 << 30,
    workers: int = 2,
) -> Items:
    """Opens every item of a source in its order, as a model reads them that was trained on items of ``shape``.

    Images are brought to the shape's channels and size on read. Files that cannot be read are skipped while streaming.
    A built-in name gives its test part (as `open_data` with this ``holdout`` makes it), ``NAME:train`` the other.

    Args:
        source: A built-in name, or the path of a folder of images, of one image, of a ``.npy`` or a ``.npz`` file.
        shape: Of one item as read: ``data.train.shape``. Of pairs it is the context's.
        root: Folder that holds torchvision's data sets.
        download: Whether torchvision may download what is missing.
        holdout: Share of ``digits`` that is its test part.
        strict: Decode every file first, and refuse unreadable ones.
        memory: A ``.npy`` file of more bytes stays on disk.
        workers: Processes that decode in the check of ``strict``.

    Raises:
        ValueError: As `open_data`; or the items are not of a kind that the model takes.

    Example:
        >>> open_items("digits", shape=(3, 16, 16)).shape, len(open_items("digits:train", shape=(1, 8, 8)))
        ((3, 16, 16), 1438)
    """
    name, _, part = source.partition(":")
    if name in BUILT_IN:
        return _shaped(_built_in_part(name, part or "test", root, download, holdout), shape, source)
    path = _existing(source)
    if _is_array(path):
        return _shaped(open_arrays(path, memory).items, shape, source)
    return _image_files(path, shape, strict, workers)


def _check_settings(config: DataConfig) -> None:
    if not 0 < config.holdout < 1:
        raise ValueError(f"expected a holdout in (0, 1), found {config.holdout}")
    if config.limit is not None and config.limit < 2:
        raise ValueError(f"expected a limit of at least 2 items, found {config.limit}")
    if config.size is not None and config.size < 1:
        raise ValueError(f"expected a size of at least 1 pixel, found {config.size}")


def _kind(items: Items) -> Kind:
    if isinstance(items, PairItems):
        return "pairs"
    return "image" if len(items.shape) == 3 else "vector"


# Opening


def _open(config: DataConfig, memory: int, workers: int) -> Source:
    if config.source in BUILT_IN:
        return _sized(_built_in(config.source, config.root, config.download, ("train", "test")), config.size, memory)
    path = _existing(config.source)
    if _is_array(path):
        return _sized(open_arrays(path, memory), config.size, memory)
    return _folder(path, config, memory, workers)


def _existing(source: str) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    near = difflib.get_close_matches(source.lower(), BUILT_IN, 1) if Path(source).name == source else []
    hint = f"did you mean {near[0]}?" if near else f"give a path, or one of {', '.join(BUILT_IN)}"
    raise ValueError(f"expected data at {source}, found no such file or folder; {hint}")


def _is_array(path: Path) -> bool:
    arrays = (".npy", ".npz")
    if path.is_file() and path.suffix.lower() not in (*arrays, *ENDINGS):
        raise ValueError(f"expected a folder, or a file ending in {' '.join(arrays + ENDINGS)}, found {path}")
    return path.is_file() and path.suffix.lower() in arrays


def _folder(path: Path, config: DataConfig, memory: int, workers: int) -> Source:
    found = listing(path)
    size = config.size or FOLDER_SIZE
    canvas = math.ceil(size * 8 / 7)
    shape = (channels(base(path), found.names), canvas, canvas)
    files = ImageFiles(base(path), found.names, shape, found.labels)
    fits = len(files) * math.prod(shape) <= memory
    items, kept = readable(files, keep_pixels=fits, strict=config.strict, workers=workers)
    return Source(items, found.classes, None if found.test is None else found.test[kept], found.note, size)


def _sized(source: Source, size: int | None, memory: int) -> Source:
    """Brings images to ``size``, in memory where they fit there and on read where not."""
    items = source.items
    if size is not None and isinstance(items, PairItems):
        sized: Items = PairItems(_resized(items.context, size, memory // 2), _resized(items.target, size, memory // 2))
    elif size is not None and isinstance(items, ArrayItems):
        sized = _resized(items, size, memory)
    else:
        sized = items
    square = len(sized.shape) == 3 and sized.shape[1] == sized.shape[2]
    return dataclasses.replace(source, items=sized, size=sized.shape[1] if square else None)


def _resized(items: ArrayItems, size: int, memory: int) -> ArrayItems:
    if len(items.shape) != 3 or items.shape[1:] == (size, size):
        return items
    resized = items.shaped((items.shape[0], size, size))
    fits = len(items) * math.prod(resized.shape) * resized.dtype.itemsize <= memory
    return load(resized)[0] if fits else resized


def _shaped(items: Items, shape: tuple[int, ...], name: str) -> Items:
    if isinstance(items, PairItems):
        return PairItems(_shaped_rows(items.context, shape, name), items.target)
    assert isinstance(items, ArrayItems), "built-in sets and NumPy files are arrays"
    return _shaped_rows(items, shape, name)


def _shaped_rows(items: ArrayItems, shape: tuple[int, ...], name: str) -> ArrayItems:
    if len(items.shape) != len(shape) or (len(shape) == 1 and items.shape != shape):
        raise ValueError(f"expected items of shape {shape}, as the model was trained on, found {items.shape} in {name}")
    return items if items.shape == shape else items.shaped(shape)


def _image_files(path: Path, shape: tuple[int, ...], strict: bool, workers: int) -> Items:
    if len(shape) != 3:
        raise ValueError(f"expected vectors of shape {shape}, as the model was trained on, found images in {path}")
    found = listing(path)
    files = ImageFiles(base(path), found.names, shape, found.labels)
    return readable(files, keep_pixels=False, strict=True, workers=workers)[0] if strict else files


# Splitting


def _where(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]


def _permutation(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def _holdout(items: Items, share: float) -> tuple[Tensor, str]:
    """Returns the (N,) bool mask of a systematic sample of a random order sorted by label, and the note on it."""
    n = len(items)
    order = _permutation(n)
    if items.labels is not None:
        order = order[items.labels[order].argsort(stable=True)]
    steps = (torch.arange(n + 1, dtype=torch.float64) * share + 0.5).floor()
    mask = torch.zeros(n, dtype=torch.bool)
    mask[order] = steps[1:] > steps[:-1]
    stratified = "" if items.labels is None else ", stratified by label"
    return mask, f"{100 * share:g} % held out at random, seed 0{stratified}"


def _kept(train: Items, classes: tuple[str, ...], keep: tuple[int, ...] | None) -> Items:
    if keep is None:
        return train
    if train.labels is None:
        raise ValueError("expected labels to keep some classes of, found none; leave out keep-classes, or give labels")
    known = [i for i in np.unique(train.labels.numpy()).tolist() if i >= 0]
    if not keep or set(keep) - set(known):
        there = ", ".join(str(i) if classes[i] == str(i) else f"{i} ({classes[i]})" for i in known)
        raise ValueError(f"expected classes to keep among {there}; found {', '.join(map(str, keep)) or 'none'}")
    return train.subset(_where(torch.isin(train.labels, torch.tensor(keep))))


def _limited(train: Items, limit: int | None) -> Items:
    if limit is None or limit >= len(train):
        return train
    return train.subset(_permutation(len(train))[:limit].sort().values)


# Built-in sets


def _built_in(name: str, root: str | None, download: bool, parts: Sequence[str]) -> Source:
    if name == "digits":
        return _digits()
    sets = [_torchvision(name, root or "data", download, part == "train") for part in parts]
    x = np.concatenate([np.asarray(one.data) for one in sets])
    labels = [torch.as_tensor(one.labels if name == "stl10" else one.targets).to(torch.int64) for one in sets]
    rows = torch.cat([torch.arange(len(y)) for y in labels])
    test = torch.cat([torch.full((len(y),), part == "test") for part, y in zip(parts, labels, strict=True)])
    items = ArrayItems(channels_first(x, name), torch.cat(labels), names=RowNames(rows))
    return Source(items, tuple(sets[0].classes), test, "official test split")


def _built_in_part(name: str, part: str, root: str | None, download: bool, holdout: float) -> Items:
    if part not in ("train", "test"):
        raise ValueError(f"expected {name}:train or {name}:test, found {name}:{part}")
    source = _built_in(name, root, download, (part,))
    test = _holdout(source.items, holdout)[0] if source.test is None else source.test
    return source.items.subset(_where(test if part == "test" else ~test))


def _digits() -> Source:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images * (255 / 16)).round().astype(np.uint8)
    return Source(ArrayItems(x[:, None], torch.as_tensor(digits.target)), tuple(str(i) for i in digits.target_names))


def _torchvision(name: str, root: str, download: bool, train: bool) -> Any:
    from torchvision import datasets

    which = {"split": "train+unlabeled" if train else "test"} if name == "stl10" else {"train": train}
    try:
        return getattr(datasets, TORCHVISION[name])(root, download=download, **which)
    except (RuntimeError, OSError) as error:
        if download:
            raise ValueError(f"expected to download {name} into {root}, found: {error}; see connection and disk") from None
        hint = "pass --download to fetch it, or --data-root FOLDER where torchvision's copy lies"
        raise ValueError(f"expected {name} in the folder {root}, found it missing or incomplete; {hint}") from None
