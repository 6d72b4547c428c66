"""The experiment on one class: its test items and settings."""

import sys

import numpy as np
import pytest
import torch
from experiments.one_class import run as one_class

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


def test_every_detector_ranks_far_items_last():
    g = torch.Generator().manual_seed(0)
    train, test = torch.randn(200, 6, generator=g).float(), torch.randn(20, 6, generator=g).float()
    test[10:] += torch.tensor([9.0, -9.0, 9.0, 0.0, 0.0, 0.0])
    found = one_class.scored("z", train, test, 0)
    assert set(found) == {f"z: {name}" for name in one_class.detectors(0)} and len(found) == 4
    assert [name for name, s in found.items() if s[:10].max() >= s[10:].min() and "cosine" not in name] == []


def test_a_grid_is_of_vje_alone(monkeypatch):
    a = options(monkeypatch, "--beta", "1", "2", "--nu", "0.5", "3", "--classes", "0", "1", "--data", "cifar10")
    keys = list(one_class.cells(a))
    assert [sum(key["encoder"] == name for key in keys) for name in one_class.ENCODERS] == [8, 2, 2, 2, 0]
    settings = one_class.settings_of(a, next(key for key in keys if (key["beta"], key["nu"]) == (2.0, 3.0)))
    assert settings["options"] == {"beta": 2.0, "nu": 3.0} and settings["keep_classes"] == (0,)


def test_the_whole_experiment_is_the_papers_training(monkeypatch):
    a = options(monkeypatch, "--whole", "--set", "lr=0.005")
    settings = one_class.settings_of(a, next(one_class.cells(a)))
    assert settings["recipe"] == "vje_oneclass_cifar10" and settings["options"] == {"beta": 1.0, "nu": 0.5}
    assert {"limit", "epochs"}.isdisjoint(settings) and settings["lr"] == 0.005 and a.tests is None and a.svdd_epochs == 150
