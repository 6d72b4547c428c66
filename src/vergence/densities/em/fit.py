r"""Expectation maximization for Gaussian mixtures: several starts at once, data in blocks, one pass an iteration.

E step   r_nk = pi_k N(x_n; mu_k, S_k) / sum_j pi_j N(x_n; mu_j, S_j)
M step   N_k = sum_n r_nk,  pi_k = N_k / N,  mu_k = sum_n r_nk x_n / N_k,
         S_k = sum_n r_nk d d^T / N_k + reg I,  d = x_n - mu_k

A block is read once for both steps: it is weighed, and its moments around fixed centers are added up in float64. ``mixed``
precision takes products in float32 until the likelihood stands still, and goes on in float64 until it stands still there.
How covariances are kept is in `vergence.densities.em.structures` and `vergence.densities.em.low_rank`.

Shapes: N items, D features, R starts of K components each, F = R K, B items in a block.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from vergence.densities.em.low_rank import LowRank
from vergence.densities.em.structures import (
    CELLS,
    ROUNDING,
    Diagonal,
    Full,
    Mixture,
    Spherical,
    Structure,
    Sums,
    Tied,
    least_variance,
)
from vergence.densities.gaussian import LOG_2PI
from vergence.utils import terminal
from vergence.utils.checks import is_count
from vergence.utils.distributed import rank_and_size

__all__ = [
    "Data",
    "Mixture",
    "Outcome",
    "Structure",
    "expectation",
    "log_joint",
    "maximization",
    "polish",
    "require_settings",
    "run",
    "start",
    "structure",
]

TINY = 10 * torch.finfo(torch.float64).eps  # added to every N_k, as scikit-learn does


@dataclass(frozen=True)
class Data:
    """Items with weights, read in blocks; in several processes of ``torch.distributed`` each reads its share.

    Attributes:
        X: (N, D) of float32 or float64; a memory-mapped array is read block by block.
        weights: (N,) or None.
        origin: (D,) of float64, taken off every block before anything is rounded.
        device: Where the blocks go.
    """

    X: Tensor
    weights: Tensor | None
    origin: Tensor
    device: torch.device

    def blocks(self, rows: int, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yields where a block lies, its items less the origin (B, D), and their weights (B,)."""
        rank, world = rank_and_size()
        origin = self.origin.to(self.device)
        for i, begin in enumerate(range(0, len(self.X), rows)):
            if i % world == rank:
                where = slice(begin, begin + rows)
                x = (self.X[where].to(self.device, torch.float64) - origin).to(dtype)
                yield where, x, None if self.weights is None else self.weights[where].to(self.device, dtype)

    def suits_float32(self) -> bool:
        """Returns whether the features' variances and their inverses are far from float32's ends."""
        variance = self.least / ROUNDING
        return bool((variance > 1e-24).all() and (variance < 1e24).all())

    def total(self) -> float:
        """Returns the sum of the weights."""
        return float(len(self.X)) if self.weights is None else float(self.weights.sum())

    @functools.cached_property
    def least(self) -> Tensor:
        """The variance of each feature that is told from zero, (D,); a pass over the items."""
        squares = torch.zeros(self.X.shape[1], dtype=torch.float64, device=self.device)
        for _, x, w in self.blocks(max(64, CELLS // self.X.shape[1]), torch.float64):
            squares += x.square().sum(0) if w is None else w @ x.square()
        if rank_and_size()[1] > 1:
            torch.distributed.all_reduce(squares)
        variance = squares / self.total()
        return least_variance(variance, variance + self.origin.to(variance).square())


def _reduce(sums: Sums) -> Sums:
    """Returns the sums of all processes."""
    if rank_and_size()[1] > 1:
        for part in (sums.N, sums.first, sums.second, sums.log_likelihood):
            torch.distributed.all_reduce(part)
        lowest = sums.worst.clone()
        torch.distributed.all_reduce(lowest, torch.distributed.ReduceOp.MIN)
        sums.where = torch.where(sums.worst == lowest, sums.where, -1)
        torch.distributed.all_reduce(sums.where, torch.distributed.ReduceOp.MAX)
    return sums


def structure(covariance_type: str, rank: int = 8) -> Structure:
    """Returns a structure by name.

    Raises:
        ValueError: There is no such structure, or the rank is below 1.

    Example:
        >>> structure("tied").parameters(K=3, D=2)
        3
    """
    kinds: dict[str, Callable[[], Structure]] = {"full": Full, "tied": Tied, "diag": Diagonal, "spherical": Spherical}
    if covariance_type not in (*kinds, "low_rank"):
        raise ValueError(f"expected covariance_type among {', '.join((*kinds, 'low_rank'))}, found '{covariance_type}'")
    if covariance_type == "low_rank" and not is_count(rank, 1):
        raise ValueError(f"expected a rank of at least 1, a whole number, found {rank}")
    return LowRank(rank) if covariance_type == "low_rank" else kinds[covariance_type]()


@dataclass(frozen=True)
class Outcome:
    """What a run leaves.

    Attributes:
        mixture: R mixtures.
        bounds: The mean log-likelihood of each iteration, one list a start.
        converged: Of each start, whether the last gain was below the tolerance.
        reseeded: Of each start, how often a dead component was set anew.
    """

    mixture: Mixture
    bounds: list[list[float]]
    converged: list[bool]
    reseeded: list[int]

    def order(self) -> list[int]:
        """Returns the starts, the likeliest end first; of equal ones the earlier first."""
        return sorted(range(len(self.bounds)), key=lambda r: -self.bounds[r][-1] if self.bounds[r] else float("inf"))


def log_joint(structure: Structure, mixture: Mixture, x: Tensor, use: object) -> Tensor:
    """Returns log pi_k + log N(x; mu_k, S_k) in nats, (R, K, B), for items x (B, D) less the origin."""
    constant = mixture.weights.log() - 0.5 * x.shape[1] * LOG_2PI
    parts: Tensor = structure.log_density(use, x).unflatten(0, mixture.weights.shape)
    return parts + constant.to(x)[..., None]


def require_settings(
    n_components: Any, n_init: Any, max_iter: Any, tol: Any, reg_covar: Any, precision: str, *, iterations: int = 0
) -> None:
    """Refuses settings of estimators that are out of their range.

    Raises:
        ValueError: The numbers of components, of starts or of iterations are no whole numbers of at least 1, 1 and
            ``iterations``; ``tol`` or ``reg_covar`` is negative or not finite; or the precision is unknown.
    """
    for name, value, least in (("n_components", n_components, 1), ("n_init", n_init, 1), ("max_iter", max_iter, iterations)):
        if not is_count(value, least):
            raise ValueError(f"expected {name} of at least {least}, a whole number, found {value}")
    for name, number in (("tol", tol), ("reg_covar", reg_covar)):
        if not (isinstance(number, Real) and 0 <= float(number) < math.inf):
            raise ValueError(f"expected {name} of at least 0, found {number}")
    if precision not in ("double", "mixed"):
        raise ValueError(f"expected precision 'double' or 'mixed', found '{precision}'")


Responsible = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


def _sweep(data: Data, structure: Structure, use: object, mixture: Mixture, dtype: torch.dtype, weigh: Responsible) -> Sums:
    """Returns the sums over all blocks; ``weigh`` gives log-densities (R, B) and responsibilities (R, K, B)."""
    (R, K, D), wide = mixture.means.shape, mixture.means
    worst, where = wide.new_full((R,), float("inf")), torch.zeros(R, dtype=torch.long, device=wide.device)
    sums = Sums(wide.new_zeros(R * K), wide.new_zeros(R * K, D), structure.empty(use), wide.new_zeros(R), worst, where)
    for place, x, w in data.blocks(structure.rows(R * K, D), dtype):
        lp, r = weigh(place, x)
        low, at = lp.min(-1)
        sums.where = torch.where(low < sums.worst, at + place.start, sums.where)
        sums.worst = torch.minimum(low.to(wide), sums.worst)
        if w is not None:
            lp, r = lp * w, r * w
        flat = r.flatten(0, 1)
        sums.log_likelihood += lp.double().sum(-1)
        sums.N += flat.sum(-1)
        sums.first += structure.first(use, x, flat)
        sums.second += structure.second(use, x, flat)
    return _reduce(sums)


def expectation(data: Data, structure: Structure, mixture: Mixture, dtype: torch.dtype = torch.float64) -> tuple[Sums, object]:
    """Returns the E step's sums over all items and what `maximization` takes along."""
    use = structure.use(mixture, dtype)

    def weigh(_: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        joint = log_joint(structure, mixture, x, use)
        lp = joint.logsumexp(1)
        return lp, joint.sub_(lp[:, None]).exp_()

    return _sweep(data, structure, use, mixture, dtype, weigh), use


def maximization(
    structure: Structure, use: object, sums: Sums, mixture: Mixture, reg: float, least: Tensor, *, first: bool = False
) -> Mixture:
    """Returns the mixture that maximizes the expected log-likelihood.

    Args:
        structure: Of the covariances.
        use: What `expectation` gave.
        sums: Its sums.
        mixture: The mixture that they were taken with.
        reg: Added to the covariances' diagonals.
        least: Variances (D,) below which nothing is told from zero: `Data.least`.
        first: Whether there are no covariances to go on from.
    """
    N = sums.N + TINY
    means = structure.center(mixture) + (sums.first / N[:, None]).unflatten(0, mixture.weights.shape)
    covariances = (structure.guess if first else structure.estimate)(use, sums, N, means, reg)
    weights = N.unflatten(0, mixture.weights.shape)
    return Mixture(weights / weights.sum(-1, keepdim=True), means, structure.corrected(covariances, least))


def start(data: Data, structure: Structure, r: Tensor, reg: float) -> Mixture:
    """Returns the M step for responsibilities r (R, K, N): means first, then moments around them."""
    R, K, _ = r.shape
    if rank_and_size()[1] > 1:
        r = r.to(data.device)
        torch.distributed.broadcast(r, 0)  # without a seed each process has drawn its own
    zero = data.origin.to(data.device).new_zeros(R, K, data.X.shape[1])
    known = Mixture(zero[..., 0], zero, zero)
    for _ in range(1 + structure.sweeps_to_start):
        known = _taken(data, structure, structure.begin(known), r, reg)
    return known


def _taken(data: Data, structure: Structure, mixture: Mixture, r: Tensor, reg: float) -> Mixture:
    use = structure.use(mixture, torch.float64)

    def weigh(where: slice, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(len(r), len(x)), r[..., where].to(x)

    sums = _sweep(data, structure, use, mixture, torch.float64, weigh)
    return maximization(structure, use, sums, mixture, reg, data.least, first=True)


def run(
    data: Data,
    structure: Structure,
    begin: Mixture,
    *,
    tol: float = 1e-3,
    max_iter: int = 100,
    reg: float = 1e-6,
    precision: str = "double",
    reseed: bool = True,
    report: Callable[[int, int, float, float], None] | None = None,
    before: float = -math.inf,
) -> Outcome:
    """Iterates until the mean log-likelihood of each start gains less than ``tol``, or ``max_iter`` times.

    Args:
        data: The items.
        structure: Of the covariances.
        begin: R mixtures to start from, which run side by side.
        tol: Least gain, in nats.
        max_iter: Iterations of each start.
        reg: Added to the covariances' diagonals.
        precision: ``double``; or ``mixed``: products in float32 until they gain ``tol`` or less, then ``double``, at least once;
            ``double`` alone where the items' scale is not float32's.
        reseed: Whether a component with less than one item's weight is set on the item that is explained worst.
        report: Called after each iteration with its start, number, bound and gain.
        before: The bound that the first gain is counted from, where an earlier run is gone on with.

    Returns:
        The mixtures after their last M step, and the bounds before each.
    """
    loop = _Loop(data, structure, begin, tol, reg, reseed, report, before)
    with terminal.late_bar("EM", max_iter, "iterations") as advance:
        for dtype in (torch.float32, torch.float64) if precision == "mixed" and data.suits_float32() else (torch.float64,):
            loop.wake(max_iter if dtype == torch.float64 else max_iter - 1)
            while loop.active:
                loop.step(dtype)
                advance(1, note=f"log-likelihood {max(b[-1] for b in loop.bounds):.5g}")
    return Outcome(loop.mixture, loop.bounds, loop.converged, loop.reseeded)


class _Loop:
    """R runs of EM; those that have converged rest."""

    def __init__(
        self,
        data: Data,
        structure: Structure,
        begin: Mixture,
        tol: float,
        reg: float,
        reseed: bool,
        report: Callable[[int, int, float, float], None] | None,
        before: float,
    ) -> None:
        self.data, self.structure, self.mixture = data, structure, begin
        self.tol, self.reg, self.reseed, self.report = tol, reg, reseed, report
        R = len(begin.weights)
        self.last, self.limit = [before] * R, 0
        self.bounds: list[list[float]] = [[] for _ in range(R)]
        self.converged, self.reseeded, self.active = [False] * R, [0] * R, list(range(R))

    def wake(self, limit: int) -> None:
        """Lets all runs go on until they have taken this many iterations."""
        self.limit = limit
        self.active = [r for r, bounds in enumerate(self.bounds) if len(bounds) < limit]

    def step(self, dtype: torch.dtype) -> None:
        """Takes one iteration of the runs that are not at rest."""
        here = self.mixture.of(self.active)
        sums, use = expectation(self.data, self.structure, here, dtype)
        bounds = (sums.log_likelihood / self.data.total()).tolist()
        after = maximization(self.structure, use, sums, here, self.reg, self.data.least)
        fresh = self._revive(sums, after) if self.reseed else [0] * len(bounds)
        self.mixture = self.mixture.to_device(self.active, after)
        still = []
        for r, bound, new in zip(self.active, bounds, fresh, strict=True):
            gain, self.last[r] = bound - self.last[r], bound
            self.bounds[r].append(bound)
            self.reseeded[r] += new
            still_now = gain <= self.tol if dtype == torch.float32 else abs(gain) < self.tol
            self.converged[r] = still_now and not new
            if self.report is not None:
                self.report(r, len(self.bounds[r]), bound, gain)
            if not self.converged[r] and len(self.bounds[r]) < self.limit:
                still.append(r)
        self.active = still

    def _revive(self, sums: Sums, after: Mixture) -> list[int]:
        """Sets the lightest dead component of each run on the item explained worst; says where that was done."""
        K = after.weights.shape[1]
        item = self.data.total() / len(self.data.X)
        N = sums.N.unflatten(0, after.weights.shape)
        done = []
        for i, r in enumerate(self.active):
            k = int(N[i].argmin())
            dead = K > 1 and float(N[i, k]) < item and self.reseeded[r] < K
            if dead:
                x = self.data.X[int(sums.where[i])].to(after.means) - self.data.origin.to(after.means)
                self.structure.revive(after, i, k, x, item / self.data.total())
            done.append(int(dead))
        return done


def polish(
    X: Tensor, weights: Tensor, means: Tensor, covariances: Tensor, *, steps: int = 20, reg_covar: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a mixture with full covariances after some EM steps: weights (K,), means (K, D), covariances (K, D, D).

    Args:
        X: Items (N, D) of float64.
        weights: (K,).
        means: (K, D).
        covariances: (K, D, D).
        steps: Iterations; 0 leaves the mixture as it is.
        reg_covar: Added to the covariances' diagonals.

    Example:
        >>> X = torch.cat([torch.randn(500, 1).double() - 5, torch.randn(500, 1).double() + 5])
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> w, m, S = polish(X, one / 2, torch.tensor([[-1.0], [1.0]]).double(), one[:, None, None], steps=5)
        >>> m.round().flatten().tolist()
        [-5.0, 5.0]
    """
    data = Data(X, None, X.mean(0), X.device)
    begin = Mixture(weights[None], (means - data.origin)[None], covariances[None])
    found = run(data, Full(), begin, tol=0.0, max_iter=steps, reg=reg_covar, reseed=False).mixture
    return found.weights[0], found.means[0] + data.origin, found.covariances[0]
