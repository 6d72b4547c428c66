r"""A kernel mixture on weighted pairs: the SMC memory bank of arXiv 2603.26799 (SMC-GMJE) on fixed data.

The paper's formulas were not available; those below are this library's.

Particles (c_m, t_m), m = 1..M, with weights w_m and Gaussian kernels of bandwidths h_c and h_t in standardized units:

    p(t | c) = sum_m gamma_m(c) N(t; t_m, h_t^2 I),   gamma_m(c) proportional to w_m N(c; c_m, h_c^2 I)

A batch of B pairs updates the bank by one step of sequential Monte Carlo (`vergence.densities.particles`), with kernels
k_bm = N(c_b; c_m, h_c^2 I) N(t_b; t_m, h_t^2 I).
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from vergence.densities import particles as smc
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures.core import Conditional, Predictive, log_bounds, lowest, seed_of
from vergence.utils.checks import require_count, require_within
from vergence.utils.terminal import bar

__all__ = ["ParticleMixture"]

PAIRS = 1 << 19  # (item, particle) pairs on which bandwidths are compared, and in a block of the EM steps
STARTS = ((0.1, 0.1), (0.5, 0.3), (0.02, 0.02))  # initial h_c / sqrt(C) and h_t of the search
RANGES = ((1e-3, 1e1), (1e-3, 2.0))  # limits of both, in standardized units

Array = np.ndarray


def leave_one_out(d2: tuple[Tensor, Tensor], same: Tensor, w: tuple[Tensor, Tensor], T: int, log_h: Array) -> tuple[float, Array]:
    """Returns minus the mean of log p(t_b | c_b) without item b's particles, and its gradient in log_h = (log h_c, log h_t).

    d2 are the squared distances of B items and M particles in context and in target, (B, M) each; ``same`` (B, M) says whether a
    particle is the item or a duplicate of it; w are weights of both, (B,) of sum 1 and (M,).
    """
    c, t = (d / h2 for d, h2 in zip(d2, np.exp(2 * log_h).tolist(), strict=True))
    a = (w[1].log() - 0.5 * c).masked_fill(same, -math.inf)
    joint = a - 0.5 * t
    log_p = joint.logsumexp(1) - a.logsumexp(1) - T * (log_h[1] + 0.5 * math.log(2 * math.pi))
    both, gate = joint.softmax(1), a.softmax(1)
    gradient = [float(w[0] @ ((both - gate) * c).sum(1)), float(w[0] @ (both * t).sum(1)) - T]
    return -float(w[0] @ log_p), -np.array(gradient)


def bandwidths(
    c: Tensor, t: Tensor, w: Tensor, label: Tensor, given: tuple[float | None, float | None], g: torch.Generator
) -> Array:
    """Returns h_c and h_t, (2,): those given, and for the others the maximum of the leave-one-out likelihood.

    They are 1 where all items are duplicates of one. A random part of the standardized items, c (N, C) and t (N, T) of weights w
    (N,), is compared with all of them. Duplicates have the same label (N,).
    """
    some = torch.randperm(len(c), generator=g)[: max(1, PAIRS // len(c))].to(c.device)
    d_c, d_t = (torch.cdist(x[some], x, compute_mode="donot_use_mm_for_euclid_dist").square() for x in (c, t))
    same = label[some][:, None] == label
    comparable = ~same.all(1)
    best = np.ones(2)
    if None in given and bool(comparable.any()):
        units = (math.sqrt(c.shape[1]), 1.0)
        bounds = log_bounds(given, RANGES, units)
        some = some[comparable]
        weights = w[some] / w[some].sum(), w
        f = partial(leave_one_out, (d_c[comparable], d_t[comparable]), same[comparable], weights, t.shape[1])
        starts = [np.log(np.multiply(start, units)).clip(*np.array(bounds).T) for start in STARTS]
        best = np.exp(lowest(f, starts, bounds, lambda n: None, gtol=1e-4, ftol=1e-9).x)
    return np.array([b if h is None else h for h, b in zip(given, best, strict=True)])


@dataclass(eq=False, repr=False, kw_only=True)
class ParticleMixture(Conditional):
    """p(target | context) as a kernel mixture over at most ``n_particles`` weighted pairs.

    `fit` starts with evenly spaced items of equal weight and selects the bandwidths that are not given by their leave-one-out
    likelihood. The other items then update the bank in batches, once, in random order (see the module's text), and the weights
    take ``em_steps`` EM steps on all items, which improve the density; the updates do not. With no more items than particles the
    weights stay equal: the kernel estimate of p(t | c).

    Args:
        n_particles: Maximum number of pairs in the bank, M >= 1.
        context_bandwidth: h_c in standardized units, > 0; None selects it.
        target_bandwidth: h_t in standardized units, > 0; None selects it.
        rho: Step size of the weights toward a batch's responsibilities, in [0, 1].
        u: Share of the uniform distribution mixed into the weights after each batch, in [0, 1]. With rho = 1 and u = 0 the
            weight concentrates on a few pairs.
        ess_threshold: Pairs are resampled where the effective sample size is below this fraction of the pool, >= 0.
        batch_size: Pairs in a batch, >= 1; at most ``n_particles`` are used.
        em_steps: EM steps of the weights on all items, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed of the initial bank, of the order, of resampling and of `sample`.

    Attributes:
        context_particles_: (M, C), the oldest first.
        target_particles_: (M, T).
        weights_: (M,), >= 0, of sum 1.
        ages_: (M,), batches since the pair entered.
        bandwidths_: (2,), h_c and h_t in standardized units.
        ess_: Effective sample size 1 / sum w^2, 1 to M.
        n_resampled_: Number of batches after which pairs were resampled.
        n_batches_: Number of batches.
        seed_: Seed of the order and of resampling.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(4000, 1))
        >>> model = ParticleMixture(random_state=0).fit(x, rng.choice([-1, 1], size=4000) + 0.1 * rng.normal(size=4000))
        >>> given = model.conditional([[0.0]])
        >>> [round(given.log_prob(given.mean.new_tensor([[y]])).exp().item(), 1) for y in (-1.0, 0.0, 1.0)]
        [2.0, 0.0, 2.0]
    """

    n_particles: int = 1000
    context_bandwidth: float | None = None
    target_bandwidth: float | None = None
    rho: float = 0.05
    u: float = 0.05
    ess_threshold: float = 0.5
    batch_size: int = 256
    em_steps: int = 5

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        self._require_settings()
        self._standardized(c, t, w)
        self.seed_, self.n_batches_, self.n_resampled_ = seed_of(self.random_state), 0, 0
        w, M = c.new_ones(len(c)) if w is None else w, min(self.n_particles, len(c))
        order = self._order(w)
        c, t, w, label = c[order], t[order], w[order] / w.mean(), label.to(c.device)[order]
        bank = smc.Bank(c[:M], t[:M], w[:M] / w[:M].sum(), torch.zeros(M, dtype=torch.int64, device=c.device))
        self._keep(bank)
        self._select_bandwidths(label[:M])
        if len(c) > M:
            bank = self._update(bank, c[M:], t[M:], w[M:])
            rows = max(1, PAIRS // len(bank.w))
            for _ in range(self.em_steps):
                parts = zip(c.split(rows), t.split(rows), w.split(rows), strict=True)
                r = torch.stack([self._responsibilities(bank, *part).sum(0) for part in parts]).sum(0)
                bank = bank._replace(w=r / w.sum())
            self._keep(bank)

    def _order(self, w: Tensor) -> Tensor:
        """Returns the order of the updates (N,): evenly spaced items for the initial bank, then the others at random."""
        N, g = len(w), self._generator()
        if self.n_particles >= N:
            return torch.arange(N, device=w.device)
        first = smc.systematic(torch.ones(N), self.n_particles, g)
        others = torch.ones(N).index_fill(0, first, 0).nonzero()[:, 0]
        return torch.cat([first, others[torch.randperm(len(others), generator=g)]]).to(w.device)

    def _require_settings(self) -> None:
        for name in ("context_bandwidth", "target_bandwidth"):
            if getattr(self, name) is not None:
                require_within("(0, inf)", **{name: getattr(self, name)})
        require_count(1, n_particles=self.n_particles, batch_size=self.batch_size)
        require_count(0, em_steps=self.em_steps)
        require_within("[0, 1]", rho=self.rho, u=self.u)
        require_within("[0, inf)", ess_threshold=self.ess_threshold)

    def _update(self, bank: smc.Bank, c: Tensor, t: Tensor, w: Tensor) -> smc.Bank:
        """Returns the bank after updates with all pairs of weights w (N,), of mean about 1, in batches."""
        rows = min(self.batch_size, self.n_particles)
        rule = smc.Rule(self.n_particles, "smc", self.rho, self.u, self.ess_threshold)
        with bar("particles", len(c), "items") as advance:
            for s in range(0, len(c), rows):
                self.n_batches_ += 1
                pair = c[s : s + rows], t[s : s + rows]
                gamma = partial(self._responsibilities, bank, *pair, w[s : s + rows])
                bank, resampled = smc.step(bank, *pair, gamma, rule, self._generator())
                self.n_resampled_ += resampled
                advance(len(pair[0]))
        return bank

    def _responsibilities(self, bank: smc.Bank, c: Tensor, t: Tensor, w: Tensor) -> Tensor:
        """Returns the responsibilities of the particles for pairs, times the pairs' weights, (B, M)."""
        (of_c, of_t), (h_c, h_t) = self._scales(), self.bandwidths_
        log_k = smc.log_kernel(of_c.to(c), of_c.to(bank.c), h_c) + smc.log_kernel(of_t.to(t), of_t.to(bank.t), h_t)
        return w[:, None] * smc.responsibilities(bank.w, log_k)

    def _generator(self) -> torch.Generator:
        """Returns the generator of the current batch, by its number."""
        return torch.Generator().manual_seed((1_000_003 * self.seed_ + self.n_batches_) % 2**63)

    def _select_bandwidths(self, label: Tensor) -> None:
        (of_c, of_t), bank = self._scales(), self._bank()
        given = (self.context_bandwidth, self.target_bandwidth)
        self.bandwidths_ = bandwidths(of_c.to(bank.c), of_t.to(bank.t), bank.w, label, given, self._generator())

    def _bank(self) -> smc.Bank:
        return smc.Bank(*self._tensors(self.context_particles_, self.target_particles_, self.weights_, self.ages_))

    def _keep(self, bank: smc.Bank) -> None:
        self.context_particles_, self.target_particles_, self.weights_, self.ages_ = (v.cpu().numpy() for v in bank)
        self.ess_ = float(smc.effective_sample_size(bank.w))

    def _predictive(self) -> Predictive:
        (of_c, of_t), bank, (h_c, h_t) = self._scales(), self._bank(), self.bandwidths_
        log_w, particles, S = bank.w.log(), of_c.to(bank.c), Diagonal((h_t * of_t.std).square().to(bank.t))
        return lambda c: MixtureOfGaussians(log_w + smc.log_kernel(of_c.to(c), particles, h_c), bank.t, S)

    def _width(self) -> int:
        return len(self.weights_) * self.n_targets_
