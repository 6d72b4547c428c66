"""Tables that are generated from the ledger: what is averaged, and over which rows."""

import pytest
import tables


def row(seed, value, encoder="vje", **changes):
    auroc = {"conf:cifar100": value - 0.1, "conf:noise": value + 0.1}
    own = {"data": "cifar10", "encoder": encoder, "level": "z", "detector": "kNN", "seed": seed, "date": f"2026-01-0{seed + 1}"}
    return {**own, "mean_foreign": value, "mean_corrupted": 0.5, "auroc": auroc, **changes}


def test_detection_is_averaged_over_the_seeds_of_the_last_series(monkeypatch):
    found = [row(0, 0.5), row(1, 0.6), row(0, 0.8), row(1, 0.9), row(0, 0.7, encoder="patches"), row(0, 0.1, data="other")]
    monkeypatch.setattr(tables, "rows", lambda name: found)
    vje, patches = tables.foreign_rows("cifar10")
    assert vje["seeds"] == [0.8, 0.9] and vje["mean_foreign"] == pytest.approx(0.85), "rows of before the last seed 0 are older"
    assert vje["auroc"] == {"conf:cifar100": pytest.approx(0.75), "conf:noise": pytest.approx(0.95)}
    assert patches["seeds"] == [0.7] and patches["mean_foreign"] == 0.7
