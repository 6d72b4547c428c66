"""A folder judged by itself: no reference of typical items, and oddities among the items, one by one or in heaps."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vergence.data.items import Items
from vergence.data.sources import open_whole
from vergence.detection import flags, odd_groups, q_values, tail_p_values
from vergence.detection.groups import Group
from vergence.detection.measurements import Measured
from vergence.detection.parts.tails import Tail
from vergence.evaluation import features
from vergence.runs.detector import usable_levels
from vergence.runs.folder_levels import Described, FolderLevels
from vergence.runs.levels import MOST_ITEMS, Arrays, Found, Leveled, collected
from vergence.runs.robust import RobustScores
from vergence.training.calibration import FEWEST, digests
from vergence.training.folder import write_skipped
from vergence.utils.checks import require_within
from vergence.utils.files import open_table, require_table
from vergence.utils.terminal import late_bar

if TYPE_CHECKING:
    from vergence.runs.run import Run

__all__ = ["Judged", "judge", "score_folder"]

SHOWN, WRITTEN = 10, 4096  # oddities that are printed; rows that are written at a time
TYPICAL, NEAREST, STRANGE = 5_000, 3, 3.0
FEWEST_TAIL, FEWEST_GROUPED = 200, 100  # items


@dataclass
class Judged:
    """What was found in a folder; arrays are over its N readable items, in their order.

    Attributes:
        names: Names.
        score: How anomalous each item is, (N,); larger is more anomalous. See `vergence.runs.robust`.
        p_value: Probability that a typical item has such a score, from the scores of all items and a tail that is fitted to
            them, (N,). Oddities make it too large; it is an estimate, without the guarantee of a calibration part.
        q_value: Least false-discovery rate at which each item is reported, (N,).
        flag: Whether it is reported at the given rate, (N,) bool.
        level: Level that says so, (N,).
        nearest: Most similar typical items of each flagged or strange item, separated by ``; ``.
        reason: Why, in words; empty for the others.
        measured: Names of the plain properties that few items of the folder have, such as ``dark`` or ``blurry``.
        group: Name of the most central item of the odd group that the item belongs to; empty for none.
        same_as: Name of the first item of equal content; empty for items without one.
        groups: Odd groups: heaps of items that are alike and unlike all others; members are numbers of items.
        notes: What the reader must know.
    """

    names: list[str]
    score: np.ndarray
    p_value: np.ndarray
    q_value: np.ndarray
    flag: np.ndarray
    level: np.ndarray
    nearest: list[str]
    reason: list[str]
    measured: list[str]
    group: list[str]
    same_as: list[str]
    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> list[dict[str, Any]]:
        """The strangest items, the strangest first: name, score, p-value, level, nearest items and reason."""
        order = np.argsort(-self.score, kind="stable")[:SHOWN]
        return [{name: values[i] for name, values in self.columns().items()} for i in order.tolist()]

    def columns(self) -> dict[str, Any]:
        """Returns what is written, by the name of the column."""
        numbers = {name: getattr(self, name) for name in ("score", "p_value", "q_value")}
        texts = {name: getattr(self, name) for name in ("nearest", "reason", "measured", "group", "same_as")}
        return {"name": self.names, **numbers, "flag": self.flag.astype(np.uint8), "level": self.level.tolist(), **texts}

    def lines(self) -> list[str]:
        """Returns what to do, in sentences."""
        n, copies = int(self.flag.sum()), sum(map(bool, self.same_as))
        items = "1 item" if n == 1 else f"{n:,} items"
        found = f"look at {items}: they are far beyond the tail of the other {len(self.names) - n:,}"
        if not n:
            found = (
                f"none of the {len(self.names):,} items is flagged: without a reference, odd ones cannot be told from the tail "
                f"of the others; look from the most unusual on"
            )
        heaps = [
            f"{group.size:,} items like {self.names[group.medoid]} form a group of their own (p = {group.p_value:.2g})"
            for group in self.groups
        ]
        return [found, *heaps, *([f"copies of other items: {copies:,}"] if copies else [])]

    def write(self, out: Path) -> None:
        """Writes a ``.npz``, ``.csv`` or ``.parquet`` file, a row an item."""
        columns = self.columns()
        with open_table(out) as table:
            for start in range(0, len(self.names), WRITTEN):
                table.append({name: values[start : start + WRITTEN] for name, values in columns.items()})


def score_folder(
    source: str | Path | Items,
    out: str | Path | None = None,
    *,
    run: "Run | None" = None,
    fdr: float = 0.1,
    confirmed: list[str] | None = None,
    root: str | None = None,
    seed: int = 0,
    workers: int = 2,
) -> Judged:
    """Returns what is unusual in a folder that is judged by itself; oddities may be among the items, one by one or in heaps.

    No run is needed: levels are statistics of the pixels and responses to a dictionary of the folder's own patches. Each item is
    scored by robust fits that did not see it, nor a copy of it (`vergence.runs.robust`).

    Args:
        source: Path of a folder of images or of an array, name of a built-in set, or items.
        out: ``.npz``, ``.csv`` or ``.parquet`` file to write; None writes nothing.
        run: Run whose levels are used instead, for instance one that was trained on this folder.
        fdr: False-discovery rate of the flags, in (0, 1), of p-values that are an estimate.
        confirmed: Names of items that are known to be odd, which no fit sees.
        root: Folder of torchvision's data sets.
        seed: Seed of the folds and of the dictionary.
        workers: Processes that decode images.

    Raises:
        ValueError: There are fewer than 20 items, they are all alike, or a file cannot be read or written.

    Example:
        >>> found = score_folder("digits")
        >>> len(found.names), found.score.shape
        (359, (359,))
    """
    require_within("(0, 1)", fdr=fdr)
    if out is not None:
        require_table(Path(out))
    items = source if isinstance(source, Items) else _items(str(source), run, root)
    levels = Described(FolderLevels(items, seed) if run is None else run.levels())
    settings: dict[str, Any] = {"workers": workers, **({} if run is None else run.where())}
    with late_bar("items", len(items)) as advance:
        found = judge(levels, items, advance, fdr=fdr, confirmed=confirmed or [], seed=seed, **settings)
    for note in found.notes:
        print(f"warning: {note}", file=sys.stderr)
    if out is not None:
        found.write(Path(out))
        write_skipped(Path(f"{out}.skipped.csv"), items.skipped)
    return found


def _items(source: str, run: "Run | None", root: str | None) -> Items:
    return open_whole(source, root=root) if run is None else run.items(source, root=root)


def judge(levels: Leveled, items: Items, advance: Any, *, fdr: float, confirmed: list[str], seed: int, **settings: Any) -> Judged:
    """Returns what is unusual among items; see `score_folder`.

    Args:
        levels: Levels of the features of a batch.
        items: The items.
        advance: Called with the number of items of each batch.
        fdr: False-discovery rate of the flags.
        confirmed: Names of items that no fit sees.
        seed: Seed of the folds.
        **settings: See `vergence.evaluation.features.stream`.
    """
    found = collected(levels, items, advance, **settings)
    if len(found.index) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} items to judge a folder by itself, found {len(found.index)}; give more")
    described = {name: found.levels.pop(name) for name in Described.extras if name in found.levels}
    kept, notes = usable_levels(found.levels)
    names = names_of(items, found.index)
    robust, each = _scored(kept, found.digests, _known(names, confirmed), seed)
    others = list(_others(levels, items, found, robust, advance, settings))
    each = np.concatenate([each, *(one for _, _, one in others)])
    marks = np.concatenate([found.digests, *(mark for _, mark, _ in others)])
    index = torch.cat([found.index, *(rows for rows, _, _ in others)])
    order = index.argsort().numpy()
    names = names_of(items, index[order])
    score, each = each.max(1)[order], each[order]
    p = _p_values(robust.total, score)
    q, groups = q_values(p), _groups(described, order)
    return Judged(
        names=names,
        score=score,
        p_value=p,
        q_value=q,
        flag=q <= fdr,
        level=np.asarray(robust.names)[each.argmax(1)],
        nearest=_nearest(found, names, score, order, p <= fdr),
        reason=[_reason(robust.names, one) if odd else "" for one, odd in zip(each, p <= fdr, strict=True)],
        measured=_measured(described, order),
        group=_memberships(groups, names),
        same_as=_copies(marks[order], names),
        groups=groups,
        notes=notes,
    )


def names_of(items: Items, index: torch.Tensor) -> list[str]:
    """Returns the names of the items of an index."""
    return [items.names[i] for i in index.tolist()]


def _known(names: list[str], confirmed: list[str]) -> np.ndarray:
    """Returns which items a person confirmed to be odd, (N,) bool."""
    if unknown := sorted(set(confirmed) - set(names)):
        raise ValueError(
            f"expected names of items of the folder, found {len(unknown)} others (first: {unknown[0]}); correct them"
        )
    return np.isin(np.asarray(names), np.asarray(confirmed, dtype=np.str_))


def _scored(levels: Arrays, marks: np.ndarray, known: np.ndarray, seed: int) -> tuple[RobustScores, np.ndarray]:
    """Returns the fits to the items that are not known to be odd, and the scores (N, L) of all."""
    groups = np.unique(marks[~known], return_inverse=True)[1]
    if len(np.unique(groups)) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} different items, found {len(np.unique(groups))}; give more")
    robust = RobustScores({name: f[~known] for name, f in levels.items()}, groups, seed)
    each = np.empty((len(known), len(robust.names)))
    each[~known] = robust.each
    if known.any():
        each[known] = robust.of({name: f[known] for name, f in levels.items()})
    return robust, each


def _others(
    levels: Leveled, items: Items, found: Found, robust: RobustScores, advance: Any, settings: dict[str, Any]
) -> Iterator[tuple[torch.Tensor, np.ndarray, np.ndarray]]:
    """Yields index, digests and scores of the items that were not sampled."""
    if len(items) <= MOST_ITEMS and len(found.index) == len(items):
        return
    rest = np.setdiff1d(np.arange(len(items)), found.index.numpy())
    if not len(rest):
        return

    def function(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        return digests(x), robust.of({name: f.cpu().numpy() for name, f in levels(x).items()})

    for index, (marks, each) in features.stream(function, items.subset(torch.from_numpy(rest)), **settings):
        yield torch.from_numpy(rest)[index], marks, each
        advance(len(index))


def _nearest(found: Found, names: list[str], score: np.ndarray, order: np.ndarray, unusual: np.ndarray) -> list[str]:
    """Returns the names of the most similar typical items of each unusual one, separated by ``; ``.

    Args:
        found: Levels of the items whose levels are held.
        names: Names of all items, in their order.
        score: Scores of all items, in their order.
        order: Place of each item among those of ``found``, which come first, and all others.
        unusual: Which items to answer for.
    """
    x = np.concatenate(list(found.levels.values()), 1, dtype=np.float32)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    held = np.flatnonzero(order < len(x))
    typical = held[score[held] <= np.median(score)][:TYPICAL]
    near = [""] * len(names)
    rows = held[unusual[held]]
    if len(rows) and len(typical):
        a, b = (torch.nn.functional.normalize(torch.from_numpy(x[order[which]]), dim=1) for which in (rows, typical))
        best = torch.cat([part @ b.T for part in a.split(WRITTEN)]).topk(min(NEAREST, len(typical))).indices
        for i, similar in zip(rows.tolist(), best.tolist(), strict=True):
            near[i] = "; ".join(names[typical[j]] for j in similar)
    return near


def _reason(names: list[str], each: np.ndarray) -> str:
    """Returns the levels at which an item is unusual, the most unusual first, with their scores."""
    order = [i for i in np.argsort(-each) if each[i] > STRANGE] or [int(each.argmax())]
    return ", ".join(f"{names[i]} ({each[i]:.1f})" for i in order)


def _p_values(typical: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Returns p-values of scores (N,), most of which are those of ``typical`` (n,).

    The tail follows the middle of the scores (`vergence.detection.tail_p_values`); of few or equal ones it is fitted to the
    largest tenth, which hides oddities among them.
    """
    if len(score) >= FEWEST_TAIL and len(np.unique(np.quantile(score, [0.6, 0.8, 0.9]))) == 3:
        return np.asarray(tail_p_values(score))
    return np.asarray(np.exp(Tail(typical).log_probability(score)))


