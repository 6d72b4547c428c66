r"""Gaussian-mixture joint embeddings by EM (2026), arXiv:2603.26799: encoder steps alternate with EM on a bank.

Density and loss (``mi``, ``kl``) are those of `gmje`, with the mixture as a constant.

A mixture refitted on the batch that it scores would fall into the trap of `gje`: right after an M step the weighted Mahalanobis
distances of component k sum to 2 D N_k for any embeddings. EM therefore uses a bank of the last M detached pairs. It starts from
the current mixture and from a new k-means partition, and the result of higher likelihood is kept.

Of the paper only EM on fixed data is known; the alternation, the bank and the regularization are derived here.

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vergence.densities.em import fit as em
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics
from vergence.learn.objectives.parts.information import MixtureLoss, PairLoss
from vergence.learn.objectives.parts.prototypes import CovarianceForm, MixtureBank, rank_of
from vergence.utils.checks import expect, require_count

__all__ = ["GMJEEM"]


class GMJEEM(ConditionalObjective):
    """Gaussian-mixture joint embedding; EM on a bank of detached pairs fits the mixture.

    Args:
        dim: Features D of the embeddings.
        blocks: Names of the V >= 2 parts of D features that the mixture is over, with full covariances of more than two.
        components: Number of components K.
        loss: ``mi_kl``, see above; or ``entropy_kl``, ``joint_kl``, ``naive``: `parts.information.PairLoss`, also for eta, beta,
            and shrinkage.
        eta: Weight of the KL, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a component in any direction, > 0; embeddings have about 1.
        covariance: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Rank of low-rank covariances.
        bank: Number of pairs M in the bank, at least 2 K.
        steps: EM steps per fit, >= 1; a fit follows every M pairs, and more often at first.
        shrinkage: Shrinkage of the batch's covariances, in [0, 1]; None estimates it.

    Example:
        >>> gmje = GMJEEM(4, components=2)
        >>> za, zb = torch.randn(2, 64, 4)
        >>> sorted(gmje(za, zb))
        ['kl', 'mi']
        >>> gmje.update(za, zb)
        >>> gmje.conditional(za).weights.shape
        torch.Size([64, 2])
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(16,))

    def __init__(
        self,
        dim: int,
        blocks: Sequence[str] = ("context", "target"),
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
        super().__init__()
        require_count(1, steps=steps)
        self.dim, self.loss, self.steps = dim, PairLoss(loss, eta, beta, shrinkage), steps
        self.blocks, features = tuple(blocks), len(blocks) * dim
        r = rank_of("full" if covariance == "auto" and len(blocks) > 2 else covariance, rank, features)
        expect(len(blocks) == 2 or r is None, "full covariances of several blocks", "low rank", "set `covariance='full'`")
        self.bank = MixtureBank(features, bank, components, rank=r, floor=floor)
        self.components = components

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``mi`` and ``kl``, or those of another `PairLoss`."""
        return self.terms(dict(zip(self.blocks, (za, zb), strict=False)))

    def terms(self, z: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the loss's terms for two or more blocks; see `ConditionalObjective.terms`."""
        return self.loss(self.density(tuple(z)), *z.values())

    def update(self, za: Tensor, zb: Tensor, *others: Tensor) -> None:
        """Stores the pairs in the bank, and fits the mixture to it when a fit is due."""
        if self.bank.push(torch.cat([za, zb, *others], 1)):
            fitted = self.bank.seen > len(za)
            self.bank.fit(*([self.bank.mixture()] if fitted else []), self._partition(), steps=self.steps)

    def _partition(self) -> em.Mixture:
        """Returns the mixture of a k-means partition of the bank, of at most one component per two items."""
        from sklearn.exceptions import ConvergenceWarning

        data = self.bank.data()
        K = min(self.components, max(1, len(data.X) // 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # equal embeddings give fewer clusters, which is allowed
            r = em.initial_responsibilities(data, K, 1, 0)
        return self.bank.start(r)

    def joint(self) -> MixtureOfGaussians:
        """Returns the density over [z_a; z_b] of the last fit."""
        return self.bank.density(context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the fit of the mixture, the use of its components, and the spread of the embeddings."""
        return diagnostics.mixture(self.density(self.blocks[:2]), za, zb)
