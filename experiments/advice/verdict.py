"""Joint embedding or reconstruction, before any training: what probes and overlaps of both closed forms say.

With labels, both solutions and PCA are computed without labels on four fifths of the items; a least-squares probe is fitted there
and tested on the rest, for each fifth in turn. Without labels the overlap of the two codes is all there is. README.md has how
often verdicts were right; ``vergence advise`` does not use them.

Shapes: N items, r directions, k components, L classes, G groups, H half-samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from experiments.advice.directions import GROUPS, Groups, Solution, collect
from scipy import stats
from torch import Tensor

from vergence.data.items import ArrayItems, batches, spaced
from vergence.data.pixels import center_crop, to_unit
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import patch_dictionary
from vergence.learn.views.images import ImageViews
from vergence.linear.reading import as_items
from vergence.linear.solutions import reconstruction
from vergence.utils.devices import as_device

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Features = Callable[[Tensor], Tensor]
Interval = tuple[float, float]

EVERY = (1.0,) * GROUPS  # weights of all groups
FOLDS, DIRECTIONS = 5, 256
FEWEST = 100  # labeled items that a measurement needs
RIDGE = 1e-6  # of the mean second moment of a probe's inputs
LEAST = 0.005  # differences of accuracy below half a point are of no consequence
APART = 0.3  # overlaps below: joint embedding did better
UNCHANGED = 1e-6  # a direction is unchanged where the augmentation takes a smaller share of its second moment
ITEMS, MAPPED = 50_000, 20_000  # at most; through features
IMAGES, BATCH = 4_000, 200  # of patch features: images that the dictionary is learned from, images at a time


@dataclass(frozen=True)
class Row:
    """One number of components: overlap of both codes in [0, 1], and the margin of accuracy, None without labels."""

    k: int
    overlap: float
    margin: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the closed forms say.

    Attributes:
        verdict: ``joint_embedding``, ``reconstruction`` or ``cannot_tell``.
        margin: With labels, accuracy of joint embedding minus that of reconstruction; without, their overlap at k.
        interval: 95 % interval of the margin, by half-samples of the items; without labels by the jackknife over groups.
        components: One row for k and for each power of two up to half of the directions.
    """

    verdict: str
    margin: float
    interval: Interval
    components: tuple[Row, ...]


class Mapped:
    """Views of items that are read through features: the view of x is f(tau(x)), and the item itself is f(x)."""

    def __init__(self, augmentation: Augmentation, features: Features) -> None:
        self.augmentation, self.features = augmentation, features

    def unchanged(self, x: Tensor) -> Tensor:
        return self.features(to_unit(x))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.features(self.augmentation(to_unit(x), generator))


@dataclass(frozen=True)
class Work:
    """What all measurements share: items, labels (-1 unknown; None: not used), k, and the items with half of the draws."""

    groups: Groups
    labels: Tensor | None
    k: int
    halves: tuple[Groups, ...]


