"""Chooses the number of threads by measuring, since beside another busy program two threads can be far slower than one.

With OpenMP every parallel region ends at a barrier. Where another process takes a core, each barrier waits for a time slice of
that process, and a step with two threads can take twenty to seventy times as long as with one. Nothing announces this, so the
work is tried with one thread and with all, at the start and again when it takes twice as long as before.
"""

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch

from vergence.utils.checks import require_count

__all__ = ["Threads", "choose", "using"]

ROUNDS = 3  # timed calls with each number of threads
ABANDON = 5.0  # times as slow as with one thread: more calls would only cost time
GAIN = 1.05  # more threads than one must be faster by this factor
SLOWER = 2.0  # times the usual seconds of a unit of work, at which the choice is made again
WINDOW = 8  # units of work that the current rate is taken from
REST = 30.0  # least seconds between two trials


def choose(work: Callable[[], object], most: int | None = None) -> int:
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
    several = _seconds(work, most, limit=ABANDON * one)
    best = most if several * GAIN < one else 1
    torch.set_num_threads(best)
    return best


def _seconds(work: Callable[[], object], threads: int, limit: float = float("inf")) -> float:
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
    """Keeps the number of threads right while work goes on: chooses at the start, and again when the work slows down by half.

    Args:
        work: Repeatable work without lasting effects that stands for a unit, for the trials.
        number: Number of threads to use whatever the measurements say; None measures.
        start: Number to start with instead of a first trial, for instance that of an interrupted run; ignored with ``number``.
        log: Called with one line at every choice.

    Example:
        >>> with using(1):
        ...     threads = Threads(lambda: torch.ones(8).sum(), log=print)
        ...     threads.number
        1 thread
        1
    """

    def __init__(
        self,
        work: Callable[[], object],
        number: int | None = None,
        *,
        start: int | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.work, self.log, self.fixed = work, log, number is not None
        self.most = torch.get_num_threads()
        if number is not None:
            require_count(threads=number)
            self._use(number, "as requested")
        elif start is not None:
            self._use(min(start, self.most), "as before")
        else:
            self._try()

    def _use(self, number: int, reason: str) -> None:
        torch.set_num_threads(number)
        self.number = number
        self.usual = float("inf")
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.since = time.monotonic()
        self.log(f"{number} thread{'s' if number > 1 else ''}" + (f" ({reason})" if reason else ""))

    def _try(self) -> None:
        self._use(choose(self.work, self.most), "chosen by measuring" if self.most > 1 else "")

    def note(self, seconds: float) -> bool:
        """Takes the seconds of a unit of work; chooses again if units take twice as long, and returns whether it did."""
        self.recent.append(seconds)
        if self.fixed or self.most == 1 or len(self.recent) < WINDOW:
            return False
        now = statistics.median(self.recent)
        self.usual = min(self.usual, now)
        if now < SLOWER * self.usual or time.monotonic() - self.since < REST:
            return False
        self._try()
        return True


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
