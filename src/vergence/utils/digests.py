"""Digests by which an interrupted job knows again what it was given: of arrays, tensors, fitted estimators, files and texts."""

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from vergence.utils.dtypes import Array, Tensor, is_tensor

__all__ = ["content_digest", "digest_of", "of_array", "of_estimator", "stamp"]

BLOCK = 16 << 20  # bytes of an array that are read at a time


def of_estimator(model: Any) -> str:
    """Returns a digest of a fitted estimator: its settings and its public attributes."""
    texts = [type(model).__name__]
    for name in sorted({*model.get_params(deep=False), *(name for name in vars(model) if not name.startswith("_"))}):
        value = getattr(model, name)
        is_array = is_tensor(value) or (isinstance(value, np.ndarray) and value.dtype.kind != "O")
        texts += [name, of_array(value) if is_array else json.dumps(value, default=repr)]
    return digest_of(texts)


def of_array(array: Array | Tensor) -> str:
    """Returns a digest of an array: its values, or of one that stays on disk its file's name, size and time.

    Example:
        >>> import torch
        >>> of_array(np.arange(3)) == of_array(torch.arange(3)), of_array(np.arange(3)) == of_array(np.arange(4))
        (True, False)
    """
    array = array.detach().cpu() if is_tensor(array) else array
    head = [str(tuple(array.shape)), str(array.dtype).removeprefix("torch.")]
    if isinstance(array, np.memmap) and array.filename is not None:
        return digest_of([*head, str(array.strides), str(array.offset), *stamp(array.filename)])
    digest = hashlib.sha256("\n".join(head).encode())
    if head[1] == "bfloat16":
        array = array.view(sys.modules["torch"].int16)
    values = np.asarray(array)
    rows = max(1, BLOCK // max(1, values[:1].nbytes)) if values.ndim else 1
    for start in range(0, len(values) if values.ndim else 1, rows):
        digest.update((values[start : start + rows] if values.ndim else values).tobytes())
    return digest.hexdigest()


def stamp(path: Any) -> tuple[str, ...]:
    """Returns name, size and time of a file; its name alone where it is gone."""
    try:
        status = Path(path).stat()
    except OSError:
        return (str(path),)
    return str(path), str(status.st_size), str(status.st_mtime_ns)


def digest_of(texts: Iterable[str]) -> str:
    """Returns a digest of texts."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def content_digest(*parts: bytes) -> bytes:
    """Returns 8 bytes that tell contents apart."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.digest()
