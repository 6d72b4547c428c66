"""What is unusual among items that are judged by themselves: robust scores, flags, groups, copies, and a reason for each.

Shapes: N items, L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from vergence.data.items import Items
from vergence.detection import (
    explain,
    extremes,
    flags,
    look_at,
    near_groups,
    odd_groups,
    outlying_features,
    q_values,
    tail_p_values,
)
from vergence.detection.conformal import at_most
from vergence.detection.groups import Group
from vergence.detection.measurements import Measured
from vergence.detection.parts.robust import deviation
from vergence.detection.parts.tails import Tail
from vergence.detection.parts.thumbnails import thumbnail_shape
from vergence.runs.detector import usable_levels
from vergence.runs.folder_levels import Described
from vergence.runs.levels import MOST_ITEMS, Arrays, Found, Leveled, collected, streamed
from vergence.runs.robust import RobustScores
from vergence.training.calibration import FEWEST, digests
from vergence.utils.files import open_table
from vergence.utils.neighbors import nearest_rows
from vergence.utils.parts import Parts

__all__ = ["Judged", "Kept", "judge"]

SHOWN, WRITTEN = 10, 4096  # oddities that are printed; rows that are written at a time
TYPICAL, NEAREST = 5_000, 3
LEAKS = 3  # that are printed
FEWEST_TAIL = FEWEST_GROUPED = 100  # items
LARGEST_GROUP = 0.05  # share of the items in an odd group, at most


@dataclass
class Judged:
    """What was found in a folder; arrays are over its N readable items, in their order.

    Attributes:
        names: Names.
        score: How anomalous each item is, (N,); larger is more anomalous. See `vergence.runs.robust`.
        p_value: Probability that a typical item has such a score, (N,), by a tail that is fitted to the less strange items
            (`vergence.detection.tail_p_values`); an estimate, without the guarantee of a calibration part.
        q_value: Least false-discovery rate at which each item is reported, (N,).
        flag: Whether it is reported at the given rate, (N,) bool.
        level: Level that says so, (N,).
        nearest: Most similar typical items of each flagged or strange item, separated by ``; ``.
        reason: Why, in words; see `vergence.detection.explain`; empty for the others.
        measured: Names of the plain properties that few items of the folder have, such as ``dark`` or ``blurry``.
        group: Name of the most central item of the odd group that the item belongs to; empty for none.
        same_as: Name of the first item of equal content; empty for items without one.
        similar_to: Name of the first item of which this one is nearly a copy; empty for items without one, and for equal ones.
        leak: Name of the item of another source that equals this one or nearly so, empty for none; empty list without a source.
        leak_scope: Which copies of items of another source were looked for.
        fdr: False-discovery rate of the flags.
        groups: Odd groups: clusters of items that are alike and unlike all others; members are numbers of items.
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
    similar_to: list[str]
    leak: list[str] = field(default_factory=list)
    leak_scope: str = ""
    fdr: float = 0.1
    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    near: ClassVar[str] = "nearest ordinary item"

    @property
    def first(self) -> list[dict[str, Any]]:
        """The strangest items, the strangest first: name, score, p-value, level, nearest items and reason."""
        columns = self.columns()
        return [{name: values[i] for name, values in columns.items()} for i in self.strangest(SHOWN).tolist()]

    def strangest(self, n: int) -> np.ndarray:
        """Returns the indices of at most n items, the strangest first; of an odd group the strangest member alone."""
        order = np.argsort(-self.score, kind="stable")
        group = np.asarray(self.group)[order]
        kept = group == ""
        kept[np.unique(group, return_index=True)[1]] = True
        return np.asarray(order[kept][:n])

    def columns(self) -> dict[str, Any]:
        """Returns what is written, by the name of the column."""
        numbers = {name: getattr(self, name) for name in ("score", "p_value", "q_value")}
        texts = {name: getattr(self, name) for name in ("nearest", "reason", "measured", "group", "same_as", "similar_to")}
        texts |= {"leak": self.leak} if self.leak else {}
        return {"name": self.names, **numbers, "flag": self.flag.astype(np.uint8), "level": self.level.tolist(), **texts}

    def lines(self, noun: str = "item") -> list[str]:
        """Returns what to do, in sentences; ``noun`` is what one item is called."""
        n, copies, near = int(self.flag.sum()), sum(map(bool, self.same_as)), sum(map(bool, self.similar_to))
        found = f"{look_at(n, self.fdr, noun)}, if the tail of the others goes on as it begins"
        if not n:
            least = (
                f"none of {len(self.names):,} items is flagged at {self.fdr:g}: the smallest q-value is {self.q_value.min():.2g}"
            )
            why = "without a reference odd items cannot be told from the tail of the others"
            found = f"{least}; {why}; the order is still the one to look in"
        clusters = [self.about(group) for group in self.groups]
        counted = {"copies of other items": copies, "near-duplicates of other items": near}
        counted["copies or near-duplicates of items in the other source"] = sum(map(bool, self.leak))
        shared = [] if any(self.leak) or not self.leak else ["no item is a copy or near-duplicate of one in the other source"]
        also = [f"{what}: {count:,}" for what, count in counted.items() if count]
        return [*shared, found, *clusters, *also, *([self._about_leaks()] if self.leak else [])]

    def _about_leaks(self) -> str:
        """Returns some of the items that another source holds, and which copies were looked for."""
        some = [f"{name} is {other}" for name, other in zip(self.names, self.leak, strict=True) if other][:LEAKS]
        shown = f"for instance {', '.join(some)}; " if some else ""
        return f"{shown}{self.leak_scope}"

    def about(self, group: Group) -> str:
        """Returns what an odd group is, in a sentence."""
        name, p = self.names[group.medoid], f"p = {group.p_value:.2g}"
        if group.distance < 1:
            return f"{group.size:,} items like {name} are nearly the same, and no farther from the mean than a typical item ({p})"
        return (
            f"{group.size:,} items like {name} form a group of their own: {group.distance:.3g} times as far from the mean as a "
            f"typical item ({p})"
        )

    def write(self, out: Path) -> None:
        """Writes a ``.npz``, ``.csv`` or ``.parquet`` file, a row an item."""
        columns = self.columns()
        with open_table(out) as table:
            for start in range(0, len(self.names), WRITTEN):
                table.append({name: values[start : start + WRITTEN] for name, values in columns.items()})


