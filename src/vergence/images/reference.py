r"""Images or vectors next to a reference: feature sets, how they are combined, and p-values that use all of the reference.

Each feature set gives log-distances t out of fold: t_i of reference image i by what was fitted to the other folds, and t_k(x) of
a new image by what was fitted without fold k, k = 1..K. With the median and the robust deviation of the t_i,

    z = (t - median) / deviation,    s = sum over feature sets of w z / sum of w,

and the cross-conformal p-value is (Vovk, Cross-conformal predictors, 2015)

    p(x) = (1 + sum_k #{i in fold k : s_i >= s_k(x)}) / (n + 1).

P(p <= a) is at most 2 a + (1 - K / n) / (K + 1) for a normal image (Barber et al., Predictive inference with the jackknife+,
2021), and close to a in practice. Above `SPLIT` images half of the reference is fitted to, the other half calibrates as one
fold, and P(p <= a) <= a. Not out of fold are the dictionary of patches, the whitening of cells, and two numbers for each feature set.

Shapes: n reference images, M new ones, K folds, L feature sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vergence.decide.decisions import Decisions, decided
from vergence.decide.ridge import RidgeGaussian, out_of_fold
from vergence.images.duplicates import duplicate_sets, find_duplicates
from vergence.images.features import FILE, ImageFeatures, RegionPass
from vergence.images.passes import region_rows, sampled
from vergence.images.regions import ReferenceCells, region_threshold
from vergence.images.result import LEVEL, Anomalies, CheckSettings, Heatmaps
from vergence.images.scores import CrossFitted, ReferenceScores
from vergence.utils.checks import expect

__all__ = ["FeatureSet", "combined", "folds_of", "vectors_with_reference", "with_reference"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FOLDS, SPLIT = 10, 1_000  # folds of a reference; images above which half of it calibrates
FEWEST = 20  # different reference images
FITTED = 20_000  # that are fitted to, at most
WEIGHTS = {"whole": 1.0, "regions": 0.75, "details": 0.5, "difference": 1.0, "vectors": 1.0, "measurements": 0.25}
COMPONENTS = 64  # of the wholes, by which neighbors are found
LEAST = 0.02  # deviation of a feature set's log-distances, at least


@dataclass(frozen=True)
class FeatureSet:
    """Log-distances of one feature set: of the reference, out of fold, (n,), and of new images without each fold, (M, K)."""

    reference: Floats
    new: Floats

    @classmethod
    def of_vectors(cls, reference: Floats, new: Floats, fold: Ints) -> "FeatureSet":
        """Returns the distances of rows (n, D) and (M, D) under Gaussians with a ridge."""
        t, gaussians = out_of_fold(reference, fold)
        return cls(t, np.stack([gaussians[k].log_distance(new) for k in sorted(gaussians)], 1))

    def standardized(self) -> "FeatureSet":
        """Returns the same in robust deviations from the median of the reference."""
        calibrating = self.reference[np.isfinite(self.reference)]
        middle = float(np.median(calibrating))
        deviation = max(1.4826 * float(np.median(np.abs(calibrating - middle))), LEAST)
        return FeatureSet((self.reference - middle) / deviation, (self.new - middle) / deviation)


def folds_of(digest: Ints, group: Ints) -> tuple[Ints, Ints]:
    """Returns the places (n,) of different reference images in the order of their content, and their folds (n,).

    Of images with equal digests one stays; those of one group, duplicates of each other, share a fold. Of a large reference the
    half that is fitted to has the fold -1.

    Raises:
        ValueError: Fewer than 20 are different.

    Example:
        >>> places, fold = folds_of(np.arange(40) % 30, np.arange(40) % 30)
        >>> len(places), np.bincount(fold).tolist()
        (30, [3, 3, 3, 3, 3, 3, 3, 3, 3, 3])
    """
    places = np.unique(digest, return_index=True)[1]
    few = f"at least {FEWEST} different reference images"
    expect(len(places) >= FEWEST, few, len(places), "give more, or leave --against out")
    first = np.unique(group[places], return_index=True, return_inverse=True)[1:]
    number = np.argsort(np.argsort(first[0]))[first[1]]
    if len(places) <= SPLIT:
        return places, np.asarray(number % min(FOLDS, int(number.max()) + 1), dtype=np.int64)
    fold = np.where(number % 2 == 0, -1, 0)
    kept = (fold == 0) | (np.cumsum(fold < 0) <= FITTED)
    return places[kept], fold[kept]


def combined(sets: Mapping[str, FeatureSet]) -> tuple[Floats, Floats, dict[str, Floats]]:
    """Returns scores of the reference (n,) and of new images (M, K), and what each feature set adds to the latter, (M,).

    Example:
        >>> random = np.random.default_rng(0)
        >>> one = FeatureSet(random.normal(size=50), np.array([[0.0], [9.0]]))
        >>> reference, new, shares = combined({"whole": one})
        >>> reference.shape, bool(new[1, 0] > 5), list(shares)
        ((50,), True, ['whole'])
    """
    total = sum(WEIGHTS[name] for name in sets)
    z = {name: one.standardized() for name, one in sets.items()}
    reference = sum((WEIGHTS[name] / total) * one.reference for name, one in z.items())
    new = sum((WEIGHTS[name] / total) * one.new for name, one in z.items())
    shares = {name: (WEIGHTS[name] / total) * one.new.mean(1) for name, one in z.items()}
    return np.asarray(reference), np.asarray(new), shares


def with_reference(new: ImageFeatures, reference: ImageFeatures, settings: CheckSettings) -> Anomalies:
    """Returns what is anomalous among images next to a reference."""
    group = duplicate_sets(find_duplicates(reference.small, reference.digest), len(reference))
    apart = settings.review.places(reference.names, "known")
    usable = np.flatnonzero(~apart)
    places, fold = folds_of(reference.digest[usable], group[usable])
    places = usable[places]
    sample = sampled(reference, places[fold < 0] if (fold < 0).any() else places, settings)
    fold_of = dict(zip(places.tolist(), fold.tolist(), strict=True))
    of, look = np.array([fold_of[row] for row in sample.rows.tolist()]), sample.look
    regions = [ReferenceCells(sample.some_cells(j), of, int(fold.max()) + 1) for j in range(len(look.names))]
    of_digest = dict(zip(reference.digest[places].tolist(), fold.tolist(), strict=True))
    region_pass = RegionPass(look, regions, of_digest)
    old, judged = region_rows(reference, region_pass, settings, sample), region_rows(new, region_pass, settings)
    sets = {
        "whole": FeatureSet.of_vectors(old.vector[places], judged.vector, fold),
        "measurements": FeatureSet.of_vectors(reference.measurements[places, FILE:], new.measurements[:, FILE:], fold),
    }
    for j, name in enumerate(look.names):
        sets[name] = FeatureSet(np.where(fold >= 0, old.scores[places, j, 0], np.nan), judged.scores[:, j])
    if new.vectors is not None and reference.vectors is not None:
        sets["vectors"] = FeatureSet.of_vectors(reference.vectors[places], new.vectors, fold)
    names = [reference.names[i] for i in places.tolist()]
    seen = np.isin(new.digest, reference.digest)
    decisions, calibration = _decisions(sets, fold, names, new.names, seen, settings)
    heat = _heatmaps(old.heatmap[places[fold >= 0]], judged.heatmap, settings.mark)
    whole = RidgeGaussian(old.vector[places])
    deviations = CrossFitted(reference.measurements[places, FILE:], np.zeros(len(places), dtype=np.int64), clean=True)
    z = whole.components(judged.vector, COMPONENTS).astype(np.float32)
    return Anomalies(decisions, deviations.in_units(new.measurements[:, FILE:]), heat, z, [], calibration)


def _heatmaps(reference: Floats, new: Floats, mark: float) -> Heatmaps:
    """Returns heatmaps (M, 32, 32): the largest of the sets (n, S, 32, 32) and (M, S, 32, 32), each by its maxima's spread."""
    maxima = reference.max((2, 3))
    middle = np.median(maxima, 0)
    deviation = np.maximum(1.4826 * np.median(np.abs(maxima - middle), 0), LEAST)
    largest = ((maxima - middle) / deviation).max(1)
    values = ((new - middle[:, None, None]) / deviation[:, None, None]).max(1)
    return Heatmaps(values.astype(np.float32), region_threshold(largest, mark))


