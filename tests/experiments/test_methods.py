"""The table of methods: which rows it measures, its search and its controls."""

import argparse

import pytest
import torch
from experiments.methods import run as benchmark
from experiments.methods import table as methods_tables

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
    "settings": {},
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
    a = options(seeds=[0], chosen=list(benchmark.SETTINGS)[::-1], methods=["byol", "vssl"], controls=["pca"])
    found = [(key["setting"], key["method"]) for key, _ in benchmark.rows_to_measure(a)]
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


def test_an_earlier_search_is_that_of_the_last_row_of_the_same_settings_and_names_its_commit(tmp_path):
    key = {"method": "byol", "setting": "searched", "rates": [5e-4, 2e-3]}
    a = options(out=ledger.Out(tmp_path / "rows.jsonl", "methods"))
    with pytest.raises(SystemExit, match="found none; leave out --earlier-search"):
        benchmark.earlier(a, key)
    for search, changes in (({"0.0005": 0.4, "0.002": 0.3}, {}), ({"0.0005": 0.2, "0.002": 0.3}, {"rates": [5e-4]})):
        ledger.add(a.out, ledger.row({**key, **changes, "search": search}, seed=0) | {"commit": "0123456789ab"})
    found = benchmark.earlier(a, key)
    assert found["lr"] == 5e-4 and found["search_commit"] == "0123456789ab"
    ledger.add(a.out, ledger.row({**key, **found}, seed=1))
    assert benchmark.earlier(a, key)["search_commit"] == "0123456789ab", "not that of a row that took the search of another"


def test_an_earlier_search_may_be_that_of_another_budget(tmp_path):
    key = {"method": "byol", "setting": "searched", "budget_seconds": 1800.0}
    a = options(out=ledger.Out(tmp_path / "rows.jsonl", "methods"), search_seconds=300.0)
    for seconds, search in ((300.0, {"0.002": 0.4, "0.008": 0.3}), (60.0, {"0.002": 0.2, "0.008": 0.3})):
        ledger.add(a.out, ledger.row({**key, "budget_seconds": seconds, "search": search}, seed=0))
    assert benchmark.earlier(a, key)["lr"] == 2e-3
    a.search_seconds = None
    with pytest.raises(SystemExit, match="expected a row of byol with these settings"):
        benchmark.earlier(a, key)


@pytest.mark.float32
def test_the_control_of_components_is_that_of_evaluation(tmp_path):
    settings = benchmark.described(options(data_root=None), "pca")
    assert settings["size"] == 8, "the data's own, not that of pretrained networks"
    run = vergence.train("digits", out=tmp_path / "run", **settings)
    opened = open_data(run.folder.config.data)
    found = benchmark.components(run, opened, 8)
    x, y = (run.encode(part) for part in (opened.train, opened.test))
    expected = torch.cat(features.pca(x, y, 8)).double()
    z = torch.cat([found.encode(part) for part in (opened.train, opened.test)]).double()
    torch.testing.assert_close(torch.cdist(z, z), torch.cdist(expected, expected), atol=1e-3, rtol=1e-3)


@pytest.mark.float32
@pytest.mark.parametrize(("setting", "expected"), [("published", ("sgd", 1.0)), ("searched", ("adamw", 0.2))])
def test_a_row_has_the_optimizer_that_its_run_had(setting, expected):
    """VJE's paper has one rate for all parts, its recipe two."""
    sent = []
    a = options(data_root=None, epochs=1, foreign=["noise"], shown=20, steps=1, earlier_search=False, out=None, options={})
    a.settings = {"projector": (16,)}
    key = {"method": "vje", "setting": setting}
    benchmark.one(a, key, 0, argparse.Namespace(send=sent.append))
    row = sent[0]
    assert (row["optimizer"], row["encoder_lr"]) == expected and row["lr"] == (0.05 / 16 if setting == "published" else 1e-3)
    assert row["trained_epochs"] == 1