def judged(
    x: Tensor,
    augmentation: Any,
    labels: Tensor | None = None,
    *,
    k: int,
    n_draws: int,
    features: Features | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Verdict:
    """Returns the verdict about items (N, D) or images, a function or a covariance, and labels (N,), 0 .. L-1 or -1."""
    most = ITEMS if features is None else MAPPED
    if len(x) > most:
        chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        x, labels = x[chosen], None if labels is None else labels[chosen]
    items, device, halves = as_items(x), str(as_device(device)), ()
    if features is not None:
        augmentation = Mapped(augmentation, features)
    groups = collect(items, augmentation, DIRECTIONS, n_draws if callable(augmentation) else 0, seed, device)
    if callable(augmentation):
        parts = (n_draws // 2, 0), (n_draws - n_draws // 2, n_draws // 2)  # the first and the second half of the draws
        halves = tuple(collect(items, augmentation, DIRECTIONS, m, seed, device, skipped) for m, skipped in parts)
    known = None if labels is None else labels[labels >= 0]
    enough = known is not None and len(known) >= FEWEST and len(known.unique()) >= 2
    work = Work(groups, labels if enough else None, k, halves)
    verdict, margin, interval = _measured(work) if enough else _spectral(work)
    return Verdict(verdict, margin, interval, _rows_of(work))


def patch_features(images: Tensor, augmentation: Any, *, atoms: int, seed: int = 0, device: str = "cpu") -> Features:
    """Returns the map from images (B, C, H, W) in [0, 1] to features (B, 8 K) of `PatchMaps` of one layer.

    The dictionary is learned from at most 100,000 patches of at most 4,000 images, evenly spaced.
    """
    items = ArrayItems(images)
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    shape = items.shape if crop is None else (items.shape[0], crop, crop)
    some = spaced(len(items), IMAGES)
    stream = items.stream(some[index] for index in batches(len(some), BATCH))
    cropped = (x if crop is None else center_crop(x, crop) for _, x in stream)
    maps = patch_dictionary(cropped, shape, Patches(atoms=atoms, second=0), seed).to(device)
    return lambda x: torch.cat([maps(part) for part in x.split(BATCH)])


# Verdicts


def ties(solution: Solution) -> int:
    """Returns the directions that the augmentation leaves unchanged; among more than k joint embedding's choice is arbitrary."""
    return int((solution.omega > 1 - UNCHANGED).sum())


def reconstructed(solution: Solution) -> Tensor:
    """Returns reconstruction's rows (r, r), the strongest first."""
    return reconstruction(solution.moments.M, solution.moments.S)[0]


def both(solution: Solution, k: int) -> float:
    """Returns the overlap of the first k components of joint embedding and of reconstruction."""
    return solution.overlap(solution.W, reconstructed(solution), k)


def _rows_of(work: Work) -> tuple[Row, ...]:
    r, solution = work.groups.x.shape[1], work.groups.solution()
    ks = sorted({work.k, *(2**j for j in range(1, 12) if 2**j <= r // 2)})
    margins: list[float | None] = [None] * len(ks)
    if work.labels is not None:
        je, rc, _ = probed(work.groups, ClassSums.of(work.groups, work.labels), work.labels, ks)
        margins = (je - rc).tolist()
    return tuple(Row(k, both(solution, k), margin) for k, margin in zip(ks, margins, strict=True))


def _measured(work: Work) -> tuple[str, float, Interval]:
    """Returns verdict, margin and interval by probes at k; each half-sample is solved again."""
    groups, y, ks = work.groups, work.labels, [work.k]
    classes = ClassSums.of(groups, y)
    je, rc, _ = torch.cat([probed(groups, classes, y, ks, weights) for weights in (EVERY, *half_samples())], 1)
    halves = [float(a - b) for a, b, _ in (probed(part, classes, y, ks)[:, 0] for part in work.halves)]
    margins = je - rc
    margin, interval = float(margins[0]), student(margins, float(margins[1:].std()), halves)
    if abs(margin) < LEAST or interval[0] <= 0 <= interval[1] or ties(groups.solution()) > work.k:
        return "cannot_tell", margin, interval
    return ("joint_embedding" if margin > 0 else "reconstruction"), margin, interval


def _spectral(work: Work) -> tuple[str, float, Interval]:
    """Returns the verdict that an overlap gives by itself, the overlap, and its interval.

    A bootstrap or half-samples would shift overlaps, as fewer items determine the solutions less well.
    """
    every = [work.groups.solution(weights) for weights in (EVERY, *map(without, range(GROUPS)))]
    values = torch.tensor([both(solution, work.k) for solution in every], dtype=torch.float64)
    low, high = student(values, jackknifed(values), [both(part.solution(), work.k) for part in work.halves])
    interval = max(0.0, low), min(1.0, high)
    clear = interval[1] < APART and ties(every[0]) <= work.k
    return ("joint_embedding" if clear else "cannot_tell"), float(values[0]), interval


# Parts of the groups, and intervals from them


def without(group: int) -> list[float]:
    """Returns the weights of all groups but one."""
    return [float(g != group) for g in range(GROUPS)]


def half_samples() -> list[list[float]]:
    """Returns the weights of 19 balanced half-samples of the groups: rows of Paley's Hadamard matrix of order 20.

    Any two differ in ten groups, so that for a mean over groups the variance over the half-samples is exactly the estimate of
    its variance (McCarthy, 1969, Pseudo-replication: half samples).
    """
    q = GROUPS - 1
    squares = {i * i % q for i in range(1, q)}
    return [[0.0] + [float(i == j or (i - j) % q in squares) for j in range(q)] for i in range(q)]


def jackknifed(values: Tensor) -> float:
    """Returns the jackknife's standard error from (1 + G,) values: of all items, and without each of G groups in turn."""
    G = len(values) - 1
    return float(((G - 1) / G * (values[1:] - values[1:].mean()).square().sum()).sqrt())


def student(values: Tensor, error: float, halves: Sequence[float] = ()) -> tuple[float, float]:
    """Returns Student's 95 % interval of the first of (1 + H,) values, widened by the error that sampling the views leaves.

    That error falls with the number of draws at least as 1 / m: the difference from the mean of the values with half as many
    draws is about the difference that infinitely many would make.

    Args:
        values: The values of all items, and of H parts of them.
        error: Its standard error. Of accuracies, the deviation over half-samples, a jackknife that deletes half of the groups:
            where spectra are nearly tied, solutions jump, and a jackknife is consistent only if it deletes many (Shao and Wu,
            1989, A general theory for jackknife variance estimation). Of overlaps, `jackknifed`.
        halves: The value with either half of the draws; empty where nothing was sampled.
    """
    value = float(values[0])
    reach = float(stats.t.ppf(0.975, len(values) - 2)) * error
    drift = value - sum(halves) / len(halves) if halves else 0.0
    return value - reach + min(drift, 0.0), value + reach + max(drift, 0.0)


# Probes


@dataclass(frozen=True)
class ClassSums:
    """Sums over the labeled items of each group.

    Attributes:
        origin: What is subtracted from items first, (r,).
        n: Items of each class, (G, L).
        sums: Sums of their coordinates, (G, L, r).
        second: Sums of the outer products of all items, (G, r, r).
    """

    origin: Tensor
    n: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, groups: Groups, labels: Tensor) -> "ClassSums":
        """Returns the sums for items with labels 0 .. L-1, or -1."""
        x, group = groups.x.double(), groups.group.to(groups.x.device)
        L, r, origin, labels = int(labels.max()) + 1, x.shape[1], x.mean(0), labels.to(x.device)
        n, sums, second = (x.new_zeros(shape) for shape in ((GROUPS, L), (GROUPS, L, r), (GROUPS, r, r)))
        for g in range(GROUPS):
            here = (group == g) & (labels >= 0)
            mine, y = x[here] - origin, labels[here]
            n[g] = torch.bincount(y, minlength=L)
            sums[g].index_add_(0, y, mine)
            second[g] = mine.T @ mine
        return cls(origin, n, sums, second)

    def total(self, weights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns n (L,), sums (L, r) and second (r, r) of a weighted sum of the groups."""
        w = self.n.new_tensor(weights)
        return w @ self.n, torch.einsum("g,glr->lr", w, self.sums), torch.einsum("g,grs->rs", w, self.second)

    def correct(self, weights: Sequence[float], rows: Tensor, ks: Sequence[int], x: Tensor, labels: Tensor) -> Tensor:
        """Returns whether a least-squares probe predicts the class of each item, (number of ks, M) bool.

        The probe is the paper's: least squares from the first k of the ``rows`` of a solution to one-hot classes, here with an
        intercept and a ridge of 1e-6 of the mean second moment of its inputs.

        Args:
            weights: Groups that it is fitted to, (G,).
            rows: Rows of a solution, (r, r).
            ks: Numbers of components.
            x: Items (M, r).
            labels: (M,), 0 .. L-1.
        """
        n, sums, second = self.total(weights)
        N, R = n.sum(), rows[: max(ks)]
        mean, share = sums.sum(0) / N, n / N
        A = R @ (second - N * torch.outer(mean, mean)) @ R.T
        B = R @ (sums - torch.outer(n, mean)).T
        z = (x.double() - (self.origin + mean)) @ R.T
        correct = []
        for k in ks:
            ridge = RIDGE * A[:k, :k].diagonal().mean() * torch.eye(k, dtype=A.dtype, device=A.device)
            V = torch.linalg.solve(A[:k, :k] + ridge, B[:k])
            correct.append((z[:, :k] @ V + share).argmax(1).to(labels.device) == labels)
        return torch.stack(correct)


def probed(groups: Groups, classes: ClassSums, labels: Tensor, ks: Sequence[int], weights: Sequence[float] = EVERY) -> Tensor:
    """Returns the accuracies of joint embedding, reconstruction and PCA, (3, number of ks), each on folds that it did not see.

    Args:
        groups: The items.
        classes: Sums over the labeled ones.
        labels: (N,), -1 where unknown.
        ks: Numbers of components.
        weights: Groups that are used, (G,), 0 or 1.
    """
    used = [g for g, weight in enumerate(weights) if weight]
    correct, n = torch.zeros(3, len(ks), dtype=torch.long), 0
    for fold in (used[f::FOLDS] for f in range(FOLDS)):
        test = ((labels >= 0) & torch.isin(groups.group, torch.tensor(fold))).nonzero().flatten()
        train = [0.0 if g in fold else weight for g, weight in enumerate(weights)]
        x, y, fitted = groups.x[test.to(groups.x.device)], labels[test], groups.solution(train)
        rows = fitted.W, reconstructed(fitted), fitted.U
        correct += torch.stack([classes.correct(train, of, ks, x, y).sum(1) for of in rows])
        n += len(test)
    return correct.double() / n
