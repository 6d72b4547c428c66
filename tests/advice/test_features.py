"""Advice on features of patches: equal to the numbers made by hand, right on planted images, and clear about bad input."""

import json

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.advice.test_closed_forms import NOISE, SIGNAL, problem, variances

from vergence.advice import advise as runs_advise
from vergence.advice.closed_forms import advise, left_out, patch_features
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import ArrayItems
from vergence.learn.encoders.patches import PatchFeatures
from vergence.learn.views.images import ImageViews
from vergence.linear.reading import Featured, draw


def textured(n, noise, seed=0):
    """Images of 12 pixels: two classes of weak stripes (across or along), under strong random blobs."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    wave = np.sin(np.arange(12) * 2 * np.pi / 4)[None] * np.ones((12, 1))
    stripes = np.where(y[:, None, None] == 0, wave, wave.T)
    blobs = rng.normal(size=(n, 4, 4)).repeat(3, 1).repeat(3, 2)
    x = 0.5 + 0.04 * stripes * rng.choice([-1, 1], size=(n, 1, 1)) + noise * blobs
    return torch.from_numpy(x.clip(0, 1)).float()[:, None], y


def blobs(x, generator):
    """The augmentation: fresh blobs of the same kind over the image."""
    fresh = torch.randn(len(x), 1, 4, 4, generator=generator).repeat_interleave(3, 2).repeat_interleave(3, 3)
    return (x + 0.1 * fresh).clamp(0, 1)


@pytest.mark.slow
def test_patches_read_what_pixels_cannot():
    """The sign of the stripes is random: no linear map of pixels knows the class, pooled magnitudes of responses do."""
    x, y = textured(600, 0.1)
    raw, patches = (advise(x, blobs, labels=y, n_components=8, n_draws=4, features=kind) for kind in ("raw", "patches"))
    best = [max(row.joint_embedding for row in found.components) for found in (raw, patches)]
    assert best[0] < 0.65 and best[1] > 0.9
    assert patches.facts.space == "patches" and "patch features" in patches.words[-1] and raw.facts.space == "raw"


def test_a_planted_verdict_holds_behind_a_linear_map():
    """Features that are a rotation of the items: the same verdict and margin as on the items, which rotations do not change."""
    x, y = problem(noise=6.0)
    Q = torch.linalg.qr(torch.randn(SIGNAL + NOISE, SIGNAL + NOISE, generator=torch.Generator().manual_seed(0)).double())[0]
    sd = torch.from_numpy(variances(0.2, 36.0)).sqrt()

    def noisy(X, generator):
        return X + sd.to(X) * torch.randn(X.shape, generator=generator, dtype=X.dtype)

    settings = {"labels": y, "n_components": 3, "n_draws": 8}
    one, other = (advise(x, noisy, features=f, **settings) for f in ("raw", lambda X: X.double() @ Q))
    assert one.verdict == other.verdict == "joint_embedding" and other.facts.space == "given"
    assert other.margin == pytest.approx(one.margin, abs=2 / len(x)) and np.allclose(one.spectrum.omega, other.spectrum.omega)


def test_equal_to_patch_features_by_hand():
    """The spectrum of joint embedding from PatchFeatures, views of the same generator, and scipy's generalized eigenproblem."""
    x, _ = textured(120, 0.1)
    atoms = 16
    features = patch_features(ArrayItems(x), blobs, atoms=atoms)
    found = advise(x, blobs, features=features, n_draws=4, directions=8)
    by_hand = PatchFeatures(n_atoms=atoms, patch_size=4, dtype="float64").fit(x)  # of small images
    clean = by_hand.transform(x).astype(np.float64)
    assert np.allclose(features(x).numpy(), clean, atol=1e-6)

    views = [by_hand.transform(view.view(x.shape)).astype(np.float64) for view in draw(x, blobs, 4, 0, 0)]
    mean = clean.mean(0)
    V = np.linalg.svd(clean - mean, full_matrices=False)[2][:8].T
    v = np.stack([(view - mean) @ V for view in views])
    v -= v.mean((0, 1))
    S = np.einsum("mni,mnj->ij", v, v) / v.shape[0] / v.shape[1]
    within = v - v.mean(0)
    G = S - np.einsum("mni,mnj->ij", within, within) / (v.shape[0] - 1) / v.shape[1]
    omega = scipy.linalg.eigh(G, S, eigvals_only=True)[::-1]
    assert np.allclose(found.spectrum.omega, omega, atol=2e-3)
    unpaired = scipy.linalg.eigh(np.cov(v[0].T), S, eigvals_only=True)[::-1]  # a planted error: views that are not paired
    assert not np.allclose(found.spectrum.omega, unpaired, atol=2e-3)


def test_operations_are_left_out_in_front_of_the_features():
    views = ImageViews(ViewConfig(), 12)
    rest = list(left_out(Featured(views, lambda x: x.flatten(1))))
    assert [name for name, _ in rest] == [name for name, _ in left_out(views)]
    assert all(isinstance(one, Featured) and isinstance(one.augmentation, ImageViews) for _, one in rest)


def test_bad_input_is_reported():
    x, y = textured(120, 0.1)
    with pytest.raises(ValueError, match="at least 5 x 5 pixels, found 4 x 4"):
        advise(x[:, :, :4, :4], lambda X, g: X * 0.9, features="patches")
    with pytest.raises(ValueError, match="expected images for features 'patches', found items of shape"):
        advise(problem(1.0)[0], lambda X, g: X * 0.9, features="patches")
    with pytest.raises(ValueError, match="expected an augmentation that samples views"):
        advise(x, None, features="patches")
    with pytest.raises(ValueError, match="did you mean 'patches'"):
        advise(x, blobs, labels=y, features="patchs")


@pytest.mark.slow
def test_a_source_is_advised_on_by_features_too(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "images.npz", x=rng.integers(256, size=(110, 1, 8, 8), dtype=np.uint8))
    np.savez(tmp_path / "small.npz", x=rng.integers(256, size=(110, 1, 4, 4), dtype=np.uint8))
    np.savez(tmp_path / "vectors.npz", x=rng.normal(size=(150, 6)))
    settings = {"out": tmp_path / "a", "n_draws": 4, "device": "cpu"}
    views = ViewConfig(jitter_p=0.0, grayscale=0.0, blur=0.0, flip=0.0)
    source = {name: DataConfig(source=str(tmp_path / f"{name}.npz")) for name in ("images", "small", "vectors")}
    found = runs_advise.advise_on(source["images"], views, features="patches", **settings)
    assert found.facts.space == "patches"
    assert json.loads((tmp_path / "a" / "advice.json").read_text())["facts"]["space"] == "patches"
    assert "patch features" in (tmp_path / "a" / "report.html").read_text()
    with pytest.raises(ValueError, match="at least 5 x 5 pixels"):
        runs_advise.advise_on(source["small"], views, features="patches", **settings)
    with pytest.raises(ValueError, match="expected images for features 'patches'"):
        runs_advise.advise_on(source["vectors"], ViewConfig(), features="patches", **settings)
