r"""Items in principal directions, dealt into groups whose sums are kept apart; both problems solved on any of the groups.

Sums over some of the groups give cross-validation, half-samples, the jackknife, and the curve over numbers of items.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.densities.moments import Moments, Sums
from vergence.linear.advice.directions import Basis, principal_directions
from vergence.linear.base import covariance_of
from vergence.linear.reading import Augmentation, blocks, draw, flat
from vergence.linear.solutions import joint_embedding, reconstruction

__all__ = ["EVERY", "FOLDS", "GROUPS", "Advance", "GroupedItems", "Solution", "collect", "folds", "half_samples", "overlap"]
__all__ += ["under", "without"]

GROUPS, FOLDS = 20, 5
EVERY = (1.0,) * GROUPS  # weights of all groups
TIE = 1e-9  # joint embedding is a tie where the augmentation takes a smaller share of the second moments
Advance = Callable[[int], None]


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
        variance, U = torch.linalg.eigh(moments.clean)
        return cls(W, omega, E, phi, U.flip(1).T, variance.flip(0).clamp(min=0), moments.G, moments.S)

    def code(self, rows: Tensor, k: int) -> Tensor:
        """Returns an orthonormal basis (r, k) of what the first k rows read from the items, in whitened principal coordinates.

        There all directions of the items have variance 1, so that the squared norm of the i-th row of the basis is the share
        of principal direction i that the k components predict: its R^2.
        """
        basis: Tensor = torch.linalg.qr(self.variance.sqrt()[:, None] * (self.U @ rows[:k].T))[0]
        return basis

    def overlap(self, a: Tensor, b: Tensor, k: int) -> float:
        """Returns the mean squared canonical correlation of two codes, in [0, 1]: 1 where each determines the other."""
        return min(1.0, float((self.code(a, k).T @ self.code(b, k)).square().sum() / k))

    @property
    def tied(self) -> bool:
        """Whether the augmentation changes so little that joint embedding is a tie."""
        return float(self.omega.mean()) > 1 - TIE


def overlap(solution: Solution, k: int) -> float:
    """Returns the overlap of joint embedding's and reconstruction's codes of k components."""
    return solution.overlap(solution.W, solution.E, k)


@dataclass(frozen=True)
class GroupedItems:
    """Items in principal directions and the sums over each group of them.

    Attributes:
        basis: The directions.
        x: Coordinates (N, r).
        labels: (N,) int64, -1 where unknown; None without any.
        group: (N,) int64, each item's group.
        dealt: The same for all items of the source, those included that could not be read.
        sums: One for each group.
        covariance: Of the augmentation, (r, r), where it is given by numbers; None where it was sampled.
        halves: As ``sums``, from the first and from the second half of the draws; empty where nothing was sampled.
    """

    basis: Basis
    x: Tensor
    labels: Tensor | None
    group: Tensor
    dealt: Tensor
    sums: Sequence[Sums]
    covariance: Tensor | None = None
    halves: Sequence[Sequence[Sums]] = ()

    def split(self) -> "list[GroupedItems]":
        """Returns the same with either half of the draws: how they differ from the whole shows the error of sampling."""
        return [dataclasses.replace(self, sums=half, halves=()) for half in self.halves]

    def moments(self, weights: Sequence[float] | None = None) -> Moments:
        """Returns the moments of a weighted sum of the groups, of all by default; S includes a covariance that is given."""
        found = Sums.weighted(self.sums, EVERY if weights is None else weights).moments(centered=True)
        return found if self.covariance is None else dataclasses.replace(found, S=found.G + self.covariance)

    def solution(self, weights: Sequence[float] | None = None) -> Solution:
        """Returns both solutions on a weighted sum of the groups, on all by default."""
        return Solution.of(self.moments(weights))


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


def folds(weights: Sequence[float]) -> list[list[int]]:
    """Returns the groups of positive weight, dealt into `FOLDS` folds."""
    kept = [g for g, w in enumerate(weights) if w]
    return [kept[f::FOLDS] for f in range(FOLDS)]


def collect(
    items: Items,
    augmentation: Any,
    labels: Tensor | None,
    *,
    directions: int,
    n_draws: int,
    random_state: int,
    device: str,
    advance: Advance,
) -> GroupedItems:
    """Reads items once for the directions (a part of them) and once for the sums.

    Args:
        items: N of them.
        augmentation: As in `vergence.linear.JointEmbedding`.
        labels: (N,), -1 where unknown.
        directions: Largest r.
        n_draws: m.
        random_state: Seed of the groups and the draws.
        device: Where the sums are computed, as torch names it.
        advance: Called with the number of items of each block.

    Raises:
        ValueError: The items are not finite or all equal, or the augmentation changes their shape.
    """
    sampler = augmentation if callable(augmentation) else None
    basis = principal_directions(items, sampler, directions, device)
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(random_state))
    dealt = torch.empty(len(items), dtype=torch.long)
    dealt[order] = torch.arange(len(items)) % GROUPS
    read = _Reader(basis, sampler, n_draws if sampler else 0, random_state, device)
    xs, index, total = [], [], 0.0
    for x, at, spread in read(items, dealt):
        xs.append(x)
        index.append(at)
        total += spread
        advance(len(x))
    x, at = torch.cat(xs), torch.cat(index)
    kept = float(x.double().square().sum()) / total
    if not kept > 0:
        raise ValueError(
            "expected items that vary in their principal directions, found numbers too large or too small: rescale them"
        )
    basis = dataclasses.replace(basis, kept=min(1.0, kept))
    known = None if labels is None else labels[at]
    whole = GroupedItems(basis, x, known, dealt[at], dealt, read.whole, None, read.halves)
    return whole if sampler else dataclasses.replace(whole, covariance=_projected(augmentation, whole))


def under(
    grouped: GroupedItems, items: Items, index: Tensor, augmentation: Augmentation, n_draws: int, seed: int
) -> GroupedItems:
    """Returns the same items with the sums of a part of them under another augmentation, in the same directions and groups.

    Args:
        grouped: The items.
        items: Their source.
        index: (M,), the part.
        augmentation: Sampled.
        n_draws: m.
        seed: Of the draws.
    """
    read = _Reader(grouped.basis, augmentation, n_draws, seed, str(grouped.x.device))
    for _ in read(items.subset(index), grouped.dealt[index]):
        pass
    return dataclasses.replace(grouped, sums=read.whole, covariance=None, halves=read.halves)


class _Reader:
    """Adds up items and their views group by group: of all draws and, where there are any, of either half of them."""

    def __init__(self, basis: Basis, sampler: Augmentation | None, draws: int, seed: int, device: str) -> None:
        self.basis, self.sampler, self.draws, self.seed, self.device = basis, sampler, draws, seed, device
        r, sizes = basis.directions.shape[1], ((draws, draws // 2, draws - draws // 2) if draws else (0,))
        origin = torch.zeros(r, dtype=torch.float64, device=device)
        self.whole, *self.halves = [[Sums(r, m, device, origin) for _ in range(GROUPS)] for m in sizes]

    def __call__(self, items: Items, dealt: Tensor) -> Any:
        """Yields (coordinates (B, r), their numbers (B,), the sum of squares of all their features) of each block."""
        for b, raw, numbers in blocks(items, np.arange(len(items))):
            raw = raw.to(self.device)
            full, at = flat(raw, self.sampler).to(self.basis.mean.dtype), torch.from_numpy(np.asarray(numbers))
            x = self.basis(full)
            drawn = draw(raw, self.sampler, self.draws, self.seed, b) if self.sampler else ()
            views = [self.basis(v) for v in drawn]
            for g in range(GROUPS):
                mine = (dealt[at] == g).nonzero().flatten().to(self.device)
                if len(mine):
                    self._add(g, x[mine], [v[mine] for v in views])
            yield x, at, float((full - self.basis.mean).double().square().sum())

    def _add(self, g: int, x: Tensor, views: Sequence[Tensor]) -> None:
        half = len(views) // 2
        for sums, part in zip((self.whole, *self.halves), (views, views[:half], views[half:]), strict=False):
            sums[g].add(x, iter(part))


def _projected(augmentation: Any, grouped: GroupedItems) -> Tensor:
    """Returns a covariance that is given by numbers, in the basis."""
    P = grouped.basis.directions.double()
    variance = float(grouped.moments().variance.sum()) / grouped.basis.kept / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # equal in all directions
        return covariance_of(augmentation, P.T @ P, variance)
    return P.T @ covariance_of(augmentation, P.new_zeros(len(P), len(P)), variance) @ P
