"""Samples: the nearest real pictures, and the files written."""

import numpy as np
import pytest
import torch
from PIL import Image

import vergence
from vergence.data.sources import open_data
from vergence.learn.runs import detector, pictures

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("gje") / "run", objective="gje", projector=(16,), **QUICK)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A run on pairs: the left half of a digit is the context, the right half, gray as well but of another size, the target."""
    from sklearn.datasets import load_digits

    folder, images = tmp_path_factory.mktemp("halves"), (load_digits().images[:300] * 15).astype(np.uint8)
    np.savez(folder / "halves.npz", context=images[:, :, :4], target=images[:, 1:7, 4:])
    with torch.random.fork_rng():
        return vergence.train(str(folder / "halves.npz"), out=folder / "run", objective="gje", projector=(8,), **QUICK)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    np.save(folder / "x.npy", rng.normal(size=(200, 6)).astype(np.float32))
    with torch.random.fork_rng():
        settings = {"objective": "gje", "encoder": "mlp", "projector": (4,)}
        return vergence.train(str(folder / "x.npy"), out=folder / "run", **settings, **QUICK)


def test_the_nearest_picture_of_an_embedding_is_the_picture_itself(run, monkeypatch):
    items = detector.opened(run.folder).train  # without those that calibrate
    assert len(pictures.targets(run)) == len(items) < len(open_data(run.folder.config.data).train)
    some = torch.tensor([7, 3, 700])
    for distances in (1 << 24, 1):
        monkeypatch.setattr(pictures, "DISTANCES", distances)
        shown, index = pictures.nearest_pictures(run, run.embed(items.subset(some), projected=True))
        assert torch.equal(index, some) and torch.equal(shown, items.read(some).float() / 255)


def test_pictures_of_pairs_are_of_targets(halves):
    assert pictures.picture_shape(halves) == (1, 6, 4)
    shown, index = pictures.nearest_pictures(halves, halves.sample(5)[1])
    assert shown.shape == (5, 1, 6, 4) and index.max() < len(pictures.targets(halves))


def test_vectors_have_no_pictures(vectors, tmp_path):
    with pytest.raises(ValueError, match="vectors of 6 features"):
        pictures.nearest_pictures(vectors, torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"write a \.npz"):
        pictures.write_samples(vectors, tmp_path / "s.png")
    assert pictures.write_samples(vectors, tmp_path / "s.npz", n=5) == 5


def test_embeddings_are_those_of_sample_and_of_the_conditional(run, tmp_path):
    assert pictures.write_samples(run, tmp_path / "s.npz", n=10, seed=4) == 10
    with np.load(tmp_path / "s.npz") as s:
        za, zb = run.sample(10, seed=4)
        assert np.array_equal(s["za"], za.numpy()) and np.array_equal(s["zb"], zb.numpy())
    assert pictures.write_samples(run, tmp_path / "c.npz", n=500, context="digits") == 8 * 500
    with np.load(tmp_path / "c.npz") as s:
        assert s["za"].shape == (8, 16) and s["zb"].shape == (8, 500, 16) and len(s["name"]) == 8
        given = run.conditional("digits")
        z = (s["zb"].mean(1) - given.mean[:8].numpy()) / (given.variance[:8].numpy() / 500) ** 0.5
        assert np.abs(z).max() < 5
        assert np.allclose(s["za"], run.embed("digits", projected=True)[:8], atol=1e-5)


def picture(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("L")).astype(int)


def test_grids_hold_contexts_and_draws(run, halves, tmp_path):
    assert pictures.write_samples(run, tmp_path / "g.png", n=9) == 9
    assert picture(tmp_path / "g.png").shape == (3 * 34 + 2, 3 * 34 + 2)  # 32 pixels, 2 between
    assert pictures.write_samples(run, tmp_path / "c.png", n=3, context="digits") == 24
    assert picture(tmp_path / "c.png").shape == (8 * 34 + 2, 4 * 34 + 2)
    first = picture(tmp_path / "c.png")[2:34, 2:34][::4, ::4]
    digit = run.items("digits").read(torch.tensor([0]))[0, 0].numpy()
    assert np.abs(first - digit.astype(int)).max() <= 1
    source = halves.folder.config.data.source
    assert pictures.write_samples(halves, tmp_path / "h.png", n=2, context=source) == 16
    assert picture(tmp_path / "h.png").shape == (8 * 50 + 2, 3 * 34 + 2)


def test_files_that_cannot_be_written_are_refused_before_the_work(run, tmp_path):
    for out, words, more in (
        (tmp_path / "s.jpg", "ending among .npz", {}),
        (tmp_path / "no" / "s.png", "no folder", {}),
        (tmp_path / "s.npz", "at least 1", {"n": 0}),
    ):
        with pytest.raises(ValueError, match=words):
            pictures.write_samples(run, out, **more)
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.raises(ValueError, match="be read"):
        pictures.write_samples(run, tmp_path / "s.npz", context=tmp_path / "bad.png")
    assert not (tmp_path / "s.npz").exists()
