r"""Items in principal directions, dealt into groups whose sums are kept apart; joint embedding solved on any of the groups.

Sums of some of the groups give cross-validation without another pass over the items.

Shapes: N items, r directions, m draws of the augmentation, k components, G groups.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence.advice.directions import Projected, read
from vergence.data.items import Items
from vergence.densities.moments import Moments, Sums, principal
from vergence.linear.solutions import joint_embedding

GROUPS, BLOCK = 20, 256  # items in a block, whose views come from one generator
EVERY = (1.0,) * GROUPS  # weights of all groups
TIE = 1e-9  # joint embedding is a tie where the augmentation takes a smaller share of the second moments


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

    x: Tensor  # coordinates (N, r)
    group: Tensor  # (N,) int64, each item's group
    sums: Sequence[Sums]  # one for each group
    covariance: Tensor | None = None  # of the augmentation, (r, r), where it is given by numbers; None where it was sampled

    def moments(self, weights: Sequence[float] = EVERY) -> Moments:
        """Returns the moments of a weighted sum of the groups; S includes a covariance that is given."""
        moments = weighted(self.sums, weights).moments()
        return moments if self.covariance is None else dataclasses.replace(moments, S=moments.G + self.covariance)

    def solution(self, weights: Sequence[float] = EVERY) -> Solution:
        """Returns the solution on a weighted sum of the groups."""
        return Solution.of(self.moments(weights))


def collect(items: Items, augmentation: Any, directions: int, m: int, seed: int, device: str, skipped: int = 0) -> Groups:
    """Reads items once for the directions and once for the sums, which leave out the first ``skipped`` draws of each item."""
    read_once = read(items, augmentation, directions, m, seed, device)
    r, views = read_once.x.shape[1], Projected(augmentation, read_once.basis) if callable(augmentation) else None
    group = torch.empty(len(read_once.x), dtype=torch.long)
    group[torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))] = torch.arange(len(group)) % GROUPS
    sums = [Sums(r, m if views else 0, "cpu", torch.zeros(r, dtype=torch.float64)) for _ in range(GROUPS)]
    rows = torch.arange(len(group)).split(BLOCK)
    for b, (at, (_, raw)) in enumerate(zip(rows, items.stream(iter(read_once.index.split(BLOCK))), strict=True)):
        generator, raw = torch.Generator().manual_seed(1_000_003 * seed + b), raw.to(device)
        drawn = [views(raw, generator).double().cpu() for _ in range(skipped + m)][skipped:] if views else []
        for g in group[at].unique().tolist():
            mine = group[at] == g
            sums[g].add(read_once.x[at][mine], iter([view[mine] - read_once.mean for view in drawn]))
    covariance = None if views else torch.from_numpy(read_once.augmentation)
    return Groups(read_once.x, group, sums, covariance)
