"""Exact duplicates: images of equal pixels, and files of equal bytes."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.utils.checks import shown
from vergence.utils.files import sha256

__all__ = ["exact_duplicates", "same_files"]


def exact_duplicates(images: Any) -> list[npt.NDArray[np.int64]]:
    """Returns the groups of images whose pixels are all equal.

    Args:
        images: (N, ...), an array or tensor, or a sequence of arrays of any shapes.

    Example:
        >>> exact_duplicates(np.array([[1, 2], [3, 4], [1, 2]], np.uint8))
        [array([0, 2])]
    """
    if not isinstance(images, Iterable) or not getattr(images, "ndim", 1):
        raise ValueError(f"expected images, an array, tensor or sequence, found {type(images).__name__}")
    return _equal(_digest(image) for image in images)


def _digest(image: Any) -> bytes:
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = (image.view(torch.int16) if image.dtype == torch.bfloat16 else image).numpy()
    x = np.ascontiguousarray(image)
    return hashlib.sha256(f"{x.shape}{x.dtype}".encode() + x.tobytes()).digest()


def _equal(keys: Iterable[Any]) -> list[npt.NDArray[np.int64]]:
    """Returns the indices of equal keys."""
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return [np.array(group, dtype=np.int64) for group in found.values() if len(group) > 1]


def same_files(files: Iterable[str | Path]) -> list[npt.NDArray[np.int64]]:
    """Returns the groups of files with the same bytes; only files of equal size are read.

    Raises:
        ValueError: A file cannot be read.
    """
    if isinstance(files, str | os.PathLike) or not isinstance(files, Iterable):
        raise ValueError(f"expected several files, found {shown(files)}: pass a list of paths")
    files = list(files)
    if wrong := [file for file in files if not isinstance(file, str | os.PathLike)]:
        raise ValueError(f"expected paths of files, found a {type(wrong[0]).__name__}: pass texts or paths")
    paths = [Path(file) for file in files]
    try:
        candidates = _equal(path.stat().st_size for path in paths)
        found = []
        for group in candidates:
            found += [group[same] for same in _equal(sha256(paths[i]) for i in group)]
    except OSError as error:
        raise ValueError(f"expected files that can be read, found {error.filename}: {error.strerror}") from error
    return sorted(found, key=lambda group: int(group[0]))
