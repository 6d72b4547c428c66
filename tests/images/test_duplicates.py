"""Copies are found whatever was done to them; different pictures, however alike in layout, are none."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from sklearn.datasets import load_sample_images

from vergence.images import duplicates as c
from vergence.images.duplicates import Duplicates, duplicate_sets, find_duplicates, small_image


def textured(seed, size=(96, 128)):
    """A picture with shapes of all sizes, unlike any other seed's."""
    r = np.random.default_rng(seed)
    image = Image.fromarray(r.integers(40, 215, (5, 7, 3), dtype=np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, s = r.integers(0, size[1]), r.integers(0, size[0]), size[0] / 2 ** r.uniform(1.5, 5)
        draw.ellipse([x, y, x + s, y + s * r.uniform(0.4, 2)], fill=tuple(r.integers(0, 255, 3).tolist()))
    return image


def again(image):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


def marked(image):
    image = image.copy()
    ImageDraw.Draw(image).text((4, image.height - 16), "(c) 2026", fill=(255, 255, 255))
    return image


def moved(image):
    x = np.asarray(image)
    return Image.fromarray(np.pad(x, ((3, 0), (4, 0), (0, 0)), mode="edge")[: x.shape[0], : x.shape[1]])


CHANGES = {
    "resized": lambda i: i.resize((i.width // 2, i.height // 2)),
    "saved again": again,
    "cropped on all sides": lambda i: i.crop((i.width // 20, i.height // 20, i.width * 19 // 20, i.height * 19 // 20)),
    "cropped on one side": lambda i: i.crop((i.width // 10, 0, i.width, i.height)),
    "brightened": lambda i: ImageEnhance.Brightness(i).enhance(1.35),
    "gray": lambda i: i.convert("L"),
    "marked": marked,
    "moved": moved,
    "mirrored": lambda i: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned": lambda i: i.transpose(Image.Transpose.ROTATE_90),
    "half turned": lambda i: i.transpose(Image.Transpose.ROTATE_180),
}
KIND = {"mirrored": "mirrored", "turned": "turned", "half turned": "turned"}


def small(images):
    return np.stack([small_image(pixels(image)) for image in images])


def pixels(image):
    x = np.asarray(image)
    return x[None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(2, 0, 1))


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_found_and_nothing_else(change):
    originals = [textured(i) for i in range(40)]
    x = small([*originals, *(CHANGES[change](image) for image in originals[:10])])
    found = find_duplicates(x, np.arange(50))
    assert {tuple(pair) for pair in found.pairs.tolist()} <= {(i, 40 + i) for i in range(10)}
    assert len(found) >= 9 and (np.diff(found.agreement) <= 0).all()
    if change in KIND:
        assert set(found.kind) == {KIND[change]}


@pytest.mark.parametrize("change", CHANGES)
def test_photographs_and_their_copies_between_two_collections(change):
    photographs = [Image.fromarray(x) for x in load_sample_images().images]
    ours, theirs = small([CHANGES[change](image) for image in photographs]), small([textured(0), *photographs])
    found = find_duplicates(ours, np.arange(2), theirs, np.arange(10, 13))
    assert found.pairs.tolist() in ([[0, 1], [1, 2]], [[1, 2], [0, 1]])


def test_noise_constants_and_thin_drawings_are_no_copies():
    r = np.random.default_rng(0)
    noise = [r.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
    black = [r.integers(0, 4, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
    drawings = []
    for _ in range(20):
        image = Image.new("RGB", (64, 64), "white")
        ImageDraw.Draw(image).line(r.integers(0, 64, 4).tolist(), fill="black", width=2)
        drawings.append(np.asarray(image))
    skies = [np.asarray(textured(i).filter(ImageFilter.GaussianBlur(30))) for i in range(20)]
    for group in (noise, black, drawings, skies):
        assert len(find_duplicates(small(map(Image.fromarray, group)), np.arange(20))) == 0


def test_equal_digests_are_equal_whatever_they_show():
    x = small([Image.new("RGB", (8, 8))] * 3 + [textured(0)])
    found = find_duplicates(x, np.array([5, 7, 5, 9]))
    assert found.pairs.tolist() == [[0, 2]] and found.kind == ["equal"] and found.agreement.tolist() == [1.0]
    between = find_duplicates(x, np.array([5, 7, 5, 9]), x[:1], np.array([7]))
    assert between.pairs.tolist() == [[1, 0]] and between.kind == ["equal"]


def test_ten_thousand_equal_pictures_are_one_group():
    x = np.repeat(small([textured(0)]), 10_000, 0)
    found = find_duplicates(x, np.zeros(10_000, dtype=np.int64))
    assert len(found) == 9_999 and (duplicate_sets(found, 10_000) == 0).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_pictures(n):
    x = small([textured(0), again(textured(0))])[:n] if n else np.zeros((0, 1072), np.uint8)
    assert len(find_duplicates(x, np.arange(n))) == (n == 2)
    assert len(duplicate_sets(Duplicates(np.zeros((0, 2), np.int64), [], np.zeros(0)), n)) == n


def test_the_order_does_not_matter_and_clusters_find_the_same(monkeypatch):
    originals = [textured(i) for i in range(60)]
    x = small([*originals, *(marked(image) for image in originals[:20])])
    order = np.random.default_rng(0).permutation(80)
    first, second = find_duplicates(x, np.arange(80)), find_duplicates(x[order], order)
    pairs = {tuple(sorted(pair)) for pair in first.pairs.tolist()}
    assert {tuple(sorted(order[list(pair)].tolist())) for pair in second.pairs.tolist()} == pairs and len(pairs) >= 18
    monkeypatch.setattr(c, "EXACT_UP_TO", 10)
    monkeypatch.setattr(c, "PER_CLUSTER", 10)
    assert {tuple(pair) for pair in find_duplicates(x, np.arange(80)).pairs.tolist()} == pairs


def test_a_different_color_is_another_picture():
    image = textured(3)
    r, g, b = image.split()
    other = Image.merge("RGB", (b, g, r))
    assert len(find_duplicates(small([image, other]), np.arange(2))) == 0


def test_the_correlation_is_that_of_its_definition():
    r = np.random.default_rng(0)
    x, y = r.normal(size=(2, 5, 30))
    x[3] = 2.0
    right = [0.0 if i == 3 else np.corrcoef(x[i], y[i])[0, 1] for i in range(5)]
    np.testing.assert_allclose(c.correlation(torch.from_numpy(x), torch.from_numpy(y)).numpy(), right, atol=1e-12)


def test_a_window_is_cut_where_it_lies():
    x = torch.arange(32.0).expand(1, 1, 32, 32)
    whole = c._cut(x, torch.tensor([[0.0, 0.0, 1.0, 1.0]]), 32).view(32, 32)
    torch.testing.assert_close(whole, x[0, 0].to(whole))
    right = c._cut(x, torch.tensor([[0.0, 0.5, 1.0, 0.5]]), 16).view(16, 16)
    torch.testing.assert_close(right[0], torch.arange(16.0, 32.0).to(right))
