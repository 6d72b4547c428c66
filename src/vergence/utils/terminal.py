"""Progress bars and notes on stderr, tables on stdout; bars appear in a terminal only."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["bar", "is_first_process", "late_bar", "note", "table"]

PATIENCE = 2.0  # seconds before a late bar appears


def is_first_process() -> bool:
    """Returns whether this process speaks for all: the first one of a machine, or the only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def note(message: str) -> None:
    """Prints a note on stderr; of several processes, which all come to the same one, the first does."""
    if is_first_process():
        print(f"note: {message}", file=sys.stderr)


@contextlib.contextmanager
def bar(label: str, total: int, unit: str = "items") -> Iterator[Callable[..., None]]:
    """Shows a bar with rate and time left on stderr if it is a terminal; yields ``advance(n, note="")``."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # a disabled bar of an older rich would still print an empty line
        yield lambda n=1, *, note="", label=None: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=total, rate="", note="")

        def advance(n: int = 1, *, note: str = "", label: str | None = None) -> None:
            speed = progress.tasks[0].speed
            rate = f"{speed:.0f} {unit}/s" if speed else ""
            progress.update(task, advance=n, rate=rate, note=note, description=label)

        yield advance


@contextlib.contextmanager
def late_bar(label: str, total: int, unit: str = "items") -> Iterator[Callable[..., None]]:
    """Shows a `bar` once some seconds have passed, for work that may be short; yields ``advance(n, note="")``."""
    began, waiting, shown = time.monotonic(), 0, None
    with contextlib.ExitStack() as stack:

        def advance(n: int = 1, *, note: str = "") -> None:
            nonlocal waiting, shown
            waiting += n
            if shown is None and time.monotonic() - began > PATIENCE:
                shown = stack.enter_context(bar(label, total, unit))
            if shown is not None:
                shown(waiting, note=note)
                waiting = 0

        yield advance


def table(title: str, header: list[str], rows: list[list[Any]]) -> None:
    """Prints a table on stdout, numbers to the right; names are printed as they are, square brackets included."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=Text(title, style="table.title"), title_justify="left", header_style="bold")
    for i, name in enumerate(header):
        grid.add_column(Text(name, overflow="fold"), justify="left" if i == 0 else "right")
    for row in rows:
        grid.add_row(*(Text(_shown(cell)) for cell in row))
    console = Console()
    console.print(grid)


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):  # a name of a file can hold newlines and control characters; bytes beyond UTF-8 are surrogates
        return "".join(c if c.isprintable() or "\udc80" <= c <= "\udcff" else "\N{REPLACEMENT CHARACTER}" for c in cell)
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
