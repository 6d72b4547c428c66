"""What a command computes with, set once around it: the number of threads, and freed memory that is kept for the next step.

With OpenMP every parallel region ends at a barrier. Where another process takes a core, each barrier waits for a time slice of
that process, and work on all cores can take many times as long as on one. Nothing reports this, so a small piece of work is
timed with one thread and with all.

glibc's ``malloc`` takes large blocks from the system and returns them once they are freed, and the system clears each page of a
new block at its first use. Activations and gradients of a training step are such blocks.
"""

import contextlib
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Iterator

import torch

from vergence.utils.checks import require_count

__all__ = ["resources"]

ROUNDS = 3  # timed calls with each number of threads
ABANDON = 5.0  # times as slow as with one thread: more calls would only cost time
GAIN = 1.05  # more threads than one must be faster by this factor
MOST, EACH = 64, 4  # threads that may always be requested, and for each processor: without memory for its threads OpenMP aborts
TRIM, MMAP = -1, -3  # glibc's names of its thresholds: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
LARGEST = 2**31 - 1  # bytes; mallopt takes an int
USUAL = {MMAP: 32 << 20, TRIM: 64 << 20}  # bytes: where glibc's own adjustment of both ends
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_depth = [0]  # contexts that are open


@contextlib.contextmanager
def resources(threads: int | None = None, *, measure: bool = True) -> Iterator[None]:
    """Sets torch's number of threads, and keeps freed memory, while the context (or the decorated function) lasts.

    An inner context changes nothing, except that it may set another number of threads. At the end of the outermost one torch
    has its number of threads again, and free memory is returned to the system. Settings of ``malloc`` in the environment are
    left as they are. Another number of threads changes the last bits of results; kept memory changes nothing.

    Args:
        threads: Number of CPU threads; at most 64, or 4 for each processor where that is more. None measures whether one or
            all of torch's are faster.
        measure: Whether to measure; otherwise the number stays without ``threads``.

    Example:
        >>> with resources(1):
        ...     torch.get_num_threads()
        1
    """
    if threads is not None:
        require_count(threads=threads)
    before, library = torch.get_num_threads(), None if _depth[0] else _adjustable()
    _depth[0] += 1
    try:
        if library is not None:
            _set(library, dict.fromkeys(USUAL, LARGEST))
        if threads is not None:
            torch.set_num_threads(min(threads, max(MOST, EACH * (os.cpu_count() or 1))))
        elif measure and _depth[0] == 1:
            torch.set_num_threads(_faster(before))
        yield
    finally:
        _depth[0] -= 1
        torch.set_num_threads(before)
        if library is not None:
            _set(library, USUAL)
            library.malloc_trim(0)


def _faster(most: int) -> int:
    """Returns the number of threads, 1 or ``most``, with which a small piece of work takes less time."""
    if most == 1:
        return 1
    single = _seconds(1)
    return most if _seconds(most, limit=ABANDON * single) * GAIN < single else 1


def _seconds(threads: int, limit: float = float("inf")) -> float:
    """Returns the median seconds of a call after one that warms up, or those of the first call above ``limit``."""
    torch.set_num_threads(threads)
    seconds = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        _work()
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > limit:
            return seconds[-1]
    return statistics.median(seconds[1:])


def _work() -> None:
    """Products and functions of elements with the sizes of a small network's layers: some ten milliseconds on one core."""
    x, weight = torch.full((512, 512), 0.01, dtype=torch.float32), torch.full((512, 512), 0.01, dtype=torch.float32)
    for _ in range(4):
        x = (x @ weight).tanh()


def _adjustable() -> ctypes.CDLL | None:
    """Returns the C library if it is glibc and the environment has no settings for its ``malloc``."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in VARIABLES):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _set(library: ctypes.CDLL, thresholds: dict[int, int]) -> None:
    for name, value in thresholds.items():
        library.mallopt(name, value)
