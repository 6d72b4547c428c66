"""What a command computes with: devices and their memory, threads, freed memory that is kept, processes, modes of networks.

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
from pathlib import Path

import torch
from torch import nn

from vergence.utils.checks import expect, is_out_of_memory, require_count

__all__ = [
    "as_device",
    "describe_device",
    "enough_memory",
    "exporting",
    "fast_bfloat16",
    "in_evaluation",
    "rank_and_size",
    "resources",
]
__all__ += ["several", "total_memory"]

CONTAINERS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # versions 2 and 1
ROUNDS = 3  # timed calls with each number of threads
ABANDON = 5.0  # times as slow as with one thread: more calls would only cost time
GAIN = 1.05  # more threads than one must be faster by this factor
MOST, EACH = 64, 4  # threads that may always be requested, and for each processor: without memory for its threads OpenMP aborts
TRIM, MMAP = -1, -3  # glibc's names of its thresholds: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
LARGEST = 2**31 - 1  # bytes; mallopt takes an int
USUAL = {MMAP: 32 << 20, TRIM: 64 << 20}  # bytes: where glibc's own adjustment of both ends
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
_depth = [0]  # contexts that are open


def as_device(name: str) -> torch.device:
    """Returns an available device by name; ``auto`` is a GPU if there is one. Others are a ValueError.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"expected a device such as cpu or cuda, found {name!r}") from None
    there = device.type != "cuda" or torch.cuda.is_available()
    expect(there, f"a device of this machine, found '{name}', but torch finds no CUDA device", advice="use cpu")
    return device


def describe_device(device: torch.device) -> str:
    """Returns a device in words: the name of the GPU, or the number of CPU threads."""
    return torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"


def fast_bfloat16(kind: str) -> bool:
    """Returns whether a kind of device, ``cpu`` or ``cuda``, computes faster in bfloat16 than in float32.

    A CPU needs matrix tiles for it (AMX): one with only the vector instructions was slower in bfloat16 (see ``docs/decisions``).
    (`docs/decisions/2026-11-objectives.md`).
    """
    return bool(torch.cuda.is_bf16_supported() if kind == "cuda" else torch.cpu._is_amx_tile_supported())


def exporting() -> bool:
    """Returns whether a graph is exported, whose number of rows is free."""
    return bool(getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)())


def total_memory(device: torch.device) -> int:
    """Returns the bytes of memory of a GPU, or of the machine or its container; 2^62 where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        machine = 1 << 62
    return min(machine, *map(_limit, CONTAINERS))


def _limit(file: Path) -> int:
    """Returns the limit of memory that a container's file holds; 2^62 where there is none."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 62


@contextlib.contextmanager
def enough_memory(advice: str) -> Iterator[None]:
    """Turns the end of the CPU's memory in a block into a ValueError with advice; a GPU's keeps its type.

    Example:
        >>> with enough_memory("lower size"):
        ...     torch.empty(2**60)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: expected a task that fits into memory, found none left (...); lower size
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or not is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"expected a task that fits into memory, found none left ({reason}); {advice}") from error


def rank_and_size() -> tuple[int, int]:
    """Returns this process's rank and the number of processes; (0, 1) where there is one."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)


def several() -> bool:
    """Returns whether several processes share the work."""
    return rank_and_size()[1] > 1


@contextlib.contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """Puts a module and its parts in evaluation mode; afterwards each part has its own mode again.

    Example:
        >>> net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with in_evaluation(net):
        ...     net[0].training
        False
        >>> net[0].training, net[1].training
        (True, False)
    """
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


# Threads and freed memory


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
