"""Images in a folder: listed, checked and with their labels."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vergence.data.images import ImageFiles, image_mode
from vergence.data.items import Items
from vergence.data.loading import load, watched

__all__ = ["ENDINGS", "base", "channels", "listing", "readable"]


ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


@dataclass(frozen=True)
class Listing:
    """The image files below a folder, sorted by relative path; labels (N,) int64, classes and test part as in `Source`."""

    names: list[str]
    labels: Tensor | None
    classes: tuple[str, ...]
    test: Tensor | None
    note: str


def base(path: Path) -> Path:
    """Returns the folder that names are relative to: the path itself, or the folder of a single file."""
    return path if path.is_dir() else path.parent


def listing(path: Path) -> Listing:
    """Lists the images of a folder, or a single one; hidden files and folders are left out.

    Sub-folders ``train`` and ``test`` (or ``val``) are its parts. The first folder below (a part of) it is an image's class;
    images beside such folders have the label -1. Fewer than two classes are none.

    Raises:
        ValueError: There is no image, or a folder cannot be listed.
    """
    parts = [part for part in ("test", "val") if path.is_dir() and (path / part).is_dir() and (path / "train").is_dir()][:1]
    names = [name for part in (["train", *parts] if parts else [""]) for name in _images_below(path, part)]
    if not names:
        raise ValueError(f"expected images ({' '.join(ENDINGS)}) in {path}, found none")
    inner = [name.split("/", 1)[1] for name in names] if parts else names
    folders = [name.split("/", 1)[0] if "/" in name else "" for name in inner]
    classes = tuple(sorted(set(folders) - {""}))
    test = torch.tensor([not name.startswith("train/") for name in names]) if parts else None
    note = f"the folder {parts[0]}/" if parts else ""
    if len(classes) < 2:
        return Listing(names, None, (), test, note)
    number = {"": -1} | {name: i for i, name in enumerate(classes)}
    return Listing(names, torch.tensor([number[name] for name in folders]), classes, test, note)


def _images_below(path: Path, part: str) -> list[str]:
    if path.is_file():
        return [path.name]
    found: list[str] = []
    for here, folders, files in os.walk(path / part, followlinks=True, onerror=_unlistable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(here).relative_to(path)
        images = [name for name in files if Path(name).suffix.lower() in ENDINGS and not name.startswith(".")]
        found += [(inside / name).as_posix() for name in images]
    return sorted(found)


def _unlistable(error: OSError) -> None:
    raise ValueError(f"expected a folder that can be listed, found {error.filename}: {error.strerror}; see its permissions")


def channels(folder: Path, names: Sequence[str]) -> int:
    """Returns 1 if all of up to 256 evenly spaced images are gray by their headers, else 3."""
    modes = {image_mode(folder / name) for name in names[:: math.ceil(len(names) / 256)]} - {None}
    gray = all(mode in ("1", "L", "LA", "La", "F") or str(mode).startswith("I") for mode in modes)
    return 1 if modes and gray else 3


def readable(files: ImageFiles, *, keep_pixels: bool, strict: bool, workers: int) -> tuple[Items, Tensor]:
    """Decodes every file once and returns those that can be read, in memory or as files, and their int64 index.

    Raises:
        ValueError: None can be read; or, with ``strict``, one cannot.
    """
    items, kept = load(files, workers) if keep_pixels else _check(files, workers)
    bad = files.skipped
    examples = ", ".join(f"{one.name} ({one.reason})" for one in bad[:3])
    if len(kept) == 0:
        raise ValueError(f"expected images in {files.folder}, found {len(bad)} files that cannot be read: {examples}")
    if strict and bad:
        raise ValueError(f"{len(bad)} of {len(files)} images cannot be read: {examples}; remove them, or leave out --strict")
    items.skipped = list(bad)
    return items, kept


def _check(files: ImageFiles, workers: int) -> tuple[Items, Tensor]:
    index = torch.cat([index for index, _ in watched(files, workers)])
    return files.subset(index), index
