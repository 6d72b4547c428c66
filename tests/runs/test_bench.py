"""`vergence bench`: what is measured, what is kept, and that every objective takes part."""

import json

from vergence import objectives
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


def test_scoring_is_measured_beside_the_forward_pass(monkeypatch):
    monkeypatch.setattr("vergence.runs.bench.ROUND_SECONDS", 0.05)
    row = bench(what="score", encoder="small", size=8, batch_size=16, rounds=1, device="cpu")
    assert row["measurement"] == "bench score" and 0 < row["ratio"] < 1.5
