"""Items judged by themselves: what is unusual among them, scattered or in clusters, without a reference and without a run.

    items -> levels of features -> scores out of fold -> p-values -> groups, copies, leaks -> Findings

Shapes: N items, n of them held with their levels (all, up to 50,000), L levels.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.images import ImageFiles, file_name
from vergence.data.items import Items
from vergence.data.pixels import fit_shape, to_unit
from vergence.data.sources import as_source, is_object, open_items
from vergence.detection import (
    explain,
    extremes,
    flags,
    measure,
    near_groups,
    odd_groups,
    outlying_features,
    pixel_statistics,
    q_values,
    thumbnail_leaks,
    thumbnails,
)
from vergence.detection.calibrated import Arrays, usable_levels
from vergence.detection.conformal import at_most
from vergence.detection.duplicates import SIDE as THUMBNAIL
from vergence.detection.duplicates import cell_means, thumbnail_shape
from vergence.detection.findings import Findings
from vergence.detection.groups import Group
from vergence.detection.images import Measured, image_size
from vergence.detection.levels import ATOMS, Levels
from vergence.detection.moments import deviation
from vergence.detection.robust import SUMMARY, RobustDetector
from vergence.encoders.config import PatchSettings
from vergence.encoders.dictionary import learn_dictionary
from vergence.encoders.patch_maps import ROOT, PatchMaps, sampled_patches
from vergence.runs.rows import (
    Columns,
    Leveled,
    Reading,
    collected,
    names_of,
    of_items,
    of_module,
    streamed,
)
from vergence.runs.run import Images, Run
from vergence.runs.score import require_apart, score
from vergence.training.calibration import FEWEST, MOST_COMPARED, digests
from vergence.training.folder import write_skipped
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse
from vergence.utils.neighbors import nearest_rows
from vergence.utils.parts import Parts, open_parts, write_table

__all__ = ["Itself", "score_folder"]

EVERY = 1024  # items of a part
WHOLE = 0.99  # share of an image that is judged, from which on nothing is said of the rest
TYPICAL, NEAREST = 5_000, 3  # items that are shown as nearest typical ones, of each item
FEWEST_GROUPED = 100  # items
LARGEST_GROUP = 0.05  # share of the items in an odd group, at most
SIDE, PATCH = 32, 6  # of a folder's dictionary
PATCHES, IMAGES, READ = 20_000, 1_000, 100  # that a folder's dictionary is learned from; images at a time
COLORLESS = 1 / 512  # added to differences of channels in [0, 1], half a step of bytes
SMALLEST = 4  # pixels a side of images whose thumbnails are compared
KINDS = (1, 3)  # channels of images that can be compared with each other
EQUAL = "only equal items are looked for"
NEAR = "mirrored copies and quarter turns are found; otherwise turned and cropped copies are not looked for"
DESCRIBED = ("measured", "thumbnail")
Advance = Callable[[int], None]


def score_folder(
    source: Images,
    out: str | Path | None = None,
    *,
    run: Run | None = None,
    fdr: float = 0.1,
    confirmed: Sequence[str] | None = None,
    leaks_from: Images | None = None,
    root: str | None = None,
    seed: int = 0,
    workers: int = 2,
) -> Findings:
    """Returns what is unusual in a folder that is judged by itself; oddities may be among the items, one by one or in clusters.

    No run is needed: levels are statistics of the pixels and responses to a dictionary of the folder's own patches. Each item is
    scored by robust fits that did not see it, nor a copy of it (`vergence.detection.robust`).

    Args:
        source: Path of a folder of images or of an array, name of a built-in set, or items, as `Run` takes them.
        out: As for `vergence.score`; None writes nothing.
        run: Run whose levels are used instead, for instance one that was trained on this folder.
        fdr: False-discovery rate of the flags, in (0, 1), of p-values that are an estimate.
        confirmed: Names of items that are known to be odd.
        leaks_from: Other items, in which copies and near-duplicates of the items are looked for; as ``source``.
        root: Folder of torchvision's data sets.
        seed: Seed of the folds and of the dictionary.
        workers: Processes that decode images.

    Raises:
        ValueError: There are fewer than 20 items, they are all alike, a file cannot be read or written, or the other items are
            of another kind or among the items.

    Example:
        >>> findings = score_folder("digits")
        >>> len(findings.names), findings.score.shape
        (359, (359,))
    """
    reference = Itself(run, confirmed or (), leaks_from, root, seed, workers)
    return score(source, reference, out, fdr=fdr, name="items" if is_object(source) else Path(source).name)


@dataclass(frozen=True)
class Itself:
    """The items themselves as their reference: nothing is known to be typical.

    Attributes:
        run: Run whose levels of features are used; None for `FolderLevels`.
        confirmed: Names of items that are known to be odd, which no fit sees.
        leaks_from: Items among which copies and near-duplicates of the items are looked for.
        root: Folder of torchvision's data sets.
        seed: Seed of the folds and of the dictionary.
        workers: Processes that decode images.
    """

    run: Run | None = None
    confirmed: Sequence[str] = ()
    leaks_from: Images | None = None
    root: str | None = None
    seed: int = 0
    workers: int = 2

    def items(self, images: Images) -> Items:
        """Returns items of the run's shape, or as they are."""
        if not is_object(images) and self.leaks_from is not None and not is_object(self.leaks_from):
            require_apart(as_source(self.leaks_from), as_source(images), f"other items than those of {images}", "name others")
        return self._opened(images)

    def _opened(self, images: Images) -> Items:
        if self.run is not None:
            return self.run.items(images, root=self.root)
        return open_items(images if is_object(images) else as_source(images), root=self.root)

    @cached_property
    def other(self) -> Items | None:
        """The items of ``leaks_from``."""
        return None if self.leaks_from is None else self._opened(self.leaks_from)

    @cached_property
    def _reading(self) -> Reading:
        return Reading(**({} if self.run is None else self.run.where()), workers=self.workers)

    def findings(self, items: Items, out: Path, fdr: float) -> Findings:
        """Returns what is unusual among items, and writes their table."""
        run = self.run
        levels = FolderLevels(items, self.seed) if run is None else Levels(run.method, run.folder.metadata.shape)
        job = {"job": "folder", "model": of_module(levels), "seed": self.seed, **self._reading.job(), "source": of_items(items)}
        second = {"step": "others", "confirmed": "\n".join(self.confirmed)}
        with (
            open_parts(out, {**job, "step": "levels"}, every=EVERY, joined=False) as of_levels,
            open_parts(out.with_name(f"{out.name}.others"), {**job, **second}, every=EVERY, joined=False) as of_others,
        ):
            leaks = None if self.other is None else leaked(items, self.other, self.workers)
            sizes = _sizes(items)
            with terminal.bar("items", len(items), late=True) as advance:
                held = self._held(items, sizes, levels, of_levels, advance)
                robust, each = _scored(held, self._confirmed(items, held), self.seed)
                others = self._others(items, levels, held, robust, of_others, advance)
            findings = _Judged.of(items, held, robust, each, others).findings(fdr)
            if leaks is not None:
                columns = {**findings.columns, "leak": [leaks.names.get(name, "") for name in findings.names]}
                notes = [*findings.notes, *leaks.notes]
                findings = replace(findings, columns=columns, leak_scope=leaks.scope, notes=notes)
            for note in findings.notes:
                print(f"warning: {note}", file=sys.stderr)
            for note in (unseen := _unseen(sizes, items.shape)):
                terminal.note(note)
            write_table(out, findings.columns)
            write_skipped(Path(f"{out}.skipped.csv"), items.skipped)
        return replace(findings, notes=[*findings.notes, *unseen])

    def _held(self, items: Items, sizes: np.ndarray | None, levels: Leveled, parts: Parts, advance: Advance) -> "_Held":
        """Returns the items whose levels are held, with what describes them."""
        read = collected(_Described(levels), items, self._reading, advance, parts)
        expect(len(read.index) >= FEWEST, f"at least {FEWEST} items to judge a folder by itself", len(read.index), "give more")
        measured, thumbnail = (read.levels.pop(name, None) for name in DESCRIBED)
        if sizes is not None and measured is not None:
            measured = np.concatenate([measured[:, :-2], sizes[read.index.numpy()]], 1)
        usable, notes = usable_levels(read.levels)
        alike = _alike(thumbnail, read.digests, items.shape, self._reading.size)
        return _Held(read.index, read.digests, read.levels, usable, alike, thumbnail, measured, notes)

    def _confirmed(self, items: Items, held: "_Held") -> np.ndarray:
        """Returns which of the items that are held a person confirmed to be odd, (n,) bool."""
        if others := sorted(set(self.confirmed).difference(items.names if self.confirmed else ())):
            refuse("names of items of the folder", f"{len(others)} others (first: {others[0]})", "correct them")
        return np.isin(np.asarray(names_of(items, held.index)), np.asarray(self.confirmed, dtype=np.str_))

    def _others(
        self, items: Items, levels: Leveled, held: "_Held", robust: RobustDetector, parts: Parts, advance: Advance
    ) -> Arrays:
        """Returns index, digests and scores of the items that are not held; nothing where there are none."""
        rest = torch.from_numpy(np.setdiff1d(np.arange(len(items)), held.index.numpy()))

        def columns(x: Tensor) -> Columns:
            return {"digest": digests(x), "each": robust.contributions({name: f.cpu().numpy() for name, f in levels(x).items()})}

        scored = streamed(columns, items, rest, self._reading, advance, parts) if len(rest) else {}
        return scored if len(scored.get("index", ())) else {}


