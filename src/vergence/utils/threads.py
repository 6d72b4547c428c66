"""Chooses the number of threads by measuring, since beside another busy program two threads can be far slower than one.

With OpenMP every parallel region ends at a barrier. Where another process takes a core, each barrier waits for a time slice of
that process, and a step with two threads can take twenty to seventy times as long as with one. Nothing reports this, so the
work is tried with one thread and with all, after its first second and again when it takes twice as long as before.
"""

import contextlib
import functools
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from vergence.utils.checks import require_count
from vergence.utils.distributed import several

__all__ = ["Threads", "choose", "fixed", "using"]

PATIENCE = 1.0  # seconds of work before the first trial: shorter work is done without one
ROUNDS = 3  # timed calls with each number of threads
ABANDON = 5.0  # times as slow as with one thread: more calls would only cost time
GAIN = 1.05  # more threads than one must be faster by this factor
SLOWER = 2.0  # times the usual seconds of a unit of work, at which there is another trial
WINDOW = 8  # units of work that the current rate is taken from
REST = 30.0  # least seconds between two trials
AGAIN = 300.0  # seconds with fewer threads than there are, after which there is another trial
MOST, EACH = 64, 4  # threads that may always be requested, and for each processor: without memory for its threads OpenMP aborts

T = TypeVar("T")
Work = Callable[[], object]
_requested: list[int] = []  # the numbers of the `fixed` contexts that are open, the innermost last


def choose(work: Work, most: int | None = None) -> int:
    """Returns the number of threads, 1 or ``most``, with which ``work`` takes less time, and leaves torch with that number.

    Args:
        work: Repeatable work without lasting effects, some milliseconds long.
        most: The larger number; by default what torch uses now.

    Returns:
        The number of threads.

    Example:
        >>> before = torch.get_num_threads()
        >>> choose(lambda: torch.ones(64, 64) @ torch.ones(64, 64), most=1)
        1
        >>> torch.set_num_threads(before)
    """
    most = torch.get_num_threads() if most is None else most
    require_count(most=most)
    if most == 1:
        torch.set_num_threads(1)
        return 1
    one = _seconds(work, 1)
    all_ = _seconds(work, most, limit=ABANDON * one)
    best = most if all_ * GAIN < one else 1
    torch.set_num_threads(best)
    return best


def _bounded(number: int) -> int:
    return min(number, max(MOST, EACH * (os.cpu_count() or 1)))


def _seconds(work: Work, threads: int, limit: float = float("inf")) -> float:
    """Returns the median seconds of a call after one that warms up, or those of the first call above ``limit``."""
    torch.set_num_threads(threads)
    seconds = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > limit:
            return seconds[-1]
    return statistics.median(seconds[1:])


