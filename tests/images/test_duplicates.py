"""Duplicates are found whatever was done to them; different images, however alike in layout, are none."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch.nn import functional as F

from vergence.images import duplicates as c
from vergence.images.duplicates import Duplicates, duplicate_sets, find_duplicates, small_image
from vergence.images.features import shrunk
from vergence.images.registration import _blurred, registered, warped


def textured(seed, size=(96, 128)):
    """A image with shapes of all sizes, unlike any other seed's."""
    r = np.random.default_rng(seed)
    image = Image.fromarray(r.integers(40, 215, (5, 7, 3), dtype=np.uint8)).resize(size[::-1], Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, s = r.integers(0, size[1]), r.integers(0, size[0]), size[0] / 2 ** r.uniform(1.5, 5)
        draw.ellipse([x, y, x + s, y + s * r.uniform(0.4, 2)], fill=tuple(r.integers(0, 255, 3).tolist()))
    return image


def again(image):
    return saved(image).convert("RGB")


def saved(image, quality=40):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


def marked(image):
    image = image.copy()
    ImageDraw.Draw(image).text((4, image.height - 16), "(c) 2026", fill=(255, 255, 255))
    return image


def moved(image):
    x = np.asarray(image)
    return Image.fromarray(np.pad(x, ((3, 0), (4, 0), (0, 0)), mode="edge")[: x.shape[0], : x.shape[1]])


CHANGES = {
    "resized": lambda i: i.resize((i.width // 2, i.height // 2)), "saved again": again,
    "cropped on all sides": lambda i: i.crop((i.width // 20, i.height // 20, i.width * 19 // 20, i.height * 19 // 20)),
    "cropped on one side": lambda i: i.crop((i.width // 10, 0, i.width, i.height)),
    "brightened": lambda i: ImageEnhance.Brightness(i).enhance(1.35), "gray": lambda i: i.convert("L"), "marked": marked,
    "moved": moved,
    "cropped by three tenths": lambda i: i.crop((i.width * 3 // 20, i.height * 3 // 20, i.width * 17 // 20, i.height * 17 // 20)),
    "tinted": lambda i: Image.fromarray((np.asarray(i) * [1.0, 0.9, 0.65]).astype(np.uint8)),
    "framed": lambda i: ImageOps.expand(i, i.width // 12, (255, 255, 255)),
    "between bars": lambda i: ImageOps.expand(i, (0, i.height // 6), 0),
    "mirrored": lambda i: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "rotated": lambda i: i.transpose(Image.Transpose.ROTATE_90),
    "half rotated": lambda i: i.transpose(Image.Transpose.ROTATE_180),
}  # fmt: skip
KIND = {"mirrored": "mirrored", "rotated": "rotated", "half rotated": "rotated"}


def found(images, digest=None, others=None):
    """Returns the duplicates among images, or between these and others."""

    def arguments(some, digest):
        x = [shrunk(pixels(image), 256) for image in some]
        small = np.stack([small_image(one) for one in x]) if x else np.zeros((0, 1024), np.uint8)
        return small, np.arange(len(x)) if digest is None else np.array(digest), x.__getitem__

    return find_duplicates(*arguments(images, digest), *(arguments(*others) if others else ()))


def pixels(image):
    x = np.asarray(image)
    return x[None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(2, 0, 1))


def versions(seed, n):
    """Changed versions of one image: resized, brightened, cropped and marked, each in a way of its own."""
    r, out = np.random.default_rng(seed), []
    for _ in range(n):
        image = again(textured(seed, (192, 256)).resize(tuple(r.integers((140, 100), (256, 192)).tolist())))
        image = ImageEnhance.Brightness(image).enhance(r.uniform(0.8, 1.15))
        left, top, right, bottom = (r.uniform(0, 0.07, 4) * min(image.size)).astype(int).tolist()
        image = image.crop((left, top, image.width - right, image.height - bottom))
        ImageDraw.Draw(image).text((r.integers(4, 60), r.integers(4, 80)), f"(c) {r.integers(99)}", fill=(255, 255, 255))
        out.append(image)
    return out


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_duplicate_is_found_and_nothing_else(change):
    originals = [textured(i) for i in range(40)]
    f = found([*originals, *(CHANGES[change](image) for image in originals[:10])])
    assert {tuple(pair) for pair in f.pairs.tolist()} <= {(i, 40 + i) for i in range(10)}
    assert len(f) >= 9 and (np.diff(f.agreement) <= 0).all()
    if change in KIND:
        assert set(f.kind) == {KIND[change]}


@pytest.mark.parametrize("change", CHANGES)
def test_photographs_and_their_duplicates_between_two_collections(change):
    photographs = [Image.fromarray(x) for x in load_sample_images().images]
    theirs = [textured(0), *photographs], np.arange(10, 13)
    f = found([CHANGES[change](image) for image in photographs], None, theirs)
    assert f.pairs.tolist() in ([[0, 1], [1, 2]], [[1, 2], [0, 1]])


def labels(n):
    r, out = np.random.default_rng(0), []
    for _ in range(n):
        label = Image.new("L", (200, 200), 255)
        ImageDraw.Draw(label).rectangle([10, 10, 190, 190], outline=0, width=3)
        ImageDraw.Draw(label).text((70, 90), f"{r.integers(1e9):09d}", fill=0)
        out.append(label)
    return out


def parts(n):
    """Parts of one kind, with streaks of their own and noise."""
    r, out = np.random.default_rng(0), []
    for _ in range(n):
        part = Image.fromarray(np.tile(150 + 20 * np.cos(np.arange(160) / 25), (160, 1)).astype(np.uint8))
        draw = ImageDraw.Draw(part)
        draw.rectangle((4, 4, 155, 155), outline=40, width=6)
        for y in (35, 80, 125):
            draw.line((5, y, 155, y), fill=60, width=3)
        for x, y in r.integers(15, 140, (4, 2)).tolist():
            draw.line((x, y, x + 3, y + 20), fill=100, width=2)
        out.append(Image.fromarray((np.asarray(part) + r.normal(0, 3, (160, 160))).clip(0, 255).astype(np.uint8)))
    return out


def camera(n):
    """Frames of a fixed camera: one background, things that pass, and noise."""
    r, out = np.random.default_rng(0), []
    background = Image.fromarray(load_sample_images().images[0]).resize((320, 214))
    for _ in range(n):
        frame = background.copy()
        x, y = r.integers(10, 280), r.integers(90, 180)
        ImageDraw.Draw(frame).ellipse((x, y, x + 20, y + 30), fill=tuple(r.integers(0, 255, 3).tolist()))
        out.append(Image.fromarray((np.asarray(frame) + r.normal(0, 3, (214, 320, 1))).clip(0, 255).astype(np.uint8)))
    return out


def scans(n):
    return [Image.fromarray((255 - x * 255 / 16).astype(np.uint8)).resize((64, 64)) for x in load_digits().images[:n]]


@pytest.mark.parametrize("kind", [labels, parts, camera, scans])
def test_different_things_of_one_kind_are_no_duplicates_and_one_saved_again_is(kind):
    images = kind(24)
    assert len(found(images)) == 0
    if kind is labels:
        assert found([*images, saved(images[3], 90)]).pairs.tolist() == [[3, 24]]


@pytest.mark.parametrize("n", [2, 6, 13, 25])
def test_many_versions_of_one_image_do_not_hide_each_other(n):
    f = found([*(textured(100 + i) for i in range(20)), *versions(7, n)])
    assert f.pairs.min() >= 20 and len(set(f.pairs[:, 1].tolist())) >= 0.8 * (n - 1)


def test_noise_constants_thin_drawings_and_other_colors_are_no_duplicates():
    r = np.random.default_rng(0)
    noise = [r.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
    black = [r.integers(0, 4, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
    drawings = []
    for _ in range(20):
        image = Image.new("RGB", (64, 64), "white")
        ImageDraw.Draw(image).line(r.integers(0, 64, 4).tolist(), fill="black", width=2)
        drawings.append(np.asarray(image))
    skies = [np.asarray(textured(i).filter(ImageFilter.GaussianBlur(30))) for i in range(20)]
    colors = [np.asarray(textured(3)), np.asarray(textured(3))[..., ::-1]]
    for group in (noise, black, drawings, skies, colors):
        assert len(found(map(Image.fromarray, group))) == 0


def test_equal_digests_are_exact_whatever_they_show():
    x, digest = [*[Image.new("RGB", (8, 8))] * 3, textured(0)], [5, 7, 5, 9]
    f = found(x, digest)
    assert f.pairs.tolist() == [[0, 2]] and f.kind == ["exact"] and f.agreement.tolist() == [1.0]
    between = found(x, digest, (x[:1], [7]))
    assert between.pairs.tolist() == [[1, 0]] and between.kind == ["exact"]


def test_ten_thousand_equal_images_are_one_group_and_none_is_read():
    x = np.repeat(small_image(pixels(textured(0)))[None], 10_000, 0)
    f = find_duplicates(x, np.zeros(10_000, dtype=np.int64), lambda i: pytest.fail("was read"))
    assert len(f) == 9_999 and (duplicate_sets(f, 10_000) == 0).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_images(n):
    assert len(found([textured(0), again(textured(0))][:n])) == (n == 2)
    assert len(duplicate_sets(Duplicates(np.zeros((0, 2), np.int64), [], np.zeros(0)), n)) == n


def test_the_order_does_not_matter_and_clusters_find_the_same(monkeypatch):
    originals = [textured(i) for i in range(60)]
    x = [*originals, *(marked(image) for image in originals[:20])]
    order = np.random.default_rng(0).permutation(80)
    first, second = found(x), found([x[k] for k in order], order)
    pairs = {tuple(sorted(pair)) for pair in first.pairs.tolist()}
    assert {tuple(sorted(order[list(pair)].tolist())) for pair in second.pairs.tolist()} == pairs and len(pairs) >= 18
    monkeypatch.setattr(c, "EXACT_UP_TO", 10)
    monkeypatch.setattr(c, "PER_CLUSTER", 10)
    assert {tuple(pair) for pair in found(x).pairs.tolist()} == pairs


def test_a_window_is_found_to_a_part_of_a_pixel():
    x = torch.from_numpy(pixels(textured(1, (96, 96)).convert("L")).astype(np.float32))[None]
    right = torch.tensor([[0.82, 0.07, 0.86, 0.1]], dtype=torch.float32)
    frame, _ = warped(x, right, 64, 64)
    warp, value = registered(x, frame[:, 0], torch.tensor([[0.8, 0.1, 0.8, 0.1]], dtype=torch.float32), 12)
    assert float(value[0]) > 0.999
    torch.testing.assert_close(warp, right, atol=2e-3, rtol=0)


@pytest.mark.parametrize("side", [3, 7])
def test_sums_of_shifted_images_are_means_of_neighborhoods(side):
    x = 255 * torch.rand(2, 1, 20, 30, generator=torch.Generator().manual_seed(0))
    near = F.pad(x, (side // 2,) * 4, mode="reflect").unfold(2, side, 1).unfold(3, side, 1)
    torch.testing.assert_close(_blurred(x, side), near.mean((-1, -2)))