@dataclass(frozen=True)
class _Held:
    """Items whose levels are held, (n,), in the order in which they were read.

    Attributes:
        index: Their index.
        digests: Digests of their content.
        levels: Features of all levels.
        usable: Features of the levels that tell items apart.
        alike: Label that equal items share, and near-duplicates of images.
        thumbnail: Thumbnails (n, P) of images in [0, 1]; None of others.
        measured: Table (n, 7) of `Measured`; None of others.
        notes: Which levels were left out.
    """

    index: Tensor
    digests: np.ndarray
    levels: Arrays
    usable: Arrays
    alike: np.ndarray
    thumbnail: np.ndarray | None
    measured: np.ndarray | None
    notes: list[str]


class _Described:
    """Levels of a batch, and of images ``measured`` (`vergence.detection.measure`) and ``thumbnail`` (at most 16 x 16 means)."""

    def __init__(self, levels: Leveled) -> None:
        self.levels = levels

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        levels = self.levels(x)
        if x.ndim != 4 or x.shape[1] not in KINDS or min(x.shape[2:]) < SMALLEST:
            return levels
        table = torch.from_numpy(measure(x).table) if len(x) else torch.zeros(0, 7)
        return {**levels, "measured": table.float(), "thumbnail": cell_means(to_unit(x, torch.float32)).flatten(1)}

    def widths(self) -> dict[str, int]:
        return {**self.levels.widths(), "thumbnail": 3 * THUMBNAIL**2}


