"""Data that a program holds become the same items as their files."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tests.data.test_data import read_all, smooth, write
from tests.refusals import refuses

from vergence.data.config import DataConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.data.sources import DatasetItems, from_object, open_data, open_items

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 9, 8, 3), dtype=np.uint8)
VECTORS = RNG.normal(size=(12, 4)).astype(np.float32)


class ImageList(torch.utils.data.Dataset):
    """PIL images with labels, as torchvision's sets give them."""

    def __init__(self, n=12):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return Image.fromarray(IMAGES[i]), i % 3


class Rows(ImageList):
    """Dictionaries, as Hugging Face's sets give them."""

    def __getitem__(self, i):
        return {"image": Image.fromarray(IMAGES[i]), "label": 1}


def pixels(source, **settings):
    return read_all(from_object(source, **settings).items)[1]


@pytest.mark.parametrize(
    "source",
    [IMAGES, torch.from_numpy(IMAGES), torch.from_numpy(IMAGES).permute(0, 3, 1, 2), [Image.fromarray(x) for x in IMAGES],
     list(torch.from_numpy(IMAGES)), ImageList()],
)  # fmt: skip
def test_images_in_every_form_are_the_same_items(source):
    opened = from_object(source)
    assert opened.items.shape == (3, 9, 8) and torch.equal(
        read_all(opened.items)[1], torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    )


COLUMNS = {f"f{i}": VECTORS[:, i] for i in range(4)}


def test_vectors_in_every_form_are_the_same_items():
    for source in (VECTORS, torch.from_numpy(VECTORS), VECTORS.tolist(), list(torch.from_numpy(VECTORS)), pa.table(COLUMNS)):
        assert torch.equal(pixels(source), torch.from_numpy(VECTORS))
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(VECTORS), torch.arange(12) % 2)
    opened = from_object(dataset)
    assert torch.equal(read_all(opened.items)[1], torch.from_numpy(VECTORS)) and opened.items.labels.tolist() == [0, 1] * 6


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_other_libraries(library):
    table = pytest.importorskip(library).DataFrame({**COLUMNS, "name": [f"n{i}" for i in range(12)]})
    opened = from_object(table)
    assert torch.equal(read_all(opened.items)[1], torch.from_numpy(VECTORS)) and opened.items.names[3] == "n3"


def test_columns_of_tables():
    lists = pa.table({"v": pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), 4), "label": ["a", "b"] * 6, "other": ["x"] * 12})
    opened = from_object(lists, column="v")
    assert torch.equal(read_all(opened.items)[1], torch.from_numpy(VECTORS)) and opened.classes == ("a", "b")
    wide = pa.table(COLUMNS)
    assert torch.equal(pixels(wide, column=["f2", "f0"]), torch.from_numpy(VECTORS[:, [2, 0]]))
    assert from_object(wide, column=["f2", "f0"]).columns == ("f2", "f0")
    refuses("did you mean 'f2'", from_object, wide, column="f22")


def test_paths_in_lists_and_columns(tmp_path):
    files = [write(tmp_path / place / f"{i}.png", seed=i) for i, place in enumerate(("a", "b", "b"))]
    opened = from_object(files)
    assert list(opened.items.names) == ["a/0.png", "b/1.png", "b/2.png"] and opened.items.shape == (3, 74, 74)
    table = pa.table({"file": [str(file) for file in files]})
    assert torch.equal(pixels(table, column="file"), read_all(opened.items)[1])
    data = open_data(DataConfig(source="photographs", size=16), source=[*files, tmp_path / "none.png", *files], workers=0)
    assert data.size == 16 and data.train.shape == (3, 19, 19) and [one.name for one in data.skipped] == ["none.png"]
    assert open_items(files, shape=(1, 8, 8)).shape == (1, 8, 8) and open_items(files, size=7).shape == (3, 8, 8)


def test_images_of_several_sizes_become_squares():
    opened = from_object([smooth(30, 40), smooth(50, 20).convert("L")], size=14)
    assert opened.items.shape == (3, 16, 16) and opened.size == 14
    assert from_object([smooth(30, 40).convert("L")] * 2).items.shape == (1, 30, 40)


def test_pairs():
    items = from_object((VECTORS, pa.table(COLUMNS))).items
    assert isinstance(items, PairItems) and items.shape == items.target_shape == (4,)
    data = open_data(DataConfig(source="pairs"), source=(VECTORS, IMAGES))
    assert data.kind == "pairs" and data.train.target_shape == (3, 9, 8)
    refuses("12 contexts and 3 targets", from_object, (VECTORS, VECTORS[:3]))


def test_labels_and_parts():
    data = open_data(DataConfig(source="vectors", holdout=0.25), source=VECTORS, labels=["a", "b", "c"] * 4)
    assert data.classes == ("a", "b", "c") and len(data.test) == 3 and sorted(data.test.labels.tolist()) == [0, 1, 2]
    again = open_data(DataConfig(source="vectors", holdout=0.25), source=torch.from_numpy(VECTORS), labels=torch.arange(12) % 3)
    assert list(again.test.names) == list(data.test.names)


def test_a_large_data_set_is_read_when_it_is_used():
    opened = from_object(ImageList(), memory=10)
    assert isinstance(opened.items, DatasetItems) and opened.items.labels is None
    part = opened.items.subset(torch.tensor([5, 0]))
    for workers in (0, 2):
        assert torch.equal(read_all(part, 1, workers)[1], torch.from_numpy(IMAGES[[5, 0]]).permute(0, 3, 1, 2))
    assert list(part.names) == ["5", "0"] and isinstance(from_object(ImageList()).items, ArrayItems)
    assert from_object(ImageList()).items.labels.tolist() == [0, 1, 2] * 4


def test_dictionaries_of_a_data_set():
    rows = Rows()
    assert pixels(rows, column="image").shape == (12, 3, 9, 8)
    refuses("did you mean 'image'", from_object, rows, column="imag")


@pytest.mark.parametrize(
    ("source", "word"),
    [([], "empty list"), ([1, "a"], "list"), ([[1.0], [1.0, 2.0]], "one shape"), ([{}], "list"), ((VECTORS, [object()]), "list"),
     ({"an x": VECTORS}, "modalities"), (3, "length and rows"), (ImageList(0), "1 item"),
     (pa.table({"a": ["x", "y"]}), "numbers"), (np.zeros(2), "reshape"), ([VECTORS[0], None], "list")],
)  # fmt: skip
def test_other_objects_are_refused_in_one_line(source, word):
    refuses(word, from_object, source)
