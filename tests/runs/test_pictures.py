"""Pictures of embeddings: a decoder that learns, is kept and comes back, the nearest real pictures, and the files written."""

import numpy as np
import pytest
import torch
from PIL import Image

import vergence
from vergence.data.sources import open_data
from vergence.runs import fitting, pictures

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


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 4), (1, 8, 4), (3, 28, 28), (1, 5, 33), (3, 64, 64)])
def test_pictures_have_the_shape_and_lie_in_range(shape):
    decoder = pictures.Decoder(6, shape).eval()
    x = decoder(100 * torch.randn(3, 6))
    assert x.shape == (3, *shape) and 0 <= x.min() and x.max() <= 1


def test_the_decoder_is_dcgans_in_its_layers():
    layers = [type(layer).__name__ for layer in pictures.Decoder(6, (3, 32, 32)).net]
    assert layers.count("ConvTranspose2d") == 3  # 4, 8, 16, 32
    assert layers[:3] == ["Standardize", "Linear", "Unflatten"] and layers[-2:] == ["Conv2d", "Sigmoid"]


def test_a_decoder_beats_the_mean_picture_on_held_out_digits(run):
    before = {name: value.clone() for name, value in run.method.state_dict().items()}
    decoder = pictures.fit_decoder(run, epochs=8)
    data = open_data(run.folder.config.data)
    train, test = (part.read(torch.arange(len(part))).float() / 255 for part in (data.train, data.test))
    painted = pictures.decoded(decoder, run.project(data.test))
    error, of_mean = (painted - test).square().mean().item(), (train.mean(0) - test).square().mean().item()
    assert error < 0.7 * of_mean, f"{error:.4f} against {of_mean:.4f}"
    assert all(torch.equal(value, before[name]) for name, value in run.method.state_dict().items())
    assert not run.method.training and not decoder.training


def test_the_same_seed_gives_the_same_decoder_and_leaves_the_global_one_alone(run):
    items = open_data(run.folder.config.data).train.subset(torch.arange(100))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = [pictures.fit_decoder(run, items, epochs=1, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    first, again, other = (decoder.state_dict() for decoder in found)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["net.1.weight"], other["net.1.weight"])


def test_a_kept_decoder_comes_back_bit_for_bit_and_is_not_trained_again(run, monkeypatch):
    assert pictures.load_decoder(run, epochs=1) is None
    decoder, z = pictures.kept_decoder(run, epochs=1), run.sample(9)[1]
    expected = pictures.decoded(decoder, z)
    monkeypatch.setattr(pictures, "fit_decoder", lambda *_, **__: pytest.fail("trained again"))
    for epochs in (1, None):
        assert torch.equal(pictures.decoded(pictures.kept_decoder(run, epochs), z), expected)
    assert pictures.load_decoder(run, epochs=2) is None


def test_a_decoder_of_another_model_or_a_damaged_one_is_not_taken(run):
    pictures.kept_decoder(run, epochs=1)
    file, model = run.folder.path / pictures.FILE, run.folder.path / "model.safetensors"
    whole, weights = file.read_bytes(), model.read_bytes()
    state = run.folder.load_model()
    run.folder.save_model({name: value + 1 for name, value in state.items()})
    assert pictures.load_decoder(run) is None
    model.write_bytes(weights)
    assert pictures.load_decoder(run) is not None
    for damaged in (whole[:100], b"", b"not a file of tensors"):
        file.write_bytes(damaged)
        assert pictures.load_decoder(run) is None
    file.write_bytes(whole)


def test_the_nearest_picture_of_an_embedding_is_the_picture_itself(run, monkeypatch):
    items = fitting.training_items(run.folder)  # without those that calibrate
    assert len(pictures.targets(run)) == len(items) < len(open_data(run.folder.config.data).train)
    some = torch.tensor([7, 3, 700])
    for distances in (1 << 24, 1):
        monkeypatch.setattr(pictures, "DISTANCES", distances)
        shown, index = pictures.nearest_pictures(run, run.project(items.subset(some)))
        assert torch.equal(index, some) and torch.equal(shown, items.read(some).float() / 255)


def test_targets_of_pairs_are_what_is_painted(halves):
    assert pictures.picture_shape(halves) == (1, 6, 4)
    shown, index = pictures.nearest_pictures(halves, halves.sample(5)[1])
    assert shown.shape == (5, 1, 6, 4) and index.max() < len(pictures.targets(halves))
    assert pictures.decoded(pictures.fit_decoder(halves, epochs=1), halves.sample(5)[1]).shape == (5, 1, 6, 4)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 1}, {"lr": 0}])
def test_settings_out_of_range_are_refused(run, bad):
    with pytest.raises(ValueError, match="expected epochs >= 1"):
        pictures.fit_decoder(run, **bad)


def test_vectors_have_no_pictures(vectors, tmp_path):
    for call in (pictures.fit_decoder, lambda run: pictures.nearest_pictures(run, torch.zeros(1, 4))):
        with pytest.raises(ValueError, match="vectors of 6 features"):
            call(vectors)
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
        assert np.allclose(s["za"], run.project("digits")[:8], atol=1e-5)


def picture(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("L")).astype(int)


def test_grids_hold_contexts_and_draws(run, halves, tmp_path):
    assert pictures.write_samples(run, tmp_path / "g.png", n=9) == 9
    assert picture(tmp_path / "g.png").shape == (3 * 34 + 2, 3 * 34 + 2)  # 32 pixels, 2 between
    assert pictures.write_samples(run, tmp_path / "c.png", n=3, context="digits", epochs=1) == 24
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
        (tmp_path / "s.npz", "write a .png", {"decoder": True}),
        (tmp_path / "s.npz", "n of at least 1", {"n": 0}),
    ):
        with pytest.raises(ValueError, match=words):
            pictures.write_samples(run, out, **more)
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.raises(ValueError, match="could be read"):
        pictures.write_samples(run, tmp_path / "s.npz", context=tmp_path / "bad.png")
    assert not (tmp_path / "s.npz").exists()
