"""Loaders and other streams become the same items as the arrays that they give."""

import itertools

import pytest
import torch
from PIL import Image
from tests.data.test_data import read_all
from tests.data.test_objects import IMAGES, VECTORS, ImageList, Rows
from tests.refusals import refuses
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from vergence.data import sources
from vergence.data.image_list import open_images
from vergence.data.sources import from_object, held, in_words

X = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).contiguous()
LABELS = torch.arange(12) % 3
NAMES = [f"{i}.png" for i in range(12)]


class Stream(IterableDataset):
    """Items one at a time, without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items())


LISTED = [((x, -x), int(y), name) for x, y, name in zip(X, LABELS, NAMES, strict=True)]
STREAMS = {
    "batches": DataLoader(TensorDataset(X, LABELS), batch_size=5),
    "views with names, as lightly has them": DataLoader(LISTED, batch_size=5),
    "lists of PIL images": DataLoader(ImageList(), batch_size=5, collate_fn=list),
    "single items": DataLoader(TensorDataset(X, LABELS), batch_size=None),
    "an iterable": Stream(lambda: zip(X, LABELS, strict=True)),
    "a loader of an iterable with names": DataLoader(Stream(lambda: LISTED), batch_size=4),
    "an iterable of batches": Stream(lambda: zip(X.split(5), LABELS.split(5), strict=True)),
    "a generator": ({"image": Image.fromarray(x), "label": i % 3} for i, x in enumerate(IMAGES)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_the_items_that_they_give(name):
    opened = from_object(STREAMS[name], column="image" if name == "a generator" else ())
    assert torch.equal(read_all(opened.items)[1], X) and opened.items.labels.tolist() == LABELS.tolist()
    assert opened.classes == ("0", "1", "2") and list(opened.items.names) == (
        NAMES if "names" in name else [*map(str, range(12))]
    )


def test_vectors_dictionaries_and_what_has_no_labels():
    loader = DataLoader(TensorDataset(torch.from_numpy(VECTORS)), batch_size=5)
    opened = from_object(loader)
    assert torch.equal(read_all(opened.items)[1], torch.from_numpy(VECTORS)) and opened.items.labels is None
    rows = DataLoader([{"x": x, "label": i % 2, "__key__": f"k{i}", "boxes": [i]} for i, x in enumerate(VECTORS)], batch_size=5)
    opened = from_object(rows, column="x")
    assert opened.items.labels.tolist() == [0, 1] * 6 and opened.items.names[7] == "k7" and opened.items.shape == (4,)
    assert from_object(iter([{"x": x.tolist()} for x in VECTORS]), column="x").items.shape == (4,)
    assert from_object(Stream(lambda: ((x, [{}, [1, 2]], None, 0.5) for x in VECTORS))).items.labels is None
    assert in_words(DataLoader(Stream(lambda: VECTORS))) == "memory: DataLoader" and held("digits") == "digits"
    assert len(open_images(STREAMS["batches"])) == len(open_images(ImageList())) == 12


def test_a_stream_is_read_once_and_ends(monkeypatch):
    shuffled = DataLoader(TensorDataset(X, LABELS), batch_size=5, shuffle=True)
    kept = held(shuffled)
    assert torch.equal(read_all(from_object(kept).items)[1], read_all(from_object(kept).items)[1])
    endless = Stream(lambda: itertools.cycle(VECTORS))
    assert len(held(endless, limit=80, holdout=0.2).items) == 100
    monkeypatch.setattr(sources, "STREAM_ITEMS", 50)
    refuses(r"more after 50; train with limit=", from_object, endless)


@pytest.mark.parametrize(
    ("source", "message"),
    [(iter([]), "without any; make it anew"), (DataLoader(Rows(), collate_fn=list), "name the image or vector with column="),
     (Stream(lambda: [X[0], X[0, :, :5]]), "resize or convert"), (Stream(lambda: [X[0], X[0] / 255]), "resize or convert"),
     (iter(["a.png"]), "images or vectors in the data set")],
)  # fmt: skip
def test_streams_that_cannot_be_read_say_what_to_do(source, message):
    refuses(message, from_object, source)
