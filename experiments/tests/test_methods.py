"""The table of methods: which rows it measures, its search and its baselines."""

import argparse

import pytest
from experiments import ledger
from experiments.methods import run as benchmark

from vergence.learn import methods
from vergence.learn.training import recipes

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
    a = options(seeds=[0], settings=list(benchmark.CHOICES)[::-1], methods=["byol", "vssl"], baselines=["pca"])
    found = [(cell["setting"], cell["method"]) for cell in benchmark.cells(a)]
    assert found == [("baseline", "pca"), ("searched", "byol"), ("searched", "vssl"), ("published", "byol")]


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


@pytest.mark.float32
@pytest.mark.parametrize(("setting", "expected"), [("published", ("sgd", 1.0)), ("searched", ("adamw", 0.2))])
def test_a_row_has_the_optimizer_that_its_run_had(setting, expected, tmp_path):
    """VJE's paper has one rate for all parts, its recipe two."""
    a = options(data_root=None, epochs=1, foreign=["noise"], shown=20, steps=1, out=None, scratch=tmp_path)
    a.set = {"projector": (16,)}
    row = benchmark.measure(a, {"method": "vje", "setting": setting, "seed": 0})
    assert (row["optimizer"], row["encoder_lr"]) == expected and row["lr"] == (0.05 / 16 if setting == "published" else 1e-3)
    assert row["trained_epochs"] == 1
