"""What a command computes with: devices and their memory, CPU threads, processes, modes of networks."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from vergence.utils.checks import counted, expect, is_out_of_memory, require_count, shown

__all__ = ["as_device", "cpu_threads", "describe_device", "enough_memory", "exporting", "fast_bfloat16", "fixed_noise"]
__all__ += ["in_evaluation", "rank_and_size", "several", "total_memory"]

CONTAINERS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # versions 2 and 1
NOISE = threading.RLock()  # of torch's generator, which all threads share
MOST, EACH = 64, 4  # threads that may always be requested, and for each processor: without memory for its threads OpenMP aborts


def as_device(name: str) -> torch.device:
    """Returns an available device by name; ``auto`` is a GPU if there is one. Others are a ValueError.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"expected a device such as cpu or cuda, found {shown(name)}") from None
    there = device.type != "cuda" or torch.cuda.is_available()
    expect(there, f"a device of this machine, found '{name}', but torch finds no CUDA device", advice="use cpu")
    return device


def describe_device(device: torch.device) -> str:
    """Returns a device in words: the name of the GPU, or the number of CPU threads."""
    return torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {counted(torch.get_num_threads(), 'thread')}"


def fast_bfloat16(kind: str) -> bool:
    """Returns whether a kind of device, ``cpu`` or ``cuda``, computes faster in bfloat16 than in float32.

    A CPU needs matrix tiles for it (AMX): one with only the vector instructions was slower in bfloat16
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
    least = 1 << 62
    with contextlib.suppress(AttributeError, ValueError, OSError):
        least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            least = min(least, int(file.read_text(encoding="ascii")))
    return least


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


@contextlib.contextmanager
def fixed_noise(seed: int = 0) -> Iterator[None]:
    """Seeds torch's own generator while the context lasts, for one thread at a time; afterwards it is as before.

    Example:
        >>> before = torch.get_rng_state()
        >>> with fixed_noise(0):
        ...     first = torch.rand(1)
        >>> with fixed_noise(0):
        ...     bool(torch.rand(1) == first)
        True
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    with NOISE, torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def cpu_threads(number: int | None = None) -> Iterator[None]:
    """Sets torch's number of threads while the context lasts. Another number changes the last bits of results.

    It is at most 64, or 4 for each processor where that is more; None leaves torch's own.
    """
    if number is None:
        yield
        return
    require_count(threads=number)
    before = torch.get_num_threads()
    torch.set_num_threads(min(number, max(MOST, EACH * (os.cpu_count() or 1))))
    try:
        yield
    finally:
        torch.set_num_threads(before)
