"""Anomalous groups: planted clusters are found with all their members, and Gaussian data has none."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform

from vergence.images import clusters as groups
from vergence.images.clusters import anomalous_clusters
from vergence.utils.neighbors import nearest_others


def cloud(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def test_separations_are_those_of_single_linkage(monkeypatch):
    """Heights and sizes against scipy's linkage of all mutual reachability distances, with the full graph."""
    x = cloud(40, 3)
    monkeypatch.setattr(groups, "NEIGHBORS", 39)
    clusters = groups._clusters(x, 20)[0]
    d = squareform(pdist(x.double().numpy()))
    core = np.sort(d, 1)[:, 4]
    reach = np.maximum(np.maximum(core[:, None], core[None]), d)
    Z = linkage(squareform(reach - np.diag(np.diag(reach)), checks=False), "single")
    members, expected = {i: [i] for i in range(40)}, {}
    for new, (a, b, height, _) in enumerate(Z, 40):
        for part in (int(a), int(b)):
            if 5 <= len(members[part]) <= 20:
                expected[tuple(sorted(members[part]))] = np.log(height) - np.log(core[members[part]]).mean()
        members[new] = members[int(a)] + members[int(b)]
    found = {tuple(cluster.members().tolist()): cluster.separation for cluster in clusters}
    shared = [key for key in expected if key in found]  # equal heights may be joined in another order
    assert len(shared) > 0.8 * len(expected) > 3
    np.testing.assert_allclose([found[key] for key in shared], [expected[key] for key in shared], atol=1e-4)


def test_neighbors_equal_all_distances():
    x = cloud(200, 5) + 1000  # far from the origin: no cancellation
    distance, index = nearest_others(x, 6)
    table = squareform(pdist(x.double().numpy()))
    np.fill_diagonal(table, np.inf)
    np.testing.assert_allclose(distance.numpy(), np.sort(table, 1)[:, :6], rtol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(table, index.numpy(), 1), distance.numpy(), rtol=1e-3)


@pytest.mark.parametrize("d", [pytest.param(2, marks=pytest.mark.slow), 8, 64])
def test_none_in_gaussian_data(d):
    """In at most 5 of 100 runs, of which the binomial law allows 10."""
    found = [bool(anomalous_clusters(cloud(200, d, seed), random_state=seed)) for seed in range({2: 15, 8: 100, 64: 30}[d])]
    assert sum(found) <= {2: 3, 8: 10, 64: 5}[d]


@pytest.mark.parametrize(("n", "cluster", "d"), [(3000, 60, 32), (400, 8, 8), (400, 6, 2)])
def test_a_planted_cluster_is_found(n, cluster, d):
    x = cloud(n, d)
    x[:cluster] = 0.3 * x[:cluster] + (4 if d > 2 else 12)
    (group,) = anomalous_clusters(x)
    assert sorted(group.members.tolist()) == list(range(cluster)) and group.p_value < 1e-3 and group.distance > 1.5
    own = x[:cluster].double()
    assert group.members[0] == int(torch.cdist(own, own).sum(1).argmin())


def test_several_heaps_and_no_scattered_items():
    x = cloud(1000, 12)
    x[:20], x[20:50] = 0.3 * x[:20] + 3, 0.3 * x[20:50] - 3
    x[50:60] *= 6  # scattered anomalies are no group
    groups = anomalous_clusters(x)
    assert sorted(sorted(group.members.tolist()) for group in groups) == [list(range(20)), list(range(20, 50))]


def test_a_heap_without_edges_to_the_rest_and_equal_items():
    """Fifteen neighbors are all inside a cluster of twenty; duplicates have distance zero."""
    x = cloud(500, 8)
    x[:20] = x[0] + 8
    (group,) = anomalous_clusters(x)
    assert sorted(group.members.tolist()) == list(range(20)) and np.isfinite(group.separation)
    x[:20] = 0.3 * cloud(500, 8)[:20] + 8
    (group,) = anomalous_clusters(x)
    core = nearest_others(x[:20], 4)[0][:, 3]
    assert group.separation == pytest.approx(float(torch.cdist(x[:20], x[20:]).min() / core.log().mean().exp()), rel=1e-3)


def test_order_and_unit_do_not_matter():
    x = cloud(600, 8)
    x[:12] = 0.3 * x[:12] + 3
    order = torch.randperm(600, generator=torch.Generator().manual_seed(1))
    (a,), (b,) = anomalous_clusters(x), anomalous_clusters(1e-4 * x[order].numpy())
    assert sorted(order[torch.from_numpy(b.members)].tolist()) == sorted(a.members.tolist())
    assert a.separation == pytest.approx(b.separation, rel=1e-3)


def test_large_clusters_are_no_anomalies():
    x = cloud(600, 8)
    x[:200] += 12
    assert anomalous_clusters(x) == [] == anomalous_clusters(torch.zeros(300, 4))
