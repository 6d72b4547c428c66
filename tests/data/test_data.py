"""Every source kind, every refusal, and the bytes that come out."""

import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageOps
from sklearn.datasets import load_digits
from tests.refusals import refuses

from vergence.data.arrays import from_array, open_arrays
from vergence.data.config import DataConfig
from vergence.data.images import ImageFiles, decode, header, image_files, listing
from vergence.data.items import ArrayItems, Items, PairItems, Skipped, batches, load, spaced
from vergence.data.pixels import fit_shape
from vergence.data.sources import open_data, open_items

SRC = Path(__file__).parents[2] / "src"


def rng():
    return np.random.default_rng(0)


def smooth(height, width, seed=0):
    """A photograph-like RGB image: low frequencies, so that a resized copy is well defined."""
    coarse = np.random.default_rng(seed).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def write(path, height=40, width=50, seed=0, mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    smooth(height, width, seed).convert(mode).save(path, **options)
    return path


def read_all(items, size=3, workers=0):
    parts = list(items.stream(batches(len(items), size), workers))
    return torch.cat([index for index, _ in parts]), torch.cat([x for _, x in parts])


def printed(code):
    """The words that a program prints, in a process of its own."""
    env = {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout.split()


def opened(source, **settings):
    return open_data(DataConfig(source=str(source), **settings), workers=0)


def refused(source, match, **settings):
    refuses(match, opened, source, **settings)


def test_subset_of_subset_keeps_rows_labels_and_names():
    x = rng().normal(size=(30, 2))
    items = ArrayItems(x, torch.arange(30) % 3)
    part = items.subset(torch.arange(29, 9, -1)).subset(torch.tensor([0, 5, 5]))
    rows = [29, 24, 24]
    np.testing.assert_array_equal(read_all(part)[1].numpy(), x[rows].astype(np.float32))
    assert part.labels.tolist() == [2, 0, 0] and list(part.names) == ["29", "24", "24"]
    assert part.array is items.array or part.array.data_ptr() == items.array.data_ptr()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f8", np.int64, np.uint8, np.int8])
def test_vectors_of_any_number_are_float32(kind):
    x = rng().integers(0, 100, (8, 3)).astype(kind)
    items = from_array(x)
    assert items.dtype == torch.float32
    np.testing.assert_array_equal(read_all(items)[1].numpy(), x.astype(np.float32))


@pytest.mark.parametrize(
    "shape, wanted", [((6, 9, 8), (1, 9, 8)), ((6, 9, 8, 3), (3, 9, 8)), ((6, 3, 9, 8), (3, 9, 8)), ((6, 1, 9, 8), (1, 9, 8))]
)
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_layouts_of_images(shape, wanted, kind):
    x = rng().integers(0, 255, shape, dtype=np.uint8).astype(kind) / (1 if kind is np.uint8 else 255)
    items = from_array(x.astype(kind))
    y = read_all(items)[1]
    assert items.shape == wanted and y.dtype == (torch.uint8 if kind is np.uint8 else torch.float32)
    for n in range(6):
        for c in range(wanted[0]):
            slow = x[n] if x.ndim == 3 else x[n, c] if shape[1] == wanted[0] else x[n, :, :, c]
            np.testing.assert_array_equal(y[n, c].numpy(), slow.astype(y.numpy().dtype))


def test_fit_agrees_with_pillow():
    image = smooth(50, 70)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    # The crop's corners lie between pixels' edges here, so that cutting first is the same for both.
    for mode, shape, box in [
        ("RGB", (3, 16, 16), (10, 0, 60, 50)),
        ("L", (1, 16, 16), (10, 0, 60, 50)),
        ("RGB", (3, 12, 20), (0, 4, 70, 46)),
    ]:
        hand = image.convert(mode).crop(box).resize(shape[:0:-1], Image.Resampling.BILINEAR)
        found = fit_shape(x, shape)[0].permute(1, 2, 0).numpy().astype(float)
        assert np.abs(found - np.asarray(hand).reshape(found.shape)).max() <= 1.5
    gray = fit_shape(x, (1, 50, 70))
    assert torch.equal(fit_shape(gray, (3, 50, 70)), gray.expand(-1, 3, -1, -1))
    assert fit_shape(x / 255, (1, 8, 8)).dtype == torch.get_default_dtype()
    assert fit_shape(torch.zeros(1, 1, 1000, 1), (1, 8, 64)).shape == (1, 1, 8, 64)


def test_digits_equal_sklearns():
    digits, data = load_digits(), opened("digits")
    assert data.kind == "image" and data.classes == tuple("0123456789") and data.size == 8 and data.name == "digits"
    seen = []
    for part in (data.train, data.test):
        rows = [int(name) for name in part.names]
        x = read_all(part, 100)[1]
        assert x.dtype == torch.uint8 and part.shape == (1, 8, 8)
        np.testing.assert_array_equal(x[:, 0].numpy(), np.round(digits.images[rows] / 16 * 255))
        np.testing.assert_array_equal(part.labels.numpy(), digits.target[rows])
        seen += rows
    assert sorted(seen) == list(range(1797)) and len(data.test) == 359


def write_idx(path, x):
    path.write_bytes(struct.pack(f">HBB{x.ndim}I", 0, 8, x.ndim, *x.shape) + x.tobytes())


def write_mnist(root, folder, n=40):
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    x, y = rng().integers(0, 255, (2 * n, 28, 28), dtype=np.uint8), (np.arange(2 * n) % 10).astype(np.uint8)
    for part, rows in (("train", slice(n)), ("t10k", slice(n, None))):
        write_idx(raw / f"{part}-images-idx3-ubyte", x[rows])
        write_idx(raw / f"{part}-labels-idx1-ubyte", y[rows])
    return x, y


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_through_torchvision(tmp_path, name, folder):
    x, y = write_mnist(tmp_path, folder)
    data = opened(name, root=str(tmp_path))
    assert (len(data.train), len(data.test), len(data.classes), data.note) == (40, 40, 10, "official test split")
    assert torch.equal(read_all(data.train)[1], torch.from_numpy(x[:40, None])) and data.train.array.is_contiguous()
    assert torch.equal(read_all(data.test)[1], torch.from_numpy(x[40:, None])) and data.test.names[0] == "0"
    assert data.test.labels.tolist() == y[40:].tolist() and data.train.in_memory
    test, train = (open_items(name + part, shape=(1, 28, 28), root=str(tmp_path)) for part in ("", ":train"))
    assert torch.equal(read_all(test)[1], read_all(data.test)[1]) and torch.equal(read_all(train)[1], read_all(data.train)[1])


@pytest.mark.parametrize("name, classes", [("cifar10", 10), ("cifar100", 100)])
def test_cifar_through_torchvision(tmp_path, monkeypatch, name, classes):
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    kind = torchvision.datasets.CIFAR10 if classes == 10 else torchvision.datasets.CIFAR100
    folder, label = tmp_path / kind.base_folder, "labels" if classes == 10 else "fine_labels"
    folder.mkdir()
    x = {file: rng().integers(0, 255, (4, 3, 32, 32), dtype=np.uint8) for file, _ in kind.train_list + kind.test_list}
    for file, images in x.items():
        (folder / file).write_bytes(pickle.dumps({"data": images.reshape(4, -1), label: [0, 1, 2, 3]}))
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: [f"c{i}" for i in range(classes)]}))
    data = opened(name, root=str(tmp_path))
    wanted = np.concatenate([x[file] for file, _ in kind.train_list])
    assert torch.equal(read_all(data.train)[1], torch.from_numpy(wanted)) and data.classes[1] == "c1" and len(data.test) == 4


