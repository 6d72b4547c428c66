r"""What advice rests on: moments of items and views in groups, probes of the closed-form solutions, one operation left out.

Everything is computed in the r principal directions of most variance (all of them where there are few), in which both problems
are solved and compared. Items are dealt at random into `GROUPS` groups whose moments are kept apart: their sums over some of
the groups give cross-validation, the sample-size curve, and the bootstrap.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vergence.linear.solutions as solutions
from vergence import linalg
from vergence.data_items import ArrayItems, Items
from vergence.linear.fitting import covariance_of
from vergence.linear.moments import Augmentation, Moments, Statistics, blocks, draw, flat
from vergence.views import ImageViews, VectorViews, Views

__all__ = ["FOLDS", "GROUPS", "Basis", "Composed", "Evidence", "Solution"]
__all__ += ["as_items", "collect", "cross_validated", "information", "left_out", "predicted", "rebased", "solve"]

GROUPS, FOLDS = 20, 5
BASIS_FROM = 10_000  # items that the directions are found from, fewer where they are large
BASIS_NUMBERS = 1 << 27  # numbers that they may hold together: 0.5 GiB of float32
NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "crop": {"crop": (1.0, 1.0)},
    "flip": {"flip": 0.0},
    "jitter": {"jitter_p": 0.0},
    "greyscale": {"greyscale": 0.0},
    "blur": {"blur": 0.0},
    "solarise": {"solarise": 0.0},
    "noise": {"noise": 0.0},
    "mask": {"mask": 0.0},
    "scale": {"scale": 0.0},
}

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, the one of most variance first.

    Attributes:
        mean: (D,).
        directions: (D, r).
        kept: Share of the variance that lies in them, in (0, 1].
    """

    mean: Tensor
    directions: Tensor
    kept: float

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
    """

    basis: Basis
    x: Tensor
    labels: Tensor | None
    group: Tensor
    moments: Sequence[Moments]
    covariance: Tensor | None

    def statistics(self, weights: Sequence[float]) -> Statistics:
        """Returns the moments of a weighted sum of the groups."""
        return Moments.weighted(self.moments, weights).statistics(centred=True)

    def solution(self, weights: Sequence[float] | None = None) -> Solution:
        """Returns both solutions on a weighted sum of the groups; on all of them by default."""
        return solve(self.statistics([1.0] * GROUPS if weights is None else weights), self.covariance)


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
    moments = [Moments(r, n_draws if sampler else 0, device) for _ in range(GROUPS)]
    for one in moments:
        one.origin = torch.zeros(r, dtype=torch.float64, device=device)
    xs, seen = [], []
    for b, raw, index in blocks(items, np.arange(len(items))):
        raw = raw.to(device)
        x = basis(flat(raw, sampler))
        views = [] if sampler is None else [basis(v) for v in draw(raw, sampler, n_draws, random_state, b)]
        at = torch.from_numpy(np.asarray(index))
        for g in range(GROUPS):
            mine = (group[at] == g).nonzero().flatten().to(device)
            if len(mine):
                moments[g].add(x[mine], (v[mine] for v in views))
        xs.append(x)
        seen.append(at)
        advance(len(x))
    i = torch.cat(seen)
    whole = Evidence(basis, torch.cat(xs), None if labels is None else labels[i], group[i], moments, None)
    return dataclasses.replace(whole, covariance=None if sampler else _projected(augmentation, whole))


def _projected(augmentation: Any, evidence: Evidence) -> Tensor:
    """Returns a covariance that is given by numbers, in the basis."""
    P = evidence.basis.directions.double()
    variance = float(evidence.statistics([1.0] * GROUPS).variance.sum()) / evidence.basis.kept / len(P)
    if augmentation is None or np.ndim(augmentation) == 0:  # as large in every direction
        return covariance_of(augmentation, P.T @ P, variance)
    return P.T @ covariance_of(augmentation, P.new_zeros(len(P), len(P)), variance) @ P


def _basis(items: Items, sampler: Augmentation | None, directions: int, device: str) -> Basis:
    """Returns the principal directions of some items, found by randomised subspace iteration where they are many."""
    n = min(len(items), BASIS_FROM, max(256, BASIS_NUMBERS // int(np.prod(items.shape))))
    some = torch.linspace(0, len(items) - 1, n).long()
    x = torch.cat([flat(raw, sampler).float() for _, raw in items.stream(iter(some.split(256)))]).to(device)
    mean = x.mean(0)
    c = x - mean
    if not bool(c.isfinite().all()):
        raise ValueError("Input X contains NaN or infinity: leave those items out, or fill them in")
    total = float(c.square().sum())
    if total == 0:
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
    return Basis(mean, V[:, keep], float(strength[keep].sum()) / total)


def solve(found: Statistics, covariance: Tensor | None) -> Solution:
    """Returns both solutions and the principal directions for given moments."""
    S = found.S if covariance is None else found.G + covariance
    W, omega, _ = solutions.joint_embedding(found.G, S)
    E, _, phi, _ = solutions.reconstruction(found.M, S)
    variance, U = torch.linalg.eigh(found.clean)
    return Solution(W, omega, E, phi, U.flip(1).T, variance.flip(0).clamp(min=0), found.G, S)


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
    """Returns which labelled items each solution's probe gets right, (number of ks, N') bool, solved and probed without them."""
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


def information(evidence: Evidence, rows: Tensor) -> float:
    r"""Returns the share of what a linear reader could tell of the classes that some components keep, in [0, 1].

        tr (R C R^T)^{-1} R B R^T  /  tr C^{-1} B,    C the items' covariance, B that of the class means

    Both traces are sums of squared canonical correlations with the classes; what chance alone adds to them, (L - 1) k / N, is
    taken off. With fewer than ten labelled items a direction, the reader of the denominator sees the first N / 10 directions
    only (but twice as many as the components): of all of them it would report chance.

    Args:
        evidence: With labels.
        rows: R (k, r).
    """
    known = (evidence.labels >= 0) if evidence.labels is not None else torch.zeros(len(evidence.x), dtype=torch.bool)
    known = known.to(evidence.x.device)
    assert evidence.labels is not None and bool(known.any()), "information is about labels"
    x, y = evidence.x[known].double(), evidence.labels.to(known.device)[known]
    x = x - x.mean(0)
    C = x.T @ x / len(x)
    means = torch.stack([x[y == c].mean(0) * (y == c).double().mean().sqrt() for c in y.unique()])
    chance = (len(means) - 1) / len(x)

    def trace(R: Tensor) -> float:
        L, _ = linalg.cholesky(R @ C @ R.T)
        m = R @ means.T
        return float((m * torch.cholesky_solve(m, L)).sum()) - chance * len(R)

    readable = min(len(C), max(2 * len(rows), len(x) // 10))
    whole = trace(torch.eye(len(C), dtype=C.dtype, device=C.device)[:readable])
    return min(1.0, max(0.0, trace(rows) / whole)) if whole > 0 else 0.0


# Augmentations


class Composed:
    """Named augmentations, one after the other.

    Example:
        >>> f = Composed({"double": lambda X, generator: 2 * X, "add": lambda X, generator: X + 1})
        >>> f(torch.ones(1, 1), torch.Generator())
        tensor([[3.]])
    """

    def __init__(self, parts: Mapping[str, Augmentation]) -> None:
        self.parts = dict(parts)

    def __call__(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Returns X after all parts."""
        for part in self.parts.values():
            X = part(X, generator)
        return X