@dataclass(frozen=True)
class Kept:
    """Where the two long steps keep what they have computed; None for nowhere.

    Attributes:
        levels: Levels of the items that are held.
        others: Scores of all other items.
    """

    levels: Parts | None = None
    others: Parts | None = None


def judge(
    levels: Leveled,
    items: Items,
    advance: Any,
    *,
    fdr: float,
    confirmed: list[str],
    seed: int,
    kept: Kept | None = None,
    sizes: np.ndarray | None = None,
    **settings: Any,
) -> Judged:
    """Returns what is unusual among items; see `vergence.score_folder`.

    Args:
        levels: Levels of the features of a batch.
        items: The items.
        advance: Called with the number of items of each batch.
        fdr: False-discovery rate of the flags.
        confirmed: Names of items that no fit sees.
        seed: Seed of the folds.
        kept: Where finished parts are kept; None for nowhere.
        sizes: Heights and widths (N, 2) of the images' files; those of the items by default.
        **settings: See `vergence.evaluation.features.stream`.
    """
    kept = kept or Kept()
    found = collected(levels, items, advance, kept=kept.levels, **settings)
    if len(found.index) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} items to judge a folder by itself, found {len(found.index)}; give more")
    described = {name: found.levels.pop(name) for name in Described.extras if name in found.levels}
    if sizes is not None and "measured" in described:
        described["measured"] = np.concatenate([described["measured"][:, :-2], sizes[found.index.numpy()]], 1)
    usable, notes = usable_levels(found.levels)
    names = names_of(items, found.index)
    alike = _alike(described.get("thumbnail"), found.digests, items.shape, settings.get("size"))
    robust, each = _scored(usable, alike, found.digests, _known(names, items.names, confirmed), seed)
    others = _others(levels, items, found, robust, advance, kept.others, settings)
    each = np.concatenate([each, others["each"]]) if others else each
    marks = np.concatenate([found.digests, others["digest"]]) if others else found.digests
    index = torch.cat([found.index, torch.from_numpy(others["index"])]) if others else found.index
    order = index.argsort().numpy()
    names = names_of(items, index[order])
    score, each = each.max(1)[order], each[order]
    vectors = _of_one_unit(usable["inputs"]) if "inputs" in usable else None
    if (held := len(found.index)) < (n := len(order)):
        notes.append(f"odd groups are not looked for, and near-duplicates only among {held:,} of {n:,} items: more are not held")
    p = _p_values(robust.total, score)
    q, groups = q_values(p), _groups(described.get("thumbnail", vectors), alike, order)
    return Judged(
        names=names,
        score=score,
        p_value=p,
        q_value=q,
        flag=at_most(q, fdr),
        level=np.asarray(robust.names)[each.argmax(1)],
        nearest=_nearest(found, names, score, order, p <= fdr),
        reason=_reasons(robust, each, found, described, order, p <= fdr),
        measured=_measured(described, order),
        group=_memberships(groups, names),
        same_as=(same := _first_of(marks[order], names)),
        similar_to=["" if equal else near for equal, near in zip(same, _near(alike, names, order), strict=True)],
        fdr=fdr,
        groups=groups,
        notes=notes,
    )


