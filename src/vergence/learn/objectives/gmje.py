r"""Gaussian-mixture joint embeddings with prototypes (2026), arXiv:2603.26799, from its abstract and captions.

    p(Z) = sum_k pi_k N(Z; mu_k, Sigma_k),  Z = [z_a; z_b]                             K global prototypes
    p(z_b | z_a) = sum_k gamma_k N(z_b; mu_bk + A_k (z_a - mu_ak), C_k)                A_k = Sigma_bak Sigma_aak^{-1}
    gamma_k proportional to pi_k N(z_a; mu_ak, Sigma_aak),   C_k = Sigma_bbk - A_k Sigma_abk

The paper names learnable global parameters under two symmetric encoders; how it fits them, and how it prevents the encoders from
collapsing, is not known to us. With encoders that learn, the likelihood of any mixture grows without bound as embeddings shrink
(and with a floor under the covariances is highest for constant embeddings). By default the encoders therefore maximize the mutual
information of the views under the mixture, whose parameters are constants in this term, while the prototypes maximize the
likelihood of detached embeddings:

    mi    -mean log p(z_a, z_b) / (p(z_a) p(z_b))
    kl    eta (KL_a + KL_b),   KL = KL(N(batch of a view) || N(0, I))
    fit   -mean log p(sg z_a, sg z_b), for prototypes that are learned by gradient

The first term has the sign of contrastive learning, -log joint + log marginals; with one component of the batch's moments it is
the default of `gje`. `parts.information.PairLoss` has other losses, for study.

Prototypes are learned by ``gradient`` with the encoder, or by online ``em`` on detached embeddings after each step. A floor
under their standard deviations prevents embeddings from shrinking onto them.

Shapes: B pairs, D features, K prototypes. Terms: means over pairs, sums over features, in nats.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from vergence.densities.gaussian import MixtureOfGaussians
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics
from vergence.learn.objectives.parts.information import MixtureLoss, PairLoss
from vergence.learn.objectives.parts.prototypes import CovarianceForm, OnlineMixture, Prototypes, rank_of
from vergence.utils.checks import expect, require_choice

__all__ = ["GMJE"]

EM_UP_TO = 256  # features of pairs up to which fit="auto" means em


class GMJE(ConditionalObjective):
    """Gaussian-mixture joint embedding with K prototypes.

    Args:
        dim: Features D of the embeddings.
        blocks: Names of the V >= 2 parts of D features that the mixture is over, with full covariances of more than two.
        components: Number of prototypes K.
        loss: ``mi_kl``, see above; or ``entropy_kl``, ``joint_kl``, ``naive``: `parts.information.PairLoss`, also for eta, beta,
            and shrinkage.
        fit: How the prototypes are fitted: ``em`` (full covariances, cost of order K (2 D)^2), ``gradient``, or ``auto``:
            em up to 2 D = 256 features, but not with low-rank covariances.
        eta: Weight of the KL, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a prototype in any direction, > 0, and < 1 with ``gradient``; embeddings have about 1.
        covariance: With ``gradient``: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Rank of low-rank covariances.
        momentum: Weight m of the past in the statistics of ``em``, in [0, 1).
        shrinkage: Shrinkage of the batch's covariances, in [0, 1]; None estimates it.

    Example:
        >>> gmje = GMJE(4, components=3)
        >>> sorted(gmje(torch.randn(64, 4), torch.randn(64, 4)))
        ['kl', 'mi']
        >>> gmje.conditional(torch.randn(5, 4)).mode.shape
        torch.Size([5, 4])
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(32,))

    def __init__(
        self,
        dim: int,
        blocks: Sequence[str] = ("context", "target"),
        *,
        components: int = 10,
        loss: MixtureLoss = "mi_kl",
        fit: Literal["auto", "em", "gradient"] = "auto",
        eta: float = 1.0,
        beta: float = 2.0,
        floor: float = 0.3,
        covariance: CovarianceForm = "auto",
        rank: int = 8,
        momentum: float = 0.95,
        shrinkage: float | None = None,
    ) -> None:
        super().__init__()
        require_choice("fit", fit, ("auto", "em", "gradient"))
        if fit == "em" and covariance == "low_rank":
            raise ValueError("expected full covariances with `fit='em'`, found low_rank; set `fit='gradient'`, or use gmje_em")
        self.dim, self.loss = dim, PairLoss(loss, eta, beta, shrinkage)
        self.blocks, features = tuple(blocks), len(blocks) * dim
        by_em = fit == "em" or (fit == "auto" and covariance != "low_rank" and features <= EM_UP_TO)
        r = rank_of(covariance, rank, features)
        expect(len(blocks) == 2 or by_em or r is None, "full covariance of several blocks", "low rank", "set `covariance='full'`")
        self.prototypes: Prototypes | OnlineMixture = (
            OnlineMixture(features, components, floor=floor, momentum=momentum)
            if by_em
            else Prototypes(features, components, rank=r, floor=floor)
        )

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``mi``, ``kl`` and ``fit``, or those of another `PairLoss`."""
        return self.terms(dict(zip(self.blocks, (za, zb), strict=False)))

    def terms(self, z: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the loss's terms for two or more blocks; see `ConditionalObjective.terms`."""
        p, views = self.density(tuple(z)), tuple(z.values())
        if self.loss.kind != "mi_kl" or isinstance(self.prototypes, OnlineMixture):  # whose density has no gradient
            return self.loss(p, *views)
        with torch.no_grad():
            constant = self.density(tuple(z))
        return {**self.loss(constant, *views), "fit": -p.log_prob(torch.cat(views, 1).detach()).mean()}

    @property
    def needs_update(self) -> bool:
        """Whether the prototypes are fitted by online EM."""
        return isinstance(self.prototypes, OnlineMixture)

    def update(self, za: Tensor, zb: Tensor, *others: Tensor) -> None:
        """Runs a step of online EM on the pairs where the prototypes are fitted by it."""
        if isinstance(self.prototypes, OnlineMixture):
            self.prototypes.update(torch.cat([za, zb, *others], 1))

    def joint(self) -> MixtureOfGaussians:
        """Returns the density over [z_a; z_b] that the prototypes define."""
        return self.prototypes.density(context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the fit of the mixture, the use of its components, and the spread of the embeddings."""
        return diagnostics.mixture(self.density(self.blocks[:2]), za, zb)
