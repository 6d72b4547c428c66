r"""Gaussian Joint Embeddings (2026), arXiv:2603.26799, from its abstract and captions: the losses are derived here.

Joint density   p(Z) = N(mu, Sigma) over Z = [z_a; z_b]
Conditional     p(z_b | z_a) = N(mu_b + A (z_a - mu_a), Sigma_bb - A Sigma_ab),  A = Sigma_ba Sigma_aa^{-1}

The trace trap: with Sigma = S, the batch's own covariance, tr(S^{-1} S) is constant, so the likelihood is 1/2 log |S|, which is
lowest for a collapsed encoder; and any likelihood alone falls by log a per feature when embeddings shrink by a. Regularization of
the batch's Gaussians prevents that. With KL = KL(N(batch) || N(0, I)) of a view and H = 1/2 log |2 pi e S| its entropy:

    mi_kl (default)   joint nll - H(a) - H(b) + eta (KL_a + KL_b): mean variance 1 at rest for every eta
    conditional_kl    conditional nll, mean of both directions, + beta (KL_a + KL_b): 1 - 1 / (2 beta) at rest
    joint_kl          joint nll + beta (KL_a + KL_b): 1 - 1 / beta at rest, a collapse for beta <= 1
    naive             joint nll: the trap, for study

With the batch's covariance, nll - H(a) - H(b) is minus the views' mutual information. The likelihood may also be taken under a
moving average or learned parameters, which alone do not prevent collapse; entropies and KL are always the batch's.

Of V > 2 blocks, such as modalities, Z = [z_a; z_b; z_c; ...]: nll less all entropies is the total correlation, the KL a sum over
blocks, and p(z_b | z_a, z_c) a block of the same Gaussian.

Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import BatchMoments, MovingMoments, batch_moments
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics, information
from vergence.learn.objectives.parts.information import alone, kl_views, less_entropies
from vergence.learn.objectives.parts.prototypes import Prototypes, rank_of
from vergence.utils.checks import require_choice
from vergence.utils.linalg import upcast_half

__all__ = ["GJE"]

LOSSES = ("mi_kl", "joint_kl", "conditional_kl", "naive")
FLOOR = 1e-2  # least standard deviation of a learned covariance


class GJE(ConditionalObjective):
    """Gaussian joint embedding: one Gaussian over both views' embeddings.

    Args:
        dim: Features D of the embeddings.
        blocks: Names of the V >= 2 parts of D features that the Gaussian is over.
        loss: ``mi_kl``, ``joint_kl``, ``conditional_kl`` or ``naive``, see above.
        eta: Weight of the KL in ``mi_kl``, > 0.
        beta: Weight of the KL in ``joint_kl`` (> 1) and ``conditional_kl`` (> 1/2); the encoder collapses at or below these.
        likelihood: Gaussian under which the likelihood is taken: ``batch``, ``ema`` (moving averages), or ``learned``.
        covariance: Structure of a learned covariance: ``full``, or ``low_rank`` for many features (`LowRank.of_sums`).
        rank: Rank of ``low_rank``: directions that the features share.
        stop_gradient: Whether the batch's covariance is a constant in the likelihood (does not prevent collapse; for study).
        shrinkage: Shrinkage of batch covariances toward a multiple of I, in [0, 1]; None estimates it, more for small batches.
        momentum: Weight m of the past in the moving averages that define the density after training, in [0, 1).

    Example:
        >>> gje = GJE(4)
        >>> sorted(gje(torch.randn(64, 4), torch.randn(64, 4))), gje.conditional(torch.randn(3, 4)).event_shape
        (['kl', 'mi'], torch.Size([4]))
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(64,))

    def __init__(
        self,
        dim: int,
        blocks: Sequence[str] = ("context", "target"),
        *,
        loss: Literal["mi_kl", "joint_kl", "conditional_kl", "naive"] = "mi_kl",
        eta: float = 0.5,
        beta: float = 2.0,
        likelihood: Literal["batch", "ema", "learned"] = "batch",
        covariance: Literal["full", "low_rank"] = "full",
        rank: int = 8,
        stop_gradient: bool = False,
        shrinkage: float | None = None,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        information.require_settings(loss, LOSSES, eta=eta, beta=beta, shrinkage=shrinkage)
        require_choice("likelihood", likelihood, ("batch", "ema", "learned"))
        low_rank = likelihood == "learned" and len(blocks) == 2
        require_choice("covariance", covariance, ("full", "low_rank") if low_rank else ("full",))
        self.blocks, features = tuple(blocks), len(blocks) * dim
        self.dim, self.loss, self.eta, self.beta, self.shrinkage = dim, loss, float(eta), float(beta), shrinkage
        self.likelihood, self.stop_gradient = likelihood, stop_gradient
        self.moving = MovingMoments(features, momentum=momentum, shrinkage=shrinkage)
        r = rank_of(covariance, rank, features)
        self.prototype = Prototypes.single(features, rank=r, floor=FLOOR) if likelihood == "learned" else None

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``nll`` or ``mi``, and ``kl``."""
        return self.terms(dict(zip(self.blocks, (za, zb), strict=False)))

    def terms(self, z: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the loss's terms for two or more blocks; see `ConditionalObjective.terms`."""
        views = tuple(z.values())
        if self.loss != "naive" or self.likelihood == "batch":
            information.require_spread(*views)
        Z = torch.cat(views, 1)
        m = batch_moments(Z, self.shrinkage)
        moments = [m.block(slice(i, i + self.dim)) for i in range(0, Z.shape[1], self.dim)]
        p = self._likelihood(m, tuple(z))
        nll = -p.log_prob(Z).mean()
        match self.loss:
            case "mi_kl":
                return {"mi": less_entropies(nll, moments), "kl": self.eta * kl_views(*moments)}
            case "conditional_kl":
                marginals = -alone(p, *Z.split(self.dim, 1)).mean()
                return {"nll": nll - marginals / len(views), "kl": self.beta * kl_views(*moments)}
            case "joint_kl":
                return {"nll": nll, "kl": self.beta * kl_views(*moments)}
            case _:  # naive
                return {"nll": nll}

    def _likelihood(self, m: BatchMoments, names: tuple[str, ...]) -> JointGaussian:
        """Returns the Gaussian under which the likelihood is taken, for the batch's moments."""
        if self.likelihood == "batch":
            S = (m.S.detach() if self.stop_gradient else m.S).double()  # the determinants are computed in float64, too
            return JointGaussian(m.mean, Dense(torch.linalg.cholesky_ex(S)[0].to(m.S)), context=self.dim)
        joint: JointGaussian = self.density(names)
        return joint

    def update(self, za: Tensor, zb: Tensor, *others: Tensor) -> None:
        """Updates the moving averages of mean and covariance with the embeddings of all blocks."""
        self.moving.update(torch.cat([za, zb, *others], 1))

    def joint(self) -> JointGaussian:
        """Returns the density over all blocks, [z_a; z_b]: that of the learned parameters, or of the moving averages."""
        if self.prototype is None:
            return self.moving.density(context=self.dim)
        return self.prototype.component(0, context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the Mahalanobis distance under the likelihood's Gaussian (under the batch's own always 1), and the spread."""
        Z = torch.cat([upcast_half(za), upcast_half(zb)], 1)
        p = self._likelihood(batch_moments(Z, self.shrinkage), self.blocks[:2])
        return {"mahalanobis": diagnostics.mahalanobis(p, Z), **diagnostics.collapse(za, zb)}
