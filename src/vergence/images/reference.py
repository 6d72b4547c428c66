"""Images or vectors with a reference: their feature sets, how much each counts, and what is flagged.

Log-distances of each feature set are taken out of fold, and above `SPLIT` images half of the reference is fitted to while the
other half calibrates (`vergence.decide.feature_sets`). Not out of fold are the dictionary of patches and the whitening of cells,
which see new images as they see the reference.

Shapes: n reference images, M new ones, K folds, L feature sets.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from vergence.decide.decisions import Decisions, decided
from vergence.decide.density import CrossFitted, RidgeGaussian
from vergence.decide.feature_sets import LEAST, FeatureSet, ReferenceScores, combined, group_weights, shares
from vergence.images.difference import CAUTION, DifferencePass, candidates, twin_p_values
from vergence.images.duplicates import duplicate_sets, find_duplicates
from vergence.images.features import FILE, ImageFeatures, RegionPass, extractor_of, rows_of
from vergence.images.labels import joined, labels_with_reference
from vergence.images.passes import region_rows, sampled
from vergence.images.regions import ReferenceCells, region_threshold
from vergence.images.result import SET, Anomalies, CheckSettings, Heatmaps
from vergence.images.review import after_review
from vergence.utils.checks import expect
from vergence.utils.dtypes import Array, Bools, Floats, Ints

FOLDS, SPLIT = 10, 1_000  # folds of a reference; images above which half of it calibrates
FEWEST = 20  # different reference images
FITTED = 20_000  # that are fitted to, at most
WEIGHTS = {"whole": 1.0, "regions": 1.0, "details": 0.5, "difference": 1.0, "vectors": 1.0, "measurements": 0.1}
NEXT_TO_REGIONS = 0.25  # weight of details where there are regions
COMPONENTS = 64  # of the wholes, by which neighbors are found
PILOT, MOST = 40, 0.2  # images that are compared first; quantile of their correlations
ALIGNED, TWIN = 0.9, 0.5  # correlation of aligned parts, at least; 1 - correlation of twins to that of the reference, at most


def folds_of(digest: Ints, group: Ints, *, stated: bool = False) -> tuple[Ints, Ints]:
    """Returns the indices (n,) of different reference images in the order of their content, and their folds (n,).

    Of images with equal digests one stays; those of one group, duplicates of each other, share a fold, if there are as many
    groups as folds or the groups are ``stated``. Of a large reference the half that is fitted to has the fold -1.
    """
    index = np.unique(digest, return_index=True)[1]
    expect(len(index) >= FEWEST, f"at least {FEWEST} different reference images", len(index), "give more, or leave `against` out")
    first = np.unique(group[index], return_index=True, return_inverse=True)[1:]
    number = np.argsort(np.argsort(first[0]))[first[1]]
    groups = int(number.max()) + 1
    expect(groups > 1 or not stated, "two reference groups at least", f"one of {len(index)} images", "give more groups")
    if groups < FOLDS and not stated:  # nearly all are duplicates of each other
        number, groups = np.arange(len(index)), FOLDS
    if len(index) <= SPLIT:
        return index, np.asarray(number % min(FOLDS, groups), dtype=np.int64)
    fold = np.where(number % 2 == 0, -1, 0)
    kept = (fold == 0) | (np.cumsum(fold < 0) <= FITTED)
    return index[kept], fold[kept]


def weights_of(sets: Collection[str]) -> dict[str, float]:
    """Returns the weight of each feature set; they add up to 1."""
    return shares(sets, WEIGHTS | ({"details": NEXT_TO_REGIONS} if "regions" in sets else {}))


def with_reference(new: ImageFeatures, reference: ImageFeatures, settings: CheckSettings) -> Anomalies:
    """Returns what is anomalous among images with a reference."""
    sets_of = duplicate_sets(find_duplicates(reference.small, reference.digest, reference.read), len(reference))
    usable = np.flatnonzero(~settings.review.marked(reference.names, "reference"))
    count = Counter(_some(reference.groups, usable))
    within = new.groups is not None and min(count[group] for group in new.groups) >= FEWEST
    stated = reference.groups if not within else None
    index, fold = folds_of(reference.digest[usable], joined(sets_of, stated)[usable], stated=stated is not None)
    index = usable[index]
    compared = Compared.of(new, reference, index, fold, settings)
    if compared.twins:
        return _by_twins(new, reference, compared, settings)
    sets, heat, vectors = _sets(new, reference, index, fold, settings)
    embedding = RidgeGaussian(vectors[0]).components(vectors[1], COMPONENTS).astype(np.float32)
    if compared.aligned:
        old, judged = compared.rows(reference, index[fold >= 0]), compared.rows(new, np.arange(len(new)))
        t = np.full(len(index), np.nan)
        t[fold >= 0] = old["difference"][:, 0]
        sets["difference"] = FeatureSet(t, judged["difference"])
        heat = [np.concatenate([h, d["heatmap"][:, None]], 1) for h, d in zip(heat, (old, judged), strict=True)]
    if new.vectors is not None and reference.vectors is not None:
        sets["vectors"] = FeatureSet.of_vectors(reference.vectors[index], new.vectors, fold)
    seen = np.isin(new.digest, reference.digest)
    names, groups, labels = (_some(of, index) for of in (reference.names, reference.groups, reference.labels))
    calibrating = _calibrating(fold, names or [], seen, groups, new.groups if within else None)
    decisions, calibration = _decisions(sets, calibrating, new, settings)
    parts = None if within else groups
    fitting = labels_with_reference(new.labels, labels, vectors[1], vectors[0], fold, settings.fdr, seen, parts)
    deviations = CrossFitted(reference.measurements[index, FILE:], np.zeros(len(index), dtype=np.int64), clean=True)
    in_units = deviations.in_units(new.measurements[:, FILE:])
    heatmaps = heatmaps_of(heat[0], heat[1], settings.region_rate)
    return Anomalies(decisions, in_units, heatmaps, embedding, [], calibration, weights_of(sets), labels=fitting)


def _some(names: Sequence[str] | None, index: Ints) -> list[str] | None:
    """Returns the names at some indices; None of none."""
    return None if names is None else [names[i] for i in index.tolist()]


def _sets(
    new: ImageFeatures, reference: ImageFeatures, index: Ints, fold: Ints, settings: CheckSettings
) -> tuple[dict[str, FeatureSet], list[Array], tuple[Array, Array]]:
    """Returns feature sets, heatmaps of the reference that calibrates and of new images, and features of both as wholes."""
    extractor = extractor_of([reference, new], settings.network, settings.embed, settings.size)
    sample = sampled(reference, index[fold < 0] if (fold < 0).any() else index, settings, extractor)
    other = sampled(new, np.argsort(new.digest, kind="stable"), settings, extractor)
    fold_of = dict(zip(index.tolist(), fold.tolist(), strict=True))
    of = np.array([fold_of[row] for row in sample.rows.tolist()])
    folds, about = int(fold.max()) + 1, zip(extractor.whitening, extractor.banks, strict=True)
    regions = [ReferenceCells(sample.some_cells(j), of, folds, *each, others=other.some_cells(j)) for j, each in enumerate(about)]
    of_digest = dict(zip(reference.digest[index].tolist(), fold.tolist(), strict=True))
    region_pass = RegionPass(extractor, regions, of_digest)
    old, judged = region_rows(reference, region_pass, settings, sample), region_rows(new, region_pass, settings, other)
    sets = {
        "whole": FeatureSet.of_vectors(old.vector[index], judged.vector, fold),
        "measurements": FeatureSet.of_vectors(reference.measurements[index, FILE:], new.measurements[:, FILE:], fold),
    }
    for j, name in enumerate(extractor.names):
        sets[name] = FeatureSet(np.where(fold >= 0, old.scores[index, j, 0], np.nan), judged.scores[:, j])
    return sets, [old.heatmap[index[fold >= 0]], judged.heatmap], (old.vector[index], judged.vector)


@dataclass(frozen=True)
class Compared:
    """Images compared with the nearest ones of the reference."""

    passed: DifferencePass  # what compares an image
    workers: int  # processes that read images
    aligned: bool = False  # whether reference images show parts in one position, so that they tell what is normal there
    twins: bool = False  # whether new images show parts that the reference has once each

    @classmethod
    def of(cls, new: ImageFeatures, reference: ImageFeatures, index: Ints, fold: Ints, settings: CheckSettings) -> "Compared":
        """Returns what compares images, and whether that tells anything: a few of them are compared first.

        Folds are those of single images here: an image of a part is compared with others of that part, duplicates or not, since
        new images are.
        """
        assert reference.images is not None
        if fold.min() >= 0 and reference.groups is None:
            fold = np.arange(len(fold)) % FOLDS
        gray, apart = reference.thumbnail[index], np.full(len(new), -1)
        numbers = reference.index[index]
        compared: dict[int, Sequence[int]] = {}
        for features, rows, own in ((new, np.arange(len(new)), apart), (reference, index, fold)):  # equal ones: by fold
            near = numbers[candidates(features.thumbnail[rows], own, gray, fold)]
            compared.update(zip(features.digest[rows].tolist(), near.tolist(), strict=True))
        fold_of = dict(zip(numbers.tolist(), fold.tolist(), strict=True))
        passed = cls(DifferencePass(reference.images, compared, fold_of, int(fold.max()) + 1), settings.workers)
        both = index, np.arange(len(new))
        some = [rows[np.linspace(0, len(rows) - 1, min(PILOT, len(rows))).astype(np.int64)] for rows in both]
        each = (passed.rows(f, np.unique(r))["correlation"] for f, r in zip((reference, new), some, strict=True))
        old, judged = (float(np.quantile(one, MOST)) for one in each)
        twins = judged >= ALIGNED > old and 1 - judged <= TWIN * (1 - old)
        return cls(passed.passed, settings.workers, old >= ALIGNED, twins)

    def rows(self, features: ImageFeatures, rows: Ints) -> dict[str, Array]:
        """Returns columns of some images; those of one that has gone meanwhile are those of the most normal one."""
        assert features.images is not None
        index = features.index[rows].tolist()
        columns = rows_of(self.passed, features.images.image_list(), index, self.workers, "differences")
        expect(columns, "images that can still be read", "none", "repeat the command")
        at, least = {i: k for k, i in enumerate(columns["index"].tolist())}, int(columns["difference"].sum(1).argmin())
        place = np.array([at.get(i, least) for i in index])
        return {name: values[place] for name, values in columns.items()}


def _by_twins(new: ImageFeatures, reference: ImageFeatures, compared: Compared, settings: CheckSettings) -> Anomalies:
    """Returns what is anomalous among images of parts that the reference has once each: it calibrates nothing."""
    columns = compared.rows(new, np.arange(len(new)))
    z, p = twin_p_values(np.exp(columns["difference"].min(1)))
    anomaly, normal = (settings.review.marked(new.names, mark) for mark in ("anomaly", "normal"))
    marks = {"left_out": np.isin(new.digest, reference.digest), "confirmed": anomaly, "normal": normal}
    given = {"score": z, "feature_set": ["difference"] * len(z), SET + "difference": -np.log(np.maximum(p, 1e-300))}
    decisions = decided(after_review(p, anomaly, normal), settings.fdr, 0, **marks, **given)
    heatmap = np.exp(columns["heatmap"])
    low, middle = np.quantile(heatmap.max((1, 2)), [0.25, 0.5])
    threshold = middle + (middle - low) / 0.6745 * float(stats.t.isf(settings.region_rate, CAUTION))
    table = new.measurements[:, FILE:]
    deviations = CrossFitted(table, np.zeros(len(table), dtype=np.int64), clean=True).in_units(table)
    nearest = [reference.names[int(np.searchsorted(reference.index, i))] for i in columns["nearest"]]
    heat = Heatmaps(heatmap.astype(np.float32), threshold)
    return Anomalies(decisions, deviations, heat, new.whole, [], None, {"difference": 1.0}, nearest)


def heatmaps_of(reference: Floats, new: Floats, region_rate: float) -> Heatmaps:
    """Returns heatmaps (M, 32, 32): the largest of the sets (n, S, 32, 32) and (M, S, 32, 32), each by its maxima's spread."""
    maxima = reference.max((2, 3))
    middle = np.median(maxima, 0)
    deviation = np.maximum(1.4826 * np.median(np.abs(maxima - middle), 0), LEAST)
    largest = ((maxima - middle) / deviation).max(1)
    values = ((new - middle[:, None, None]) / deviation[:, None, None]).max(1)
    return Heatmaps(values.astype(np.float32), region_threshold(largest, region_rate))


