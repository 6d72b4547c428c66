"""GMJE on a growing neural gas: islands, how many components there may be, cells in loops, losses, state, runs, collapse."""

import numpy as np
import pytest
import torch
from tests.learn.objectives.common import close, joined
from tests.reference import gmje as slow

from vergence.learn.objectives.gmje_gng import GMJEGNG

B, D = 60, 2


def built(dim=D, **settings):
    return GMJEGNG(dim, **({"max_nodes": 5, "items_per_node": 10, "bank": B} | settings))


def components(objective):
    return int((objective.joint().weights > 0).sum())


@pytest.mark.parametrize("centers", [2, 3, 4])
def test_islands_are_the_planted_clusters(centers):
    za, zb, label = slow.clusters(600, 4, centers)
    objective = built(4, max_nodes=6 * centers, items_per_node=20.0, bank=600, insert_every=300)
    objective.update(za, zb)
    assert int(objective.islands) == centers == objective.diagnostics(za, zb)["islands"]
    r = objective.joint().responsibilities(joined(za, zb))
    shares = torch.stack([r[label == c].sum(0) for c in range(centers)]) / r.sum(0).clamp(min=1e-12)
    assert shares.max(0).values[r.sum(0) > 1].min() > 0.999, "a component lies in one cluster"


@pytest.mark.parametrize(
    ("max_nodes", "items_per_node", "most"), [(5, 10.0, 5), (30, 10.0, 20), (30, 50.0, 4), (30, 1e4, 2), (2, 1.0, 2)]
)
def test_growth_stops(max_nodes, items_per_node, most):
    """At max_nodes, and where a cell would have too few pairs; a gas has at least two units."""
    objective, (za, zb) = built(max_nodes=max_nodes, items_per_node=items_per_node, bank=200), slow.pair(200, D)
    objective.update(za, zb)
    assert components(objective) <= most and components(objective) > most / 2
    assert len(objective.joint().weights) == max_nodes


def test_growth_goes_on_with_the_bank():
    objective = built(max_nodes=20, items_per_node=10.0, bank=400)
    result = []
    for seed in range(8):
        objective.update(*slow.pair(50, D, seed))
        result.append(components(objective))
    assert result[0] <= 5 and result[1] > result[0] and result[-1] > result[1]


def test_without_em_components_are_the_units_cells():
    """Weights, means and covariances of the pairs that are nearest to a unit in standardized units."""
    objective, (za, zb) = built(steps=0, floor=0.2), slow.pair(B, D)
    Z = joined(za * torch.tensor([1.0, 100.0]), zb)
    objective.update(Z[:, :D], Z[:, D:])
    X = ((Z - Z.mean(0)) / Z.std(0, correction=0)).numpy()
    nodes = objective._grown(X).nodes
    cells = {}
    for n, x in enumerate(X):
        cells.setdefault(min(range(len(nodes)), key=lambda m: np.square(nodes[m] - x).sum()), []).append(n)
    expected = sorted((len(c) / B, *Z[c].mean(0).tolist()) for c in cells.values())
    mixture = slow.parts(objective.joint())
    close(sorted((w, *m.tolist()) for w, m, _ in mixture), expected)
    for _, m, S in mixture:
        rows = min(cells.values(), key=lambda c: (Z[c].mean(0) - m).norm().item())
        close(S, torch.cov(Z[rows].T, correction=0).reshape(4, 4) + 0.2**2 * torch.eye(4), 1e-8)


def test_a_fit_is_a_function_of_the_pairs_and_of_how_many_came():
    """Whatever the global seed; with other pairs before, the draws are others."""
    za, zb = slow.pair(B, D)

    def density(seed, before):
        torch.manual_seed(seed)
        objective = built(max_nodes=6)
        for _ in range(before):
            objective.update(za, zb)
        return objective.joint().log_prob(joined(za, zb))

    assert torch.equal(density(1, 1), density(2, 1)) and torch.equal(density(1, 2), density(2, 2))
    assert not torch.equal(density(1, 1), density(1, 2))
