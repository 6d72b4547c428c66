"""Images in a folder: listed, checked and labeled.

An item's name is its path relative to the folder, with ``/`` between folders. A path that is not valid Unicode is written
as ``bytes:`` and its bytes in percent form (``bytes:caf%E9.png``), so that tables, JSON and pages can hold every name and
none is lost; `vergence.data.images.file_name` returns the path itself.

Symbolic links are followed, and each real file is listed once: under its own path if that lies in the folder, otherwise
under the first link to it. The other links are in `Listing.skipped`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vergence.data.images import ImageFiles, channels, written_name
from vergence.data.items import Items, Skipped
from vergence.data.loading import load, watched

__all__ = ["ENDINGS", "Listing", "base", "channels", "listing", "readable"]

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


@dataclass(frozen=True)
class Listing:
    """The image files of a folder.

    Attributes:
        names: Relative paths, as `written_name` writes them, sorted within each part.
        labels: (N,) int64, -1 for images beside the class folders; None for fewer than two classes.
        classes: Name of each label.
        test: (N,) bool, the folder's own test part; None if it has none.
        note: Description of that part.
        skipped: Links to files and folders that are listed already.
    """

    names: list[str]
    labels: Tensor | None
    classes: tuple[str, ...]
    test: Tensor | None
    note: str
    skipped: list[Skipped]


def base(path: Path) -> Path:
    """Returns the folder that names are relative to: the path itself, or the folder of a single file."""
    return path if path.is_dir() else path.parent


def listing(path: Path, *, whole: bool = False) -> Listing:
    """Lists the images of a folder, or a single one; hidden files and folders are left out.

    Sub-folders ``train`` and ``test`` (or ``val``) are its parts; what lies beside them is not read, and is listed as skipped.
    The first folder below (a part of) it is an image's class; images beside such folders have the label -1. With fewer than two
    classes there are no labels.

    Args:
        path: The folder, or an image.
        whole: Whether ``val`` is read beside ``test``, too: where every image is wanted and no part is set apart.

    Raises:
        ValueError: There is no image, or a folder cannot be listed.
    """
    parts = [part for part in ("test", "val") if path.is_dir() and (path / part).is_dir() and (path / "train").is_dir()]
    parts = parts if whole else parts[:1]
    names, skipped = _images_below(path, ["train", *parts] if parts else [""])
    for entry in _entries(path) if parts else ():
        if entry.name not in ("train", *parts) and (entry.is_dir() or _is_image(entry.name)):
            skipped.append(Skipped(written_name(entry.name), f"beside the parts train/ and {'/ and '.join(parts)}/"))
    if not names:
        raise ValueError(f"expected images ({' '.join(ENDINGS)}) in {path}, found none")
    inner = [name.split("/", 1)[1] for name in names] if parts else names
    folders = [name.split("/", 1)[0] if "/" in name else "" for name in inner]
    classes = sorted(set(folders) - {""})
    number = {"": -1} | {name: i for i, name in enumerate(classes)}
    labeled = len(classes) >= 2
    return Listing(
        names=[written_name(name) for name in names],
        labels=torch.tensor([number[name] for name in folders]) if labeled else None,
        classes=tuple(map(written_name, classes)) if labeled else (),
        test=torch.tensor([not name.startswith("train/") for name in names]) if parts else None,
        note=f"the folder {'/ and '.join(parts)}/" if parts else "",
        skipped=skipped,
    )


def _images_below(path: Path, parts: Sequence[str]) -> tuple[list[str], list[Skipped]]:
    """Returns the images of the parts of a folder, sorted within each part, and the repeated links."""
    if path.is_file():
        return [path.name], []
    walk = _Walk(path)
    for part in parts:
        walk.visit(part, os.path.realpath(path / part))
    while walk.links:
        waiting, walk.links = walk.links, []
        for name in sorted(waiting):
            walk.visit(name, os.path.realpath(path / name))
    order = {part: i for i, part in enumerate(parts)}
    return sorted(walk.names, key=lambda name: (order.get(name.split("/", 1)[0], 0), name)), walk.skipped


@dataclass
class _Walk:
    """Visits each real folder and file below a root once; links are left for later, so that real paths come first."""

    root: Path
    names: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def visit(self, name: str, real: str) -> None:
        """Lists the image or the folder ``name``, whose resolved path is ``real``."""
        waiting = [(name, real)]
        while waiting:
            name, real = waiting.pop()
            folder = os.path.isdir(real)  # noqa: PTH112
            if not folder and not _is_image(name):
                continue
            if real in self.seen:
                self.skipped.append(Skipped(written_name(name), f"a link to {written_name(real)}, which is listed already"))
                continue
            self.seen.add(real)
            if not folder:
                self.names.append(name)
                continue
            for entry in _entries(self.root / name):
                inside = f"{name}/{entry.name}" if name else entry.name
                if entry.is_symlink():
                    self.links.append(inside)
                else:
                    waiting.append((inside, os.path.join(real, entry.name)))  # noqa: PTH118


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a folder that are not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        text = f"expected a folder that can be listed, found {folder}: {error.strerror}; check its permissions"
        raise ValueError(text) from None
    yield from (entry for entry in found if not entry.name.startswith("."))


def readable(files: ImageFiles, *, keep_pixels: bool, strict: bool, workers: int) -> tuple[Items, Tensor]:
    """Decodes every file once and returns the readable ones, in memory or as files, and their int64 index.

    Raises:
        ValueError: No file can be read; or, with ``strict``, one cannot.
    """
    repeated = len(files.skipped)
    items, kept = load(files, workers) if keep_pixels else _check(files, workers)
    bad = files.skipped[repeated:]
    examples = ", ".join(f"{one.name} ({one.reason})" for one in bad[:3])
    if len(kept) == 0:
        raise ValueError(f"expected images in {files.folder}, found {len(bad)} files that cannot be read: {examples}")
    if strict and bad:
        raise ValueError(f"{len(bad)} of {len(files)} images cannot be read: {examples}; remove them, or leave out --strict")
    items.skipped = list(files.skipped)
    return items, kept


def _check(files: ImageFiles, workers: int) -> tuple[Items, Tensor]:
    index = torch.cat([index for index, _ in watched(files, workers)])
    return files.subset(index), index