def names_of(items: Items, index: torch.Tensor) -> list[str]:
    """Returns the names of the items of an index."""
    return [items.names[i] for i in index.tolist()]


def _known(names: list[str], everyone: Sequence[str], confirmed: list[str]) -> np.ndarray:
    """Returns which items a person confirmed to be odd, (N,) bool, of those that are held."""
    if unknown := sorted(set(confirmed).difference(everyone if confirmed else ())):
        raise ValueError(
            f"expected names of items of the folder, found {len(unknown)} others (first: {unknown[0]}); correct them"
        )
    return np.isin(np.asarray(names), np.asarray(confirmed, dtype=np.str_))


def _alike(thumbnails: np.ndarray | None, marks: np.ndarray, shape: tuple[int, ...], size: int | None) -> np.ndarray:
    """Returns a label for each item that equal ones share, and near-duplicates of images (`vergence.detection.near_groups`).

    Thumbnails are rows of numbers in [0, 1], each of an image of ``shape`` that is cropped to ``size`` where one is given.
    """
    if thumbnails is None:
        return np.unique(marks, return_inverse=True)[1]
    cropped = (shape[0], *(min(side, size or side) for side in shape[1:]))
    x = torch.from_numpy(thumbnails).reshape(-1, *thumbnail_shape(cropped))
    return np.asarray(near_groups((255 * x).round().clamp(0, 255).byte(), marks, turned=True))


def _near(alike: np.ndarray, names: list[str], order: np.ndarray) -> list[str]:
    """Returns the name of the first item that is alike; empty for those without one, and for items that are not held."""
    whole = np.concatenate([alike, alike.max() + 1 + np.arange(len(order) - len(alike))])
    return _first_of(whole[order], names)


def _scored(
    levels: Arrays, alike: np.ndarray, marks: np.ndarray, known: np.ndarray, seed: int
) -> tuple[RobustScores, np.ndarray]:
    """Returns the fits to the items that are not known to be odd, one of each content, and the scores (N, L) of all."""
    rest = np.flatnonzero(~known)
    first, copy = np.unique(marks[rest], return_index=True, return_inverse=True)[1:]
    rows = np.sort(rest[first])
    groups = np.unique(alike[rows], return_inverse=True)[1]
    if len(np.unique(groups)) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} different items, found {len(np.unique(groups))}; give more")
    robust = RobustScores({name: f[rows] for name, f in levels.items()}, groups, seed)
    each = np.empty((len(known), len(robust.names)))
    each[rest] = robust.each[np.searchsorted(rows, rest[first])[copy]]
    if known.any():
        each[known] = robust.of({name: f[known] for name, f in levels.items()})
    return robust, each


