"""Published objectives and DINO train encoders that beat the untrained one, on digits under noise that hides the classes."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from vergence.learn import objectives
from vergence.learn.encoders.networks import mlp, projector
from vergence.learn.methods.dino import Dino
from vergence.learn.methods.paired import PairedMethod

STEPS, BATCH, NOISE = 80, 128, 1.5
SETTINGS = {
    "barlow_twins": {}, "byol": {"hidden": 64}, "contrastive": {"temperature": 0.2}, "lejepa": {"slices": 64},
    "moco": {"hidden": 64}, "simsiam": {"hidden": 16}, "swav": {"prototypes": 64, "frozen_steps": 0}, "vicreg": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    """Training and test pixels in units of their standard deviation, with labels; views add noise of 1.5 such units."""
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / x.std(), dtype=torch.float32)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def accuracy(encoder, digits):
    """Returns kNN accuracy on noisy items, of embeddings of noisy training items."""
    train, labels, test, expected = digits
    torch.manual_seed(9)
    with torch.no_grad():
        a, b = (encoder.eval()(x + NOISE * torch.randn_like(x)) for x in (train, test))
    return KNeighborsClassifier(20, metric="cosine").fit(a, labels).score(b, expected)


def gain(method, digits):
    """Trains a method on pairs of noisy views; returns how much its encoder gains in accuracy."""
    untrained = accuracy(copy.deepcopy(method.encoder), digits)
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=3e-3)
    method.train()
    for step in range(STEPS):
        x = digits[0][torch.randint(len(digits[0]), (BATCH,))]
        method.before_step(step / STEPS)
        loss = sum(method(tuple(x + NOISE * torch.randn_like(x) for _ in range(2)), lambda z: z).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step()
    trained = accuracy(method.encoder, digits)
    print(f"untrained {untrained:.3f}, trained {trained:.3f}")
    return trained - untrained


@pytest.mark.slow
@pytest.mark.float32
@pytest.mark.parametrize("name", SETTINGS)
def test_training_beats_the_untrained_encoder(name, digits):
    kind = objectives.get(name)
    norm = "batch_last" if name in ("simsiam", "moco") else "batch"
    method = PairedMethod(mlp((64, 128, 64)), kind(32, **SETTINGS[name]), projector=projector(64, (64, 32), norm),
                          teacher=kind.teacher and 0.9, schedule=kind.teacher_schedule)  # fmt: skip
    assert gain(method, digits) > 0.03


@pytest.mark.float32
def test_training_dino_beats_the_untrained_encoder(digits):
    train, labels, test, expected = digits
    images = train.view(-1, 1, 8, 8), labels, test.view(-1, 1, 8, 8), expected
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), mlp((64, 128, 64)))
    sizes = {"outputs": 64, "hidden": 64, "bottleneck": 32, "batch_norm": True}
    method = Dino(encoder, (1, 8, 8), **sizes, momentum=0.9, fixed_prototypes=0.0)
    assert gain(method, images) > 0.05
