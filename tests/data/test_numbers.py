"""Numbers and channels mean the same in all images of a source; images are equal where all of their samples are."""

import io
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image, ImageCms, ImageDraw
from tests.refusals import refuses

from vergence.data.image_list import open_images
from vergence.data.numbers import Numbers, planes, viewed

R = np.random.default_rng(0)
SMOOTH = np.asarray(Image.fromarray(R.integers(0, 256, (6, 6), dtype=np.uint8)).resize((64, 48), Image.Resampling.BICUBIC))


def save(path, *frames):
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, **({"save_all": True, "append_images": images[1:]} if len(images) > 1 else {}))
    return path


def pixels(source, **options):
    images = open_images(source, **options)
    return [images.read(i).pixels for i in range(len(images))]


def changes(source, **options):
    return " ".join(open_images(source, **options).read(0).changes)


def test_an_underexposed_file_is_dark_next_to_others(tmp_path):
    for i in range(70):
        save(tmp_path / f"{i:02d}.png", SMOOTH.astype(np.uint16) * (1 if i == 3 else 16) + np.uint16(i % 16))
    found = pixels(tmp_path)
    assert found[3].max() < 32 and found[4].max() > 200 and found[4].dtype == np.uint8
    np.testing.assert_array_equal(found[20][0], (SMOOTH.astype(int) * 16 + 4) // 16)
    assert changes(tmp_path) == "whole numbers 0 to 4,095 shown as 8 bits, `range` decides otherwise"


def test_the_other_source_decides(tmp_path):
    known = open_images([SMOOTH.astype(np.uint16) * 16])
    new = open_images([SMOOTH.astype(np.uint16), np.full((8, 8), 60_000, np.uint16)], like=known)
    assert new.read(0).pixels.max() < 32 and new.read(1).pixels.min() == 255
    assert new.read(1).changes[1] == "numbers beyond the range clipped"
    assert open_images([SMOOTH / 255], like=known).meaning[0] == Numbers(whole=(0, 4095), floats=(0, 1))


UNIT, BYTES = R.uniform(size=(18, 8, 8, 3)).astype(np.float32), 255 * R.uniform(size=(18, 8, 8, 3))


@pytest.mark.parametrize("of_array", [True, False])
def test_an_array_has_one_meaning(tmp_path, of_array):
    over, frames = UNIT.copy(), BYTES.copy()
    over[:6, 0, 0, 0], frames[:6] = 1.003, frames[:6] / 256
    standard = R.normal(size=(9, 8, 8))
    sources = [
        over, frames, UNIT[..., 0] > 0.5, standard, R.integers(-1000, 3000, (9, 8, 8)), 30_000 + R.integers(0, 99, (9, 8, 8)),
    ]  # fmt: skip
    if not of_array:
        for i, x in enumerate(sources):
            np.save(tmp_path / f"{i}.npy", x)
        sources = [tmp_path / f"{i}.npy" for i in range(len(sources))]
    shown = [np.stack(pixels(x)) for x in sources]
    np.testing.assert_array_equal(shown[0][6:], np.rint(255 * UNIT[6:].transpose(0, 3, 1, 2)))
    assert shown[0][:6].mean() > 100 and shown[1][:6].max() <= 1 and shown[1][6:].mean() > 100
    assert set(np.unique(shown[2])) == {0, 255} and changes(sources[2]) == ""
    assert all(x.min() == 0 and x.max() >= 250 and 50 < x.mean() < 200 for x in shown[3:])
    assert changes(sources[3]).startswith("floats -")


def test_a_range_can_be_stated():
    x = np.array([[[0, 100], [200, 400]]], dtype=np.uint16)
    assert pixels(x, range=(100, 299))[0].ravel().tolist() == [0, 0, 128, 255]
    assert pixels(x.astype(np.uint8), range="0,99")[0].ravel().tolist() == [0, 255, 255, 255]
    assert pixels(x / 400, range=(0, 0.5))[0].ravel().tolist() == [0, 128, 255, 255]
    assert changes(x, range="100,299").startswith("whole numbers 100 to 299 shown as 8 bits, as stated")
    for wrong in ("5", "5,5", "9,1", "a,b", "nan,3", "1,2,3", (1, "x"), 7):
        refuses("two numbers as the range, the smaller first", open_images, x, range=wrong)


def test_equal_is_equal_as_stored(tmp_path):
    high = SMOOTH.astype(np.uint16) << 8
    others = [high, high | 1, SMOOTH.astype(np.uint16) * 4, SMOOTH.astype(np.int32) * 32]
    heights = SMOOTH.astype(np.float32) * 10
    save(tmp_path / "a.tif", heights), save(tmp_path / "b.tif", 3 * heights + 77)
    files = [save(tmp_path / f"{i}.{'tif' if i == 3 else 'png'}", x) for i, x in enumerate(others)]
    sources = [*files, tmp_path / "a.tif", tmp_path / "b.tif", save(tmp_path / "s.tif", high, high)]
    digests = [open_images(path).read(0).digest for path in sources]
    assert len(set(digests)) == len(digests)
    assert open_images([high.astype(np.int64)]).read(0).digest == open_images(save(tmp_path / "c.tif", high)).read(0).digest
    assert digests[0] == open_images([high]).read(0).digest == open_images(files[0]).read(0).digest
    clear = np.dstack([np.stack([SMOOTH] * 3, 2), np.where(SMOOTH > 99, 255, 0).astype(np.uint8)])
    hidden = clear.copy()
    hidden[clear[..., 3] == 0] = 9, 9, 9, 0
    shown = [open_images([Image.fromarray(x)]).read(0) for x in (clear, hidden)]
    assert np.array_equal(*(p.pixels for p in shown)) and shown[0].digest != shown[1].digest


def test_all_channels_of_a_stack_are_read(tmp_path):
    frames = [SMOOTH // (k + 1) for k in range(5)]
    found = pixels(save(tmp_path / "a.tif", *frames))[0]
    np.testing.assert_array_equal(found, np.stack(frames))
    for x in (np.stack(frames), np.stack(frames, 2)):
        np.testing.assert_array_equal(pixels([x])[0], found)
        np.testing.assert_array_equal(pixels(x[None])[0], found)
    np.testing.assert_array_equal(pixels(np.stack(frames)[None], channel="4")[0], found[4:])
    np.testing.assert_array_equal(pixels(tmp_path / "a.tif", channel=1)[0], found[1:2])
    deep = save(tmp_path / "z.tif", *[SMOOTH] * 20)
    assert pixels(deep)[0].shape == (16, 48, 64) and changes(deep) == "first 16 of 20 frames"
    assert changes(np.stack([SMOOTH] * 20)[None]) == "first 16 of 20 channels"


def test_a_color_is_a_channel():
    color = np.stack([SMOOTH, SMOOTH // 2, SMOOTH // 3], 2)
    for name, k in (("red", 0), ("g", 1), ("2", 2)):
        np.testing.assert_array_equal(pixels([color], channel=name)[0][0], color[..., k])
    refuses("no channel red among 1", pixels, [SMOOTH], channel="red")
    for wrong in ("purple", -1, 1.5, ""):
        refuses("a channel: a number from 0", open_images, [color], channel=wrong)


def test_pages_and_animations_are_no_channels(tmp_path):
    save(tmp_path / "fax.tif", SMOOTH > 99, SMOOTH > 50)
    save(tmp_path / "sizes.tif", SMOOTH, SMOOTH[:20])
    save(tmp_path / "a.gif", SMOOTH, SMOOTH // 2)
    assert [x.shape[0] for x in pixels(tmp_path)] == [1] * 3
    assert all(changes(path) == "first of several frames" for path in tmp_path.iterdir())


def test_other_numbers_of_channels_are_refused(tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.tif", *[SMOOTH] * (5 if i else 2))
    refuses(r"one number of channels, found 2 in 0.tif and 5 in 1.tif; .*`channel`", open_images(tmp_path).read, 0)
    assert len(pixels(tmp_path, channel=1)) == 3
    refuses("1 or 3 in the reference and 2 in 0", open_images([np.stack([SMOOTH] * 2)], like=open_images([SMOOTH])).read, 0)
    assert [len(x) for x in pixels([SMOOTH, np.stack([SMOOTH] * 3, 2)])] == [1, 3]


def test_an_alpha_channel_of_an_array_is_none_of_color():
    x = np.dstack([np.zeros((8, 8, 3), np.uint8), np.eye(8, dtype=np.uint8) * 255])
    assert pixels([x])[0].shape == (3, 8, 8) and pixels(torch.from_numpy(x)[None])[0][0, 0, 1] == 255
    assert pixels(x.astype(np.uint16)[None])[0].shape == (4, 8, 8)


def test_channels_are_seen_together_and_apart():
    for c in (1, 2, 3, 4, 5, 16):
        x = R.integers(0, 256, (c, 6, 7), dtype=np.uint8)
        seen = viewed(x)
        assert seen.shape == (x if c in (1, 3) else np.zeros((3, 6, 7))).shape and seen.dtype == np.uint8
        assert all(part.shape[0] in (1, 3) for part in planes(x)) and len(planes(x)) == (1 if c in (1, 3) else c)
        same = viewed(np.repeat(x[:1], c, 0))
        assert np.abs(same.astype(int) - x[0]).max() <= 1  # equal channels are gray
        alone = np.zeros((c, 2, 2), np.uint8)
        alone[-1] = 200
        assert viewed(alone).max() > 10  # none is lost


def profile(power):
    """The profile of sRGB with other curves: one number, of which None is those of sRGB."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for k in range(struct.unpack(">I", data[128:132])[0] if power else 0):
        name, start = data[132 + 12 * k : 136 + 12 * k], struct.unpack(">I", data[136 + 12 * k : 140 + 12 * k])[0]
        if name in (b"rTRC", b"gTRC", b"bTRC"):
            data[start : start + 14] = b"curv" + bytes(4) + struct.pack(">IH", 1, int(256 * power))
            data[140 + 12 * k : 144 + 12 * k] = struct.pack(">I", 14)
    return bytes(data)


def test_color_profiles_are_converted(tmp_path):
    x = np.stack([SMOOTH, SMOOTH[::-1], SMOOTH[:, ::-1]], 2)
    linear = np.rint(255 * (x / 255.0) ** 2.2).astype(np.uint8)
    for name, image, icc in (("a", x, profile(None)), ("b", linear, profile(1.0)), ("c", x, b"broken")):
        Image.fromarray(image).save(tmp_path / f"{name}.png", icc_profile=icc)
    a, b, c = (open_images(tmp_path).read(i) for i in range(3))
    plain = open_images([x]).read(0)
    assert (a.changes, b.changes, c.changes) == ((), ("color profile converted",), ("color profile that cannot be used",))
    assert a.digest == c.digest == plain.digest != b.digest and np.array_equal(a.pixels, plain.pixels)
    assert np.abs(b.pixels.astype(int) - plain.pixels)[plain.pixels > 60].mean() < 4
    Image.fromarray(np.dstack([linear, SMOOTH])).save(tmp_path / "d.png", icc_profile=profile(1.0))
    Image.fromarray(SMOOTH).save(tmp_path / "e.jpg", icc_profile=profile(1.0))  # does not fit
    assert changes(tmp_path / "d.png") == "color profile converted transparency shown on white"
    assert changes(tmp_path / "e.jpg") == "color profile that cannot be used"


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_white_ink_is_seen(mode):
    color = 255 if mode == "LA" else (255, 255, 255)
    image = Image.new(mode, (64, 48), (*np.atleast_1d(color), 0))
    ImageDraw.Draw(image).line((3, 3, 50, 40), fill=(*np.atleast_1d(color), 255), width=5)
    image = open_images([image]).read(0)
    assert image.pixels.max() == 255 and image.pixels.min() == 0 and 0.01 < (image.pixels > 128).mean() < 0.2
    assert image.changes == ("transparency shown on black, as all is white on white",)
    assert changes([Image.new(mode, (64, 48), (*np.atleast_1d(color), 0))]) == "transparency shown on white"


def test_the_lower_bits_of_color_are_said_and_tell_files_apart(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for name in "ab":
        rows = R.integers(0, 256, (4, 5, 3, 2), dtype=np.uint8) * np.array([0, 1], np.uint8) + np.array([77, 0], np.uint8)
        packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0))
        (tmp_path / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    a, b = (open_images(tmp_path).read(i) for i in range(2))
    assert a.changes == ("upper 8 of 16 bits of color",) and np.array_equal(a.pixels, b.pixels) and a.digest != b.digest


def test_encoded_stacks_are_read_from_tables():
    buffer = io.BytesIO()
    Image.fromarray(SMOOTH).save(buffer, "TIFF", save_all=True, append_images=[Image.fromarray(SMOOTH)])
    assert pixels(pa.table({"image": pa.array([buffer.getvalue()], pa.binary())}))[0].shape == (2, 48, 64)
