"""Folders and files that are damaged, endless, huge or oddly named: one clear line, or an entry in the list of skipped items."""

import json
import os
import signal
import struct
import sys
import time
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.test_data import printed
from tests.refusals import refuses

from vergence.data import images
from vergence.data.arrays import holds_pairs, open_arrays
from vergence.data.config import DataConfig
from vergence.data.images import ImageFiles, decode, file_name, header, listing, written_name
from vergence.data.items import Skipped, batches
from vergence.data.sources import open_data, open_items
from vergence.data.table_files import read_table
from vergence.utils.parts import write_table

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, symbolic links and names of any bytes")


def write(path, seed=0, size=(20, 24), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return path


@linux
def test_a_link_to_its_own_folder_adds_nothing(tmp_path):
    for i in range(8):
        write(tmp_path / "photos" / f"{i}.png", i)
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "again.png").symlink_to("3.png")
    found = listing(tmp_path / "photos").items
    assert found.names == [f"{i}.png" for i in range(8)] and found.labels is None
    assert {one.name for one in found.skipped} == {"loop", "again.png"}
    assert all("a link to " in one.reason and "listed already" in one.reason for one in found.skipped)
    data = open_data(DataConfig(source=str(tmp_path / "photos")), workers=0)
    assert len(data.train) + len(data.test) == 8 and {one.name for one in data.skipped} == {"loop", "again.png"}
    assert {one.name for one in open_items(str(tmp_path / "photos"), shape=(3, 8, 8)).skipped} == {"loop", "again.png"}
    open_data(DataConfig(source=str(tmp_path / "photos"), strict=True), workers=0)


@linux
def test_links_never_put_one_file_on_both_sides_of_the_split(tmp_path):
    for i in range(4):
        write(tmp_path / "set" / "train" / f"{i}.png", i)
    write(tmp_path / "set" / "test" / "9.png", 9)
    (tmp_path / "set" / "test" / "1.png").symlink_to("../train/1.png")
    (tmp_path / "set" / "test" / "more").symlink_to("../train")
    found = listing(tmp_path / "set").items
    assert found.names == [*(f"train/{i}.png" for i in range(4)), "test/9.png"] and listing(tmp_path / "set").test.tolist() == [
        False
    ] * 4 + [True]
    assert {one.name for one in found.skipped} == {"test/1.png", "test/more"}
    (tmp_path / "set" / "test" / "9.png").unlink()
    for name in ("1.png", "more"):
        (tmp_path / "set" / "test" / name).unlink()
    (tmp_path / "set" / "test").rmdir()
    (tmp_path / "set" / "test").symlink_to("train")
    assert [one.name for one in listing(tmp_path / "set").items.skipped] == ["test"]


@linux
@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pipe_or_a_device_is_skipped(tmp_path, workers):
    for i in range(5):
        write(tmp_path / f"{i}.png", i)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    wanted = {Skipped("pipe.png", "not a regular file"), Skipped("zero.png", "not a regular file")}
    data = open_data(DataConfig(source=str(tmp_path)), workers=workers)
    assert set(data.skipped) == wanted and len(data.train) + len(data.test) == 5
    items = open_items(str(tmp_path), shape=(3, 8, 8))
    assert sum(len(index) for index, _ in items.stream(batches(7, 3), workers)) == 5 and set(items.skipped) == wanted
    assert header(tmp_path / "pipe.png") is None
    refuses("expected a folder, or a file ending in", open_items, str(tmp_path / "pipe.png"), shape=(3, 8, 8))


@pytest.mark.timeout(60)
def test_a_image_that_takes_too_long_is_skipped(tmp_path, monkeypatch):
    names = [write(tmp_path / f"{i}.png", i).name for i in range(3)]
    load = images._loaded

    def slow(image):
        if image.fp.name and os.fstat(image.fp.fileno()).st_ino == (tmp_path / "1.png").stat().st_ino:
            time.sleep(30)
        return load(image)

    monkeypatch.setattr(images, "_loaded", slow)
    monkeypatch.setattr(images, "DECODE_SECONDS", 0.2)
    start = time.monotonic()
    kept, _, skipped = ImageFiles(tmp_path, names, (3, 8, 8)).read(torch.arange(3))
    assert kept.tolist() == [0, 2] and skipped == [Skipped("1.png", "decoding took longer than 0.2 s")]
    assert time.monotonic() - start < 10


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_the_time_limit_leaves_another_timer_alone(tmp_path):
    path, calls = write(tmp_path / "a.png"), []
    before = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    pending = signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        decode(path, (3, 8, 8))
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3 and not calls
        time.sleep(0.4)
        assert calls == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *pending)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = bytearray(write(tmp_path / "bomb.png").read_bytes())
    png[16:29] = header
    png[29:33] = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "bomb.png").write_bytes(png)
    _, _, skipped = ImageFiles(tmp_path, ["bomb.png"], (3, 8, 8)).read(torch.arange(1))
    assert skipped == [Skipped("bomb.png", "more than 178,956,970 pixels; scale it down")]
    monkeypatch.setattr(images, "MAX_PIXELS", 20 * 24 - 1)
    write(tmp_path / "a.png")
    refuses("more than 479 pixels; scale it down", decode, tmp_path / "a.png", (3, 8, 8))
    monkeypatch.setattr(images, "MAX_PIXELS", 20 * 24)
    assert decode(tmp_path / "a.png", (3, 8, 8)).shape == (3, 8, 8)


