"""A time at which long loops end, for a search that has a limit: bars and the loops of fits check it."""

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar

_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


class OutOfTime(Exception):
    """A loop was ended by `time_limit`."""


@contextlib.contextmanager
def time_limit(until: float) -> Iterator[None]:
    """Ends what is inside at a time of `time.perf_counter`, where it checks the time: it raises `OutOfTime`."""
    before = _UNTIL.set(until)
    try:
        yield
    finally:
        _UNTIL.reset(before)


def check_time() -> None:
    """Raises `OutOfTime` after the limit; does nothing where there is none."""
    if time.perf_counter() > _UNTIL.get():
        raise OutOfTime