def vectors_with_reference(new: ImageFeatures, names: Sequence[str], reference: Floats, settings: CheckSettings) -> Anomalies:
    """Returns what is anomalous among vectors compared with reference vectors (n, D) with names."""
    usable = np.flatnonzero(~settings.review.marked(names, "reference"))
    old, names = reference[usable], [names[i] for i in usable.tolist()]
    x = new.vectors
    assert x is not None
    expect(old.shape[1] == x.shape[1], f"reference vectors of {x.shape[1]} numbers", old.shape[1], "use one encoder")
    digest = ImageFeatures.of_vectors([""] * len(old), old).digest
    index, fold = folds_of(digest, digest)
    sets = {"vectors": FeatureSet.of_vectors(old[index], x, fold)}
    seen = np.isin(new.digest, digest)
    decisions, calibration = _decisions(sets, _calibrating(fold, [names[i] for i in index.tolist()], seen), new, settings)
    return Anomalies(decisions, x, None, x.astype(np.float32), [], calibration, weights_of(sets))


def _calibrating(
    fold: Ints, names: Sequence[str], seen: Bools, reference: Sequence[str] | None = None, new: Sequence[str] | None = None
) -> ReferenceScores:
    """Returns what calibrates, without its scores: of folds (n,), names, which new items are among them, and groups of both."""
    some = np.flatnonzero(fold >= 0)
    own = None if reference is None else [reference[i] for i in some.tolist()]
    weight = None if own is None or new is not None else group_weights(own)
    group = None if own is None or new is None else np.unique(np.array([*own, *new]), return_inverse=True)[1]
    groups = None if group is None else (group[: len(some)], group[len(some) :])
    return ReferenceScores(np.zeros(len(some)), fold[some], [names[i] for i in some.tolist()], seen, weight, groups)


def _decisions(
    sets: Mapping[str, FeatureSet], calibrating: ReferenceScores, new: ImageFeatures, settings: CheckSettings
) -> tuple[Decisions, ReferenceScores]:
    """Returns what is flagged, and what calibrates; items that are among the reference are not judged."""
    reference, scored, added = combined(sets, weights_of(sets))
    scores, *of_sets = (replace(calibrating, scores=s[~np.isnan(s)]) for s in (reference, *(o.reference for o in sets.values())))
    each = {SET + name: -np.log(of.p_values(one.new)) for (name, one), of in zip(sets.items(), of_sets, strict=True)}
    table = np.stack(list(added.values()))
    anomaly, normal = (settings.review.marked(new.names, mark) for mark in ("anomaly", "normal"))
    columns = {"score": scored.mean(1), "feature_set": [list(added)[i] for i in table.argmax(0)], **each}
    marks = {"left_out": scores.seen, "confirmed": anomaly, "normal": normal}
    return decided(scores.p_values(scored), settings.fdr, scores.examples, **marks, **columns), scores
