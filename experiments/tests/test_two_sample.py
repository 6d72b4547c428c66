"""Distances between clouds: against loops, closed forms and their own limits."""

import math

import pytest
import torch
from experiments.joint.two_sample import maximum_mean_discrepancy, overlap, sliced_wasserstein
from scipy.stats import wasserstein_distance


def clouds(n=40, m=60, d=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g), torch.randn(m, d, generator=g) + 0.5


def test_mmd_is_its_double_sum():
    x, y = clouds(7, 9)

    def k(a, b):
        return math.exp(-float((a - b).square().sum()) / (2 * 1.3**2))

    xx = sum(k(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j) / (7 * 6)
    yy = sum(k(a, b) for i, a in enumerate(y) for j, b in enumerate(y) if i != j) / (9 * 8)
    xy = sum(k(a, b) for a in x for b in y) / 63
    assert maximum_mean_discrepancy(x, y, 1.3) == pytest.approx(xx + yy - 2 * xy, abs=1e-12)


def test_sliced_wasserstein_in_one_dimension_is_the_transport_of_sorted_points():
    x, y = clouds(50, 50, 1)
    expected = (x.sort(0).values - y.sort(0).values).square().mean().sqrt()
    assert sliced_wasserstein(x, y, 4) == pytest.approx(float(expected), abs=1e-12)
    mean = wasserstein_distance(x[:, 0], y[:, 0])
    assert sliced_wasserstein(x, y, 4) >= mean - 1e-12  # W_2 is at least W_1


def test_overlap_is_its_definition():
    x, y = clouds(12, 15)
    k = 3
    reach = [sorted(float((a - b).norm()) for b in x)[k] for a in x]
    reach_y = [sorted(float((a - b).norm()) for b in y)[k] for a in y]
    found = overlap(x, y, k)
    inside = [[float((a - b).norm()) <= r for b in y] for a, r in zip(x, reach, strict=True)]
    assert found["precision"] == pytest.approx(sum(any(row[j] for row in inside) for j in range(15)) / 15)
    assert found["coverage"] == pytest.approx(sum(map(any, inside)) / 12)
    reached = [any(float((a - b).norm()) <= r for b, r in zip(y, reach_y, strict=True)) for a in x]
    assert found["recall"] == pytest.approx(sum(reached) / 12)


@pytest.mark.parametrize("f", [maximum_mean_discrepancy, sliced_wasserstein, overlap])
def test_bad_input(f):
    x, y = clouds()
    with pytest.raises(ValueError, match="same number of features"):
        f(x, y[:, :2])
    with pytest.raises(ValueError, match="NaN"):
        f(x * math.nan, y)
    with pytest.raises(ValueError, match=r"shape \(N, D\), found shape \(0, 3\)"):
        f(x[:0], y)
    with pytest.raises(ValueError, match="k from 1"):
        overlap(x, y, 40)


@pytest.mark.float32
@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-30])
def test_tight_embeddings_in_float32_are_those_of_float64(spread):
    """Clouds of a small spread around a point of norm 1 (or of 1e-30 around 0), which products of float32 cannot tell apart."""
    x, y = (spread * cloud.float() for cloud in clouds(60, 80, 8))
    if spread > 1e-10:
        x, y = x + 1 / 8**0.5, y + 1 / 8**0.5
    exact = overlap(x.double(), y.double())
    assert overlap(x, y) == exact and 0 < exact["coverage"] < 1
    assert maximum_mean_discrepancy(x, y) == pytest.approx(maximum_mean_discrepancy(x.double(), y.double()), abs=1e-9)
