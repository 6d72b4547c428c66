"""Moments in one pass: any source, any blocks, one process or two give what loops over all items give."""

import math

import numpy as np
import pytest
import torch
from tests.linear.checks import close, noisy, rng
from tests.reference import linear as reference

from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems
from vergence.data.pixels import center_crop
from vergence.densities.moments import Sums
from vergence.learn.views.images import ImageViews
from vergence.learn.views.vectors import Marginals, VectorViews
from vergence.linear import JointEmbedding, Reconstruction, reading

ROWS, N, D = 256, 1003, 3  # 256 rows to a block at the least: four blocks, the last one short


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 1)


def items(seed=50, dtype=np.float64):
    g = rng(seed)
    drift = np.linspace(0, 3, N)[:, None]  # the first block's mean is not that of all
    return (g.normal(size=(N, D)) * [2.0, 1.0, 0.5] + [0.0, 10.0, -3.0] + drift).astype(dtype)


def fitted(source, kind=Reconstruction, **options):
    return kind(2, **({"augmentation": noisy, "n_draws": 3} | options)).fit(source)


def same(found, expected, **tolerance):
    """Two fitted models say the same."""
    names = [name for name in vars(expected) if name.endswith("_") and vars(expected)[name] is not None]
    assert len(names) > 7 and found.n_samples_seen_ == expected.n_samples_seen_
    for name in names:
        close(getattr(found, name), getattr(expected, name), **({"rtol": 1e-10, "atol": 1e-10} | tolerance))


def accumulated(x, augmentation=noisy, m=3, seed=0, parts=1):
    """Sums over x, in parts, and the draws that went in."""
    sums, generator, draws = Sums(x.shape[1], m), torch.Generator().manual_seed(seed), []
    for part in torch.as_tensor(x).chunk(parts):
        views = [augmentation(part.clone(), generator) for _ in range(m)]
        sums.add(part, iter(views))
        draws += list(torch.stack(views, 1).numpy())
    return sums, draws


def test_moments_are_the_loops():
    """With an origin that lies elsewhere than the mean: the first part's mean is not that of all."""
    x = rng(4).normal(size=(12, 3)) + np.linspace(0, 50, 12)[:, None]
    sums, draws = accumulated(x, parts=3)
    found = sums.moments()
    rows, views = reference.centered(x, draws)
    G, S, M, _ = reference.sampled(rows, views)
    G, S = reference.unbiased_around_means(G, S, len(x), len(draws[0]))
    for name, expected in (("G", G), ("S", S), ("M", M)):
        close(getattr(found, name), expected, rtol=1e-10, atol=1e-8)
    close(found.power, reference.square(rows) / len(x))
    close(found.mean, x.mean(0))
    close(found.mean_seen, np.mean(draws, axis=(0, 1)))
    close(found.variance, x.var(0))


def test_without_draws_what_is_seen_is_what_is():
    x = items()[:50]
    sums = Sums(D)
    sums.add(torch.as_tensor(x))
    found = sums.moments()
    for name in ("G", "S", "M"):
        close(getattr(found, name), np.cov(x.T, bias=True))
    assert torch.equal(found.mean, found.mean_seen)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_features_are_told_from_small_ones(value, dtype):
    x = items(dtype=dtype)
    x[:, 1] = value
    x[:, 2] = x[:, 2] * (1e-3 * abs(value) or 1e-20) + value
    sums = Sums(D)
    for part in torch.as_tensor(x).split(100):
        sums.add(part)
    assert sums.moments().constant.tolist() == [False, True, False]


def test_float32_far_from_zero_keeps_its_digits():
    x = (rng(52).normal(size=(20000, 4)) @ rng(53).normal(size=(4, 4)) + 1000).astype(np.float32)
    exact = Reconstruction(2, augmentation=1.0).fit(x.astype(np.float64))
    found = Reconstruction(2, augmentation=1.0).fit(x)
    same(found, exact, rtol=2e-5, atol=2e-6)


def memory_mapped(x, folder):
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