@pytest.mark.parametrize("name", ["a.png", "ä/100%.png", "a%FF.png", "bytes:a.png", "caf\udce9.png", "\udcff%41 +=@/x\udc80.png"])
def test_written_names_are_text_and_lossless(name):
    written = written_name(name)
    assert file_name(written) == name and json.dumps(written).encode() and written.encode()
    assert (written == name) == (not name.startswith("bytes:") and name.isprintable())
    assert written_name(written) != written or written == name


@linux
@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_names_that_are_not_unicode_do_not_stop_the_job(tmp_path, ending):
    folder = tmp_path / "photos"
    for i, name in enumerate([b"caf\xe9.png", b"\xff/1.png", b"plain/1.png", b"plain/2.png", b"\xff/2.png"]):
        write(folder / os.fsdecode(name), i)
    wanted = ["bytes:%FF/1.png", "bytes:%FF/2.png", "bytes:caf%E9.png", "plain/1.png", "plain/2.png"]
    data = open_data(DataConfig(source=str(folder)), workers=0)
    assert sorted([*data.train.names, *data.test.names]) == wanted and data.classes == ("plain", "bytes:%FF")
    items = open_items(str(folder), shape=(3, 8, 8))
    index, x = next(items.stream(batches(5, 5)))
    columns = {"name": [items.names[i] for i in index.tolist()], "mean": x.float().mean((1, 2, 3)).numpy()}
    write_table(tmp_path / f"out.{ending}", columns)
    if ending == "npz":
        with np.load(tmp_path / "out.npz") as arrays:
            found = arrays["name"].tolist()
    else:
        found = read_table(tmp_path / f"out.{ending}")["name"].to_pylist()
    assert sorted(found) == wanted and all((folder / file_name(name)).is_file() for name in found)


def npy_header(shape, kind="<f4"):
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", [(10**12, 3), (2**62, 4), (10**30,), (2**32, 2**32), (10**6, 10**6)])
def test_headers_that_claim_terabytes(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(npy_header(shape) + bytes(100))
    refuses("expected a NumPy file .* cannot be read", open_arrays, tmp_path / "a.npy", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_header(shape) + bytes(100))
    refuses("expected a NumPy file .* cannot be read", open_arrays, tmp_path / "a.npz", 1 << 20)


def test_an_archive_larger_than_the_memory_says_so(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 100)))
    monkeypatch.setattr("vergence.data.arrays.total_memory", lambda device: 10_000)
    refuses("x to fit into memory", open_arrays, tmp_path / "a.npz", 1 << 20)


def test_a_damaged_archive_is_no_pairs(tmp_path):
    np.savez(tmp_path / "x.npz", context=np.zeros((3, 2)), target=np.zeros((3, 2)))
    assert holds_pairs(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 5, 5, 1000, 0, 0))  # an index that is not there
    assert not holds_pairs(tmp_path / "x.npz") and not holds_pairs(tmp_path / "none.npz")


@pytest.mark.slow
@linux
def test_a_million_images_are_read_in_bounded_memory(tmp_path):
    """In a process of its own: the peak grows by little while 3 GB are read."""
    header = npy_header((1_000_000, 3, 32, 32), "|u1")
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 1_000_000 * 3072)  # a sparse file: it takes no space
    code = f"""
import resource, torch
from vergence.data.items import batches
from vergence.data.sources import open_items
torch.zeros(10)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
items = open_items({str(path)!r}, shape=(3, 32, 32))
n = sum(len(items.read(index)) for index in batches(len(items), 1000))
print(n, peak() - before)
"""
    n, grown = printed(code)
    assert n == "1000000" and int(grown) < 200
