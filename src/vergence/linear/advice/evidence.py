r"""What advice rests on: moments of items and views in groups, probes of the closed-form solutions, one operation left out.

Everything is computed in the r principal directions of most variance (all of them where there are few), in which both problems
are solved and compared. Items are dealt at random into `GROUPS` groups whose moments are kept apart: their sums over some of
the groups give cross-validation, the sample-size curve, and the bootstrap.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vergence.linear.solutions as solutions
from vergence.data.items import ArrayItems, Items
from vergence.linear.base import covariance_of
from vergence.linear.moments import Moments, Statistics
from vergence.linear.reading import Augmentation, as_table, blocks, draw, flat
from vergence.utils import linalg

__all__ = ["FOLDS", "GROUPS", "Basis", "Evidence", "Solution"]
__all__ += [
    "LabelMoments",
    "as_items",
    "collect",
    "cross_validated",
    "jackknifed",
    "predicted",
    "rebased",
    "solve",
]

GROUPS, FOLDS = 20, 5
BASIS_FROM = 10_000  # items that the directions are found from, fewer where they are large
BASIS_NUMBERS = 1 << 27  # numbers that they may hold together: 0.5 GiB of float32
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first.

    Attributes:
        mean: (D,).
        directions: (D, r).
        kept: Share of the items' variance that lies in them, in (0, 1]; 1 until it is measured.
    """

    mean: Tensor
    directions: Tensor
    kept: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns coordinates (B, r) of items (B, D), float32."""
        return (x.float() - self.mean) @ self.directions


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

    def code(self, rows: Tensor, k: int) -> Tensor:
        """Returns an orthonormal basis (r, k) of what the first k rows read from the items, in whitened principal coordinates.

        In these all directions of the items have variance 1, so that the squared norm of the basis' i-th row is the share of
        principal direction i that can be told from the k components, its R^2 of linear prediction.
        """
        basis: Tensor = torch.linalg.qr(self.variance.sqrt()[:, None] * (self.U @ rows[:k].T))[0]
        return basis

    def overlap(self, a: Tensor, b: Tensor, k: int) -> float:
        """Returns the mean squared canonical correlation of two codes of the items, in [0, 1]: 1 where each tells the other."""
        return min(1.0, float((self.code(a, k).T @ self.code(b, k)).square().sum() / k))


@dataclass(frozen=True)
class Evidence:
    """What one pass over the data leaves.

    Attributes:
        basis: The directions.
        x: Items in them, (N, r), float32.
        labels: (N,) int64, -1 where unknown; None without any.
        group: (N,) int64, to which group an item belongs.
        moments: One for each group.
        covariance: Of the augmentation, (r, r), where it is given by numbers; None where it was sampled.
        halves: As ``moments``, from the first and from the second half of the draws; none where nothing was sampled.
    """

    basis: Basis
    x: Tensor
    labels: Tensor | None
    group: Tensor
    moments: Sequence[Moments]
    covariance: Tensor | None
    halves: Sequence[Sequence[Moments]] = ()

    def split(self) -> "list[Evidence]":
        """Returns the evidence of either half of the draws: how they differ from the whole tells the error of sampling."""
        return [dataclasses.replace(self, moments=half, halves=()) for half in self.halves]

    def statistics(self, weights: Sequence[float]) -> Statistics:
        """Returns the moments of a weighted sum of the groups; S holds the covariance where that is given."""
        found = Moments.weighted(self.moments, weights).statistics(centered=True)
        return found if self.covariance is None else dataclasses.replace(found, S=found.G + self.covariance)

    def solution(self, weights: Sequence[float] | None = None) -> Solution:
        """Returns both solutions on a weighted sum of the groups; on all of them by default."""
        return solve(self.statistics([1.0] * GROUPS if weights is None else weights))


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
) -> Evidence:
    """Reads items once for the directions (a part of them) and once for the moments.

    Args:
        items: N of them.
        augmentation: As in `vergence.linear.JointEmbedding`.
        labels: (N,), -1 where unknown.
        directions: Largest r.
        n_draws: m.
        random_state: Seed of the groups and the draws.
        device: Where the moments are taken.
        advance: Told how many items were read.

    Raises:
        ValueError: The items are not finite or all equal, or the augmentation changes their shape.
    """
    sampler = augmentation if callable(augmentation) else None
    basis = _basis(items, sampler, directions, device)
    r = basis.directions.shape[1]
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(random_state))
    group = torch.empty(len(items), dtype=torch.long)
    group[order] = torch.arange(len(items)) % GROUPS
    sums = [_sums(r, n_draws if sampler else 0, device) for _ in range(GROUPS)]
    xs, seen, inside, total = [], [], 0.0, 0.0
    for b, raw, index in blocks(items, np.arange(len(items))):
        full = flat(raw.to(device), sampler).float()
        x = basis(full)
        views = [] if sampler is None else [basis(v) for v in draw(raw.to(device), sampler, n_draws, random_state, b)]
        at = torch.from_numpy(np.asarray(index))
        for g in range(GROUPS):
            mine = (group[at] == g).nonzero().flatten().to(device)
            if len(mine):
                _add(sums[g], x[mine], [v[mine] for v in views])
        inside, total = inside + float(x.double().square().sum()), total + float((full - basis.mean).double().square().sum())
        xs.append(x)
        seen.append(at)
        advance(len(x))
    i, basis = torch.cat(seen), dataclasses.replace(basis, kept=min(1.0, inside / total))
    moments, *halves = map(list, zip(*sums, strict=True))
    whole = Evidence(basis, torch.cat(xs), None if labels is None else labels[i], group[i], moments, None, halves)
    return whole if sampler else dataclasses.replace(whole, covariance=_projected(augmentation, whole))


def _sums(r: int, draws: int, device: str) -> list[Moments]:
    """Returns moments around zero to add to: for all draws and, where there are any, for either half of them."""
    sizes = (draws, draws // 2, draws - draws // 2) if draws else (0,)
    return [Moments(r, m, device, torch.zeros(r, dtype=torch.float64, device=device)) for m in sizes]


def _add(sums: Sequence[Moments], x: Tensor, views: Sequence[Tensor]) -> None:
    half = len(views) // 2
    for one, part in zip(sums, (views, views[:half], views[half:]), strict=False):
        one.add(x, iter(part))


def _projected(augmentation: Any, evidence: Evidence) -> Tensor:
    """Returns a covariance that is given by numbers, in the basis."""
    P = evidence.basis.directions.double()
    variance = float(evidence.statistics([1.0] * GROUPS).variance.sum()) / evidence.basis.kept / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # as large in every direction
        return covariance_of(augmentation, P.T @ P, variance)
    return P.T @ covariance_of(augmentation, P.new_zeros(len(P), len(P)), variance) @ P


def _basis(items: Items, sampler: Augmentation | None, directions: int, device: str) -> Basis:
    """Returns the principal directions of some items, found by randomized subspace iteration where they are many."""
    n = min(len(items), BASIS_FROM, max(64, BASIS_NUMBERS // int(np.prod(items.shape))))
    some = torch.linspace(0, len(items) - 1, n).long()
    x = torch.cat([flat(raw, sampler).float() for _, raw in items.stream(iter(some.split(64)))]).to(device)
    mean = x.mean(0)
    c = x - mean
    if not bool(c.isfinite().all()):
        raise ValueError("Input X contains NaN or infinity: leave those items out, or fill them in")
    if not bool(c.any()):
        raise ValueError("expected items that differ, found all alike; nothing can be compared")
    if min(c.shape) > 2 * directions:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            V = torch.svd_lowrank(c, q=directions + 16, niter=4)[2]
    elif len(c) <= c.shape[1]:
        square, left = torch.linalg.eigh((c @ c.T).double())
        kept = square.flip(0) > 1e-9 * square[-1]
        V = torch.linalg.qr(c.T @ left.flip(1)[:, kept].float())[0]
    else:
        V = torch.linalg.svd(c.double(), full_matrices=False)[2].T.float()
    strength = (c @ V).square().sum(0)
    keep = (strength > 1e-9 * strength.max()).nonzero().flatten()[:directions]
    return Basis(mean, V[:, keep])


def solve(found: Statistics) -> Solution:
    """Returns both solutions and the principal directions for given moments."""
    W, omega, _ = solutions.joint_embedding(found.G, found.S)
    E, _, phi, _ = solutions.reconstruction(found.M, found.S)
    variance, U = torch.linalg.eigh(found.clean)
    return Solution(W, omega, E, phi, U.flip(1).T, variance.flip(0).clamp(min=0), found.G, found.S)


# Labels


def predicted(x: Tensor, labels: Tensor, rows: Tensor, ks: Sequence[int], train: Tensor, test: Tensor) -> Tensor:
    """Returns whether a least-squares probe finds the class of each test item, (number of ks, M) bool.

    The probe is the paper's: least squares from the first k of the ``rows`` of a solution to one-hot classes, here with an
    intercept and a ridge of 1e-6 of the mean second moment.

    Args:
        x: Items (N, r).
        labels: (N,), 0 .. L-1 or -1.
        rows: Of a solution, (r, r).
        ks: Numbers of components.
        train: Items (n,) that have labels.
        test: Items (M,) that have labels.
    """
    z = x.double() @ rows[: max(ks)].T
    y = torch.nn.functional.one_hot(labels[train].to(x.device), int(labels.max()) + 1).double()
    mean, share = z[train].mean(0), y.mean(0)
    a, b = z[train] - mean, z[test] - mean
    A, B = a.T @ a, a.T @ (y - share)
    found = []
    for k in ks:
        ridge = 1e-6 * A[:k, :k].diagonal().mean() * torch.eye(k, dtype=A.dtype, device=A.device)
        V = torch.linalg.solve(A[:k, :k] + ridge, B[:k])
        found.append((b[:, :k] @ V + share).argmax(1).cpu() == labels[test])
    return torch.stack(found)


def cross_validated(evidence: Evidence, ks: Sequence[int]) -> dict[str, Tensor]:
    """Returns which labeled items each solution's probe gets right, (number of ks, N') bool, solved and probed without them."""
    labels = evidence.labels
    assert labels is not None
    known = (labels >= 0).nonzero().flatten()
    fold = evidence.group % FOLDS
    found: dict[str, Tensor] = {
        name: torch.zeros(len(ks), len(labels), dtype=torch.bool) for name in ("joint_embedding", "reconstruction", "pca")
    }
    for f in range(FOLDS):
        train, test = known[fold[known] != f], known[fold[known] == f]
        solution = evidence.solution([float(g % FOLDS != f) for g in range(GROUPS)])
        for name, rows in (("joint_embedding", solution.W), ("reconstruction", solution.E), ("pca", solution.U)):
            found[name][:, test] = predicted(evidence.x, labels, rows, ks, train, test)
    return {name: right[:, known] for name, right in found.items()}


@dataclass(frozen=True)
class LabelMoments:
    """Sums over the labeled items of each group, G of them.

    Attributes:
        n: Items of each class, (G, L).
        sums: Of their coordinates, (G, L, r).
        second: Of the outer products of all, (G, r, r).
    """

    n: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, evidence: Evidence) -> "LabelMoments":
        """Returns the sums for evidence with labels."""
        assert evidence.labels is not None, "information is about labels"
        L, r = int(evidence.labels.max()) + 1, evidence.x.shape[1]
        shapes = ((GROUPS, L), (GROUPS, L, r), (GROUPS, r, r))
        n, sums, second = (torch.zeros(shape, dtype=torch.float64) for shape in shapes)
        center = evidence.x.double().mean(0).cpu()
        for g in range(GROUPS):
            here = (evidence.group == g) & (evidence.labels >= 0)
            x, y = evidence.x[here.to(evidence.x.device)].double().cpu() - center, evidence.labels[here]
            n[g] = torch.bincount(y, minlength=L)
            sums[g].index_add_(0, y, x)
            second[g] = x.T @ x
        return cls(n, sums, second)

    def readable(self, rows: Tensor) -> Tensor:
        r"""Returns tr (R C R^T)^{-1} R B R^T less its part by chance, (1 + G,): for all items, and without each group in turn.

        It is the sum of squared canonical correlations with the classes, T, adjusted as an R^2 is: with q = k / (N - 1),
        (T - (L - 1) q) / (1 - q).
        """
        n, sums, second = (
            torch.cat([part.sum(0, keepdim=True), part.sum(0) - part]) for part in (self.n, self.sums, self.second)
        )
        N = n.sum(1)
        mean = sums.sum(1) / N[:, None]
        C = second / N[:, None, None] - mean[:, :, None] * mean[:, None, :]
        R = rows.double().cpu()
        some, share = n > 0, (n / N[:, None]).sqrt()[..., None]
        centered = torch.where(some[..., None], sums / n.clamp(min=1)[..., None] - mean[:, None], 0.0) * share
        L, _ = linalg.cholesky(R @ C @ R.T)
        T = torch.linalg.solve_triangular(L, R @ centered.mT, upper=False).square().sum((1, 2))
        q = len(R) / (N - 1)
        found: Tensor = (T - (some.sum(1) - 1) * q) / (1 - q).clamp(min=1e-3)
        return found


def jackknifed(values: Tensor) -> tuple[float, float]:
    """Returns the estimate and its standard error from (1 + G,) values: of all items, and without each group in turn."""
    G = len(values) - 1
    return float(values[0]), float(((G - 1) / G * (values[1:] - values[1:].mean()).square().sum()).sqrt())


# Other augmentations


def rebased(
    evidence: Evidence, items: Items, augmentation: Augmentation, n_draws: int, seed: int, device: str
) -> list[Statistics]:
    """Returns the moments of some items under another augmentation, in the same directions: of all draws, and of either half."""
    sums = _sums(evidence.x.shape[1], n_draws, device)
    for b, raw, _ in blocks(items):
        raw = raw.to(device)
        views = [evidence.basis(v) for v in draw(raw, augmentation, n_draws, seed, b)]
        _add(sums, evidence.basis(flat(raw, augmentation)), views)
    return [one.statistics(centered=True) for one in sums]


def as_items(data: Any) -> Items:
    """Returns arrays as items; items as they are.

    Raises:
        ValueError: Not items (N, D) or images (N, C, H, W).
    """
    return data if isinstance(data, Items) else ArrayItems(as_table(data))
