"""Resampling: counts, unbiasedness by z-scores, and edges."""

import math

import pytest
import torch

from vergence.densities.particles import effective_sample_size, systematic


def weights(m=7, seed=0):
    w = torch.rand(m, generator=torch.Generator().manual_seed(seed)) ** 3
    return w / w.sum()


def test_systematic_counts_are_floor_or_ceil():
    for seed in range(50):
        w, n = weights(9, seed), 40
        counts = torch.bincount(systematic(w, n), minlength=9)
        assert counts.sum() == n and ((counts >= (n * w).floor()) & (counts <= (n * w).ceil())).all()


def test_counts_are_unbiased():
    w, n, repeats = weights(), 10, 4000
    g = torch.Generator().manual_seed(1)
    counts = torch.stack([torch.bincount(systematic(w, n, g), minlength=len(w)).double() for _ in range(repeats)])
    z = (counts.mean(0) - n * w) / (counts.std(0) / math.sqrt(repeats)).clamp(min=1e-12)
    assert z.abs().max() < 4.5
    multinomial = n * w * (1 - w)
    assert (counts.var(0) <= multinomial + 0.1).all()  # never worse than independent draws


def test_particles_without_weight_are_never_taken():
    w = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0])
    for _ in range(200):
        assert set(systematic(w, 13).tolist()) <= {1, 3}
    thirds = torch.full((3,), 1 / 3, dtype=torch.float32)
    assert systematic(torch.cat([thirds, torch.zeros(2, dtype=torch.float32)]), 999).max() == 2


@pytest.mark.parametrize("scale", [1e-200, 1e-320, 1.0, 1e300])
def test_effective_sample_size_does_not_depend_on_the_scale_of_weights(scale):
    w = torch.tensor([[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(effective_sample_size(w * scale), torch.tensor([16 / 6, 4.0]), rtol=1e-3, atol=0)
