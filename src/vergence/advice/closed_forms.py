r"""Joint embedding or reconstruction, before any training: what the closed forms say about given data and augmentations.

With labels, even of few items, the verdict is measured: both closed-form solutions are probed under cross-validation. Without
labels only the overlap of the two codes is available: where they have almost nothing in common, joint embedding did better in
most of our experiments. All this is about linear models; docs/guides/advice.md says how far networks follow them.

Shapes: N items, D features, r directions, m draws of the augmentation, k components, G groups, H half-samples.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vergence.advice.candidates import Trial
from vergence.advice.groups import (
    EVERY,
    GROUPS,
    ClassSums,
    Groups,
    Solution,
    collect,
    half_samples,
    jackknifed,
    probed,
    student,
    without,
)
from vergence.advice.nuisances import Place, Shared, constants, few_values, followed, places
from vergence.advice.nuisances import without as covering
from vergence.data.items import Items, PairItems, batches, spaced
from vergence.data.pixels import center_crop
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import patch_dictionary
from vergence.learn.views.images import ImageViews, VectorViews
from vergence.learn.views.vectors import KindViews
from vergence.linear.base import MOST_DRAWS, Affine
from vergence.linear.reading import Augmentation, Composed, Featured, Features, as_items
from vergence.utils.checks import counted, expect, require_choice, require_count
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["FEWEST_ITEMS", "SPACES", "VERDICTS", "AboutData", "Advice", "advise", "patch_features"]

FEWEST_ITEMS = 100  # items, and labeled items that a measurement needs
LEAST = 0.005  # differences of accuracy below half a point are of no consequence
SAME, APART = 0.97, 0.3  # overlaps: above, the choice hardly mattered in our experiments; below, joint embedding did better
UNCHANGED = 1e-6  # a direction is unchanged where the augmentation takes a smaller share of its second moment
SEARCHED = 64  # first directions of joint embedding that are searched, and at most a quarter of all and a 16th of the pixels
IMAGES, BATCH, ATOMS = 4_000, 200, 256  # of patch features: images that the dictionary is learned from, images at a time, atoms
VERDICTS = {"joint_embedding": "joint embedding", "reconstruction": "reconstruction", "cannot_tell": "cannot tell"}
SPACES = {"raw": "", "patches": " patch features", "given": " features"}

Verdict = Literal["joint_embedding", "reconstruction", "cannot_tell"]
Interval = tuple[float, float]

# An operation's name -> the field of its strength, and the strength that leaves an item as it is
PICTURES: Mapping[str, tuple[str, Any]] = {
    "crop": ("crop", (1.0, 1.0)),
    "flip": ("flip", 0.0),
    "jitter": ("jitter_p", 0.0),
    "grayscale": ("grayscale", 0.0),
    "blur": ("blur", 0.0),
    "solarize": ("solarize", 0.0),
    "cover": ("cover", ()),
}
VECTORS: Mapping[str, tuple[str, Any]] = {name: (name, 0.0) for name in ("noise", "mask", "scale")}


class Budget(NamedTuple):
    """Items at most; views of all of them; and, to leave operations out, items and views of each operation."""

    items: int
    views: int
    part_items: int
    part_views: int


RAW, MAPPED = Budget(50_000, 200_000, 10_000, 40_000), Budget(20_000, 80_000, 4_000, 16_000)


@dataclass(frozen=True, kw_only=True)
class AboutData:
    """What the advice is about.

    Attributes:
        items: Items that were read.
        features: D.
        directions: r, principal directions in which both problems are solved.
        variance_kept: Share of the items' variance in these directions, in (0, 1].
        k: Components that the verdict is about.
        draws: Draws of the augmentation per item; 0 where its covariance is given.
        labeled: Items with a label.
        classes: Names of the classes; empty where the verdict does not use labels.
        chance: Share of the largest class; None where the verdict does not use labels.
        space: What the features are: ``raw``, the items' own numbers; ``patches``; ``given``, of a function.
        part: Where the test part of the data comes from; empty outside of `vergence.advice.advise`.
        skipped: Files that could not be read.
    """

    items: int
    features: int
    directions: int
    variance_kept: float
    k: int
    draws: int
    labeled: int
    classes: tuple[str, ...] = ()
    chance: float | None = None
    space: str = "raw"
    part: str = ""
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class ComponentRow:
    """One number of components: overlap, and accuracies of least-squares probes on held-out items, None without labels.

    Attributes:
        k: Components.
        overlap: Mean squared canonical correlation of the codes of both methods, in [0, 1].
        joint_embedding: Accuracy from the components of joint embedding.
        reconstruction: Accuracy from the components of reconstruction.
        pca: Accuracy from principal components.
        margin: Accuracy of joint embedding minus that of reconstruction.
    """

    k: int
    overlap: float
    joint_embedding: float | None = None
    reconstruction: float | None = None
    pca: float | None = None
    margin: float | None = None


@dataclass(frozen=True, kw_only=True)
class OperationRow:
    """The whole augmentation, or the augmentation without one operation; None is what was not measured.

    Attributes:
        operation: ``all``, or the operation that is left out.
        strength: Share of the views' variance that comes from the augmentation, in [0, 1].
        unchanged: Overlap of joint embedding's code with that under the whole augmentation, in [0, 1].
        joint_embedding: Accuracy from the components of joint embedding, on held-out items.
        reconstruction: Accuracy from the components of reconstruction.
        alignment: Share of the linearly readable label information that the k components of joint embedding keep, in [0, 1].
        alignment_change: Difference of that share from the whole augmentation's.
        alignment_change_se: Its standard error.
    """

    operation: str
    strength: float
    unchanged: float
    joint_embedding: float | None = None
    reconstruction: float | None = None
    alignment: float | None = None
    alignment_change: float | None = None
    alignment_change_se: float | None = None


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """What each direction of each solution stands for, (r,) each, in descending order.

    Attributes:
        variance: Of the items, in the square of their unit.
        omega: Of joint embedding, in [0, 1].
        phi: Of reconstruction, in the unit of the items.
    """

    variance: tuple[float, ...]
    omega: tuple[float, ...]
    phi: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation and the measurements that support it.

    Attributes:
        verdict: ``joint_embedding``, ``reconstruction`` or ``cannot_tell``.
        basis: ``labels`` where accuracies were measured, ``spectrum`` where no labels were available.
        margin: With labels, accuracy of joint embedding minus that of reconstruction; without, their overlap at k.
        interval: 95 % interval of the margin, by half-samples of the items; without labels by the jackknife over groups.
        words: The summary in sentences: the recommendation, what the augmentation does, what the advice is about.
        facts: What the advice is about.
        spectrum: The items' variances and the spectra of both solutions.
        components: One row per number of components.
        augmentations: The whole augmentation, then without each operation, on a part of the items.
        shared: What the views share that they perhaps should not, such as a mark in a fixed place.
        trials: What was tried; empty outside of `vergence.advice.advise`.
    """

    verdict: Verdict
    basis: Literal["labels", "spectrum"]
    margin: float
    interval: Interval
    words: tuple[str, ...]
    facts: AboutData
    spectrum: Spectrum
    components: tuple[ComponentRow, ...]
    augmentations: tuple[OperationRow, ...]
    shared: Shared
    trials: tuple[Trial, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain dictionaries and lists, ready for JSON; a measurement that was not made has no key."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def __str__(self) -> str:
        """Returns the summary, a sentence group per line."""
        return "\n".join(self.words)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def advise(
    data: Any,
    augmentation: Any = None,
    *,
    labels: Any = None,
    features: str | Features = "raw",
    n_components: int | None = None,
    n_draws: int | None = None,
    directions: int = 256,
    max_items: int | None = None,
    properties: Mapping[str, Sequence[Any]] | None = None,
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Advises on joint embedding or reconstruction for given data and an augmentation.

    Both problems are estimated and solved in the principal directions of most variance. Joint embedding does not depend on the
    units of the features; reconstruction, by its squared error, does: standardize features of different kinds first.

    Args:
        data: Items (N, D), images (N, C, H, W), or Vergence's items.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, each of which is
            left out in turn, as each operation of Vergence's views is.
        labels: (N,) integers or strings; -1 is unknown among integers. Items' own labels by default.
        features: ``raw``, the items' own numbers; ``patches``, features of a dictionary of patches, of images
            (`patch_features`); or a function from items (B, ...), images in [0, 1], to (B, F). Views are augmented first.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, 4 to 1,000,000; by default 200,000 in all (of items with over 3,072
            features fewer; with features 80,000), from 4 to 1,000 per item.
        directions: Largest number of directions, >= 2.
        max_items: Of more items, so many are sampled; by default 50,000, with features 20,000.
        properties: By name N numbers or words that say where an item is from, such as its folder or its date. The advice says
            which of them the embedding follows.
        random_state: Seed of everything that is random.
        device: Where the sums are computed, as torch names it.

    Raises:
        ValueError: The items are fewer than 100, not finite, or all alike; they are pairs; labels are of another number; the
            augmentation changes the items' shape, or nothing.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(2, size=2000)
        >>> X = rng.normal(size=(2000, 12)) * ([1.0] * 2 + [9.0] * 10)  # strong noise in ten features
        >>> X[:, 0] += 3 * y                                            # the class, in a weak feature
        >>> noise = lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype) * X.new_tensor([0.3] * 2 + [9.0] * 10)
        >>> advice = advise(X, noise, labels=y, n_components=2)
        >>> advice.verdict, advice.margin > 0.2
        ('joint_embedding', True)
        >>> advise(X, None, labels=y).verdict  # noise of equal variance everywhere ranks directions as variance does
        'cannot_tell'
    """
    require_count(0, random_state=random_state)
    if n_draws is not None:  # two halves of them show the error of sampling
        require_count(4, MOST_DRAWS, n_draws=n_draws)
    budget = RAW if features == "raw" else MAPPED
    most = budget.items if max_items is None else max_items
    require_count(1, directions=directions, max_items=most)
    items, y, classes, chosen = _opened(data, labels, most, random_state)
    device = str(as_device(device))
    augmentation = _featured(items, augmentation, features, random_state, device)
    m = _draws(items, n_draws, directions, budget) if callable(augmentation) else 0
    operations = [("all", augmentation), *left_out(augmentation)]
    part = spaced(len(items), budget.part_items)
    part_draws = max(4, math.ceil(budget.part_views / len(part)))
    with bar("reading and augmenting", len(items) + len(part) * len(operations) * (len(operations) > 1)) as advance:
        groups = collect(items, augmentation, y, directions, m, random_state, device, advance)
        study = _study(groups, n_components)

        def measured(other: Augmentation) -> Groups:
            return groups.under(items, other, part, part_draws, random_state, advance)

        whole = functools.cache(lambda: measured(augmentation))  # of operations and of marks

        def under(other: Augmentation) -> Groups:
            return whole() if other is augmentation else measured(other)

        rows = operation_rows(study, operations, under)
        where = {name: [values[i] for i in chosen] for name, values in (properties or {}).items()}
        shared = _shared(study, items, augmentation, where, under) if features == "raw" else Shared(directions=0)
    return _advice(study, rows, augmentation, m, classes, features, shared)


def _advice(
    study: "Study", rows: tuple[OperationRow, ...], augmentation: Any, m: int, classes: Any, features: Any, shared: Shared
) -> Advice:
    """Returns the verdict, its measurements and its words."""
    solution, measured = study.solution, study.classes is not None
    facts = _about(study, m, classes, features)
    components = component_rows(study)
    at = next(row for row in components if row.k == study.k)
    verdict, margin, interval, pca_ahead = _measured(study) if measured else _spectral(study)
    same = _same(study, augmentation, at)
    say = _say_measured if measured else _say_spectral
    variance, omega, phi = (tuple(values.tolist()) for values in (solution.variance, solution.omega, solution.phi))
    return Advice(
        verdict=verdict,
        basis="labels" if measured else "spectrum",
        margin=margin,
        interval=interval,
        words=(
            say(verdict, interval, facts, at, same, pca_ahead),
            _say_augmentation(rows, facts),
            *map(_say_place, shared.places),
            *say_directions(shared),
            _say_scope(facts),
        ),
        facts=facts,
        spectrum=Spectrum(variance=variance, omega=omega, phi=phi),
        components=components,
        augmentations=rows,
        shared=shared,
    )


def _about(study: "Study", m: int, classes: Any, features: Any) -> AboutData:
    groups, y, measured = study.groups, study.groups.labels, study.classes is not None
    labeled = torch.empty(0) if y is None else y[y >= 0]
    return AboutData(
        items=len(groups.x),
        features=len(groups.basis.mean),
        directions=groups.x.shape[1],
        variance_kept=groups.basis.kept,
        k=study.k,
        draws=m,
        labeled=len(labeled),
        classes=tuple(classes) if measured else (),
        chance=float(labeled.long().bincount().max() / len(labeled)) if measured else None,
        space=features if isinstance(features, str) else "given",
    )


def _same(study: "Study", augmentation: Any, at: ComponentRow) -> str:
    """Returns why the two cannot be told apart, as a clause; empty where nothing says so."""
    if study.ties > study.k:
        return f", because the views leave {study.ties} directions unchanged: which {study.k} joint embedding keeps is arbitrary"
    if augmentation is None or (not callable(augmentation) and np.ndim(augmentation) == 0):
        return ", because noise of equal variance in all directions cannot separate them (give your own augmentation)"
    return ", because they keep the same directions" if at.overlap > SAME else ""


# Reading and checking


def _opened(data: Any, labels: Any, most: int, seed: int) -> tuple[Items, Tensor | None, tuple[str, ...], list[int]]:
    """Returns items, labels 0 .. L-1 (-1 unknown), the classes, and the numbers of the items."""
    items = as_items(data)
    expect(not isinstance(items, PairItems), "single items and an augmentation", "pairs", "they are two views: train on them")
    y = labels if labels is not None else items.labels
    array = None if y is None else np.asarray(y)
    if array is not None:
        shape = f"shape {array.shape}"
        expect(array.shape == (len(items),), f"one label for each of {len(items)} items", shape, "-1 marks unknown ones")
    expect(len(items) >= FEWEST_ITEMS, f"at least {FEWEST_ITEMS} items to advise on", len(items), "give more")
    classes, index = ((), None) if array is None else _encoded(array)
    chosen = torch.arange(len(items))
    if len(items) > most:
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        items, index = items.subset(chosen), None if index is None else index[chosen]
    return items, index, classes, chosen.tolist()


def _encoded(labels: Any) -> tuple[tuple[str, ...], Tensor]:
    """Returns the classes, and labels 0 .. L-1; -1 for what is -1, None or not a number."""
    real = labels.dtype.kind == "f"
    given = labels[~np.isnan(labels)] if real else labels
    are_classes = labels.dtype.kind in "iufbUSO" and not (real and not (np.isfinite(given) & (given == np.round(given))).all())
    expect(are_classes, "labels that are classes, whole numbers or text", str(labels.dtype), "convert them")
    unknown = np.array([v is None or v != v or v == -1 for v in labels.tolist()])
    whole = np.where(unknown, -1, labels).astype(np.int64) if real else labels
    values, inverse = np.unique(np.asarray(whole[~unknown].tolist()), return_inverse=True)
    index = np.full(len(labels), -1)
    index[~unknown] = inverse
    return tuple(str(v) for v in values), torch.from_numpy(index)


def _featured(items: Items, augmentation: Any, features: str | Features, seed: int, device: str) -> Any:
    """Returns the augmentation as a function or numbers; of items that are read through features where these are not ``raw``."""
    if isinstance(augmentation, Mapping):
        augmentation = Composed(augmentation)
    augmentation = augmentation.sample if isinstance(augmentation, Affine) else augmentation
    if not callable(features):
        require_choice("features", features, ("raw", "patches"))
        if features == "raw":
            return augmentation
    expect(callable(augmentation), "an augmentation that samples views", "numbers", "give a function, or features='raw'")
    if not callable(features):
        features = patch_features(items, augmentation, seed=seed, device=device)
    return Featured(augmentation, features)


def _draws(items: Items, n_draws: int | None, directions: int, budget: Budget) -> int:
    """Returns how many draws to take of each item."""
    if n_draws is not None:
        return n_draws
    views = budget.views * min(1.0, 3072 / math.prod(items.shape))
    return int(min(1000, max(4, math.ceil(views / len(items)))))


def left_out(augmentation: Any) -> Iterator[tuple[str, Augmentation]]:
    """Yields each operation's name and the augmentation without it; nothing if the augmentation has no named operations."""
    if isinstance(augmentation, Featured):
        yield from ((name, Featured(rest, augmentation.features)) for name, rest in left_out(augmentation.augmentation))
    elif isinstance(augmentation, Composed):
        for name in augmentation.parts:
            yield name, Composed({k: v for k, v in augmentation.parts.items() if k != name})
    elif isinstance(augmentation, KindViews):
        for name, neutral in augmentation.operations.items():
            if getattr(augmentation.config, name) != neutral:
                yield name, augmentation.changed(**{name: neutral})
    elif isinstance(augmentation, (ImageViews, VectorViews)):
        for name, (field, neutral) in (PICTURES if isinstance(augmentation, ImageViews) else VECTORS).items():
            config = dataclasses.replace(augmentation.config, **{field: neutral})
            if config == augmentation.config:
                continue
            if isinstance(augmentation, ImageViews):
                yield name, ImageViews(config, augmentation.size)
            else:
                yield name, VectorViews(config, augmentation.mean, augmentation.std)


def patch_features(items: Items, augmentation: Any, *, atoms: int = ATOMS, seed: int = 0, device: str = "cpu") -> Features:
    """Returns the map from images (B, C, H, W) in [0, 1] to features (B, 8 K) of `PatchMaps` of one layer.

    The dictionary is learned from at most 100,000 patches of at most 4,000 images, evenly spaced in the source.

    Args:
        items: Images.
        augmentation: The augmentation; images are cropped as its views are.
        atoms: K; at most a tenth of the number of patches.
        seed: Seed of the sample of patches.
        device: Where the features are computed, as torch names it.

    Raises:
        ValueError: The items are not images, are smaller than the pooled patches, or have fewer distinct patches than atoms.
    """
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    shape = items.shape if crop is None else (items.shape[0], crop, crop)
    expect(len(shape) == 3, "images for features 'patches'", f"items of shape {shape}", "use features='raw'")
    some = spaced(len(items), IMAGES)
    stream = items.stream(some[index] for index in batches(len(some), BATCH))
    images = (x if crop is None else center_crop(x, crop) for _, x in stream)
    maps = patch_dictionary(images, shape, Patches(atoms=atoms, second=0), seed).to(device)
    return lambda x: torch.cat([maps(part) for part in x.split(BATCH)])


# Measurements


@dataclass(frozen=True)
class Study:
    """What all measurements share.

    Attributes:
        groups: The items.
        solution: Both problems, solved on all items.
        k: Components that the verdict is about.
        classes: Sums over the labeled items; None where labels are not used.
    """

    groups: Groups
    solution: Solution
    k: int
    classes: ClassSums | None

    @property
    def ties(self) -> int:
        """Directions that the augmentation leaves unchanged; among more than k of them joint embedding's choice is arbitrary."""
        return int((self.solution.omega > 1 - UNCHANGED).sum())


def _study(groups: Groups, n_components: int | None) -> Study:
    r = groups.x.shape[1]
    if n_components is not None:
        require_count(1, r - 1, n_components=n_components)
    moments = groups.moments()
    solution = Solution.of(moments)
    tied = solution.tied or (groups.halves and moments.unchanged())
    expect(not tied, "an augmentation that changes the items", "S = G: joint embedding is a tie")
    labels = None if groups.labels is None else groups.labels[groups.labels >= 0]
    enough = labels is not None and len(labels) >= FEWEST_ITEMS and len(labels.unique()) >= 2
    classes = ClassSums.of(groups) if enough else None
    return Study(groups, solution, int(n_components or max(1, min(32, r // 2))), classes)


def component_rows(study: Study) -> tuple[ComponentRow, ...]:
    """Returns overlap and, with labels, accuracies and margin, for k and for powers of two up to half of the directions."""
    solution, r = study.solution, study.groups.x.shape[1]
    ks = sorted({study.k, *(2**j for j in range(1, 12) if 2**j <= r // 2)})
    rows = [ComponentRow(k=k, overlap=solution.overlap(solution.W, solution.E, k)) for k in ks]
    if study.classes is None:
        return tuple(rows)
    accuracies = probed(study.groups, study.classes, ks).T.tolist()
    return tuple(
        dataclasses.replace(row, joint_embedding=je, reconstruction=rc, pca=pca, margin=je - rc)
        for row, (je, rc, pca) in zip(rows, accuracies, strict=True)
    )


def _measured(study: Study) -> tuple[Verdict, float, Interval, bool]:
    """Returns verdict, margin and interval by probes at k, and whether PCA is ahead; each half-sample is solved again."""
    groups, classes, ks = study.groups, study.classes, [study.k]
    assert classes is not None
    je, rc, pca = torch.cat([probed(groups, classes, ks, weights) for weights in (EVERY, *half_samples())], 1)
    halves = [float(a - b) for a, b, _ in (probed(part, classes, ks)[:, 0] for part in groups.split())]
    margins, ahead = je - rc, pca - (je if je[0] >= rc[0] else rc)
    margin, interval = float(margins[0]), student(margins, float(margins[1:].std()), halves)
    pca_ahead = student(ahead, float(ahead[1:].std()))[0] > 0
    if abs(margin) < LEAST or interval[0] <= 0 <= interval[1] or study.ties > study.k:
        return "cannot_tell", margin, interval, pca_ahead
    return ("joint_embedding" if margin > 0 else "reconstruction"), margin, interval, pca_ahead


def _spectral(study: Study) -> tuple[Verdict, float, Interval, bool]:
    """Returns the verdict that an overlap gives by itself, the overlap, and its interval.

    A bootstrap or half-samples would shift overlaps, as fewer items determine the solutions less well.
    """

    def overlap(solution: Solution) -> float:
        return solution.overlap(solution.W, solution.E, study.k)

    every = [study.solution, *(study.groups.solution(without(g)) for g in range(GROUPS))]
    values = torch.tensor([overlap(solution) for solution in every], dtype=torch.float64)
    low, high = student(values, jackknifed(values), [overlap(part.solution()) for part in study.groups.split()])
    interval = max(0.0, low), min(1.0, high)
    clear = interval[1] < APART and study.ties <= study.k
    return ("joint_embedding" if clear else "cannot_tell"), float(values[0]), interval, False


def operation_rows(
    study: Study, operations: Sequence[tuple[str, Any]], under: Callable[[Augmentation], Groups]
) -> tuple[OperationRow, ...]:
    """Returns the row of the whole augmentation and of the augmentation without each operation.

    Args:
        study: What all measurements share.
        operations: (``all``, the augmentation), then (name, the augmentation without it).
        under: Returns a part of the items under another augmentation.
    """
    readable = None if study.classes is None else _readable(study.classes, study.k)
    if len(operations) == 1:
        return (_operation("all", study, study.solution, readable)[0],)
    rows: list[OperationRow] = []
    first, whole = None, None
    for name, augmentation in operations:
        part = under(augmentation)
        moments = part.moments()
        solution = Solution.of(moments)
        if moments.unchanged() or solution.tied:  # joint embedding is a tie without the operation
            continue
        whole = whole or solution
        if rows and torch.equal(whole.S, solution.S):  # the operation does nothing, as grayscale on gray images
            continue
        row, shares = _operation(name, dataclasses.replace(study, groups=part, solution=solution), whole, readable)
        first = shares if first is None else first
        if shares is not None and first is not None:
            change = shares - first
            row = dataclasses.replace(row, alignment_change=float(change[0]), alignment_change_se=float(change[1:].std()))
        rows.append(row)
    return tuple(rows)


def _operation(name: str, study: Study, whole: Solution, readable: Tensor | None) -> tuple[OperationRow, Tensor | None]:
    """Returns an augmentation's row, and its alignment (1 + H,), of all items and half-samples; None if nothing is readable."""
    solution, k, classes = study.solution, study.k, study.classes
    strength = 1 - float(solution.G.trace() / solution.S.trace())
    row = OperationRow(operation=name, strength=strength, unchanged=whole.overlap(solution.W, whole.W, k))
    if classes is None:
        return row, None
    je, rc, _ = probed(study.groups, classes, [k], solution=solution)[:, 0].tolist()  # it saw no labels
    row = dataclasses.replace(row, joint_embedding=je, reconstruction=rc)
    if readable is None:
        return row, None
    samples = half_samples()
    solutions = [solution, *(study.groups.solution(weights) for weights in samples)]
    kept = [classes.readable(s.W[:k], weights) for s, weights in zip(solutions, (EVERY, *samples), strict=True)]
    shares = torch.tensor(kept, dtype=torch.float64) / readable
    return dataclasses.replace(row, alignment=min(1.0, max(0.0, float(shares[0])))), shares


def _shared(
    study: Study,
    items: Items,
    augmentation: Any,
    properties: Mapping[str, Sequence[Any]],
    under: Callable[[Augmentation], Groups],
) -> Shared:
    """Returns what the first directions of joint embedding share that is not the things themselves."""
    groups, solution = study.groups, study.solution
    pictures = len(items.shape) == 3
    m = min(SEARCHED, groups.x.shape[1] // 4, *((math.prod(items.shape) // 16,) if pictures else ()))
    if m < 2:
        return Shared(directions=m, unchanged=study.ties)
    W = solution.W[:m]
    codes = groups.x.double() @ W.T
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    shape = items.shape if crop is None else (items.shape[0], crop, crop)
    directions, covariance = groups.basis.directions.double(), groups.moments().clean
    found: list[Place] = []
    if pictures and callable(augmentation):
        patterns = directions @ (covariance @ W.T)
        offset = (0, 0) if crop is None else tuple(max(0, round((side - crop) / 2)) for side in items.shape[1:])
        boxes = [
            dataclasses.replace(place, box=(place.box[0] + offset[0], place.box[1] + offset[1], *place.box[2:]))
            for place in places(patterns.cpu(), shape)
        ]
        found = _covered(study, boxes, augmentation, under) if boxes else []
    return Shared(
        directions=m,
        unchanged=study.ties,
        constant=constants(directions, covariance),
        places=tuple(found),
        valued=tuple(few_values(codes)),
        followed=tuple(followed(codes, {name: values for name, values in properties.items() if len(values) == len(codes)})),
    )


def _covered(study: Study, found: list[Place], augmentation: Any, under: Callable[[Augmentation], Groups]) -> list[Place]:
    """Returns places with what covering each changes: the same closed form with one more operation, on a part of the items."""

    def solved(other: Augmentation) -> tuple[Solution, float | None]:
        part = under(other)
        solution = part.solution()
        if study.classes is None:
            return solution, None
        return solution, float(probed(part, study.classes, [study.k], solution=solution)[0, 0])

    before, accuracy = solved(augmentation)
    after = [solved(covering(augmentation, place.box)) for place in found]
    return [
        dataclasses.replace(place, change=1 - before.overlap(one.W, before.W, study.k), accuracy=accuracy, covered=covered)
        for place, (one, covered) in zip(found, after, strict=True)
    ]


def _readable(classes: ClassSums, k: int) -> Tensor | None:
    """Returns the label information in all directions, as many as the labels suffice for, (1 + H,); None if it is not clear."""
    r = classes.second.shape[1]
    rows = torch.eye(r, dtype=torch.float64, device=classes.second.device)[: min(r, max(2 * k, int(classes.n.sum()) // 10))]

    def values(samples: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor([classes.readable(rows, weights) for weights in (EVERY, *samples)], dtype=torch.float64)

    values_without = values([without(g) for g in range(GROUPS)])
    return values(half_samples()) if float(values_without[0]) > 2 * jackknifed(values_without) else None


# Words


def _say_measured(verdict: str, interval: Interval, facts: AboutData, at: ComponentRow, same: str, pca_ahead: bool) -> str:
    je, rc, pca, margin, chance = at.joint_embedding, at.reconstruction, at.pca, at.margin, facts.chance
    assert je is not None and rc is not None and pca is not None and margin is not None and chance is not None
    noise = 2 * math.sqrt(chance * (1 - chance) / facts.labeled)  # two standard errors of an accuracy at chance
    numbers = (
        f"with {at.k} components a linear probe predicts the class of {je:.1%} of held-out items from joint embedding, "
        f"{rc:.1%} from reconstruction and {pca:.1%} from PCA (chance {chance:.1%})"
    )
    if max(je, rc, pca) < chance + noise:
        return f"Cannot tell: {numbers}. None is better than chance; the classes cannot be read linearly from these data."
    worse = " PCA, which uses no augmentation, is better than both: this augmentation removes more information than it adds."
    warning = worse if pca_ahead and pca > chance + noise else ""
    low, high = sorted(100 * abs(bound) * (1 if bound * margin > 0 else -1) for bound in interval)
    points = f"{100 * abs(margin):.1f} points ({low:.1f} to {high:.1f}, 95 %)"
    if verdict != "cannot_tell":
        return f"Use {VERDICTS[verdict]}: {numbers}. It is ahead by {points}.{warning}"
    ahead = VERDICTS["joint_embedding" if margin > 0 else "reconstruction"]
    lead = f"The difference is {points} in favor of {ahead}" if margin else "There is no difference"
    return f"Cannot tell them apart{same}: {numbers}. {lead}. Choose by cost or by other needs.{warning}"


def _say_spectral(verdict: str, interval: Interval, facts: AboutData, at: ComponentRow, same: str, pca_ahead: bool) -> str:
    few = f" ({facts.labeled} labels are too few, or all the same)" if facts.labeled else ""
    share = f"{at.overlap:.0%} ({interval[0]:.0%} to {interval[1]:.0%}, 95 %)"
    overlap = f"the {at.k} components of joint embedding and those of reconstruction overlap by {share}"
    if verdict == "joint_embedding":
        return (
            f"Probably joint embedding, judged without labels{few}: {overlap}. Reconstruction would use its components for "
            "directions that the augmentation perturbs; if these are what you need, use reconstruction."
        )
    if interval[0] > SAME or (same and at.overlap > SAME):
        return f"Cannot tell them apart{same}, and the choice does not matter{few}: {overlap}. Choose by cost."
    return f"Cannot tell without labels{few}: {overlap}. A few hundred labels show which of them keeps what you need."


def _say_augmentation(rows: Sequence[OperationRow], facts: AboutData) -> str:
    whole, parts = rows[0], rows[1:]
    strength = f"{whole.strength:.0%} of the variance of a view, in these directions, comes from the augmentation"
    if whole.alignment is not None:
        kept = f"{facts.k} components keep {whole.alignment:.0%} of the linearly readable label information"
        return f"{strength}; joint embedding's {kept}{_say_contributions(parts)}."
    if whole.joint_embedding is not None:
        return f"{strength}; no label information is clearly readable, so the operations cannot be judged."
    if not parts:
        return f"{strength}."
    most = min(parts, key=lambda row: row.unchanged)
    return f"{strength}. '{most.operation}' matters most: without it {1 - most.unchanged:.0%} of the representation would differ."


def _say_contributions(rows: Sequence[OperationRow]) -> str:
    """Names the operations that help and hurt most, where that is more than two points and twice its standard error."""
    change = {row: (row.alignment_change or 0.0, row.alignment_change_se or 0.0) for row in rows}
    clear = sorted((x, row.operation, row.alignment) for row, (x, se) in change.items() if abs(x) > max(4 * LEAST, 2.1 * se))
    if not rows:
        return ""
    text = ". No single operation clearly contributes"
    if clear and clear[0][0] < 0:
        text = f". '{clear[0][1]}' contributes most: without it {clear[0][2]:.0%}"
    if clear and clear[-1][0] > 0:
        text += f"; '{clear[-1][1]}' costs most: without it {clear[-1][2]:.0%}"
    return text


def _say_place(place: Place) -> str:
    """Says where a mark is, and what to do."""
    top, left, height, width = place.box
    where = f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
    where += "" if place.channel is None else f", in channel {place.channel}"
    text = f"The embedding sees a mark in a fixed place, {where}: {place.share:.0%} of one direction lies there, "
    text += f"{place.usual:.0%} in a usual place of this shape."
    if place.change is not None:
        text += f" Covered in every view, {place.change:.0%} of the embedding changes"
        if place.accuracy is not None and place.covered is not None:
            text += f", and a linear probe gets {place.covered:.1%} right instead of {place.accuracy:.1%}"
        text += "."
    return f"{text} If it is a stamp, a border or a bar, cover it: --set 'cover={place.box}'."


def say_directions(shared: Shared) -> list[str]:
    """Names constant features, directions of few values and properties of files that are followed, each with what to do."""
    said = []
    if shared.constant:
        said.append(
            f"Constant in all items: {counted(shared.constant, 'feature')}, such as a border, a dead pixel or an empty column. "
            "Nothing can be learned from that. If it should vary, look at how the data were made."
        )
    for one in shared.valued:
        counts = ", ".join(f"{n:,}" for n in one.counts)
        said.append(
            f"One direction takes only {one.values} values ({counts} of the items looked at). If they are batches, cameras or "
            "formats rather than things, join or separate them before you train."
        )
    for follow in shared.followed:
        said.append(
            f"The embedding follows the {follow.name} of the files: it explains {follow.explained:.0%} of it. If that is no "
            "property of the things, mix it in the data or remove what gives it away."
        )
    return said


def _say_scope(facts: AboutData) -> str:
    of = f"{facts.features:,}{SPACES[facts.space]}"
    part = f"in the {facts.directions} directions of most variance (of {of}), which hold"
    where = "" if facts.directions == facts.features else f", {part} {facts.variance_kept:.1%} of it"
    return f"This is about linear models of {facts.items:,} items{where}. How far networks follow them: docs/guides/advice.md."
