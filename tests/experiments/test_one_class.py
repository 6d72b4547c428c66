"""The one-class benchmark: its test items and settings, and the tables of it and of the benchmark of false discoveries."""

import sys

import numpy as np
import pytest
import torch
from experiments.calibration import table as calibration_tables
from experiments.one_class import run as one_class
from experiments.one_class import table as one_class_tables

from vergence.data.config import DataConfig
from vergence.data.sources import open_data


def options(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["one_class.py", "--data-root", ".", *words])
    return one_class.options()


@pytest.mark.parametrize(("most", "typical"), [(60, 30), (None, None), (10_000, None)])
def test_half_of_a_part_of_the_test_items_is_of_the_class(most, typical):
    data = open_data(DataConfig(source="digits", keep_classes=(3,)))
    items, anomalous = one_class.test_items(data, 3, most)
    whole = int((data.test.labels == 3).sum())
    assert set(data.train.labels.tolist()) == {3}
    assert len(items) == len(anomalous) == (most if typical else len(data.test))
    assert int((~anomalous).sum()) == (typical or whole)
    assert np.array_equal((items.labels == 3).numpy(), ~anomalous)


def test_the_same_test_items_are_taken_each_time():
    data = open_data(DataConfig(source="digits", keep_classes=(3,)))
    first, again = (one_class.test_items(data, 3, 40)[0] for _ in range(2))
    assert list(first.names) == list(again.names)


def test_every_detector_ranks_far_items_last():
    g = torch.Generator().manual_seed(0)
    train, test = torch.randn(200, 6, generator=g).float(), torch.randn(20, 6, generator=g).float()
    test[10:] += torch.tensor([9.0, -9.0, 9.0, 0.0, 0.0, 0.0])
    found = one_class.scored("z", train, test, 0)
    assert set(found) == {f"z: {name}" for name in one_class.detectors(0)} and len(found) == 4
    assert [name for name, s in found.items() if s[:10].max() >= s[10:].min() and "cosine" not in name] == []


def test_a_grid_is_of_vje_alone(monkeypatch):
    a = options(monkeypatch, "--beta", "1", "2", "--nu", "0.5", "3", "--classes", "0", "1", "--data", "cifar10")
    keys = list(one_class.keys(a))
    assert [sum(key["encoder"] == name for key in keys) for name in one_class.ENCODERS] == [8, 2, 2, 2, 0]
    settings = one_class.settings_of(a, next(key for key in keys if (key["beta"], key["nu"]) == (2.0, 3.0)))
    assert settings["options"] == {"beta": 2.0, "nu": 3.0} and settings["keep_classes"] == (0,)


def test_the_whole_experiment_is_the_papers_training(monkeypatch):
    a = options(monkeypatch, "--whole", "--set", "lr=0.005")
    settings = one_class.settings_of(a, next(one_class.keys(a)))
    assert settings["recipe"] == "vje_oneclass_cifar10" and settings["options"] == {"beta": 1.0, "nu": 0.5}
    assert {"limit", "epochs"}.isdisjoint(settings) and settings["lr"] == 0.005 and a.tests is None and a.svdd_epochs == 150


def row(label, auroc, encoder="vje", seed=0, **changes):
    shared = {"data": "cifar10", "encoder": encoder, "recipe": None, "set": [], "limit": 2000, "tests": 2000, "epochs": 20}
    options = {"beta": 1.0, "nu": 0.5} if encoder == "vje" else {"beta": None, "nu": None}
    return {**shared, **options, "label": label, "seed": seed, "auroc": {"own joint": auroc, "detector": 0.5}, **changes}


def test_a_table_without_rows_has_no_lines():
    assert one_class_tables.classes([], "cifar10")[1] == one_class_tables.ridge([])[1] == []
    assert calibration_tables.means([])[1] == calibration_tables.sets([])[1] == []


def test_a_table_says_of_how_many_classes_a_mean_is():
    header, body = one_class_tables.classes([row(0, 0.6), row(0, 0.7, seed=1), row(3, 0.8)], "cifar10")
    assert {len(line) for line in body} == {len(header)}
    joint, detector, paper = body
    assert joint[1:4] == ["own joint", "1", "0.650"] and joint[6] == "0.800" and joint[4] == "" and joint[-1] == "0.725 of 2"
    assert detector[-1] == "0.500 of 2" and paper[-1] == "0.903" and "paper" in paper[1]


def test_the_last_row_of_a_setting_counts_and_settings_are_not_mixed():
    rows = [row(c, 0.1) for c in range(10)] + [row(c, 0.6) for c in range(10)] + [row(c, 0.9, limit=None) for c in range(10)]
    body = one_class_tables.classes(rows, "cifar10")[1]
    assert [line[-1] for line in body if line[1] == "own joint"] == ["0.600", "0.900"]


def test_the_ridge_has_a_line_for_each_beta_and_nu():
    rows = [row(c, 0.6, nu=nu) for c in range(10) for nu in (0.25, 0.5, 3.0)] + [row(0, 0.4, encoder="patches")]
    header, body = one_class_tables.ridge(rows)
    assert [line[:2] for line in body] == [["1", "0.25"], ["1", "0.5"], ["1", "3"]] and {len(line) for line in body} == {
        len(header)
    }
    assert [line[-1] for line in body] == ["0.897", "0.903", ""] and body[0][3] == "0.600"


def discovery(**changes):
    one = [0.08, 0.01, 0.3, 0.9, 0.0]  # in the order of calibration_tables.FIELDS
    found = {method: dict.fromkeys(calibration_tables.LEVELS, one) for method in ("bh", "storey")}
    shared = {
        "data": "cifar10",
        "encoder": "vje",
        "score": "detector",
        "unusual_set": "mnist",
        "calibration": 2000,
        "items": 1000,
    }
    shared |= {"share": 0.1, "calibrated_on": "same part", "unusual": 100, "auroc": 0.9, "drift": None}
    return {**shared, "fewest": {"0.05": 10, "0.1": 5, "0.2": 3}, "found": found, **changes}


def test_tables_of_false_discoveries_say_where_nothing_can_be_reported():
    few = discovery(calibration=200, share=0.05, unusual=50, fewest={"0.05": 100, "0.1": 50, "0.2": 25})
    header, body = calibration_tables.means([discovery(), few])
    assert {len(line) for line in body} == {len(header)}
    assert [line[3:6] for line in body] == [
        ["200", "5 %", "Benjamini-Hochberg"],
        ["2,000", "10 %", "Benjamini-Hochberg"],
        ["2,000", "10 %", "Storey"],
    ]
    assert body[0][6] == "at least 100 would have to be reported" and "power 0.90" in body[0][7]
    of_clothes, cells = (discovery(data=data, calibrated_on="training part") for data in ("fashion_mnist", "blood_cells"))
    named = [(line[0], line[3]) for line in calibration_tables.means([cells, of_clothes, discovery()])[1]]
    assert named == [("cifar10", "2,000")] * 2 + [("fashion_mnist", "2,000, of the training part")] * 2
    assert [line[3] for line in calibration_tables.sets([cells, of_clothes])[1]] == ["2,000, of the training part"]
    header, body = calibration_tables.sets([discovery(), few])
    assert len(body) == 1 and len(body[0]) == len(header) and body[0][-1] == "0.080 ± 0.010 (above: 30 %), power 0.90"
