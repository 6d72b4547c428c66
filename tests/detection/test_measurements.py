"""Each flag finds what it names; clean folders have few."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from tests.conftest import DATA_ROOT
from torch.nn import functional as F

from vergence.detection import flags, measure
from vergence.detection.images import FLAGS, Measured, image_size


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


def test_clean_images_have_no_flags():
    found = flags(measure(photographs()))
    assert tuple(found) == FLAGS and {name: int(value.sum()) for name, value in found.items()} == dict.fromkeys(FLAGS, 0)


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
def test_what_is_planted_is_flagged(name, change):
    x = photographs()
    x[:20] = change(x[:20])
    found = flags(measure(x))
    assert found[name][:20].all() and not found[name][20:].any()


def test_sizes_are_those_of_the_files():
    x = photographs(50)
    height, width = np.full(50, 480.0), np.full(50, 640.0)
    (height[0], width[0]), (height[1], width[1]) = (120, 160), (300, 1500)
    found = flags(dataclasses.replace(measure(x), height=height, width=width))
    assert found["odd_size"].nonzero()[0].tolist() == [0] and found["odd_aspect_ratio"].nonzero()[0].tolist() == [1]


def test_a_property_of_the_whole_folder_is_not_an_error():
    gray = photographs()[:, :1]
    assert not any(value.any() for value in flags(measure(gray)).values())
    color = measure(photographs())
    assert flags(measure(gray[:3].expand(-1, 3, -1, -1)), color)["grayscale"].all()
    assert flags(measure(blurred(photographs(5, seed=1), 2.0)), color)["blurry"].all()


def test_measurements_equal_their_definitions():
    x = photographs(3)
    found = measure(x)
    for i, image in enumerate(x.double().numpy()):
        light = np.tensordot([0.2989, 0.587, 0.114], image, 1) / 255
        inner = 4 * light[1:-1, 1:-1] - light[2:, 1:-1] - light[:-2, 1:-1] - light[1:-1, 2:] - light[1:-1, :-2]
        assert found.sharpness[i] == pytest.approx(np.sqrt((inner**2).mean()) / light.std(), rel=1e-3)
        share = np.bincount(np.round(light * 255).astype(int).ravel(), minlength=256) / light.size
        assert found.information[i] == pytest.approx(-(share[share > 0] * np.log2(share[share > 0])).sum(), rel=1e-3)
        assert found.brightest[i] == pytest.approx(np.sort(light.ravel())[round(0.99 * (light.size - 1))], abs=1e-4)
    blocks = measure(photographs(300)).table
    np.testing.assert_allclose(blocks, np.concatenate([measure(part).table for part in photographs(300).split(7)]), rtol=1e-5)
    np.testing.assert_allclose(measure(x.float() / 255).table, found.table, rtol=1e-5)


def test_constant_and_tiny_images():
    found = measure(torch.full((2, 1, 2, 2), 9, dtype=torch.uint8))
    assert np.isfinite(found.table).all() and isinstance(found, Measured) and (found.sharpness == 0).all()


def test_the_size_of_a_file(tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    assert image_size(tmp_path / "a.png") == (20, 30)
    (tmp_path / "b.png").write_text("no image")
    for name in ("b.png", "missing.png"):
        with pytest.raises(ValueError, match="expected an image file, found"):
            image_size(tmp_path / name)


def test_real_photographs_have_few_flags():
    file = DATA_ROOT / "cifar-10-batches-py" / "data_batch_1"
    if not file.exists():
        pytest.skip("no CIFAR-10 laid out for torchvision: set VERGENCE_DATA")
    with file.open("rb") as opened:
        x = torch.from_numpy(pickle.load(opened, encoding="bytes")[b"data"]).view(-1, 3, 32, 32)[:2000]
    found = flags(measure(x))
    assert {name for name, value in found.items() if value.mean() > 0.01} <= {"grayscale"}
    assert found["grayscale"].mean() < 0.05  # CIFAR-10 does have gray photographs
