"""Groups that images belong to, and images that fit another label better than their own.

A ridge classifier gives each image a value for each label: its margin is the largest of another label less that of its own. With
a reference whose labels are right, the margins of reference images by fits without them give p-values and flags, as scores do.
Without one there is an order alone: images with the largest margins first.

Shapes: N images, n reference images, C labels, D features, K folds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from vergence.data.image_list import ImageList
from vergence.decide.conformal import reportable
from vergence.decide.decisions import decided
from vergence.decide.feature_sets import ReferenceScores, group_weights
from vergence.utils.checks import counted, expect
from vergence.utils.dtypes import Array, Bools, Floats, Ints
from vergence.utils.neighbors import components

Names = str | Sequence[Any] | None

FEWEST, MOST = 5, 1_000  # images of each label, at least; labels, at most
ENOUGH = 0.02  # of the images: as few wrong labels can be flagged where the images of one label calibrate alone


def names_by(images: ImageList, index: Sequence[int], by: Names, argument: str) -> list[str] | None:
    r"""Returns what each of some images belongs to: its folder, a column's text, or a part of its name; None for nothing.

    Args:
        images: The source.
        index: Numbers of the images.
        by: ``folder``, a column of the source's table, ``prefix`` (the name before its last ``_``, ``-``, ``.`` or space), a
            regular expression whose first group, or else whole match, it is, or a sequence of all of them.
        argument: The argument, for messages.
    """
    if by is None:
        return None
    if not isinstance(by, str):
        expect(len(by) == len(images), f"one of `{argument}` for each of {len(images):,} images", len(by), "give as many")
        return [str(by[i]) for i in index]
    if by in images.columns:
        values = [images.columns[by][i] for i in index]
        alone = images.names if argument == "groups" else [""] * len(images)  # of what has no value
        return [alone[i] if value is None else str(value) for i, value in zip(index, values, strict=True)]
    paths = [PurePosixPath(images.names[i]) for i in index]
    if by == "folder":
        return [path.parent.name for path in paths]
    if by == "prefix":
        return [str(path.with_name(re.split(r"[_\-. ](?=[^_\-. ]*$)", path.stem)[0] or path.stem)) for path in paths]
    try:
        found = [re.search(by, str(path)) for path in paths]
    except re.error as error:
        raise ValueError(f"expected `{argument}` folder, prefix, a column or a regular expression, found {by}: {error}") from None
    missing = [str(path) for path, one in zip(paths, found, strict=True) if one is None]
    without = f"{counted(len(missing), 'name')} without it (first: {missing[0]})" if missing else ""
    expect(not missing, f"{by} in each name, for `{argument}`", without, "use folder, prefix or another pattern")
    return [(one.group(1) or "") if one.re.groups else one.group() for one in found if one is not None]


def joined(sets: Ints, groups: Sequence[str] | None) -> Ints:
    """Returns labels (N,) that images of one set (N,) and those of one group share.

    Example:
        >>> joined(np.array([0, 1, 1, 2]), ["a", "a", "b", "c"]).tolist()
        [0, 0, 0, 1]
    """
    if groups is None:
        return sets
    n, group = len(sets), np.unique(np.array(groups), return_inverse=True)[1]
    edges = np.stack([np.tile(np.arange(n), 2), np.concatenate([n + sets, n + n + group])], 1)
    return components(edges, 3 * n)[:n]


@dataclass(frozen=True)
class Labels:
    """Labels of N images: what each fits best except its own, how much better, and which are flagged."""

    given: Sequence[str]  # its label, and the best of the others, (N,)
    other: Sequence[str]
    score: Floats  # margin, (N,): above 0 it fits the other better; NaN where its label has too few examples
    flag: Bools  # whether it is flagged, (N,): none without a reference
    beyond: Bools  # whether it fits its label less than all reference images that calibrate
    expected: float = 0.0  # how many of as many right labels would
    compared: str = ""  # what calibrates each; empty without a reference


def labels_alone(given: Sequence[str] | None, x: Array, fold: Ints) -> Labels | None:
    """Returns labels by features (N, D) out of fold (N,)."""
    if given is None:
        return None
    names, y = _encoded(given, given)
    score, best = np.full(len(x), np.nan), np.zeros(len(x), dtype=np.int64)
    for k in np.unique(fold):
        others = (fold != k) & (y >= 0)
        own = (fold == k) & (y >= 0) & np.isin(y, y[others])  # a label that has all its images in one fold is not judged
        if own.any():
            score[own], best[own] = _margin(_fitted(x[others], y[others], len(names)).predict(x[own]), y[own])
    none = np.zeros(len(x), dtype=bool)
    return Labels(given, _named(names, best, y), score, none, none)


def labels_with_reference(
    given: Sequence[str] | None,
    reference: Sequence[str] | None,
    x: Array,
    old: Array,
    fold: Ints,
    fdr: float,
    seen: Bools | None = None,
    group: Sequence[str] | None = None,
) -> Labels | None:
    """Returns labels by features of images (N, D) and of a reference (n, D), whose labels are right, with its folds (n,).

    Each is compared with the reference images of its label where these are enough, otherwise with those of all labels. Images
    that were ``seen`` (N,) in the reference are not judged; reference images of one ``group`` (n,) count as one.
    """
    if given is None or reference is None:
        return None
    names, y = _encoded(reference, reference)
    asked = _encoded(given, reference)[1]
    judged = np.flatnonzero((asked >= 0) & (True if seen is None else ~seen))
    some, folds = (fold >= 0) & (y >= 0), int(fold.max()) + 1
    expect(len(judged), f"labels of the reference: {', '.join(names[:9])}", ", ".join(sorted(set(given))[:9]), "correct them")
    margin, new, best = np.zeros(len(old)), np.zeros((len(judged), folds)), np.zeros(len(x), dtype=np.int64)
    for k in range(folds):
        others, own = (fold != k) & (y >= 0), some & (fold == k)
        fitted = _fitted(old[others], y[others], len(names))
        if own.any():
            margin[own] = _margin(fitted.predict(old[own]), y[own])[0]
        new[:, k], best[judged] = _margin(fitted.predict(x[judged]), asked[judged])
    smallest = int(np.bincount(y[some], minlength=len(names))[np.unique(asked[judged])].min())
    within = smallest > 0 and reportable(smallest, len(judged), fdr).fewest <= max(1, ENOUGH * len(judged))
    weight = None if group is None else group_weights(np.array(group)[some])
    groups = (y[some], asked[judged]) if within else None
    scores = ReferenceScores(margin[some], fold[some], (), np.zeros(len(judged), dtype=bool), weight, groups)
    p = scores.p_values(new)
    score, flag, beyond = np.full(len(x), np.nan), np.zeros(len(x), dtype=bool), np.zeros(len(x), dtype=bool)
    score[judged], flag[judged] = new.mean(1), decided(p, fdr, scores.examples).flag
    beyond[judged] = p <= scores.least * (1 + 1e-9)
    compared = "reference images of that label" if within else "reference images"
    return Labels(given, _named(names, best, asked), score, flag, beyond, float(scores.least.sum()), compared)


def _encoded(labels: Sequence[str], examples: Sequence[str]) -> tuple[list[str], Ints]:
    """Returns the names of labels that have enough examples, in order, and the number of each image's label, (N,), or -1."""
    names, count = np.unique(np.array(examples), return_counts=True)
    names = names[(count >= FEWEST) & (names != "")]
    expect(len(names) > 1, f"two labels of {FEWEST} images at least", f"{len(names)}", "name what tells labels with `labels`")
    expect(len(names) <= MOST, f"{MOST:,} labels at most", len(names), "name what tells labels with `labels`")
    place = {name: k for k, name in enumerate(names.tolist())}
    return names.tolist(), np.array([place.get(label, -1) for label in labels], dtype=np.int64)


def _named(names: Sequence[str], best: Ints, y: Ints) -> list[str]:
    return [names[i] if own >= 0 else "" for i, own in zip(best.tolist(), y.tolist(), strict=True)]


def _fitted(x: Array, y: Ints, labels: int) -> Any:
    """Returns a ridge classifier of standardized features; the penalty is that of their mean variance."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), Ridge(alpha=len(x))).fit(x, np.eye(labels)[y])


def _margin(values: Floats, y: Ints) -> tuple[Floats, Ints]:
    """Returns the largest value of another label less that of the own one, (N,), and that label, (N,)."""
    rows, others = np.arange(len(y)), values.copy()
    others[rows, y] = -np.inf
    best = others.argmax(1)
    return others[rows, best] - values[rows, y], best