def left_out(augmentation: Any) -> Iterator[tuple[str, Augmentation]]:
    """Yields each operation's name and the augmentation without it; nothing where the augmentation is not made of named ones."""
    if isinstance(augmentation, Composed):
        for name in augmentation.parts:
            yield name, Composed({k: v for k, v in augmentation.parts.items() if k != name})
    elif isinstance(augmentation, (ImageViews, VectorViews)):
        names = (
            ("crop", "flip", "jitter", "greyscale", "blur", "solarise")
            if isinstance(augmentation, ImageViews)
            else ("noise", "mask", "scale")
        )
        for name in names:
            config = dataclasses.replace(augmentation.config, **NEUTRAL[name])
            if config != augmentation.config:
                yield name, _with(augmentation, config)


def _with(views: ImageViews | VectorViews, config: Any) -> Views:
    if isinstance(views, ImageViews):
        return ImageViews(config, views.size)
    return VectorViews(config, views.mean, views.std)


def rebased(evidence: Evidence, items: Items, augmentation: Augmentation, n_draws: int, seed: int, device: str) -> Statistics:
    """Returns the moments of some items under another augmentation, in the same directions."""
    moments = Moments(evidence.x.shape[1], n_draws, device)
    moments.origin = torch.zeros(evidence.x.shape[1], dtype=torch.float64, device=device)
    for b, raw, _ in blocks(items):
        raw = raw.to(device)
        views = (evidence.basis(v) for v in draw(raw, augmentation, n_draws, seed, b))
        moments.add(evidence.basis(flat(raw, augmentation)), views)
    return moments.statistics(centred=True)


def as_items(data: Any) -> Items:
    """Returns arrays as items; items as they are.

    Raises:
        ValueError: Not items (N, D) or images (N, C, H, W).
    """
    if isinstance(data, Items):
        return data
    array = data if isinstance(data, (Tensor, np.memmap)) else np.asarray(data)
    if array.ndim not in (2, 4) or 0 in array.shape:
        raise ValueError(f"expected items (N, D) or images (N, C, H, W), found shape {tuple(array.shape)}")
    return ArrayItems(array)
