"""The 16 corruptions against their descriptions."""

import colorsys
import io

import image_corruptions as ic
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter

N = 6
SEEDS = torch.arange(100, 100 + N)
# Severities that are farther from the clean image than the one before; the published strengths are not monotone for others
GROWING = {
    "impulse_noise": (2, 3, 4, 5),
    "jpeg_compression": (2, 3, 4, 5),
    "gaussian_noise": (2, 3, 4, 5),
    "gaussian_blur": (2, 3, 4, 5),
    "brightness": (2, 3, 4, 5),
    "pixelate": (2, 3, 4, 5),
    "fog": (2, 3, 4, 5),
    "speckle_noise": (2, 3, 4, 5),
    "shot_noise": (2, 3, 4, 5),
    "zoom_blur": (2, 3, 4, 5),
    "defocus_blur": (2, 3, 4, 5),
    "frost": (2, 3),
    "snow": (2, 3, 4, 5),
    "glass_blur": (4,),
    "spatter": (2, 3),
    "saturate": (2, 4, 5),
}


def scenes(side=32, channels=3, n=N):
    """Returns smooth images of bytes with edges, neither black nor white."""
    t = np.linspace(0, 1, side)
    rng = np.random.default_rng(0)
    waves = np.cos(np.pi * np.outer(np.arange(6), t))
    x = np.einsum("ncij,iy,jx->ncyx", rng.normal(size=(n, channels, 6, 6)), waves, waves)
    x = 110 + 35 * x / x.std() + 40 * (np.add.outer(t, t) > 0.9)
    return torch.from_numpy(x.clip(10, 240).round()).byte()


def distance(a, b):
    return float((a.double() - b.double()).abs().mean())


@pytest.fixture(scope="module")
def images():
    return scenes()


def kinds(channels):
    return [kind for kind in ic.KINDS if channels == 3 or kind != "saturate"]


def test_they_are_the_sixteen_of_the_paper():
    assert len(ic.KINDS) == 16
    assert all(len(strengths) == 5 for strengths in ic.STRENGTHS.values())


@pytest.mark.parametrize(("side", "channels"), [(32, 3), (28, 1), (40, 3)])
def test_every_corruption_keeps_type_and_shape_and_depends_on_the_images_seed_alone(side, channels):
    x = scenes(side, channels, 3)
    for kind in kinds(channels):
        for severity in (1, 5):
            y = ic.corrupted(x, kind, severity, SEEDS[:3])
            assert y.dtype == torch.uint8 and y.shape == x.shape, kind
            assert torch.equal(ic.corrupted(x, kind, severity, SEEDS[:3]), y), kind
            assert torch.equal(ic.corrupted(x[1:], kind, severity, SEEDS[1:3]), y[1:]), kind
            assert not torch.equal(x, y), kind


RANDOM = ("glass_blur", "frost", "impulse_noise", "snow", "gaussian_noise", "spatter", "fog", "speckle_noise", "shot_noise")


@pytest.mark.parametrize("kind", ic.KINDS)
def test_another_seed_gives_another_image_where_the_corruption_is_random(images, kind):
    a, b = (ic.corrupted(images, kind, 4, seeds) for seeds in (SEEDS, SEEDS + 1000))
    assert torch.equal(a, b) == (kind not in RANDOM)


@pytest.mark.parametrize("kind", ic.KINDS)
def test_severity_increases_the_distance_to_the_clean_image(images, kind):
    far = [distance(images, ic.corrupted(images, kind, severity, SEEDS)) for severity in range(1, 6)]
    assert far[4] > far[0] > 0 or kind == "saturate"
    for severity in GROWING[kind]:
        assert far[severity - 1] > far[severity - 2], (severity, far)


@pytest.mark.parametrize("kind", ic.KINDS)
def test_floats_stay_in_range_and_agree_with_bytes(images, kind):
    x = images.float() / 255
    y = ic.corrupted(x, kind, 3, SEEDS)
    assert y.dtype == torch.float32 and float(y.min()) >= 0 and float(y.max()) <= 1
    assert distance(255 * y, ic.corrupted(images, kind, 3, SEEDS)) < 0.51


