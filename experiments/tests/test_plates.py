"""Synthetic plates: one seed gives equal files, and an error changes the channels that the truth names and no others."""

from dataclasses import replace

import numpy as np
import pytest
from experiments.plates.layout import ERRORS, JUDGE, TUNE, Site, layout
from experiments.plates.peers import conditions, judge
from experiments.plates.plate import image, truth, write

SMALL = replace(TUNE, rows=4, columns=6, controls=(1,), sites=1, side=64, bad=(1.0, 0.5))


def test_a_seed_gives_equal_files_and_names_every_site_in_the_truth(tmp_path):
    plate = replace(SMALL, rows=2, columns=3)
    sites = write(plate, tmp_path / "a")
    write(plate, tmp_path / "b")
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert len(names) == 5 * 6 + 2 and "B03_s1_w5.tif" in names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    assert len((tmp_path / "a" / "truth.csv").read_text().splitlines()) == len(sites) + 1
    assert not np.array_equal(image(plate, sites[0]), image(replace(plate, seed=1), sites[0]))


def test_errors_are_as_many_as_stated_and_all_kinds_are_among_them():
    sites = layout(SMALL)
    treated = [site for site in sites if site.treated]
    assert len(sites) == 24 and len(treated) == 20 and {site.compound for site in sites if not site.treated} == {"DMSO"}
    assert {site.error for site in treated} == set(ERRORS) and sum(bool(site.error) for site in sites) == 22
    scattered = layout(replace(JUDGE, rows=4, columns=6, sites=1))
    assert sum(not site.treated for site in scattered) == round(0.17 * 24)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("plate", [SMALL, replace(JUDGE, side=64)], ids=["tune", "judge"])
def test_an_error_changes_the_named_channels_alone(plate, kind):
    clean = Site("B03", 2, 3, 1, "C01", "toxic", 0.3, True)
    channels = tuple(range(5)) if ERRORS[kind] else (2,)
    before, after = image(plate, clean), image(plate, clean._replace(error=kind, severity="large", channels=channels))
    assert before.dtype == np.uint16 and after.max() <= plate.white
    assert {c for c in range(5) if not np.array_equal(before[c], after[c])} == set(channels)


def test_the_judge_counts_by_kind_and_refuses_a_missing_site():
    answer = truth(layout(SMALL))
    right = judge([{**row, "flagged": bool(row["error"])} for row in answer], answer)
    assert right["false_share"] == 0 and right["power_seen"] == 1 and right["control_flags"] == 0
    every = judge([{**row, "flagged": "1"} for row in answer], answer)
    assert every["false_share"] == pytest.approx(2 / 24) and set(every["power"].values()) == {1.0}
    with pytest.raises(ValueError, match="the first A01_s1"):
        judge([{**row, "flagged": 0} for row in answer[1:]], answer)


def test_conditions_hold_together_within_a_set_and_one_set_is_enough():
    table = {"a": np.array([0.0, 0, 0, 0, 0, 9]), "b": np.array([0.0, 0, 0, 0, -9, 9])}
    assert conditions(table, [{"a": 2, "b": 1.5}], False, None).tolist() == [False] * 5 + [True]
    assert conditions(table, [{"a": 2}, {"b": -1.5}], False, None).tolist() == [False] * 4 + [True] * 2
