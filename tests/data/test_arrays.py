"""What an array is taken for: images, vectors, arrays of any shape and range, and ids of tokens."""

import numpy as np
import pytest
import torch
from PIL import Image
from tests.refusals import refuses
from torch.utils.data import TensorDataset

from vergence.data.arrays import from_array
from vergence.data.config import DataConfig
from vergence.data.images import decode
from vergence.data.sources import from_object, open_data

R = np.random.default_rng(0)
LEADS = R.normal(size=(6, 12, 60)).astype(np.float32)


@pytest.mark.parametrize(
    ("array", "given", "kind", "shape"),
    [(LEADS, None, "array", (12, 60)), (LEADS * 0 + 0.5, None, "array", (12, 60)), (LEADS, "vector", "vector", (720,)),
     ((LEADS * 99).astype(np.int16), None, "array", (12, 60)), (LEADS[:, None], "array", "array", (1, 12, 60)),
     (np.zeros((6, 9, 60), np.uint8), None, "image", (1, 9, 60)), (LEADS[:, None, None, :4], None, "array", (1, 1, 4, 60)),
     (np.zeros((6, 9, 60)), "image", "image", (1, 9, 60)), (np.arange(30).reshape(6, 5), "tokens", "tokens", (5,))],
)  # fmt: skip
def test_an_array_that_cannot_be_images_stays_as_it_is(array, given, kind, shape):
    items = from_array(array, kind=given)
    assert (items.kind, items.shape) == (kind, shape)
    assert torch.equal(items.read(torch.arange(6)).flatten(), torch.from_numpy(array).to(items.dtype).flatten())
    part = items.subset(torch.tensor([4, 2]))
    assert part.kind == kind and torch.equal(part.read(torch.tensor([1])), items.read(torch.tensor([2])))


def test_sixteen_bits_are_shifted_as_those_of_files_are(tmp_path):
    x = np.linspace(0, 65535, 2 * 40 * 40).astype(np.uint16).reshape(2, 40, 40)
    Image.fromarray(x[1]).save(tmp_path / "a.png")
    np.save(tmp_path / "x.npy", x)
    for array in (x, np.load(tmp_path / "x.npy", mmap_mode="r")):
        read = from_array(array).read(torch.arange(2))
        assert read.dtype == torch.uint8 and np.array_equal(read[:, 0], x >> 8)
        assert np.array_equal(read[1], decode(tmp_path / "a.png", (1, 40, 40)))
    assert from_array(x > 40_000).read(torch.arange(2)).unique().tolist() == [0, 255]


@pytest.mark.parametrize(
    ("array", "kind", "word"),
    [(LEADS[:, :, :24], None, "kind='array'"), (LEADS[:, None], None, "say `kind='array'`"), (LEADS, "tokens", "whole numbers"),
     (np.zeros((6, 9, 9), np.int32), None, "divide them by the end of their range"), (LEADS[:, 0], "image", "leave kind out"),
     (LEADS * np.nan, None, "NaN or infinity"), ((LEADS, LEADS), "tokens", "single items"), (LEADS[:0], "array", "1 row")],
)  # fmt: skip
def test_what_else_an_array_could_be_is_named(array, kind, word):
    refuses(word, from_object, array, kind=kind)


def test_a_data_set_of_arrays_and_files_of_arrays(tmp_path):
    for memory in (1 << 20, 10):
        rows = TensorDataset(torch.from_numpy(LEADS), torch.arange(6))
        items = from_object(rows, kind="array", memory=memory).items
        assert items.kind == "array" and items.shape == (12, 60)
    np.save(tmp_path / "x.npy", LEADS)
    data = open_data(DataConfig(source=str(tmp_path / "x.npy"), form="array"))
    assert data.kind == "array" and data.size is None and len(data.train) == 5
    refuses("items of kind array, found image in digits", open_data, DataConfig(source="digits", form="array"))
