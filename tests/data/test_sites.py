"""Sites of plates: names of microscopes, channels in files or stacks, and files that differ from the others."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from vergence.data.image_list import ImageList, open_images
from vergence.data.sites import PATTERNS, sites_of

NAMES = {
    "Operetta": ("r02c03f05p01-ch2sk1fk1fl1.tiff", "B03", "5", "2"),
    "Yokogawa": ("plate1_B03_T0001F005L01A01Z01C02.tif", "B03", "5", "02"),
    "IN Cell": ("run_B - 3(fld 05 wv DAPI - DAPI).tif", "B03", "5", "DAPI"),
    "ImageXpress": ("exp_B03_s5_w2A1B2C3D4.tif", "B03", "5", "2"),
    "well, site and channel": ("B3_f05_DNA.tif", "B03", "5", "DNA"),
    "channel as folder": ("Ch2/B03_f5.tif", "B03", "5", "2"),
    "well and site": ("B03_5.ome.tif", "B03", "5", None),
}


def write(folder, names, x=None):
    """Writes gray images of 16 bits by name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        values = np.arange(64, dtype=np.uint16).reshape(8, 8) if x is None else x
        Image.fromarray(values).save(folder / name)
    return folder


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_microscopes(kind, tmp_path):
    name, well, site, channel = NAMES[kind]
    found = sites_of(open_images(write(tmp_path, [name])))
    assert found.pattern == (kind, PATTERNS[kind])
    assert found.wells == [("plate", well)] and found.images.columns["Metadata_Site"] == [site]
    assert found.channels == (channel or "1",)


def test_a_site_has_its_channels_in_the_order_of_their_numbers(tmp_path):
    for w in (10, 9, 1):
        write(tmp_path, [f"A01_s1_ch{w}.tif", f"A01_s1_ch{w}_thumb9F.tif"], np.full((8, 8), w, dtype=np.uint16))
    found = sites_of(open_images(tmp_path))
    assert found.channels == ("1", "9", "10") and found.notes == ("3 thumbnails left out.",)
    assert found.images.read(0).pixels[:, 0, 0].tolist() == [1, 9, 10]


def test_a_missing_channel_is_named(tmp_path):
    write(tmp_path, ["A01_s1_w1.tif", "A01_s1_w2.tif", "A02_s1_w1.tif", "A03_s1_w1.tif", "A03_s1_w2.tif", "A03_s1_w6.tif"])
    found = sites_of(open_images(tmp_path))
    assert (found.channels, found.notes) == (("1", "2"), ("Channel 6 is not judged; sites that have it: 1 of 3.",))
    assert found.images.names == ["plate A01 1", "plate A03 1"] and found.images.skipped[0].name == "A03_s1_w6.tif"
    assert [s.reason for s in found.images.skipped] == ["channel 6 is not judged", "no channel 2"]
    other = found.of_plate("P7")
    assert (other.wells, found.wells) == ([("P7", "A01"), ("P7", "A03")], [("plate", "A01"), ("plate", "A03")])
    assert other.images.skipped[1].name == "P7 A02 1" and other.keys["P7 A02 1"] == ("P7", "A02", "1")


