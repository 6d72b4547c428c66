"""Affine augmentations, exactly: Xbar differs from X, and theorem 3.1's target stays the clean X."""

import numpy as np
import pytest
import torch

from vergence.linear import Affine, JointEmbedding, Reconstruction

KINDS = (JointEmbedding, Reconstruction)


def problem(n=40, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3
    root = rng.normal(size=(d, d)) / 3
    return x, Affine(rng.normal(size=(d, d)) / 2 + np.eye(d), rng.normal(size=d), root @ root.T)


def loss(model, kind, x, tau, center):
    """The stated objective of a fitted model, over items in a loop: noise enters by its covariance alone."""
    A, b, total = np.asarray(tau.matrix), np.asarray(tau.offset), 0.0
    target = x if kind is Reconstruction else None
    seen = np.mean([A @ row + b for row in x], 0) if center else 0
    middle = 0 if target is None or not center else target.mean(0)
    map_ = model.decoder_ @ model.components_ if kind is Reconstruction else model.components_
    spread = np.trace(map_ @ tau.covariance @ map_.T)
    for i, row in enumerate(x):
        v = A @ row + b - seen
        total += 2 * spread if kind is JointEmbedding else spread + ((target[i] - middle - map_ @ v) ** 2).sum()
    return total / len(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("center", [True, False])
def test_the_optimum_is_the_objectives_value(kind, center):
    x, tau = problem()
    model = kind(2, augmentation=tau, center=center).fit(x)
    assert model.objective_ == pytest.approx(loss(model, kind, x, tau, center), rel=1e-9)
    assert np.allclose(model.augmentation_covariance_, tau.covariance)
    assert np.allclose(model.mean_, (tau.matrix @ x.mean(0) + tau.offset) * center)
    rng = np.random.default_rng(1)
    if kind is not JointEmbedding:  # no other map does better
        best = model.components_.copy()
        for _ in range(50):
            model.components_ = best + 0.05 * rng.normal(size=best.shape)
            assert loss(model, kind, x, tau, center) > model.objective_


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_comes_to_the_same(kind):
    x, tau = problem(n=300)
    exact = kind(2, augmentation=tau).fit(x)
    sampled = kind(2, augmentation=tau.sample, n_draws=200).fit(x)
    assert 0 < abs(sampled.objective_ / exact.objective_ - 1) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_without_shift_it_is_the_covariance(kind):
    x, tau = problem()
    one, other = (kind(2, augmentation=a).fit(x) for a in (Affine(covariance=tau.covariance), tau.covariance))
    assert np.allclose(one.components_, other.components_, rtol=1e-10) and one.objective_ == pytest.approx(other.objective_)
    short, long = (kind(2, augmentation=Affine(a, 1.0, 0.3)).fit(x) for a in (0.5, 0.5 * np.eye(4)))
    assert np.allclose(short.components_, long.components_)


def test_reconstruction_is_of_the_clean_items():
    """Halving without noise loses nothing: the decoder doubles."""
    x, _ = problem()
    model = Reconstruction(augmentation=Affine(0.5, 2.0)).fit(x)
    assert model.objective_ == pytest.approx(0, abs=1e-9)
    assert np.allclose(model.inverse_transform(model.transform(0.5 * x + 2)), x)


@pytest.mark.parametrize(
    "tau", [Affine(np.ones(3)), Affine(offset=np.ones(3)), Affine(np.full((4, 4), np.nan)), Affine(covariance=np.ones(7))]
)
def test_wrong_sizes_are_refused(tau):
    with pytest.raises(ValueError, match="expected"):
        Reconstruction(augmentation=tau).fit(problem()[0])


def test_a_sample_has_the_items_type():
    found = Affine(0.5, 1.0, 2.0).sample(torch.zeros(5, 3, dtype=torch.float32), torch.Generator().manual_seed(0))
    assert found.dtype == torch.float32 and found.shape == (5, 3)
