"""The 16 corruptions against their descriptions."""

import colorsys
import io

import numpy as np
import pytest
import torch
from experiments.corruption import image_corruptions as ic
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates

N = 6
SEEDS = torch.arange(100, 100 + N)


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


def test_zoom_blur_averages_enlarged_images():
    """In a linear image x(t) = a + b (t - center), an enlargement by z has the slope b / z."""
    t = (torch.arange(32.0) - 15.5) / 40
    x = (0.5 + t).expand(1, 3, 32, 32).clone()
    for severity, end in enumerate((1.06, 1.11, 1.16, 1.21, 1.26), 1):
        factors = np.arange(1, end, 0.01)
        slope = (1 + (1 / factors).sum()) / (len(factors) + 1)
        torch.testing.assert_close(ic.corrupted(x, "zoom_blur", severity, SEEDS[:1]), (0.5 + slope * t).expand(1, 3, 32, 32))


@pytest.mark.parametrize("severity", range(1, 6))
def test_snow_falls_along_its_angle_and_is_enlarged(severity):
    """Against scipy, on black: flakes of the same random numbers, enlarged, moved along the angle and averaged."""
    side = 32
    x = torch.zeros(len(SEEDS), 3, side, side, dtype=torch.float64)
    y = ic.corrupted(x, "snow", severity, SEEDS)
    mean, spread, zoom, least, radius, motion, own = ic.STRENGTHS["snow"][severity - 1]
    numbers = ic.Numbers(SEEDS, x)
    fields, turns = numbers.normal(1, side, side)[:, 0].numpy(), numbers.uniform(1)[:, 0].numpy()
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    center = (side - 1) / 2
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / motion) ** 2)
    for field, turn, found in zip(fields, turns, y.numpy(), strict=True):
        flakes = map_coordinates(
            mean + spread * field, [(rows - center) / zoom + center, (columns - center) / zoom + center], order=1
        )
        flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
        angle = np.radians(-45 - 90 * turn)
        fallen = sum(
            w * map_coordinates(flakes, [rows + t * np.sin(angle), columns + t * np.cos(angle)], order=1, mode="nearest")
            for t, w in enumerate(weights / weights.sum())
        )
        wanted = np.clip((1 - own) * 0.5 + fallen + fallen[::-1, ::-1], 0, 1)
        np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), atol=1e-9)


def test_the_fractal_is_the_published_one():
    """The mean of four neighbors on a torus plus w (2 u - 1) w, with w divided by the decay from step to step; in loops."""
    decay, side = 1.75, 32
    like = torch.zeros(1, 1, side, side, dtype=torch.float64)
    found, numbers = ic.plasma(ic.Numbers(SEEDS[:1], like), side, side, decay)[0, 0].numpy(), ic.Numbers(SEEDS[:1], like)
    p, step, w = np.zeros((side, side)), side, 1.0
    while step >= 2:
        half, k = step // 2, side // step
        for down, right in ((half, half), (0, half), (half, 0)):
            u = numbers.uniform(k, k)[0].numpy()
            corners = ((-half, -half), (-half, half), (half, -half), (half, half))
            around = corners if down and right else ((-half, 0), (half, 0), (0, -half), (0, half))
            for i in range(k):
                for j in range(k):
                    r, c = i * step + down, j * step + right
                    mean = sum(p[(r + a) % side, (c + b) % side] for a, b in around) / 4
                    p[r, c] = mean + w * (2 * u[i, j] - 1) * w
        step, w = half, w / decay
    p -= p.min()
    np.testing.assert_allclose(found, p / p.max(), atol=1e-12)


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
