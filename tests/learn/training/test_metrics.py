"""What is recorded while a method trains: rates, and checkpoints that a training can go on from."""

import re
import time

import pytest
import torch

from vergence.data.items import ArrayItems, PairItems
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.contrastive import Contrastive
from vergence.learn.objectives.core import Objective
from vergence.learn.training import loop
from vergence.learn.training.config import FitConfig
from vergence.learn.training.metrics import Metrics, Recorder

pytestmark = pytest.mark.float32


class Kept(Recorder):
    def __init__(self):
        self.steps = []

    def save_checkpoint(self, state):
        self.steps.append(state["step"])


class Diverging(PairedMethod):
    """Its loss is NaN from its fourth step on."""

    calls = 0

    def forward(self, views, gather):
        self.calls += 1
        terms = super().forward(views, gather=gather)
        return {name: term * (float("nan") if self.calls > 3 else 1) for name, term in terms.items()}


def test_a_checkpoint_is_one_that_the_training_can_go_on_from():
    config = FitConfig(epochs=2, batch_size=8, checkpoint_seconds=0, device="cpu", precision="fp32", threads=1)
    method, recorder = Diverging(torch.nn.Linear(5, 8), Contrastive(8)), Kept()
    x = torch.randn(80, 5)
    with pytest.raises(ValueError, match=r"NaN or infinity in .* at step 10; lower `lr`, add `warmup_epochs=5`"):
        loop.fit(loop.launch(config), method, PairItems(ArrayItems(x), ArrayItems(x)), None, config, recorder)
    assert recorder.steps == [1, 2, 3]


def test_a_warm_up_that_is_longer_than_the_training_is_told():
    x, told = torch.randn(80, 5), []
    items = PairItems(ArrayItems(x), ArrayItems(x + 0.1))
    for warmup in (1.5, 2.0, 30.0):
        config = FitConfig(epochs=2, warmup_epochs=warmup, batch_size=8, device="cpu", precision="fp32", threads=1, knn_every=0)
        method = PairedMethod(torch.nn.Linear(5, 8), Contrastive(8))
        loop.fit(loop.launch(config), method, items, None, config, Kept(), warn=lambda m, w=warmup: told.append((w, m)))
    assert [warmup for warmup, message in told if "warmup_epochs" in message] == [30.0], told


class Invariance(Objective):
    """Nothing in it keeps the embeddings apart."""

    def forward(self, za, zb):
        return {"distance": 1 - torch.cosine_similarity(za, zb).mean()}


def test_a_spread_that_falls_is_told_before_it_is_small():
    told = []
    for objective in (Invariance(), Contrastive(8)):
        torch.manual_seed(0)
        method = PairedMethod(torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)), objective)
        settings = {"optimizer": "adamw", "lr": 1e-3, "batch_size": 8, "device": "cpu", "precision": "fp32", "threads": 1}
        x = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
        y = x + 0.5 * torch.randn(80, 5, generator=torch.Generator().manual_seed(1))
        config, items = FitConfig(epochs=8, knn_every=0, **settings), PairItems(ArrayItems(x), ArrayItems(y))
        loop.fit(loop.launch(config), method, items, None, config, Kept(), warn=told.append)
    (line,) = told
    assert re.search(r"the spread of the embedding fell from 0\.\d+ in the first epoch to 0\.\d+: look whether the loss", line)


def test_a_rate_counts_the_steps_of_this_process_alone(monkeypatch):
    clock = iter(range(100, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    method = PairedMethod(torch.nn.Linear(5, 8), Contrastive(8))

    def metrics():
        return Metrics(Kept(), method, FitConfig(batch_size=4), 1000, first=True, monitor=None, warn=lambda message: None)

    before = metrics()
    for step in range(1, 41):
        before.add(step, torch.tensor(1.0), {})
    after = metrics()
    after.load_state(before.state())
    for step in range(41, 51):
        after.add(step, torch.tensor(1.0), {})
    assert after.row["step"] == 50 and after.row["loss"] == 1.0
    assert after.row["images_per_second"] == 4 * 10 / 10