@dataclass(frozen=True)
class _Judged:
    """All N items that could be read, in their order, with the scores of their levels.

    Attributes:
        held: Those whose levels are held.
        robust: The fits.
        names: Names of the items.
        order: Place of each item among those that are held, which come first, and all others.
        digests: Digests of the items' content.
        each: Scores (N, L).
    """

    held: _Held
    robust: RobustDetector
    names: list[str]
    order: np.ndarray
    digests: np.ndarray
    each: np.ndarray

    @classmethod
    def of(cls, items: Items, held: _Held, robust: RobustDetector, each: np.ndarray, others: Arrays) -> "_Judged":
        """Returns all items, by the scores (n, L) of those that are held, and ``index``, ``digest`` and ``each`` of others."""
        index, marks = held.index, held.digests
        if others:
            index, marks = torch.cat([index, torch.from_numpy(others["index"])]), np.concatenate([marks, others["digest"]])
            each = np.concatenate([each, others["each"]])
        order = index.argsort().numpy()
        return cls(held, robust, names_of(items, index[order]), order, marks[order], each[order])

    def findings(self, fdr: float) -> Findings:
        """Returns what is unusual at a false-discovery rate."""
        score, notes, N = self.each.max(1), list(self.held.notes), len(self.names)
        if (n := len(self.held.index)) < N:
            among = f"{n:,} of {N:,} items"
            notes.append(f"odd groups are not looked for, and near-duplicates only among {among}: more are not held")
        p = self.robust.p_values(score)
        q, groups = q_values(p), self._groups()
        flag, same = at_most(q, fdr), _first_of(self.digests, self.names)
        alike = np.concatenate(
            [self.held.alike, self.held.alike.max() + 1 + np.arange(N - n)]
        )  # those not held are alike to none
        near = _first_of(alike[self.order], self.names)
        member_of = {i: self.names[group.medoid] for group in groups for i in group.members.tolist()}
        columns = {
            "name": self.names,
            "score": score,
            "p_value": p,
            "q_value": q,
            "flag": flag.astype(np.uint8),
            "level": np.asarray(self.robust.levels_)[self.each.argmax(1)].tolist(),
            "nearest": self._nearest(score, p <= fdr),
            "reason": self._reasons(p <= fdr),
            "measured": self._measured(),
            "group": [member_of.get(i, "") for i in range(N)],
            "same_as": same,
            "similar_to": ["" if equal else first for equal, first in zip(same, near, strict=True)],
        }
        why = "without a reference odd items cannot be told from the tail of the others; the order is still the one to look in"
        why = f"the smallest q-value is {q.min():.2g}; {why}"
        return Findings(columns, N, int(flag.sum()), fdr, why_none=why, groups=groups, notes=notes)

    def _nearest(self, score: np.ndarray, unusual: np.ndarray) -> list[str]:
        """Returns the names of the most similar typical items of each unusual one, separated by ``; ``."""
        x = np.concatenate(list(self.held.levels.values()), 1, dtype=np.float32)
        x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
        inside = np.flatnonzero(self.order < len(x))
        typical = inside[score[inside] <= np.median(score)][:TYPICAL]
        rows = inside[unusual[inside]]
        if not len(rows) or not len(typical):
            return [""] * len(self.names)
        a, b = (nn.functional.normalize(torch.from_numpy(x[self.order[which]]), dim=1) for which in (rows, typical))
        best = nearest_rows(b, a, min(NEAREST, len(typical)), directions=True).tolist()
        return _placed(rows, ["; ".join(self.names[typical[j]] for j in similar) for similar in best], len(self.names))

    def _reasons(self, unusual: np.ndarray) -> list[str]:
        """Returns why each unusual item is so: levels, measurements of images, features of vectors; empty for the others."""
        rows, held, order = np.flatnonzero(unusual), self.held, self.order
        p = np.stack([self.robust.p_values(self.each[:, i], level=i)[rows] for i in range(self.each.shape[1])], 1)
        words: dict[int, tuple[str, ...]] = {}
        inside = rows[order[rows] < len(held.index)]
        if len(inside) and held.measured is not None:
            columns = (f.name for f in fields(Measured) if f.name not in ("height", "width"))  # `measured` names odd ones
            typical = dict(zip(columns, held.measured.astype(np.float64).T, strict=False))
            values = {name: column[order[inside]] for name, column in typical.items()}
            words = dict(zip(inside.tolist(), extremes(values, typical), strict=True))
        elif len(inside) and set(held.levels) == {"inputs"}:
            x = held.levels["inputs"]
            words = dict(zip(inside.tolist(), outlying_features(x[order[inside]], x), strict=True))
        texts = explain(self.robust.levels_, p, len(self.each), [words.get(i, ()) for i in rows.tolist()])
        return _placed(rows, texts, len(self.each))

    def _groups(self) -> list[Group]:
        """Returns the odd groups of images, by their thumbnails, or of vectors; none for few items, or more than are held.

        Near-duplicates count as one item, so that they alone are no group, and are members of the same one.
        """
        held, order = self.held, self.order
        x = held.usable.get("inputs") if held.thumbnail is None else held.thumbnail
        if x is None or len(x) < len(order):
            return []
        if held.thumbnail is None:  # in units of robust deviations, without constant features
            x = x[:, np.ptp(x, axis=0) > 0]
            x = (x - np.median(x, 0)) / deviation(x - np.median(x, 0))
        first, label = np.unique(held.alike[order], return_index=True, return_inverse=True)[1:]
        chosen = np.sort(first)
        if len(chosen) < FEWEST_GROUPED or not x.size or not np.ptp(x[order][chosen]):
            return []
        largest = min(0.5, LARGEST_GROUP * len(x) / len(chosen))  # of what is searched
        groups: list[Group] = odd_groups(x[order][chosen], largest=largest)
        return [replace(group, members=_with_copies(chosen[group.members], label)) for group in groups]

    def _measured(self) -> list[str]:
        """Returns the names of the rare plain properties of each item, separated by ``, ``; only those that are held have any."""
        if self.held.measured is None:
            return [""] * len(self.names)
        named = flags(Measured(*self.held.measured.astype(np.float64).T))
        texts = [", ".join(name for name, has in named.items() if has[row]) for row in range(len(self.held.measured))]
        return [texts[row] if row < len(texts) else "" for row in self.order.tolist()]