def vectors_with_reference(new: ImageFeatures, known: Floats, settings: CheckSettings) -> Anomalies:
    """Returns what is anomalous among vectors next to reference vectors (n, D)."""
    x = new.vectors
    assert x is not None
    expect(known.shape[1] == x.shape[1], f"reference vectors of {x.shape[1]} numbers", known.shape[1], "use one encoder")
    digest = ImageFeatures.of_vectors([""] * len(known), known).digest
    places, fold = folds_of(digest, digest)
    sets = {"vectors": FeatureSet.of_vectors(known[places], x, fold)}
    seen = np.isin(new.digest, digest)
    decisions, calibration = _decisions(sets, fold, [str(i) for i in places.tolist()], new.names, seen, settings)
    return Anomalies(decisions, x, None, x.astype(np.float32), [], calibration)


def _decisions(
    sets: Mapping[str, FeatureSet], fold: Ints, known: Sequence[str], names: Sequence[str], seen: Bools, settings: CheckSettings
) -> tuple[Decisions, ReferenceScores]:
    """Returns what is flagged, and what calibrates; items that are among the reference are not judged."""
    calibrating = fold >= 0
    reference, new, shares = combined(sets)
    scores = ReferenceScores(
        reference[calibrating], fold[calibrating], [known[i] for i in np.flatnonzero(calibrating).tolist()], seen
    )
    each = {
        LEVEL + name: -np.log(ReferenceScores(one.reference[calibrating], fold[calibrating], (), seen).p_values(one.new))
        for name, one in sets.items()
    }
    table = np.stack(list(shares.values()))
    level = [list(shares)[i] for i in table.argmax(0)]
    odd, fine = settings.review.places(names, "odd"), settings.review.places(names, "fine")
    columns = {"score": new.mean(1), "level": level, **each}
    return decided(scores.p_values(new), settings.fdr, len(scores), left_out=seen | odd, fine=fine, **columns), scores
