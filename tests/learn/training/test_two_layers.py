"""Runs whose closed form has two layers: whole runs, networks behind them, older runs, and bad input."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import vergence
from vergence.learn.encoders.config import as_encoder
from vergence.learn.encoders.patch_maps import PatchMaps
from vergence.learn.runs.features import RunFeatures
from vergence.learn.training import closed_form

TWO = "patches:atoms=16,directions=40,dim=16,second=12"
ONE = TWO.replace("second=12", "second=0")
QUICK = {"recipe": "patches", "encoder": TWO, "device": "cpu"}

pytestmark = pytest.mark.float32


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Digits of 16 x 16 pixels with labels."""
    digits = load_digits()
    large = np.kron(digits.images, np.ones((2, 2))) * (255 / 16)
    file = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(file, x=large.astype(np.uint8)[..., None], labels=digits.target)
    return str(file)


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    return vergence.train(source, out=tmp_path_factory.mktemp("two") / "run", **QUICK)


def test_the_level_of_patches_is_that_of_the_first_layer(run):
    x = torch.randint(256, (5, 1, 16, 16), dtype=torch.uint8)
    encoder = run.method.encoder[1]
    alone = PatchMaps(1, as_encoder(ONE).complete((1, 16, 16)))
    alone.set(encoder.maps.filters, encoder.maps.bias)
    features = RunFeatures(run.method, (1, 16, 16))
    f = alone(run.method.encoder[0](x))
    torch.testing.assert_close(features(x)["patches"], alone.settings.averaged(f), rtol=0, atol=1e-6)
    assert features.widths()["patches"] == 32


@pytest.mark.slow
def test_a_network_stands_behind_both_layers(run, source, tmp_path):
    steps = {"epochs": 1, "batch_size": 64, "knn_every": 0, "projector": (), "device": "cpu"}
    name = TWO.replace("patches:", "patches-mlp:")
    whole = vergence.train(source, out=tmp_path / "whole", recipe="patches_vje", encoder=name, **steps)
    behind = vergence.train(out=tmp_path / "behind", init=run.folder.path, objective="vje", **steps)
    for trained in (whole, behind):
        second = trained.method.encoder[1].closed_form.maps.second
        assert torch.equal(second.atoms, run.method.encoder[1].maps.second.atoms)
    x = torch.randint(256, (5, 1, 16, 16), dtype=torch.uint8)
    assert behind.embed(x).isfinite().all() and not torch.equal(behind.embed(x), run.embed(x))


def test_the_progress_counts_every_image_of_every_pass(source, tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(closed_form, "SECOND_FROM", 300)
    fit = closed_form.fit_closed_form

    def counting(*args, **named):
        fit(*args[:-1], lambda images, label: counted.append((label, images)), **named)

    monkeypatch.setattr(closed_form, "fit_closed_form", counting)
    run = vergence.train(source, out=tmp_path / "run", **QUICK)
    settings = run.folder.config.model.encoder
    assert sum(n for _, n in counted) == closed_form.total_images(run.folder.metadata.n_train, settings)
    assert sum(n for label, n in counted if label == "second layer") == 300


def test_a_large_second_layer_reads_more_images():
    for second, images in ((2048, 1_600), (4_000, 1_600), (4_096, 1_639), (10_000, 4_000)):
        settings = as_encoder(f"patches:second={second}").fitted((3, 32, 32), 10_000)
        assert settings.second == second
        assert closed_form.total_images(10_000, settings) == 4_000 + images + 3_000 + 20_000


@pytest.mark.slow
def test_more_directions_are_those_of_more_images(source, tmp_path, monkeypatch):
    for directions, images in ((2048, 3_000), (2_999, 3_998), (4_500, 6_000), (9_999, 10_000)):
        settings = as_encoder(f"patches:directions={directions}").fitted((3, 32, 32), 10_000)
        assert settings.directions == directions
        assert closed_form.total_images(10_000, settings) == 4_000 + 1_600 + images + 20_000
    monkeypatch.setattr(closed_form, "DIRECTIONS_FROM", 20)
    run = vergence.train(source, out=tmp_path / "run", **QUICK)
    assert run.folder.config.model.encoder.directions == 40
    z = run.embed(source)
    assert z.std(0).min() > 0 and torch.linalg.matrix_rank(z.double() - z.double().mean(0)) == z.shape[1]
