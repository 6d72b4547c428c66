r"""Gaussian-mixture joint embeddings on a growing neural gas (2026), arXiv:2603.26799: encoder steps and growth take turns.

A graph of units grows over a bank of the last M detached pairs Z = [z_a; z_b] in standardized units (`densities.neural_gas`;
Fritzke 1995). Each unit's cell of nearest pairs becomes a component, and a few EM steps on the bank follow:

    p(Z) = sum_k pi_k N(Z; mu_k, Sigma_k),   pi_k, mu_k, Sigma_k: share, mean and covariance + s^2 I of a cell

The number of components is what growth makes, at most max_nodes; growth stops where a cell would have too few pairs. The encoder
lowers -mean log p(z_a, z_b) / (p(z_a) p(z_b)) + eta (KL_a + KL_b) with the mixture as a constant, as in `gmje_em`.

Of the source only the gas's name is known, as an adaptive remedy of the trap; all else is derived here.

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

import numpy as np
import torch
from torch import Tensor

from vergence.densities import em
from vergence.densities.gaussian import GaussianMixture
from vergence.densities.neural_gas import NeuralGas, nearest_node
from vergence.objectives.core import MixtureLoss, MixtureObjective
from vergence.objectives.parts.prototypes import CovarianceForm, MixtureBank, rank_of

__all__ = ["GMJEGNG"]


class GMJEGNG(MixtureObjective):
    """Gaussian-mixture joint embedding; a growing neural gas on a bank of detached pairs places the components.

    Args:
        dim: Features D of the embeddings.
        max_nodes: Units to stop growing at, >= 2.
        items_per_node: Growth stops at so many pairs a unit, > 0; None takes D, but at least 100.
        insert_every: Signals between two insertions, >= 1; growth takes two such intervals for each unit.
        loss: ``mi_kl``, ``entropy_kl``, ``joint_kl`` or ``naive``: see `core.MixtureObjective`.
        eta: Weight of the KL in the first two, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        floor: Least standard deviation of a component in any direction, > 0; embeddings have about 1.
        covariance: ``full``, ``low_rank``, or ``auto``: full up to 2 D = 64 features.
        rank: Of low-rank covariances.
        bank: M, pairs that the gas grows on, at least 2 max_nodes.
        steps: EM steps after growth, >= 0.
        shrinkage: Of the batch's covariances in H and KL, in [0, 1]; None estimates it.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> gmje = GMJEGNG(4, max_nodes=5)
        >>> za, zb = torch.randn(2, 64, 4)
        >>> gmje.update(za, zb)
        >>> int((gmje.joint().weights > 0).sum()) <= 5, sorted(gmje(za, zb))
        (True, ['kl', 'mi'])
    """

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
        super().__init__(dim, loss=loss, eta=eta, beta=beta, shrinkage=shrinkage)
        items_per_node = max(100.0, dim) if items_per_node is None else items_per_node
        if steps < 0 or not items_per_node > 0:
            raise ValueError(f"expected steps >= 0 and items_per_node > 0, found steps={steps}, items_per_node={items_per_node}")
        NeuralGas(max_nodes=max_nodes, insert_every=insert_every)  # refuses what is out of range
        self.steps = steps
        self.max_nodes, self.items_per_node, self.insert_every = max_nodes, items_per_node, insert_every
        r = rank_of(covariance, rank, 2 * dim)
        self.bank = MixtureBank(2 * dim, bank, max_nodes, rank=r, floor=floor)
        self.register_buffer("islands", torch.ones((), dtype=torch.long))

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Puts the pairs into the bank, and grows a gas on it when that is due."""
        if self.bank.push(torch.cat([za, zb], 1)):
            self.bank.fit(self._start(), steps=self.steps)

    def _start(self) -> em.Mixture:
        """Returns the mixture of the cells of a gas that grows on the bank; the draws follow from how many pairs it has seen."""
        x = self.bank.items().double()
        X = ((x - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-12)).cpu().numpy()
        gas = self._grown(X)
        self.islands.fill_(int(gas.components().max()) + 1)
        nearest = np.unique(nearest_node(gas.nodes, X), return_inverse=True)[1]  # units without a cell are left out
        r = torch.nn.functional.one_hot(torch.from_numpy(nearest)).T[None].double()
        return self.bank.start(r)

    def _grown(self, X: np.ndarray) -> NeuralGas:
        most = max(2, min(self.max_nodes, int(len(X) / self.items_per_node)))
        gas = NeuralGas(max_nodes=most, insert_every=self.insert_every)
        return gas.grow(X, 2 * self.insert_every * most, torch.Generator().manual_seed(self.bank.seen))

    def joint(self) -> GaussianMixture:
        """Returns the density over [z_a; z_b] that the last growth left."""
        return self.bank.density(context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the number of the graph's connected parts, and what every mixture does."""
        return {"islands": float(self.islands), **super().diagnostics(za, zb)}
