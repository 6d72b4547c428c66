"""How well features recognize another view of the same item, and LiDAR, next to slow references and at their limits."""

import numpy as np
import pytest
import torch
from experiments.advice.criteria import lidar, rank_error
from torch.nn import functional as F


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference(a, b):
    """Counts pairs in loops."""
    shares = []
    for i in range(len(a)):
        similar = [float(F.cosine_similarity(a[i], b[j], dim=0)) for j in range(len(b))]
        others = [s for j, s in enumerate(similar) if j != i]
        shares.append(sum(1.0 if s > similar[i] else 0.5 if s == similar[i] else 0.0 for s in others) / len(others))
    return sum(shares) / len(shares)


def test_the_rank_error_equals_loops():
    a = seeded(12, 5)
    b = a + seeded(12, 5, seed=1)
    assert rank_error(a, b) == pytest.approx(reference(a, b), abs=1e-12)


def test_ties_count_half():
    a, b = torch.eye(4)[[0, 0, 1, 2]], torch.eye(4)[[0, 0, 1, 3]]
    assert rank_error(a, b) == pytest.approx((1 / 6 + 1 / 6 + 0 + 1 / 2) / 4) == pytest.approx(reference(a, b))


@pytest.mark.parametrize("n", [100, 1000])
def test_features_that_know_nothing_have_an_error_of_a_half_whatever_their_number(n):
    assert rank_error(seeded(n, 8), seeded(n, 8, seed=1)) == pytest.approx(0.5, abs=0.05)
    assert rank_error(torch.ones(n, 8), torch.ones(n, 8)) == 0.5


def test_features_that_are_not_finite_recognize_nothing():
    a = seeded(50, 4)
    assert rank_error(a, a) == 0 and rank_error(a * torch.nan, a) == 1 and rank_error(a.numpy(), a.numpy()) == 0


def test_an_item_that_is_not_finite_charges_itself_alone():
    a = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    b = a.clone()
    b[0] = torch.nan
    assert rank_error(a, b) == pytest.approx(1 / 6)


def slow(views: np.ndarray, delta: float) -> float:
    """LiDAR by loops, float64."""
    N, q, D = views.shape
    z = (views - views.reshape(-1, D).mean(0)) / np.sqrt(views.reshape(-1, D).var(0, ddof=1).mean())
    means = z.mean(1)
    W = delta * np.eye(D)
    for item, mean in zip(z, means, strict=True):
        for view in item:
            W += np.outer(view - mean, view - mean) / (N * (q - 1))
    values, vectors = np.linalg.eigh(W)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    c = means - means.mean(0)
    B = sum(np.outer(row, row) for row in c) / N
    lam = np.linalg.eigvalsh(root @ B @ root).clip(0)
    p = lam / lam.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def test_lidar_is_that_of_a_slow_reference():
    rng = np.random.default_rng(0)
    items = rng.normal(size=(30, 1, 6)) * [5, 3, 2, 1, 0.5, 0.1]
    views = items + rng.normal(size=(30, 4, 6)) * rng.uniform(0.1, 2, 6)
    assert lidar(torch.from_numpy(views)) == pytest.approx(slow(views, 1e-4), rel=1e-6)


def test_lidar_counts_directions_that_tell_items_apart_whatever_the_unit():
    generator = torch.Generator().manual_seed(0)
    items = torch.randn(500, 1, 8, generator=generator) * (torch.arange(8) < 3)
    views = items + 0.05 * torch.randn(500, 4, 8, generator=generator)
    assert 2.9 < lidar(views) < 3.3
    assert lidar(1000 * views) == pytest.approx(lidar(views), rel=1e-6)
    assert lidar(torch.ones(5, 3, 4)) == 0.0
    with pytest.raises(ValueError, match="views"):
        lidar(torch.randn(5, 4))