class Threads:
    """Keeps the number of threads right while work goes on: one or all of torch's, by trials beside the work.

    As a context it sets the number on entry and restores torch's on exit. Work of less than a second is left alone, and so is
    work with one thread, on another device than the CPU, or in one of several processes. Trials change no result; another
    number of threads changes its last bits.

    Args:
        number: Number of threads whatever the measurements say; None for that of an enclosing `fixed`, or for measuring. At
            most 64, or 4 for each processor where that is more, are used: a run may go on with fewer processors.
        start: Number to start with instead of a first trial, for instance that of an interrupted run; ignored with a number.
        eager: Whether the first trial comes before the first unit of `over`, not after a second of work: where a unit with
            all threads can take long, and where results should have the same bits from the first unit on.
        device: Device of the work.
        log: Called with a line at each decision; a terminal besides shows those that change the number.

    Attributes:
        number: Number of threads that is in use.

    Example:
        >>> with Threads(1) as threads:
        ...     [unit for unit in threads.over("ab", trial=str.upper)], torch.get_num_threads()
        (['a', 'b'], 1)
    """

    def __init__(
        self,
        number: int | None = None,
        *,
        start: int | None = None,
        eager: bool = False,
        device: torch.device | str = "cpu",
        log: Callable[[str], None] | None = None,
    ) -> None:
        if number is not None:
            require_count(threads=number)
        self.requested, self.start, self.eager, self.device, self.log = number, start, eager, torch.device(device), log
        self.measures, self.number = False, torch.get_num_threads()

    def __enter__(self) -> "Threads":
        self.most = torch.get_num_threads()
        requested = _requested[-1] if self.requested is None and _requested else self.requested
        number = None if requested is None else _bounded(requested)
        self.measures = number is None and self.most > 1 and self.device.type == "cpu" and not several()
        self.tried = self.start is not None
        self._use(self.most if number is None else number)
        if number is not None:
            self._say("as requested" if number == requested else f"instead of the {requested} requested", changed=False)
        elif self.start is not None and self.start < self.most:
            self._use(self.start)
            self._say("as before", changed=False)
        return self

    def __exit__(self, *error: object) -> None:
        self.start = self.number if self.measures and self.tried else self.start  # of the next entry
        self.measures = False
        if self.number != self.most:
            torch.set_num_threads(self.most)

    @property
    def settled(self) -> int | None:
        """The number of threads, to start with when the work is continued; None while the first trial is still to come."""
        return None if self.measures and not self.tried else self.number

    def _use(self, number: int) -> None:
        if number != torch.get_num_threads():
            torch.set_num_threads(number)
        self.number = number
        self.usual, self.spent, self.since = float("inf"), 0.0, time.monotonic()
        self.recent: deque[float] = deque(maxlen=WINDOW)

    def over(self, units: Iterable[T], trial: Callable[[T], object]) -> Iterator[T]:
        """Yields units of work and notes how long each takes.

        Args:
            units: Whatever the work is done on, one after the other.
            trial: Work on a unit that stands for the real one: repeatable, without lasting effects, and shorter.
        """
        start = time.perf_counter()
        for unit in units:
            if self.eager and self.measures and not self.tried:
                self._try(functools.partial(trial, unit))
                start = time.perf_counter()
            yield unit
            self.note(time.perf_counter() - start, functools.partial(trial, unit))
            start = time.perf_counter()

    def note(self, seconds: float, work: Work) -> bool:
        """Takes the seconds of a unit of work; makes a trial with ``work`` if one is due, and returns whether it did."""
        if not self.measures:
            return False
        self.recent.append(seconds)
        self.spent += seconds
        if not self._is_due():
            return False
        self._try(work)
        return True

    def _try(self, work: Work) -> None:
        before, first = self.number, not self.tried
        with torch.random.fork_rng(devices=[]):
            self._use(choose(work, self.most))
        self.tried = True
        if first or self.number != before:
            self._say("chosen by measuring", changed=self.number != before)

    def _is_due(self) -> bool:
        """Returns whether it is time for a trial."""
        if not self.tried:
            return self.spent >= PATIENCE
        if len(self.recent) < WINDOW:
            return False
        now = statistics.median(self.recent)
        self.usual = min(self.usual, now)
        rested = time.monotonic() - self.since
        return rested >= REST and (now >= SLOWER * self.usual or (self.number < self.most and rested >= AGAIN))

    def _say(self, reason: str, *, changed: bool) -> None:
        line = f"{self.number} thread{'s' if self.number > 1 else ''} ({reason})"
        if self.log is not None:
            self.log(line)
        if changed and sys.stderr.isatty():
            print(line, file=sys.stderr)


@contextlib.contextmanager
def using(number: int) -> Iterator[None]:
    """Sets torch's number of threads for a while.

    Example:
        >>> with using(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def fixed(number: int | None) -> Iterator[None]:
    """Sets torch's number of threads for a while, in which nothing measures another; None changes nothing.

    The number is bounded as that of `Threads`.

    Example:
        >>> with fixed(1), Threads() as threads:
        ...     threads.number
        1
    """
    if number is None:
        yield
        return
    require_count(threads=number)
    _requested.append(number)
    try:
        with using(_bounded(number)):
            yield
    finally:
        _requested.pop()
