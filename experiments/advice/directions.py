r"""Items in principal directions, dealt into groups whose sums are kept apart; joint embedding solved on any of the groups.

Sums of some of the groups give cross-validation without another pass over the items, as experiments/advice does.

Shapes: N items, D features, r directions, m draws of the augmentation, k components, G groups.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, spaced
from vergence.densities.moments import Moments, Sums, principal
from vergence.linear.base import covariance_of
from vergence.linear.reading import Augmentation, blocks, draw, flat
from vergence.linear.solutions import joint_embedding
from vergence.utils.checks import expect

__all__ = ["GROUPS", "Groups", "Solution", "collect"]

GROUPS = 20
EVERY = (1.0,) * GROUPS  # weights of all groups
TIE = 1e-9  # joint embedding is a tie where the augmentation takes a smaller share of the second moments
ITEMS, NUMBERS = 10_000, 1 << 27  # items, and numbers in them (0.5 GiB), that the directions are computed from
NULL = 1e-9  # a direction of less variance than this share of what uncorrelated features would give it is a linear dependence

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first."""

    mean: Tensor  # (D,); float64 of tables, so that neither units nor an offset cost digits, float32 of images
    directions: Tensor  # (D, r)
    kept: float = 1.0  # share of the items' variance that lies in them, in (0, 1]; 1 until it is measured

    def __call__(self, x: Tensor) -> Tensor:
        """Returns coordinates (B, r) of items (B, D), in the precision of the basis."""
        return (x.to(self.mean.dtype) - self.mean) @ self.directions

    @classmethod
    def of(cls, items: Items, sampler: Augmentation | None, count: int, device: str) -> "Basis":
        """Returns at most ``count`` principal directions of some items.

        No feature is left out for the unit that makes it small: directions are left out only where features depend on each
        other linearly, or where there are more than ``count``.
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


def weighted(parts: Sequence[Sums], weights: Sequence[float]) -> Sums:
    """Returns the weighted total of sums that share their origin and their draws."""
    whole = Sums(len(parts[0].x), parts[0].draws, parts[0].x.device, parts[0].origin)
    whole.eps = max(part.eps for part in parts)
    whole.n = round(sum(w * part.n for w, part in zip(weights, parts, strict=True)))
    for name in Sums.FIELDS:
        setattr(whole, name, sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True) if w))
    return whole


@dataclass(frozen=True)
class Solution:
    """Joint embedding solved from one set of moments."""

    W: Tensor  # joint embedding's rows (r, r), the most invariant first
    omega: Tensor  # (r,)
    U: Tensor  # principal directions as rows (r, r), the one of most variance first
    variance: Tensor  # variances in these directions, (r,)
    moments: Moments

    @classmethod
    def of(cls, moments: Moments) -> "Solution":
        """Returns the solution for given moments."""
        W, omega, _ = joint_embedding(moments.G, moments.S)
        variance, U = principal(moments.clean)
        return cls(W, omega, U.T, variance, moments)

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
    """Items in principal directions and the sums over each group of them."""

    basis: Basis
    x: Tensor  # coordinates (N, r)
    group: Tensor  # (N,) int64, each item's group
    dealt: Tensor  # the same for all items of the source, those included that could not be read
    sums: Sequence[Sums]  # one for each group
    covariance: Tensor | None = None  # of the augmentation, (r, r), where it is given by numbers; None where it was sampled

    def moments(self, weights: Sequence[float] = EVERY) -> Moments:
        """Returns the moments of a weighted sum of the groups; S includes a covariance that is given."""
        moments = weighted(self.sums, weights).moments(centered=True)
        return moments if self.covariance is None else dataclasses.replace(moments, S=moments.G + self.covariance)

    def solution(self, weights: Sequence[float] = EVERY) -> Solution:
        """Returns the solution on a weighted sum of the groups."""
        return Solution.of(self.moments(weights))

    def under(self, items: Items, augmentation: Augmentation, part: Tensor, m: int, seed: int, advance: Advance) -> "Groups":
        """Returns the same items with the sums of some of them, ``part``, under another augmentation, in the same groups."""
        *_, sums = _summed(items.subset(part), augmentation, self.basis, self.dealt[part], m, seed, lambda n: None)
        advance(len(part))
        return dataclasses.replace(self, sums=sums, covariance=None)


def collect(
    items: Items, augmentation: Any, directions: int, m: int, seed: int, device: str, advance: Advance = lambda n: None
) -> Groups:
    """Reads items once for the directions (a part of them) and once for the sums."""
    least = min(directions, math.prod(items.shape))
    expect(least >= 2, "at least 2 directions", least)
    sampler = augmentation if callable(augmentation) else None
    basis = Basis.of(items, sampler, directions, device)
    dealt = torch.empty(len(items), dtype=torch.long)
    dealt[torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))] = torch.arange(len(items)) % GROUPS
    x, at, total, sums = _summed(items, sampler, basis, dealt, m, seed, advance)
    kept = float(x.double().square().sum()) / total
    expect(kept > 0, "items that vary in their principal directions", "numbers too large or small", "rescale them")
    basis = dataclasses.replace(basis, kept=min(1.0, kept))
    groups = Groups(basis, x, dealt[at], dealt, sums)
    return groups if sampler else dataclasses.replace(groups, covariance=_projected(augmentation, groups))


def _summed(
    items: Items, sampler: Augmentation | None, basis: Basis, dealt: Tensor, m: int, seed: int, advance: Advance
) -> tuple[Tensor, Tensor, float, list[Sums]]:
    """Returns coordinates (N, r), their numbers (N,), the sum of squares of all features, and the sums of each group."""
    r, device, groups = basis.directions.shape[1], basis.mean.device, dealt.to(basis.mean.device)
    origin = torch.zeros(r, dtype=torch.float64, device=device)
    sums = [Sums(r, m, device, origin) for _ in range(GROUPS)]
    xs, index, total = [], [], 0.0
    for b, raw, at in blocks(items):
        raw = raw.to(device)
        full = flat(raw, sampler).to(basis.mean.dtype)
        x = basis(full)
        views = [basis(view) for view in (draw(raw, sampler, m, seed, b) if sampler else ())]
        for g in dealt[at].unique().tolist():
            mine = (groups[at.to(device)] == g).nonzero().flatten()
            sums[g].add(x[mine], iter([view[mine] for view in views]))
        xs.append(x)
        index.append(at)
        total += float((full - basis.mean).double().square().sum())
        advance(len(x))
    return torch.cat(xs), torch.cat(index), total, sums


def _projected(augmentation: Any, groups: Groups) -> Tensor:
    """Returns a covariance that is given by numbers, in the basis."""
    P = groups.basis.directions.double()
    variance = float(groups.moments().variance.sum()) / groups.basis.kept / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # equal in all directions
        return covariance_of(augmentation, P.T @ P, variance)
    return P.T @ covariance_of(augmentation, P.new_zeros(len(P), len(P)), variance) @ P
