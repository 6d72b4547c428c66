"""On real photographs of clothes: a short training beats the encoder that it started from, and says so in its own evaluation."""

import pytest
from tests.conftest import torchvision_root

import vergence
from vergence.learn.runs import evaluate

pytestmark = pytest.mark.float32


@pytest.fixture(scope="module")
def fashion(tmp_path_factory):
    """Fashion-MNIST as torchvision expects it."""
    return torchvision_root("FashionMNIST", "fashion_mnist", tmp_path_factory)


@pytest.mark.slow
def test_a_short_training_beats_the_untrained_encoder(fashion, tmp_path):
    """By 200 neighbors; by 30 it takes a few epochs more, and raw pixels stay ahead of so short a training."""
    settings = {"limit": 5000, "epochs": 6, "batch_size": 32, "lr": 2e-3, "crop": (0.3, 1.0), "device": "cpu", "knn_every": 0}
    run = vergence.train("fashion_mnist", out=tmp_path / "run", root=str(fashion), **settings)
    record = evaluate.evaluate(run, probes=False)
    accuracy = {name: r.knn[200].majority for name, r in record.representations.items()}
    error = (2 * accuracy["z"] * (1 - accuracy["z"]) / record.protocol.test) ** 0.5
    assert accuracy["z"] > accuracy["untrained"] + 3 * error
    assert 0.1 < record.posterior.variance_mean < 0.5, "with the KL doubled the variance settles near 0.7"
