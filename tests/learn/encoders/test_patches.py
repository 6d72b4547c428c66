"""Patch features: equal to the loops, the properties of their definition, bad input, and a short real check."""

import itertools

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import DATA_ROOT
from tests.reference import patches as reference
from tests.refusals import refuses
from torch.nn import functional as F

from vergence.data.arrays import from_array
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.learn.encoders import building, networks, patch_maps
from vergence.learn.encoders.config import Patches, PatchSettings, as_encoder
from vergence.learn.encoders.dictionary import PatchSample, normalized_patches, spherical_k_means, whitening
from vergence.learn.encoders.patch_maps import PatchEncoder, PatchMaps, cells
from vergence.learn.encoders.patches import PatchFeatures
from vergence.learn.evaluation.accuracy import knn_accuracy


def images(n=12, c=3, h=12, w=14, seed=0):
    x = torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.avg_pool2d(x, 3, stride=1, padding=1)  # neighboring pixels are correlated, as in images


def small(**settings):
    return PatchFeatures(**{"n_atoms": 7, "patch_size": 4, "threshold": 0.3, "dtype": "float64", **settings})


@pytest.mark.parametrize(("pool", "stride", "channels"), [(2, 1, 3), (3, 2, 1), (1, 1, 1)])
def test_the_fused_form_equals_the_loop_over_patches(pool, stride, channels):
    x = images(3, channels)
    p = normalized_patches(x, 4, stride).flatten(0, 1)
    m, Z = reference.whitening(p, 0.1)
    D = F.normalize(torch.randn(5, p.shape[1]), dim=1)
    maps = PatchMaps(channels, PatchSettings(atoms=5, patch=4, threshold=0.3, pool=pool, stride=stride))
    maps.set(D @ Z, D @ Z @ m)
    expected = torch.stack([reference.features(image, m, Z, D, 4, 0.3, pool, stride) for image in x])
    torch.testing.assert_close(maps(x), expected, rtol=0, atol=1e-10)


def test_blocks_of_atoms_give_what_all_atoms_give():
    x = images(2, 3, 9, 9)
    V, b = torch.randn(patch_maps.BLOCK + 40, 3 * 16), torch.randn(patch_maps.BLOCK + 40)
    settings = PatchSettings(atoms=len(V), patch=4, threshold=0.3)
    maps = PatchMaps(3, settings)
    maps.set(V, b)
    r = V @ normalized_patches(x, 4).mT - b[:, None]
    f = torch.stack([(r - 0.3).clamp(min=0), (-r - 0.3).clamp(min=0)], 1) @ cells(6, 6, 2).to(x)
    torch.testing.assert_close(maps(x), f.flatten(1) ** (1 / 3), rtol=0, atol=1e-10)


def test_the_responses_are_a_convolution():
    x = images(2)
    V = torch.randn(5, 3 * 16)
    p = normalized_patches(x, 4).mT
    ones = torch.ones(1, 3, 4, 4) / 48
    var = F.conv2d(x.square(), ones) - F.conv2d(x, ones).square()
    centered = (V - V.mean(1, keepdim=True)).view(5, 3, 4, 4)
    expected = F.conv2d(x, centered) / (var + reference.EPS).sqrt()
    torch.testing.assert_close((V @ p).view_as(expected), expected, rtol=0, atol=1e-10)


def test_whitening_leaves_the_stated_covariance():
    p = normalized_patches(images(20), 4).flatten(0, 1)
    m, Z = whitening(p, 0.1)
    w, U = torch.linalg.eigh(torch.cov(p.T))
    torch.testing.assert_close(torch.cov(((p - m) @ Z).T), U @ torch.diag(w / (w + 0.1)) @ U.T)
    torch.testing.assert_close(Z, reference.whitening(p, 0.1)[1])


def test_no_iteration_of_spherical_k_means_lowers_the_mean_similarity():
    q = torch.randn(400, 6)
    D = F.normalize(q[:9], dim=1)
    D = torch.cat([D, -q.sum(0, keepdim=True) / q.sum(0).norm()])  # also an atom that may lose its patches
    values = []
    for _ in range(12):
        values.append((q @ D.T).max(1).values.mean().item())
        D = spherical_k_means(q, D, 1)
        torch.testing.assert_close(D.norm(dim=1), torch.ones(len(D)))
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values)) and values[-1] > values[0]


