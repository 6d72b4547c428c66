r"""A mixture on the nodes of a growing neural gas: prototypes along the ridges of the data, as many as growth makes.

Growing neural gas (`densities.neural_gas`; Fritzke 1995) spreads a graph of K nodes over the pairs Z = [context; target] in
standardized units. Each node k has the items nearest to it, its cell of n_k items, and becomes a Gaussian:

    pi_k = (n_k + 1e-3) / sum_j (n_j + 1e-3),   mu_k = mean of the cell,   S_k = covariance of the cell + reg_covar I

A node with an empty cell keeps its place and gets s^2 I + reg_covar I, with s^2 = (mean of |Z - w|^2 over items and their
nearest nodes w) / D; with covariance = "isotropic" all nodes do, for isotropic mixtures too can approach any density. A few EM
steps then fit the mixture to the items; a component without items is set on the one that is explained worst (`densities.em`).
arXiv 2603.26799 names such prototypes and no more: how they become a density is this library's choice. The graph also says which
nodes hang together: its connected components are clusters.
"""

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.densities import em
from vergence.densities.covariance import Dense
from vergence.densities.gaussian import GaussianMixture
from vergence.densities.neural_gas import NeuralGas, nearest_node
from vergence.mixtures.core import Conditional, Scale, seed_of
from vergence.utils.devices import as_device
from vergence.utils.terminal import late_bar

__all__ = ["GrowingNeuralGas"]

CHUNK = 1 << 12  # signals between two looks at the clock