SOURCES = {
    "array": lambda x, folder: x, "fortran order": lambda x, folder: np.asfortranarray(x), "list": lambda x, folder: x.tolist(),
    "tensor": lambda x, folder: torch.as_tensor(x), "memory-mapped items": lambda x, folder: ArrayItems(memory_mapped(x, folder)),
    "memory map": memory_mapped,
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_one_answer(source, tmp_path, small_blocks):
    x = items(dtype=np.float32 if "items" in source else np.float64)
    for kind, augmentation in ((Reconstruction, noisy), (JointEmbedding, 0.3)):
        options = {"kind": kind, "augmentation": augmentation}
        same(fitted(SOURCES[source](x, tmp_path), **options), fitted(x, **options))


@pytest.mark.parametrize("source", ["array", "memory-mapped items"])
def test_vectors_of_bytes_are_no_images(source, tmp_path):
    """Only images are divided by 255."""
    x = rng(54).integers(0, 256, size=(N, 3)).astype(np.uint8)
    exact = fitted(x.astype(np.float64), augmentation=1.0)
    same(fitted(SOURCES[source](x, tmp_path), augmentation=1.0), exact, rtol=1e-3, atol=1e-5)


def in_place(x, generator):
    """`noisy`, written over its argument."""
    e = torch.randn(x.shape, generator=generator, dtype=x.dtype) * (0.5 + x[:, :1].abs())
    return x.mul_(0.8).add_(0.3).add_(e)


@pytest.mark.parametrize("source", ["array", "memory map"])
def test_callables_may_write_over_what_they_get(source, tmp_path, small_blocks):
    x = items()
    before = x.copy()
    same(fitted(SOURCES[source](x, tmp_path), augmentation=in_place), fitted(before))
    assert np.array_equal(x, before)


def mirrored(x):
    """Outcomes of a flip with probability one half."""
    flat = x.reshape(len(x), -1) / 255
    return flat, [[a, b] for a, b in zip(flat, x[..., ::-1].reshape(len(x), -1) / 255, strict=True)]


def still(**options):
    """Views that do nothing, but for the options."""
    return ViewConfig(**({"crop": (1.0, 1.0), "flip": 0.0, "jitter_p": 0.0, "grayscale": 0.0, "blur": 0.0} | options))


@pytest.mark.slow
def test_views_of_images_have_the_moments_of_their_outcomes():
    x = (rng(56).integers(0, 256, size=(40, 1, 3, 3)) * np.linspace(1, 0.3, 3)).astype(np.uint8)
    G, S, M, _ = reference.moments(*reference.centered(*mirrored(x)))
    model = Reconstruction(2, augmentation=ImageViews(still(flip=0.5), 3), n_draws=400).fit(x)
    phi = reference.reconstruction(M, S)[2]
    expected = np.trace(np.cov((x.reshape(40, -1) / 255).T, bias=True)) - (phi[:2] ** 2).sum()
    assert abs(model.objective_ / expected - 1) < 0.03
    close(model.augmentation_covariance_, S - G, atol=0.01, rtol=0)


def test_a_crop_smaller_than_the_canvas():
    x = torch.randint(256, (300, 3, 8, 10), dtype=torch.uint8)
    views = ImageViews(still(crop=(0.5, 1.0)), 6)
    model = Reconstruction(4, augmentation=views, n_draws=2).fit(x)
    seen = (center_crop(x, 6).double() / 255).flatten(1).numpy()
    assert model.n_features_in_ == 3 * 6 * 6
    close(model.target_mean_, seen.mean(0), atol=1e-6)
    close(model.transform(x), (seen - model.mean_) @ model.components_.T, atol=1e-5)
    assert model.transform(x.numpy()).dtype == np.float32
    drawn = torch.stack(list(reading.draw(x, views, 2, 0, 0))).double()
    close(model.mean_, drawn.mean((0, 1)), atol=1e-6)
    assert fitted(x.numpy(), augmentation=0.1).n_features_in_ == 3 * 8 * 10, "no views, no crop"


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
def test_views_of_vectors_have_the_moments_of_their_formula(kind):
    x = rng(57).normal(size=(400, 3)) * [3.0, 1.0, 0.5] + [1.0, -2.0, 0.0]
    mean, std = x.mean(0), x.std(0)
    noise, mask, scale = 0.4, 0.3, 0.2
    views = VectorViews(ViewConfig(noise=noise, mask=mask, scale=scale), Marginals(*(torch.as_tensor(v) for v in (mean, std))))
    model = kind(2, augmentation=views, n_draws=64).fit(x)
    share, second = (1 - mask) * math.exp(scale**2 / 2), math.exp(2 * scale**2)
    C = np.cov(x.T, bias=True)
    S = C * second * np.where(np.eye(3) > 0, 1 - mask, (1 - mask) ** 2) + noise**2 * np.diag(std**2)
    if kind is JointEmbedding:
        expected = 2 * (1 - reference.joint_embedding(share**2 * C, S)[1][:2]).sum()
    else:
        expected = np.trace(C) - (reference.reconstruction(share * C, S)[2][:2] ** 2).sum()
    assert abs(model.objective_ / expected - 1) < 0.03