def test_a_constant_and_a_contrast_do_not_change_the_features():
    x = images(6) * 0.5
    maps = PatchMaps(3, PatchSettings(atoms=7, patch=4, threshold=0.3))
    f = maps(x)
    torch.testing.assert_close(maps(x + 0.2), f, rtol=0, atol=1e-10)
    least = x.unfold(2, 4, 1).unfold(3, 4, 1).var(dim=(1, 4, 5)).min()
    assert (maps(1.5 * x) - f).abs().max() < 20 * reference.EPS / least


def test_any_batch_size_and_any_parts_give_the_same_features():
    x = images(30).numpy()
    whole = small(n_patches=500).fit(x)
    batches = small(n_patches=500, batch_size=7).fit(x)
    parts = small(n_patches=500)
    for part in (x[:4], x[4:5], x[5:]):
        parts.partial_fit(part)
    for other in (batches, parts):
        np.testing.assert_allclose(other.filters_, whole.filters_, atol=1e-10)
        np.testing.assert_allclose(other.transform(x), whole.transform(x), atol=1e-10)
    assert parts.n_images_ == 30


def test_limits_of_the_threshold():
    x = images(4)
    assert small(threshold=1e6).fit(x).transform(x).max() == 0
    plain = small(threshold=0.0, pool=1).fit(x)
    f = torch.from_numpy(plain.transform(x)).view(4, 2, 7) ** 3
    r = torch.from_numpy(plain.filters_) @ normalized_patches(x, 4).mT - torch.from_numpy(plain.bias_)[:, None]
    torch.testing.assert_close(f[:, 0] + f[:, 1], r.abs().mean(2))
    torch.testing.assert_close(f[:, 0] - f[:, 1], r.mean(2))