def test_files_that_differ_are_named_and_the_others_stay(tmp_path):
    write(tmp_path, [f"A{k:02d}_s1_w{w}.tif" for k in range(1, 9) for w in (1, 2)])
    write(tmp_path, ["A01_s1_w2.tif"], np.zeros((4, 8), dtype=np.uint16))
    write(tmp_path, ["A02_s1_w2.tif"], np.zeros((8, 8), dtype=np.uint8))
    write(tmp_path, ["A04_s1_w2.tif"], np.zeros((8, 8, 3), dtype=np.uint8))
    content = (tmp_path / "A03_s1_w1.tif").read_bytes()
    (tmp_path / "A03_s1_w1.tif").write_bytes(content[: len(content) // 2])
    found = sites_of(open_images(tmp_path))
    read = [i for i, _ in found.images.map(lambda image: image.size, range(len(found.images)))]
    assert [found.images.names[i] for i in read] == [f"plate A{k:02d} 1" for k in range(5, 9)]
    reasons = {s.name: s.reason for s in found.images.skipped}
    assert reasons["plate A01 1"] == "channel 2 of 4 x 8 pixels, where others have 8 x 8"
    assert reasons["plate A02 1"] == "channel 2 of 8-bit pixels, where others have 16-bit"
    assert reasons["plate A04 1"] == "channel 2: 3 channels in A04_s1_w2.tif, where one is expected"
    assert reasons["plate A03 1"] == "channel 1: the file is cut off" and found.keys["plate A03 1"] == ("plate", "A03", "1")


@pytest.mark.parametrize("order", ["CZT", "ZCT", "TZC"])
@pytest.mark.parametrize("kind", ["<u2", ">u4"])  # Pillow cannot read the second
def test_of_a_stack_the_middle_plane_and_the_first_time_are_read_and_ome_data_name_the_channels(order, kind, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    x = np.arange(12).reshape(2, 3, 2)[..., None, None] * np.ones((8, 8), dtype=int)  # channel, plane, time
    x = x.transpose(*["CZT".index(axis) for axis in order[::-1]], 3, 4).astype(kind)
    for k, names in enumerate((["DNA", "ER"], ["ER", "DNA"], ["DNA", "RNA"]), 1):
        about = {"axes": order[::-1] + "YX", "Channel": {"Name": names}}
        tifffile.imwrite(tmp_path / f"A0{k}_1.ome.tif", x, metadata=about, byteorder=kind[0])
    found = sites_of(open_images(tmp_path))
    pixels = [image for _, image in found.images.map(lambda image: image.pixels[:, 0, 0], range(3))]
    channels = np.stack(pixels) * (1 if kind == "<u2" else 65_535)
    assert np.allclose(channels, [[2, 8], [8, 2]]) and found.channels == ("DNA", "ER")
    assert found.images.skipped[0].reason == "channels DNA, RNA, where others have DNA, ER"
    assert found.notes[:2] == ("Of 3 planes of a site the middle one is judged.", "Of 2 times of a site the first is judged.")


def test_without_ome_data_the_frames_of_a_stack_or_an_array_are_its_channels():
    x, file = np.stack([np.full((8, 8), c, dtype=np.uint16) for c in range(3)]), io.BytesIO()
    Image.fromarray(x[0]).save(file, "tiff", save_all=True, append_images=[Image.fromarray(plane) for plane in x[1:]])
    found = sites_of(ImageList(["A01_1.tif", "A02_1.tif"], [x, file.getvalue()]))
    assert found.channels == ("1", "2", "3") and all(np.array_equal(found.images.read(i).pixels, x) for i in (0, 1))


def test_two_files_of_a_channel_are_said(tmp_path):
    write(tmp_path, [f"A{k:02d}_s1_w1.tif" for k in range(1, 13)])
    write(tmp_path, ["A01_s1_w1 (copy).tif"], np.zeros((8, 8), dtype=np.uint16))
    found = sites_of(open_images(tmp_path))
    assert found.images.read(0).pixels.max() == 63
    assert [(s.name, s.reason) for s in found.images.skipped] == [
        ("A01_s1_w1 (copy).tif", "A01_s1_w1.tif is read as the same well, site and channel")
    ]
    own = write(tmp_path / "own", [f"p-{c}-D{k:02d}-f01.tif" for k in (1, 2) for c in ("DNA", "ER")])
    with pytest.raises(ValueError, match="expected one file for each well, site and channel, found p-DNA-D01"):
        sites_of(open_images(own))
    times = write(tmp_path / "times", [f"p_A01_T{t:04d}F001L01A01Z01C01.tif" for t in (1, 2)])
    with pytest.raises(ValueError, match="; give the files of one time, or another pattern"):
        sites_of(open_images(times))
    named = r"p-(?P<channel>\w+)-(?P<well>[A-P]\d\d)-f(?P<site>\d\d)"
    assert sites_of(open_images(own), pattern=named, channels=("DNA", "ER")).channels == ("DNA", "ER")
    with pytest.raises(ValueError, match="expected names of channels in the order DNA, ER, found ER, DNA"):
        sites_of(open_images(own), pattern=named, channels=("ER", "DNA"))


@pytest.mark.parametrize("name", ["x/{}_s1_w{}.tif", "{}/s1_w{}.tif", "{0}/{0}_s1_w{1}.tif", "{}/f1_ch{}.tif", "w{1}/{0}_s1.tif"])
def test_plates_are_told_apart_by_folder_and_folders_of_wells_or_channels_are_no_plates(name, tmp_path):
    with tarfile.open(tmp_path / "both.tar", "w") as tar:
        for plate in ("P1", "P2"):
            folder = write(tmp_path / "data" / plate, [name.format(well, w) for well in ("A01", "A02") for w in (1, 2)])
            tar.add(folder, plate)
            assert sites_of(open_images(folder)).wells == [("plate", "A01"), ("plate", "A02")]
    for source in (tmp_path / "data", tmp_path / "both.tar"):
        found = sites_of(open_images(source))
        assert found.wells == [(plate, well) for plate in ("P1", "P2") for well in ("A01", "A02")] and found.channels == (
            "1",
            "2",
        )


@pytest.mark.parametrize("name", ["r01c01f01p{}-ch1.tiff", "A - 1(fld 01 wv UV - DAPI z {}).tif"])
def test_of_several_planes_the_middle_one_is_judged(name, tmp_path):
    for z in ("01", "02", "03"):
        write(tmp_path, [name.format(z)], np.full((8, 8), int(z), dtype=np.uint16))
    found = sites_of(open_images(tmp_path))
    assert found.images.read(0).pixels[0, 0, 0] == 2 and found.notes == ("Of 3 planes of a site the middle one is judged.",)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (None, "found 'photo_r1c1.tif'; give a pattern such as 'r(?P<row>"),
        ("(?P<well>x", "expected a regular expression as the pattern"),
        ("(?P<wells>x)", "expected a pattern with the group well"),
        ("(?P<well>Z99)", "expected names that fit"),
    ],
)
def test_names_without_wells_are_refused(pattern, message, tmp_path):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("?", r"\?")):
        sites_of(open_images(write(tmp_path, ["photo_r1c1.tif"])), pattern=pattern)