def _placed(rows: np.ndarray, texts: Sequence[str], n: int) -> list[str]:
    """Returns n texts, some in their rows and empty ones in all others."""
    placed = [""] * n
    for i, text in zip(rows.tolist(), texts, strict=True):
        placed[i] = text
    return placed


def _alike(thumbnail: np.ndarray | None, marks: np.ndarray, shape: tuple[int, ...], size: int | None) -> np.ndarray:
    """Returns a label for each item that equal ones share, and near-duplicates of images (`vergence.detection.near_groups`).

    Thumbnails are rows of numbers in [0, 1], each of an image of ``shape`` that is cropped to ``size`` where one is given.
    """
    if thumbnail is None:
        return np.unique(marks, return_inverse=True)[1]
    cropped = (shape[0], *(min(side, size or side) for side in shape[1:]))
    x = torch.from_numpy(thumbnail).reshape(-1, *thumbnail_shape(cropped))
    return np.asarray(near_groups((255 * x).round().clamp(0, 255).byte(), marks, turned=True))


def _scored(held: _Held, confirmed: np.ndarray, seed: int) -> tuple[RobustDetector, np.ndarray]:
    """Returns the fits to the items that are not confirmed to be odd, one of each content, and the scores (n, L) of all."""
    rest = np.flatnonzero(~confirmed)
    first, copy = np.unique(held.digests[rest], return_index=True, return_inverse=True)[1:]
    rows = np.sort(rest[first])
    groups = np.unique(held.alike[rows], return_inverse=True)[1]
    n = len(np.unique(groups))
    expect(n >= FEWEST, f"at least {FEWEST} different items", n, "give more")
    robust = RobustDetector(seed).fit({name: f[rows] for name, f in held.usable.items()}, groups)
    each = np.empty((len(confirmed), len(robust.levels_)))
    each[rest] = robust.contributions_[np.searchsorted(rows, rest[first])[copy]]
    if confirmed.any():
        each[confirmed] = robust.contributions({name: f[confirmed] for name, f in held.usable.items()})
    return robust, each