def test_stl10_marks_the_unlabeled(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    x = rng().integers(0, 255, (9, 3, 96, 96), dtype=np.uint8)
    for name, rows in (("train_X", slice(3)), ("unlabeled_X", slice(3, 7)), ("test_X", slice(7, 9))):
        (folder / f"{name}.bin").write_bytes(x[rows].transpose(0, 1, 3, 2).tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 2, 10]))
    (folder / "test_y.bin").write_bytes(bytes([3, 4]))
    (folder / "class_names.txt").write_text("\n".join(f"c{i}" for i in range(10)))
    data = opened("stl10", root=str(tmp_path))
    assert data.train.labels.tolist() == [0, 1, 9, -1, -1, -1, -1] and data.test.labels.tolist() == [2, 3]
    assert torch.equal(read_all(data.train)[1], torch.from_numpy(x[:7])) and data.size == 96


def test_unknown_names_and_settings_out_of_range(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in ("", "  ", "x" * 5000, "a\0b", "~nobody/at/all"):
        refused(source, "expected .*data")
    for settings in ({"holdout": 1.0}, {"holdout": float("nan")}, {"limit": 1}, {"size": 0}):
        refused("digits", next(iter(settings)), **settings)
    refused("digits", "1 to test", holdout=1e-9)
    refused("mnist", "`download=True`.*`root=FOLDER`", root=str(tmp_path))
    refused(tmp_path, "expected images")
    (tmp_path / "a.jpg").write_text("text")
    refused(tmp_path, "1 files that cannot be read")
    refused("cifra10", "cifar10")
    refused("CIFAR10", "cifar10")
    refused("somewhere/photos", "no such file")
    refuses("digits:val", open_items, "digits:val", shape=(1, 8, 8))


def write_folder(root, layout, n=6):
    for k, folder in enumerate(layout):
        for i in range(n):
            write(root / folder / f"{i}.png", 30 + 5 * i, 40, seed=100 * k + i)
    return root


def test_flat_folder(tmp_path):
    write_folder(tmp_path, ["."])
    write(tmp_path / ".hidden.png")
    write(tmp_path / ".cache" / "x.png")
    (tmp_path / "notes.txt").write_text("no image")
    data = opened(tmp_path)
    assert data.kind == "image" and data.classes == () and data.train.labels is None and data.name == tmp_path.name
    assert sorted([*data.train.names, *data.test.names]) == [f"{i}.png" for i in range(6)]
    assert data.size == 64 and data.train.shape == (3, 74, 74) and data.train.in_memory and data.train.dtype == torch.uint8
    assert data.note == "20 % held out at random, seed 0" and len(data.test) == 1
    for part in (data.train, data.test):
        for name, x in zip(part.names, read_all(part)[1], strict=True):
            np.testing.assert_array_equal(x.numpy(), decode(tmp_path / name, (3, 74, 74)))


def test_folder_of_classes(tmp_path):
    write_folder(tmp_path, ["zebra", "ant/deep/er", "bee"], n=5)
    data = opened(tmp_path, size=28, holdout=0.4)
    assert data.classes == ("ant", "bee", "zebra") and data.train.shape == (3, 32, 32) and data.size == 28
    for part, each in ((data.train, 3), (data.test, 2)):
        assert torch.bincount(part.labels).tolist() == [each] * 3
        assert [data.classes[i] for i in part.labels] == [name.split("/")[0] for name in part.names]
    assert "ant/deep/er/0.png" in [*data.train.names, *data.test.names]


@pytest.mark.parametrize("held", ["test", "val"])
def test_folder_with_parts(tmp_path, held):
    write_folder(tmp_path, ["train/good", f"{held}/good", f"{held}/scratch"], n=4)
    data = opened(tmp_path)
    assert data.classes == ("good", "scratch") and data.note == f"the folder {held}/"
    assert data.train.labels.tolist() == [0] * 4 and data.test.labels.tolist() == [0] * 4 + [1] * 4
    assert all(name.startswith("train/") for name in data.train.names)


def test_flat_parts_and_images_beside_classes(tmp_path):
    write_folder(tmp_path / "a", ["train", "test"], n=3)
    found = listing(tmp_path / "a")
    assert found.items.labels is None and found.test.sum() == 3
    write_folder(tmp_path / "b", ["x", "y", "."], n=2)
    found = listing(tmp_path / "b")
    assert dict(zip(found.items.names, found.items.labels.tolist(), strict=True)) == {
        "0.png": -1, "1.png": -1, "x/0.png": 0, "x/1.png": 0, "y/0.png": 1, "y/1.png": 1,
    }  # fmt: skip
    write_folder(tmp_path / "c", ["only"], n=2)
    assert listing(tmp_path / "c").items.labels is None


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (37, 37), (9, 200)])
def test_decoded_geometry_is_pillows(tmp_path, size):
    path = write(tmp_path / "a.png", *size)
    image, side = Image.open(path), min(size)
    left, top = (size[1] - side) / 2, (size[0] - side) / 2
    hand = image.resize((24, 24), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    np.testing.assert_array_equal(decode(path, (3, 24, 24)), np.asarray(hand).transpose(2, 0, 1))


def test_reduced_jpeg_is_close_to_the_full_one(tmp_path):
    path = write(tmp_path / "a.jpg", 800, 1000, quality=95)
    for c, mode in ((3, "RGB"), (1, "L")):
        hand = np.asarray(ImageOps.fit(Image.open(path).convert(mode), (40, 40), Image.Resampling.BILINEAR), dtype=float)
        x = decode(path, (c, 40, 40)).transpose(1, 2, 0).astype(float)
        assert np.abs(x - hand.reshape(x.shape)).max() < 6


def test_other_formats_of_pillow_are_not_opened(tmp_path):
    smooth(32, 32).save(tmp_path / "a.png", format="PCX")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PCX"
    with pytest.raises(OSError, match="cannot identify"):
        decode(tmp_path / "a.png", (3, 8, 8))
    assert header(tmp_path / "a.png") is None


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_exif_orientation(tmp_path, orientation, ending):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = write(tmp_path / f"a.{ending}", 48, 64, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(path))
    assert upright.size == ((48, 64) if orientation >= 5 else (64, 48))
    hand = np.asarray(ImageOps.fit(upright.convert("RGB"), (32, 24), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(path, (3, 24, 32)), hand)


def test_sixteen_bits_and_floats_keep_their_upper_eight_bits(tmp_path):
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    for ending in ("png", "tif"):
        Image.fromarray(ramp).save(tmp_path / f"a.{ending}")
        np.testing.assert_array_equal(decode(tmp_path / f"a.{ending}", (1, 64, 64))[0], ramp >> 8)
    Image.fromarray(ramp.astype(np.int32)).save(tmp_path / "i.tif")
    np.testing.assert_array_equal(decode(tmp_path / "i.tif", (1, 64, 64))[0], ramp >> 8)
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "f.tif")
    np.testing.assert_array_equal(decode(tmp_path / "f.tif", (1, 64, 64))[0], np.rint(255 * (ramp / 65535).astype(np.float32)))
    Image.fromarray(np.full((9, 9), np.nan, dtype=np.float32)).save(tmp_path / "n.tif")
    refuses("not finite", decode, tmp_path / "n.tif", (1, 9, 9))


def test_items_say_what_reading_them_for_another_model_changes(tmp_path):
    for i in range(2):
        write(tmp_path / f"{i}.png", seed=i)
    assert open_items(str(tmp_path), shape=(1, 8, 8)).conversion == "color to gray"
    assert open_items(str(tmp_path), shape=(3, 8, 8)).conversion is None
    np.save(tmp_path / "x.npy", np.zeros((4, 3, 6, 5), dtype=np.uint8))
    assert open_items(str(tmp_path / "x.npy"), shape=(1, 8, 8)).conversion == "3 x 6 x 5 to 1 x 8 x 8"
    assert open_items(str(tmp_path / "x.npy"), shape=(3, 6, 5)).conversion is None


def test_gray_folders_have_one_channel(tmp_path):
    for i, mode in enumerate(["L", "1", "LA", "L"]):
        write(tmp_path / f"{i}.png", mode=mode, seed=i)
    Image.fromarray(np.full((40, 40), 40_000, dtype=np.uint16)).save(tmp_path / "9.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    assert listing(tmp_path).items.shape[0] == 1 and opened(tmp_path).train.shape == (1, 74, 74)
    write(tmp_path / "color.png")
    assert listing(tmp_path).items.shape[0] == 3 and opened(tmp_path).train.shape == (3, 74, 74)
    assert header(tmp_path / "broken.png") is None and image_files(tmp_path, ["broken.png"], 64).items.shape[0] == 3


def write_mixed(root):
    """Good images with a truncated, a corrupt and a misnamed one, an empty and a text file among them."""
    for i in range(10):
        write(root / f"good{i}.jpg", 60 + i, 80, seed=i)
    whole = write(root / "cut.jpg", 200, 200).read_bytes()
    (root / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    png = bytearray(write(root / "corrupt.png", 100, 100).read_bytes())
    png[200:260] = bytes(60)
    (root / "corrupt.png").write_bytes(png)
    (root / "text.png").write_text("this is a text with an image's ending")
    (root / "empty.gif").write_bytes(b"")
    write(root / "misnamed.bmp", 50, 50, seed=77, format="PNG")
    return {"cut.jpg", "corrupt.png", "text.png", "empty.gif"}


@pytest.mark.parametrize("memory", [2 << 30, 1000])
@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_skipped_and_listed(tmp_path, memory, workers):
    bad = write_mixed(tmp_path)
    data = open_data(DataConfig(source=str(tmp_path)), memory=memory, workers=workers)
    assert {one.name for one in data.skipped} == bad and all(one.reason and "\n" not in one.reason for one in data.skipped)
    assert not any(str(tmp_path) in one.reason for one in data.skipped)
    names = {*data.train.names, *data.test.names}
    assert names == {f"good{i}.jpg" for i in range(10)} | {"misnamed.bmp"}
    assert isinstance(data.train, ArrayItems if memory > 1000 else ImageFiles)
    x = dict(zip(data.train.names, read_all(data.train)[1], strict=True))
    for name, image in x.items():
        np.testing.assert_array_equal(image.numpy(), decode(tmp_path / name, data.train.shape))
    assert data.train.skipped == []


def test_strict_refuses_unreadable_images(tmp_path):
    write_mixed(tmp_path)
    refused(tmp_path, r"4 of 15 images cannot be read: corrupt.png \(.*\), cut.jpg \(.*\), empty.gif \(.*\); remove", strict=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_lists_what_it_skips_once(tmp_path, workers):
    bad = write_mixed(tmp_path)
    items = open_items(str(tmp_path), shape=(3, 24, 24))
    for _ in range(2):
        kept, x = read_all(items, 2, workers)
        assert {items.names[i] for i in kept.tolist()}.isdisjoint(bad) and len(kept) == len(x) == 11
        assert {one.name for one in items.skipped} == bad and len(items.skipped) == 4
    only_bad = items.subset(torch.tensor([items.names.index("text.png")]))
    ((kept, x),) = only_bad.stream(batches(1, 1), workers)
    assert len(kept) == 0 and x.shape == (0, 3, 24, 24)
    assert only_bad.skipped == [Skipped("text.png", "not an image in a known format")]


def test_workers_give_the_same_bytes_in_the_same_order(tmp_path):
    write_folder(tmp_path, [".", "a"], n=12)
    files = open_items(str(tmp_path), shape=(3, 20, 20))
    order = torch.randperm(24).view(6, 4)
    state = torch.get_rng_state()
    runs = [list(files.stream(order, workers)) for workers in (0, 1, 2)]
    assert torch.equal(state, torch.get_rng_state()), "the number of workers must not change the run"
    for run in runs:
        for (index, x), (wanted, y), row in zip(run, runs[0], order, strict=True):
            assert torch.equal(index, row) and torch.equal(wanted, row) and torch.equal(x, y)


@pytest.mark.parametrize("key", ["images", "x", "data", "X", "arr_0"])
@pytest.mark.parametrize("label", ["labels", "y", "label"])
def test_npz_keys(tmp_path, key, label):
    np.savez(tmp_path / "a.npz", **{key: rng().integers(0, 255, (20, 8, 8), dtype=np.uint8), label: np.arange(20) % 4})
    data = opened(tmp_path / "a.npz")
    assert data.kind == "image" and data.size == 8 and data.classes == ("0", "1", "2", "3")
    assert torch.bincount(data.test.labels).tolist() == [1] * 4


def test_npz_parts_and_names_as_labels(tmp_path):
    x = rng().normal(size=(9, 3))
    y = np.array(["cat", "ant", "cat", "bee", "ant", "cat", "cat", "cow", "ant"])
    np.savez(tmp_path / "a.npz", x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])
    data = opened(tmp_path / "a.npz")
    assert data.classes == ("ant", "bee", "cat", "cow") and data.note == "x_test of the file"
    assert [data.classes[i] for i in [*data.train.labels, *data.test.labels]] == y.tolist()
    assert list(data.test.names) == ["0", "1", "2"] and len(open_items(str(tmp_path / "a.npz"), shape=(3,))) == 9
    np.testing.assert_array_equal(read_all(data.test)[1].numpy(), x[6:].astype(np.float32))


def test_npz_pairs(tmp_path):
    a, b = rng().random((20, 8, 8)), rng().normal(size=(20, 5))
    np.savez(tmp_path / "a.npz", context=a, target=b, labels=np.arange(20) % 2)
    data = opened(tmp_path / "a.npz", size=4)
    assert data.kind == "pairs" and isinstance(data.train, PairItems)
    assert data.train.shape == (1, 4, 4) and data.train.target_shape == (5,) and data.classes == ("0", "1")
    _, (x, y) = next(data.test.stream(batches(4, 4)))
    rows = [int(name) for name in data.test.names]
    np.testing.assert_array_equal(y.numpy(), b[rows].astype(np.float32))
    hand = a[rows].reshape(4, 4, 2, 4, 2)
    assert x.shape == (4, 1, 4, 4) and np.abs(x[:, 0].mean((1, 2)).numpy() - hand.mean((1, 2, 3, 4))).max() < 0.1
    assert open_items(str(tmp_path / "a.npz"), shape=(1, 6, 6)).shape == (1, 6, 6)
    np.savez(tmp_path / "b.npz", context=a, target=b[:7])
    refused(tmp_path / "b.npz", "20 contexts and 7 targets")


def test_arrays_are_resized_once(tmp_path):
    x = rng().integers(0, 255, (30, 12, 16, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    data = opened(tmp_path / "x.npy", size=6)
    assert data.train.in_memory and data.train.shape == (3, 6, 6) and data.size == 6 and data.train.array.shape[1:] == (3, 6, 6)
    rows = torch.tensor([int(name) for name in data.train.names])
    assert torch.equal(read_all(data.train)[1], fit_shape(torch.from_numpy(x).permute(0, 3, 1, 2)[rows], (3, 6, 6)))
    small = open_data(DataConfig(source=str(tmp_path / "x.npy"), size=6), memory=100)
    assert not small.train.in_memory and torch.equal(read_all(small.train)[1], read_all(data.train)[1])
    assert opened(tmp_path / "x.npy").train.shape == (3, 12, 16) and opened(tmp_path / "x.npy").size is None


def test_items_are_brought_to_the_models_shape(tmp_path):
    np.save(tmp_path / "x.npy", rng().integers(0, 255, (5, 12, 12, 3), dtype=np.uint8))
    items = open_items(str(tmp_path / "x.npy"), shape=(1, 8, 8))
    assert items.shape == (1, 8, 8) and read_all(items)[1].shape == (5, 1, 8, 8)
    refuses(r"shape \(7,\), as the model was trained on, found \(3, 12, 12\)", open_items, str(tmp_path / "x.npy"), shape=(7,))
    np.save(tmp_path / "v.npy", np.zeros((5, 6)))
    refuses(r"shape \(7,\), .* found \(6,\)", open_items, str(tmp_path / "v.npy"), shape=(7,))
    write(tmp_path / "photos" / "a.png")
    refuses(r"expected vectors .* found images", open_items, str(tmp_path / "photos"), shape=(7,))


def test_memmap_equals_the_array(tmp_path):
    x = rng().random((40, 9, 9, 3))
    np.save(tmp_path / "x.npy", x)
    config = DataConfig(source=str(tmp_path / "x.npy"))
    lazy, whole = open_data(config, memory=10), open_data(config)
    assert isinstance(lazy.train.array, np.memmap) and not lazy.train.in_memory and whole.train.in_memory
    assert lazy.train.dtype == whole.train.dtype == torch.float32 and lazy.train.to("cpu") is lazy.train
    assert torch.equal(read_all(lazy.train)[1], read_all(whole.train)[1])
    both, _ = load(lazy.train)
    assert (
        both.in_memory and torch.equal(read_all(both)[1], read_all(whole.train)[1]) and list(both.names) == list(lazy.train.names)
    )


@pytest.mark.parametrize(
    "arrays, match",
    [
        ({"x": np.zeros(9)}, r"expected a.npz as .*found \(9,\)"),
        ({"x": np.zeros((9, 0))}, "expected a.npz as"),
        ({"x": np.zeros((9, 5, 8, 8))}, "1 or 3 channels"),
        ({"x": np.zeros((64, 64, 3), dtype=np.uint8)}, "looks like one"),
        (
            {"x": np.zeros((9, 8, 8), dtype=np.int64)},
            r"uint8, uint16 or floats in \[0, 1\] .* found type int64; divide them by the end of their range",
        ),
        ({"x": np.zeros((9, 8, 8)) + 7}, r"float images in \[0, 1\] .* found 7 to 7"),
        ({"x": np.zeros((9, 8, 8)) - 1}, r"float images in \[0, 1\]"),
        ({"x": np.zeros((9, 8), dtype=complex)}, "expected numbers .* complex128"),
        ({"x": np.full((9, 2), "a")}, "expected numbers"),
        ({"x": np.zeros((3, 8))}, "at least 4 items .* found 3"),
        ({"x": np.zeros((0, 8))}, r"at least 1 row .* found shape \(0, 8\)"),
        ({"x": np.full((9, 2), 1e300)}, "NaN or infinity in row 0"),
        ({"x": 1.7e9 + np.arange(18.0).reshape(9, 2) ** 0.5}, "float32 tells apart .* near 1.7e.* in column 0; subtract"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(8, dtype=int)}, r"expected 9 labels in y .* found shape \(8,\)"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(9)}, "labels as whole numbers or strings"),
        ({"x": np.zeros((9, 2)), "y": np.full(9, -3)}, "number the classes 0, 1"),
        ({"x": np.zeros((9, 2)), "y": np.full(9, 10**9)}, "number the classes 0, 1"),
        ({"pixels": np.zeros((9, 2))}, "expected images .* found pixels"),
        ({}, "found nothing"),
        ({"x_train": np.zeros((9, 2)), "x_test": np.zeros((9, 3))}, r"of one shape, found \(9, 2\) and \(9, 3\)"),
        ({"x_train": np.zeros((9, 2)), "x_test": np.zeros((9, 2)), "y_test": np.zeros(9, int)}, "found y_test alone"),
        ({"x_train": np.zeros((1, 2)), "x_test": np.zeros((9, 2))}, "at least 2 items to train on"),
        (
            {"x_train": np.zeros((9, 2)), "x_test": np.zeros((9, 2)), "y_train": np.zeros(4), "y_test": np.zeros(9)},
            "as many rows",
        ),
        ({"context": np.zeros((9, 2)), "target": np.zeros((8, 2))}, "9 contexts and 8 targets"),
        ({"context": np.zeros((9, 2)), "target": np.zeros((9, 2)), "context_test": np.zeros((9, 2))}, "target alone"),
        ({"context": np.float64(1), "target": np.zeros((9, 2))}, "context of a.npz"),
        ({"context": np.zeros((9, 2)), "target": np.zeros((9, 2)), "labels": np.int64(1)}, "9 labels"),
    ],
)
def test_refused_arrays(tmp_path, arrays, match):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", match)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("memory", [10, 2 << 30])
def test_not_finite_names_the_first_row(tmp_path, value, memory):
    x = np.zeros((9000, 1000), dtype=np.float32)
    x[8123, 5] = x[8999, 0] = value
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match=r"x.npy, found NaN or infinity in row 8123; repair"):
        open_data(DataConfig(source=str(tmp_path / "x.npy")), memory=memory)
    np.savez(tmp_path / "p.npz", context=x[:10], target=x[8120:8130])
    refused(tmp_path / "p.npz", "target of p.npz, found NaN or infinity in row 3")


def test_a_file_without_permission_to_read_says_so(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    np.save(tmp_path / "a.npy", np.zeros((9, 2)))
    monkeypatch.setattr(Path, "open", denied)
    refused(tmp_path / "a.npy", "Permission denied")


def test_files_that_are_no_arrays(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{"a": 1}] * 9, dtype=object), allow_pickle=True)
    refused(tmp_path / "o.npy", r"cannot be read .*save numbers \(no Python objects\)")
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}] * 9, dtype=object))
    refused(tmp_path / "o.npz", "cannot be read .*save numbers")
    (tmp_path / "t.npy").write_text("not an array")
    refused(tmp_path / "t.npy", "cannot be read")
    (tmp_path / "e.npz").write_bytes(b"")
    refused(tmp_path / "e.npz", "cannot be read")
    np.save(tmp_path / "cut.npy", np.zeros((100, 10)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:400])
    refused(tmp_path / "cut.npy", "cannot be read")
    np.savez_compressed(tmp_path / "cut.npz", x=rng().normal(size=(100, 10)))
    packed = bytearray((tmp_path / "cut.npz").read_bytes())
    packed[1000:1100] = bytes(100)
    (tmp_path / "cut.npz").write_bytes(packed)
    refused(tmp_path / "cut.npz", "cannot be read")
    (tmp_path / "x.csv").write_text("1,2")
    refused(tmp_path / "x.csv", "lines of values in x.csv, found the names alone")
    (tmp_path / "x.doc").write_text("1,2")
    refused(tmp_path / "x.doc", r"ending in .npy .npz .csv .*.parquet .xlsx .sqlite .* .jpg .* found .*x.doc")


