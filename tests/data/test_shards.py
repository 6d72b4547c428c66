"""Encoded images in tars and Parquet: read, split, scored and trained as the same images in a folder."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tests.factories import png
from tests.refusals import refuses

import vergence
from vergence.data import sources
from vergence.data.config import DataConfig
from vergence.data.image_list import open_images
from vergence.data.items import batches
from vergence.data.shards import EncodedImages, is_sharded, open_shards

DIGITS = load_digits()
PIXELS = np.round(DIGITS.images[:60] * (255 / 16)).astype(np.uint8)
LABELS = DIGITS.target[:60]


def write_tar(path, rows, labels=True):
    with tarfile.open(path, "w") as tar:
        for i in rows:
            for ending, data in (
                ("png", png(PIXELS[i])),
                *([("cls", str(LABELS[i]).encode())] if labels else []),
                ("json", b"{}"),
            ):
                info = tarfile.TarInfo(f"{i:04d}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def read(items):
    return torch.cat([x for _, x in items.stream(batches(len(items), 16))]).numpy()


@pytest.fixture
def tars(tmp_path):
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(3):
        write_tar(folder / f"{k:03d}.tar", range(20 * k, 20 * k + 20))
    return folder


@pytest.fixture
def parquet(tmp_path):
    table = pa.table(
        {
            "image": [{"bytes": png(x), "path": f"{i}.png"} for i, x in enumerate(PIXELS)],
            "label": pa.array(LABELS),
            "name": [f"{i}.png" for i in range(60)],
        }
    )
    pq.write_table(table, tmp_path / "pics.parquet", row_group_size=7)
    return tmp_path / "pics.parquet"


def test_every_way_to_name_the_files_gives_the_same_images(tars, parquet, tmp_path):
    listing = tmp_path / "all.list"
    listing.write_text(f"{tars}/000.tar\n{tars}/{{001..002}}.tar\n")
    ways = [str(tars), f"{tars}/{{000..002}}.tar", f"{tars}/*.tar", f"file://{tars}/{{000..002}}.tar", str(listing), str(parquet)]
    for source in ways:
        if "*" not in source:
            assert is_sharded(source), source
        source_ = open_shards(source, shape=(1, 8, 8))
        np.testing.assert_array_equal(read(source_.items)[:, 0], PIXELS, err_msg=source)
        assert source_.items.labels.tolist() == LABELS.tolist()
    assert open_shards(str(tars), shape=(1, 8, 8)).items.names[:2] == ["000/0000.png", "000/0001.png"]
    assert open_shards(str(parquet), shape=(1, 8, 8)).items.names[:2] == ["0.png", "1.png"]


def test_object_storage_is_read_through_fsspec(tars):
    import fsspec

    memory = fsspec.filesystem("memory")
    for file in tars.iterdir():
        memory.pipe_file(f"/bucket/{file.name}", file.read_bytes())
    for source in ("memory://bucket/{000..002}.tar", "memory://bucket/*.tar", "memory://bucket"):
        np.testing.assert_array_equal(read(open_shards(source, shape=(1, 8, 8)).items)[:, 0], PIXELS)
    refuses(r"cannot read memory://bucket/9.tar", open_shards, "memory://bucket/9.tar")
    refuses(r"opens nothing:// addresses", open_shards, "nothing://bucket/9.tar")


def test_items_are_chosen_and_read_in_any_order_and_by_workers(tars):
    items = open_shards(str(tars), shape=(1, 8, 8)).items
    index = torch.randperm(60)[:25]
    some = items.subset(index)
    np.testing.assert_array_equal(read(some)[:, 0], PIXELS[index])
    assert some.labels.tolist() == LABELS[index].tolist()
    parts = [x for _, x in items.stream(batches(60, 16), workers=2)]
    np.testing.assert_array_equal(torch.cat(parts).numpy()[:, 0], PIXELS)


def test_broken_images_are_listed_and_files_that_are_none_are_refused(tmp_path):
    rows = [png(PIXELS[0]), b"", b"no image", None, png(PIXELS[1])[:50], png(PIXELS[2])]
    pq.write_table(pa.table({"image": pa.array(rows, pa.binary())}), tmp_path / "p.parquet")
    items = open_shards(str(tmp_path / "p.parquet"), shape=(1, 8, 8)).items
    assert len(read(items)) == 2
    assert [one.name for one in items.skipped] == ["row 1", "row 2", "row 3", "row 4"]
    (tmp_path / "x.tar").write_bytes(b"no tar at all")
    refuses(r"cannot read .*x\.tar", open_shards, str(tmp_path / "x.tar"))
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    refuses("images in", open_shards, str(tmp_path / "empty.tar"))
    refuses("found none", open_shards, str(tmp_path / "{00..03}.tar"))


def test_a_folder_of_other_files_is_none(tmp_path, tars):
    assert not is_sharded(str(tmp_path))  # a folder in it
    pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "t.parquet")
    assert not is_sharded(str(tmp_path / "t.parquet"))
    assert is_sharded(str(tars))
    Image.fromarray(PIXELS[0]).save(tars / "a.png")
    assert not is_sharded(str(tars))


@pytest.mark.slow
@pytest.mark.float32
def test_training_and_scores_are_those_of_a_folder(tars, parquet, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for i, x in enumerate(PIXELS):
        Image.fromarray(x).save(folder / f"{i:04d}.png")
    opened = sources.open_data(DataConfig(source=str(tars), size=8))
    assert (len(opened.train), len(opened.test)) == (48, 12)
    assert sorted(opened.train.labels.tolist() + opened.test.labels.tolist()) == sorted(LABELS.tolist())
    run = vergence.train("digits", objective="vje", encoder="small", epochs=1, device="cpu", knn_every=0)
    want = run.embed(str(folder))
    for source in (tars, parquet):
        torch.testing.assert_close(run.embed(str(source)), want)
    own = vergence.train(str(tars), objective="vje", encoder="small", epochs=1, batch_size=16, device="cpu", knn_every=0, size=8)
    assert own.folder.metadata.n_train > 30


def test_check_takes_them(tars):
    images = open_images(str(tars))
    assert len(images) == 60
    np.testing.assert_array_equal(images.read(7).pixels[0], PIXELS[7])
    assert isinstance(open_shards(str(tars)).items, EncodedImages)


def test_a_file_that_was_written_again_is_read_anew(parquet):
    assert (read(open_shards(str(parquet), shape=(1, 8, 8)).items)[0, 0] == PIXELS[0]).all()
    pq.write_table(pa.table({"image": [png(x) for x in PIXELS[30:33]]}), parquet)
    items = open_shards(str(parquet), shape=(1, 8, 8)).items
    np.testing.assert_array_equal(read(items)[:, 0], PIXELS[30:33])
    pq.write_table(pa.table({"a": [1.0]}), parquet)
    assert not is_sharded(str(parquet))
