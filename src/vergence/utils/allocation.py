"""Keeps freed memory for the next step, where the C library would return it to the system and ask for it again.

glibc's ``malloc`` takes blocks of more than 32 MiB (less, until it has seen one) from the system and returns them once they are
freed. Activations and gradients of a training step are such blocks, and the system clears each page of a new block at its first
use: 8 % of the time of a ResNet-18's step of 128 images, and a fifth of the small network's step of 256 (`docs/decisions.md`).
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

__all__ = ["kept_memory"]

TRIM, MMAP = -1, -3  # glibc's names of its thresholds: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
LARGEST = 2**31 - 1  # bytes; mallopt takes an int
USUAL = {MMAP: 32 << 20, TRIM: 64 << 20}  # bytes: where glibc's own adjustment of both ends
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_open: list[ctypes.CDLL] = []  # one for each context that is open


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Lets ``malloc`` keep freed blocks of up to 2 GiB while the context lasts; changes nothing without glibc.

    The process holds its peak until the outermost context ends, which returns what is free to the system. Settings of
    ``malloc`` in the environment, such as ``MALLOC_MMAP_THRESHOLD_``, are left as they are. No result changes.

    Example:
        >>> with kept_memory():
        ...     total = sum(len(bytes(1 << 26)) for _ in range(3))  # the second and third take the block of the first
        >>> total >> 20
        192
    """
    library = _glibc()
    if library is None or any(name in os.environ for name in VARIABLES):
        yield
        return
    if not _open:
        _set(library, dict.fromkeys(USUAL, LARGEST))
    _open.append(library)
    try:
        yield
    finally:
        _open.pop()
        if not _open:
            _set(library, USUAL)
            library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _set(library: ctypes.CDLL, thresholds: dict[int, int]) -> None:
    for name, value in thresholds.items():
        library.mallopt(name, value)
