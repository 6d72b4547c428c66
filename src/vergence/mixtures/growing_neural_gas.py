r"""A Gaussian mixture on the nodes of a growing neural gas: prototypes along the ridges of the data; growth sets their number.

Growing neural gas (`densities.neural_gas`; Fritzke, A Growing Neural Gas Network Learns Topologies, 1995) spreads a graph of K
nodes over the pairs Z = [context; target] in standardized units. The n_k items nearest to node k are its cell, and the node
becomes a Gaussian:

    pi_k = (n_k + 1e-3) / sum_j (n_j + 1e-3),   mu_k = mean of the cell,   S_k = covariance of the cell + reg_covar I

A node with an empty cell keeps its position as mean and gets the covariance s^2 I + reg_covar I, with s^2 = (mean of |Z - w|^2
over items and their nearest nodes w) / D. A few EM steps then fit the mixture to the items (`densities.em`). arXiv 2603.26799
names such prototypes without details; how they become a density is this library's choice. An item of weight w counts as w items.
The connected components of the graph are clusters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.em import fit as em
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.densities.neural_gas import NeuralGas, nearest_node
from vergence.mixtures.core import Conditional, Scale, shared_seed
from vergence.utils.checks import require_count, require_within
from vergence.utils.terminal import bar

__all__ = ["GrowingNeuralGas"]

CHUNK = 1 << 12  # signals between two updates of the progress bar


@dataclass(eq=False, repr=False, kw_only=True)
class GrowingNeuralGas(Conditional):
    """p(target | context) of a Gaussian mixture on the nodes of a growing neural gas.

    Without a target, use `densities.neural_gas.NeuralGas`, which has only the graph. The result does not depend on the order of
    the items.

    Args:
        max_nodes: Maximum number of nodes, >= 2.
        items_per_node: Items per node, > 0: growth also stops at N / items_per_node nodes, though not below 2, so that cells
            determine their covariances; None takes 5 (C + T).
        signals: Items sampled for growth, >= 1; None takes 2 insert_every for each node, half of them after the last insertion.
        polish: EM steps after growth, >= 0.
        reg_covar: Regularization added to the variance of each standardized feature of each node, > 0.
        insert_every: Signals between two insertions, >= 1.
        eps_b: Step size of the nearest node, in (0, 1].
        eps_n: Step size of its neighbors in the graph, in [0, 1].
        alpha: Factor on the errors of the two nodes between which a node is inserted, in [0, 1].
        max_age: Maximum age of an edge, in signals, >= 1.
        decay: Factor on all errors at every signal, in (0, 1].
        device: Where to compute the mixture, as torch names it; growth is on the CPU.
        random_state: Seed of growth and of `sample`.

    Attributes:
        nodes_: (K, C + T), context first, in data units.
        edges_, ages_: Pairs of nodes (E, 2), and their ages (E,).
        node_components_: (K,), the connected component of each node, from 0.
        n_components_: Number of connected components.
        labels_: (M,), the component of the node nearest to each of the M different training items, which are in their order;
            those that are equal by chance are up to 5 items.
        weights_, means_, covariances_: The mixture, (K,), (K, C + T) and (K, C + T, C + T).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, side = rng.uniform(-1, 1, 2000), rng.choice([-1.0, 1.0], 2000)
        >>> model = GrowingNeuralGas(max_nodes=20, random_state=0).fit(x[:, None], side + 0.1 * rng.normal(size=2000))
        >>> model.n_components_, model.conditional([[0.5]]).variance.round(decimals=1).item()
        (2, 1.0)
        >>> bool(model.score([[0.5]], [1.0]) > model.score([[0.5]], [0.0]) + 10)
        True
    """

    max_nodes: int = 100
    items_per_node: float | None = None
    signals: int | None = None
    polish: int = 20
    reg_covar: float = 1e-4
    insert_every: int = 100
    eps_b: float = 0.2
    eps_n: float = 0.006
    alpha: float = 0.5
    max_age: int = 50
    decay: float = 0.995

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        if self.items_per_node is not None:
            require_within("(0, inf)", items_per_node=self.items_per_node)
        if self.signals is not None:
            require_count(1, signals=self.signals)
        require_count(0, polish=self.polish)
        require_within("(0, inf)", reg_covar=self.reg_covar)  # a cell of one item has no covariance of its own
        Z = torch.cat([c, t], 1)
        scale = Scale.of(Z, w)
        X = scale.to(Z)
        gas = self._grow(X.cpu().numpy(), None if w is None else w.cpu().numpy())
        nearest = nearest_node(gas.nodes, X.cpu().numpy())
        self.center_, self.scale_ = scale.mean.numpy(), scale.std.numpy()
        self.nodes_ = gas.nodes * self.scale_ + self.center_
        self.edges_, self.ages_ = gas.edges, gas.ages[tuple(gas.edges.T)]
        self.node_components_ = gas.components()
        self.n_components_ = int(self.node_components_.max()) + 1
        self.labels_ = self.node_components_[nearest]
        one, nodes = X.new_ones(len(X)) if w is None else w, torch.from_numpy(gas.nodes).to(X)
        start = _mixture(X, one, nodes, torch.from_numpy(nearest), self.reg_covar)
        weights, means, covariances = em.refine(X, *start, steps=self.polish, reg_covar=self.reg_covar, w=w)
        fitted = scale.back(MixtureOfGaussians(weights.log(), means, covariances))
        parts = fitted.component_distribution
        arrays = (fitted.weights, parts.mean, parts.covariance, parts.S.L)
        self.weights_, self.means_, self.covariances_, self.cholesky_ = (v.cpu().numpy() for v in arrays)

    def _grow(self, X: np.ndarray, w: np.ndarray | None) -> NeuralGas:
        """Returns the graph grown on the sorted items of weights (N,), so that their order does not matter."""
        require_count(2, max_nodes=self.max_nodes)
        limit = min(len(X), int((len(X) if w is None else w.sum()) / (self.items_per_node or 5 * X.shape[1])))
        names = ("insert_every", "eps_b", "eps_n", "alpha", "max_age", "decay")
        gas = NeuralGas(max_nodes=max(2, min(self.max_nodes, limit)), **{name: getattr(self, name) for name in names})
        left = total = self.signals or 2 * gas.insert_every * gas.max_nodes
        order = np.lexsort(X.T[::-1])
        X, w = X[order], None if w is None else w[order]
        generator = torch.Generator().manual_seed(shared_seed(self.random_state, self.device))
        with bar("growing", total, "signals", late=True) as advance:
            while left:
                left -= (n := min(CHUNK, left))
                gas.grow(X, n, generator, w)
                advance(n)
        return gas

    def joint(self) -> MixtureOfGaussians:
        """Returns the density over [context; target]."""
        check_is_fitted(self)
        weights, means, L = self._tensors(self.weights_, self.means_, self.cholesky_)
        return MixtureOfGaussians(weights.log(), means, Dense(L), context=self.n_features_in_)


def _mixture(X: Tensor, w: Tensor, nodes: Tensor, nearest: Tensor, reg: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mixture on the nodes of a graph before EM: weights (K,), means (K, D), covariances (K, D, D)."""
    (K, D), nearest = nodes.shape, nearest.to(X.device)
    n = w.new_zeros(K).index_add(0, nearest, w)
    share, empty = (w / n[nearest])[:, None], (n == 0)[:, None]
    means = torch.where(empty, nodes, torch.zeros_like(nodes).index_add(0, nearest, share * X))
    d = X - means[nearest]
    S = X.new_zeros(K, D, D).index_add(0, nearest, share[..., None] * d[..., None] * d[:, None])
    spherical = (w @ (X - nodes[nearest]).square().mean(1)) / w.sum() * torch.eye(D).to(X)
    S = torch.where(empty[..., None], spherical, S)
    return (n + 1e-3) / (w.sum() + 1e-3 * K), means, S + reg * torch.eye(D).to(X)
