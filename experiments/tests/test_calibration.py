"""The benchmark of false discoveries over random splits, on scores whose law is known."""

import numpy as np
import pytest
from experiments.calibration import run as cb
from experiments.calibration.table import FIELDS


def normal(n, mean=0.0, seed=0):
    return np.random.default_rng(seed).normal(mean, size=n)


def named(values):
    return dict(zip(FIELDS, values, strict=True))


def settings(**changes):
    return {"calibration": 500, "items": 200, "share": 0.1, "splits": 40, "seed": 0, **changes}


def test_far_items_are_reported_at_the_stated_rate():
    found = cb.measured((normal(1000), None), normal(100, 9.0, seed=1), **settings())
    for level in cb.LEVELS:
        one = named(found["found"]["bh"][str(level)])
        assert one["power"] == 1 and one["nothing"] == 0
        assert one["fdp"] <= level + 3 * one["fdp_error"]
    assert found["auroc"] == 1 and found["unusual"] == 20


@pytest.mark.parametrize("apart", [False, True])
def test_typical_items_that_are_called_unusual_are_not_reported_beyond_the_rate(apart):
    """Whatever is reported is then false, so the proportion is 0 or 1 and its mean the share of splits with a report."""
    pools = (normal(600), normal(400, seed=3)) if apart else (normal(1000), None)
    whole = cb.measured(pools, normal(100, seed=1), **settings(splits=100))
    assert whole["drift"] is None if not apart else whole["drift"] > 0.01
    found = named(whole["found"]["bh"]["0.2"])
    assert found["above"] == pytest.approx(1 - found["nothing"])
    assert found["fdp"] <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 100)


def test_too_few_calibration_items_report_nothing_however_far_the_others_are():
    found = cb.measured((normal(1000), None), normal(100, 9.0, seed=1), **settings(calibration=50, share=0.05))
    assert found["fewest"]["0.05"] == 79 and found["unusual"] == 10
    flagged = named(found["found"]["bh"]["0.05"])
    assert flagged["nothing"] == 1 and flagged["power"] == 0


def test_a_summary_is_mean_and_standard_error():
    found = named(cb.summary([(0.0, 1.0, 10), (0.2, 0.5, 5), (0.1, 0.0, 0)], 0.1))
    assert found["fdp"] == 0.1 and found["power"] == 0.5
    assert found["fdp_error"] == pytest.approx(0.1 / np.sqrt(3), abs=1e-4)
    assert found["above"] == pytest.approx(1 / 3, abs=1e-3) and found["nothing"] == pytest.approx(1 / 3, abs=1e-3)
