"""Digests of models and items, by which a job recognizes the parts that an earlier call left."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.images import ImageFiles, file_name
from vergence.data.items import Array, ArrayItems, Items, PairItems
from vergence.utils.version import __version__

__all__ = ["of_array", "of_estimator", "of_items", "of_module", "versions"]

BLOCK = 16 << 20  # bytes of an array that are read at a time


def versions() -> dict[str, str]:
    """Returns the versions of the library and of torch."""
    return {"vergence": __version__, "torch": torch.__version__}


def of_module(module: nn.Module) -> str:
    """Returns a digest of a module's tensors and of its text form.

    Example:
        >>> of_module(nn.Identity()) == of_module(nn.Identity()), of_module(nn.Identity()) == of_module(nn.ReLU())
        (True, False)
    """
    state = module.state_dict()
    return _digest([repr(module), *(part for name in sorted(state) for part in (name, of_array(state[name])))])


def of_estimator(model: Any) -> str:
    """Returns a digest of a fitted estimator: its settings and its public attributes."""
    names = sorted({*model.get_params(deep=False), *(name for name in vars(model) if not name.startswith("_"))})
    return _digest([type(model).__name__, *(part for name in names for part in (name, _text(getattr(model, name))))])


def of_items(items: Items) -> str:
    """Returns a digest of the items to read: names, sizes and times of files, or the values of an array in memory.

    Of items of one's own, whose values are not known before they are read, it is a random number.
    """
    if isinstance(items, PairItems):
        return of_items(items.context)
    if isinstance(items, ArrayItems):
        rows = "" if items.rows is None else of_array(items.rows)
        return _digest([of_array(items.array), rows, str(items.shape), str(items.dtype)])
    if isinstance(items, ImageFiles):
        return _digest([str(items.folder.resolve()), str(items.shape), *_files(items)])
    return secrets.token_hex(16)


def of_array(array: Array | Tensor) -> str:
    """Returns a digest of an array: its values, or of one that stays on disk its file's name, size and time.

    Example:
        >>> of_array(np.arange(3)) == of_array(torch.arange(3)), of_array(np.arange(3)) == of_array(np.arange(4))
        (True, False)
    """
    array = array.detach().cpu() if isinstance(array, Tensor) else array
    head = [str(tuple(array.shape)), str(array.dtype).removeprefix("torch.")]
    if isinstance(array, np.memmap) and array.filename is not None:
        return _digest([*head, str(array.strides), str(array.offset), *_stamp(array.filename)])
    digest = hashlib.sha256("\n".join(head).encode())
    if isinstance(array, Tensor) and array.dtype == torch.bfloat16:
        array = array.view(torch.int16)
    values = np.asarray(array)
    rows = max(1, BLOCK // max(1, values[:1].nbytes)) if values.ndim else 1
    for start in range(0, len(values) if values.ndim else 1, rows):
        digest.update((values[start : start + rows] if values.ndim else values).tobytes())
    return digest.hexdigest()


def _files(items: ImageFiles) -> Iterable[str]:
    for name in items.names:
        yield from (name, *_stamp(items.folder / file_name(name)))


def _stamp(path: Any) -> tuple[str, ...]:
    """Returns name, size and time of a file; its name alone where it is gone."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return (str(path),)
    return str(path), str(found.st_size), str(found.st_mtime_ns)


def _text(value: Any) -> str:
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
        return of_array(value)
    return json.dumps(value, default=repr)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()
