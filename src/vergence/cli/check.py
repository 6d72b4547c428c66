"""``vergence check``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils import terminal
from vergence.utils.checks import expect

if TYPE_CHECKING:
    from vergence.runs.checked import CheckResult

__all__: list[str] = []

SHOWN = 10  # pictures that are printed
NAME = 48  # characters of a name in the terminal


@dataclass(kw_only=True)
class Check:
    """Say what is odd among pictures, where and why; which are copies, blurry, dark or unreadable. Writes a page.

    By itself a folder is judged with an estimated rate; beside known pictures (--against) with a rate that holds.
    """

    source: Annotated[Positional[str], arg(metavar="FOLDER")]
    """Pictures: a folder of any depth, a file, a .parquet or .csv with a column of them, a tar, an array, or a built-in set.
    Of vectors: a .npy, .npz or .parquet file."""
    against: Annotated[str | None, arg(metavar="KNOWN", help_behavior_hint="(default: judged by themselves)")] = None
    """Pictures that are known to be ordinary: at most the stated share of the flagged ones is then ordinary."""
    leaks: bool = False
    """Only say which pictures are copies of those of --against, or nearly so."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: check-FOLDER)")] = None
    """Folder for report.html, items.parquet, items.csv, copies.csv, skipped.csv, embeddings.npy and summary.json."""
    encoder: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: patches)")] = "patches"
    """patches, which needs no network; timm:NAME, a network of timm; auto, the best that is at hand; or a run folder."""
    vectors: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Embeddings of the pictures by any model, .npy in their order, or .npz or .parquet with their names: one more level."""
    size: Annotated[int, arg(metavar="PIXELS")] = 256
    """Shorter side at which places are looked at, at most; pictures are never enlarged or cropped."""
    fdr: Annotated[float, arg(metavar="SHARE")] = 0.1
    """Share of the flagged pictures that is ordinary, on average at most."""
    mark: Annotated[float, arg(metavar="SHARE")] = 0.05
    """Share of ordinary pictures in which any place is marked, at most."""
    confirm: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file with the names, one a line, of pictures that you found odd: they are set apart."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Column of a table that holds the pictures."""
    data_root: options.DataRoot = None
    workers: Annotated[int, arg(metavar="N")] = 2
    """Processes that read pictures."""
    threads: options.Threads = None


@dataclass(kw_only=True)
class Fetch:
    """Write a network's weights to a folder, with their license, for a machine without a network."""

    name: Annotated[Positional[str], arg(metavar="timm:NAME")]
    """Network of timm, with or without the tag of its weights."""
    to: Annotated[Path, arg(metavar="FOLDER")]
    """Folder to write; check takes it as --encoder."""


def fetch(command: Fetch) -> None:
    """Runs ``vergence fetch``."""
    from vergence.encoders.frozen import fetch as run

    folder = run(command.name, command.to)
    print((folder / "network.json").read_text(encoding="utf-8"), end="")
    print(f"now: vergence check PICTURES --encoder {folder}")


def check(command: Check) -> None:
    """Runs ``vergence check``."""
    from vergence.runs.check import check as run
    from vergence.runs.score import read_names

    expect(
        not command.leaks or command.against is not None, "--leaks with --against KNOWN", "--leaks alone", "name the other source"
    )
    out = command.out or Path(f"check-{Path(command.source.rstrip('/')).name or 'pictures'}")
    found = run(
        command.source,
        against=command.against,
        out=out,
        leaks=command.leaks,
        encoder=command.encoder,
        vectors=command.vectors,
        size=command.size,
        fdr=command.fdr,
        mark=command.mark,
        confirmed=() if command.confirm is None else read_names(command.confirm),
        column=command.column,
        root=command.data_root,
        workers=command.workers,
    )
    show(found)
    print(f"page: {out / 'report.html'}")


def show(found: "CheckResult") -> None:
    """Prints what was found, and the oddest pictures; without a column that is empty."""
    print(found.summary["looked"])
    rows = [] if not found.summary["judged"] else found.strangest(SHOWN)
    columns = {"picture": "path", "score": "score", "q": "q_value", "level": "level", "why": "reason"}
    form = {"path": _short, "score": "{:.1f}".format, "q_value": "{:.2g}".format}
    if rows:
        table = [[form.get(name, str)(found.items[name][i]) for name in columns.values()] for i in rows]
        terminal.table("the oddest first", list(columns), table)
    for sentence in found.summary["sentences"]:
        print(sentence)


def _short(name: str) -> str:
    """Returns a name whose end, which tells files apart, is kept.

    Example:
        >>> _short("a" * 60 + "_0001.png")[-9:]
        '_0001.png'
    """
    return name if len(name) <= NAME else f"…{name[-NAME + 1 :]}"