def gray(value, n=40, channels=3, side=32):
    return torch.full((n, channels, side, side), value)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_noise_has_the_published_deviation(severity):
    seeds = torch.arange(40)
    for value in (0.3, 0.5):
        x = gray(value)
        error = lambda kind: ic.corrupted(x, kind, severity, seeds) - x  # noqa: E731, B023
        c = {kind: ic.STRENGTHS[kind][severity - 1] for kind in ic.KINDS}
        assert error("gaussian_noise").std() == pytest.approx(c["gaussian_noise"], rel=0.02)
        assert error("speckle_noise").std() == pytest.approx(c["speckle_noise"] * value, rel=0.02)
        assert error("shot_noise").std() == pytest.approx((value / c["shot_noise"]) ** 0.5, rel=0.02)
        for kind in ("gaussian_noise", "speckle_noise", "shot_noise"):
            assert abs(error(kind).mean()) < 4 * error(kind).std() / error(kind).numel() ** 0.5
        hit = error("impulse_noise") != 0
        assert hit.double().mean() == pytest.approx(c["impulse_noise"], rel=0.08)
        assert ic.corrupted(x, "impulse_noise", severity, seeds)[hit].unique().tolist() == [0, 1]
        assert ic.corrupted(x, "impulse_noise", severity, seeds)[hit].mean() == pytest.approx(0.5, abs=0.05)


def test_noise_differs_between_channels_and_pixels(images):
    e = ic.corrupted(gray(0.5, n=6), "gaussian_noise", 5, SEEDS) - 0.5
    assert abs(float((e[:, 0] * e[:, 1]).mean())) < 0.1 * float(e.var())
    assert abs(float((e[:, :, 1:] * e[:, :, :-1]).mean())) < 0.1 * float(e.var())


@pytest.mark.parametrize("severity", range(1, 6))
def test_gaussian_blur_is_scipys(images, severity):
    x = images.double() / 255
    deviation = ic.STRENGTHS["gaussian_blur"][severity - 1]
    wanted = gaussian_filter(x.numpy(), (0, 0, deviation, deviation), mode="nearest")
    np.testing.assert_allclose(ic.corrupted(x, "gaussian_blur", severity, SEEDS).numpy(), wanted, atol=1e-12)


