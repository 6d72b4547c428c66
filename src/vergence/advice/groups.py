r"""Items in principal directions, dealt into groups whose sums are kept apart; both problems solved and probed on any groups.

Sums of some of the groups give cross-validation, half-samples and the jackknife without another pass over the items.

Shapes: N items, D features, r directions, m draws of the augmentation, k components, L classes, G groups, H half-samples.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from vergence.data.items import Items, spaced
from vergence.densities.moments import Moments, Sums, principal
from vergence.linear.base import covariance_of
from vergence.linear.reading import Augmentation, blocks, draw, flat
from vergence.linear.solutions import joint_embedding, reconstruction
from vergence.utils.checks import expect
from vergence.utils.linalg import covariance_cholesky

__all__: list[str] = []

GROUPS, FOLDS = 20, 5
EVERY = (1.0,) * GROUPS  # weights of all groups
TIE = 1e-9  # joint embedding is a tie where the augmentation takes a smaller share of the second moments
RIDGE = 1e-6  # of the mean second moment of a probe's inputs
ITEMS, NUMBERS = 10_000, 1 << 27  # items, and numbers in them (0.5 GiB), that the directions are computed from
NULL = 1e-9  # a direction of less variance than this share of what uncorrelated features would give it is a linear dependence

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first.

    Attributes:
        mean: (D,); float64 of tables, so that neither units nor an offset cost digits, float32 of images.
        directions: (D, r).
        kept: Share of the items' variance that lies in them, in (0, 1]; 1 until it is measured.
    """

    mean: Tensor
    directions: Tensor
    kept: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns coordinates (B, r) of items (B, D), in the precision of the basis."""
        return (x.to(self.mean.dtype) - self.mean) @ self.directions

    @classmethod
    def of(cls, items: Items, sampler: Augmentation | None, count: int, device: str) -> "Basis":
        """Returns at most ``count`` principal directions of some items.

        No feature is left out for the unit that makes it small: directions are left out only where features depend on each
        other linearly, or where there are more than ``count``.

        Raises:
            ValueError: The items are not finite, or all equal.
        """
        n = min(len(items), ITEMS, max(64, NUMBERS // math.prod(items.shape)))
        x = torch.cat([flat(raw, sampler) for _, raw in items.stream(iter(spaced(len(items), n).split(64)))]).to(device)
        mean = x.mean(0)
        mean = mean + (x - mean).mean(0)  # to the digits of the spread, where the mean is far from zero
        c = x - mean
        expect(c.isfinite().all(), "finite items", "NaN or infinity", "leave those items out, or fill them in")
        expect(c.any(), "items that differ", "all alike: nothing can be compared")
        table = len(items.shape) == 1
        V, c, mean = (a.to(torch.float64 if table else torch.float32) for a in (_spanning(c, count, table), c, mean))
        variance = (c @ V).square().sum(0)
        uncorrelated = c.square().sum(0) @ V.square()
        rounding = (64 * torch.finfo(c.dtype).eps) ** 2 * variance.max()
        keep = (variance > torch.maximum(NULL * uncorrelated, rounding)).nonzero().flatten()[:count]
        return cls(mean, V[:, keep])


def _spanning(c: Tensor, count: int, table: bool) -> Tensor:
    """Returns orthonormal columns (D, q) that span centered items (N, D), or their directions of most variance."""
    if min(c.shape) > 2 * count:  # randomized subspace iteration
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            lowrank: Tensor = torch.svd_lowrank(c, q=count + 16, niter=4)[2]
        return lowrank
    if table or len(c) > c.shape[1]:
        svd: Tensor = torch.linalg.svd(c.double(), full_matrices=False)[2].T
        return svd
    square, left = torch.linalg.eigh((c @ c.T).double())  # few large images
    few: Tensor = torch.linalg.qr(c.T @ left.flip(1)[:, square.flip(0) > NULL * square[-1]].to(c.dtype))[0]
    return few


@dataclass(frozen=True)
class Solution:
    """Both problems solved from one set of moments.

    Attributes:
        W: Joint embedding's rows (r, r), the most invariant first.
        omega: (r,).
        E: Reconstruction's rows (r, r), the strongest first.
        phi: (r,).
        U: Principal directions as rows (r, r), the one of most variance first.
        variance: Of these, (r,).
        G: (r, r).
        S: (r, r).
    """

    W: Tensor
    omega: Tensor
    E: Tensor
    phi: Tensor
    U: Tensor
    variance: Tensor
    G: Tensor
    S: Tensor

    @classmethod
    def of(cls, moments: Moments) -> "Solution":
        """Returns both solutions for given moments."""
        W, omega, _ = joint_embedding(moments.G, moments.S)
        E, _, phi, _ = reconstruction(moments.M, moments.S)
        variance, U = principal(moments.clean)
        return cls(W, omega, E, phi, U.T, variance, moments.G, moments.S)

    def overlap(self, a: Tensor, b: Tensor, k: int) -> float:
        """Returns the mean squared canonical correlation of the codes of k rows, in [0, 1]: 1 where each determines the other."""
        # In whitened principal coordinates all directions of the items have variance 1.
        codes = [torch.linalg.qr(self.variance.sqrt()[:, None] * (self.U @ rows[:k].T))[0] for rows in (a, b)]
        return min(1.0, float((codes[0].T @ codes[1]).square().sum() / k))

    @property
    def tied(self) -> bool:
        """Whether the augmentation changes so little that joint embedding is a tie."""
        return float(self.omega.mean()) > 1 - TIE


@dataclass(frozen=True)
class Groups:
    """Items in principal directions and the sums over each group of them.

    Attributes:
        basis: The directions.
        x: Coordinates (N, r).
        labels: (N,) int64, -1 where unknown; None without any.
        group: (N,) int64, each item's group.
        dealt: The same for all items of the source, those included that could not be read.
        sums: One for each group.
        halves: As ``sums``, from the first and from the second half of the draws; empty where nothing was sampled.
        covariance: Of the augmentation, (r, r), where it is given by numbers; None where it was sampled.
    """

    basis: Basis
    x: Tensor
    labels: Tensor | None
    group: Tensor
    dealt: Tensor
    sums: Sequence[Sums]
    halves: Sequence[Sequence[Sums]] = ()
    covariance: Tensor | None = None

    def split(self) -> "list[Groups]":
        """Returns the same with either half of the draws: how they differ from the whole shows the error of sampling."""
        return [dataclasses.replace(self, sums=half, halves=()) for half in self.halves]

    def moments(self, weights: Sequence[float] = EVERY) -> Moments:
        """Returns the moments of a weighted sum of the groups; S includes a covariance that is given."""
        moments = Sums.weighted(self.sums, weights).moments(centered=True)
        return moments if self.covariance is None else dataclasses.replace(moments, S=moments.G + self.covariance)

    def solution(self, weights: Sequence[float] = EVERY) -> Solution:
        """Returns both solutions on a weighted sum of the groups."""
        return Solution.of(self.moments(weights))

    def under(self, items: Items, augmentation: Augmentation, part: Tensor, m: int, seed: int, advance: Advance) -> "Groups":
        """Returns the same items with the sums of some of them, ``part``, under another augmentation, in the same groups."""
        _, _, _, sums, halves = _summed(items.subset(part), augmentation, self.basis, self.dealt[part], m, seed, lambda n: None)
        advance(len(part))
        return dataclasses.replace(self, sums=sums, halves=halves, covariance=None)


def collect(
    items: Items, augmentation: Any, labels: Tensor | None, directions: int, m: int, seed: int, device: str, advance: Advance
) -> Groups:
    """Reads items once for the directions (a part of them) and once for the sums.

    Raises:
        ValueError: The items are not finite or all equal, have fewer than two features, or the augmentation changes their shape.
    """
    least = min(directions, math.prod(items.shape))
    expect(least >= 2, "at least 2 directions", least)
    sampler = augmentation if callable(augmentation) else None
    basis = Basis.of(items, sampler, directions, device)
    dealt = torch.empty(len(items), dtype=torch.long)
    dealt[torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))] = torch.arange(len(items)) % GROUPS
    x, at, total, sums, halves = _summed(items, sampler, basis, dealt, m, seed, advance)
    kept = float(x.double().square().sum()) / total
    expect(kept > 0, "items that vary in their principal directions", "numbers too large or small", "rescale them")
    basis = dataclasses.replace(basis, kept=min(1.0, kept))
    groups = Groups(basis, x, None if labels is None else labels[at], dealt[at], dealt, sums, halves)
    return groups if sampler else dataclasses.replace(groups, covariance=_projected(augmentation, groups))


def _summed(
    items: Items, sampler: Augmentation | None, basis: Basis, dealt: Tensor, m: int, seed: int, advance: Advance
) -> tuple[Tensor, Tensor, float, list[Sums], list[list[Sums]]]:
    """Returns coordinates (N, r), their numbers (N,), the sum of squares of all features, and the sums of each group.

    The sums are of all draws, then of either half of them.
    """
    r, device, groups = basis.directions.shape[1], basis.mean.device, dealt.to(basis.mean.device)
    origin = torch.zeros(r, dtype=torch.float64, device=device)
    ranges = (slice(0, m), slice(0, m // 2), slice(m // 2, m))[: 3 if m else 1]
    sums = [[Sums(r, len(range(m)[part]), device, origin) for _ in range(GROUPS)] for part in ranges]
    xs, index, total = [], [], 0.0
    for b, raw, numbers in blocks(items, np.arange(len(items))):
        raw, at = raw.to(device), torch.from_numpy(np.asarray(numbers))
        full = flat(raw, sampler).to(basis.mean.dtype)
        x = basis(full)
        views = [basis(view) for view in (draw(raw, sampler, m, seed, b) if sampler else ())]
        for g in dealt[at].unique().tolist():
            mine = (groups[at.to(device)] == g).nonzero().flatten()
            for of_part, part in zip(sums, ranges, strict=True):
                of_part[g].add(x[mine], iter([view[mine] for view in views[part]]))
        xs.append(x)
        index.append(at)
        total += float((full - basis.mean).double().square().sum())
        advance(len(x))
    return torch.cat(xs), torch.cat(index), total, sums[0], sums[1:]


def _projected(augmentation: Any, groups: Groups) -> Tensor:
    """Returns a covariance that is given by numbers, in the basis."""
    P = groups.basis.directions.double()
    variance = float(groups.moments().variance.sum()) / groups.basis.kept / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # equal in all directions
        return covariance_of(augmentation, P.T @ P, variance)
    return P.T @ covariance_of(augmentation, P.new_zeros(len(P), len(P)), variance) @ P


# Parts of the groups, and intervals from them


def without(group: int) -> list[float]:
    """Returns the weights of all groups but one."""
    return [float(g != group) for g in range(GROUPS)]


def half_samples() -> list[list[float]]:
    """Returns the weights of 19 balanced half-samples of the groups: rows of Paley's Hadamard matrix of order 20.

    Any two differ in ten groups, so that for a mean over groups the variance over the half-samples is exactly the estimate of
    its variance (McCarthy, 1969, Pseudo-replication: half samples).

    Example:
        >>> samples = torch.tensor(half_samples())
        >>> samples.shape, samples.sum(1).unique().tolist(), (samples[0] - samples[1]).abs().sum().item()
        (torch.Size([19, 20]), [10.0], 10.0)
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
        values: Of all items, and of H parts of them.
        error: Its standard error. Of accuracies, the deviation over half-samples, a jackknife that deletes half of the groups:
            where spectra are nearly tied, solutions jump, and a jackknife is consistent only if it deletes many (Shao and Wu,
            1989, A general theory for jackknife variance estimation). Of overlaps, `jackknifed`.
        halves: The value with either half of the draws; empty where nothing was sampled.

    Example:
        >>> values = torch.tensor([2.0, 1.9, 2.0, 2.1])
        >>> [round(bound, 2) for bound in student(values, float(values[1:].std()))]
        [1.57, 2.43]
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
        sums: Of their coordinates, (G, L, r).
        second: Of the outer products of all, (G, r, r).
    """

    origin: Tensor
    n: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, groups: Groups) -> "ClassSums":
        """Returns the sums for items with labels 0 .. L-1, or -1."""
        x, labels, group = groups.x.double(), groups.labels, groups.group.to(groups.x.device)
        assert labels is not None
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
            rows: Of a solution, (r, r).
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

    def readable(self, rows: Tensor, weights: Sequence[float] = EVERY) -> float:
        r"""Returns tr (R C R^T)^{-1} R B R^T less its part by chance: label information that k rows R (k, r) keep.

        C is the covariance of the items and B that between classes. It is the sum of squared canonical correlations with the
        classes, T, adjusted as an R^2 is: with q = k / (N - 1), (T - (L - 1) q) / (1 - q).
        """
        n, sums, second = self.total(weights)
        N = n.sum()
        mean = sums.sum(0) / N
        some = n > 0
        between = torch.where(some[:, None], sums / n.clamp(min=1)[:, None] - mean, 0.0) * (n / N).sqrt()[:, None]
        L, _ = covariance_cholesky(rows @ (second / N - torch.outer(mean, mean)) @ rows.T)
        T = float(torch.linalg.solve_triangular(L, rows @ between.T, upper=False).square().sum())
        q = len(rows) / (float(N) - 1)
        return (T - (int(some.sum()) - 1) * q) / max(1 - q, 1e-3)


def probed(
    groups: Groups, classes: ClassSums, ks: Sequence[int], weights: Sequence[float] = EVERY, solution: Solution | None = None
) -> Tensor:
    """Returns the accuracies of joint embedding, reconstruction and PCA, (3, number of ks), each on folds that it did not see.

    Args:
        groups: Items with labels.
        classes: Their sums.
        ks: Numbers of components.
        weights: Groups that are used, (G,), 0 or 1.
        solution: What is probed; by default it is solved without each fold, too.
    """
    assert groups.labels is not None
    used = [g for g, weight in enumerate(weights) if weight]
    correct, n = torch.zeros(3, len(ks), dtype=torch.long), 0
    for fold in (used[f::FOLDS] for f in range(FOLDS)):
        test = ((groups.labels >= 0) & torch.isin(groups.group, torch.tensor(fold))).nonzero().flatten()
        train = [0.0 if g in fold else weight for g, weight in enumerate(weights)]
        x, y = groups.x[test.to(groups.x.device)], groups.labels[test]
        fitted = groups.solution(train) if solution is None else solution
        correct += torch.stack([classes.correct(train, rows, ks, x, y).sum(1) for rows in (fitted.W, fitted.E, fitted.U)])
        n += len(test)
    return correct.double() / n
