"""Odd groups: small islands of the neighbor graph, whose members hide each other from a score by neighbors.

Shapes: N items, D features, k neighbors.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.densities.moments import leading
from vergence.detection.parts.kinds import features_of
from vergence.utils.checks import require_at_least, require_count, require_within
from vergence.utils.neighbors import nearest_others

__all__ = ["Group", "odd_groups"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
EULER = 0.5772156649015329
SHARE = 2 / 3  # of neighbors that are members, for an item to join
SIMULATIONS = 40
SIMULATED = 1000  # items of a simulation


@dataclass(frozen=True)
class Group:
    """A small group of items that lies apart; see `odd_groups`.

    Attributes:
        members: Indices of the items, (g,) int64, the medoid first, then by their distance to it.
        separation: Distance to the nearest item outside, relative to the members' distances to their neighbors; 1 in a cloud
            without gaps.
        p_value: Probability that Gaussian items of the same covariance have a group so separate.
        distance: Mahalanobis distance of the group's mean to the mean of the rest under the rest's covariance, divided by
            sqrt(D): about 1 for a single typical item.
    """

    members: Ints
    separation: float
    p_value: float
    distance: float

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def medoid(self) -> int:
        """The member with the least sum of distances to the others."""
        return int(self.members[0])

    def __str__(self) -> str:
        """Returns the group in one sentence."""
        return (
            f"{self.size} items like item {self.medoid} form a group of their own: {self.separation:.2f} times as far from all "
            f"others as from each other (p = {self.p_value:.2g})"
        )


def odd_groups(
    features: Any,
    *,
    smallest: int = 5,
    largest: float = 0.05,
    neighbors: int = 15,
    separation: float = 1.2,
    directions: int | None = 16,
    alpha: float = 0.05,
    random_state: int = 0,
) -> list[Group]:
    r"""Returns small groups of items that are near each other and far from all others, the most separate first.

    1. Single linkage by mutual reachability, max(c_i, c_j, |x_i - x_j|) with c the distance to the ``smallest - 1``-th
    neighbor (as in
       HDBSCAN: Campello, Moulavi, Sander, Density-based clustering based on hierarchical density estimates, 2013).
    2. The separation of a cluster is the height at which it joins the rest, divided by the geometric mean of its members' c.
    3. Its p-value compares it with the largest separation in simulated Gaussian items of the same covariance (a Gumbel law
    fitted to
       40 simulations of up to 1,000 items). Clusters with p <= alpha and at least the stated separation are kept, the
       most separate of nested ones. The lower bound is needed since clouds with dense centers, as most real ones, reach 1.10.
    4. A cluster grows by neighbors of its members, at least two thirds of whose own neighbors are members.

    Args:
        features: (N, D), an array or tensor; on the tensor's device. Distances are Euclidean: use features of one unit.
        smallest: Fewest members, 2 to ``neighbors``; larger clusters only. Near-duplicates in pairs are not groups.
        largest: Most members, as a share of the items in (0, 0.5].
        neighbors: Neighbors k of the graph.
        separation: Least separation, >= 1.
        directions: Principal directions that distances are computed in, which have the largest variances; None for all. In many
            directions all distances are alike: of 60 digits among 3,000 photographs, 16 directions of the pixels show all, 64
            show 20, 256 none.
        alpha: Probability of any group in Gaussian items.
        random_state: Seed of the simulations.

    Raises:
        ValueError: Features are not a finite matrix, or there are too few items.

    Example:
        >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
        >>> odd_groups(x)
        []
        >>> x[:10] = 0.3 * x[:10] + 3
        >>> [sorted(group.members.tolist()) for group in odd_groups(x)]
        [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    """
    x = features_of("features", features)
    require_count(2, smallest=smallest, neighbors=neighbors)
    require_count(0, random_state=random_state)
    require_within("(0, 0.5]", largest=largest)
    require_within("(0, 1)", alpha=alpha)
    require_at_least(1.0, separation=separation)
    if directions is not None:
        require_count(1, directions=directions)
    most = int(largest * len(x))
    if not smallest <= neighbors < len(x) or most < smallest:
        raise ValueError(
            f"expected smallest <= neighbors < N and at most {largest:g} N >= smallest, found smallest {smallest}, neighbors "
            f"{neighbors}, N {len(x)}: pass more items or lower them"
        )
    given = x
    x = leading(x - x.mean(0), directions)
    x = x / x.square().mean().sqrt().clamp(min=torch.finfo(x.dtype).tiny)
    distance, index = nearest_others(x, neighbors)
    tree = _tree(x, distance.cpu().numpy(), index.cpu().numpy(), smallest, most)
    # Only what exceeds the lower bound can be reported; most clean folders need no simulation.
    if not (tree.separation >= math.log(separation)).any():
        return []
    p = _p_values(tree.separation, x, smallest, largest, neighbors, random_state)
    kept = _most_separate(tree, (p <= alpha) & (tree.separation >= math.log(separation)))
    grown = [_grow(tree.members(node), index.cpu().numpy(), most) for node in kept]
    found = [(math.exp(tree.separation[node]), float(p[node]), members) for node, members in zip(kept, grown, strict=True)]
    return _described(given, x, sorted(found, key=lambda group: -group[0]))


@dataclass(frozen=True)
class _Tree:
    """Single linkage. Nodes 0..N-1 are items, later ones are merges.

    Attributes:
        children: (nodes, 2), -1 for items.
        parent: (nodes,), -1 for roots.
        separation: (nodes,), log; -inf for nodes that are no candidates.
    """

    children: Ints
    parent: Ints
    separation: Floats

    def members(self, node: int) -> Ints:
        """Returns the items below a node."""
        stack, found = [node], []
        while stack:
            a = stack.pop()
            if self.children[a, 0] < 0:
                found.append(a)
            else:
                stack += self.children[a].tolist()
        return np.sort(np.array(found))


def _tree(x: Tensor, distance: Floats, index: Ints, smallest: int, most: int) -> _Tree:
    """Returns the linkage of the neighbor graph and the separation of each cluster of ``smallest`` to ``most`` items."""
    core = np.maximum(distance[:, smallest - 2], 1e-6 * max(float(np.median(distance)), 1e-300)).astype(np.float64)
    rows, columns, heights = _minimum_spanning_tree(core, distance, index)
    n = len(core)
    nodes = n + len(heights)
    children, parent = np.full((nodes, 2), -1), np.full(nodes, -1)
    size, log_core = np.ones(nodes, np.int64), np.concatenate([np.log(core), np.zeros(len(heights))])
    top = list(range(nodes))  # the node that an item belongs to so far, with path halving

    def find(a: int) -> int:
        while top[a] != a:
            top[a] = top[top[a]]
            a = top[a]
        return a

    for new, (i, j) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True), n):
        a, b = find(i), find(j)
        children[new], parent[a], parent[b] = (a, b), new, new
        top[a] = top[b] = new
        size[new], log_core[new] = size[a] + size[b], log_core[a] + log_core[b]
    tree = _Tree(children, parent, np.full(nodes, -np.inf))
    candidate = (size >= smallest) & (size <= most)
    joined = candidate & (parent >= 0)
    tree.separation[joined] = np.log(heights[parent[joined] - n]) - log_core[joined] / size[joined]
    for node in np.flatnonzero(candidate & (parent < 0)):
        tree.separation[node] = _gap(x, tree.members(int(node)), core) - log_core[node] / size[node]
    return tree


def _minimum_spanning_tree(core: Floats, distance: Floats, index: Ints) -> tuple[Ints, Ints, Floats]:
    """Returns the edges of the minimum spanning forest of the neighbor graph by mutual reachability, the shortest first."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree

    n, k = index.shape
    row, column = np.repeat(np.arange(n), k), index.ravel()
    reach = np.maximum(np.maximum(core[row], core[column]), distance.ravel())
    graph = coo_matrix((reach, (row, column)), shape=(n, n)).tocsr()
    found = minimum_spanning_tree(graph.maximum(graph.T)).tocoo()
    order = np.argsort(found.data, kind="stable")
    return found.row[order], found.col[order], found.data[order]


def _gap(x: Tensor, members: Ints, core: Floats) -> float:
    """Returns the log of the height at which a component without edges to the rest would join it."""
    inside = torch.zeros(len(x), dtype=torch.bool)
    inside[torch.from_numpy(members)] = True
    inside = inside.to(x.device)
    nearest = min(float(torch.cdist(part, x[~inside]).min()) for part in x[inside].split(64))
    return math.log(max(nearest, float(core[members].min())))


def _p_values(separation: Floats, x: Tensor, smallest: int, largest: float, neighbors: int, random_state: int) -> Floats:
    """Returns P(largest separation of Gaussian items >= each one), by a Gumbel law for the maxima of simulations."""
    n = max(min(len(x), SIMULATED), neighbors + 1, math.ceil(smallest / largest))
    deviations = torch.linalg.eigvalsh(torch.cov(x.T.double()).reshape(x.shape[1], -1)).clamp(min=0).sqrt().to(x)
    random = torch.Generator().manual_seed(random_state)
    maxima = []
    for _ in range(SIMULATIONS):
        z = torch.randn(n, x.shape[1], generator=random, dtype=x.dtype).to(x.device) * deviations
        distance, index = nearest_others(z, neighbors)
        tree = _tree(z, distance.cpu().numpy(), index.cpu().numpy(), smallest, int(largest * n))
        finite = tree.separation[np.isfinite(tree.separation)]
        maxima.append(finite.max() if len(finite) else 0.0)
    scale = max(float(np.std(maxima, ddof=1)) * math.sqrt(6) / math.pi, 1e-9)
    location = float(np.mean(maxima)) - EULER * scale + scale * math.log(len(x) / n)  # more items, more clusters to choose from
    return -np.expm1(-np.exp(-np.maximum((separation - location) / scale, -30.0)))


def _most_separate(tree: _Tree, kept: npt.NDArray[np.bool_]) -> list[int]:
    """Returns the most separate of the kept nodes, then the most separate of those that share no item with it, and so on."""
    taken = np.zeros(len(tree.parent), bool)
    found: list[int] = []
    for node in np.flatnonzero(kept)[np.argsort(-tree.separation[kept], kind="stable")].tolist():
        members = tree.members(node)
        if not taken[members].any():
            taken[members] = True
            found.append(node)
    return found


def _grow(members: Ints, index: Ints, most: int) -> Ints:
    """Adds neighbors of members, at least two thirds of whose own neighbors are members, while there are at most ``most``."""
    inside = np.zeros(len(index), bool)
    inside[members] = True
    for _ in range(len(index)):
        near = np.zeros(len(index), bool)
        near[index[inside]] = True  # an item that only looks at the group from afar does not belong to it
        more = inside | (near & (inside[index].mean(1) >= SHARE))
        if more.sum() > most or (more == inside).all():
            break
        inside = more
    return np.flatnonzero(inside)


def _described(given: Tensor, x: Tensor, found: list[tuple[float, float, Ints]]) -> list[Group]:
    """Returns the groups; one that shares half of its items with a more separate one is merged into it."""
    merged: list[tuple[float, float, Ints]] = []
    for separation, p, members in found:
        for i, (other, q, before) in enumerate(merged):
            if len(np.intersect1d(members, before)) * 2 >= min(len(members), len(before)):
                merged[i] = (other, q, np.union1d(before, members))
                break
        else:
            merged.append((separation, p, members))
    return [Group(_by_medoid(given, m), s, p, _distance(x, m)) for s, p, m in merged]


def _by_medoid(x: Tensor, members: Ints) -> Ints:
    own = x[torch.from_numpy(members).to(x.device)].double()
    table = torch.cdist(own, own)
    order = table[table.sum(1).argmin()].argsort(stable=True)
    return np.asarray(members[order.cpu().numpy()])


def _distance(x: Tensor, members: Ints) -> float:
    """Returns the Mahalanobis distance of the members' mean under the rest, divided by sqrt(D)."""
    inside = torch.zeros(len(x), dtype=torch.bool)
    inside[torch.from_numpy(members)] = True
    inside = inside.to(x.device)
    rest, own = x[~inside], x[inside].double().mean(0)
    mean = rest.double().mean(0)
    S = torch.cov(rest.T.double()).reshape(x.shape[1], -1)
    S = S + (1e-6 * S.diagonal().mean()).clamp(min=torch.finfo(S.dtype).tiny) * torch.eye(len(S), dtype=S.dtype, device=S.device)
    difference = own - mean
    return math.sqrt(float(difference @ torch.linalg.solve(S, difference)) / x.shape[1])
