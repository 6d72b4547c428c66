"""Each property finds what it names; clean folders have few; every measurement is its definition."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from sklearn.datasets import load_sample_images
from tests.conftest import DATA_ROOT
from torch.nn import functional as F

from vergence.images.measurements import (
    MEASUREMENTS,
    PROPERTIES,
    WORDS,
    common_properties,
    differences_in_words,
    measure,
    properties,
    split_in_two,
)


def table(x):
    return np.stack([measure(image.numpy()) for image in x])


def column(values, name):
    return values[:, MEASUREMENTS.index(name)]


def photographs(n=300, size=32, seed=0):
    """Images with structure at all scales, in color."""
    r = torch.Generator().manual_seed(seed)
    x = sum(
        F.interpolate(torch.randn(n, 3, s, s, generator=r, dtype=torch.float32), (size, size), mode="bilinear") * w
        for s, w in ((4, 40), (8, 20), (16, 12), (size, 8))
    )
    return (127 + x).clamp(0, 255).byte()


def blurred(x, sigma):
    k = torch.arange(-6, 7).float()
    g = torch.exp(-k.square() / (2 * sigma**2))
    g = (g / g.sum()).float()
    y = F.pad(x.float(), (6, 6, 6, 6), mode="replicate").flatten(0, 1)[:, None]
    y = F.conv2d(F.conv2d(y, g[None, None, None]), g[None, None, :, None])
    return y.view(x.shape).round().byte()


def test_clean_images_have_no_properties():
    found = properties(table(photographs()))
    assert tuple(found) == tuple(PROPERTIES) and {name: int(value.sum()) for name, value in found.items()} == dict.fromkeys(
        PROPERTIES, 0
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dark", lambda x: (x.float() * 0.2).byte()),
        ("light", lambda x: (250 + x.float() * 0.02).clamp(max=255).byte()),
        ("blurry", lambda x: blurred(x, 2.0)),
        ("low_information", lambda x: torch.stack([x[:, 0] // 128 * 255, x[:, 0] * 0, 200 - x[:, 0] // 128 * 200], 1)),
        ("grayscale", lambda x: x[:, :1].expand(-1, 3, -1, -1)),
    ],
)
def test_what_is_planted_is_found(name, change):
    x = photographs()
    x[:20] = change(x[:20])
    found = properties(table(x))
    assert found[name][:20].all() and not found[name][20:].any()


def test_sizes_are_those_of_the_files():
    values = table(photographs(50))
    values[:, :2] = 480.0, 640.0
    values[0, :2], values[1, :2] = (120, 160), (300, 1500)
    found = properties(values)
    assert found["extreme_size"].nonzero()[0].tolist() == [0] and found["extreme_aspect_ratio"].nonzero()[0].tolist() == [1]


def test_a_property_of_the_whole_folder_is_not_an_error():
    gray = photographs()[:, :1]
    assert not any(value.any() for value in properties(table(gray)).values())
    color = table(photographs())
    assert properties(table(gray[:3].expand(-1, 3, -1, -1)), color)["grayscale"].all()
    assert properties(table(blurred(photographs(5, seed=1), 2.0)), color)["blurry"].all()


def test_sharpness_is_compared_with_images_of_a_similar_size():
    """Enlarged images are less sharp pixel by pixel, as large photographs are, and are not blurry next to each other."""
    small, large = photographs(40), photographs(40, seed=1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    large = blurred(large, 2.5)
    values = np.concatenate([table(small), table(large)])
    assert not properties(values)["blurry"].any()
    assert properties(np.concatenate([values, table(blurred(small[:1], 3.0))]))["blurry"].nonzero()[0].tolist() == [80]


def test_measurements_equal_their_definitions():
    for image in photographs(3):
        x, found = image.double().numpy() / 255, dict(zip(MEASUREMENTS, measure(image.numpy()), strict=True))
        light = np.tensordot([0.299, 0.587, 0.114], x, 1)
        edges = 4 * light[1:-1, 1:-1] - light[2:, 1:-1] - light[:-2, 1:-1] - light[1:-1, 2:] - light[1:-1, :-2]
        mask = np.outer([1, -2, 1], [1, -2, 1])
        noise = np.abs([[(light[r : r + 3, c : c + 3] * mask).sum() for c in range(30)] for r in range(30)])
        share = np.bincount(np.round(light * 255).astype(int).ravel(), minlength=256) / light.size
        difference = x.max(0) - x.min(0)
        right = {
            "height": 32, "width": 32, "information": -(share[share > 0] * np.log2(share[share > 0])).sum(),
            "colorfulness": 255 * difference.max(), "sharpness": edges.std() / light.std(),
            "edges": np.log(np.abs(edges).mean() + 1e-3), "edge_deviation": np.log(edges.std() + 1e-3),
            "noise": np.log(noise.mean() + 1e-3), "noise_median": np.log(np.median(noise) + 1e-3),
            "contrast": np.log(light.std() + 1e-3), "green": x[1].mean(), "blue_deviation": np.log(x[2].std() + 1e-3),
            "saturation": difference.mean(), "left_light": light[:, :2].mean(),
            "bottom_deviation": np.log(light[-2:].std() + 1e-3),
        }  # fmt: skip
        assert found == pytest.approx({**found, **right}, rel=1e-3)
        assert found["light_95"] == pytest.approx(np.quantile(light, 0.95), abs=1 / 128)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 9), (1, 2, 2), (3, 3, 400)])
def test_constant_and_tiny_images(shape):
    values = measure(np.full(shape, 9, dtype=np.uint8))
    assert np.isfinite(values).all() and values[MEASUREMENTS.index("sharpness")] == 0
    assert np.isfinite(measure(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))).all()


def test_words_name_what_differs_most():
    assert set(WORDS) <= set(MEASUREMENTS)
    assert (
        differences_in_words(np.array([0.0, 3.0, -8.0]), ["red", "noise_median", "contrast"])
        == "less contrast, noisier than most images"
    )
    assert differences_in_words(np.array([0.0, 2.0]), ["red", "edges"]) == ""


def test_real_photographs_have_few_flags():
    file = DATA_ROOT / "cifar-10-batches-py" / "data_batch_1"
    if not file.exists():
        pytest.skip("no CIFAR-10 laid out for torchvision: set VERGENCE_DATA")
    with file.open("rb") as opened:
        x = torch.from_numpy(pickle.load(opened, encoding="bytes")[b"data"]).view(-1, 3, 32, 32)[:2000]
    found = properties(table(x))
    assert {name for name, value in found.items() if value.mean() > 0.01} <= {"grayscale"}
    assert found["grayscale"].mean() < 0.05  # CIFAR-10 does have gray photographs


def real_crops(n=60):
    """Crops of two photographs; some hold little but sky, or a soft ground."""
    r, images = np.random.default_rng(0), load_sample_images().images
    for k in range(n):
        h = int(r.integers(120, 400))
        w, image = min(640, int(1.3 * h)), images[k % 2]
        y, x = int(r.integers(0, 428 - h)), int(r.integers(0, 641 - w))
        yield image[y : y + h, x : x + w]


def test_dark_and_plain_photographs_are_not_blurry():
    crops = [Image.fromarray(x) for x in real_crops()]
    usual = np.stack([measure(np.asarray(x).transpose(2, 0, 1)) for x in crops])
    assert properties(usual)["blurry"].sum() <= 2

    def blurry(change):
        changed = [np.asarray(change(x)).transpose(2, 0, 1) for x in crops[:20]]
        return properties(np.stack([measure(x) for x in changed]), usual)["blurry"].sum()

    def half_black(image):
        image = image.copy()
        image.paste((5, 5, 5), (0, 0, image.width, 2 * image.height // 3))
        return image

    def on_white(image):
        ground = Image.new("RGB", (2 * image.width, 2 * image.height), (250, 250, 250))
        ground.paste(image, (image.width // 2, image.height // 2))
        return ground

    assert [blurry(f) for f in (half_black, on_white, lambda x: x.point(lambda v: 0.15 * v))] == [0, 0, 0]
    assert [blurry(lambda x, s=s: x.filter(ImageFilter.GaussianBlur(s))) for s in (2, 3, 4)] == [20, 20, 20]


def test_a_property_of_many_is_common():
    values = table(photographs(500))
    assert common_properties(values) == {}
    column(values, "light_05")[:30] = 0.99
    assert common_properties(values) == {"light": 30} and not properties(values)["light"].any()
    assert properties(values[:3], values[30:])["light"].all()
    column(values, "light_05")[20:30] = 0.2
    assert properties(values)["light"].sum() == 20


@pytest.mark.parametrize("dark", [12, 80])
def test_two_lights_are_reported_and_one_is_not(dark):
    r = np.random.default_rng(0)
    shade = np.where(np.arange(200) < dark, 60, 170)[:, None, None, None]
    table = np.array([measure(x) for x in np.uint8(np.clip(shade + 20 * r.normal(size=(200, 3, 16, 16)), 0, 255))])
    words = split_in_two(table, MEASUREMENTS)
    assert words.startswith(f"{dark} images are darker than the other {200 - dark}: ")
    assert split_in_two(table[dark:], MEASUREMENTS) == ""
    assert all(split_in_two(x, MEASUREMENTS[:1]) == "" for x in (table[:, :1], table[:1, :1]))
