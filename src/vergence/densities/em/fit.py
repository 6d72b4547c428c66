r"""Expectation maximization for Gaussian mixtures: several initializations at once, data in blocks, one pass per iteration.

E step   r_nk = pi_k N(x_n; mu_k, S_k) / sum_j pi_j N(x_n; mu_j, S_j)
M step   N_k = sum_n r_nk,  pi_k = N_k / N,  mu_k = sum_n r_nk x_n / N_k,
         S_k = sum_n r_nk d d^T / N_k + reg I,  d = x_n - mu_k

A block is read once for both steps: responsibilities are computed, and moments around fixed centers are summed in float64.
``mixed`` precision computes products in float32 until the likelihood converges, and then in float64 until it converges again.
The structures of covariances are in `vergence.densities.em.structures`.

Shapes: N items, D features, R initializations of K components each, F = R K, B items in a block.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vergence.densities.em import structures
from vergence.densities.em.structures import Mixture, Structure, Sums
from vergence.densities.gaussian import LOG_2PI
from vergence.utils.checks import require_choice, require_count, require_within
from vergence.utils.devices import rank_and_size
from vergence.utils.terminal import bar

__all__ = ["Mixture", "Structure", "initial_responsibilities"]

TINY = 10 * torch.finfo(torch.float64).eps  # added to every N_k, as scikit-learn does; weights should therefore have mean 1
SAMPLE = 256  # items that the deviation of all but 5 % is estimated from
FAR = 1e6  # variance, in squares of that deviation, above which far values dominate it


@dataclass(frozen=True)
class Data:
    """Items with weights, read in blocks; with several processes of ``torch.distributed`` each reads its share."""

    X: Tensor  # (N, D) in float32 or float64; a memory-mapped array is read block by block
    weights: Tensor | None  # (N,), >= 0, of mean 1; None for equal weights
    origin: Tensor  # (D,) in float64, subtracted from every block before it is rounded to the block's precision
    device: torch.device  # where the blocks are processed

    def blocks(self, rows: int, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yields the position of a block, its items minus the origin (B, D), and their weights (B,)."""
        rank, world = rank_and_size()
        origin = self.origin.to(self.device)
        for i, first in enumerate(range(0, len(self.X), rows)):
            if i % world == rank:
                block = slice(first, first + rows)
                x = (self.X[block].to(self.device, torch.float64) - origin).to(dtype)
                yield block, x, None if self.weights is None else self.weights[block].to(self.device, dtype)

    def suits_float32(self) -> bool:
        """Returns whether float32 resolves the items: variances well inside its range, and not dominated by far values."""
        variance, robust = self._variances
        unit = self.variance_floor / structures.ROUNDING
        return bool((unit > 1e-24).all() and (unit < 1e24).all() and torch.equal(variance, robust))

    def total(self) -> float:
        """Returns the sum of the weights."""
        return float(len(self.X)) if self.weights is None else float(self.weights.sum())

    @functools.cached_property
    def variance_floor(self) -> Tensor:
        """The lowest variance of a component in each feature, (D,): 1e-13 of the items' variance, apart from far values."""
        variance, robust = self._variances
        return structures.variance_floor(robust, variance + self.origin.to(variance).square())

    @functools.cached_property
    def _variances(self) -> tuple[Tensor, Tensor]:
        """The items' variances (D,) from one pass, and the same with those that far values dominate replaced."""
        squares = torch.zeros(self.X.shape[1], dtype=torch.float64, device=self.device)
        for _, x, w in self.blocks(max(64, structures.CELLS // self.X.shape[1]), torch.float64):
            squares += x.square().sum(0) if w is None else w @ x.square()
        if rank_and_size()[1] > 1:
            torch.distributed.all_reduce(squares)
        variance = squares / self.total()
        x = self.X[:: max(1, len(self.X) // SAMPLE)].to(variance)
        deviations = (x - x.median(0).values).abs()
        middle = deviations.kthvalue(max(1, int(0.95 * len(x))), dim=0).values.square()
        return variance, torch.where((middle > 0) & (variance > FAR * middle), middle, variance)


def structure(covariance_type: str, rank: int = 8, prior: Tensor | None = None) -> Structure:
    """Returns a structure by name: ``full``, ``diag``, or ``low_rank`` with its rank.

    ``prior`` (D, D) is the sum of squares of one item that each ``full`` component has seen before the data.
    """
    kinds: dict[str, Callable[[], Structure]] = {"full": functools.partial(structures.Full, prior), "diag": structures.Diagonal}
    kinds["low_rank"] = functools.partial(structures.LowRank, rank)
    require_choice("covariance_type", covariance_type, kinds)
    require_count(rank=rank)
    return kinds[covariance_type]()


@dataclass(frozen=True)
class Outcome:
    """The result of EM for R initializations."""

    mixture: Mixture  # after the last M steps
    bounds: list[list[float]]  # mean log-likelihood before each iteration in nats, for each initialization
    converged: list[bool]  # whether the last gain was below the tolerance
    reseeded: list[int]  # number of components that were moved to another item

    def order(self) -> list[int]:
        """Returns the indices of the initializations by decreasing final likelihood; ties keep their order."""
        return sorted(range(len(self.bounds)), key=lambda r: -self.bounds[r][-1] if self.bounds[r] else float("inf"))


def log_joint(structure: Structure, mixture: Mixture, x: Tensor, prepared: object) -> Tensor:
    """Returns log pi_k + log N(x; mu_k, S_k) in nats, (R, K, B), for items x (B, D) minus the origin."""
    constant = mixture.weights.log() - 0.5 * x.shape[1] * LOG_2PI
    parts: Tensor = structure.log_density(prepared, x).unflatten(0, mixture.weights.shape)
    return parts + constant.to(x)[..., None]


def require_settings(
    n_components: Any, n_init: Any, max_iter: Any, tol: Any, reg_covar: Any, precision: str, *, iterations: int = 0
) -> None:
    """Raises a ValueError for settings of estimators that are out of their range; ``max_iter`` is at least ``iterations``."""
    require_count(n_components=n_components, n_init=n_init)
    require_count(iterations, max_iter=max_iter)
    require_within("[0, inf)", tol=tol, reg_covar=reg_covar)
    require_choice("precision", precision, ("double", "mixed"))


Responsible = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


def _sums(data: Data, structure: Structure, prepared: object, mixture: Mixture, dtype: torch.dtype, weigh: Responsible) -> Sums:
    """Returns the sums of all processes; ``weigh`` returns log-densities (R, B) and responsibilities (R, K, B)."""
    (R, K, D), wide = mixture.means.shape, mixture.means
    lowest, item = wide.new_full((R,), float("inf")), torch.zeros(R, dtype=torch.long, device=wide.device)
    sums = Sums(wide.new_zeros(R * K), wide.new_zeros(R * K, D), structure.zeros(prepared), wide.new_zeros(R), lowest, item)

    for block, x, w in data.blocks(structure.rows(R * K, D, data.device.type), dtype):
        lp, r = weigh(block, x)
        low, at = lp.min(-1)
        sums.lowest_item = torch.where(low < sums.lowest, at + block.start, sums.lowest_item)
        sums.lowest = torch.minimum(low.to(wide), sums.lowest)
        if w is not None:
            lp, r = lp * w, r * w
        flat = r.flatten(0, 1)
        sums.log_likelihood += lp.double().sum(-1)
        sums.N += flat.sum(-1)
        sums.first += structure.first(prepared, x, flat)
        sums.second += structure.second(prepared, x, flat)
    if rank_and_size()[1] > 1:
        for part in (sums.N, sums.first, sums.second, sums.log_likelihood):
            torch.distributed.all_reduce(part)
        lowest = sums.lowest.clone()
        torch.distributed.all_reduce(lowest, torch.distributed.ReduceOp.MIN)
        sums.lowest_item = torch.where(sums.lowest == lowest, sums.lowest_item, -1)
        torch.distributed.all_reduce(sums.lowest_item, torch.distributed.ReduceOp.MAX)
    return sums


def expectation(data: Data, structure: Structure, mixture: Mixture, dtype: torch.dtype = torch.float64) -> tuple[Sums, object]:
    """Returns the E step's sums over all items, and the prepared mixture for `maximization`."""
    prepared = structure.prepare(mixture, dtype)

    def weigh(_: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        joint = log_joint(structure, mixture, x, prepared)
        lp = joint.logsumexp(1)
        return lp, joint.sub_(lp[:, None]).exp_()

    return _sums(data, structure, prepared, mixture, dtype, weigh), prepared


def maximization(
    structure: Structure, prepared: object, sums: Sums, mixture: Mixture, reg: float, floor: Tensor, *, initial: bool = False
) -> Mixture:
    """Returns the mixture that maximizes the expected log-likelihood, by what `expectation` returned for a mixture.

    Covariances get ``reg`` >= 0 on their diagonals, and at least the variances ``floor`` (D,), `Data.variance_floor`; ``initial``
    says that the sums were computed around `Structure.unit`.
    """
    N = sums.N + TINY
    means = structure.center(mixture) + (sums.first / N[:, None]).unflatten(0, mixture.weights.shape)
    covariances = structure.estimate(prepared, sums, N, means, reg, initial=initial)
    weights = N.unflatten(0, mixture.weights.shape)
    return Mixture(weights / weights.sum(-1, keepdim=True), means, structure.corrected(covariances, floor))


def initialize(data: Data, structure: Structure, r: Tensor, reg: float) -> Mixture:
    """Returns the M step of responsibilities r (R, K, N): first the means, then moments around them."""
    R, K, _ = r.shape
    if rank_and_size()[1] > 1:
        r = r.to(data.device)
        torch.distributed.broadcast(r, 0)  # without a seed each process has sampled its own
    zero = data.origin.to(data.device).new_zeros(R, K, data.X.shape[1])

    def weigh(block: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(R, len(x)), r[..., block].to(x)

    mixture = Mixture(zero[..., 0], zero, zero)
    for _ in range(1 + structure.initial_passes):
        mixture = structure.unit(mixture)
        prepared = structure.prepare(mixture, torch.float64)
        sums = _sums(data, structure, prepared, mixture, torch.float64, weigh)
        mixture = maximization(structure, prepared, sums, mixture, reg, data.variance_floor, initial=True)
    return mixture


def run(
    data: Data,
    structure: Structure,
    initial: Mixture,
    *,
    tol: float = 1e-3,
    max_iter: int = 100,
    reg: float = 1e-6,
    precision: str = "double",
) -> Outcome:
    """Iterates until the mean log-likelihood of each initialization gains less than ``tol``, or ``max_iter`` times.

    The R mixtures to begin with are iterated as one batch; ``tol`` is in nats, and ``reg`` >= 0 is added to the diagonals. With
    the precision ``mixed`` products are in float32 until they gain ``tol`` or less, then follows at least one iteration in
    ``double``; items out of float32's range use only that. A component with less than one item's weight is moved to the item of
    lowest density.
    """
    loop = _Loop(data, structure, initial, tol, reg, [-math.inf] * len(initial.weights))
    with bar("EM", max_iter, "iterations", late=True) as advance:
        for dtype in (torch.float32, torch.float64) if precision == "mixed" and data.suits_float32() else (torch.float64,):
            loop.activate(max_iter if dtype == torch.float64 else max_iter - 1)
            while loop.active:
                loop.step(dtype)
                advance(1, note=f"log-likelihood {max(bounds[-1] for bounds in loop.bounds):.5g}")
    return Outcome(loop.mixture, loop.bounds, loop.converged, loop.reseeded)


@dataclass
class _Loop:
    """R runs of EM, of which those that have not converged are active."""

    data: Data
    structure: Structure
    mixture: Mixture
    tol: float
    reg: float
    last: list[float]  # bound of each
    limit: int = 0
    active: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        R = len(self.last)
        self.bounds: list[list[float]] = [[] for _ in range(R)]
        self.converged, self.reseeded = [False] * R, [0] * R

    def activate(self, limit: int) -> None:
        """Makes all runs active that have taken fewer iterations than this limit."""
        self.limit = limit
        self.active = [r for r, bounds in enumerate(self.bounds) if len(bounds) < limit]

    def step(self, dtype: torch.dtype) -> None:
        """Takes one iteration of the active runs."""
        current = self.mixture.select(self.active)
        sums, prepared = expectation(self.data, self.structure, current, dtype)
        bounds = (sums.log_likelihood / self.data.total()).tolist()
        after = maximization(self.structure, prepared, sums, current, self.reg, self.data.variance_floor)
        revived = self._revive(sums, after)
        self.mixture = self.mixture.replaced(self.active, after)
        active = []
        for r, bound, moved in zip(self.active, bounds, revived, strict=True):
            gain, self.last[r] = bound - self.last[r], bound
            self.bounds[r].append(bound)
            self.reseeded[r] += moved
            small = gain <= self.tol if dtype == torch.float32 else abs(gain) < self.tol
            self.converged[r] = small and not moved
            if not self.converged[r] and len(self.bounds[r]) < self.limit:
                active.append(r)
        self.active = active

    def _revive(self, sums: Sums, after: Mixture) -> list[int]:
        """Moves the lightest dead component of each active run to the item of lowest density; returns 1 per move, else 0."""
        K = after.weights.shape[1]
        item = self.data.total() / len(self.data.X)
        N = sums.N.unflatten(0, after.weights.shape)
        moved = []
        for i, r in enumerate(self.active):
            k = int(N[i].argmin())
            dead = K > 1 and float(N[i, k]) < item and self.reseeded[r] < K
            if dead:
                x = self.data.X[int(sums.lowest_item[i])].to(after.means) - self.data.origin.to(after.means)
                self.structure.revive(after, i, k, x, item / self.data.total())
            moved.append(int(dead))
        return moved


def initial_responsibilities(data: Data, K: int, R: int, random_state: Any) -> Tensor:
    """Returns initial responsibilities (R, K, N) on the CPU, zeros and ones, by k-means with scikit-learn's random numbers.

    Example:
        >>> X = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
        >>> r = initial_responsibilities(Data(X, None, X.mean(0), X.device), 2, 1, 0)
        >>> r.sum(1).tolist(), bool((r[0, :, 0] == r[0, :, 1]).all())
        ([[1.0, 1.0, 1.0]], True)
    """
    from sklearn.cluster import KMeans
    from sklearn.utils import check_random_state

    rng, X = check_random_state(random_state), data.X.cpu().numpy()
    r = torch.zeros(R, K, len(X), dtype=torch.float64)
    for labels in r:
        cluster = KMeans(n_clusters=K, n_init=1, random_state=rng).fit(X, sample_weight=data.weights).labels_
        labels[torch.from_numpy(cluster).long(), torch.arange(len(X))] = 1
    return r
