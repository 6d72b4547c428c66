"""Images are read whole, as a viewer shows them, from any source; what cannot be read is listed with its reason."""

import os
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet
from tests.factories import png
from tests.refusals import refuses

from vergence.data.image_list import LoadedImage, open_images
from vergence.data.items import ArrayItems

R = np.random.default_rng(0)
COLOR = R.integers(0, 256, (40, 60, 3), dtype=np.uint8)
GRAY = R.integers(0, 256, (40, 60), dtype=np.uint8)

BITS = "whole numbers 0 to {} shown as 8 bits, `range` decides otherwise"


def save(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)
    return path


def only(path):
    return open_images(path).read(0)


def described(image: LoadedImage):
    return image.pixels.shape, image.size, image.digest, image.changes, int(image.pixels.sum())


@pytest.mark.parametrize("ending", ["png", "bmp", "tiff", "ppm", "tga", "jp2", "webp", "avif", "jfif", "jpe", "gif"])
def test_formats_are_read_by_their_content(tmp_path, ending):
    options = {"jfif": {"format": "JPEG"}, "jpe": {"format": "JPEG"}, "jp2": {"format": "JPEG2000"}}
    path = save(tmp_path / f"a.{ending}", COLOR, **{**options.get(ending, {}), "lossless": True, "quality": 95})
    image = only(path)
    assert image.pixels.shape == (3, 40, 60) and image.size == (40, 60) and image.pixels.dtype == np.uint8
    if ending in ("png", "bmp", "tiff", "ppm", "tga", "jp2", "webp"):
        np.testing.assert_array_equal(image.pixels, COLOR.transpose(2, 0, 1))
        assert image.digest == only(save(tmp_path / "b.png", COLOR)).digest
    if ending != "tga":
        path.rename(tmp_path / "wrong.jpg")
        assert described(only(tmp_path / "wrong.jpg")) == described(image)


def ink():
    return np.dstack([np.zeros((40, 60, 3), np.uint8), np.where(GRAY > 128, 255, 0).astype(np.uint8)])