def _with_copies(members: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Returns items and all others that share a label with one of them, those of the first item first."""
    return np.concatenate([[i, *np.setdiff1d(np.flatnonzero(label == label[i]), [i])] for i in members.tolist()])


def _first_of(labels: np.ndarray, names: list[str]) -> list[str]:
    """Returns the name of the first item of equal label; empty for items without one before them."""
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    return ["" if i == j else names[j] for i, j in enumerate(first[group].tolist())]


class FolderLevels(nn.Module):
    """Items (B, ...) -> level by name, each (B, D), without an encoder: ``pixels``, ``summary``, ``patches``, or ``inputs``.

    ``pixels`` are `vergence.detection.pixel_statistics`; ``summary`` are those of the whole image and, of color images, the
    logarithms of the channels' differences, few numbers that some hundred items suffice for. ``patches`` are responses of images,
    resized to 32 pixels, to a dictionary of 128 patches of the same folder, averaged over positions
    (`vergence.encoders.patch_maps`). They are plain averages, without the root that encoders take, which would hide images of
    many and strong edges, such as noise.

    Args:
        items: Items that the dictionary is learned from; at most 1,000 of them are read.
        seed: Seed of their choice.
    """

    def __init__(self, items: Items, seed: int = 0) -> None:
        super().__init__()
        self.shape = tuple(items.shape)
        self.maps: PatchMaps | None = None
        if len(self.shape) == 3 and min(self.shape[1:]) >= PATCH:
            self.maps = _dictionary(items, seed)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch of items."""
        if len(self.shape) == 1:
            return {"inputs": x.float()}
        if min(self.shape[1:]) < 2:
            return {"inputs": to_unit(x, torch.float32).flatten(1)}
        levels = {"pixels": pixel_statistics(x), SUMMARY: _summary(x)}
        if self.maps is not None:
            levels["patches"] = self.maps(to_unit(x, torch.float32)) ** ROOT
        return levels

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        return {name: f.shape[1] for name, f in self(torch.zeros(1, *self.shape)).items()}


def _summary(x: Tensor) -> Tensor:
    """Returns statistics of whole images: color, contrast, sharpness, noise; (B, 28) of color images, (B, 14) of gray ones."""
    statistics = [pixel_statistics(x, grid=1)]
    if x.shape[1] == 3:
        light = to_unit(x, torch.float32)
        statistics.append(((light - light.roll(1, 1)).abs().mean((2, 3)) + COLORLESS).log().to(statistics[0]))
    return torch.cat(statistics, 1)


@torch.no_grad()
def _dictionary(items: Items, seed: int) -> PatchMaps | None:
    """Returns the responses to patches of some items; None where they have too few different patches."""
    maps = PatchMaps(items.shape[0], PatchSettings(atoms=ATOMS, patch=PATCH, side=SIDE, pool=1))
    chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:IMAGES].sort().values
    stream = items.subset(chosen).stream(torch.arange(len(chosen)).split(READ))
    try:
        maps.set(*learn_dictionary(sampled_patches((x for _, x in stream), maps, n=PATCHES, seed=seed), ATOMS))
    except ValueError:  # nothing could be read, or nearly all patches are equal: the level would say nothing
        return None
    return maps


