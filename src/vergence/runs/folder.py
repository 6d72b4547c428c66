"""A folder judged by itself: what is unusual among its items, scattered or in clusters, without a reference and without a run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from vergence.data.images import file_name
from vergence.data.items import Items
from vergence.data.sources import as_source, open_whole
from vergence.detection import image_size
from vergence.runs.findings import write_folder_page
from vergence.runs.folder_levels import Described, FolderLevels
from vergence.runs.identity import of_items, of_module, versions
from vergence.runs.judging import Judged, Kept, judge
from vergence.runs.leaks import Leaks, leaked
from vergence.runs.scoring import overlap
from vergence.training.folder import write_skipped
from vergence.utils import terminal
from vergence.utils.checks import require_within
from vergence.utils.files import require_table
from vergence.utils.parts import keep_parts
from vergence.utils.resources import resources

if TYPE_CHECKING:
    from vergence.runs.run import Run

__all__ = ["Judged", "score_folder"]

EVERY = 1024  # items of a part
WHOLE = 0.99  # share of an image that is judged, from which on nothing is said of the rest


@resources()
def score_folder(
    source: str | Path | Items,
    out: str | Path | None = None,
    *,
    run: "Run | None" = None,
    fdr: float = 0.1,
    confirmed: list[str] | None = None,
    leaks_from: str | Path | Items | None = None,
    root: str | None = None,
    seed: int = 0,
    workers: int = 2,
) -> Judged:
    """Returns what is unusual in a folder that is judged by itself; oddities may be among the items, one by one or in clusters.

    No run is needed: levels are statistics of the pixels and responses to a dictionary of the folder's own patches. Each item is
    scored by robust fits that did not see it, nor a copy of it (`vergence.runs.robust`). Given ``out``, finished parts of the
    work are kept beside it, so that the same call after a kill goes on behind them, and a page with pictures, ``OUT.html``,
    is written too.

    Args:
        source: Path of a folder of images or of an array, name of a built-in set, or items.
        out: ``.npz``, ``.csv`` or ``.parquet`` file to write; None writes nothing.
        run: Run whose levels are used instead, for instance one that was trained on this folder.
        fdr: False-discovery rate of the flags, in (0, 1), of p-values that are an estimate.
        confirmed: Names of items that are known to be odd, which no fit sees.
        leaks_from: Other items, such as those of a training, in which copies and near-duplicates of the items are looked for; as
            ``source``.
        root: Folder of torchvision's data sets.
        seed: Seed of the folds and of the dictionary.
        workers: Processes that decode images.

    Raises:
        ValueError: There are fewer than 20 items, they are all alike, a file cannot be read or written, or the other items are
            of another kind or among the items.

    Example:
        >>> found = score_folder("digits")
        >>> len(found.names), found.score.shape
        (359, (359,))
    """
    require_within("(0, 1)", fdr=fdr)
    if out is not None:
        require_table(Path(out))
    items = source if isinstance(source, Items) else _items(as_source(source), run, root)
    other = _other(leaks_from, source, run, root)
    own = FolderLevels(items, seed) if run is None else run.levels()
    sizes = _sizes(source, items)
    settings: dict[str, Any] = {"workers": workers, **({} if run is None else run.where())}
    with _kept(out, own, items, {"seed": seed, **settings}, confirmed or []) as kept:
        shared = None if other is None else _shared(items, other, workers)
        with terminal.late_bar("items", len(items)) as advance:
            choices: dict[str, Any] = {"fdr": fdr, "confirmed": confirmed or [], "seed": seed}
            found = judge(Described(own), items, advance, kept=kept, sizes=sizes, **choices, **settings)
        if shared is not None:
            found.leak, found.leak_scope = [shared.names.get(name, "") for name in found.names], shared.scope
            found.notes += shared.notes
        for note in found.notes:
            print(f"warning: {note}", file=sys.stderr)
        for note in (unseen := _unseen(sizes, items.shape)):
            terminal.note(note)
        found.notes += unseen
        if out is not None:
            found.write(Path(out))
            write_skipped(Path(f"{out}.skipped.csv"), items.skipped)
            name = Path(source).name if isinstance(source, str | Path) else "items"
            write_folder_page(Path(f"{out}.html"), found, items, name=name, other=other)
    return found


@contextmanager
def _kept(
    out: str | Path | None, levels: nn.Module, items: Items, settings: dict[str, Any], confirmed: list[str]
) -> Iterator[Kept]:
    """Yields where finished parts are kept: the levels of the items that are held, and the scores of all others."""
    if out is None:
        yield Kept()
        return
    size = {name: value if isinstance(value, int | None) else str(value) for name, value in settings.items() if name != "workers"}
    job = {"job": "folder", "model": of_module(levels), **size, **versions(), "source": of_items(items)}
    path = Path(out)
    with (
        keep_parts(path, {**job, "step": "levels"}, every=EVERY) as first,
        keep_parts(
            path.with_name(f"{path.name}.others"), {**job, "step": "others", "confirmed": "\n".join(confirmed)}, every=EVERY
        ) as second,
    ):
        yield Kept(first, second)


def _sizes(source: str | Path | Items, items: Items) -> np.ndarray | None:
    """Returns heights and widths (N, 2) of the files of a folder of images, which items may be resized from; None for others."""
    if isinstance(source, Items) or len(items.shape) != 3 or not Path(source).is_dir():
        return None
    rows = []
    for name in items.names:
        try:
            rows.append(image_size(Path(source) / file_name(name)))
        except ValueError:  # it cannot be read, which is listed elsewhere
            rows.append(items.shape[1:])
    return np.array(rows)


def _unseen(sizes: np.ndarray | None, shape: tuple[int, ...]) -> list[str]:
    """Returns what the reader must know of images that are wider or taller than what is cut out of their middle.

    Args:
        sizes: Heights and widths (N, 2) of the files; None for other items.
        shape: Shape (C, H, W) that the items are brought to.

    Example:
        >>> _unseen(np.array([[480, 640], [64, 64]]), (3, 32, 32))
        ['1 of 2 images are not square, and only their middle is judged, 75% of the area: what lies beside it is not seen']
    """
    if sizes is None:
        return []
    aspect = sizes[:, 1] / sizes[:, 0] * (shape[1] / shape[2])
    seen = np.minimum(aspect, 1 / aspect)
    if not (cut := seen < WHOLE).any():
        return []
    much = f"{seen[cut].max():.0%}" if np.ptp(seen[cut]) < 0.005 else f"{seen[cut].min():.0%} to {seen[cut].max():.0%}"
    return [
        f"{int(cut.sum()):,} of {len(sizes):,} images are not square, and only their middle is judged, {much} of the area: "
        "what lies beside it is not seen"
    ]


def _other(given: str | Path | Items | None, source: str | Path | Items, run: "Run | None", root: str | None) -> Items | None:
    """Returns the items among which leaks are looked for; None without any."""
    if given is None or isinstance(given, Items):
        return given
    if not isinstance(source, Items) and overlap(as_source(given), as_source(source)):
        raise ValueError(f"expected other items than those of {source}, found {given}, which overlaps it; name another source")
    return _items(as_source(given), run, root)


def _shared(items: Items, other: Items, workers: int) -> Leaks:
    """Returns what two sources share, with a bar."""
    with terminal.late_bar("copies", len(items) + len(other)) as advance:
        return leaked(items, other, advance, workers=workers)


def _items(source: str, run: "Run | None", root: str | None) -> Items:
    return open_whole(source, root=root) if run is None else run.items(source, root=root)
