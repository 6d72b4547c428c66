"""`check`: what is odd in a collection of pictures or vectors, where and why; copies, leaks and files that cannot be read.

    source -> first look at each picture -> copies -> folds -> places -> evidence -> Checked

Without a reference each picture is scored by fits that saw neither it nor a copy of it, and its p-value is an estimate. With a
reference, half of it is fitted to and the other half calibrates: p-values then hold for pictures of the same source, whatever
their law (split conformal). Folds and samples follow the pictures' content, so that names and order do not matter.

Shapes: N pictures, n of them different from each other; L levels; D features of the embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vergence.data.pictures import Pictures, open_pictures
from vergence.detection.conformal import at_most, q_values, ranked
from vergence.detection.copies import copy_groups, find_copies
from vergence.detection.evidence import FEWEST, CrossFitted, RadialLaw, combined, outward, tail_log_p
from vergence.detection.groups import odd_groups
from vergence.detection.measurements import MEASUREMENTS
from vergence.detection.moments import Tail
from vergence.detection.places import CellGaussians, mark_threshold
from vergence.encoders.local import PatchCells
from vergence.runs.checked import Checked, Judged, Looks, Places, checked
from vergence.runs.looks import FirstLook, LocalFeatures, PlaceLook, SampleLook, as_tensor
from vergence.utils import terminal
from vergence.utils.checks import expect, refuse, require_count, require_within

__all__ = ["check"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 5
SAMPLED, FITTED = 1_000, 20_000  # pictures that places are learned from, and that other levels are fitted to, at most
WEIGHTS = {"measurements": 0.8, "whole": 0.1, "places": 0.1, "vectors": 0.1}
FEWEST_GROUPED = 100  # pictures


@dataclass(frozen=True)
class Settings:
    """How pictures are judged.

    Attributes:
        size: Pixels of the shorter side at which places are looked at, at most; pictures are never enlarged or cropped.
        fdr: False-discovery rate of the flags, in (0, 1).
        mark: Share of ordinary pictures in which a place is marked, at most, in (0, 1).
        workers: Processes that read pictures.
        judge: Whether oddities are looked for, beside copies.
        confirmed: Names of pictures that a person found odd: they are set apart.
    """

    size: int = 256
    fdr: float = 0.1
    mark: float = 0.05
    workers: int = 2
    judge: bool = True
    confirmed: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        require_count(8, 4096, size=self.size)
        require_within("(0, 1)", fdr=self.fdr, mark=self.mark)
        require_count(0, workers=self.workers)


def check(
    source: Any,
    *,
    against: Any = None,
    out: str | Path | None = None,
    leaks: bool = False,
    vectors: Any = None,
    size: int = 256,
    fdr: float = 0.1,
    mark: float = 0.05,
    confirmed: Sequence[str] = (),
    column: str | None = None,
    root: str | None = None,
    workers: int = 2,
) -> Checked:
    """Returns what is odd among pictures, where and why, and which are copies of others.

    Args:
        source: Pictures: a folder of any depth, a file, a list of paths or of PIL images, an array, a ``.parquet`` or ``.csv``
            file with a column of paths or of encoded bytes, a tar, the name of a built-in set, or items of this library.
        against: Pictures that are known to be ordinary: p-values then hold at the stated rate. By default the pictures are
            judged by themselves.
        out: Folder in which the results are written; None writes nothing.
        leaks: Only say which pictures are copies of those in ``against``, or nearly so.
        vectors: Embeddings (N, D) of the pictures by another model, in their order, as one more level.
        size: Pixels of the shorter side at which places are looked at, at most.
        fdr: Share of the flagged pictures that is ordinary, on average at most, in (0, 1).
        mark: Share of ordinary pictures in which any place is marked, at most, in (0, 1).
        confirmed: Names of pictures that a person looked at and found odd; no fit sees them, and they are not flagged again.
        column: Column of a table that holds the pictures.
        root: Folder of torchvision's data sets.
        workers: Processes that read pictures.

    Raises:
        ValueError: A setting is out of its range, there is no picture, or the results cannot be written.

    Example:
        >>> found = check("digits")
        >>> len(found.items["path"]), found.summary["pictures"]
        (1797, 1797)
    """
    settings = Settings(size, fdr, mark, workers, judge=not leaks, confirmed=confirmed)
    pictures = open_pictures(source, root=root, column=column)
    known = None if against is None else open_pictures(against, root=root, column=column)
    expect(not leaks or known is not None, "leaks with --against OTHER", "no other source", "name it")
    looks = _looks(pictures, settings, vectors)
    known_looks = None if known is None else _looks(known, settings, None)
    with terminal.bar("copies", 1, late=True) as advance:
        copies = find_copies(looks.small, looks.digest)
        leaked = None if known_looks is None else find_copies(looks.small, looks.digest, known_looks.small, known_looks.digest)
        advance()
    group = copy_groups(copies, len(looks))
    judged, note = None, ""
    if settings.judge and known is not None and known_looks is not None:
        judged = _against(pictures, looks, known, known_looks, settings)
    elif settings.judge:
        judged, note = _by_itself(pictures, looks, group, settings)
    result = checked(pictures, looks, settings, copies, judged, known, known_looks, leaked, [note] if note else [])
    if out is not None:
        result.write(out)
    return result


def _looks(pictures: Pictures, settings: Settings, vectors: Any) -> Looks:
    """Returns what the first look at each picture tells."""
    index, rows = [], []
    with terminal.bar("pictures", len(pictures), late=True) as advance:
        for i, row in pictures.map(FirstLook(), range(len(pictures)), settings.workers):
            index.append(i)
            rows.append(row)
            advance()
    if not rows:
        first = pictures.skipped[0] if pictures.skipped else None
        refuse("pictures that can be read", "none" if first is None else f"none: {first.name} ({first.reason})", "give others")
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    names = [pictures.names[i] for i in index]
    given = None if vectors is None else _rows_of(vectors, pictures, index)
    return Looks(np.array(index), names, given, **columns)


def _rows_of(vectors: Any, pictures: Pictures, index: Sequence[int]) -> Floats:
    x = np.asarray(vectors, dtype=np.float64)
    fits = x.ndim == 2 and len(x) == len(pictures) and bool(np.isfinite(x).all())
    expect(fits, f"finite vectors ({len(pictures)}, D), one for each picture", f"an array of shape {x.shape}", "give one a picture")
    return x[np.array(index)]


def _folds(looks: Looks, group: Ints) -> tuple[Ints, Ints]:
    """Returns the fold of each picture, which copies share, and the first picture of each group, in the order of content."""
    order = np.argsort(looks.digest, kind="stable")
    first, place = np.unique(group[order], return_index=True)
    place = np.sort(place)
    representatives = order[place]
    number = np.zeros(int(group.max()) + 1, dtype=np.int64)
    number[group[representatives]] = np.arange(len(first))
    return number[group] % FOLDS, representatives


def _by_itself(pictures: Pictures, looks: Looks, group: Ints, settings: Settings) -> tuple[Judged | None, str]:
    """Returns what is odd among pictures by themselves, or None and why they are not judged."""
    apart = np.isin(np.array(looks.names), np.array(settings.confirmed, dtype=np.str_))
    missing = sorted(set(settings.confirmed) - set(looks.names))
    expect(not missing, "names of pictures that are checked", f"{len(missing)} others (first: {missing[:1]})", "correct them")
    fold, different = _folds(looks, group)
    different = different[~np.isin(group[different], group[apart])]
    if len(different) < FEWEST:
        few = f"{len(different)} different pictures are too few to say what is odd; at least {FEWEST} are needed"
        return None, f"{few}. Copies and plain properties are told for any number."
    fitted = different[:FITTED]
    log_p, levels = {}, {name: CrossFitted(x[fitted], fold[fitted]) for name, x in looks.levels().items()}
    for name, x in looks.levels().items():
        t = levels[name].log_distance(x, fold)
        if name == "vectors":
            t = outward(t, t[fitted])
        log_p[name] = RadialLaw.of(t[fitted]).log_p(t) if name == "measurements" else _tail(t, fitted)
    sample = fitted[:SAMPLED]
    look = _learned(pictures, looks, sample, fold, settings, clean=False)
    places = _places(pictures, looks, look, settings)
    log_p["places"] = _tail(places.score, fitted)
    log, level = combined(log_p, WEIGHTS)
    q = np.ones(len(log))
    q[~apart] = q_values(np.exp(log[~apart]))
    threshold = mark_threshold(places.largest[fitted], settings.mark)
    y = levels["measurements"].white(looks.levels()["measurements"][fitted])
    groups = odd_groups(torch.from_numpy(y)) if len(fitted) >= FEWEST_GROUPED else []
    flag = at_most(q, settings.fdr) & ~apart
    in_groups = [fitted[g.members] for g in groups if g.distance > 1]
    z = levels["measurements"].in_units(looks.levels()["measurements"])
    return Judged(-log, np.exp(log), q, flag, level, z, places, look, threshold, in_groups, len(fitted), None), ""


def _tail(t: Floats, fitted: Ints) -> Floats:
    """Returns log p of all scores by the tail of those that differ from each other."""
    order = fitted[np.argsort(t[fitted], kind="stable")]
    return np.interp(t, t[order], tail_log_p(t[order]))


def _against(pictures: Pictures, looks: Looks, known: Pictures, known_looks: Looks, settings: Settings) -> Judged:
    """Returns what is odd among pictures beside known ones, half of which calibrate."""
    _, different = _folds(known_looks, copy_groups(find_copies(known_looks.small, known_looks.digest), len(known_looks)))
    least = 2 * FEWEST
    expect(len(different) >= least, f"at least {least} different known pictures", len(different), "give more, or leave --against out")
    fit, calibrating = different[0::2][:FITTED], different[1::2]
    none = np.zeros(len(known_looks), dtype=np.int64)
    log_p: dict[str, Floats] = {}
    known_log_p: dict[str, Floats] = {}
    deviations = np.zeros((0, 0))
    for name, x in looks.levels().items():
        reference = known_looks.levels()[name][fit]
        fold = np.arange(len(fit)) % FOLDS
        law = Tail(CrossFitted(reference, fold, clean=True).log_distance(reference, fold))
        whole = CrossFitted(reference, none[fit], clean=True)
        log_p[name] = law.log_probability(whole.log_distance(x, np.zeros(len(x), dtype=np.int64)))
        known_log_p[name] = law.log_probability(whole.log_distance(known_looks.levels()[name], none))
        if name == "measurements":
            deviations = whole.in_units(x)
    look = _learned(known, known_looks, fit[:SAMPLED], none, settings, clean=True)
    places, known_places = _places(pictures, looks, look, settings), _places(known, known_looks, look, settings)
    law = Tail(known_places.score[fit])
    log_p["places"], known_log_p["places"] = law.log_probability(places.score), law.log_probability(known_places.score)
    weights = dict.fromkeys(log_p, 1.0)
    (log, level), (known_log, _) = combined(log_p, weights), combined(known_log_p, weights)
    p = ranked(-known_log[calibrating], -log)
    seen = np.isin(looks.digest, known_looks.digest)
    q = np.ones(len(p))
    q[~seen] = q_values(p[~seen]) if (~seen).any() else q[~seen]
    threshold = mark_threshold(known_places.largest[calibrating], settings.mark)
    flag = at_most(q, settings.fdr) & ~seen
    return Judged(-log, p, q, flag, level, deviations, places, look, threshold, [], len(fit), len(calibrating))


def _learned(pictures: Pictures, looks: Looks, sample: Ints, fold: Ints, settings: Settings, *, clean: bool) -> PlaceLook:
    """Returns what judges places, learned from the pictures of a sample."""
    rows = looks.index[sample].tolist()
    with terminal.bar("places", 2 * len(rows), late=True) as advance:
        small = []
        for _, pixels in pictures.map(SampleLook(settings.size), rows, settings.workers):
            small.append(as_tensor(pixels))
            advance()
        features: LocalFeatures = PatchCells(small)
        cells, of = [], []
        place = {i: k for k, i in zip(sample.tolist(), rows, strict=True)}
        for i, some in pictures.map(SampleLook(settings.size, features, len(rows)), rows, settings.workers):
            cells.append(some)
            of.append(place[i])
            advance()
    model = CellGaussians(cells, fold[np.array(of)], clean=clean)
    return PlaceLook(settings.size, features, model, dict(zip(looks.digest.tolist(), fold.tolist(), strict=True)))


def _places(pictures: Pictures, looks: Looks, look: PlaceLook, settings: Settings) -> Places:
    """Returns what the map of each picture says; of one that has gone meanwhile, nothing."""
    n = len(looks)
    place = dict(zip(looks.index.tolist(), range(n), strict=True))
    score, largest, where = np.full(n, -np.inf), np.full(n, -np.inf), np.full((n, 2), 0.5)
    embedding: list[npt.NDArray[np.float32] | None] = [None] * n
    with terminal.bar("maps", n, late=True) as advance:
        for i, row in pictures.map(look, looks.index.tolist(), settings.workers):
            k = place[i]
            score[k], largest[k], where[k], embedding[k] = row["places"], row["largest"], row["place"], row["embedding"]
            advance()
    read = [z for z in embedding if z is not None]
    expect(read, "pictures that can still be read", "none", "repeat the command")
    z = np.stack([np.zeros_like(read[0]) if z is None else z for z in embedding])
    return Places(np.maximum(score, score[np.isfinite(score)].min()), largest, where, z)