def _groups(described: Arrays, order: np.ndarray) -> list[Group]:
    """Returns the odd groups of images, by their thumbnails; none for few items, or more than are held."""
    x = described.get("thumbnail")
    if x is None or len(x) < FEWEST_GROUPED or len(x) < len(order) or not np.ptp(x):
        return []
    found: list[Group] = odd_groups(x[order])
    return found


def _memberships(groups: list[Group], names: list[str]) -> list[str]:
    found = [""] * len(names)
    for group in groups:
        for i in group.members.tolist():
            found[i] = names[group.medoid]
    return found


def _measured(described: Arrays, order: np.ndarray) -> list[str]:
    """Returns the names of the rare plain properties of each item, separated by ``, ``; those that are held alone have any."""
    table = described.get("measured")
    found = [""] * len(order)
    if table is not None:
        named = flags(Measured(*table.astype(np.float64).T))
        for i, row in enumerate(order.tolist()):
            found[i] = ", ".join(name for name, has in named.items() if row < len(table) and has[row])
    return found


def _copies(marks: np.ndarray, names: list[str]) -> list[str]:
    """Returns the name of the first item of equal content; empty for items without one."""
    _, first, group = np.unique(marks, return_index=True, return_inverse=True)
    return ["" if i == j else names[j] for i, j in enumerate(first[group].tolist())]