def test_the_split_is_always_the_same_and_complete(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((101, 2)))
    first, again = (opened(tmp_path / "x.npy", holdout=0.3) for _ in range(2))
    torch.rand(3)
    assert list(first.test.names) == list(again.test.names) and len(first.test) == 30
    assert sorted(map(int, [*first.train.names, *first.test.names])) == list(range(101))
    assert list(first.test.names) == sorted(first.test.names, key=int)
    middle = np.mean([int(name) for name in first.test.names])
    assert abs(middle - 50) < 4 * 29.2 * np.sqrt(0.7 / 30)  # four standard errors of a mean of 30 of 101 rows


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.73])
def test_stratified_within_one_item_per_label(tmp_path, share):
    y = rng().choice(5, size=200, p=[0.5, 0.25, 0.15, 0.07, 0.03])
    np.savez(tmp_path / "a.npz", x=np.zeros((200, 2)), y=y)
    data = opened(tmp_path / "a.npz", holdout=share)
    found = torch.bincount(data.test.labels, minlength=5).numpy()
    assert np.abs(found - share * np.bincount(y)).max() <= 1 and len(data.test) == round(200 * share)
    assert data.note == f"{100 * share:g} % held out at random, seed 0, stratified by label"


def test_limit_and_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(300.0)[:, None] * [1, 0], y=np.array(["ant", "bee", "cat"] * 100))
    whole = opened(tmp_path / "a.npz")
    kept = opened(tmp_path / "a.npz", keep_classes=(0, 2))
    assert (
        set(kept.train.labels.tolist()) == {0, 2} and len(kept.train) == 160 and list(kept.test.names) == list(whole.test.names)
    )
    few = opened(tmp_path / "a.npz", keep_classes=(2,), limit=30)
    assert len(few.train) == 30 and set(few.train.labels.tolist()) == {2} and set(few.train.names) < set(whole.train.names)
    assert list(few.train.names) == list(opened(tmp_path / "a.npz", keep_classes=(2,), limit=30).train.names)
    assert len(opened(tmp_path / "a.npz", limit=10**6).train) == len(whole.train)
    refused(tmp_path / "a.npz", r"1 \(bee\)", keep_classes=(0, 7))
    refused(tmp_path / "a.npz", "found none", keep_classes=())
    np.save(tmp_path / "x.npy", np.zeros((9, 2)))
    refused(tmp_path / "x.npy", "expected labels to keep", keep_classes=(0,))