def test_a_tiff_that_pillow_cannot_read_is_read_by_tifffile(tmp_path, capfd):
    tifffile = pytest.importorskip("tifffile")
    x = np.arange(-8, 120, dtype=np.int16).reshape(2, 8, 8)
    for k in (1, 2):
        tifffile.imwrite(tmp_path / f"A0{k}_1.tif", x, photometric="minisblack", planarconfig="separate", byteorder="<>"[k - 1])
    (tmp_path / "A03_1.tif").write_bytes(b"II*\0\x08\0\0\0")
    found = sites_of(open_images(tmp_path)).images
    pixels = [image for _, image in found.map(lambda image: image.pixels, range(3))]
    assert np.allclose(np.stack(pixels) * 65_535, x) and [s.reason for s in found.skipped] == ["the file is cut off"]
    assert capfd.readouterr().err == ""


def test_floats_are_divided_by_what_most_sites_reach_and_nan_is_named(tmp_path):
    x = np.arange(-8, 56, dtype=np.float32).reshape(8, 8) / 1e5
    for k, x[-1, -1] in enumerate((55e-5, 3e38, np.nan, np.inf, 55e-5)):
        write(tmp_path, [f"A0{k}_1.tif"], x)
    found = sites_of(open_images(tmp_path))
    pixels = [image for _, image in found.images.map(lambda image: image.pixels[0], range(5))]
    assert len(pixels) == 3 and np.allclose(pixels[0] * 55e-5, x) and pixels[1].max() == 1_000
    assert found.notes == ("Values of float pixels are divided by 0.00055.",)
    assert [s.reason for s in found.images.skipped] == ["channel 1 has a pixel that is not a number (NaN) or infinite"] * 2


def test_rows_and_columns_that_no_plate_has_are_skipped(tmp_path):
    found = sites_of(open_images(write(tmp_path, [f"{at}f01p01-ch1.tiff" for at in ("r00c01", "r32c48", "r33c01", "r01c49")])))
    assert found.wells == [("plate", "AF48")] and found.images.skipped[0].reason == "no plate has row 00, column 01"
