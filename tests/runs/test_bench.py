"""`vergence bench`: what is measured, what is kept, and that every objective takes part."""

import json

import pytest

from vergence import objectives
from vergence.evaluation.levels import Levels
from vergence.runs.bench import bench

SMALL = {"what": "objective", "encoder": "small", "size": 8, "batch_size": 16, "dim": 4, "rounds": 1, "device": "cpu"}


def test_every_objective_is_measured_beside_one_step(tmp_path):
    row = bench(**SMALL, objective="all", precision="fp32", out=tmp_path / "ledger.jsonl")
    assert set(row["share"]) == set(row["objective_seconds"]) == set(objectives.names())
    assert all(share > 0 for share in row["share"].values()) and row["step_seconds"] > 0
    assert json.loads((tmp_path / "ledger.jsonl").read_text()) == row


def test_one_objective_is_measured_and_the_table_names_it(capsys):
    row = bench(**SMALL, objective="gje", precision="fp32")
    assert list(row["share"]) == ["gje"] and row["dim"] == 4
    said = capsys.readouterr().out
    assert "gje" in said and "of the step" in said


@pytest.fixture
def levels_seen(monkeypatch):
    """The levels of each batch of more than one item that is scored, or that the detector is fitted to."""
    seen, forward = [], Levels.forward
    monkeypatch.setattr("vergence.runs.bench.ROUND_SECONDS", 0.05)
    monkeypatch.setattr(Levels, "forward", lambda self, x: seen.append(forward(self, x)) or seen[-1])
    return lambda: [found for found in seen if len(found["z"]) > 1]


def test_scoring_is_measured_beside_the_forward_pass_with_the_levels_of_a_run(levels_seen):
    row = bench(what="score", encoder="small", size=16, batch_size=16, rounds=1, device="cpu")
    assert row["measurement"] == "bench score" and 0 < row["ratio"] < 1.5
    assert levels_seen() and all(list(found) == ["pixels", "patches", "z"] for found in levels_seen())


def test_scoring_with_a_closed_form_is_measured_after_it_was_fitted(levels_seen, monkeypatch):
    monkeypatch.setattr("vergence.runs.bench.FITTED", 60)
    small = "patches:atoms=8,second=8,directions=16,dim=8"
    row = bench(what="score", encoder=small, size=16, batch_size=16, rounds=1, device="cpu")
    assert row["objective"] == "gje" and row["encoder"] == small and 0 < row["ratio"] < 1.5
    constant = [not bool(found["z"].std(0).min() > 0) for found in levels_seen()]
    assert constant and not any(constant), "a detector leaves a constant embedding out, which then costs nothing"


@pytest.mark.parametrize(("what", "encoder"), [("step", "patches"), ("objective", "patches:atoms=8"), ("score", "patches-mlp")])
def test_a_closed_form_takes_no_steps(what, encoder):
    with pytest.raises(ValueError, match="expected a network for bench"):
        bench(what=what, encoder=encoder)


def test_the_ledger_needs_a_folder_before_the_work(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        bench(what="step", rounds=1, out=tmp_path / "missing" / "speed.jsonl")
