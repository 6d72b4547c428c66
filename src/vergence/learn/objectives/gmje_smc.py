r"""The SMC memory bank of Gaussian-mixture joint embeddings (2026), arXiv:2603.26799: our interpretation of its name.

The paper's abstract names a sequential Monte Carlo memory bank as the non-parametric way out of its trap, and contrastive
learning as a degenerate limit of its mixture. What follows is derived here. The bank holds M pairs of embeddings [k_am; k_bm]
without gradient, particles with weights w_m, and defines a density on pairs:

    p(z_a, z_b) = sum_m w_m N(z_a; k_am, h^2 I) N(z_b; k_bm, h^2 I)

whose h is estimated by online EM from each batch before it enters the bank: with g_bm the responsibilities of this density, h^2
moves toward mean_b sum_m g_bm (|z_ab - k_am|^2 + |z_bb - k_bm|^2) / 2 D. (The loss's own kernel, tau at unit length, is far wider
than the distances between embeddings of many features.)

On unit vectors q = z_a / |z_a| and k = sg(z_b / |z_b|), and with the bank's at unit length too, the loss from a to b is

    nce = -log [ w_+ e^{q.k / tau} / (w_+ e^{q.k / tau} + sum_m w_m e^{q.k_bm / tau}) ],   w_+ = 1 / M

minus the log-responsibility of the positive in a mixture of kernels of variance tau, and likewise from b to a; the term is the
mean of both. Only q gets gradient. At w_m = 1 / M it is MoCo's loss (He et al., 2020, arXiv:1911.05722).

A batch of B pairs updates the bank once (`densities.particles.step`), by responsibilities on unit vectors of both views:

    gamma_bm proportional to w_m e^{(q_ab.k_am + q_bb.k_bm) / tau}
    w <- m w + (1 - m) mean_b gamma_b,   w <- (1 - u) w + u / M

Bank and batch become a pool with weights w M / (M + B) and 1 / (M + B). Where its effective sample size is below a fraction of
M + B, M pairs are resampled from it, with equal weights; otherwise the B old pairs of least weight leave, the oldest first.
``fifo`` keeps weights equal and the oldest leave: MoCo's queue. As in MoCo, the bank is initialized with random unit vectors,
which leave before any pair in both modes; a pool that contains some is not resampled.

Shapes: B pairs, D features, M particles. Terms: means over pairs, in nats.
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.densities import particles
from vergence.densities.particles import Bank, KernelMixture, effective_sample_size, log_kernel
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics
from vergence.utils.checks import require_choice, require_count, require_within

__all__ = ["GMJESMC"]

SEED = 0  # seed of the initial vectors; a step's resampling adds the number of the step
KERNEL_MOMENTUM = 0.9  # weight of the past in the moving average of log h^2


def unit(z: Tensor) -> Tensor:
    """Returns z / |z|, (..., D); vectors shorter than 1e-6 are divided by 1e-6 and stay shorter than 1."""
    return F.normalize(z, dim=-1, eps=1e-6)


def info_nce(q: Tensor, k: Tensor, keys: Tensor, w: Tensor, tau: float) -> Tensor:
    """Returns the mean loss in nats, >= 0, for queries q (B, D), their positives k (B, D), keys k_m (M, D) and weights (M,)."""
    positive = (q * k).sum(1) / tau - math.log(len(w))
    negative = torch.addmm(w.log(), q / tau, keys.T).logsumexp(1)
    return F.softplus(negative - positive, threshold=40).mean()


class GMJESMC(ConditionalObjective):
    """Contrastive learning against a bank of weighted pairs, which defines the density after training.

    By default it is trained with a teacher, as MoCo is: z_b has no gradient, and one of the two directions trains the encoder.
    Averaged over both calls of `vergence.learn.methods.paired.PairedMethod`, the gradient is half that of MoCo's loss in both
    directions. The bank's first views are the student's, its second views the teacher's.

    All processes of a run that gather their embeddings keep the same bank: resampling depends only on the number of the step.

    Args:
        dim: Features D of the embeddings.
        bank: Number of pairs M in the bank, >= 1; of a larger batch the last M enter.
        temperature: Temperature tau > 0; 0.07 in MoCo.
        mode: ``smc``, or ``fifo``: MoCo's queue.
        momentum: Weight m of the past in the weights, in [0, 1]; 1 keeps them.
        u: Share of the uniform distribution mixed into the weights, in [0, 1]. With momentum and u near 0 few pairs get all the
            weight.
        ess_threshold: Pairs are resampled where the effective sample size is below this fraction of bank and batch, >= 0.
        max_age: Batches after which pairs leave before others, as many as a batch replaces; None for no bound.
        normalize: Whether loss and responsibilities use unit vectors; otherwise the loss also favors long embeddings.

    Example:
        >>> smc = GMJESMC(4, bank=32)
        >>> za = torch.randn(8, 4)
        >>> sorted(smc(za, za + 0.1 * torch.randn(8, 4)))
        ['nce']
        >>> smc.update(za, za)
        >>> smc.conditional(za).event_shape, smc.weights.shape
        (torch.Size([4]), torch.Size([32]))
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(64,))
    teacher = 0.99

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
        momentum: float = 0.95,
        u: float = 0.05,
        ess_threshold: float = 0.5,
        max_age: int | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        require_choice("mode", mode, particles.MODES)
        require_count(1, bank=bank, **({} if max_age is None else {"max_age": max_age}))
        require_within("(0, inf)", temperature=temperature)
        require_within("[0, inf)", ess_threshold=ess_threshold)
        require_within("[0, 1]", momentum=momentum, u=u)
        self.dim, self.tau, self.max_age, self.normalize = dim, float(temperature), max_age, normalize
        self.rule = particles.Rule(mode, 1 - momentum, float(u), float(ess_threshold))
        initial = unit(torch.randn(2, bank, dim, generator=torch.Generator().manual_seed(SEED)))
        self.register_buffer("bank_a", initial[0].clone())
        self.register_buffer("bank_b", initial[1].clone())
        self.register_buffer("weights", torch.full((bank,), 1 / bank))
        self.register_buffer("h2", torch.ones(()))
        for name, shape in (("ages", (bank,)), ("batches", ()), ("resamplings", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.long))

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``nce``, the mean of both directions."""
        qa, qb = self._scaled(za), self._scaled(zb)
        ka, kb, w = self._scaled(self.bank_a.to(qa)), self._scaled(self.bank_b.to(qb)), self.weights.to(qa)
        ab = info_nce(qa, qb.detach(), kb, w, self.tau)
        ba = info_nce(qb, qa.detach(), ka, w, self.tau)
        return {"nce": 0.5 * (ab + ba)}

    def _scaled(self, z: Tensor) -> Tensor:
        return unit(z) if self.normalize else z

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Updates kernel width and bank with a batch (B, D): one step of sequential Monte Carlo, or of the queue."""
        self.batches += 1
        M, steps = len(self.weights), int(self.batches)
        bank = Bank(self.bank_a, self.bank_b, self.weights, self.ages)
        c, t = za[-M:].to(bank.c), zb[-M:].to(bank.t)
        new, m = self.joint().spread(torch.cat([c, t], 1)).clamp(min=1e-12), KERNEL_MOMENTUM
        self.h2.copy_(torch.where(self.batches == 1, new, self.h2**m * new ** (1 - m)))  # online EM, on a logarithmic scale
        initial = bank.age + 1 >= steps  # only the initial vectors are as old as the number of batches
        stale = initial if self.max_age is None else initial | (bank.age + 1 > self.max_age)
        gamma, generator = partial(self._responsibilities, bank, c, t), torch.Generator().manual_seed(SEED + steps)
        ready = self.rule.mode == "smc" and not bool(initial.any())
        bank, resampled = particles.step(bank, c, t, gamma, self.rule, generator, stale, resample=ready)
        self.resamplings += resampled
        for buffer, value in zip((self.bank_a, self.bank_b, self.weights, self.ages), bank, strict=True):
            buffer.copy_(value)

    def _responsibilities(self, bank: Bank, c: Tensor, t: Tensor) -> Tensor:
        """Returns gamma of the pairs under the kernel of both views, (B, M)."""
        q, k = (torch.cat([self._scaled(a), self._scaled(b)], 1) for a, b in ((c, t), (bank.c, bank.t)))
        return particles.responsibilities(bank.w, log_kernel(q, k, math.sqrt(self.tau)))

    def joint(self) -> KernelMixture:
        """Returns the density over [z_a; z_b]: a kernel on every pair of the bank."""
        return KernelMixture(self.weights.log(), torch.cat([self.bank_a, self.bank_b], 1), self.h2, context=self.dim)

    def conditional(self, z: Tensor) -> KernelMixture:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): weights (B, M), and means (M, D) common to all z_a."""
        return KernelMixture(self.marginal().log_joint(z), self.bank_b.to(z), self.h2.to(z))

    def marginal(self) -> KernelMixture:
        """Returns p(z_a), a distribution over (D,)."""
        return KernelMixture(self.weights.log(), self.bank_a, self.h2)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the state of the bank, the fit of its density, and `parts.diagnostics.collapse`.

        ``ess`` is the effective sample size as a share of M, ``components`` is exp of the weights' entropy (1 to M), ``age`` the
        mean age in batches, ``resampled`` the share of batches after which the bank was resampled, and ``mahalanobis`` the mean
        squared distance per feature of the pairs from the bank in units of h^2, 1 where the density fits new pairs.
        """
        w = self.weights
        return {
            "ess": effective_sample_size(w).item() / len(w),
            "components": diagnostics.effective_components(w).item(),
            "age": self.ages.double().mean().item(),
            "mahalanobis": diagnostics.mahalanobis(self.joint(), torch.cat([za, zb], 1)),
            "resampled": self.resamplings.item() / max(self.batches.item(), 1),
            **diagnostics.collapse(za, zb),
        }
