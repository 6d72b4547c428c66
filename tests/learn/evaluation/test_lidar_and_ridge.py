"""LiDAR next to a slow reference, its limits; the ridge probe next to scikit-learn's solution at one penalty."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from vergence.learn.evaluation.accuracy import linear_probe, ridge_probe
from vergence.learn.evaluation.collapse import lidar


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


def test_the_ridge_probe_is_scikit_learns_and_near_the_logistic_one():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=600)
    x = rng.normal(size=(600, 10)) + 1.5 * np.eye(10)[y]
    parts = [torch.from_numpy(part) for part in (x[:400], y[:400], x[400:], y[400:])]
    mean, sd = x[:400].mean(0), x[:400].std(0)
    model = RidgeClassifier(alpha=0.01 * 10).fit((x[:400] - mean) / sd, y[:400])
    expected = model.score((x[400:] - mean) / sd, y[400:])
    assert ridge_probe(*parts, penalty=0.01)["accuracy"] == pytest.approx(expected)
    wide = [torch.cat([parts[0], torch.zeros(400, 500)], 1), parts[1], torch.cat([parts[2], torch.zeros(200, 500)], 1), parts[3]]
    assert ridge_probe(*wide, penalty=0.01 * 10 / 510) == ridge_probe(*parts, penalty=0.01)  # more features than items
    assert abs(ridge_probe(*parts)["accuracy"] - linear_probe(*parts)["accuracy"]) < 0.05
    with pytest.raises(ValueError, match="penalty"):
        ridge_probe(*parts, penalty=0.0)
    with pytest.raises(ValueError, match="at least 2 classes"):
        ridge_probe(parts[0], torch.zeros(400, dtype=torch.long), parts[2], parts[3])
