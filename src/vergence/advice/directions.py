r"""Items in principal directions, and joint embedding solved there.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, spaced
from vergence.densities.moments import Moments
from vergence.linear.base import covariance_of
from vergence.linear.estimators import JointEmbedding
from vergence.linear.reading import Augmentation, blocks, draw, flat
from vergence.utils.checks import expect

__all__ = ["Projected", "Reduced", "Solved", "read"]

ITEMS, NUMBERS = 10_000, 1 << 27  # items, and numbers in them (0.5 GiB), that the directions are computed from
NULL = 1e-9  # a direction of less variance than this share of what uncorrelated features would give it is a linear dependence
TIE = 1e-9  # joint embedding is a tie where the augmentation takes a smaller share of the second moments


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first."""

    mean: Tensor  # (D,); float64 of tables, so that neither units nor an offset cost digits, float32 of images
    directions: Tensor  # (D, r)

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
        expect(c.any(), "items that differ", "equal ones: nothing can be compared")
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


class Projected:
    """An augmentation's views in principal directions, (B, r)."""

    def __init__(self, augmentation: Augmentation, basis: Basis) -> None:
        self.augmentation, self.basis = augmentation, basis

    def unchanged(self, x: Tensor) -> Tensor:
        """Returns the items themselves."""
        return self.basis(flat(x, self.augmentation))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Returns a view of each item."""
        seed = int(torch.randint(2**62, (), generator=generator))
        return self.basis(next(draw(x, self.augmentation, 1, seed, 0)))


class Solved(JointEmbedding):
    """Joint embedding that keeps the augmentation's share of a view's variance, ``strength_``."""

    def _solve(self, moments: Moments) -> None:
        self.strength_ = 1 - float(moments.G.trace() / moments.S.trace())
        super()._solve(moments)


@dataclass(frozen=True)
class Reduced:
    """Items in principal directions, and what solving joint embedding there takes."""

    items: Items
    basis: Basis
    x: Tensor  # coordinates (N, r), centered
    mean: Tensor  # of the coordinates before that, (r,)
    index: Tensor  # numbers of the items that could be read, (N,)
    kept: float  # share of the variance in the directions, in (0, 1]
    augmentation: Any  # a function, or a covariance (r, r) in the directions
    settings: dict[str, Any]  # n_draws, random_state and device

    def solved(self, augmentation: Any = None, part: Tensor | None = None) -> Solved | None:
        """Returns joint embedding of all items, or of those of these numbers among them; None where it is a tie.

        Another augmentation, which is a function, may replace the items' own.
        """
        augmentation = self.augmentation if augmentation is None else augmentation
        model = Solved(augmentation=augmentation, **self.settings)
        items: Any = self.x if part is None else self.x[part]
        if callable(augmentation):
            model.augmentation = Projected(augmentation, self.basis)
            items = self.items if part is None else self.items.subset(self.index[part])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of few draws and ties, which the advice says itself
            try:
                model.fit(items)
            except ValueError as reason:
                if "S = G" in str(reason):
                    return None
                raise
        return None if model.spectrum_.mean() > 1 - TIE else model

    def codes(self, model: Solved, k: int) -> Tensor:
        """Returns the first k components of all items, (N, k), centered."""
        return self.x @ torch.as_tensor(model.components_[:k].T)

    def overlap(self, a: Solved, b: Solved, k: int) -> float:
        """Returns the mean squared canonical correlation of k components, in [0, 1]: 1 where each code determines the other."""
        first, second = (torch.linalg.qr(self.codes(model, k))[0] for model in (a, b))
        return min(1.0, float((first.T @ second).square().sum() / k))


def read(items: Items, augmentation: Any, directions: int, m: int, seed: int, device: str) -> Reduced:
    """Returns items in at most so many directions of most variance."""
    least = min(directions, math.prod(items.shape))
    expect(least >= 2, "at least 2 directions", least)
    sampler = augmentation if callable(augmentation) else None
    basis = Basis.of(items, sampler, directions, device)
    parts, total = [], 0.0
    for _, raw, at in blocks(items):
        full = flat(raw.to(device), sampler).to(basis.mean.dtype)
        parts.append((basis(full).double().cpu(), at))
        total += float((full - basis.mean).double().square().sum())
    x = torch.cat([part for part, _ in parts])
    kept = min(1.0, float(x.square().sum()) / total)
    expect(kept > 0, "items that vary in their principal directions", "numbers too large or small", "rescale them")
    if sampler is None:
        augmentation = _covariance(augmentation, basis.directions.double().cpu(), float(x.var(0).sum()) / kept)
    settings = {"n_draws": m, "random_state": seed, "device": device} if sampler else {}
    return Reduced(items, basis, x - x.mean(0), x.mean(0), torch.cat([at for _, at in parts]), kept, augmentation, settings)


def _covariance(augmentation: Any, P: Tensor, total: float) -> np.ndarray:
    """Returns a covariance that is given by numbers, in directions P (D, r) of items of a total variance."""
    D, variance = len(P), total / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # equal in all directions
        found = covariance_of(augmentation, P.T @ P, variance)
    else:
        found = P.T @ covariance_of(augmentation, P.new_zeros(D, D), variance) @ P
    symmetric: np.ndarray = ((found + found.T) / 2).numpy()
    return symmetric
