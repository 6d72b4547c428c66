r"""The SMC memory bank of Gaussian mixture joint embeddings (2026), arXiv:2603.26799: our reading of its name.

The paper's abstract names a sequential Monte Carlo memory bank as the non-parametric way out of its trap, and contrastive
learning as a degenerate limit of its mixture. What follows is derived here. The bank holds M pairs of embeddings [k_am; k_bm]
without gradient, particles of weights w_m, and is a density on pairs:

    p(z_a, z_b) = sum_m w_m N(z_a; k_am, h^2 I) N(z_b; k_bm, h^2 I)

whose h follows the batches by stepwise EM, each batch before it enters the bank: with g_bm the responsibilities of this density,
h^2 moves toward mean_b sum_m g_bm (|z_ab - k_am|^2 + |z_bb - k_bm|^2) / 2 D. (The loss's own kernel, tau at unit length, is far
wider than embeddings of many features lie apart.)

On unit vectors q = z_a / |z_a| and k = sg(z_b / |z_b|), and with the bank's at unit length too, the loss from a to b is

    nce = -log [ w_+ e^{q.k / tau} / (w_+ e^{q.k / tau} + sum_m w_m e^{q.k_bm / tau}) ],   w_+ = 1 / M

minus the log-responsibility of the positive in a mixture of kernels of variance tau, and the same from b to a; the term is the
mean of both. Its gradient reaches q alone. At w_m = 1 / M it is MoCo's loss (2020, arXiv:1911.05722).

A batch of B pairs moves the bank once (`densities.particles`), by responsibilities under both views' kernels on unit vectors:

    gamma_bm proportional to w_m e^{(q_ab.k_am + q_bb.k_bm) / tau}
    w <- (1 - rho) w + rho mean_b gamma_b,   w <- (1 - u) w + u / M

Bank and batch become a pool of weights w M / (M + B) and 1 / (M + B). Where its effective sample size is below a fraction of
M + B, M pairs are drawn from it, of equal weights; else the B old pairs of least weight leave, the oldest first. ``fifo`` keeps
weights equal and lets the oldest leave: MoCo's queue. As there, the bank begins with random unit vectors; these leave before any
pair in both modes, and nothing is drawn from a pool that has some.

Shapes: B pairs, D features, M particles. Terms: means over pairs, in nats.
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.densities import particles
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import GaussianMixture
from vergence.densities.particles import Bank, log_kernel
from vergence.densities.resampling import effective_sample_size
from vergence.objectives.core import JointObjective, require_pairs
from vergence.objectives.parts import volume
from vergence.utils.linalg import upcast_half

__all__ = ["GMJESMC"]

SEED = 0  # of the vectors that the bank begins with; what a step draws has the step's number for a seed
PAIRS = 1 << 18  # of an item and a particle that the density weighs at a time
KEEP = 0.9  # of log h^2, by a batch
LOG_2PI = math.log(2 * math.pi)


def unit(z: Tensor) -> Tensor:
    """Returns z / |z|, (..., D); a vector shorter than 1e-6 stays shorter than 1."""
    return F.normalize(z, dim=-1, eps=1e-6)


def info_nce(q: Tensor, k: Tensor, keys: Tensor, w: Tensor, tau: float) -> Tensor:
    """Returns the mean loss in nats, >= 0, for queries q (B, D), their positives k (B, D), keys k_m (M, D) and weights (M,)."""
    positive = (q * k).sum(1) / tau - math.log(len(w))
    negative = torch.addmm(w.log(), q / tau, keys.T).logsumexp(1)
    return F.softplus(negative - positive, threshold=40).mean()


def log_ratio(x: Tensor, k: Tensor, w: Tensor, h2: Tensor) -> Tensor:
    """Returns log [sum_m w_m N(x; k_m, h^2 I) / N(x; 0, h^2 I)] = log sum_m w_m e^{(x.k_m - |k_m|^2 / 2) / h^2} in nats, (B,).

    By products of matrices, some items at a time; nothing of size B M D.
    """
    bias = w.log() - 0.5 * k.square().sum(1) / h2
    parts = (x / h2).split(max(1, PAIRS // len(k)))
    return torch.cat([torch.addmm(bias, part, k.T).logsumexp(1) for part in parts])


def log_normal(x: Tensor, h2: Tensor) -> Tensor:
    """Returns log N(x; 0, h^2 I) in nats, (B,), for x (B, D)."""
    return -0.5 * (x.square().sum(1) / h2 + x.shape[1] * (h2.log() + LOG_2PI))


class GMJESMC(JointObjective):
    """Contrast with a bank of weighted pairs, which after training is the density.

    It is trained with a teacher, as MoCo is: then z_b has no gradient, and of the two directions one teaches. With the mean over
    both calls of `vergence.methods.paired.PairedMethod` the gradient is half of that of MoCo's loss in both directions. The
    bank's first views are the student's, its second views the teacher's.

    All processes of a run that gather their embeddings keep the same bank: what a step draws depends on its number alone.

    Args:
        dim: Features D of the embeddings.
        bank: M, pairs that are kept, >= 1. A batch of more leaves its last M.
        temperature: tau > 0; MoCo has 0.07.
        mode: ``smc``, or ``fifo``: MoCo's queue.
        rho: How far weights follow a batch, 0 to 1.
        u: How far weights are made alike after a batch, 0 to 1. Without damping and mixing few pairs come to have all the weight.
        ess_threshold: Pairs are drawn anew where the effective sample size is below this fraction of bank and batch, >= 0.
        resampling: ``systematic`` or ``stratified``.
        max_age: Pairs that came in more batches ago leave before others, as many as a batch replaces; None for no such bound.
        normalize: Whether loss and responsibilities are taken on unit vectors. If not, the loss also favors long embeddings.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> smc = GMJESMC(4, bank=32)
        >>> za = torch.randn(8, 4)
        >>> sorted(smc(za, za + 0.1 * torch.randn(8, 4)))
        ['nce']
        >>> smc.update(za, za)
        >>> smc.conditional(za).event_shape, smc.weights.shape
        (torch.Size([4]), torch.Size([32]))
    """

    teacher: ClassVar[float | None] = 0.99

    bank_a: Tensor
    bank_b: Tensor
    weights: Tensor
    ages: Tensor
    batches: Tensor
    resamplings: Tensor
    h2: Tensor

    def __init__(
        self,
        dim: int,
        *,
        bank: int = 4096,
        temperature: float = 0.2,
        mode: Literal["smc", "fifo"] = "smc",
        rho: float = 0.05,
        u: float = 0.05,
        ess_threshold: float = 0.5,
        resampling: Literal["systematic", "stratified"] = "systematic",
        max_age: int | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        if mode not in ("smc", "fifo") or resampling not in particles.RESAMPLING:
            known = f"mode smc or fifo and resampling {' or '.join(particles.RESAMPLING)}"
            raise ValueError(f"expected {known}, found {mode}, {resampling}")
        if bank < 1 or (max_age is not None and max_age < 1):
            raise ValueError(f"expected bank >= 1 and max_age >= 1 or None, found bank={bank}, max_age={max_age}")
        if not (0 < temperature < math.inf and ess_threshold >= 0 and 0 <= rho <= 1 and 0 <= u <= 1):
            found = f"temperature={temperature}, ess_threshold={ess_threshold}, rho={rho}, u={u}"
            raise ValueError(f"expected temperature > 0, ess_threshold >= 0, and rho and u from 0 to 1, found {found}")
        self.dim, self.size, self.tau, self.mode = dim, bank, float(temperature), mode
        self.rho, self.u, self.ess_threshold = float(rho), float(u), float(ess_threshold)
        self.resampling, self.max_age, self.normalize = resampling, max_age, normalize
        start = unit(torch.randn(2, bank, dim, generator=torch.Generator().manual_seed(SEED)))
        self.register_buffer("bank_a", start[0].clone())
        self.register_buffer("bank_b", start[1].clone())
        self.register_buffer("weights", torch.full((bank,), 1 / bank))
        self.register_buffer("h2", torch.ones(()))
        for name, shape in (("ages", (bank,)), ("batches", ()), ("resamplings", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.long))

    def _as_compared(self, z: Tensor) -> Tensor:
        return unit(z) if self.normalize else z

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's one term, ``nce``.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        qa, qb = self._as_compared(upcast_half(za)), self._as_compared(upcast_half(zb))
        ka, kb, w = self._as_compared(self.bank_a.to(qa)), self._as_compared(self.bank_b.to(qb)), self.weights.to(qa)
        ab = info_nce(qa, qb.detach(), kb, w, self.tau)
        ba = info_nce(qb, qa.detach(), ka, w, self.tau)
        return {"nce": 0.5 * (ab + ba)}

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Takes a batch (B, D) into the bank: one step of sequential Monte Carlo, or of the queue."""
        self.batches += 1
        M, bank = self.size, Bank(self.bank_a, self.bank_b, self.weights, self.ages)
        c, t = za[-M:].to(bank.c), zb[-M:].to(bank.t)
        self._widen(c, t)
        moved = particles.newest(particles.pooled(bank, c, t), M) if self.mode == "fifo" else self._step(bank, c, t)
        for kept, now in zip(bank, moved, strict=True):
            kept.copy_(now)

    def _step(self, bank: Bank, c: Tensor, t: Tensor) -> Bank:
        bank = bank._replace(w=particles.reweighted(bank.w, self._responsibilities(bank, c, t), self.rho, self.u))
        pool, steps = particles.pooled(bank, c, t), int(self.batches)
        begun = pool.age >= steps  # what no batch brought is as old as the count of batches
        stale = begun if self.max_age is None else begun | (pool.age > self.max_age)
        worth = effective_sample_size(pool.w)
        if bool(begun.any()) or bool(worth >= self.ess_threshold * len(pool.w)):
            return particles.without_lightest(pool, self.size, self.size, stale[: self.size])
        self.resamplings += 1
        draw = torch.Generator().manual_seed(SEED + steps)
        return particles.resampled(pool._replace(w=pool.w.masked_fill(stale, 0)), self.size, self.resampling, draw)

    def _responsibilities(self, bank: Bank, c: Tensor, t: Tensor) -> Tensor:
        """Returns gamma of the pairs under the kernel of both views, (B, M)."""
        q, k = (torch.cat([self._as_compared(a), self._as_compared(b)], 1) for a, b in ((c, t), (bank.c, bank.t)))
        return particles.responsibilities(bank.w, log_kernel(q, k, math.sqrt(self.tau)))

    def _widen(self, c: Tensor, t: Tensor) -> None:
        """Moves h^2 by a step of EM on pairs (B, D) that the bank does not hold yet, on a scale of logarithms."""
        new = self._spread(c, t).clamp(min=1e-12)
        self.h2.copy_(torch.where(self.batches == 1, new, self.h2**KEEP * new ** (1 - KEEP)))

    def _spread(self, c: Tensor, t: Tensor) -> Tensor:
        """Returns the mean squared distance per feature of pairs (B, D) from the bank's, by responsibility."""
        (a, ka), (b, kb) = self._centered(c, self.bank_a), self._centered(t, self.bank_b)
        x, k = torch.cat([a, b], 1), torch.cat([ka, kb], 1)
        g = particles.responsibilities(self.weights, log_kernel(x, k, self.h2.sqrt()))
        far = x.square().sum(1).mean() + (g * (k.square().sum(1) - 2 * x @ k.T)).sum(1).mean()
        return far / x.shape[1]

    def joint(self) -> GaussianMixture:
        """Returns the density over [z_a; z_b]: a kernel on every pair of the bank."""
        keys = torch.cat([self.bank_a, self.bank_b], 1)
        return GaussianMixture(self.weights.log(), keys, Diagonal(self.h2.expand(2 * self.dim)), context=self.dim)

    def _centered(self, z: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Returns embeddings and bank less the bank's mean: products of what is small lose less to rounding."""
        center = self.weights @ keys
        return z - center.to(z), (keys - center).to(z)

    def conditional(self, z: Tensor) -> GaussianMixture:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): weights (B, M), and means (M, D) that all z_a share."""
        x, k = self._centered(z, self.bank_a)
        h2 = self.h2.to(z)
        logits = self.weights.to(z).log() + log_kernel(x, k, h2.sqrt())
        return GaussianMixture(logits, self.bank_b.to(z), Diagonal(h2.expand(self.dim)))

    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b | z_a) in nats, (B,), for embeddings (B, D), in O(B M D) without their conditionals.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        (a, ka), (b, kb) = self._centered(za, self.bank_a), self._centered(zb, self.bank_b)
        w, h2 = self.weights.to(za), self.h2.to(za)
        both = log_ratio(torch.cat([a, b], 1), torch.cat([ka, kb], 1), w, h2)
        return both - log_ratio(a, ka, w, h2) + log_normal(b, h2)

    def score(self, z: Tensor) -> Tensor:
        """Returns -log p(z_a) in nats, (B,), for embeddings (B, D): how far they are from the bank."""
        x, k = self._centered(z, self.bank_a)
        h2 = self.h2.to(z)
        return -log_ratio(x, k, self.weights.to(z), h2) - log_normal(x, h2)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns how the bank fares, and `vergence.objectives.parts.volume.diagnostics`.

        ``ess`` is the effective sample size as a share of M, ``components`` is exp of the weights' entropy (1 to M), ``age`` the
        mean in batches, ``resampled`` the share of batches after which pairs were drawn anew;
        ``mahalanobis`` is the mean distance per feature from the bank, 1 where the density fits new pairs.
        """
        w = self.weights
        return {
            "ess": effective_sample_size(w).item() / self.size,
            "components": torch.special.entr(w).sum().exp().item(),
            "age": self.ages.double().mean().item(),
            "mahalanobis": (self._spread(za.to(self.bank_a), zb.to(self.bank_b)) / self.h2).item(),
            "resampled": self.resamplings.item() / max(self.batches.item(), 1),
            **volume.diagnostics(za, zb),
        }
