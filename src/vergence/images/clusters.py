"""Anomalous groups: small islands of the neighbor graph, whose members hide each other from a score by neighbors.

Shapes: N items, D features, k neighbors.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.decide.inputs import numeric
from vergence.densities.moments import leading
from vergence.utils.checks import expect, require_count
from vergence.utils.dtypes import Floats, Ints
from vergence.utils.linalg import require_features
from vergence.utils.neighbors import components, nearest_others

__all__ = ["anomalous_clusters"]

EULER = 0.5772156649015329
SMALLEST, NEIGHBORS = 5, 15  # members at least; neighbors of each item in the graph
SEPARATION, ALPHA = 1.2, 0.05  # of a group, at least; probability of any group in Gaussian items
DIRECTIONS = 16  # that distances are computed in, since in many directions all distances are similar
LARGEST = 0.05  # share of the items in one group, at most
SHARE = 2 / 3  # of neighbors that are members, for an item to join
SIMULATIONS = 40
SIMULATED = 1000  # items of a simulation


@dataclass(frozen=True)
class Group:
    """A small group of items that lies apart; see `anomalous_clusters`.

    Attributes:
        members: Indices of the items, (g,), the medoid first, of the least sum of distances, then by their distance to it.
        separation: Distance to the nearest item outside, relative to the members' distances to their neighbors.
        p_value: Probability that Gaussian items of the same covariance have a group so separate.
        distance: Mahalanobis distance of the group's mean to the mean of the rest under the rest's covariance, divided by
            sqrt(D): about 1 for a single normal item.
    """

    members: Ints
    separation: float
    p_value: float
    distance: float


def anomalous_clusters(features: Any, *, random_state: int = 0) -> list[Group]:
    r"""Returns small groups of items that are near each other and far from all others, the most separate first.

    1. Single linkage by mutual reachability, max(c_i, c_j, |x_i - x_j|) with c the distance to the fourth neighbor
       (as in HDBSCAN: Campello, Moulavi, Sander, Density-based clustering based on hierarchical density estimates, 2013).
    2. The separation of a cluster is the height at which it joins the rest, divided by the geometric mean of its members' c.
    3. Its p-value compares it with the largest separation in simulated Gaussian items of the same covariance (a Gumbel law).
       Clusters of at least 5 items with p <= 0.05 and a separation of at least 1.2 are taken, the most separate of nested ones.
       The lower bound is needed since clouds with dense centers, as most real ones, have groups of their own.
    4. A cluster grows by neighbors of its members, at least two thirds of whose own neighbors are members.

    Distances are Euclidean in the 16 directions of largest variance of the features (N, D), which are of one unit. The graph has
    15 neighbors of each item; a group has at most a twentieth of the items. ``random_state`` seeds the simulations.

    Example:
        >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
        >>> anomalous_clusters(x)
        []
        >>> x[:10] = 0.3 * x[:10] + 3
        >>> [sorted(group.members.tolist()) for group in anomalous_clusters(x)]
        [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    """
    z = numeric("features", features)
    x = z if z.dtype == torch.float64 else z.to(torch.float32)
    require_features(features=x)
    require_count(0, random_state=random_state)
    most = int(LARGEST * len(x))
    fits = NEIGHBORS < len(x) and SMALLEST <= most
    expect(fits, f"more than {NEIGHBORS} items, of which a share of {LARGEST:g} are at least {SMALLEST}", len(x))
    given = x
    x = leading(x - x.mean(0), DIRECTIONS)
    x = x / x.square().mean().sqrt().clamp(min=torch.finfo(x.dtype).tiny)
    clusters, index = _clusters(x, most)
    # Only what exceeds the lower bound can be reported; most clean folders need no simulation.
    clusters = [cluster for cluster in clusters if cluster.separation >= math.log(SEPARATION)]
    if not clusters:
        return []
    p = _p_values([cluster.separation for cluster in clusters], x, random_state)
    apart: list[tuple[Ints, float, float]] = []  # members, separation, p-value: the most separate of those that share an item
    taken: set[int] = set()
    for cluster, p_value in sorted(zip(clusters, p, strict=True), key=lambda pair: -pair[0].separation):
        if p_value <= ALPHA and taken.isdisjoint(members := cluster.members().tolist()):
            taken.update(members)
            apart.append((_grow(np.array(members), index, most), math.exp(cluster.separation), p_value))
    return [Group(_by_medoid(given, m), s, p_value, _distance(x, m)) for m, s, p_value in _merged(apart)]


@dataclass(frozen=True)
class _Cluster:
    """A cluster of single linkage, by one of its items."""

    separation: float  # its logarithm
    item: int
    edges: Ints  # (E, 2) of the minimum spanning forest that are shorter than the one that joins it to the rest

    def members(self) -> Ints:
        """Returns its items, ascending."""
        label = components(self.edges, max(self.item, int(self.edges.max())) + 1)
        return np.flatnonzero(label == label[self.item])


def _clusters(x: Tensor, most: int) -> tuple[list[_Cluster], Ints]:
    """Returns the clusters of 5 to ``most`` items of the single linkage of the neighbor graph, and the neighbors (N, k)."""
    from scipy.cluster.hierarchy import DisjointSet

    distance, index = (a.cpu().numpy() for a in nearest_others(x, NEIGHBORS))
    core = np.maximum(distance[:, SMALLEST - 2], 1e-6 * max(float(np.median(distance)), 1e-300)).astype(np.float64)
    edges, heights = _minimum_spanning_forest(core, distance, index)
    joined, log_core, clusters = DisjointSet(range(len(core))), np.log(core), []  # of each set's root the sum of logarithms

    def add(item: int, height: float, step: int) -> None:
        size = joined.subset_size(item)
        if SMALLEST <= size <= most:
            clusters.append(_Cluster(math.log(height) - log_core[joined[item]] / size, item, edges[:step]))

    for step, ((i, j), height) in enumerate(zip(edges.tolist(), heights.tolist(), strict=True)):
        add(i, height, step)
        add(j, height, step)
        total = log_core[joined[i]] + log_core[joined[j]]
        joined.merge(i, j)
        log_core[joined[i]] = total
    for root in {joined[i] for i in range(len(core))}:  # components without edges to the rest, by the gap around them
        if SMALLEST <= joined.subset_size(root) <= most:
            members = np.array(sorted(joined.subset(root)))
            inside = _mask(x, members)
            gap = min(float(torch.cdist(part, x[~inside]).min()) for part in x[inside].split(64))
            add(root, max(gap, float(core[members].min())), len(edges))
    return clusters, index


def _minimum_spanning_forest(core: Floats, distance: Floats, index: Ints) -> tuple[Ints, Floats]:
    """Returns the edges (E, 2) of the minimum spanning forest by mutual reachability and their lengths, the shortest first."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree

    n, k = index.shape
    row, column = np.repeat(np.arange(n), k), index.ravel()
    reach = np.maximum(np.maximum(core[row], core[column]), distance.ravel())
    graph = coo_matrix((reach, (row, column)), shape=(n, n)).tocsr()
    forest = minimum_spanning_tree(graph.maximum(graph.T)).tocoo()
    order = np.argsort(forest.data, kind="stable")
    return np.stack([forest.row, forest.col], 1)[order].astype(np.int64), forest.data[order]


def _mask(x: Tensor, members: Ints) -> Tensor:
    """Returns which items are members, (N,) of bool."""
    return torch.from_numpy(np.isin(np.arange(len(x)), members)).to(x.device)


def _p_values(separation: list[float], x: Tensor, seed: int) -> list[float]:
    """Returns P(largest separation of Gaussian items >= each one), by a Gumbel law for the maxima of simulations."""
    n = max(min(len(x), SIMULATED), NEIGHBORS + 1, math.ceil(SMALLEST / LARGEST))
    deviations = torch.linalg.eigvalsh(torch.cov(x.T.double()).reshape(x.shape[1], -1)).clamp(min=0).sqrt().to(x)
    random = torch.Generator().manual_seed(seed)
    maxima = []
    for _ in range(SIMULATIONS):
        z = torch.randn(n, x.shape[1], generator=random, dtype=x.dtype).to(x.device) * deviations
        maxima.append(max((cluster.separation for cluster in _clusters(z, int(LARGEST * n))[0]), default=0.0))
    scale = max(float(np.std(maxima, ddof=1)) * math.sqrt(6) / math.pi, 1e-9)
    location = float(np.mean(maxima)) - EULER * scale + scale * math.log(len(x) / n)  # more items, more clusters to choose from
    p: list[float] = (-np.expm1(-np.exp(-np.maximum((np.array(separation) - location) / scale, -30.0)))).tolist()
    return p


def _grow(members: Ints, index: Ints, most: int) -> Ints:
    """Adds neighbors of members, at least two thirds of whose own neighbors are members, while there are at most ``most``."""
    inside = np.zeros(len(index), bool)
    inside[members] = True
    for _ in range(len(index)):
        near = np.zeros(len(index), bool)
        near[index[inside]] = True  # an item that only has members among its neighbors does not belong to it
        more = inside | (near & (inside[index].mean(1) >= SHARE))
        if more.sum() > most or (more == inside).all():
            break
        inside = more
    return np.flatnonzero(inside)


def _merged(groups: list[tuple[Ints, float, float]]) -> list[tuple[Ints, float, float]]:
    """Returns the groups; one that shares half of its items with a more separate one is merged into it."""
    merged: list[tuple[Ints, float, float]] = []
    for members, separation, p in groups:
        for i, (before, *_) in enumerate(merged):
            if len(np.intersect1d(members, before)) * 2 >= min(len(members), len(before)):
                merged[i] = (np.union1d(before, members), *merged[i][1:])
                break
        else:
            merged.append((members, separation, p))
    return merged


def _by_medoid(x: Tensor, members: Ints) -> Ints:
    """Returns the members, the medoid first, then by their distance to it."""
    inside = x[torch.from_numpy(members).to(x.device)].double()
    table = torch.cdist(inside, inside)
    order = table[table.sum(1).argmin()].argsort(stable=True)
    return np.asarray(members[order.cpu().numpy()])


def _distance(x: Tensor, members: Ints) -> float:
    """Returns the Mahalanobis distance of the members' mean under the rest, divided by sqrt(D)."""
    inside = _mask(x, members)
    rest = x[~inside].double()
    S = torch.cov(rest.T).reshape(x.shape[1], -1)
    S = S + (1e-6 * S.diagonal().mean()).clamp(min=torch.finfo(S.dtype).tiny) * torch.eye(len(S), dtype=S.dtype, device=S.device)
    difference = x[inside].double().mean(0) - rest.mean(0)
    return math.sqrt(float(difference @ torch.linalg.solve(S, difference)) / x.shape[1])
