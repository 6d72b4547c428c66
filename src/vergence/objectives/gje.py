r"""Gaussian Joint Embeddings (2026), arXiv:2603.26799, from its abstract and captions: the losses are derived here.

Joint density   p(Z) = N(mu, Sigma) over Z = [z_a; z_b]
Conditional     p(z_b | z_a) = N(mu_b + A (z_a - mu_a), Sigma_bb - A Sigma_ab),  A = Sigma_ba Sigma_aa^{-1}

The trap: with Sigma = S, the batch's own covariance, tr(S^{-1} S) is constant, so the likelihood is 1/2 log |S|, which is lowest
for a collapsed encoder; and any likelihood alone falls by log a for every feature when embeddings shrink by a. What holds is
a term that pays for volume. With KL = KL(N(batch) || N(0, I)) of a view and I = mutual information of the batch's two views:

    naive             joint negative log-likelihood, nothing else: the trap, for study
    joint_kl          joint nll + beta (KL_a + KL_b): mean variance 1 - 1 / beta at rest, a collapse for beta <= 1
    conditional_kl    conditional nll, both ways on average, + beta (KL_a + KL_b): 1 - 1 / (2 beta) at rest
    mi_kl (default)   joint nll - H(a) - H(b) + eta (KL_a + KL_b), H = 1/2 log |2 pi e S| of a view: 1 at rest for every eta

With the batch's covariance the first three terms of the last are -I. The likelihood may also be taken under a moving average
(``ema``) or learned parameters (``learned``), which alone do not prevent collapse; entropies and KL are always the batch's.

Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats.
"""

from typing import Literal

import torch
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.gaussian import JointGaussian
from vergence.objectives.core import JointObjective, require_pairs
from vergence.objectives.parts import volume
from vergence.objectives.parts.moving import MovingGaussian
from vergence.objectives.parts.prototypes import Prototypes, rank_of
from vergence.utils.linalg import upcast_half

__all__ = ["GJE"]

LOSSES = ("mi_kl", "joint_kl", "conditional_kl", "naive")
FLOOR = 1e-2  # least deviation of a learned covariance


class GJE(JointObjective):
    """Gaussian joint embedding: one Gaussian over both views' embeddings.

    Args:
        dim: Features D of the embeddings.
        loss: ``mi_kl``, ``joint_kl``, ``conditional_kl`` or ``naive``, see above.
        eta: Weight of the KL in ``mi_kl``, > 0.
        beta: Weight of the KL in ``joint_kl`` (> 1) and ``conditional_kl`` (> 1/2); at or below these the encoder collapses.
        covariance: Of the likelihood: ``batch``, ``ema``, ``learned``, or ``low_rank``, also learned, for many features: views
            that agree feature by feature, and ``rank`` shared directions (`vergence.densities.covariance.PairedLowRank`).
        rank: Of ``low_rank``.
        stop_gradient: Whether the batch's covariance is a constant in the likelihood (no remedy, for study).
        shrinkage: Of batch covariances toward a multiple of I, in [0, 1]; None estimates it, more for small batches.
        momentum: m of the moving averages that the density after training comes from, in [0, 1).

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> gje = GJE(4)
        >>> terms = gje(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms)
        ['kl', 'mi']
        >>> gje.conditional(torch.randn(3, 4)).event_shape
        torch.Size([4])
    """

    def __init__(
        self,
        dim: int,
        *,
        loss: Literal["mi_kl", "joint_kl", "conditional_kl", "naive"] = "mi_kl",
        eta: float = 0.5,
        beta: float = 2.0,
        covariance: Literal["batch", "ema", "learned", "low_rank"] = "batch",
        rank: int = 8,
        stop_gradient: bool = False,
        shrinkage: float | None = None,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        volume.require_loss(loss, LOSSES, eta, beta)
        if covariance not in ("batch", "ema", "learned", "low_rank"):
            raise ValueError(f"expected covariance batch, ema, learned or low_rank, found {covariance!r}")
        self.dim, self.loss, self.eta, self.beta = dim, loss, float(eta), float(beta)
        self.kind, self.stop_gradient, self.shrinkage = covariance, stop_gradient, shrinkage
        self.moving = MovingGaussian(2 * dim, momentum=momentum, shrinkage=shrinkage)
        self.prototype = None
        if covariance in ("learned", "low_rank"):
            r = rank_of("full" if covariance == "learned" else covariance, rank, 2 * dim)
            self.prototype = Prototypes(2 * dim, 1, rank=r, floor=FLOOR)
            self.prototype.means.data.zero_()
            self.prototype.logits.requires_grad_(False)  # of one component there is nothing to weigh

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``nll`` or ``mi``, and ``kl``.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        Z = torch.cat([upcast_half(za), upcast_half(zb)], 1)
        m = volume.moments(Z, self.shrinkage)
        a, b = m.block(slice(0, self.dim)), m.block(slice(self.dim, None))
        under = self._likelihood(m)
        nll = -under.log_prob(Z).mean()
        if self.loss == "conditional_kl":  # both ways on average
            return volume.priced("joint_kl", nll - 0.5 * self._marginals(Z, under), a, b, eta=self.eta, beta=self.beta)
        return volume.priced(self.loss, nll, a, b, eta=self.eta, beta=self.beta)

    def _likelihood(self, m: volume.Moments) -> JointGaussian:
        """Returns the density that the likelihood is taken under."""
        if self.kind == "batch":
            S = (m.S.detach() if self.stop_gradient else m.S).double()  # as the determinants are taken
            return JointGaussian(m.mean, Dense(torch.linalg.cholesky_ex(S)[0].to(m.S)), context=self.dim)
        return self.joint()

    def _marginals(self, Z: Tensor, under: JointGaussian) -> Tensor:
        """Returns the sum of both views' marginal negative log-likelihoods."""
        za, zb = Z.split(self.dim, 1)
        return -(under.marginal("context").log_prob(za) + under.marginal("target").log_prob(zb)).mean()

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves the averages of mean and covariance that the density is made of; the first steps weigh alike."""
        self.moving.update(torch.cat([za, zb], 1))

    def joint(self) -> JointGaussian:
        """Returns the density over [z_a; z_b]: of the learned parameters, or of the moving averages."""
        if self.prototype is None:
            return self.moving.density(context=self.dim)
        only = self.prototype.density(context=self.dim).component_distribution
        return JointGaussian(
            only.loc[0], only.S.index_components(torch.zeros((), dtype=torch.long, device=only.loc.device)), self.dim
        )

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the mean Mahalanobis distance per feature under the likelihood's covariance, and `parts.volume.diagnostics`.

        It is 1 whatever the embeddings are where that is the batch's own: the trap.
        """
        Z = torch.cat([upcast_half(za), upcast_half(zb)], 1)
        under = self._likelihood(volume.moments(Z, self.shrinkage))
        far = under.S.quadratic(Z - under.mean).mean() / Z.shape[1]
        return {"mahalanobis": far.item(), **volume.diagnostics(za, zb)}