@pytest.mark.parametrize(
    ("make", "right", "said"),
    [
        (lambda p: save(p, ink()), np.where(GRAY > 128, 0, 255), "transparency shown on white"),
        (lambda p: save(p, GRAY.astype(np.uint16)), GRAY, ""),
        (lambda p: save(p, GRAY.astype(np.uint16) * 4), GRAY, BITS.format("1,023")),
        (lambda p: save(p, GRAY.astype(np.uint16) * 257), GRAY, BITS.format("65,535")),
        (
            lambda p: save(p, 30_000 + (GRAY // 2).astype(np.uint16)),
            None,
            "whole numbers 30,000 to 30,127 shown as 8 bits, `range` decides otherwise",
        ),
        (
            lambda p: save(p.with_suffix(".tif"), GRAY.astype(np.float32) / 255),
            GRAY,
            "floats 0 to 1 shown as 8 bits, `range` decides otherwise",
        ),
        (lambda p: save(p, Image.fromarray(COLOR).convert("P")), None, ""),
        (lambda p: save(p.with_suffix(".jpg"), Image.fromarray(COLOR).convert("CMYK")), None, "CMYK to RGB"),
        (lambda p: save(p, Image.fromarray(GRAY > 128)), np.where(GRAY > 128, 255, 0), ""),
        (
            lambda p: save(p.with_suffix(".gif"), Image.fromarray(GRAY), save_all=True, append_images=[Image.new("L", (60, 40))]),
            GRAY,
            "first of several frames",
        ),
    ],
)
def test_pixels_are_those_that_a_viewer_shows(tmp_path, make, right, said):
    path = make(tmp_path / "a.png") or tmp_path / "a.png"
    image = only(path)
    assert image.size == (40, 60) and "; ".join(image.changes) == said
    if right is not None:
        np.testing.assert_array_equal(image.pixels[0], right)
    else:
        assert image.pixels.min() < 40 and image.pixels.max() > 200


def test_a_image_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = only(save(tmp_path / "a.png", COLOR, exif=exif))
    assert image.size == (60, 40) and image.changes == ("turned by its EXIF orientation",)
    np.testing.assert_array_equal(image.pixels, np.rot90(COLOR, -1).transpose(2, 0, 1))


def test_equal_images_share_a_digest_and_others_do_not(tmp_path):
    gray3 = np.repeat(GRAY[..., None], 3, 2)
    same = [save(tmp_path / "a.png", GRAY), save(tmp_path / "b.bmp", GRAY), save(tmp_path / "c.png", gray3)]
    other = [save(tmp_path / "d.png", GRAY ^ 1), save(tmp_path / "e.png", GRAY.reshape(60, 40))]
    digests = [only(path).digest for path in (*same, *other)]
    assert len(set(digests[:3])) == 1 and len(set(digests)) == 3


def test_large_files_are_read_reduced_and_keep_their_size(tmp_path):
    big = np.zeros((3000, 3600, 3), np.uint8)
    big[:1500] = 200
    for name in ("a.jpg", "a.png"):
        image = only(save(tmp_path / name, big))
        assert image.size == (3000, 3600) and 1600 <= max(image.pixels.shape) < 3000
        assert abs(int(image.pixels[:, :10].mean()) - 200) <= 2
    exif = Image.Exif()
    exif[0x0112] = 8
    turned = only(save(tmp_path / "t.jpg", big, exif=exif))
    assert turned.size == (3600, 3000) and turned.pixels.shape[1] > turned.pixels.shape[2]


@pytest.mark.parametrize("size", [(1, 1), (30_000, 2), (2, 30_000)])
def test_extreme_sizes(tmp_path, size):
    assert only(save(tmp_path / "a.png", Image.new("RGB", size))).size == size[::-1]


def test_a_folder_of_any_depth_lists_everything(tmp_path, capfd):
    save(tmp_path / "a.png", COLOR)
    save(tmp_path / "x" / "y" / "z.JPG", COLOR)
    (tmp_path / "x" / "phone").write_bytes((tmp_path / "x" / "y" / "z.JPG").read_bytes())
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "README").write_text("no image")
    (tmp_path / ".hidden.png").write_text("")
    (tmp_path / "page.jpg").write_text("<html>")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:900])
    (tmp_path / "i.heic").write_bytes(b"\0\0\0\x20ftypheic" + b"0" * 60)
    (tmp_path / "x" / "circle").symlink_to(tmp_path)
    (tmp_path / "again.png").symlink_to(tmp_path / "a.png")
    with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb") as file:  # noqa: PTH123
        file.write((tmp_path / "a.png").read_bytes())
    images = open_images(tmp_path)
    read = dict(images.map(lambda p: p.size, range(len(images))))
    names = [images.names[i] for i in read]
    assert sorted(names) == ["a.png", "bytes:caf%E9.png", "x/phone", "x/y/z.JPG"]
    reasons = {s.name: s.reason for s in images.skipped}
    assert set(reasons) == {"again.png", "cut.png", "empty.png", "i.heic", "page.jpg", "x/circle"}
    assert "pillow-heif" in reasons["i.heic"] and "link" in reasons["again.png"]
    assert images.ignored == {".txt": 1, "": 1} and capfd.readouterr().err == ""


def test_a_folder_that_changes_loses_nothing(tmp_path):
    for i in range(4):
        save(tmp_path / f"{i}.png", COLOR)
    images = open_images(tmp_path)
    (tmp_path / "2.png").unlink()
    assert [i for i, _ in images.map(lambda p: p.size, range(4))] == [0, 1, 3]
    assert [s.name for s in images.skipped] == ["2.png"]
    list(images.map(lambda p: p.size, range(4)))
    assert len(images.skipped) == 1  # each once


def mean(image):
    return image.pixels.mean()