def measured(method, setting, knn, seed=0, **changes):
    shared = {"data": "cifar10", "n_train": 5000, "epochs": 12, "budget_seconds": None, "set": {"size": 16}}
    values = {"knn30": knn, "probe": knn, "effective_rank": 9.0, "auroc": {"mnist": 0.9, "noise": 0.7}, "peak_mib": 900}
    own = {"method": method, "setting": setting, "seed": seed, "optimizer": "adamw", "lr": 0.002, "images_per_second": 800.4}
    return {**shared, **values, **own, "r_auroc": {"neighbor spread": 0.6}, "untrained_knn30": 20.0, **changes}


def test_the_short_table_has_the_best_first_and_one_budget_alone():
    rows = [measured("vje", "searched", 99.0, epochs=1), measured("vje", "searched", 40.0), measured("vje", "searched", 42.0, 1)]
    rows += [measured("byol", "searched", 45.0), measured("byol", "published", 60.0)]
    rows += [measured("patches", "control", 50.0, images_per_second=None)]
    header, body = methods_tables.short(rows)
    assert [line[0] for line in body] == ["`patches` (control)", "`byol`", "`vje`"]
    assert body[2][1] == "41.0 ± 1.4" and body[1][4:] == ["0.800", "0.600", "800", "900"] and body[0][-2] == ""
    assert {len(line) for line in body} == {len(header)} and methods_tables.short([])[1] == []


@pytest.mark.parametrize("first", [0, 1])
def test_the_short_table_has_the_budget_of_most_methods_and_the_last_of_equals(first):
    few = [measured("vje", "searched", 50.0, epochs=None, budget_seconds=1800.0)]
    many = [measured(name, "searched", 40.0, epochs=None, budget_seconds=300.0) for name in ("vje", "byol")]
    found = methods_tables.short(few + many if first else many + few)[1]
    assert [line[1] for line in found] == ["40.0", "40.0"]
    other = [measured(name, "searched", 30.0, epochs=9) for name in ("vje", "byol")]
    assert [line[1] for line in methods_tables.short(many + other)[1]] == ["30.0", "30.0"]


def test_the_whole_table_has_every_setting_beside_its_first_weights():
    rows = [measured("byol", "searched", 45.0), measured("byol", "searched", 46.0), measured("byol", "published", 60.0)]
    header, body = methods_tables.every(rows)
    assert [line[3] for line in body] == ["searched: adamw 0.002", "published: adamw 0.002"]
    assert body[0][4] == "46.0 (20.0)" and body[0][0] == "cifar10 at 16 px, 5,000 x 12"
    assert {len(line) for line in body} == {len(header)}


def test_the_table_of_a_budget_has_its_settings_alone_best_first():
    rows = [measured("byol", "searched", 45.0), measured("vje", "searched", 46.0), measured("byol", "published", 60.0)]
    rows += [measured("vje", "searched", 70.0, budget_seconds=300.0), measured("pixels", "control", 45.5)]
    header, body = methods_tables.of_budget(rows, None)
    assert [line[1] for line in body] == ["`vje`", "`pixels`", "`byol`"] and header == methods_tables.every(rows)[0][1:]
    assert [line[3] for line in methods_tables.of_budget(rows, None, ("published",))[1]] == ["60.0 (20.0)"]
    rows += [measured("pca", "control", 44.0, budget_seconds=60.0)]
    assert [line[3] for line in methods_tables.of_budget(rows, 300.0)[1]] == ["70.0 (20.0)", "44.0"]
    assert "`pca`" not in [line[1] for line in methods_tables.of_budget(rows, None)[1]]


def test_of_several_searches_the_longest_is_in_the_short_table():
    rows = [measured("gje", "searched", 38.0, search_share=0.2), measured("gje", "searched", 41.0, search_share=0.5)]
    assert (
        [line[1] for line in methods_tables.short(rows)[1]]
        == ["41.0"]
        == [line[1] for line in methods_tables.short(rows[::-1])[1]]
    )
    found = [line[3] for line in methods_tables.every(rows)[1]]
    assert found == [f"searched: adamw 0.002 (search over {share} of the epochs)" for share in (0.2, 0.5)]


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