def test_cells_average_around_their_centers():
    A = cells(6, 9, 3)
    torch.testing.assert_close(A.sum(0), torch.ones(9, dtype=A.dtype))
    u = (torch.arange(6) + 0.5) / 6
    rows = A.view(6, 9, 3, 3).sum((1, 3)) / 3
    assert (rows.argmax(0) // 2 == torch.arange(3)).all()
    deviation = ((u[:, None] - 0.5).square() * rows)[:, 1].sum().sqrt()
    assert abs(deviation - 0.44 / 3) < 0.01
    mirrored = A.view(6, 9, 3, 3).flip(0, 2)
    torch.testing.assert_close(mirrored.reshape(54, 9), A)


def test_the_sample_is_uniform():
    x = torch.arange(40.0).view(1, 1, 5, 8).expand(50, 1, 5, 8) ** 2  # 28 positions, distinct patches
    sample = PatchSample(700, 2)
    for part in x.split(13):
        sample.add(part)
    assert len(sample.patches) == 700 and (sample.keys.diff() >= 0).all()
    counts = torch.unique(sample.patches.double().sum(1) + sample.patches[:, 0].double() * 7, return_counts=True)[1]
    assert len(counts) == 28 and (counts - 25).abs().max() < 5 * 25**0.5


def test_all_kinds_of_images_give_the_same_features():
    x = (images(10) * 255).byte()
    reference_features = small().fit_transform(x)
    for same in (x.numpy(), x.permute(0, 2, 3, 1).numpy(), x.double().numpy() / 255, from_array(x)):
        np.testing.assert_allclose(small().fit_transform(same), reference_features, atol=1e-6)
    assert len(small().fit(x).get_feature_names_out()) == 56 == reference_features.shape[1]


def test_large_images_are_resized_and_small_ones_have_smaller_patches():
    settings = as_encoder("patches:atoms=4").complete((3, 200, 300))
    assert (settings.side, settings.patch) == (32, 6)
    maps = PatchMaps(3, settings)
    assert maps.shrunk(torch.rand(1, 3, 200, 300)).shape == (1, 3, 32, 48)
    assert maps(torch.rand(1, 3, 200, 300)).shape == (1, settings.features)
    for side, patch in ((28, 6), (8, 4)):
        small_images = as_encoder("patches").complete((1, side, side))
        assert (small_images.side, small_images.patch) == (0, patch)


def test_names_hold_every_setting():
    settings = PatchSettings(atoms=12, ridge=0.25, side=32)
    assert as_encoder(str(Patches().with_settings(settings))).complete((3, 96, 96)) == settings
    for name, match in [
        ("patches:atom=3", r"unknown|expected .*did you mean 'atoms'"),
        ("patches:atoms=x", "expected atoms to be a whole number"),
        ("patches:atoms=0", "expected atoms of at least 1"),
        ("patches:views=1", "expected views of at least 2"),
    ]:
        refuses(match, lambda name=name: as_encoder(name).complete((3, 32, 32)))


def test_the_encoder_is_built_by_its_name_and_its_tensors_load_without_code():
    net = building.encoder("patches:atoms=6,dim=5", (3, 16, 16), torch.zeros(3), torch.full((3,), 0.25))
    other = building.encoder("patches:atoms=6,dim=5", (3, 16, 16), torch.zeros(3), torch.ones(3))
    x = images(2, 3, 16, 16)
    assert isinstance(net[1], PatchEncoder) and not torch.equal(net(x), other(x))
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(x), other(x)) and networks.width(net, (3, 16, 16)) == 5
    assert not any(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    ("x", "settings", "match"),
    [
        (np.zeros((5, 4, 4, 3), np.uint8), {"patch_size": 6}, "expected images of at least 7 x 7 pixels, found 4 x 4"),
        (np.full((5, 9, 9, 3), 7, np.uint8), {}, "expected at least 512 distinct patches for 512 atoms, found 1"),
        (np.random.default_rng(0).random((2, 8, 8)), {}, "distinct patches for 512 atoms, found 18; use fewer atoms"),
        (np.zeros((5, 9)), {}, "expected images"),
        (np.full((5, 9, 9), np.nan), {}, "NaN or infinity in row 0"),
        (np.full((5, 9, 9), 2.0), {}, r"expected float images in \[0, 1\]"),
        (np.zeros((5, 9, 9)), {"n_atoms": 0}, "expected n_atoms"),
        (np.zeros((5, 9, 9)), {"dtype": "half"}, "expected dtype among float32, float64"),
    ],
)
def test_bad_input_is_one_clear_line(x, settings, match):
    refuses(match, PatchFeatures(**settings).fit, x)
    refuses("as in fit, found", small().fit(images(4)).transform, images(2, h=11))


@pytest.mark.float32
def test_patches_beat_the_pixels_pca_on_real_images():
    """2,000 images of CIFAR-10's training part, of which 500 are classified by the others."""
    if not (DATA_ROOT / "cifar-10-batches-py").is_dir():
        pytest.skip("no cifar-10-batches-py: set VERGENCE_DATA to a folder laid out for torchvision")
    train = open_data(DataConfig(source="cifar10", root=str(DATA_ROOT), limit=2000)).train
    x = next(train.stream([torch.arange(2000)]))[1]

    def knn(f):
        f = torch.as_tensor(f, dtype=torch.float32)
        f = f - f[:1500].mean(0)
        V = torch.linalg.svd(f[:1500], full_matrices=False)[2][:256].T
        z = f @ V
        return knn_accuracy(z[:1500], train.labels[:1500], z[1500:], train.labels[1500:], ks=(30,))[30]["majority"]

    patches = knn(PatchFeatures(n_atoms=64).fit_transform(x))
    assert patches > knn(x.flatten(1).float() / 255) + 0.03


def test_folders_files_streams_and_arrays_give_the_same_features(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "photos").mkdir()
    for i, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / "photos" / f"{i:02}.png")
    whole = small().fit(x)
    f = whole.transform(x)
    for given in (tmp_path / "x.npy", str(tmp_path / "photos"), iter([x[:5], x[5:]])):
        np.testing.assert_array_equal(small().fit(given).filters_, whole.filters_)
    for given in (tmp_path / "x.npy", str(tmp_path / "photos"), iter([x[:7], x[7:]])):
        np.testing.assert_allclose(whole.transform(given), f, rtol=1e-12)
    refuses(r"expected images.*found none that can be read", small().fit, iter([]))
