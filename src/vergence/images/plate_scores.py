r"""Which sites or wells of plates are anomalous next to control wells of the same plate, and in what.

A treatment changes how many cells there are and how bright, and by that most measurements of quality. So each is compared with
what other sites with as many and as bright cells have, at the same place of the plate: by least squares over all sites, of which
the fifth that fits worst does not count. What is left is judged in deviations of the control sites of the plate, of other wells
for a site of a control well, in K folds of wells, and in the direction in which an error moves it:

    z = sign (x - fitted - median) / deviation,    score = log (mean over measurements of exp(z)),
    p = (1 + sum_k #{control sites of fold k : s_i >= s_k}) / (n + 1)

(cross-conformal, Vovk, 2015; see `vergence.decide.feature_sets`). A deviation is at least what counts, and what most of
the plate's sites have: what treatments change much tells no errors. Control sites that stand apart, as errors do, do not
calibrate, nor do those that a person marks (`label_trim`). The rate is that of normal sites that are like control sites. Where
few sites are flagged, a site has to stand apart from the tail of all sites, too (`tail_p_values`): p-values only become larger,
and the rate holds as before.

Shapes: M sites or wells, n of them of control wells, q measurements, C channels, K folds.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import ndtri

from vergence.data.sites import COLUMNS, ROWS
from vergence.decide.conformal import tail_p_values
from vergence.decide.decisions import Decisions, decided
from vergence.decide.feature_sets import ReferenceScores, soft_mean
from vergence.images.site_quality import CHANNEL, TILES
from vergence.utils.dtypes import Array, Bools, Floats, Ints, Singles

FOLDS, FEWEST = 10, 8  # of control wells; control wells from which on a position is tested
WORST, MOST = 0.2, 0.9  # share of the sites that no fit of what cells explain sees; and that a deviation is at least of
EMPTY, STEP = 0.07, 0.05  # of the control sites' brightness, below which a site is empty; log brightness that is one deviation
SPLIT = 0.01  # probability, over all measurements and positions of a plate, at which control sites differ by position
STEEP = 0.8  # rank correlation from which control wells drift over the plate
LEAST, MANY = 100, 0.12  # sites from which a tail is fitted, and share of them that is flagged, up to which it is
USUAL = 0.1  # rate at which these are counted, so that p-values are the same for any rate
TAIL, BEYOND = 0.85, 0.1  # quantile that a tail runs through; control sites that are expected beyond its end
SHARPNESS, FLOOR, FARTHEST = 1.0, 1e-4, 6.0
KINDS = {  # measurements of a channel that an error of a kind moves, in which direction, 0 for both, and what counts at least
    "focus": {"PowerLogLogSlope": (-1, 0.15), "LogLaplacian2": (-1, 0.25), "LogLaplacian8": (-1, 0.25)},
    "saturation": {"PercentMaximal": (1, 1.0)},
    "background": {"Background": (0, 0.1)},
    "illumination": {"ShadingX": (0, 0.05), "ShadingY": (0, 0.05), "ShadingXX": (0, 0.05), "ShadingYY": (0, 0.05)},
    "debris": {"Bright": (1, 0.25), "Smooth": (1, 0.25)},
}
CORRELATED, SHIFTED = 0.05, 0.5  # difference of correlations, and of the log of 1 + pixels of a shift, that count at least
SURE = 2.0  # deviations from which a kind is sure
FEW, TRACE = 0.2, 1e-7  # of the control sites' brightness, below which few cells are left; and how little that adds to a score
PARTS, MOST_TILES = (2, 4, TILES), 0.95  # tiles per side of what a heatmap compares; share of the control sites that stay below
BLEED, SHIFT, NONE = "bleed", "shift", "empty"
LOGS = {"PercentMaximal": 0.02, "Background": 1e-6}  # measurements whose logarithm is judged, and below what all are equal


@dataclass(frozen=True)
class Measure:
    """A measurement, the kind of error that moves it, its channel or channels, and the direction; 0 for both."""

    kind: str
    channel: str
    sign: int
    least: float  # deviation of the control sites, at least


@dataclass(frozen=True)
class Units:
    """What is judged: M sites, or M wells by the medians of their sites."""

    x: Floats  # measurements that cells do not explain, (M, q)
    control: Bools  # (M,)
    well: Ints  # numbers of well, plate, row and column, (M,)
    plate: Ints
    place: Ints  # row and column, (M, 2)
    mark: Ints  # of a person, (M,): 1 for an anomaly, -1 for a normal one, 0 for none

    @property
    def rim(self) -> Ints:
        """Whether each lies at the rim of its plate, (M,)."""
        out = np.zeros(len(self.x), dtype=np.int64)
        for p in np.unique(self.plate):
            out[self.plate == p] = at_rim(self.place[self.plate == p])
        return out

    @property
    def fold(self) -> Ints:
        """Fold of each control site, (n,), by wells."""
        rank = np.unique(self.well[self.control], return_inverse=True)[1].reshape(-1)
        return np.asarray(rank % min(FOLDS, int(rank.max()) + 1), dtype=np.int64)

    def by_well(self) -> "Units":
        """Returns the wells, in the order of their numbers; one has a mark where most of its sites have."""
        first = np.unique(self.well, return_index=True)[1]
        sites = [self.well == k for k in self.well[first]]
        x, mark = np.stack([np.median(self.x[own], 0) for own in sites]), [int(np.median(self.mark[own])) for own in sites]
        return Units(x, self.control[first], self.well[first], self.plate[first], self.place[first], np.array(mark))

    def deviations(self, least: Floats, rims: Sequence[int] = ()) -> tuple[Floats, Floats]:
        """Returns deviations from control wells of the plate in other folds, (M, K, q), and of these out of fold, (n, q).

        The ``rims`` of some plates are first evened, by the same control wells.
        """
        fold = np.full(len(self.x), -1)
        fold[self.control] = self.fold
        z = np.zeros((len(self.x), int(fold.max()) + 1, self.x.shape[1]))
        rim = (self.rim == 1) & np.isin(self.plate, rims)
        for p in np.unique(self.plate):
            rows = self.plate == p
            for k in range(z.shape[1]):
                others = (self.control & (fold != k))[rows]
                x = evened(self.x[rows], rim[rows], others)
                wide = np.quantile(np.abs(x - np.median(x, 0)), MOST, axis=0) / ndtri(0.5 + MOST / 2)
                z[rows, k] = by_controls(x, x[others], np.maximum(least, wide))
        return z, z[self.control, fold[self.control]]


@dataclass(frozen=True)
class Judged:
    """What is flagged among M sites or wells, and why."""

    decisions: Decisions
    added: Floats  # what each measurement adds to the score, (M, q)
    apart: Bools  # control sites without a mark that stand apart, (M,)
    split: Sequence[tuple[int, str, Measure]]  # plates whose control sites differ by position: in what


def measures_of(channels: Sequence[str], table: Floats, pairs: Floats) -> tuple[list[Measure], Floats]:
    """Returns what is judged, and its values (N, q), of measurements (N, C, M) and of pairs of channels (N, P, 2)."""
    measures, columns = list[Measure](), list[Floats]()
    for c, channel in enumerate(channels):
        for kind, signs in KINDS.items():
            measures += [Measure(kind, channel, *about) for about in signs.values()]
            values = [table[:, c, CHANNEL.index(name)] for name in signs]
            columns += [np.log(np.maximum(x, LOGS[name])) if name in LOGS else x for name, x in zip(signs, values, strict=True)]
    for (a, b), x in zip(itertools.combinations(range(len(channels)), 2), pairs.transpose(1, 0, 2), strict=True):
        both = f"{channels[a]} and {channels[b]}"
        measures += [Measure(BLEED, both, 1, CORRELATED), Measure(SHIFT, both, 1, SHIFTED)]
        columns += [x[:, 0], np.log1p(x[:, 1])]
    return measures, np.stack(columns, 1)


def cells_of(table: Floats) -> Floats:
    """Returns how bright cells are, and how many there are, in each channel, (N, 2 C), of measurements (N, C, M)."""
    mean, background, blobs = (table[:, :, CHANNEL.index(name)] for name in ("MeanIntensity", "Background", "Blobs"))
    return np.concatenate([np.log(np.maximum(mean - background, FLOOR)), blobs], 1)


def unexplained(x: Floats, cells: Floats, place: Ints) -> Floats:
    """Returns measurements (N, q) less what cells (N, d) and places (N, 2) explain, by most of the sites of a plate.

    Of cells by a quadratic function, of row and column by a linear one, and the rim. Of few sites all are linear, or constant.
    """
    y = np.clip(by_controls(cells, cells), -FARTHEST, FARTHEST)
    position = np.c_[place - place.mean(0), at_rim(place)] / np.array([*np.maximum(place.std(0), 1), 1])
    terms = [np.ones((len(y), 1)), position, y, np.square(y)]
    sizes = np.cumsum([term.shape[1] for term in terms])
    design = np.concatenate([term for term, size in zip(terms, sizes, strict=True) if size == 1 or 5 * size <= len(x)], 1)
    out = np.empty_like(x)
    for j, column in enumerate(x.T):
        rows = np.ones(len(x), dtype=bool)
        for _ in range(4):
            out[:, j] = column - design @ np.linalg.lstsq(design[rows], column[rows], rcond=None)[0]
            rows = np.abs(out[:, j]) <= np.quantile(np.abs(out[:, j]), 1 - WORST)
    return out


def at_rim(place: Ints) -> Ints:
    """Returns which wells lie at the rim of those of a plate, (N,) 0 or 1, by row and column (N, 2)."""
    return np.asarray(((place == place.min(0)) | (place == place.max(0))).any(1), dtype=np.int64)


def empty(table: Floats, control: Bools, plate: Ints) -> Floats:
    """Returns steps by which sites (N,) are less bright than `EMPTY` of the control sites in most channels, or 0, or a trace."""
    light = cells_of(table)[:, : table.shape[1]]
    for p in np.unique(plate):
        light[plate == p] -= np.median(light[(plate == p) & control], 0)
    middle = np.median(light, 1)
    return np.asarray(np.maximum(0.0, np.log(EMPTY) - middle) / STEP + TRACE * (middle < np.log(FEW)))


def by_controls(x: Floats, controls: Floats, least: Any = 1e-9) -> Floats:
    """Returns values (N, ...) less the median of those of control sites (n, ...), in robust deviations, at least ``least``."""
    middle = np.median(controls, 0)
    deviation = 1.4826 * np.median(np.abs(controls - middle), 0)
    return np.asarray((x - middle) / np.maximum(deviation, least))


def split_controls(units: Units, measures: Sequence[Measure], steep: float = 0.0) -> list[tuple[int, str, Measure]]:
    """Returns plate, ``rows``, ``columns`` or ``rim``, and the measurement in which control wells of a plate differ most by it.

    By the rank correlation of the wells' medians of each measurement with the position, or its distance from the middle, at least
    ``steep``, at a level over all of them. Halves of the wells by position differ by more than what counts at least.
    """
    wells, found = units.by_well(), []
    least = np.array([one.least for one in measures])
    for p in np.unique(wells.plate):
        own = wells.control & (wells.plate == p)
        x, place = wells.x[own], wells.place[own]
        row, column = np.abs(place - (place.min(0) + place.max(0)) / 2).T
        positions = [("rows", place[:, 0]), ("columns", place[:, 1]), ("rim", wells.rim[own]), ("rows", row), ("columns", column)]
        for name, at in positions:
            if len(np.unique(at)) < 2 or len(at) < FEWEST:
                continue
            low, high = (np.median(x[part], 0) for part in (at <= np.median(at), at >= np.median(at)) if part.any())
            counts = np.abs(high - low) > least
            each = [stats.spearmanr(one, at) if does else (0.0, 1.0) for does, one in zip(counts, x.T, strict=True)]
            j = int(np.argmax([abs(rank) for rank, _ in each]))
            if each[j][1] <= SPLIT / (len(positions) * len(each)) and abs(each[j][0]) >= steep:
                found.append((int(p), name, measures[j]))
    return found


def evened(x: Floats, rim: Bools, control: Bools) -> Floats:
    """Returns values (N, q) of a plate with its rim less what control sites there differ from the others by."""
    if not (rim & control).any() or not (~rim & control).any():
        return x
    return np.asarray(x - np.outer(rim, np.median(x[rim & control], 0) - np.median(x[~rim & control], 0)))


def apart(scores: Floats) -> Bools:
    """Returns which scores (n,) of control sites stand apart: beyond what an exponential tail of the others reaches.

    The tail is that from the median to the 85 % quantile; beyond its end a tenth of a score is expected. Of a heavier tail more
    are beyond it, and the rate rests on these being errors.
    """
    middle, upper = np.quantile(scores, (0.5, TAIL))
    scale = max(float(upper - middle), 1e-9) / np.log(0.5 / (1 - TAIL))
    return np.asarray(scores > middle + scale * np.log(0.5 * len(scores) / BEYOND))


def judged(units: Units, measures: Sequence[Measure], fdr: float) -> Judged:
    """Returns what is flagged among sites or wells, by q measurements."""
    split = split_controls(units, measures)
    z, own = units.deviations(np.array([one.least for one in measures]), [p for p, name, _ in split if name == "rim"])
    sign = np.array([one.sign for one in measures])
    own, z = (np.where(sign == 0, np.abs(of), of * sign) for of in (own, z))
    even = np.full(len(measures), 1 / len(measures))
    reference, scores = (soft_mean(of, even, SHARPNESS) for of in (own, z))
    mark = units.mark[units.control]
    out = (apart(reference) & (mark >= 0)) | (mark > 0)
    far = np.zeros(len(z), dtype=bool)
    far[np.flatnonzero(units.control)[out & (mark == 0)]] = True
    calibrating = ReferenceScores(reference[~out], units.fold[~out], [""] * int((~out).sum()), units.control)
    p, score = calibrating.p_values(scores), scores.mean(1)
    given = {"left_out": units.control, "confirmed": units.mark > 0, "normal": units.mark < 0, "score": score}
    few = 0 < decided(p, USUAL, len(calibrating), **given).flagged <= MANY * len(score)
    if few and len(score) >= LEAST:
        p = np.maximum(p, tail_p_values(score))
    return Judged(decided(p, fdr, len(calibrating), **given), z.mean(1), far, split)


def most_telling(added: Floats, measures: Sequence[Measure]) -> list[Measure]:
    """Returns a measure that tells what is wrong with each of M, of what each adds to the score, (M, q), as `measures_of`.

    The largest, but blur leaves the background as it is and bleed does not, and a shift takes the correlation that bleed adds.
    Bleed correlates one channel with others; pairs that have no channel in common are correlated by an object.
    Before all come few cells, pixels at the maximum, and what most channels have: background of a darker site, else an object.
    A kind that most channels have is of no single channel.
    """
    kind, channels = np.array([one.kind for one in measures]), len({one.channel for one in measures if one.kind == "background"})
    each = {name: added[:, kind == name].reshape(len(added), channels, -1) for name in KINDS}
    claims = {name: x.max(2) for name, x in each.items()}
    focus, light, bleed, shift = claims["focus"], claims["background"], added[:, kind == BLEED], added[:, kind == SHIFT]
    every = {**claims, NONE: -each["debris"][:, :, 0]}
    most = {name: (x >= SURE).sum(1) > max(x.shape[1] / 2, 2) for name, x in every.items()}
    ends = np.array(list(itertools.combinations(range(channels), 2)), dtype=np.int64).reshape(-1, 2)
    strong = [(bleed >= SURE)[:, (ends == c).any(1)].sum(1) for c in range(channels)]  # pairs of each channel
    whole, linked, darker = most["background"], np.max(strong, 0) < (bleed >= SURE).sum(1), most[NONE]
    most |= {"debris": most["debris"] | linked | (whole & ~darker), BLEED: 0 * whole, SHIFT: 0 * whole}
    claims["focus"] = focus - light
    claims[BLEED] = bleed + np.where(bleed >= SURE, np.minimum(focus, light)[:, ends].max(2), 0)
    claims[SHIFT] = shift + np.where(shift >= SURE, np.maximum(-bleed, 0), 0)
    claims[BLEED][linked] = -np.inf
    names, few = list(claims), added[:, -1] > 0
    largest = np.stack([x.max(1, initial=-np.inf) for x in claims.values()], 1).argmax(1)
    largest[whole] = np.where(few | darker, names.index("background"), names.index("debris"))[whole]
    largest[claims["saturation"].max(1) >= SURE] = names.index("saturation")
    telling = list[Measure]()
    for i, name in enumerate("" if one else names[k] for one, k in zip(few & ~whole, largest.tolist(), strict=True)):
        first = np.flatnonzero(kind == name)[:: len(KINDS.get(name, "1"))]
        one = measures[first[claims[name][i].argmax()]] if name else measures[-1]
        telling.append(replace(one, channel="") if name and most[name][i] else one)
    return telling


def rows_and_columns(wells: Sequence[str]) -> Ints:
    """Returns row and column of wells such as B03, (N, 2), from 0; 0 and 0 of all if any has another name, such as W100."""
    found = [re.fullmatch(rf"({'|'.join(ROWS)})(\d\d?)", well.upper()) for well in wells]
    known = all(well is not None and int(well[2]) <= COLUMNS for well in found)
    return np.array([(ROWS.index(well[1]), int(well[2]) - 1) if well and known else (0, 0) for well in found]).reshape(-1, 2)


def heat_of(tiles: Array, control: Bools, plate: Ints) -> Singles:
    """Returns how anomalous tiles of sites are next to the same of control sites, (N, C, T, T), of tiles (N, C, 3, T, T).

    By how smooth they are for their brightness, their dimmest, and their brightest part, in means of 2 x 2 and of 4 x 4 tiles and
    of the channel: the largest, relative to what a channel reaches anywhere in 1 of 20 control sites.
    """
    out = np.zeros((len(tiles), *tiles.shape[1:2], *tiles.shape[3:]), dtype=np.float32)
    for p, side in itertools.product(np.unique(plate), PARTS):
        rows, own = plate == p, control[plate == p]
        energy, dim, bright = tiles[rows].astype(np.float64).swapaxes(0, 2).swapaxes(1, 2)
        height = np.log(np.maximum(bright - np.median(dim[own].min((2, 3)), 0)[:, None, None], FLOOR))
        dim, bright = (np.log(np.maximum(x, FLOOR)) for x in (dim, bright))
        for x, any_sign in ((2 * height - energy, False), (dim, True), (bright, side == TILES)):
            parts = x.reshape(len(own), -1, TILES // side, side, TILES // side, side).mean((3, 5))
            spread = 1.4826 * np.median(np.abs(parts[own] - np.median(parts[own], 0)), (0, 2, 3))
            z = by_controls(parts, parts[own], np.maximum(spread, 1e-9)[:, None, None])
            z = (np.abs(z) if any_sign else z) / np.maximum(np.quantile(z[own].max((2, 3)), MOST_TILES, axis=0), 1)[:, None, None]
            out[rows] = np.maximum(out[rows], z.repeat(side, 2).repeat(side, 3))
    return out
