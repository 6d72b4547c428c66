"""The table of methods: which rows it measures, its search and its controls."""

import argparse

import pytest
import torch
from experiments.methods import run as benchmark

import vergence
from experiments import ledger
from vergence import methods
from vergence.data.sources import open_data
from vergence.evaluation import features
from vergence.training import recipes

OPTIONS = {
    "data": "digits",
    "limit": 100,
    "batch_size": 16,
    "seconds": None,
    "epochs": 2,
    "set": {},
    "tiny_options": {},
    "earlier_search": False,
    "search_share": 0.5,
    "rates": [1e-3],
    "search_seconds": None,
}


def options(**changes):
    return argparse.Namespace(**OPTIONS | changes)


def test_every_method_with_a_small_recipe_is_in_the_table():
    small = {name.removesuffix("_small") for name in recipes.names() if name.endswith("_small")}
    assert small | set(methods.names()) <= set(benchmark.METHODS)


def test_controls_come_first_and_only_known_optimizers_are_published():
    a = options(seeds=[0], settings=list(benchmark.CHOICES)[::-1], methods=["byol", "vssl"], controls=["pca"])
    found = [(cell["setting"], cell["method"]) for cell in benchmark.cells(a)]
    assert found == [("control", "pca"), ("searched", "byol"), ("searched", "vssl"), ("published", "byol")]


def test_the_published_rate_is_scaled_to_the_batch():
    found = benchmark.optimizer(options(batch_size=128), "simsiam")
    assert found == {"optimizer": "sgd", "lr": 0.025, "encoder_lr": 1.0, "weight_decay": 1e-4}


def test_a_search_serves_every_seed_of_its_commit(tmp_path):
    """Nothing is trained: there is no folder to train in."""
    key = {"method": "byol", "setting": "searched", "set": {}}
    a = options(out=ledger.Out(tmp_path / "rows.jsonl", "methods"))
    search = {"0.0005": 0.2, "0.002": 0.31, "0.008": 0.3}
    ledger.add(a.out, ledger.row({**key, "search": {**search, "0.008": 0.9}}, seed=0) | {"commit": "0123456789ab"})
    ledger.add(a.out, ledger.row({**key, "search": search}, seed=0))
    found = benchmark.searched(a, key, {}, None)
    assert found == {"optimizer": "adamw", "weight_decay": 1e-4, "lr": 0.002, "search": search}


@pytest.mark.slow
@pytest.mark.float32
def test_the_control_of_components_is_that_of_evaluation(tmp_path):
    settings = benchmark.described(options(data_root=None), "pca")
    assert settings["size"] == 8, "the data's own, not that of pretrained networks"
    run = vergence.train("digits", out=tmp_path / "run", **settings)
    opened = open_data(run.folder.config.data)
    found = benchmark.components(run, opened, 8)
    x, y = (run.embed(part) for part in (opened.train, opened.test))
    expected = torch.cat(features.pca(x, y, 8)).double()
    z = torch.cat([found.embed(part) for part in (opened.train, opened.test)]).double()
    torch.testing.assert_close(torch.cdist(z, z), torch.cdist(expected, expected), atol=1e-3, rtol=1e-3)


@pytest.mark.float32
@pytest.mark.parametrize(("setting", "expected"), [("published", ("sgd", 1.0)), ("searched", ("adamw", 0.2))])
def test_a_row_has_the_optimizer_that_its_run_had(setting, expected, tmp_path):
    """VJE's paper has one rate for all parts, its recipe two."""
    a = options(data_root=None, epochs=1, foreign=["noise"], shown=20, steps=1, out=None, scratch=tmp_path)
    a.set = {"projector": (16,)}
    row = benchmark.measure(a, {"method": "vje", "setting": setting, "seed": 0})
    assert (row["optimizer"], row["encoder_lr"]) == expected and row["lr"] == (0.05 / 16 if setting == "published" else 1e-3)
    assert row["trained_epochs"] == 1


SOURCES = {  # recipe that has a method's published setting, where its optimizer is that of the same source
    **{name: f"{name}_imagenet" for name in ("barlow_twins", "byol", "contrastive", "moco", "simsiam", "swav", "vicreg")},
    **{"vje": "vje_cifar10", "masked_autoencoder": "masked_autoencoder", "i_jepa": "i_jepa"},
}
OTHERS = {"dino": ("adamw", 5e-4, 0.04), "lejepa": ("adamw", 5e-4, 5e-4)}  # DINO's own, and LeJEPA's of convolutional networks


def test_the_published_optimizers_are_those_of_the_recipes_or_of_another_named_source():
    known = {name: published for name, published in benchmark.METHODS.items() if published is not None}
    assert known.keys() == SOURCES.keys() | OTHERS.keys()
    for name, recipe in SOURCES.items():
        fit = recipes.get(recipe).fit
        assert (fit.optimizer, fit.weight_decay) == (known[name][0], known[name][2]), name
        assert fit.lr * 256 / fit.batch_size == pytest.approx(known[name][1]), name
    assert {name: known[name] for name in OTHERS} == OTHERS
