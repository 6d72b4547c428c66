"""The second layer of patch features: equal to the loops, the properties of its definition, bad input, and a short real check."""

import dataclasses

import pytest
import torch
from tests.learn.encoders.test_patches import images
from tests.reference import patches as reference
from tests.refusals import refuses
from torch.nn import functional as F

from vergence.learn.encoders import config, patch_maps
from vergence.learn.encoders.config import Patches, PatchSettings, as_encoder
from vergence.learn.encoders.dictionary import learn_dictionary, normalized_patches, spherical_k_means
from vergence.learn.encoders.patch_maps import PatchMaps, SecondLayer, cells, pooled, sampled_patches


def learned(x, **settings):
    """Maps of both layers, learned from images."""
    settings = PatchSettings(**{"atoms": 6, "patch": 4, "threshold": 0.3, "second": 5, **settings})
    maps = PatchMaps(x.shape[1], settings).to(x)
    maps.set(*learn_dictionary(sampled_patches([x], maps), settings.atoms))
    p = maps.second.patches(maps.layers(x)[1]).flatten(0, 1)
    maps.second.learn(p.split(100), torch.Generator().manual_seed(1))
    return maps, p


def test_both_layers_equal_the_loops_over_patches():
    x = images(10)
    maps, p = learned(x)
    m, Z = reference.second_whitening(p, maps.second.basis.shape[1])
    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(1))
    q = ((p - m) @ Z)[order]
    D = spherical_k_means(q, F.normalize(q[:5], dim=1))
    c = (q @ D.T).flatten().std(correction=0)
    m1, Z1 = reference.whitening(normalized_patches(x, 4).flatten(0, 1), 0.1)
    for image, f in zip(x[:3], maps(x), strict=False):
        fine = torch.zeros(2, 6, 36)
        for k, v in enumerate(maps.filters):
            for i, t in enumerate((0.3, -0.3)):
                sign = 1 if t > 0 else -1
                r = sign * (normalized_patches(image[None], 4)[0] @ v - maps.bias[k]) - 0.3
                fine[i, k] = (r.clamp(min=0) @ cells(9, 11, 6)) ** (1 / 3)
        D1 = maps.filters @ torch.linalg.inv(Z1)
        first = reference.features(image, m1, Z1, D1, 4, 0.3, 2)
        torch.testing.assert_close(f[: len(first)], first, rtol=0, atol=1e-7)
        torch.testing.assert_close(f[len(first) :], reference.second(fine, m, Z, D, c, 0.25), rtol=0, atol=1e-6)


def test_the_first_layer_is_what_it_is_without_a_second():
    x = images()
    both, _ = learned(x)
    alone = PatchMaps(3, PatchSettings(atoms=6, patch=4, threshold=0.3))
    alone.set(both.filters, both.bias)
    assert alone.settings.widths == (48,) and both.settings.widths == (48, 40) and both.settings.features == 88
    torch.testing.assert_close(both(x)[:, :48], alone(x), rtol=0, atol=0)
    averaged = both.settings.averaged(both(x), 3)
    torch.testing.assert_close(averaged, alone.settings.averaged(alone(x), 3), rtol=0, atol=0)


def test_the_second_layer_reads_the_first_atoms_of_a_large_dictionary(monkeypatch):
    assert config.BELOW <= patch_maps.BLOCK  # all of its atoms are in the first block
    monkeypatch.setattr(config, "BELOW", 4)
    x = images()
    maps, _ = learned(x)
    windows = maps.layers(x)[1]
    assert windows.shape == (12, 2, 4, 36) and maps.second.basis.shape[0] == 2 * 4 * 4
    alone = PatchMaps(3, PatchSettings(atoms=4, patch=4, threshold=0.3, pool=6))
    alone.set(maps.filters[:4], maps.bias[:4])
    torch.testing.assert_close(windows.flatten(1), alone(x))


def test_responses_have_a_deviation_of_one_and_zero_mean_patches_of_length_one():
    x = images(40)
    maps, p = learned(x, second=7)
    torch.testing.assert_close(p.norm(dim=1), torch.ones(len(p)))
    assert p.mean(1).abs().max() < 1e-12
    r = (p @ maps.second.basis - maps.second.center) @ maps.second.atoms.T
    torch.testing.assert_close(r.std(correction=0), torch.ones(()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 5, 70])
def test_any_batch_size_gives_the_same_features(size):
    x = images(75)
    maps, _ = learned(x[:20])
    torch.testing.assert_close(torch.cat([maps(part) for part in x.split(size)]), maps(x), rtol=0, atol=1e-12)
    assert maps(x[:0]).shape == (0, maps.settings.features)


