"""Opens data by name or path, or as a program holds them, and splits them; the only module that knows data sets."""

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from vergence.data import images as decoding
from vergence.data.arrays import ON_DISK, channels_first, checked_names, from_array, labels_of, of_table, open_arrays
from vergence.data.config import BUILT_IN, IN_MEMORY, DataConfig, Form, existing, path_of
from vergence.data.items import Array, ArrayItems, Items, PairItems, RowNames, Skipped, Source, at, load
from vergence.data.modalities import ModalityItems, modality_items
from vergence.data.shards import is_sharded, open_shards
from vergence.data.table_files import TABLES, is_table_file, read_table
from vergence.data.tables import as_table
from vergence.utils.checks import expect, refuse, require_choice, require_within, shortened, shown
from vergence.utils.linalg import as_array

__all__ = ["IN_MEMORY", "Data", "absolute", "as_source", "held", "in_words", "is_object", "open_data"]
__all__ += ["open_items", "part_named", "with_shape"]

STREAM_BYTES, STREAM_ITEMS = 2 << 30, 1 << 22  # of a loader that is read once, at most

MIXED = "a list of paths, of PIL images, of tensors or of rows of numbers"
TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10"}
Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
ARRAYS = (".npy", ".npz", *TABLES)
Kind = Literal["image", "vector", "pairs", "array", "tokens", "modalities"]


@dataclass(frozen=True)
class Data:
    """The two parts of a data set."""

    name: str
    kind: Kind
    train: Items  # that the model learns from
    test: Items  # that it is evaluated on
    classes: tuple[str, ...]  # name of each label 0, 1, ...; empty without labels
    skipped: tuple[Skipped, ...]
    note: str  # how the test part was made
    size: int | None = None  # side of the squares that the encoder sees, in pixels (a folder's are read 8/7 as large)
    columns: tuple[str, ...] = ()  # names of the features of a table
    calibration: Items | None = None  # training items that nothing is fitted to, once they are taken out of ``train``
    share: float = 0.0  # of all items that were held out at random; 0 where the source has a test part of its own