def test_the_contract_holds_for_every_kind(tmp_path):
    write_folder(tmp_path / "f", ["."], n=6)
    x = rng().random((6, 5))
    every: list[Items] = [
        ArrayItems(x),
        open_items(str(tmp_path / "f"), shape=(3, 8, 8)),
        PairItems(ArrayItems(x), ArrayItems(x)),
        open_items("digits", shape=(1, 8, 8)),
    ]
    for items in every:
        part = items.subset(torch.tensor([5, 0, 3]))
        assert type(part) is type(items) and len(part) == len(part.names) == 3 and part.shape == items.shape
        assert [part.names[i] for i in range(3)] == [items.names[i] for i in (5, 0, 3)] and part.skipped == []
        (index, got), (_, alone) = next(part.stream(batches(3, 3))), next(items.stream([torch.tensor([5, 0, 3])]))
        got, alone = (y if isinstance(y, tuple) else (y,) for y in (got, alone))
        assert index.tolist() == [0, 1, 2] and all(torch.equal(p, q) for p, q in zip(got, alone, strict=True))
        assert got[0].dtype == items.dtype


def test_every_part_of_a_folder_is_read_where_none_is_set_apart(tmp_path):
    for i, part in enumerate(("train", "test", "val")):
        write(tmp_path / part / f"{i}.png", seed=i)
    write(tmp_path / "more.png")
    for items in (open_items(str(tmp_path)), open_items(str(tmp_path), shape=(3, 16, 16))):
        assert list(items.names) == ["train/0.png", "test/1.png", "val/2.png"]
        assert [(one.name, one.reason) for one in items.skipped] == [("more.png", "next to the parts train/ and test/ and val/")]