def test_glass_blur_copies_neighbors():
    """At severity 1 the blur has no weight outside the pixel, so that only the copies remain."""
    place = torch.arange(32.0 * 32).view(1, 1, 32, 32) / 1024
    y = ic.corrupted(place.repeat(4, 3, 1, 1), "glass_blur", 1, torch.arange(4))
    assert torch.equal(y[:, 0], y[:, 1]), "all channels move alike"
    index = (1024 * y[:, 0]).round().long()
    up, left = torch.arange(32)[:, None] - index // 32, torch.arange(32) - index % 32
    inner = 2 * up[:, 2:, 2:] + left[:, 2:, 2:]
    shares = inner.flatten().bincount(minlength=4) / inner.numel()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.04, rtol=0)
    assert not up[:, :2].any() and not left[:, :, :2].any(), "the first two lines stay"
    twice = ic.glass_blur(place.repeat(4, 1, 1, 1), 0.05, 2, ic.Numbers(torch.arange(4), place))
    assert int((torch.arange(32)[:, None] - (1024 * twice[:, 0]).round().long() // 32).max()) == 2


def test_defocus_blur_averages_a_disk():
    point = gray(0.0, n=1)
    point[..., 16, 16] = 1
    y = ic.corrupted(point, "defocus_blur", 5, SEEDS[:1])[0, 0]
    torch.testing.assert_close(y[15:18, 15:18], torch.full((3, 3), 1 / 9), atol=1e-3, rtol=0)
    assert float(y.sum()) == pytest.approx(1)
    mild = ic.corrupted(point, "defocus_blur", 1, SEEDS[:1])[0, 0]
    k = torch.softmax(-0.5 * (torch.tensor([-1.0, 0, 1]) / 0.4) ** 2, 0)
    torch.testing.assert_close(mild[15:18, 15:18], torch.outer(k, k))


@pytest.mark.parametrize("kind", ["gaussian_blur", "glass_blur", "defocus_blur", "zoom_blur", "pixelate"])
def test_blurs_keep_a_constant_image(kind):
    x = gray(0.37, n=2)
    torch.testing.assert_close(ic.corrupted(x, kind, 5, SEEDS[:2]), x)


def test_zoom_blur_averages_enlarged_images():
    """In a linear image x(t) = a + b (t - center), an enlargement by z has the slope b / z."""
    t = (torch.arange(32.0) - 15.5) / 40
    x = (0.5 + t).expand(1, 3, 32, 32).clone()
    for severity, end in enumerate((1.06, 1.11, 1.16, 1.21, 1.26), 1):
        factors = np.arange(1, end, 0.01)
        slope = (1 + (1 / factors).sum()) / (len(factors) + 1)
        torch.testing.assert_close(ic.corrupted(x, "zoom_blur", severity, SEEDS[:1]), (0.5 + slope * t).expand(1, 3, 32, 32))


def test_fog_adds_a_fractal_and_compresses_the_range():
    x = gray(0.8, n=6)
    for severity, (thickness, _) in enumerate(ic.STRENGTHS["fog"], 1):
        y = ic.corrupted(x, "fog", severity, SEEDS)
        assert torch.equal(y[:, 0], y[:, 2])
        low, high = 0.8 * 0.8 / (0.8 + thickness), 0.8
        torch.testing.assert_close(y.amin((1, 2, 3)), torch.full((6,), low))
        torch.testing.assert_close(y.amax((1, 2, 3)), torch.full((6,), high))


def test_plasma_is_rougher_where_it_decays_less():
    def roughness(decay):
        p = ic.plasma(ic.Numbers(torch.arange(20), torch.zeros(1)), 32, 32, decay)[:, 0]
        assert p.shape == (20, 32, 32) and float(p.min()) == 0 and float(p.max()) == 1
        return float((p[:, 1:] - p[:, :-1]).abs().mean())

    found = [roughness(decay) for decay in (3, 2.5, 2, 1.75)]
    assert found == sorted(found)
    assert ic.plasma(ic.Numbers(torch.arange(2), torch.zeros(1)), 40, 60, 2).shape == (2, 1, 40, 60)


def test_frost_blends_a_bluish_texture():
    for severity, (own, weight) in enumerate(ic.STRENGTHS["frost"], 1):
        y = ic.corrupted(gray(0.4, n=6), "frost", severity, SEEDS)
        texture = (y - own * 0.4) / weight
        assert 0.2 < float(texture.min()) < float(texture.max()) <= 1 + 1e-6
        assert float(texture.std()) > 0.05
        assert (texture[:, 2] > texture[:, 0]).all()


def test_snow_whitens_and_adds_flakes_that_are_symmetric():
    x = gray(0.2, n=6)
    for severity, (*_, own) in enumerate(ic.STRENGTHS["snow"], 1):
        y = ic.corrupted(x, "snow", severity, SEEDS)
        rest = own * 0.2 + (1 - own) * (1.5 * 0.9999 * 0.2 + 0.5)
        assert float(y.min()) > rest - 1e-4
        added = y - rest
        assert float(added.amax()) > 0.05
        torch.testing.assert_close(added, added.rot90(2, (2, 3)), atol=1e-5, rtol=0)


def test_motion_blur_follows_its_angle():
    point = torch.zeros(1, 1, 33, 33)
    point[..., 16, 16] = 1
    y = ic.motion_blur(point, 6, 3.0, torch.tensor([0.0]))[0, 0]
    w = torch.softmax(-0.5 * (torch.arange(7.0) / 3) ** 2, 0)
    torch.testing.assert_close(y[16, 10:17], w.flip(0))
    assert float(y.sum()) == pytest.approx(1)
    down = ic.motion_blur(point, 6, 3.0, torch.tensor([torch.pi / 2]))[0, 0]
    torch.testing.assert_close(down, y.T)


def test_spatter_is_pale_water_or_brown_mud():
    x = gray(0.3, n=6)
    for severity in (1, 2, 3):
        added = ic.corrupted(x, "spatter", severity, SEEDS) - x
        torch.testing.assert_close(added.amax((2, 3)), 0.5 * torch.tensor(ic.WATER).expand(6, 3) / 255)
        share = (added[:, 0] > 0).double().mean()
        assert 0 < share < 0.5
        torch.testing.assert_close(added[:, 0] * 238, added[:, 1] * 175)
    for severity in (4, 5):
        y = ic.corrupted(x, "spatter", severity, SEEDS)
        covered = (y != x).any(1)
        assert 0.005 < covered.double().mean() < 0.5
        mud = (torch.tensor(ic.MUD) / 255).view(1, 3, 1, 1)
        cover = ((y - x) / (mud - x)).permute(0, 2, 3, 1)[covered]
        assert float(cover.min()) >= 0.8 - 1e-9 and float(cover.max()) <= 1 + 1e-9
        torch.testing.assert_close(cover[:, 0], cover[:, 2])


def test_brightness_and_saturation_are_those_of_hsv():
    rng = np.random.default_rng(0)
    pixels = np.r_[rng.random((40, 3)), np.repeat(rng.random((3, 1)), 3, 1), [[0, 0, 0], [1, 1, 1]]]
    x = torch.from_numpy(pixels.T.reshape(1, 3, 5, 9).copy())
    for severity in range(1, 6):
        offset, (a, b) = ic.STRENGTHS["brightness"][severity - 1], ic.STRENGTHS["saturate"][severity - 1]
        hsv = [colorsys.rgb_to_hsv(*one) for one in pixels]
        wanted = {
            "brightness": [colorsys.hsv_to_rgb(h, s, min(v + offset, 1)) for h, s, v in hsv],
            "saturate": [colorsys.hsv_to_rgb(h, min(a * s + b, 1), v) for h, s, v in hsv],
        }
        for kind, colors in wanted.items():
            y = ic.corrupted(x, kind, severity, SEEDS[:1])
            np.testing.assert_allclose(y[0].flatten(1).T.numpy(), np.array(colors), atol=1e-12)


def test_jpeg_and_pixelate_are_pillows(images):
    for severity in range(1, 6):
        quality, share = (ic.STRENGTHS[kind][severity - 1] for kind in ("jpeg_compression", "pixelate"))
        pixel, jpeg = (ic.corrupted(images, kind, severity, SEEDS) for kind in ("pixelate", "jpeg_compression"))
        for x, p, j in zip(*(part.permute(0, 2, 3, 1).numpy() for part in (images, pixel, jpeg)), strict=True):
            file = io.BytesIO()
            Image.fromarray(x).save(file, "JPEG", quality=quality)
            assert np.array_equal(np.array(Image.open(file)), j)
            small = Image.fromarray(x).resize((int(32 * share),) * 2, Image.Resampling.BOX)
            wanted = np.array(small.resize((32, 32), Image.Resampling.BOX)).astype(int)
            assert np.abs(wanted - p.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("shape", "kind", "severity", "message"),
    [
        ((3, 4, 32), "zoom_blur", 1, "at least 8 pixels a side for corruption 'zoom_blur', found 4 x 32; choose larger images"),
        ((1, 28, 28), "saturate", 1, "3 channels for corruption 'saturate', found 1"),
        ((3, 32, 32), "fog", 6, "severity from 1 to 5, found 6"),
        ((3, 32, 32), "smoke", 1, "corruption"),
    ],
)
def test_what_cannot_be_corrupted_is_said_in_one_line(shape, kind, severity, message):
    with pytest.raises(ValueError, match=message) as caught:
        ic.corrupted(torch.zeros(1, *shape, dtype=torch.uint8), kind, severity, torch.tensor([0]))
    assert "\n" not in str(caught.value)


def test_single_pixels_can_have_noise():
    assert ic.corrupted(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), "gaussian_noise", 1, torch.tensor([0])).shape == (1, 3, 1, 1)


def test_the_strengths_are_the_published_ones_of_cifar_10_c():
    published = {
        "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "shot_noise": (500, 250, 100, 75, 50),
        "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
        "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
        "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
        "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg_compression": (80, 65, 58, 50, 40),
    }
    assert {name: ic.STRENGTHS[name] for name in published} == published
