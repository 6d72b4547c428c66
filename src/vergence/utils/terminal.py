"""What people see: bars and notes on stderr, tables on stdout, and results as tables of pandas and of notebooks."""

import abc
import contextlib
import html
import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vergence.utils.limits import check_time

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "Tabular", "bar", "is_first_process", "note", "printed", "table", "wait_for_launcher"]

PATIENCE = 2.0  # seconds before a late bar appears
MINUTE = 60.0  # seconds between two lines of a log
SHOWN = 10  # rows in a notebook
BREAKS = 12  # characters of a cell's words from which they may be broken
GRACE = 5.0  # seconds in which a launcher ends the other processes
wording: Callable[[str], str] = str  # of a message, which names arguments; the command line names options instead


def is_first_process() -> bool:
    """Returns whether this process speaks for all: the first one of a machine, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def wait_for_launcher() -> None:
    """Waits where a launcher has started several processes: it ends them all when another, of which it tells, failed first."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        time.sleep(GRACE)


def note(message: str, kind: str = "note") -> None:
    """Prints a note on stderr; of several processes, which all come to the same one, the first does."""
    if is_first_process():
        print(f"{kind}: {wording(message)}", file=sys.stderr)


@contextlib.contextmanager
def bar(label: str, total: int, unit: str = "items", *, late: bool = False) -> Iterator[Callable[..., None]]:
    """Shows a bar with rate and time left on stderr if it is a terminal; yields ``advance(n, note="", label=None)``.

    A ``late`` one, for work that may be short, appears once some seconds have passed. Where stderr is none, as in the log of a
    job, there is a line a minute instead. ``advance`` checks the time (`vergence.utils.limits.time_limit`).
    """
    if not sys.stderr.isatty():
        yield _lines(label, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task, began = progress.add_task(label, total=total, rate="", note=""), time.monotonic()

    def advance(n: int = 1, *, note: str = "", label: str | None = None) -> None:
        check_time()
        if not late or time.monotonic() - began > PATIENCE:
            progress.start()
        speed = progress.tasks[0].speed
        progress.update(task, advance=n, rate=f"{speed:.0f} {unit}/s" if speed else "", note=note, description=label)

    try:
        advance(0)
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


def _lines(label: str, total: int, unit: str) -> Callable[..., None]:
    """Returns what prints a line a minute with the items done and the time left; the rate is that since the first items."""
    began = last = time.monotonic()
    done = first = 0

    def advance(n: int = 1, *, note: str = "", label: str | None = label) -> None:
        nonlocal began, last, done, first
        check_time()
        now, done = time.monotonic(), done + n
        if done == n:  # what an earlier job did took no time of this one
            began, first = now, n
        if now - last < MINUTE or not is_first_process():
            return
        last = now
        left = f", {_duration((total - done) * (now - began) / (done - first))} left" if first < done <= total else ""
        print(f"{label}: {done:,} of {total:,} {unit}{left}{note and '; '}{note}", file=sys.stderr, flush=True)

    return advance


def _duration(seconds: float) -> str:
    """Returns a time in words, rounded up."""
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def table(title: str, header: list[str], rows: list[list[Any]]) -> None:
    """Prints a table on stdout, numbers to the right; names are printed as they are, square brackets included.

    In a terminal that is too narrow for its short cells it prints each row as text.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, texts = Console(), [[_in_terminal(cell) for cell in row] for row in rows]
    words = [[word for text in column for word in text.split()] for column in zip(header, *texts, strict=True)]
    if sum(3 + min(BREAKS, max(map(len, column), default=0)) for column in words) >= console.width:
        cells = [[f"{h}: {x}" for h, x in zip(header[1:], row[1:], strict=True) if x] for row in texts]
        lines = [title, *(", ".join([row[0], *some]) for row, some in zip(texts, cells, strict=True))]
        print(*(textwrap.fill(line, console.width, subsequent_indent="  ") for line in lines), sep="\n")
        return
    grid = Table(title=Text(title, style="table.title"), title_justify="left", header_style="bold")
    for i, name in enumerate(header):
        least = min(BREAKS, max(map(len, words[i]), default=0))
        grid.add_column(Text(name, overflow="fold"), justify="left" if i == 0 else "right", min_width=least)
    for row in texts:
        grid.add_row(*map(Text, row))
    console.print(grid)


def printed(text: str) -> str:
    r"""Returns a text for one line: a name of a file can hold newlines and control characters; bytes beyond UTF-8 are surrogates.

    Example:
        >>> ascii(printed(chr(27) + "[2J.png"))
        "'\\ufffd[2J.png'"
    """
    return "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else "\N{REPLACEMENT CHARACTER}" for c in text)


def number(value: float, form: str = ".4g") -> str:
    """Returns a number as text, an infinite one in words."""
    return f"{value:{form}}".replace("inf", "infinite")


def _in_terminal(cell: Any) -> str:
    if cell is None or cell != cell:
        return "-"
    if isinstance(cell, str):
        return printed(cell)
    return number(cell, ".3f") if isinstance(cell, float) else str(cell)


def paragraphs(sentences: Sequence[str]) -> str:
    """Returns sentences as HTML, one paragraph each."""
    return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)


class Tabular(abc.ABC):
    """A result that is a table. A class gives ``table``, its columns by name, all of one length, and perhaps ``sentences``."""

    shares: ClassVar[tuple[str, ...]] = ()  # how names of columns begin whose numbers are shown in percent

    @property
    def sentences(self) -> list[str]:
        """What to say above the table."""
        return []

    @abc.abstractmethod
    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""

    def to_pandas(self) -> "pd.DataFrame":
        """Returns the table as a data frame of pandas, which has to be installed."""
        import pandas as pd

        return pd.DataFrame({name: list(values) for name, values in self.table().items()})

    def _order(self, n: int) -> Sequence[int]:
        """Returns the n rows, those first that are shown."""
        return range(n)

    def _cells(self) -> tuple[list[list[str]], str]:
        """Returns the names of columns with values and the first ten rows as text, and how many more rows there are."""
        whole = self.table()
        n = len(next(iter(whole.values()), ()))
        columns = {name: values for name, values in whole.items() if not n or any(value is not None for value in values)}
        rows = [[_in_words(v[i], name.startswith(self.shares)) for name, v in columns.items()] for i in self._order(n)[:SHOWN]]
        return [list(columns), *rows], f"and {n - SHOWN:,} more rows" if n > SHOWN else ""

    def __str__(self) -> str:
        """Returns the sentences and the first ten rows as text."""
        rows, more = self._cells()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*self.sentences, *lines, *filter(None, [more])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the sentences and the first ten rows."""
        (head, *rows), more = self._cells()
        each = [(head, "th"), *((row, "td") for row in rows)]
        lines = ["".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in row) for row, tag in each]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"{paragraphs(self.sentences)}<table>{table}</table>{more and f'<p>{more}</p>'}"


@dataclass(frozen=True, repr=False)
class Table(Tabular):
    """A table by its columns.

    Example:
        >>> Table({"path": ["a.png"], "score": [1.5]})["score"]
        [1.5]
    """

    columns: Mapping[str, Sequence[Any]]

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return self.columns

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


def _in_words(value: Any, percent: bool = False) -> str:
    if percent and value is not None:
        return f"{100 * value:.1f} %"
    return number(value) if isinstance(value, float) else "" if value is None else str(value)
