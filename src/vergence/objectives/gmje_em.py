r"""Gaussian-mixture joint embeddings by EM (2026), arXiv:2603.26799: encoder steps and EM on a bank take turns.

    p(Z) = sum_k pi_k N(Z; mu_k, Sigma_k),  Z = [z_a; z_b]
    the encoder lowers -mean log p(z_a, z_b) / (p(z_a) p(z_b)) + eta (KL_a + KL_b),  KL = KL(N(batch of a view) || N(0, I))

with the mixture as a constant. Refitted on the batch that it scores, a mixture would be in the trap of `gje`: right after an M
step the weighted Mahalanobis distances of every component add up to 2 D N_k, whatever the embeddings are. So EM reads a bank of
the last M detached pairs: from the mixture that it left, and from a new partition by k-means; the likelier end is kept.

Of the source only EM on fixed data is known; the alternation, the bank and what pays for volume are derived here (losses as in
`gmje`: ``naive`` collapses).

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vergence.densities import em
from vergence.densities.em import starts
from vergence.densities.gaussian import GaussianMixture
from vergence.objectives.core import MixtureLoss, MixtureObjective
from vergence.objectives.parts.prototypes import CovarianceForm, MixtureBank, rank_of

__all__ = ["GMJEEM"]


class GMJEEM(MixtureObjective):
    """Gaussian-mixture joint embedding; EM on a bank of detached pairs fits the mixture.

    Args:
        dim: Features D of the embeddings.
        components: K.
        loss: ``mi_kl``, ``entropy_kl``, ``joint_kl`` or ``naive``: see `core.MixtureObjective`.
        eta: Weight of the KL in the first two, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a component in any direction, > 0; embeddings have about 1.
        covariance: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Of low-rank covariances.
        bank: M, pairs that EM reads, at least 2 K.
        steps: EM steps of a fit, >= 1; a fit follows every M pairs, and more often at first.
        shrinkage: Of the batch's covariances in H and KL, in [0, 1]; None estimates it.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> gmje = GMJEEM(4, components=2)
        >>> za, zb = torch.randn(2, 64, 4)
        >>> sorted(gmje(za, zb))
        ['kl', 'mi']
        >>> gmje.update(za, zb)
        >>> gmje.conditional(za).weights.shape
        torch.Size([64, 2])
    """

    def __init__(
        self,
        dim: int,
        *,
        components: int = 10,
        loss: MixtureLoss = "mi_kl",
        eta: float = 1.0,
        beta: float = 2.0,
        floor: float = 0.3,
        covariance: CovarianceForm = "auto",
        rank: int = 8,
        bank: int = 4096,
        steps: int = 5,
        shrinkage: float | None = None,
    ) -> None:
        super().__init__(dim, loss=loss, eta=eta, beta=beta, shrinkage=shrinkage)
        if steps < 1:
            raise ValueError(f"expected steps of at least 1, found {steps}")
        self.steps = steps
        r = rank_of(covariance, rank, 2 * dim)
        self.bank = MixtureBank(2 * dim, bank, components, rank=r, floor=floor)
        self.components = components

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Puts the pairs into the bank, and fits the mixture to it when that is due."""
        if self.bank.push(torch.cat([za, zb], 1)):
            begun = self.bank.seen > len(za)
            self.bank.fit(*([self.bank.mixture()] if begun else []), self._start(), steps=self.steps)

    def _start(self) -> em.Mixture:
        """Returns the mixture of a partition of the bank by k-means; of as many components as there are items for."""
        data = self.bank.data()
        K = min(self.components, max(1, len(data.X) // 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of equal embeddings there are fewer clusters: so be it
            r = starts.initial_responsibilities(data, K, 1, "kmeans", 0)
        return self.bank.start(r)

    def joint(self) -> GaussianMixture:
        """Returns the density over [z_a; z_b] that the last fit left."""
        return self.bank.density(context=self.dim)