def open_data(
    config: DataConfig,
    *,
    source: Any = None,
    column: str | Sequence[str] = (),
    labels: Any = None,
    memory: int = 2 << 30,
    workers: int = 2,
    double: bool = False,
) -> Data:
    """Opens a source and splits it into a training and a test part.

    A folder whose decoded images fit into ``memory`` is decoded once into one array; a larger one is decoded once to check
    it and then streamed. A ``.npy`` file larger than ``memory`` stays on disk; every other array is held whole. A source
    without a test part of its own is split at random with seed 0, each label in the same proportions.

    Data that a program holds are ``source``, with column and labels as of `from_object`; ``config.source`` is their name then.
    With ``double`` vectors that float32 may round (float64 and integers) are read as float64, for closed forms.

    Example:
        >>> data = open_data(DataConfig(source="digits"))
        >>> len(data.train), len(data.test), data.train.shape, data.note
        (1438, 359, (1, 8, 8), '20 % held out at random, seed 0, stratified by label')
    """
    require_within("(0, 1)", holdout=config.holdout)
    if source is not None:
        opened = from_object(
            source, column=column, labels=labels, size=config.size, kind=config.form, memory=memory, double=double
        )
    elif config.source in BUILT_IN:
        opened = built_in(config.source, config.root, config.download)
    elif is_sharded(config.source):
        opened = open_shards(config.source, size=config.size)
    elif _is_array(path := existing(config.source)):
        opened = _open_rows(path, memory, kind=config.form, double=double)
    else:
        opened = decoding.listing(path, size=config.size)
    opened = _readable(opened, config, memory, workers)
    items = opened.items
    expect(config.form in (None, items.kind), f"items of kind {config.form}", f"{items.kind} in {config.source}", "leave it out")
    expect(len(items) >= 4, f"at least 4 items in {config.source}", len(items), "give more data")
    test, note = _holdout(items, config.holdout) if opened.test is None else (opened.test, opened.note)
    train = _of_classes(_masked(items, ~test), opened.classes, config.keep_classes)
    if config.limit is not None and config.limit < len(train):
        train = train.subset(_permutation(len(train))[: config.limit].sort().values)
    held_out = _masked(items, test)
    enough, hint = len(train) >= 2 and len(held_out) >= 1, "give more data, or change holdout, limit or classes"
    expect(enough, "at least 2 items to train on and 1 to test", f"{len(train)} and {len(held_out)}", hint)
    size = opened.size
    if size is None:  # a folder's images are read in their size
        train, held_out = (_sized(part, config.size, memory // 2) for part in (train, held_out))
        size = train.shape[1] if train.kind == "image" and train.shape[1] == train.shape[2] else None
    name = config.source if config.source in BUILT_IN else decoding.written_name(Path(config.source).resolve().name)
    expect(len(getattr(items, "sides", "ab")) > 1, "at least 2 modalities", "1", "give others, or the array itself")
    several: Kind = "modalities" if isinstance(items, ModalityItems) else "pairs"
    kind: Kind = several if isinstance(items, PairItems) else items.kind
    about = (opened.classes, tuple(items.skipped), note, size, opened.columns)
    return Data(name, kind, train, held_out, *about, share=config.holdout if opened.test is None else 0.0)


def open_items(
    source: Any,
    *,
    shape: tuple[int, ...] | None = None,
    size: int = decoding.FOLDER_SIZE,
    root: str | None = None,
    download: bool = False,
    holdout: float = 0.2,
    columns: Sequence[str] = (),
    trained_on: str | None = None,
    kind: Form | None = None,
    gaps: bool = False,
) -> Items:
    """Opens every item of a source, in order, for a model that was trained on items of ``shape``, or for none.

    Images are converted to the shape's channels and size when they are read. Files that cannot be read are skipped while
    streaming. A built-in name means its test part (as `open_data` with this ``holdout`` makes it), ``NAME:train`` the other.

    Args:
        source: A built-in name, or the path of a folder of images, of one image, of a ``.npy``, ``.npz`` or ``.parquet`` file;
            tars and Parquet of encoded images (`vergence.data.shards`); or data that a program holds, see
            `vergence.data.sources.from_object`.
        shape: Shape of one item as it is read: ``data.train.shape``. For pairs it is the context's. None for no model: arrays
            are read as they are, and images of a folder as squares.
        size: Side of these squares, in pixels.
        root: Folder that holds torchvision's data sets.
        download: Whether torchvision may download what is missing.
        holdout: Share of ``digits`` that is its test part, in (0, 1).
        columns: Names of the features that the model was trained on, which are read of a ``.parquet`` file in this order.
        trained_on: Source of the model's training; where it was an array, `Items.conversion` of images in files has their size.
        kind: What an array holds, as of `vergence.data.arrays.from_array`.
        gaps: Whether a file of vectors may have no rows, and rows that are not finite.

    Example:
        >>> open_items("digits", shape=(3, 16, 16)).shape, len(open_items("digits:train", shape=(1, 8, 8)))
        ((3, 16, 16), 1438)
    """
    require_within("(0, 1)", holdout=holdout)
    if is_object(source):
        items = from_object(source, column=columns, size=size, kind=kind, memory=ON_DISK).items
        return _shaped(items, shape, "the data")
    source = str(source)
    if (named := part_named(source)) is not None:
        opened = built_in(named[0], root, download, named[1:])
        test = _holdout(opened.items, holdout)[0] if opened.test is None else opened.test
        return _shaped(_masked(opened.items, test if named[1] == "test" else ~test), shape, source)
    if is_sharded(source):
        expect(shape is None or len(shape) == 3, f"vectors of shape {shape}, as the model was trained on", f"images in {source}")
        return open_shards(source, size=size, shape=shape).items
    path = existing(source)
    if _is_array(path):
        return _shaped(_open_rows(path, ON_DISK, columns, kind=kind, gaps=gaps).items, shape, source)
    expect(shape is None or len(shape) == 3, f"vectors of shape {shape}, as the model was trained on", f"images in {path}")
    files = decoding.listing(path, shape=shape, whole=True).items
    assert isinstance(files, decoding.ImageFiles)
    if shape is None:
        files.shape = (files.shape[0], size, size)
    if trained_on is not None:  # images of files are resized in a training, too
        files.sized = trained_on.partition(":")[0] in BUILT_IN or Path(trained_on).suffix.lower() in ARRAYS
    return files


# Opening


def as_source(value: Any) -> str:
    """Returns a path or a built-in name as text; anything else, such as an array, is an error.

    Example:
        >>> as_source(Path("photos")), as_source("digits")
        ('photos', 'digits')
        >>> as_source(np.zeros((300, 6)))
        Traceback (most recent call last):
        ValueError: expected a path or a built-in name, found an array of shape (300, 6); save it with numpy.save
    """
    if isinstance(value, str | os.PathLike):
        return str(value)
    shape = None if isinstance(value, Items) else getattr(value, "shape", None)
    if shape is not None:
        refuse("a path or a built-in name", f"an array of shape {tuple(shape)}", "save it with numpy.save")
    refuse("a path or a built-in name", shown(value), "give one as text")


def absolute(source: str) -> str:
    """Returns the absolute path of a source that exists; built-in names, and what does not exist, as they are.

    Example:
        >>> absolute("digits"), absolute("no such folder")
        ('digits', 'no such folder')
    """
    named = not source.strip() or source.partition(":")[0] in BUILT_IN or "://" in source
    path = None if named else path_of(source)
    return source if path is None else str(path.absolute())


def _is_array(path: Path) -> bool:
    array = path.is_file() and (path.suffix.lower() in ARRAYS or is_table_file(path))
    usable = path.is_dir() or array or (path.is_file() and path.suffix.lower() in decoding.ENDINGS)
    expect(usable, f"a folder, or a file ending in {' '.join(ARRAYS + decoding.ENDINGS)}", str(path))
    return array


def _open_rows(path: Path, memory: int, columns: Sequence[str] = (), kind: Form | None = None, **how: bool) -> Source:
    if is_table_file(path):
        return of_table(read_table(path, empty=how.get("gaps", False)), path.name, columns, **how)
    return open_arrays(path, memory, kind=kind, **how)


def _readable(source: Source, config: DataConfig, memory: int, workers: int) -> Source:
    """Returns the image files that can be read, in memory if they fit; other items as they are."""
    if not isinstance(source.items, decoding.DecodedImages):
        return source
    fits = len(source.items) * math.prod(source.items.shape) <= memory
    items, index = decoding.readable(source.items, keep_pixels=fits, strict=config.strict, workers=workers)
    return dataclasses.replace(source, items=items, test=None if source.test is None else source.test[index])


def _sized(items: Items, size: int | None, memory: int) -> Items:
    """Resizes images to ``size``: at once if the result fits into ``memory``, otherwise when they are read."""
    if isinstance(items, PairItems):
        return items.mapped(lambda side: _sized(side, size, memory // len(items.sides)))
    if size is None or not isinstance(items, ArrayItems) or items.kind != "image" or items.shape[1:] == (size, size):
        return items
    resized = items.shaped((items.shape[0], size, size))
    fits = len(items) * math.prod(resized.shape) * resized.dtype.itemsize <= memory
    return load(resized)[0] if fits else resized


def _shaped(items: Items, shape: tuple[int, ...] | None, name: str) -> Items:
    if shape is None:
        return items
    if isinstance(items, PairItems):
        return PairItems(with_shape(items.context, shape, name), items.target)
    if isinstance(items, decoding.DecodedImages) and len(shape) == 3:
        return items.shaped(shape)
    if isinstance(items, ArrayItems):
        return with_shape(items, shape, name)
    expect(items.shape == shape, f"items of shape {shape}, as the model was trained on", f"{items.shape} in {name}")
    return items


def with_shape(items: ArrayItems, shape: tuple[int, ...], name: str) -> ArrayItems:
    """Returns images resized to a shape on read, or vectors of that shape as they are; items of another kind are an error."""
    fits = items.shape == shape or (len(shape) == 3 and items.kind == "image")  # images are read in any size
    form = "images" if len(shape) == 3 and not items.form else f"items of shape {shape}"
    expect(fits, f"{form}, as the model was trained on", f"{items.shape} in {name}")
    return items if items.shape == shape else items.shaped(shape)


# Splitting


def _masked(items: Items, mask: Tensor) -> Items:
    return items.subset(mask.nonzero()[:, 0])


def _permutation(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def _holdout(items: Items, share: float) -> tuple[Tensor, str]:
    """Returns the (N,) bool mask of a systematic sample of a random order sorted by label, and its description."""
    n = len(items)
    order = _permutation(n)
    if items.labels is not None:
        order = order[items.labels[order].argsort(stable=True)]
    steps = (torch.arange(n + 1, dtype=torch.float64) * share + 0.5).floor()
    mask = torch.zeros(n, dtype=torch.bool)
    mask[order] = steps[1:] > steps[:-1]
    stratified = "" if items.labels is None else ", stratified by label"
    return mask, f"{100 * share:g} % held out at random, seed 0{stratified}"


def _of_classes(train: Items, classes: tuple[str, ...], keep: tuple[int, ...] | None) -> Items:
    if keep is None:
        return train
    if (labels := train.labels) is None:
        refuse("labels to keep some classes of", "none", "leave out keep-classes, or give labels")
    numbers = [i for i in np.unique(labels.numpy()).tolist() if i >= 0]
    there = ", ".join(str(i) if classes[i] == str(i) else f"{i} ({classes[i]})" for i in numbers)
    expect(keep and set(keep) <= set(numbers), f"classes to keep among {there}", ", ".join(map(str, keep)) or "none")
    return _masked(train, torch.isin(labels, torch.tensor(keep)))


# Built-in sets


def built_in(name: str, root: str | None, download: bool, parts: Sequence[Part] = PARTS) -> Source:
    """Returns parts of a built-in set, the training part first; ``digits``, which has no parts, as a whole."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = (digits.images * (255 / 16)).round().astype(np.uint8)
        return Source(ArrayItems(x[:, None], torch.as_tensor(digits.target)), tuple(map(str, digits.target_names)))
    read = [_torchvision(name, root or "data", download, part) for part in parts]
    rows = torch.cat([torch.arange(len(labels)) for _, labels, _ in read])
    test = torch.cat([torch.full((len(labels),), part == "test") for part, (_, labels, _) in zip(parts, read, strict=True)])
    images = channels_first(np.concatenate([images for images, _, _ in read]), name)
    items = ArrayItems(images, torch.cat([labels for _, labels, _ in read]), names=RowNames(rows))
    return Source(items, read[0][2], test, "official test split")


def part_named(source: str) -> tuple[str, Part] | None:
    """Returns the set and the part that ``NAME`` (its test part), ``NAME:test`` or ``NAME:train`` means; None for other names.

    Example:
        >>> part_named("digits"), part_named("mnist:train"), part_named("photos")
        (('digits', 'test'), ('mnist', 'train'), None)
    """
    name, colon, part = source.partition(":")
    if name not in BUILT_IN:
        return None
    expect(part in PARTS or not colon, f"{name}:train or {name}:test", source)
    return name, "train" if part == "train" else "test"


def _torchvision(name: str, root: str, download: bool, part: Part) -> tuple[Array, Tensor, tuple[str, ...]]:
    """Returns one part of a set: images as torchvision keeps them, labels (N,) int64, and the labels' names."""
    from torchvision import datasets

    stl10, train = name == "stl10", part == "train"
    which: dict[str, Any] = {"split": "train+unlabeled" if train else "test"} if stl10 else {"train": train}
    try:
        opened = getattr(datasets, TORCHVISION[name])(root, download=download, **which)
    except (RuntimeError, OSError, ValueError, AssertionError) as error:  # torchvision's of damaged files
        hint = "check connection and disk" if download else "pass `download=True`, or `root=FOLDER` where torchvision's copy lies"
        raise ValueError(f"expected {name} in the folder {root}, found: {shortened(error)}; {hint}") from None
    labels = torch.as_tensor(opened.labels if stl10 else opened.targets).to(torch.int64)
    return np.asarray(opened.data), labels, tuple(opened.classes)


# What a program holds


def is_object(source: Any) -> bool:
    """Returns whether a source is the data themselves, not a path or a name.

    Example:
        >>> is_object("photos"), is_object(Path("photos")), is_object(np.zeros((3, 2))), is_object(["a.png"])
        (False, False, True, True)
    """
    return not isinstance(source, str | os.PathLike)


def in_words(source: Any) -> str:
    """Returns the name that a run's description has for data that a program holds."""
    parts = source if isinstance(source, tuple) and len(source) == 2 else (source,)
    words = []
    for part in parts:
        counted = hasattr(part, "__len__") and not _is_stream(part)  # a loader's length is that of its batches
        shape, n = getattr(part, "shape", None), f" ({len(part):,} items)" if counted else ""
        words.append(type(part).__name__ + (f" ({', '.join(map(str, shape))})" if isinstance(shape, Sequence) else n))
    return IN_MEMORY + ", ".join(words)


def from_object(
    source: Any,
    *,
    column: str | Sequence[str] = (),
    labels: Any = None,
    size: int | None = None,
    kind: Form | None = None,
    memory: int = 2 << 30,
    double: bool = False,
) -> Source:
    """Opens data that a program holds.

    ======================================== ==========================================================================
    array or tensor                          images, vectors or other numbers (N, ...): see `from_array`
    list of paths                            image files
    list of PIL images                       images; of several sizes they become squares, as those of a folder
    list of tensors, or of rows              one array
    tuple (context, target)                  pairs; each of them any of the above that is an array, or a table
    dictionary of arrays or tables           modalities by name; rows that are wholly NaN, or wholly masked, are missing
    pandas, polars or Arrow table            features: see `vergence.data.arrays.of_table`; or paths in a column
    `torch.utils.data.Dataset`               what it holds, or the first of each tuple; whole numbers that follow are labels
    `DataLoader`, `IterableDataset`, stream  the same, read once and held (see `held`); texts that follow are names
    `Items`                                  the items
    ======================================== ==========================================================================

    Args:
        source: The data.
        column: Of a table, the column of lists of numbers or of paths of images, or the columns of features. Of a data set
            whose items are dictionaries, the key of the image or vector.
        labels: Labels (N,): whole numbers >= -1 (-1: unknown), or texts.
        size: Side of the squares that images of several sizes become, in pixels, 8/7 of it to be cropped; 64 by default.
        kind: What arrays hold, as of `from_array`.
        memory: Bytes up to which the items of a data set are read once and held; more are read anew for each batch.
        double: Whether vectors that float32 may round are read as float64.
    """
    how: dict[str, Any] = {"kind": kind, "double": double}
    opened = _from(source, (column,) if isinstance(column, str) else tuple(column), size, memory, how)
    if labels is None:
        return opened
    given = as_array(labels) if isinstance(labels, Tensor) else np.asarray(labels)
    values, classes = labels_of(given, len(opened.items), "labels", "the data")
    opened.items.labels = values
    return Source(opened.items, classes, opened.test, opened.note, opened.size, opened.columns)


def _from(source: Any, columns: tuple[str, ...], size: int | None, memory: int, how: Mapping[str, Any]) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, Items):
        return Source(source)
    if isinstance(source, Mapping):
        return Source(modality_items(source, lambda part: _from(part, (), size, memory, how).items))
    if isinstance(source, tuple) and len(source) == 2:
        expect(how["kind"] != "tokens", "single items of kind tokens", "pairs", "give each side as an array")
        context, target = (_from(part, (), size, memory, how).items for part in source)
        if not isinstance(context, ArrayItems) or not isinstance(target, ArrayItems):
            refuse("arrays or tables as context and target", " and ".join(map(_in_short, source)))
        return Source(PairItems(context, target))
    if (table := as_table(source)) is not None:
        return _of_table(table, columns, size, how["double"])
    if isinstance(source, Tensor | np.ndarray):
        return Source(from_array(source, **how))
    if isinstance(source, list | tuple):
        return _of_list(source, size, how)
    if hasattr(source, "__array__"):
        return Source(from_array(np.asarray(source), **how))
    if _is_stream(source):
        return _of_stream(source, columns[0] if columns else None, form=how["kind"])
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping):
        return _of_dataset(source, columns[0] if columns else None, memory, how["kind"])
    refuse("data that have a length and rows", _in_short(source), "give a path, a built-in name or an array")


def _in_short(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"


def _of_table(table: Any, columns: tuple[str, ...], size: int | None, double: bool) -> Source:
    for name in columns:
        require_choice("a column", name, table.column_names)
    if len(columns) == 1:
        values = table[columns[0]].to_pylist()
        if values and all(isinstance(value, str) for value in values):
            return _of_files(values, size)
    return of_table(table, "the table", columns, double=double)


def _of_list(values: Sequence[Any], size: int | None, how: Mapping[str, Any]) -> Source:
    from PIL import Image

    expect(values, MIXED, "an empty list")
    if all(isinstance(value, str | os.PathLike) for value in values):
        return _of_files(values, size)
    if all(isinstance(value, Image.Image) for value in values):
        return _of_images(values, size)
    try:
        rows = torch.stack(list(values)) if all(isinstance(v, Tensor) for v in values) else np.asarray(values)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"expected {MIXED} of one shape, found other ones: {error}") from None
    expect(isinstance(rows, Tensor) or rows.dtype.kind in "iufb", MIXED, _in_short(values[0]))
    return Source(from_array(rows, "the list", **how))


def _of_files(paths: Sequence[Any], size: int | None) -> Source:
    """Opens image files anywhere; their names are relative to the folder that all of them have in common."""
    absolute = [str(Path(path).expanduser().absolute()) for path in paths]
    folder = Path(os.path.commonpath([str(Path(path).parent) for path in absolute]))
    return decoding.image_files(folder, [decoding.written_name(str(Path(path).relative_to(folder))) for path in absolute], size)


def _of_images(images: Sequence[Any], size: int | None) -> Source:
    """Opens PIL images: in their size if all have one, else as squares."""
    sizes = {(image.height, image.width) for image in images}
    side, shape = decoding.canvas(size, decoding.channels(image.mode for image in images))
    shape = (shape[0], *sizes.pop()) if len(sizes) == 1 else shape
    items = ArrayItems(np.stack([decoding.image_pixels(image, shape) for image in images]))
    return Source(items, size=side if sizes else None)


class DatasetItems(Items):
    """Items of a data set that is read by index, such as a `torch.utils.data.Dataset`.

    An item is a tensor, an array or a PIL image: an image (C, H, W) or (H, W), (H, W, C) of arrays and PIL images, in uint8 or
    as floats in [0, 1]; a vector (D,); or what ``form`` says, as it is. Of a tuple the first is the item; of a dictionary the one
    under ``key``. ``rows`` (M,) are the items to read, all by default.
    """

    chunk = decoding.DECODE_BATCH

    def __init__(
        self, dataset: Any, key: str | None = None, rows: Tensor | None = None, labels: Tensor | None = None, form: str = ""
    ) -> None:
        self.dataset, self.key, self.form = dataset, key, form
        self.rows = torch.arange(len(dataset)) if rows is None else rows
        self.labels, self.names, self.skipped = labels, RowNames(self.rows), []
        first = _item(dataset[int(self.rows[0])], key, form)
        self.shape = first.shape
        self.dtype = {"u": torch.uint8, "i": torch.int64}.get(first.dtype.kind, torch.float32)

    def checked(self, row: int) -> Array:
        """Returns an item, of the first item's shape."""
        item = _item(self.dataset[row], self.key, self.form)
        expect(item.shape == self.shape, f"items of shape {self.shape}", f"{item.shape} at {row}", "resize the data set's items")
        return item

    def read(self, index: Tensor | Array) -> tuple[Array, Array, list[Skipped]]:
        """Returns (index, items (B, *shape), nothing); see `vergence.data.images.ImageFiles.read`."""
        items = [self.checked(row) for row in self.rows[torch.as_tensor(index)].tolist()]
        return np.asarray(index), np.stack(items) if items else np.empty((0, *self.shape), np.float32), []

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for index, items, _ in map(self.read, batches) if workers == 0 else decoding.parallel(self.read, batches, workers):
            yield torch.from_numpy(index), torch.from_numpy(items).to(self.dtype)

    def subset(self, index: Tensor) -> "DatasetItems":
        return DatasetItems(self.dataset, self.key, self.rows[index], at(self.labels, index), self.form)


def _item(value: Any, key: str | None, form: str | None) -> Array:
    """Returns what a data set gives (of a tuple the first, of a dictionary the key's): uint8 or float32 (C, H, W) or (D,)."""
    from PIL import Image

    if isinstance(value, Mapping):
        require_choice("a column", key, value, "name the image or vector with column=")
        value = value[key]
    elif isinstance(value, tuple | list):
        value = value[0]
    if isinstance(value, Image.Image):
        return decoding.image_pixels(value, (decoding.channels([value.mode]), value.height, value.width))
    x = as_array(value) if isinstance(value, Tensor) else np.asarray(value)
    if form in ("array", "tokens"):
        return x.astype(np.int64 if form == "tokens" and x.dtype.kind in "iu" else np.float32)
    usable = x.dtype.kind in "iuf" and x.ndim in (1, 2, 3) and x.size
    expect(usable, "images or vectors in the data set", _in_short(value), "return one of them, or a tuple")
    if x.ndim == 1:
        return x.astype(np.float32)
    x = x[None] if x.ndim == 2 else np.moveaxis(x, 2, 0) if x.shape[2] in (1, 3) and x.shape[0] not in (1, 3) else x
    return np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))


def _of_dataset(dataset: Any, key: str | None, memory: int, kind: Form | None) -> Source:
    """Opens a data set; one that fits into memory is read once, with what stands second in its items where they are tuples."""
    expect(len(dataset), "at least 1 item in the data set", _in_short(dataset))
    items = DatasetItems(dataset, key, form=kind if kind in ("array", "tokens") else "")
    found = Source(items)
    if len(items) * int(np.prod(items.shape)) * items.dtype.itemsize <= memory:
        found = _of_stream((dataset[i] for i in range(len(items))), key, len(items), kind)
    values = getattr(dataset, "targets", getattr(dataset, "labels", None))
    if values is None or len(values) != len(items) or np.ndim(values[0]) or np.asarray(values[0]).dtype.kind not in "biu":
        return found
    found.items.labels, numbers = labels_of(np.asarray([int(value) for value in values]), len(items), "labels", "the data set")
    names = tuple(map(str, getattr(dataset, "classes", ())))
    return Source(found.items, names if len(names) >= len(numbers) else numbers)


# Loaders and other streams


def held(source: Any, column: str | Sequence[str] = (), limit: Any = None, holdout: Any = 0.0, kind: Form | None = None) -> Any:
    """Returns what a loader or another stream gives, read once in its order and with its transforms; other data as they are.

    Of a stream without an end, a ``limit`` of training items reads as many as leave it next to the held-out share.

    Example:
        >>> held(torch.ones(3) for _ in range(4)).items.shape, held("digits")
        ((3,), 'digits')
    """
    if not _is_stream(source):
        return source
    most = math.ceil(limit / (1 - holdout)) if isinstance(limit, int) and limit > 0 and 0 <= holdout < 1 else None
    return _of_stream(source, column if isinstance(column, str) else next(iter(column), ""), most, kind)


def _is_stream(source: Any) -> bool:
    whole = any(hasattr(source, name) for name in ("__getitem__", "__array__", "__arrow_c_stream__"))
    return isinstance(source, DataLoader | IterableDataset) or (isinstance(source, Iterable) and not whole)


def _of_stream(source: Iterable[Any], key: str | None, most: int | None = None, form: Form | None = None) -> Source:
    """Returns the items of a stream, at most so many, with their labels and names where each has one."""
    x: list[Array] = []
    along: dict[type, list[Any]] = {int: [], str: []}
    fits = f"at most {STREAM_BYTES >> 20:,} MiB and {STREAM_ITEMS:,} items in a stream, which is held"
    for n, (value, others) in enumerate(itertools.islice(_each(source, key), most)):
        item = np.asarray(value) if isinstance(value, list) else value
        x.append(_item(item, key, form))
        first, last = (f"{one.shape} in {one.dtype}" for one in (x[0], x[-1]))
        expect(first == last, f"items of shape {first}", f"{last} at {n}", "resize or convert the items")
        within = most is not None or n < min(STREAM_ITEMS, STREAM_BYTES // x[0].nbytes)
        expect(within, fits, f"more after {n:,}", "train with limit=, or end it with itertools.islice")
        for kind in along:  # the first of each
            along[kind] += [kind(one) for one in others if isinstance(one, str) == (kind is str)][:1]
    expect(x, "at least 1 item in the stream", f"a {type(source).__name__} without any", "make it anew if it was read before")
    found = Source(from_array(np.stack(x), "the stream", kind=form))
    if len(set(along[str])) == len(x):
        found.items.names = checked_names(np.asarray(along[str]), len(x), "the stream")
    if len(along[int]) < len(x):
        return found
    found.items.labels, classes = labels_of(np.asarray(along[int]), len(x), "labels", "the stream")
    return Source(found.items, classes)


def _each(source: Iterable[Any], key: str | None) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each item of a stream, or of its batches; of views the first; with the whole numbers and texts that come along."""
    batched = isinstance(source, DataLoader) and source.batch_sampler is not None
    for value in source:
        if batched and _lists_items(value):
            yield from _each(iter(value), key)
            continue
        if isinstance(value, Mapping):
            require_choice("a column", key, value, "name the image or vector with column=")
            value = value[key], *(value[name] for name in ("label", "cls", "name", "__key__") if name in value)
        x, *others = value if isinstance(value, tuple | list) else (value,)
        x = x[0] if isinstance(x, tuple | list) and x and hasattr(x[0], "size") else x
        several = batched or getattr(x, "ndim", 0) == 4
        columns = [one for one in others if isinstance(one, tuple | list) or getattr(one, "ndim", 0) == 1] if several else []
        for i, item in enumerate(x if several else [x]):
            yield item, list(filter(_tells, [one[i] for one in columns if len(one) == len(x)] if several else others))


def _tells(one: Any) -> bool:
    """Returns whether something that comes with an item may be its label or name: a whole number or a text."""
    return isinstance(one, str | int) or (getattr(one, "ndim", 1) == 0 and np.asarray(one).dtype.kind in "biu")


def _lists_items(batch: Any) -> bool:
    """Returns whether a batch is a list of items, as of ``collate_fn=list``, and not one of columns or of views."""
    first = batch[0] if isinstance(batch, list | tuple) and batch else None
    if isinstance(first, list | tuple):
        return not all(getattr(part, "ndim", 0) > 1 for part in first)
    return first is not None and not hasattr(first, "shape")
