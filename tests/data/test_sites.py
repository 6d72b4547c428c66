"""Sites of plates: names of microscopes, channels in files or stacks, and files that differ from the others."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from vergence.data.image_list import open_images
from vergence.data.sites import PATTERNS, sites_of

NAMES = {
    "Operetta": ("r02c03f05p01-ch2sk1fk1fl1.tiff", "B03", "5", "2"),
    "Yokogawa": ("plate1_B03_T0001F005L01A01Z01C02.tif", "B03", "5", "02"),
    "ImageXpress": ("exp_B03_s5_w2A1B2C3D4.tif", "B03", "5", "2"),
    "well, site and channel": ("B3_f05_DNA.tif", "B03", "5", "DNA"),
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
        write(tmp_path, [f"A01_s1_ch{w}.tif"], np.full((8, 8), w, dtype=np.uint16))
    found = sites_of(open_images(tmp_path))
    assert found.channels == ("1", "9", "10")
    assert found.images.read(0).pixels[:, 0, 0].tolist() == [1, 9, 10]


def test_a_missing_channel_is_named(tmp_path):
    write(tmp_path, ["A01_s1_w1.tif", "A01_s1_w2.tif", "A02_s1_w1.tif"])
    found = sites_of(open_images(tmp_path))
    assert found.images.names == ["plate A01 1"]
    assert [(s.name, s.reason) for s in found.images.skipped] == [("plate A02 1", "no channel 2")]


def test_files_that_differ_are_named_and_the_others_stay(tmp_path):
    write(tmp_path, [f"A{k:02d}_s1_w{w}.tif" for k in range(1, 9) for w in (1, 2)])
    write(tmp_path, ["A01_s1_w2.tif"], np.zeros((4, 8), dtype=np.uint16))
    write(tmp_path, ["A02_s1_w2.tif"], np.zeros((8, 8), dtype=np.uint8))
    content = (tmp_path / "A03_s1_w1.tif").read_bytes()
    (tmp_path / "A03_s1_w1.tif").write_bytes(content[: len(content) // 2])
    found = sites_of(open_images(tmp_path))
    read = [i for i, _ in found.images.map(lambda image: image.size, range(len(found.images)))]
    assert [found.images.names[i] for i in read] == [f"plate A{k:02d} 1" for k in range(4, 9)]
    reasons = {s.name: s.reason for s in found.images.skipped}
    assert reasons["plate A01 1"] == "channel 2 of 4 x 8 pixels, where others have 8 x 8"
    assert reasons["plate A02 1"] == "channel 2 of 8 bits, where others have 16"
    assert reasons["plate A03 1"] == "channel 1: the file is cut off" and found.keys["plate A03 1"] == ("plate", "A03", "1")


def test_a_stack_holds_all_channels_and_ome_names_them(tmp_path):
    planes = [Image.fromarray(np.full((8, 8), c, dtype=np.uint16)) for c in range(3)]
    about = '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image><Pixels>' + "".join(
        f'<Channel ID="{k}" Name="{name}"/>' for k, name in enumerate(("DNA", "ER", "Mito"))
    )
    about += "</Pixels></Image></OME>"
    planes[0].save(tmp_path / "A01_1.tif", save_all=True, append_images=planes[1:], tiffinfo={270: about})
    found = sites_of(open_images(tmp_path))
    assert found.channels == ("DNA", "ER", "Mito")
    assert found.images.read(0).pixels[:, 0, 0].tolist() == [0, 1, 2]


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
    named = r"p-(?P<channel>\w+)-(?P<well>[A-P]\d\d)-f(?P<site>\d\d)"
    assert sites_of(open_images(own), pattern=named, channels=("DNA", "ER")).channels == ("DNA", "ER")
    with pytest.raises(ValueError, match="expected names of channels in the order DNA, ER, found ER, DNA"):
        sites_of(open_images(own), pattern=named, channels=("ER", "DNA"))


def test_plates_are_told_apart_by_folder_and_a_tar_is_read(tmp_path):
    write(tmp_path / "data", [f"{p}/Images/A01_s1_w1.tif" for p in ("P1", "P2")])
    assert sites_of(open_images(tmp_path / "data")).wells == [("P1", "A01"), ("P2", "A01")]
    with tarfile.open(tmp_path / "both.tar", "w") as tar:
        tar.add(tmp_path / "data" / "P1", "P1")
        tar.add(tmp_path / "data" / "P2", "P2")
    assert sites_of(open_images(tmp_path / "both.tar")).wells == [("P1", "A01"), ("P2", "A01")]


def test_of_several_planes_the_middle_one_is_judged(tmp_path):
    for z in (1, 2, 3):
        write(tmp_path, [f"r01c01f01p{z:02d}-ch1.tiff"], np.full((8, 8), z, dtype=np.uint16))
    found = sites_of(open_images(tmp_path))
    assert found.images.read(0).pixels[0, 0, 0] == 2 and found.notes == ("Of 3 planes of a site the middle one is judged.",)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (None, "expected names of sites"),
        ("(?P<well>x", "expected a regular expression as the pattern"),
        ("(?P<wells>x)", "expected a pattern with the group well"),
        ("(?P<well>Z99)", "expected names that fit"),
    ],
)
def test_names_without_wells_are_refused(pattern, message, tmp_path):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("?", r"\?")):
        sites_of(open_images(write(tmp_path, ["photo.tif"])), pattern=pattern)


def test_a_tiff_that_pillow_cannot_read_is_read_by_tifffile(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    x = np.arange(2 * 64, dtype=np.uint32).reshape(2, 8, 8)
    file = io.BytesIO()
    tifffile.imwrite(file, x, photometric="minisblack", planarconfig="separate")
    (tmp_path / "A01_1.tif").write_bytes(file.getvalue())
    assert sites_of(open_images(tmp_path)).images.read(0).pixels.tolist() == x.tolist()
