"""Joint embedding or reconstruction, before any training: what the closed forms say about given data and augmentations.

With labels, even of few items, the verdict is measured: both closed-form solutions are probed under cross-validation. Without
labels only the spectra are available. They show whether the choice matters (do both keep the same directions?); where the two
have almost nothing in common, joint embedding did better in most of our experiments (docs/advice.md); in between the answer is
that one cannot tell. All this is about linear models of the data; docs/advice.md measures how far networks follow them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, PairItems, spaced
from vergence.linear.advice.augmentations import Composed, left_out
from vergence.linear.advice.directions import as_items
from vergence.linear.advice.features import FEATURES, patch_features
from vergence.linear.advice.groups import GroupedItems, Solution, collect
from vergence.linear.advice.intervals import Interval
from vergence.linear.advice.measures import (
    LEAST,
    SIZES,
    Study,
    component_rows,
    direction_rows,
    operation_rows,
    overlap_interval,
    size_rows,
)
from vergence.linear.advice.probes import ClassSums
from vergence.linear.advice.records import Advice, ComponentRow, Facts, Spectrum, Verdict
from vergence.linear.advice.summary import APART, summary
from vergence.linear.base import MOST_DRAWS, Affine
from vergence.linear.reading import Featured, Features
from vergence.utils.checks import is_count, require_choice, require_count
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["advise"]

FEWEST = 100  # items
LABELED = 100  # labeled items that a measurement needs


@dataclass(frozen=True)
class Budget:
    """Numbers of items and views that are read by default.

    Attributes:
        items: Items at most.
        views: Views of all of them, of items of up to 3,072 features.
        part_items: Items on which operations are left out, at most.
        part_views: Views of these for each operation.
    """

    items: int
    views: int
    part_items: int
    part_views: int

    def part(self, n: int) -> tuple[Tensor, int]:
        """Returns which of n items operations are left out on, and how many draws to take of each."""
        index = spaced(n, self.part_items)
        return index, max(4, math.ceil(self.part_views / len(index)))


RAW, MAPPED = Budget(50_000, 200_000, 10_000, 40_000), Budget(20_000, 80_000, 4_000, 16_000)


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
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Advises on joint embedding or reconstruction for given data and an augmentation.

    Both problems are estimated and solved in the principal directions of most variance, at most ``directions`` of them; for
    images of many pixels these are computed by a randomized projection of part of the items, and the advice says how much of
    the variance they keep. 50,000 images of 32 pixels take about a minute on two cores.

    Joint embedding does not depend on the units of the features; reconstruction, by its squared error, does. Standardize
    features of different kinds first, as one would for an autoencoder.

    Args:
        data: Items (N, D), images (N, C, H, W), or Vergence's items.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, each of which is
            left out in turn, as each operation of Vergence's views is.
        labels: (N,) integers or strings; -1 is unknown among integers. Items' own labels by default.
        features: ``raw``, the items' own numbers; ``patches``, the 2,048 features of images that a dictionary of 256 whitened
            patches gives (`vergence.encoders.patches`), learned from the items; or a function from items (B, ...), images in
            [0, 1], to (B, F). Views are augmented first; then both they and the items are mapped to features.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, 4 to 1,000,000; by default 200,000 in all (of items with over 3,072
            features fewer; with features 80,000), from 4 to 1,000 per item. Halves of the draws show the error that
            sampling leaves, which widens the intervals.
        directions: Largest number of directions, >= 2.
        max_items: Of more items, so many are sampled; by default 50,000, with features 20,000.
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
    budget = RAW if features == "raw" else MAPPED
    most = budget.items if max_items is None else max_items
    require_count(1, directions=directions, max_items=most)
    items, y, classes = _opened(data, labels, most, random_state)
    device = str(as_device(device))
    augmentation = _featured(items, augmentation, features, random_state, device)
    draws = _checked_draws(items, n_draws, directions, budget)
    operations = [("all", augmentation), *left_out(augmentation)]
    part = budget.part(len(items))
    reads = len(items) + len(part[0]) * len(operations) * (len(operations) > 1)
    with bar("reading and augmenting", reads) as advance:
        grouped = collect(
            items,
            augmentation,
            y,
            directions=directions,
            n_draws=draws,
            random_state=random_state,
            device=device,
            advance=advance,
        )
        study, ks = _study(grouped, n_components, len(operations) - 1)
        augmentations = operation_rows(study, items, *part, operations, random_state, advance)
    components, sizes = component_rows(study, ks), size_rows(study)
    facts = _facts(study, augmentation, draws, classes, features)
    verdict, margin, interval = _verdict(study, components[ks.index(study.k)])
    return Advice(
        verdict=verdict,
        basis="spectrum" if study.classes is None else "labels",
        margin=margin,
        interval=interval,
        words=summary(verdict, margin, interval, facts, components, augmentations, sizes),
        facts=facts,
        spectrum=_spectrum(study.solution),
        directions=direction_rows(study),
        components=components,
        augmentations=augmentations,
        sizes=sizes,
    )


# Reading and checking


def _opened(data: Any, labels: Any, most: int, seed: int) -> tuple[Items, Tensor | None, tuple[str, ...]]:
    """Returns items, labels 0 .. L-1 (-1 unknown), and the classes."""
    items = as_items(data)
    y = labels if labels is not None else items.labels
    array = None if y is None else np.asarray(y)
    if array is not None and array.shape != (len(items),):
        raise ValueError(f"expected one label for each of {len(items)} items, found shape {array.shape}; -1 marks unknown ones")
    if len(items) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} items to advise on, found {len(items)}; give more")
    classes, index = ((), None) if array is None else _encoded(array)
    if len(items) > most:
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        items, index = items.subset(chosen), None if index is None else index[chosen]
    return items, index, classes


def _encoded(labels: Any) -> tuple[tuple[str, ...], Tensor]:
    """Returns the classes, and labels 0 .. L-1; -1 for what is -1, None or not a number."""
    if labels.dtype.kind not in "iufbUSO":
        raise ValueError(f"expected labels that are whole numbers or text, found type {labels.dtype}; convert them")
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise ValueError("expected labels that are whole numbers or text, found infinity: -1 and NaN mean unknown")
    if labels.dtype.kind == "f" and not np.array_equal(labels[np.isfinite(labels)], np.round(labels[np.isfinite(labels)])):
        raise ValueError("expected labels that are classes, found fractions: round them into classes first")
    unknown = np.array([v is None or v != v or v == -1 for v in labels.tolist()])
    if labels.dtype.kind == "f":
        labels = np.where(unknown, -1, labels).astype(np.int64)
    values, inverse = np.unique(np.asarray(labels[~unknown].tolist()), return_inverse=True)
    index = np.full(len(labels), -1)
    index[~unknown] = inverse
    return tuple(str(v) for v in values), torch.from_numpy(index)


def _as_function(augmentation: Any) -> Any:
    """Returns a dictionary of functions or an `Affine` as one function, other augmentations as they are."""
    if isinstance(augmentation, Mapping):
        return Composed(augmentation)
    return augmentation.sample if isinstance(augmentation, Affine) else augmentation


def _featured(items: Items, augmentation: Any, features: str | Features, seed: int, device: str) -> Any:
    """Returns the augmentation as a function or numbers; of items that are read through features where these are not ``raw``."""
    augmentation = _as_function(augmentation)
    if not callable(features):
        require_choice("features", features, FEATURES)
        if features == "raw":
            return augmentation
    if not callable(augmentation):
        raise ValueError(
            "expected an augmentation that samples views, to map them to features, found none or its covariance; "
            "give a function, or use features='raw'"
        )
    if not callable(features):
        features = patch_features(items, augmentation, seed=seed, device=device)
    return Featured(augmentation, features)


def _checked_draws(items: Items, n_draws: int | None, directions: int, budget: Budget) -> int:
    """Returns how many draws to take of each item."""
    if isinstance(items, PairItems):
        raise ValueError(
            "expected single items and an augmentation, found pairs: they are two views already; train on both and compare"
        )
    least = min(directions, math.prod(items.shape))
    if least < 2:
        raise ValueError(f"expected at least 2 directions, found {least}: nothing to choose among")
    if n_draws is not None:
        if not is_count(n_draws, 4):
            raise ValueError(f"expected n_draws of at least 4, found {n_draws}: two halves of them show the error of sampling")
        require_count(4, MOST_DRAWS, n_draws=n_draws)
    views = budget.views * min(1.0, 3072 / math.prod(items.shape))
    return n_draws or int(min(1000, max(4, math.ceil(views / len(items)))))


# Solving


def _study(grouped: GroupedItems, n_components: int | None, parts: int) -> tuple[Study, list[int]]:
    """Returns what all measurements share, and the numbers of components that are compared."""
    r = grouped.x.shape[1]
    k = _number(n_components, r)
    moments = grouped.moments()
    solution = Solution.of(moments)
    if solution.tied or (grouped.halves and moments.unchanged()):
        raise ValueError("the augmentation changes nothing (S = G), so joint embedding is a tie; give one that changes the items")
    ks = sorted({k, *(2**j for j in range(1, 12) if 2**j <= r // 2)})
    classes = None
    if grouped.labels is not None and _enough(grouped.labels):
        classes = ClassSums.of(grouped.x, grouped.labels, grouped.group)
    return Study(grouped, solution, k, classes, 0.05 / (len(ks) + parts + len(SIZES))), ks


def _number(n_components: int | None, r: int) -> int:
    if n_components is None:
        return max(1, min(32, r // 2))
    if not isinstance(n_components, (int, np.integer)) or not 1 <= n_components < r:
        raise ValueError(f"expected n_components from 1 to {r - 1}, below the {r} directions of the data, found {n_components}")
    return int(n_components)


def _enough(labels: Tensor) -> bool:
    return int((labels >= 0).sum()) >= LABELED and len(labels[labels >= 0].unique()) >= 2


def _verdict(study: Study, at: ComponentRow) -> tuple[Verdict, float, Interval]:
    return _spectral(at, overlap_interval(study)) if at.interval is None else _measured(at, at.interval)


def _spectral(at: ComponentRow, interval: Interval) -> tuple[Verdict, float, Interval]:
    """Returns the verdict that an overlap gives by itself, the overlap, and its interval."""
    return ("joint_embedding" if interval[1] < APART else "cannot_tell"), at.overlap, interval


def _measured(at: ComponentRow, interval: Interval) -> tuple[Verdict, float, Interval]:
    """Returns the verdict of the probes, the margin, and its interval."""
    assert at.margin is not None
    if abs(at.margin) < LEAST or interval[0] <= 0 <= interval[1]:
        return "cannot_tell", at.margin, interval
    return ("joint_embedding" if at.margin > 0 else "reconstruction"), at.margin, interval


def _spectrum(solution: Solution) -> Spectrum:
    variance, omega, phi = (tuple(a.tolist()) for a in (solution.variance, solution.omega, solution.phi))
    return Spectrum(variance=variance, omega=omega, phi=phi)


def _facts(study: Study, augmentation: Any, n_draws: int, classes: Sequence[str], features: Any) -> Facts:
    grouped, y, known = study.grouped, study.grouped.labels, study.classes is not None
    labeled = torch.empty(0) if y is None else y[y >= 0]
    chance = float(labeled.long().bincount().max() / len(labeled)) if len(labeled) else 0.0
    return Facts(
        items=len(grouped.x),
        features=len(grouped.basis.mean),
        directions=grouped.x.shape[1],
        variance_kept=grouped.basis.kept,
        k=study.k,
        draws=n_draws if callable(augmentation) else 0,
        labeled=len(labeled),
        kinds=len(labeled.unique()),
        classes=tuple(classes) if known else (),
        chance=chance if known else None,
        noise=2 * math.sqrt(chance * (1 - chance) / max(1, len(labeled))),
        space=features if isinstance(features, str) else "given",
        isotropic=augmentation is None or (not callable(augmentation) and np.ndim(augmentation) == 0),
    )
