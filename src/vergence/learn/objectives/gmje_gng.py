r"""Gaussian-mixture joint embeddings on a growing neural gas (2026), arXiv:2603.26799: encoder steps alternate with growth.

A graph of units grows over a bank of the last M detached pairs Z = [z_a; z_b] in standardized units (`densities.neural_gas`;
B. Fritzke, "A growing neural gas network learns topologies", NIPS 1995). The cell of pairs nearest to a unit becomes a component,
and a few EM steps on the bank follow:

    p(Z) = sum_k pi_k N(Z; mu_k, Sigma_k),   pi_k, mu_k, Sigma_k: share, mean and covariance + s^2 I of a cell

The loss (``mi``, ``kl``) is that of `gmje`, with the mixture as a constant.
Growth determines the number of components, at most max_nodes; it stops where a cell would have too few pairs.

Of the paper only the name of the gas is known, as an adaptive way out of the trap; all else is derived here.

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

import numpy as np
import torch
from torch import Tensor

from vergence.densities.em import fit as em
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.densities.neural_gas import NeuralGas, nearest_node
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics
from vergence.learn.objectives.parts.information import MixtureLoss, PairLoss
from vergence.learn.objectives.parts.prototypes import CovarianceForm, MixtureBank, rank_of
from vergence.utils.checks import require_count, require_within

__all__ = ["GMJEGNG"]


class GMJEGNG(ConditionalObjective):
    """Gaussian-mixture joint embedding; a growing neural gas on a bank of detached pairs places the components.

    Args:
        dim: Features D of the embeddings.
        max_nodes: Largest number of units, >= 2.
        items_per_node: Least number of pairs per unit, > 0, at which growth stops; None takes D, but at least 100.
        insert_every: Samples between two insertions, >= 1; growth takes two such intervals per unit.
        loss: ``mi_kl``, see above; or ``entropy_kl``, ``joint_kl``, ``naive``: `parts.information.PairLoss`, also for eta, beta,
            and shrinkage.
        eta: Weight of the KL, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a component in any direction, > 0; embeddings have about 1.
        covariance: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Rank of low-rank covariances.
        bank: Number of pairs M in the bank, at least 2 max_nodes.
        steps: EM steps after growth, >= 0.
        shrinkage: Shrinkage of the batch's covariances, in [0, 1]; None estimates it.

    Example:
        >>> gmje = GMJEGNG(4, max_nodes=5)
        >>> za, zb = torch.randn(2, 64, 4)
        >>> gmje.update(za, zb)
        >>> int((gmje.joint().weights > 0).sum()) <= 5, sorted(gmje(za, zb))
        (True, ['kl', 'mi'])
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(16,))

    islands: Tensor

    def __init__(
        self,
        dim: int,
        *,
        max_nodes: int = 30,
        items_per_node: float | None = None,
        insert_every: int = 100,
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
        items_per_node = max(100.0, dim) if items_per_node is None else items_per_node
        require_count(0, steps=steps)
        require_within("(0, inf)", items_per_node=items_per_node)
        NeuralGas(max_nodes=max_nodes, insert_every=insert_every)  # raises for settings out of range
        self.dim, self.loss, self.steps = dim, PairLoss(loss, eta, beta, shrinkage), steps
        self.max_nodes, self.items_per_node, self.insert_every = max_nodes, items_per_node, insert_every
        self.bank = MixtureBank(2 * dim, bank, max_nodes, rank=rank_of(covariance, rank, 2 * dim), floor=floor)
        self.register_buffer("islands", torch.ones((), dtype=torch.long))

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``mi`` and ``kl``, or those of another `PairLoss`."""
        return self.loss(self.joint(), za, zb)

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Stores the pairs in the bank, and grows a gas on it when a fit is due."""
        if self.bank.push(torch.cat([za, zb], 1)):
            self.bank.fit(self._cells(), steps=self.steps)

    def _cells(self) -> em.Mixture:
        """Returns the mixture of the cells of a gas grown on the bank, seeded with the number of pairs seen."""
        x = self.bank.items().double()
        X = ((x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-12)).cpu().numpy()
        gas = self._grown(X)
        self.islands.fill_(int(gas.components().max()) + 1)
        nearest = np.unique(nearest_node(gas.nodes, X), return_inverse=True)[1]  # units with empty cells are left out
        r = torch.nn.functional.one_hot(torch.from_numpy(nearest)).T[None].double()
        return self.bank.start(r)

    def _grown(self, X: np.ndarray) -> NeuralGas:
        most = max(2, min(self.max_nodes, int(len(X) / self.items_per_node)))
        gas = NeuralGas(max_nodes=most, insert_every=self.insert_every)
        return gas.grow(X, 2 * self.insert_every * most, torch.Generator().manual_seed(self.bank.seen))

    def joint(self) -> MixtureOfGaussians:
        """Returns the density over [z_a; z_b] of the last fit."""
        return self.bank.density(context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns ``islands``, the number of the graph's connected parts, and the diagnostics of every mixture."""
        return {"islands": float(self.islands), **diagnostics.mixture(self.joint(), za, zb)}