def _sizes(items: Items) -> np.ndarray | None:
    """Returns heights and widths (N, 2) of image files, which items may be resized from; None for other items."""
    if not isinstance(items, ImageFiles):
        return None
    rows: list[tuple[int, ...]] = []
    for name in items.names:
        try:
            rows.append(image_size(items.folder / file_name(name)))
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


class Leaks(NamedTuple):
    """What two sources share: the name in the other source by that of the item, which copies were looked for, and notes."""

    names: dict[str, str]
    scope: str
    notes: list[str]


def leaked(items: Items, other: Items, workers: int = 0) -> Leaks:
    """Returns the items of which another source has a copy or a near-duplicate.

    Images of the other source are brought to the shape of the items, both to gray where one is, and compared by thumbnails, as
    they are, mirrored and turned (`vergence.detection.thumbnail_leaks`). Among vectors, images of less than 4 pixels a side, and
    sources of more than 100,000 images, equal items alone are found.

    Args:
        items: Items (N) that may have leaked.
        other: The other source, for instance training items.
        workers: Processes that decode images.

    Raises:
        ValueError: The items of the two sources are of different kinds or widths.

    Example:
        >>> from vergence.data.items import ArrayItems
        >>> leaked(ArrayItems(torch.eye(3)[1:]), ArrayItems(torch.eye(3)[:2])).names
        {'0': '1'}
    """
    shape = items.shape
    images = len(shape) == len(other.shape) == 3 and shape[0] in KINDS and other.shape[0] in KINDS
    if images:
        shape = (min(shape[0], other.shape[0]), *shape[1:])
    expect(images or shape == other.shape, "two sources of one kind", f"items of shape {shape} and {other.shape}", "name another")
    compared = images and min(shape[1:]) >= SMALLEST and max(len(items), len(other)) <= MOST_COMPARED

    def columns(x: Tensor) -> Columns:
        x = fit_shape(x, shape) if tuple(x.shape[1:]) != shape else x
        return {"digest": digests(x), **({"thumbnail": thumbnails(x).cpu().numpy()} if compared else {})}

    with terminal.bar("copies", len(items) + len(other), late=True) as advance:
        reading = Reading(workers=workers)
        a, b = (streamed(columns, source, torch.arange(len(source)), reading, advance) for source in (other, items))
    leaks = Leaks({}, NEAR if compared else EQUAL, [])
    if other.skipped:
        leaks.notes.append(f"{len(other.skipped):,} of {len(other):,} other items cannot be read, and were not compared")
    if not len(a.get("index", ())) or not len(b.get("index", ())):
        return leaks
    values, first = np.unique(a["digest"], return_index=True)
    place = np.minimum(np.searchsorted(values, b["digest"]), len(values) - 1)
    equal = values[place] == b["digest"]
    pairs = np.stack([first[place[equal]], np.flatnonzero(equal)], 1)
    rest = np.flatnonzero(~equal)
    if compared and len(rest):
        try:
            near = thumbnail_leaks(torch.from_numpy(a["thumbnail"]), torch.from_numpy(b["thumbnail"][rest]), turned=True).pairs
            pairs = np.concatenate([pairs, np.stack([near[:, 0], rest[near[:, 1]]], 1)])
        except ValueError as error:  # they are too much alike
            leaks.notes.append(f"near-duplicates in both sources were not looked for: {error}")
    elif images and not compared:
        leaks.notes.append(
            f"only equal images were looked for in both sources: images are below {SMALLEST} pixels a side, or one source has "
            f"more than {MOST_COMPARED:,}"
        )
    for i, j in reversed(pairs.tolist()):  # the most similar one stays
        leaks.names[items.names[b["index"][j]]] = other.names[a["index"][i]]
    return leaks
