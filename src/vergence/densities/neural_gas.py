r"""Growing neural gas: a graph of units that learns the topology of data.

Fritzke, A growing neural gas network learns topologies, NIPS 7, 1995. Units i have a position w_i and an error E_i; edges
between them have an age. For a signal x with the nearest unit s1 and the second nearest s2 (Euclidean), in this order:

    1  every edge of s1 ages by one, and E_s1 += |x - w_s1|^2
    2  w_s1 += eps_b (x - w_s1), and every unit i that shares an edge with s1 moves by w_i += eps_n (x - w_i)
    3  the edge s1-s2 gets age 0, and is created if there is none
    4  edges older than max_age are removed, and then units without edges
    5  after every insert_every-th signal, if there are fewer than max_nodes units: with q the unit of the largest error and f
       that of the largest error among the neighbors of q, a unit r is inserted at w_r = (w_q + w_f) / 2; edges q-r and r-f of
       age 0 replace q-f; E_q *= alpha, E_f *= alpha, and then E_r = E_q
    6  E_i *= decay for all units

This follows the paper of 1995: squared distances in step 1, E_r = E_q in step 5 (the version of 1997 takes the mean of E_q and
E_f), and a factor in step 6 (that of 1997 subtracts a share, equivalent with decay = 1 - beta). Ties go to the older unit.

Shapes: N items, D features, M units, E edges.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from sklearn.metrics import pairwise_distances_argmin

from vergence.utils.checks import expect, require_array, require_count, require_within

__all__ = ["NeuralGas", "nearest_node"]

BLOCK = 1 << 12  # signals sampled at a time


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralGas:
    """A graph that grows over items; the objective ``gmje_gng`` turns its units into components.

    Signals are processed one at a time: a second call of `grow` continues where the first one stopped. After so many ``signals``
    it has 2 + ``insertions`` - ``removals`` units.

    Args:
        max_nodes: Maximum number of units, >= 2.
        insert_every: Signals between two insertions, >= 1.
        eps_b: Step size of the nearest unit, in (0, 1].
        eps_n: Step size of its neighbors in the graph, in [0, 1].
        alpha: Factor on the errors of the two units between which one is inserted, in [0, 1].
        max_age: Maximum age of an edge, in signals, >= 1.
        decay: Factor on all errors at every signal, in (0, 1].

    Example:
        >>> x = np.random.default_rng(0).uniform(size=(1000, 2))
        >>> x[:500] += 5  # two squares
        >>> gas = NeuralGas(max_nodes=20).grow(x, 5000, torch.Generator().manual_seed(0))
        >>> gas.nodes.shape, int(gas.components().max()) + 1
        ((20, 2), 2)
    """

    max_nodes: int = 100
    insert_every: int = 100
    eps_b: float = 0.2
    eps_n: float = 0.006
    alpha: float = 0.5
    max_age: int = 50
    decay: float = 0.995

    def __post_init__(self) -> None:
        require_count(2, max_nodes=self.max_nodes)
        require_count(1, insert_every=self.insert_every)
        require_within("[1, inf)", max_age=self.max_age)
        require_within("(0, 1]", eps_b=self.eps_b, decay=self.decay)
        require_within("[0, 1]", eps_n=self.eps_n, alpha=self.alpha)
        self.signals = self.insertions = self.removals = 0
        self._origin = np.empty(0)  # (D,) subtracted from all positions, so that distances lose no digits to an offset
        self._w = np.empty((0, 0))  # (M, D)
        self._half = np.empty(0)  # (M,) |w|^2 / 2
        self.errors: np.ndarray = np.empty(0)  # E, (M,)
        self.ages: np.ndarray = np.empty((0, 0), dtype=np.int32)  # of edges, (M, M), symmetric, -1 where there is none

    @property
    def nodes(self) -> np.ndarray:
        """Positions w, (M, D), the oldest unit first."""
        return self._w + self._origin

    def components(self) -> np.ndarray:
        """Returns the connected component of each unit, (M,), numbered from 0 in the order of their oldest units."""
        label: np.ndarray = connected_components(self.ages >= 0, directed=False)[1]
        return label

    def grow(self, X: Any, signals: int, generator: torch.Generator | None = None) -> "NeuralGas":
        """Adapts the graph to so many signals, sampled from items (N, D) with replacement; returns the graph.

        The first call places two units at two of the items. The generator is on the CPU.
        """
        X = np.asarray(X, dtype=np.float64)
        require_array("items", X, "N", self._w.shape[1] or "D")
        require_count(0, signals=signals)
        if not len(self._w):
            expect(len(X) >= 2, "at least 2 items", len(X))
            self._first_units(X[torch.randperm(len(X), generator=generator)[:2].numpy()], X.mean(0))
        for start in range(0, signals, BLOCK):
            self._adapt(X[torch.randint(len(X), (min(BLOCK, signals - start),), generator=generator).numpy()])
        return self

    def _first_units(self, pair: np.ndarray, origin: np.ndarray) -> None:
        self._origin, self._w = origin, pair - origin
        self._halves = np.full(pair.shape[1], 0.5)  # a product with it is faster than a sum
        self._half = (self._w * self._w).dot(self._halves)
        self.errors = np.zeros(2)
        self.ages = np.full((2, 2), -1, dtype=np.int32)

    def _adapt(self, x: np.ndarray) -> None:
        for signal in x - self._origin:
            self._step(signal)
            self.signals += 1
            if self.signals % self.insert_every == 0 and len(self._w) < self.max_nodes:
                self._insert()
            self.errors *= self.decay

    def _step(self, x: np.ndarray) -> None:
        """Adapts to one signal: steps 1 to 4."""
        w, age = self._w, self.ages
        far = self._half - w.dot(x)  # (|w - x|^2 - |x|^2) / 2
        s1 = far.argmin()
        far[s1] = np.inf
        s2 = far.argmin()
        ages = age[s1]
        linked = (ages >= 0).nonzero()[0]
        aged = ages[linked] + 1
        ages[linked] = age[:, s1][linked] = aged
        delta = x - w[s1]
        self.errors[s1] += delta.dot(delta)
        self._place(s1, w[s1] + self.eps_b * delta)
        near = w.take(linked, 0)
        near *= 1 - self.eps_n
        near += self.eps_n * x
        self._place(linked, near)
        ages[s2] = age[s2, s1] = 0
        if len(aged) and aged[aged.argmax()] > self.max_age:
            self._prune(s1)

    def _place(self, i: Any, w: np.ndarray) -> None:
        """Moves units to w and recomputes their norms, so that rounding does not accumulate."""
        self._w[i] = w
        self._half[i] = (w * w).dot(self._halves)

    def _prune(self, s1: np.intp) -> None:
        """Removes the edges of s1 that are too old, and units that have no edge left."""
        old = (self.ages[s1] > self.max_age).nonzero()[0]
        self.ages[s1, old] = self.ages[old, s1] = -1
        alone = old[(self.ages[old] < 0).all(1)]
        if len(alone):
            rest = np.delete(np.arange(len(self._w)), alone)
            self._w, self._half, self.errors = self._w[rest], self._half[rest], self.errors[rest]
            self.ages = self.ages[np.ix_(rest, rest)]
            self.removals += len(alone)

    def _insert(self) -> None:
        """Inserts a unit between q and f: step 5."""
        q = self.errors.argmax()
        f = np.where(self.ages[q] >= 0, self.errors, -np.inf).argmax()
        r = len(self._w)
        w = 0.5 * (self._w[q] + self._w[f])
        self.errors[[q, f]] *= self.alpha
        self._w = np.concatenate([self._w, w[None]])
        self._half = np.append(self._half, 0.5 * (w @ w))
        self.errors = np.append(self.errors, self.errors[q])
        self.ages = np.pad(self.ages, (0, 1), constant_values=-1)
        self.ages[q, f] = self.ages[f, q] = -1
        self.ages[r, [q, f]] = self.ages[[q, f], r] = 0
        self.insertions += 1


def nearest_node(nodes: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Returns the index (N,) of the node (M, D) nearest to each item (N, D)."""
    origin = nodes.mean(0)  # without it distances would lose digits
    return np.asarray(pairwise_distances_argmin(X - origin, nodes - origin))