def test_bytes_and_odd_characters_in_names_and_labels(tmp_path):
    x = np.zeros((2, 4), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=x, names=np.array(["é0".encode(), b"caf\xe9"]), labels=np.array(["ä".encode(), b"b"]))
    found = open_arrays(tmp_path / "x.npz", 1 << 20)
    assert list(found.items.names) == ["é0", "bytes:caf%E9"] and found.classes == ("b", "ä")
    np.savez(tmp_path / "y.npz", x=x, names=np.array(["a\0b", "a\udce9"]))
    assert list(open_arrays(tmp_path / "y.npz", 1 << 20).items.names) == ["a␀b", "bytes:a%E9"]


def test_evenly_spaced_items_of_very_many_stay_in_range():
    assert spaced(16_777_220, 10_000).max() == 16_777_219 and len(spaced(16_777_220, 10_000)) == 10_000


def test_columns_that_float32_rounds_are_refused_unless_read_as_float64():
    x = 1.7e9 + np.arange(200.0).reshape(100, 2)
    refuses("subtract the column's mean", from_array, x)
    assert from_array(x, double=True).dtype == torch.float64
    constant = np.c_[np.full(100, 1.7e9 + 0.3), np.arange(100.0)]
    refuses("in column 0", from_array, constant + 1e-7 * np.arange(100)[:, None])
    assert from_array(np.c_[np.full(100, 2.0**31), np.arange(100.0)]).dtype == torch.float32, "nothing is lost"
    assert from_array(1e4 + np.random.default_rng(0).normal(size=(100, 2))).dtype == torch.float32
