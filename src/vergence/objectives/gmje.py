r"""Gaussian-mixture joint embeddings with prototypes (2026), arXiv:2603.26799, from its abstract and captions.

    p(Z) = sum_k pi_k N(Z; mu_k, Sigma_k),  Z = [z_a; z_b]                             K global prototypes
    p(z_b | z_a) = sum_k gamma_k N(z_b; mu_bk + A_k (z_a - mu_ak), C_k)                A_k = Sigma_bak Sigma_aak^{-1}
    gamma_k proportional to pi_k N(z_a; mu_ak, Sigma_aak),   C_k = Sigma_bbk - A_k Sigma_abk

The source names learnable global parameters under two symmetric encoders; how they are fitted and what keeps the encoders from
collapsing is not known to us. With encoders that learn, the likelihood of any mixture grows without bound as everything shrinks
(and with a floor under the covariances is highest for constant embeddings), so the default pays for volume: the encoders maximize
the mutual information of the views under the mixture as it stands,

    mi_kl (default)   -mean log p(z_a, z_b) / (p(z_a) p(z_b)) + eta (KL_a + KL_b),   KL = KL(N(batch of a view) || N(0, I))

while the prototypes maximize the likelihood. That is contrastive learning's sign, -log joint + log marginal; with one component
of the batch's moments it is `gje`'s default. Other losses, for study, are in `core.MixtureObjective`.

Prototypes are learned by ``gradient`` with the encoder, or by stepwise ``em`` on detached embeddings after each step. A floor
under their deviations stops embeddings from shrinking onto them.

Shapes: B pairs, D features, K prototypes. Terms: means over pairs, sums over features, in nats.
"""

from typing import Literal

import torch
from torch import Tensor

from vergence.densities.gaussian import GaussianMixture
from vergence.objectives.core import MixtureLoss, MixtureObjective
from vergence.objectives.parts.prototypes import CovarianceForm, MovingMixture, Prototypes, rank_of

__all__ = ["GMJE"]

EM_UP_TO = 256  # features of pairs


class GMJE(MixtureObjective):
    """Gaussian-mixture joint embedding with K prototypes.

    Args:
        dim: Features D of the embeddings.
        components: K.
        loss: ``mi_kl``, ``entropy_kl``, ``joint_kl`` or ``naive``: see `core.MixtureObjective`.
        fit: How the prototypes are fitted: ``em`` (full covariances, cost of order K (2 D)^2), ``gradient``, or ``auto``:
            em up to 2 D = 256 features, but not with low-rank covariances.
        eta: Weight of the KL in the first two, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a prototype in any direction, in (0, 1); embeddings have about 1.
        covariance: With ``gradient``: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Of low-rank covariances.
        rate: How far a batch moves the sums of ``em``, in (0, 1].
        shrinkage: Of the batch's covariances in H and KL, in [0, 1]; None estimates it.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> gmje = GMJE(4, components=3)
        >>> sorted(gmje(torch.randn(64, 4), torch.randn(64, 4)))
        ['kl', 'mi']
        >>> gmje.conditional(torch.randn(5, 4)).mode.shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        dim: int,
        *,
        components: int = 10,
        loss: MixtureLoss = "mi_kl",
        fit: Literal["auto", "em", "gradient"] = "auto",
        eta: float = 1.0,
        beta: float = 2.0,
        floor: float = 0.3,
        covariance: CovarianceForm = "auto",
        rank: int = 8,
        rate: float = 0.05,
        shrinkage: float | None = None,
    ) -> None:
        super().__init__(dim, loss=loss, eta=eta, beta=beta, shrinkage=shrinkage)
        if fit not in ("auto", "em", "gradient"):
            raise ValueError(f"expected fit auto, em or gradient, found {fit!r}")
        if fit == "em" and covariance == "low_rank":
            raise ValueError("expected full covariances with fit em, found low_rank; take fit=gradient, or gmje_em")
        by_em = fit == "em" or (fit == "auto" and covariance != "low_rank" and 2 * dim <= EM_UP_TO)
        r = rank_of(covariance, rank, 2 * dim)
        self.prototypes: Prototypes | MovingMixture = (
            MovingMixture(2 * dim, components, floor=floor, rate=rate)
            if by_em
            else Prototypes(2 * dim, components, rank=r, floor=floor)
        )

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Takes a step of EM on the pairs where the prototypes are learned by it."""
        if isinstance(self.prototypes, MovingMixture):
            self.prototypes.update(torch.cat([za, zb], 1))

    def joint(self) -> GaussianMixture:
        """Returns the density over [z_a; z_b] that the prototypes make."""
        return self.prototypes.density(context=self.dim)