def test_workers_give_the_same_in_the_same_order(tmp_path):
    for i in range(40):
        save(tmp_path / f"{i:02d}.png", R.integers(0, 256, (12, 9, 3), dtype=np.uint8))
    (tmp_path / "07.png").write_text("broken")
    found = []
    for workers in (0, 2):
        images = open_images(tmp_path)
        found.append((list(images.map(mean, range(40), workers)), images.skipped))
    assert found[0] == found[1] and len(found[0][0]) == 39


def sources(folder):
    paths = [save(folder / "pictures" / f"{i}.png", COLOR ^ i) for i in range(3)]
    arrays = np.stack([COLOR ^ i for i in range(3)])
    data = [png(x) for x in arrays]
    texts = pa.table({"label": ["a", "b", "c"], "file": [f"pictures/{i}.png" for i in range(3)]})
    csv.write_csv(texts, folder / "t.csv")
    parquet.write_table(texts, folder / "t.parquet")
    parquet.write_table(pa.table({"image": [{"bytes": d, "path": None} for d in data]}), folder / "hf.parquet")
    parquet.write_table(pa.table({"n": [1, 2, 3], "png": pa.array(data, pa.binary())}), folder / "b.parquet")
    np.save(folder / "a.npy", arrays)
    np.savez(folder / "a.npz", images=arrays)
    for name, mode in (("a.tar", "w"), ("a.tar.gz", "w:gz")):
        with tarfile.open(folder / name, mode) as tar:
            tar.add(folder / "pictures", "pictures")
            tar.add(folder / "t.csv", "t.csv")
    yield from (folder / "pictures", [str(p) for p in paths], np.array([str(p) for p in paths], dtype=object))
    yield from (
        folder / name for name in ("t.csv", "t.parquet", "hf.parquet", "b.parquet", "a.npy", "a.npz", "a.tar", "a.tar.gz")
    )
    yield from (arrays, arrays.transpose(0, 3, 1, 2), torch.from_numpy(arrays), list(arrays))
    yield [Image.fromarray(x) for x in arrays]
    yield ArrayItems(torch.from_numpy(arrays.transpose(0, 3, 1, 2).copy()))
    yield pa.table({"image": [{"bytes": d, "path": None} for d in data]})


def test_every_source_gives_the_same_images(tmp_path):
    digests = [only([COLOR ^ i]).digest for i in range(3)]
    for source in sources(tmp_path):
        images = open_images(source)
        assert [images.read(i).digest for i in range(len(images))] == digests, type(source)
        assert len(set(images.names)) == 3


def test_images_of_differing_sizes_and_repeated_paths(tmp_path):
    path = save(tmp_path / "a.png", COLOR)
    images = open_images([path, path])
    assert len(images) == 1 and images.path(0) == path and images.skipped[0].reason == "named before, and read once"
    assert [open_images([GRAY, COLOR]).read(i).pixels.shape[0] for i in (0, 1)] == [1, 3]
    assert len(open_images("digits")) > 100


def test_what_is_no_source_is_refused(tmp_path):
    two = pa.table({"a": pa.array([b"x"], pa.binary()), "b": pa.array([b"x"], pa.binary())})
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("x")
    (tmp_path / "bad.tar").write_text("no tar")
    (tmp_path / "bad.parquet").write_text("no table")
    cases = [
        (tmp_path / "text", "images in .*found none, and 1 other files"), (tmp_path / "missing", "no such file or folder"),
        (tmp_path / "bad.tar", "expected a tar of images"), (tmp_path / "bad.parquet", "expected a table"),
        ([], "an empty list"), ([3.5], "item 0"), (two, "one column of images in the table, found 2"),
        (np.zeros((4, 3)), r"\(N, H, W"), (7, "a int"),
    ]  # fmt: skip
    for source, words in cases:
        with pytest.raises(ValueError, match=words):
            open_images(source)
    refuses("a column of", open_images, two, column="c")
    assert len(open_images(two, column="a")) == 1


def test_what_is_read_wrongly_is_a_reason(tmp_path):
    os.mkfifo(tmp_path / "fifo.png")
    refuses("not a regular file", only, [tmp_path / "fifo.png"])
    refuses("finite", open_images(np.full((1, 3, 4, 4), np.nan)).read, 0)