def test_a_threshold_above_all_responses_leaves_zeros_and_none_keeps_all():
    x = images()
    maps, p = learned(x)
    windows = maps.layers(x)[1]
    maps.second.threshold = 1e3
    assert not maps.second(windows).any()
    maps.second.threshold = 0.0
    r = (p @ maps.second.basis - maps.second.center) @ maps.second.atoms.T
    positive, negative = maps.second(windows).view(12, 2, 5, 4).unbind(1)
    average = r.unflatten(0, (12, 25)).mT @ cells(5, 5, 2).to(r)
    torch.testing.assert_close(positive**3 - negative**3, average)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_pooled_responses_are_the_roots_of_averaged_parts(dtype, tolerance):
    s, A = torch.randn(3, 8, 4, dtype=dtype), torch.rand(2, 8, dtype=dtype)
    x, weights = s.double(), A.double()
    cubes = torch.stack([(weights @ x.clamp(min=0)).mT, (weights @ (-x).clamp(min=0)).mT], 1)
    summed = torch.float32 if dtype == torch.bfloat16 else dtype
    found = pooled(s, A, summed)
    assert found.dtype == summed
    torch.testing.assert_close(found.double() ** 3, cubes, rtol=tolerance, atol=2 * tolerance)
    assert torch.equal(s.double(), x.abs())  # in place: large maps are not held twice


@pytest.mark.float32
def test_half_precision_is_near_full_precision(monkeypatch):
    x = images(30)
    maps, _ = learned(x)
    full = maps(x)
    monkeypatch.setattr(
        PatchMaps, "arithmetic", lambda self: torch.bfloat16 if self.filters.dtype == torch.float32 else torch.float64
    )
    fast = maps.to(torch.float32)(x)
    assert fast.dtype == torch.float32
    assert (fast - full).norm() < 0.02 * full.norm()


def test_alike_images_leave_finite_features_and_unused_atoms_zero():
    x = images(4)
    maps, _ = learned(x[:1].repeat(30, 1, 1, 1), second=40)
    assert (maps.second.atoms.norm(dim=1) > 0).sum() == 25  # patches of one image
    assert maps(images(5, seed=1)).isfinite().all()
    layer = SecondLayer(2, 3, 0.25)
    layer.learn([torch.zeros(10, 16)], torch.Generator())
    assert layer(torch.zeros(2, 2, 2, 36)).isfinite().all()


def test_a_second_layer_is_the_default_where_there_is_room():
    for shape, second in [((3, 32, 32), 2048), ((1, 28, 28), 2048), ((3, 200, 300), 2048), ((1, 16, 16), 2048), ((1, 8, 8), 0)]:
        assert as_encoder("patches:atoms=4").complete(shape).second == second
    assert as_encoder("patches:stride=6").complete((3, 32, 32)).second == 0  # 5 positions a side
    for name, expected in [("", (512, 2048, 2.5)), ("second=0", (2048, 0, 2.0)), ("second=9,power=1", (512, 9, 1.0))]:
        settings = as_encoder(f"patches:{name}").complete((3, 32, 32))
        assert (settings.atoms, settings.second, settings.power) == expected
        assert as_encoder(str(Patches().with_settings(settings))).complete((3, 32, 32)) == settings
    assert PatchSettings().second == 0
    refuses("use second=0", as_encoder("patches:second=4").complete, (1, 8, 8))
    refuses("use smaller patches", as_encoder("patches:second=4").complete, (1, 3, 3))


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("stride=5", 2048),
        ("stride=5,copies=2", 0),  # no room for the second copy's positions
        ("stride=4,copies=2", 2048),
        ("side=12", 0),  # of which 12 pixels are left
        ("side=16", 2048),
        ("side=16,patch=12", 0),
    ],
)
def test_copies_and_resized_images_have_a_second_layer_where_they_have_room(name, second):
    settings = as_encoder(f"patches:atoms=4,{name}").complete((3, 32, 32))
    assert settings.second == second
    maps = PatchMaps(3, dataclasses.replace(settings, second=min(second, 3))).float()
    assert maps(torch.rand(2, 3, 32, 32)).shape == (2, maps.settings.features)


def test_features_of_two_layers_are_averages_over_moved_and_mirrored_copies():
    x = images(20, h=16, w=18)
    single, _ = learned(x, stride=2)
    maps = PatchMaps(3, dataclasses.replace(single.settings, copies=2, mirror=1))
    maps.load_state_dict(single.state_dict())
    expected = (single(x) + single(x[:, :, 1:, 1:].flip(3))) / 2
    torch.testing.assert_close(maps(x), expected)
    torch.testing.assert_close(maps.responses(x), single(x))