class GrowingNeuralGas(Conditional):
    """p(target | context) of a Gaussian mixture on the nodes of a growing neural gas.

    Without a target, use `densities.neural_gas.NeuralGas`, which is the graph alone. The order of the items does not matter.

    Args:
        max_nodes: Nodes to stop growing at, >= 2; fewer where `items_per_node` says so.
        items_per_node: Growth stops at N / items_per_node nodes, but not below 2, so that cells determine their covariances;
            None takes 5 (C + T).
        signals: Items drawn to grow on, >= 1; None takes 2 insert_every for each node, half of which the last node sees.
        covariance: "local" or "isotropic", see above.
        polish: EM steps afterwards, >= 0; they free all covariances, 0 leaves them as ``covariance`` says.
        reg_covar: Added to the variance of each standardized feature of each node, > 0.
        insert_every: Signals between two insertions, >= 1.
        eps_b: Step of the nearest node, in (0, 1].
        eps_n: Step of those that share an edge with it, in [0, 1].
        alpha: Factor on the errors of the two nodes that another is put between, in [0, 1].
        max_age: Age that an edge may have, >= 1.
        decay: Factor on all errors at every signal, in (0, 1].
        device: Where to compute the mixture, as torch names it; growth is on the CPU.
        random_state: Seed of growth and of `sample`.

    Attributes:
        nodes_: (K, C + T), context first, in data units.
        edges_: (E, 2), pairs of nodes.
        ages_: (E,).
        node_components_: (K,), the connected component of each node, from 0.
        n_components_: How many there are.
        labels_: (N,), the component of each training item's nearest node.
        weights_: (K,).
        means_: (K, C + T).
        covariances_: (K, C + T, C + T).
        n_features_in_: C.
        n_targets_: T.

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

    def __init__(
        self,
        *,
        max_nodes: int = 100,
        items_per_node: float | None = None,
        signals: int | None = None,
        covariance: str = "local",
        polish: int = 20,
        reg_covar: float = 1e-4,
        insert_every: int = 100,
        eps_b: float = 0.2,
        eps_n: float = 0.006,
        alpha: float = 0.5,
        max_age: int = 50,
        decay: float = 0.995,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.max_nodes = max_nodes
        self.items_per_node = items_per_node
        self.signals = signals
        self.covariance = covariance
        self.polish = polish
        self.reg_covar = reg_covar
        self.insert_every = insert_every
        self.eps_b = eps_b
        self.eps_n = eps_n
        self.alpha = alpha
        self.max_age = max_age
        self.decay = decay
        self.device = device
        self.random_state = random_state

    def _fit(self, c: Tensor, t: Tensor) -> None:
        self._check()
        Z = torch.cat([c, t], 1)
        scale = Scale.of(Z)
        X = scale.to(Z)
        gas = self._grow(X.cpu().numpy())
        nearest = nearest_node(gas.nodes, X.cpu().numpy())
        self._keep_graph(gas, scale, nearest)
        start = _mixture(X, torch.from_numpy(gas.nodes).to(X), torch.from_numpy(nearest), self.covariance, self.reg_covar)
        with late_bar("EM", self.polish, "iterations") as advance:
            weights, means, covariances = em.refine(
                X, *start, steps=self.polish, reg_covar=self.reg_covar, progress=lambda _: advance(1)
            )
        self._keep_mixture(scale.back(GaussianMixture(weights.log(), means, covariances)))

    def _check(self) -> None:
        if self.covariance not in ("local", "isotropic"):
            raise ValueError(f"expected covariance 'local' or 'isotropic', found {self.covariance!r}")
        if self.items_per_node is not None and not self.items_per_node > 0:
            raise ValueError(f"expected items_per_node above 0 or None, found {self.items_per_node}")
        if self.signals is not None and self.signals < 1:
            raise ValueError(f"expected signals of at least 1 or None, found {self.signals}")
        if self.polish < 0:
            raise ValueError(f"expected polish of at least 0 EM steps, found {self.polish}")
        if not self.reg_covar > 0:
            raise ValueError(f"expected reg_covar > 0, found {self.reg_covar}: a cell of one item has no spread of its own")

    def _gas(self, N: int, D: int) -> NeuralGas:
        """Returns the graph before growth, with the settings and the limit on nodes."""
        names = ("insert_every", "eps_b", "eps_n", "alpha", "max_age", "decay")
        NeuralGas(max_nodes=self.max_nodes)  # refuses what is below 2
        most = int(N / (self.items_per_node or 5 * D))
        return NeuralGas(max_nodes=max(2, min(self.max_nodes, most)), **{name: getattr(self, name) for name in names})

    def _grow(self, X: np.ndarray) -> NeuralGas:
        """Returns the graph grown on the items in an order of their own, so that theirs does not matter."""
        gas = self._gas(*X.shape)
        left = total = self.signals or 2 * gas.insert_every * gas.max_nodes
        X, generator = X[np.lexsort(X.T[::-1])], torch.Generator().manual_seed(seed_of(self.random_state))
        with late_bar("growing", total, "signals") as advance:
            while left:
                left -= (n := min(CHUNK, left))
                gas.grow(X, n, generator)
                advance(n)
        return gas

    def _keep_graph(self, gas: NeuralGas, scale: Scale, nearest: np.ndarray) -> None:
        self.center_, self.scale_ = scale.mean.numpy(), scale.std.numpy()
        self.nodes_ = gas.nodes * self.scale_ + self.center_
        self.edges_ = gas.edges
        self.ages_ = gas.ages[tuple(gas.edges.T)]
        self.node_components_ = gas.components()
        self.n_components_ = int(self.node_components_.max()) + 1
        self.labels_ = self.node_components_[nearest]

    def _keep_mixture(self, p: GaussianMixture) -> None:
        parts = p.component_distribution
        self.weights_ = p.weights.cpu().numpy()
        self.means_ = parts.mean.cpu().numpy()
        self.covariances_ = parts.covariance.cpu().numpy()
        self.cholesky_ = parts.S.L.cpu().numpy()  # type: ignore[attr-defined]

    def joint(self) -> GaussianMixture:
        """Returns the density over [context; target]."""
        check_is_fitted(self)
        arrays = (self.weights_, self.means_, self.cholesky_)
        weights, means, L = (torch.from_numpy(v).to(as_device(self.device)) for v in arrays)
        return GaussianMixture(weights.log(), means, Dense(L), context=self.n_features_in_)

    def _conditional(self, c: Tensor) -> GaussianMixture:
        return self.joint().conditional(c)

    def _width(self) -> int:
        return self.means_.size

    def predict_component(self, context: Any, target: Any) -> np.ndarray:
        """Returns the connected component of the node nearest to each pair, (N,), as `labels_` has it of training items."""
        check_is_fitted(self)
        Z = torch.cat(self._read(context, target, reset=False), 1).cpu().numpy()
        nodes, X = ((v - self.center_) / self.scale_ for v in (self.nodes_, Z))
        found: np.ndarray = self.node_components_[nearest_node(nodes, X)]
        return found


def _mixture(X: Tensor, nodes: Tensor, nearest: Tensor, covariance: str, reg: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mixture that a graph starts: weights (K,), means (K, D), covariances (K, D, D)."""
    K, D = nodes.shape
    counts = nearest.bincount(minlength=K)
    weights = (counts.to(X) + 1e-3) / (len(X) + 1e-3 * K)
    cells = X[nearest.argsort(stable=True)].split(counts.tolist())
    means = torch.stack([cell.mean(0) if len(cell) else node for cell, node in zip(cells, nodes, strict=True)])
    isotropic = (X - nodes[nearest]).square().mean() * torch.eye(D).to(X)
    local = covariance == "local"
    S = torch.stack([cell.T.cov(correction=0).reshape(D, D) if local and len(cell) else isotropic for cell in cells])
    return weights, means, S + reg * torch.eye(D).to(X)
