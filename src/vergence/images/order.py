"""Images or vectors without a reference: in order, the most anomalous first. Nothing is flagged, and no rate is stated.

Each feature set gives log-distances of all items by Gaussians that saw neither an item nor a duplicate of it, and not the
farthest quarter of the others. Their scale follows from the quartiles, so that anomalies among them do not set it. The score
joins the feature sets as with a reference (`vergence.decide.feature_sets`).

What a person marked changes the order: a logistic regression on the score and on principal components tells the anomalies from
the normal items, with the less anomalous half of the others as normal items of little weight.

Shapes: N items, n of them different from each other; K folds; D features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from vergence.decide.decisions import Decisions
from vergence.decide.density import TRIM, CrossFitted, RidgeGaussian
from vergence.decide.feature_sets import LOWEST, FeatureSet, combined, shares
from vergence.decide.moments import robust_scale
from vergence.images.clusters import anomalous_clusters
from vergence.images.duplicates import Duplicates, duplicate_sets
from vergence.images.features import FILE, ImageFeatures, RegionPass, extractor_of
from vergence.images.labels import joined, labels_alone
from vergence.images.marks import marks_in_words
from vergence.images.passes import region_rows, sampled
from vergence.images.plane import standardized
from vergence.images.reference import COMPONENTS, FITTED, heatmaps_of
from vergence.images.regions import OwnCells
from vergence.images.result import SET, Anomalies, CheckSettings
from vergence.utils.checks import counted, expect
from vergence.utils.dtypes import Array, Bools, Floats, Ints
from vergence.utils.parts import Parts

FOLDS, FEWEST = 5, 20  # folds of the items; different ones, at least
FEWEST_GROUPED = 100  # items
QUARTER, SHARPNESS = 0.25, 0.25  # of the items, which may be anomalous; of the mean of feature sets
ONE_UNIT = 30.0  # largest deviation of numbers of one unit, relative to their median deviation
FEWEST_MARKS, FEWEST_ANOMALIES = 10, 3  # that an order is learned from
INVERSE, WEAK = 0.3, 0.3  # of the penalty; weight of what nobody marked, relative to that of the marks, in all
FARTHEST, LARGEST = 8.0, 3  # deviations that a regression reads; items that have moved and are named
WEIGHTS = {"whole": 1.0, "regions": 1.0, "details": 0.5, "measurements": 0.5, "vectors": 1.0}


def ordered_images(
    features: ImageFeatures, duplicates: Duplicates, settings: CheckSettings, kept: Parts | None
) -> tuple[Anomalies | None, list[str]]:
    """Returns images in order, or None, and notes; ``kept`` are parts of an earlier call."""
    group = duplicate_sets(duplicates, len(features))
    fold, fitted = _fitted(features, group, settings)
    if len(fitted) < FEWEST:
        return None, [f"Too few for an order: {counted(len(fitted), 'different image')}; at least {FEWEST} are needed."]
    sample = sampled(features, fitted, settings, extractor_of([features], settings.network, settings.embed, settings.size))
    names = sample.extractor.names
    regions = [OwnCells(sample.some_cells(j), fold[sample.rows]) for j in range(len(names))]
    of_digest = dict(zip(features.digest.tolist(), fold.tolist(), strict=True))
    judged = region_rows(features, RegionPass(sample.extractor, regions, of_digest), settings, sample, kept)
    table = features.measurements[:, FILE:]
    wholes = {"measurements": table, "whole": judged.vector}
    if features.vectors is not None:
        wholes["vectors"] = features.vectors
    t = {name: CrossFitted(x[fitted], fold[fitted]).log_distance(x, fold) for name, x in wholes.items()}
    t |= {name: judged.scores[:, j, 0] for j, name in enumerate(names)}
    units = CrossFitted(table[fitted], np.zeros(len(fitted), dtype=np.int64))
    groups = _groups(units.white(table[fitted]), fitted, farther=1.0) if len(fitted) >= FEWEST_GROUPED else []
    embedding = _components(judged.vector, fitted).astype(np.float32)
    heat = heatmaps_of(judged.heatmap[fitted], judged.heatmap, settings.region_rate)
    weights = shares(t, WEIGHTS)
    found, notes = _after_marks(_order(t, fitted, weights, settings), embedding, features, settings)
    labels = labels_alone(features.labels, judged.vector, fold)
    return Anomalies(found, units.in_units(table), heat, embedding, groups, None, weights, labels=labels), notes


def ordered_vectors(features: ImageFeatures, settings: CheckSettings) -> tuple[Anomalies | None, list[str]]:
    """Returns vectors in order, or None, and notes."""
    x = features.vectors
    assert x is not None
    fold, fitted = _fitted(features, np.unique(features.digest, return_inverse=True)[1], settings)
    if len(fitted) < FEWEST:
        return None, [f"Too few for an order: {counted(len(fitted), 'different vector')}; at least {FEWEST} are needed."]
    fits = CrossFitted(x[fitted], fold[fitted])
    one_unit = x.std(0).max() <= ONE_UNIT * np.median(x.std(0))  # numbers of one unit, as those of a network
    groups = _groups(x[fitted] if one_unit else fits.in_units(x[fitted]), fitted) if len(fitted) >= FEWEST_GROUPED else []
    found = _order({"vectors": fits.log_distance(x, fold)}, fitted, {"vectors": 1.0}, settings)
    found, notes = _after_marks(found, _components(x, fitted), features, settings)
    return Anomalies(found, fits.in_units(x), None, x.astype(np.float32), groups, None, {"vectors": 1.0}), notes


def _fitted(features: ImageFeatures, group: Ints, settings: CheckSettings) -> tuple[Ints, Ints]:
    """Returns the fold of each item, which duplicates and items of one group share, and one of duplicates (N,) to fit to.

    The latter are in the order of content. No fit sees what a person called anomalous.
    """
    order = np.argsort(features.digest, kind="stable")
    first = order[np.sort(np.unique(group[order], return_index=True)[1])]
    unit = joined(group, features.groups)
    number = np.zeros(int(unit.max(initial=0)) + 1, dtype=np.int64)
    expect(len(first) == 0 or features.groups is None or len(set(unit)) > 1, "two groups at least", "one", "leave `groups` out")
    ones = np.array(list(dict.fromkeys(unit[first].tolist())), dtype=np.int64)
    number[ones] = np.arange(len(ones))
    apart = settings.review.marked(features.names, "anomaly")
    return number[unit] % FOLDS, first[~np.isin(group[first], group[apart])][:FITTED]


def _components(x: Array, fitted: Ints) -> Floats:
    """Returns leading principal components (N, k) of features (N, D), in units of their deviations."""
    return RidgeGaussian(x[fitted], trim=TRIM).components(x, min(COMPONENTS, max(2, len(fitted) // 5)))


def _order(t: Mapping[str, Floats], fitted: Ints, weights: Mapping[str, float], settings: CheckSettings) -> Decisions:
    """Returns scores of items with log-distances (N,) of each feature set; none is flagged."""
    sets = {name: FeatureSet(one[fitted], one[:, None]) for name, one in t.items()}
    _, scores, added = combined(sets, weights, SHARPNESS, QUARTER)
    n, first = len(scores), np.stack(list(added.values())).argmax(0)
    unknown = np.full(n, np.nan)
    strongest, flag = [list(added)[i] for i in first.tolist()], np.zeros(n, dtype=np.uint8)
    columns = {"score": scores[:, 0], "feature_set": strongest, "p_value": unknown, "q_value": unknown, "flag": flag}
    each = {SET + name: -np.log((n - np.searchsorted(np.sort(one), one)) / n) for name, one in t.items()}  # the share as far
    return Decisions({**columns, **each}, n, 0, 0, settings.fdr)


def _after_marks(found: Decisions, z: Array, features: ImageFeatures, settings: CheckSettings) -> tuple[Decisions, list[str]]:
    """Returns the order after what a person marked, and what follows from the marks and has moved, in words."""
    names, before = features.names, found.columns["score"]
    anomaly, normal = (settings.review.marked(names, mark) for mark in ("anomaly", "normal"))

    def without(rows: Ints) -> Floats:
        """Returns the order that follows the marks of all but some images."""
        rest = ~np.isin(np.arange(len(names)), rows)
        enough = (anomaly & rest).sum() >= FEWEST_ANOMALIES and ((anomaly | normal) & rest).sum() >= FEWEST_MARKS
        return learned(before, z, anomaly & rest, normal & rest) if enough else before

    notes = marks_in_words(settings.review, names, features.digest, without)
    after = without(np.zeros(0, dtype=np.int64))
    if after is before:
        return found, notes
    old, new = (np.argsort(np.argsort(-np.where(anomaly | normal, -np.inf, s), kind="stable")) for s in (before, after))
    up = [i for i in np.argsort(new, kind="stable").tolist() if new[i] < old[i] and not (anomaly | normal)[i]][:LARGEST]
    moved = "; ".join(f"{names[i]} (from {old[i] + 1:,} to {new[i] + 1:,})" for i in up)
    notes.append(f"The order follows {int((anomaly | normal).sum()):,} marks{f'; moved up: {moved}' if moved else ''}.")
    return replace(found, columns={**found.columns, "score": after}), notes


def learned(score: Floats, z: Array, anomaly: Bools, normal: Bools) -> Floats:
    """Returns scores (N,) that follow marks (N,), by scores (N,) and principal components (N, D), in deviations of the others."""
    from sklearn.linear_model import LogisticRegression

    marked = anomaly | normal
    others = ~marked & (score <= np.median(score))
    features = np.c_[np.clip(_in_deviations(score), LOWEST, FARTHEST), standardized(z) / np.sqrt(z.shape[1])]
    rows = np.flatnonzero(marked | others)
    weight = np.where(marked[rows], 1.0, WEAK * marked.sum() / max(1, others.sum()))
    fitted = LogisticRegression(C=INVERSE, max_iter=500).fit(features[rows], anomaly[rows], sample_weight=weight)
    return _in_deviations(features @ fitted.coef_[0])


def _in_deviations(score: Floats) -> Floats:
    """Returns scores (N,) less their median, in robust deviations."""
    centered = score - np.median(score)
    return np.asarray(centered / robust_scale(centered[:, None]))


def _groups(x: Floats, fitted: Ints, farther: float = 0.0) -> Sequence[Ints]:
    """Returns the members of anomalous groups whose mean lies farther from that of the others than so many normal items."""
    return [fitted[group.members] for group in anomalous_clusters(torch.from_numpy(x)) if group.distance > farther]