def _others(
    levels: Leveled, items: Items, found: Found, robust: RobustScores, advance: Any, kept: Parts | None, settings: dict[str, Any]
) -> Arrays:
    """Returns index, digests and scores of the items that were not sampled; nothing where there are none."""
    if len(items) <= MOST_ITEMS and len(found.index) == len(items):
        return {}
    rest = np.setdiff1d(np.arange(len(items)), found.index.numpy())

    def columns(x: torch.Tensor) -> Arrays:
        return {"digest": digests(x), "each": robust.of({name: f.cpu().numpy() for name, f in levels(x).items()})}

    scored = streamed(columns, items, torch.from_numpy(rest), advance, kept, **settings)
    return scored if len(scored.get("index", ())) else {}


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
        best = nearest_rows(b, a, min(NEAREST, len(typical)), directions=True)
        for i, similar in zip(rows.tolist(), best.tolist(), strict=True):
            near[i] = "; ".join(names[typical[j]] for j in similar)
    return near


def _reasons(
    robust: RobustScores, each: np.ndarray, found: Found, described: Arrays, order: np.ndarray, unusual: np.ndarray
) -> list[str]:
    """Returns why each unusual item is so: levels, measurements of images, features of vectors; empty for the others.

    Args:
        robust: The fits.
        each: Scores (N, L) of the levels, of all items in their order.
        found: Levels of the items that are held.
        described: Their descriptions.
        order: Place of each item among those of ``found``, which come first, and all others.
        unusual: Which items to answer for, (N,) bool.
    """
    rows = np.flatnonzero(unusual)
    p = np.stack([_p_values(robust.each[:, i], each[:, i])[rows] for i in range(each.shape[1])], 1)
    words: dict[int, tuple[str, ...]] = {}
    held = rows[order[rows] < len(found.index)]
    if len(held) and "measured" in described:
        table = described["measured"].astype(np.float64)
        columns = (f.name for f in fields(Measured) if f.name not in ("height", "width"))  # `measured` names odd ones
        typical = dict(zip(columns, table.T, strict=False))
        given = {name: values[order[held]] for name, values in typical.items()}
        words = dict(zip(held.tolist(), extremes(given, typical), strict=True))
    elif len(held) and set(found.levels) == {"inputs"}:
        x = found.levels["inputs"]
        words = dict(zip(held.tolist(), outlying_features(x[order[held]], x), strict=True))
    texts = explain(robust.names, p, len(each), [words.get(i, ()) for i in rows.tolist()])
    reason = [""] * len(each)
    for i, text in zip(rows.tolist(), texts, strict=True):
        reason[i] = text
    return reason


def _p_values(typical: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Returns p-values of scores (N,), most of which are those of ``typical`` (n,).

    Each score is compared with a tail of the smaller ones (`vergence.detection.tail_p_values`); of few or equal ones the tail is
    fitted to the largest tenth, which hides oddities among them.
    """
    if len(score) >= FEWEST_TAIL and np.quantile(score, 0.9) < score.max():
        return np.asarray(tail_p_values(score))
    return np.asarray(np.exp(Tail(typical).log_probability(score)))


def _groups(x: np.ndarray | None, alike: np.ndarray, order: np.ndarray) -> list[Group]:
    """Returns the odd groups of images, by their thumbnails, or of vectors; none for few items, or more than are held.

    Near-duplicates count as one item, so that they alone are no group, and are members of the same one.
    """
    if x is None or len(x) < len(order):
        return []
    first, label = np.unique(alike[order], return_index=True, return_inverse=True)[1:]
    chosen = np.sort(first)
    if len(chosen) < FEWEST_GROUPED or not x.size or not np.ptp(x[order][chosen]):
        return []
    largest = min(0.5, LARGEST_GROUP * len(x) / len(chosen))  # of what is searched
    found: list[Group] = odd_groups(x[order][chosen], largest=largest)
    return [replace(group, members=_with_copies(chosen[group.members], label)) for group in found]


def _with_copies(members: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Returns items and all others that share a label with one of them, those of the first item first."""
    return np.concatenate([[i, *np.setdiff1d(np.flatnonzero(label == label[i]), [i])] for i in members.tolist()])


def _of_one_unit(x: np.ndarray) -> np.ndarray:
    """Returns features (N, D) in units of their robust deviations, without constant ones."""
    varies = np.ptp(x, axis=0) > 0
    x = x[:, varies] - np.median(x[:, varies], 0)
    return np.asarray(x / deviation(x))


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


def _first_of(labels: np.ndarray, names: list[str]) -> list[str]:
    """Returns the name of the first item of equal label; empty for items without one before them."""
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    return ["" if i == j else names[j] for i, j in enumerate(first[group].tolist())]
