"""A network that learns to predict a closed form's embedding: the loss, targets by item, resuming in each stage, bad input."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.data.items import ArrayItems
from vergence.learn.encoders import building
from vergence.learn.encoders.config import as_encoder
from vergence.learn.runs.evaluate import closed_form_encoder
from vergence.learn.runs.page import write_report
from vergence.learn.runs.train import describe
from vergence.learn.training import recipes
from vergence.learn.training import staged as distillation
from vergence.learn.training.config import ModelConfig

TINY = "patches:atoms=16,patch=3,directions=20,dim=8"
QUICK = {"recipe": "distilled_vje", "distill": TINY, "device": "cpu", "limit": 600, "batch_size": 64, "knn_every": 0}
QUICK |= {"distill_epochs": 2, "epochs": 1, "calibration_share": 0.0, "precision": "fp32"}


def alone(z):
    return z


def student(dim):
    return distillation.Distillation(building.encoder("small", (1, 8, 8), torch.zeros(1), torch.ones(1)), (1, 8, 8), dim)


def test_the_loss_is_the_mean_cosine_distance_of_the_prediction():
    method = student(5)
    x, c = torch.rand(6, 1, 8, 8), torch.randn(6, 5)
    found = method((x, c), gather=alone)["distance"].item()
    p = method.head(method.encoder(x)).tolist()
    expected = 0.0
    for row, target in zip(p, c.tolist(), strict=True):
        dot, lengths = (sum(a * b for a, b in zip(one, other, strict=True)) for one, other in ((row, target), (row, row)))
        expected += (1 - dot / math.sqrt(lengths * sum(b * b for b in target))) / 6
    assert found == pytest.approx(expected, abs=1e-12) and 0 < found < 2


def test_a_longer_target_changes_neither_loss_nor_gradient():
    method, x, c = student(5).eval(), torch.rand(6, 1, 8, 8), torch.randn(6, 5)
    gradients = []
    for scale in (1.0, 7.0):
        method.zero_grad()
        method((x, scale * c), gather=alone)["distance"].backward()
        gradients.append([p.grad.clone() for p in method.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert all(g.abs().sum() > 0 for g in gradients[0])


def test_each_item_has_its_own_target():
    items = ArrayItems(torch.arange(12, dtype=torch.uint8).view(12, 1, 1, 1).expand(12, 1, 8, 8))
    both = distillation.ItemsWithTargets(items, np.arange(12, dtype=np.float32)[:, None])
    index = torch.tensor([7, 2, 11])
    for found, (x, target) in (next(both.stream([index])), next(both.subset(index).stream([torch.arange(3)]))):
        assert x[:, 0, 0, 0].tolist() == target[:, 0].tolist() == [7, 2, 11] and len(found) == 3
    views = student(1).inputs(vergence.learn.views.images.ImageViews(vergence.data.config.ViewConfig(), 8))
    x = next(both.stream([index]))[1]
    assert views.apply(x, views.draw(3, torch.Generator()))[1] is x[1]


@pytest.mark.slow
@pytest.mark.float32
def test_the_encoder_learns_the_closed_form_of_the_same_items(tmp_path):
    settings = {**QUICK, "limit": None, "distill_epochs": 8, "encoder_lr": 0.0, "weight_decay": 0.0}
    run = vergence.train("digits", out=tmp_path / "run", **settings)
    own = vergence.load(tmp_path / "run" / "closed_form")
    alone = {"recipe": "patches", "encoder": TINY, "device": "cpu", "calibration_share": 0.0}
    closed = vergence.train("digits", out=tmp_path / "closed", **alone)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(own.embed(x), closed.embed(x))
    assert own.folder.config.model == closed.folder.config.model and not (tmp_path / "run/closed_form/embedding.npy").exists()
    lines = [line for line in (tmp_path / "run/log.txt").read_text().splitlines() if line.startswith("distillation, epoch")]
    distances = [float(line.split("cosine distance ")[1].split(",")[0]) for line in lines]
    assert len(distances) == 8 and distances[-1] < 0.6 * distances[0]
    train = run.folder.config.data
    images = vergence.data.sources.open_data(train).train
    z, c = run.embed(images), torch.nn.functional.normalize(own.embed(images), dim=1)
    predicted = torch.linalg.lstsq(torch.cat([z, torch.ones(len(z), 1)], 1), c).solution
    error = (torch.cat([z, torch.ones(len(z), 1)], 1) @ predicted - c).square().sum() / (c - c.mean(0)).square().sum()
    assert error < 0.3


@pytest.mark.slow
@pytest.mark.float32
def test_a_run_evaluates_beside_its_closed_form_and_starts_another(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", **{**QUICK, "limit": None, "distill_epochs": 6})
    record = vergence.evaluate(run, probes=False)
    knn = {name: record.representations[name].knn[20].majority for name in ("z", "closed_form", "untrained")}
    assert knn["z"] > 0.8 and knn["z"] > knn["closed_form"] - 0.05
    assert "after 6 epochs in which it learned to predict a closed form" in write_report(tmp_path / "run").read_text()
    other = vergence.train(out=tmp_path / "other", init=tmp_path / "run", epochs=1, lr=0.0)
    assert other.folder.config.model.distill is None and not (tmp_path / "other/closed_form").exists()
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(other.method.encoder[1][0].weight, run.method.encoder[1][0].weight) and len(run.anomaly_score(x)) == 5
    (tmp_path / "run/closed_form").rename(tmp_path / "away")
    assert "closed_form" not in vergence.evaluate(vergence.load(tmp_path / "run"), probes=False).representations


@pytest.mark.slow
@pytest.mark.float32
def test_the_closed_form_shares_the_runs_items_and_what_its_views_forbid(tmp_path, capsys):
    settings = {**QUICK, "limit": 300, "calibration_share": 0.2, "flip": 0.0, "threads": 1}
    run = vergence.train("digits", out=tmp_path / "run", **settings)
    assert capsys.readouterr().err.count("the encoder is smaller") == 0
    own = vergence.load(tmp_path / "run/closed_form")
    split = [(r.folder.metadata.n_train, r.folder.metadata.n_calibration) for r in (run, own)]
    assert split == [(240, 60)] * 2 and own.folder.config.views.flip == 0 and own.folder.config.fit.threads == 1
    assert vergence.train(out=tmp_path / "run/closed_form", resume=True).anomaly_score(torch.zeros(2, 1, 8, 8)).shape == (2,)
    mirrored = vergence.train("digits", out=tmp_path / "other", **{**settings, "flip": 0.5})
    assert mirrored.folder.config.views.flip == 0.5, "of the network"
    assert vergence.load(tmp_path / "other/closed_form").folder.config.views.flip == 0, "digits have no mirror images"


@pytest.mark.float32
def test_a_closed_form_that_failed_can_be_repeated_with_other_settings(tmp_path):
    np.save(tmp_path / "x.npy", np.full((64, 9, 9), 7, np.uint8))
    settings = {**QUICK, "limit": None, "batch_size": 16}
    for distill in (TINY, TINY.replace("atoms=16", "atoms=8")):
        refuses("distinct patches", vergence.train, tmp_path / "x.npy", out=tmp_path / "run", **{**settings, "distill": distill})
        assert vergence.learn.training.folder.RunFolder.open(tmp_path / "run").config.model.distill == as_encoder(distill)


@pytest.mark.slow
@pytest.mark.float32
def test_the_control_is_on_the_device_of_the_run(tmp_path):
    vergence.train("digits", out=tmp_path / "run", **QUICK)
    run = vergence.load(tmp_path / "run")
    moved = vergence.learn.runs.run.Run(run.folder, run.method.to("meta"), torch.device("meta"))
    assert {x.device.type for x in closed_form_encoder(moved).state_dict().values()} == {"meta"}


@pytest.mark.slow
@pytest.mark.float32
def test_few_items_are_learned_in_more_epochs_which_are_recorded(tmp_path, monkeypatch):
    assert [distillation.epochs_for(n, 64) for n in (10, 128, 800, 9_984, 1_000_000)] == [2340, 1170, 195, 15, 15]
    monkeypatch.setattr(distillation, "EPOCHS", 1)
    monkeypatch.setattr(distillation, "STEPS", 11)
    run = vergence.train("digits", out=tmp_path / "run", **{**QUICK, "limit": 300, "distill_epochs": None})
    assert run.folder.config.fit.distill_epochs == 3, "of four steps"
    assert vergence.load(tmp_path / "run").folder.config.fit.distill_epochs == 3
    assert (tmp_path / "run/log.txt").read_text().count("distillation, epoch") == 3
    assert describe("digits", "vje_small", {}).fit.distill_epochs is None


def test_the_objective_moves_a_distilled_network_little_in_every_recipe():
    for settings in ({"objective": "byol"}, {"objective": "vje"}, {"objective": "gje", "encoder": "resnet18"}):
        assert describe("cifar10", None, {"distill": "patches", **settings}).fit.encoder_lr == 0.003
    assert describe("cifar10", "byol_small", {"distill": "patches", "encoder_lr": 0.5}).fit.encoder_lr == 0.5
    assert describe("cifar10", "byol_small", {}).fit.encoder_lr == 1
    refuses("add `distill='patches'`", describe, "cifar10", None, {"distill_epochs": 3})


def test_settings_choose_the_recipe_of_the_objective():
    for objective in (None, "gje", "contrastive"):
        config = describe("cifar10", None, {"distill": "patches", **({"objective": objective} if objective else {})})
        assert config == recipes.get(f"distilled_{objective or 'vje'}")
    other = describe("cifar10", None, {"distill": "patches:atoms=8", "objective": "byol"})
    small = recipes.get("byol_small")
    assert other.model == dataclasses.replace(small.model, distill="patches:atoms=8") and other.views == small.views


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            {"distill": "resnet18"},
            "expected distill to be 'patches', or with settings as in 'patches:atoms=256', found 'resnet18'",
        ),
        ({"distill": "patches-mlp"}, "expected distill to be 'patches'"),
        ({"distill": "patches", "encoder": "patches"}, "no encoder 'patches' with distill"),
        ({"distill": "patches", "target_encoder": "small"}, "no target_encoder with distill"),
        ({"distill": "patches", "freeze": True, "objective": "none"}, "no freeze with distill"),
        ({"distill": "patches", "method": "dino", "objective": "none"}, "no method 'dino' with distill"),
    ],
)
def test_a_description_that_cannot_be_trained_is_refused(settings, match):
    refuses(match, ModelConfig, **settings)
