r"""Weighted pairs as the density: the SMC memory bank of arXiv 2603.26799 (SMC-GMJE) on fixed data, our reading of its name.

Particles (c_m, t_m), m = 1..M, with weights w_m and Gaussian kernels of bandwidths h_c and h_t in standardized units:

    p(t | c) = sum_m gamma_m(c) N(t; t_m, h_t^2 I),   gamma_m(c) proportional to w_m N(c; c_m, h_c^2 I)

A batch of B pairs moves the bank by one step of sequential Monte Carlo, with the responsibilities

    gamma_bm proportional to w_m N(c_b; c_m, h_c^2 I) N(t_b; t_m, h_t^2 I),   r_m = mean_b gamma_bm

of which w <- r is the EM step of the weights: w <- (1 - rho) w + rho r, then w <- (1 - u) w + u / M. Bank and batch become a pool
of weights w M / (M + B) and 1 / (M + B). Where its effective sample size is below a fraction of M + B, M pairs are resampled from
it, with equal weights; else the B old pairs of least weight leave, the oldest first. ``fifo`` is the queue: equal weights, the
oldest leave.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from vergence.densities import resampling
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import GaussianMixture
from vergence.densities.particles import RESAMPLING, Bank, Rule, log_kernel, responsibilities, step
from vergence.mixtures.core import Conditional, Scale, seed_of
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["ParticleMixture"]

PAIRS = 1 << 19  # of an item and a particle: on so many bandwidths are compared; so many at a time are weighed
STARTS = ((0.1, 0.1), (0.5, 0.3), (0.02, 0.02))  # of h_c / sqrt(C) and h_t
RANGES = ((1e-3, 1e1), (1e-3, 2.0))  # of both, in standardized units

Array = np.ndarray


def leave_one_out(d2: tuple[Tensor, Tensor], own: Tensor, T: int, log_h: Array) -> tuple[float, Array]:
    """Returns minus the mean of log p(t_b | c_b) without item b's own particles, and its gradient in (log h_c, log h_t).

    Args:
        d2: Squared distances of B items and M particles in context and target, (B, M) each.
        own: Which particles are the item or copies of it, (B, M); their distances are 0.
        T: Target features.
        log_h: (2,).
    """
    c, t = (d / h2 for d, h2 in zip(d2, np.exp(2 * log_h).tolist(), strict=True))
    a = (-0.5 * c).masked_fill(own, -math.inf)
    joint = a - 0.5 * t
    log_p = joint.logsumexp(1) - a.logsumexp(1) - T * (log_h[1] + 0.5 * math.log(2 * math.pi))
    both, gate = joint.softmax(1), a.softmax(1)
    gradient = [float(((both - gate) * c).sum()), float((both * t).sum()) - T * len(c)]
    return -float(log_p.mean()), -np.array(gradient) / len(c)


def bandwidths(c: Tensor, t: Tensor, given: tuple[float | None, float | None], g: torch.Generator) -> Array:
    """Returns h_c and h_t, (2,): those given, the others of the most leave-one-out likelihood of items (N, C) and (N, T).

    They are 1 where no item has another to be told by.
    """
    some = torch.randperm(len(c), generator=g)[: max(1, PAIRS // len(c))].to(c.device)
    d_c, d_t = (torch.cdist(x[some], x, compute_mode="donot_use_mm_for_euclid_dist").square() for x in (c, t))
    own = (d_c == 0) & (d_t == 0)
    told = ~own.all(1)
    found = np.ones(2)
    if None in given and bool(told.any()):
        found = _search((d_c[told], d_t[told]), own[told], c.shape[1], t.shape[1], given)
    return np.array([b if h is None else h for h, b in zip(given, found, strict=True)])


def _search(d2: tuple[Tensor, Tensor], own: Tensor, C: int, T: int, given: tuple[float | None, float | None]) -> Array:
    units = (math.sqrt(C), 1.0)
    ranges = [(a * unit, b * unit) if h is None else (h, h) for (a, b), unit, h in zip(RANGES, units, given, strict=True)]
    bounds, options = np.log(ranges), {"gtol": 1e-4, "ftol": 1e-9}
    f = partial(leave_one_out, d2, own, T)
    starts = [np.log(np.multiply(start, units)).clip(*bounds.T) for start in STARTS]
    runs = [optimize.minimize(f, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options) for start in starts]
    best: Array = np.exp(min(runs, key=lambda run: float(run.fun)).x)
    return best


class ParticleMixture(Conditional):
    """p(target | context) as a kernel mixture over at most ``n_particles`` weighted pairs.

    `fit` starts from pairs at even distances in the items' order, of equal weight, and chooses the bandwidths that are not given
    by the leave-one-out likelihood of these. The other items then pass once, in random order, in batches (see the module's text),
    and the weights take ``em_steps`` EM steps on all items. With no more items than particles nothing passes and the weights stay
    equal: the kernel estimate of p(t | c). In mode ``fifo`` the items pass in their order, and the last ones stay.

    The passing bank follows a stream that drifts. Where nothing drifts it is no better than its start, and the EM steps are what
    improves the density.

    Args:
        n_particles: The most pairs that are kept, M >= 1.
        context_bandwidth: h_c in standardized units, > 0; None to choose it.
        target_bandwidth: h_t in standardized units, > 0; None to choose it.
        mode: ``smc``, or ``fifo``: equal weights, the oldest leave.
        rho: How far weights follow a batch, 0 to 1.
        u: How far weights are made alike after a batch, 0 to 1. Without damping and mixing few pairs come to have all the weight.
        ess_threshold: Pairs are resampled where the effective sample size is below this fraction of bank and batch, >= 0.
        resampling: ``systematic`` or ``stratified``.
        batch_size: Pairs in a batch, >= 1; never more than ``n_particles``.
        em_steps: EM steps of the weights on all items of `fit`, >= 0; none in mode ``fifo``.
        device: Where to compute, as torch names it.
        random_state: Seed of the start, of the order, of resampling and of `sample`.

    Attributes:
        context_particles_: (M, C), the oldest first.
        target_particles_: (M, T).
        weights_: (M,), >= 0, of sum 1.
        ages_: (M,), batches since the pair came in.
        bandwidths_: (2,), h_c and h_t in standardized units.
        ess_: Effective sample size 1 / sum w^2, 1 to M.
        n_resampled_: How often pairs were resampled.
        n_batches_: How many batches passed.
        seed_: What resampling is drawn from.
        context_mean_: (C,), and context_std_.
        target_mean_: (T,), and target_std_.
        n_features_in_: C.
        n_targets_: T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(4000, 1))
        >>> model = ParticleMixture(random_state=0).fit(x, rng.choice([-1, 1], size=4000) + 0.1 * rng.normal(size=4000))
        >>> given = model.conditional([[0.0]])
        >>> [round(given.log_prob(given.mean.new_tensor([[y]])).exp().item(), 1) for y in (-1.0, 0.0, 1.0)]
        [2.0, 0.0, 2.0]
    """

    def __init__(
        self,
        *,
        n_particles: int = 1000,
        context_bandwidth: float | None = None,
        target_bandwidth: float | None = None,
        mode: str = "smc",
        rho: float = 0.05,
        u: float = 0.05,
        ess_threshold: float = 0.5,
        resampling: str = "systematic",
        batch_size: int = 256,
        em_steps: int = 5,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_particles = n_particles
        self.context_bandwidth = context_bandwidth
        self.target_bandwidth = target_bandwidth
        self.mode = mode
        self.rho = rho
        self.u = u
        self.ess_threshold = ess_threshold
        self.resampling = resampling
        self.batch_size = batch_size
        self.em_steps = em_steps
        self.device = device
        self.random_state = random_state

    def partial_fit(self, context: Any, target: Any) -> "ParticleMixture":
        """Lets further pairs pass, in their order; the first call is `fit`, which sets the units.

        While there is room pairs are only added, with equal weights, and bandwidths are chosen anew.

        Args:
            context: (N, C).
            target: (N, T) or (N,).

        Returns:
            The estimator.

        Raises:
            ValueError: As `fit`, or the features differ from those of the first call.
        """
        if not hasattr(self, "weights_"):
            self.fit(context, target)
            return self
        self._check()
        c, t = self._read(context, target, reset=False)
        bank = self._pass(self._bank(), c, t)
        grown = len(bank.w) > len(self.weights_)
        self._keep(bank)
        if grown:
            self._choose_bandwidths()
        return self

    def _fit(self, c: Tensor, t: Tensor) -> None:
        self._check()
        of_c, of_t = Scale.of(c), Scale.of(t)
        self.context_mean_, self.context_std_ = of_c.mean.numpy(), of_c.std.numpy()
        self.target_mean_, self.target_std_ = of_t.mean.numpy(), of_t.std.numpy()
        self.seed_, self.n_batches_, self.n_resampled_ = seed_of(self.random_state), 0, 0
        c, t, M = *self._ordered(c, t), min(self.n_particles, len(c))
        bank = Bank(c[:M], t[:M], c.new_full((M,), 1 / M), torch.zeros(M, dtype=torch.int64, device=c.device))
        self._keep(bank)
        self._choose_bandwidths()
        if len(c) > M:
            bank = self._pass(bank, c[M:], t[M:])
            self._keep(bank._replace(w=self._polished(bank, c, t)))

    def _ordered(self, c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the items as they come: those of the start at even distances, then the others at random; a queue's as given."""
        N, g = len(c), self._generator()
        if self.mode == "fifo" or self.n_particles >= N:
            return c, t
        first = resampling.systematic(torch.ones(N), self.n_particles, g)
        others = torch.ones(N).index_fill(0, first, 0).nonzero()[:, 0]
        order = torch.cat([first, others[torch.randperm(len(others), generator=g)]]).to(c.device)
        return c[order], t[order]

    def _check(self) -> None:
        for name in ("context_bandwidth", "target_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected {name} > 0 in standardized units, or None to choose it, found {value}")
        for name, least in (("n_particles", 1), ("batch_size", 1), ("em_steps", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} of at least {least}, found {getattr(self, name)}")
        for name in ("rho", "u"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"expected {name} from 0 to 1, found {getattr(self, name)}")
        if not self.ess_threshold >= 0:
            raise ValueError(f"expected ess_threshold >= 0, found {self.ess_threshold}")
        for name, known in (("mode", ("smc", "fifo")), ("resampling", tuple(RESAMPLING))):
            if getattr(self, name) not in known:
                raise ValueError(f"expected {name} {' or '.join(known)}, found {getattr(self, name)!r}")

    def _pass(self, bank: Bank, c: Tensor, t: Tensor) -> Bank:
        """Returns the bank after the pairs passed it in batches."""
        rows = min(self.batch_size, self.n_particles)
        with bar("particles", len(c), "items") as advance:
            for s in range(0, len(c), rows):
                bank = self._step(bank, c[s : s + rows], t[s : s + rows])
                advance(len(c[s : s + rows]))
        return bank

    def _step(self, bank: Bank, c: Tensor, t: Tensor) -> Bank:
        """Returns the bank after a batch, and counts."""
        self.n_batches_ += 1
        rule = Rule(self.n_particles, self.mode, self.rho, self.u, self.ess_threshold, self.resampling)
        bank, resampled = step(bank, c, t, partial(self._responsibilities, bank, c, t), rule, self._generator())
        self.n_resampled_ += resampled
        return bank

    def _responsibilities(self, bank: Bank, c: Tensor, t: Tensor) -> Tensor:
        """Returns those of the particles for pairs, (B, M)."""
        (of_c, of_t), (h_c, h_t) = self._scales(), self.bandwidths_
        log_k = log_kernel(of_c.to(c), of_c.to(bank.c), h_c) + log_kernel(of_t.to(t), of_t.to(bank.t), h_t)
        return responsibilities(bank.w, log_k)

    def _polished(self, bank: Bank, c: Tensor, t: Tensor) -> Tensor:
        """Returns the weights after EM steps on pairs, some at a time."""
        rows = max(1, PAIRS // len(bank.w))
        for _ in range(self.em_steps if self.mode == "smc" else 0):
            parts = zip(c.split(rows), t.split(rows), strict=True)
            bank = bank._replace(w=torch.stack([self._responsibilities(bank, *part).sum(0) for part in parts]).sum(0) / len(c))
        return bank.w

    def _generator(self) -> torch.Generator:
        """Returns a generator of its own for each batch: a stream goes on as if it had never paused."""
        return torch.Generator().manual_seed((1_000_003 * self.seed_ + self.n_batches_) % 2**63)

    def _scales(self) -> tuple[Scale, Scale]:
        return Scale(self.context_mean_, self.context_std_), Scale(self.target_mean_, self.target_std_)

    def _choose_bandwidths(self) -> None:
        (of_c, of_t), bank = self._scales(), self._bank()
        given = (self.context_bandwidth, self.target_bandwidth)
        self.bandwidths_ = bandwidths(of_c.to(bank.c), of_t.to(bank.t), given, self._generator())

    def _bank(self) -> Bank:
        parts = (self.context_particles_, self.target_particles_, self.weights_, self.ages_)
        return Bank(*(torch.from_numpy(v).to(as_device(self.device)) for v in parts))

    def _keep(self, bank: Bank) -> None:
        self.context_particles_, self.target_particles_, self.weights_, self.ages_ = (v.cpu().numpy() for v in bank)
        self.ess_ = float(resampling.effective_sample_size(bank.w))

    def _conditional(self, c: Tensor) -> GaussianMixture:
        (of_c, of_t), bank, (h_c, h_t) = self._scales(), self._bank(), self.bandwidths_
        logits = bank.w.log() + log_kernel(of_c.to(c), of_c.to(bank.c), h_c)
        return GaussianMixture(logits, bank.t, Diagonal((h_t * of_t.std).square().to(c)))

    def _width(self) -> int:
        return len(self.weights_) * self.n_targets_
