"""Which uncertainties of a run rank errors: written, read back, shown, and equal to the measurements made by hand."""

import json

import numpy as np
import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.data.items import spaced
from vergence.learn.evaluation.anomaly import detection, knn_distance
from vergence.learn.evaluation.uncertainty import crop_spread, equalizer, neighbor_is_right, neighbor_spread
from vergence.learn.runs import evaluate as evaluating
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.rows import views_of, whole
from vergence.learn.runs.tables import show_evaluation
from vergence.learn.training.records import Evaluation

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 400, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("u") / "run", objective="vje", **QUICK)


@pytest.mark.parametrize("limits", [(2_000, 10_000), (60, 50)])
def test_numbers_are_those_made_by_hand(run, monkeypatch, limits):
    monkeypatch.setattr(evaluating, "RANKED", limits[0])
    monkeypatch.setattr(evaluating, "BANK", limits[1])
    found, opened = evaluate(run, probes=False, uncertainty=True).uncertainty, whole(run.folder)
    pick, known = spaced(len(opened.test), limits[0]), spaced(len(opened.train), limits[1])
    z, bank, y = run.embed(opened.test)[pick], run.embed(opened.train)[known], opened.test.labels[pick]
    wrong, equal = ~neighbor_is_right(z, y), equalizer(bank)
    by_hand = {"neighbor spread": neighbor_spread(equal(bank), equal(z)), "kNN distance": knn_distance(bank, z)}
    assert found.items == len(pick) and found.recall_at_1 == pytest.approx(1 - float(wrong.double().mean()))
    assert {name: one.kind for name, one in found.scores.items()} == {"neighbor spread": "model", "kNN distance": "baseline"}
    for name, u in by_hand.items():
        assert found.scores[name].auroc == pytest.approx(detection(u, wrong)["auroc"], abs=1e-6)


def test_the_record_is_written_read_shown_and_reported(run, capsys):
    record = evaluate(run, probes=False, uncertainty=True)
    stored = json.loads((run.folder.path / "evaluation.json").read_text())
    assert Evaluation.from_dict(stored) == run.folder.evaluation()
    assert stored["uncertainty"]["scores"]["kNN distance"]["auroc"] == record.uncertainty.scores["kNN distance"].auroc
    show_evaluation(record)
    shown = capsys.readouterr().out
    assert "R-AUROC" in shown and "kNN distance *" in shown
    text = write_report(run.folder.path).read_text()
    assert "Does the uncertainty mean anything?" in text and "R-AUROC" in text and "neighbor spread" in text


def test_labels_without_errors_rank_nothing_and_none_leave_a_note(tmp_path, capsys):
    rng, y = np.random.default_rng(0), np.arange(300) % 2
    far = (100 * np.eye(6)[y] + rng.normal(size=(300, 6))).astype(np.float32)
    np.savez(tmp_path / "far.npz", x=far, y=y)
    np.savez(tmp_path / "plain.npz", x=far)
    how = QUICK | {"limit": None, "encoder": "mlp"}
    runs = [vergence.train(str(tmp_path / f"{name}.npz"), out=tmp_path / name, **how) for name in ("far", "plain")]
    with_labels, without = (evaluate(run, probes=False, uncertainty=True).uncertainty for run in runs)
    assert with_labels.recall_at_1 == 1 and with_labels.scores == {} and without is None
    assert "note: uncertainties were not ranked: every test item needs a label" in capsys.readouterr().err
    assert "100.0 % of 60 test items" in write_report(runs[0].folder.path).read_text()


def test_crops_are_columns_of_embed(run, tmp_path):
    items = run.items("digits").subset(torch.arange(30))
    assert write_embeddings(run, items, tmp_path / "plain.npz") == 30
    assert write_embeddings(run, items, tmp_path / "crops.npz", crops=4) == 30
    with np.load(tmp_path / "plain.npz") as plain, np.load(tmp_path / "crops.npz") as crops:
        assert set(crops.files) - set(plain.files) == {"z_crops", "spread"}
        assert np.array_equal(plain["z"], crops["z"])
        mean, spread = run.spread(items, crops=4)
        assert np.allclose(crops["z_crops"], mean, atol=1e-5) and np.allclose(crops["spread"], spread, atol=1e-5)


def test_spread_is_that_of_the_views_of_training(run):
    items = run.items("digits").subset(torch.arange(12))
    x = next(items.stream(iter([torch.arange(12)])))[1]
    views, generator = views_of(run.folder, run.method), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        z = torch.stack([run.method.encoder(views(x, generator)) for _ in range(5)])
    spread = run.spread(items, crops=5)[1]
    assert torch.allclose(spread, crop_spread(z)[1], atol=1e-5) and 0 <= spread.min() and spread.max() <= 1
    assert torch.equal(spread, run.spread(items, crops=5)[1])
    assert not torch.equal(spread, run.spread(items, crops=5, seed=1)[1])


def test_bad_input_is_reported(run, tmp_path):
    items = run.items("digits").subset(torch.arange(5))
    refuses("crops", run.spread, items, crops=1)
    refuses("crops", write_embeddings, run, items, tmp_path / "a.npz", crops=1)
    assert not (tmp_path / "a.npz").exists()
    np.savez(tmp_path / "pairs.npz", context=np.random.rand(100, 4), target=np.random.rand(100, 4))
    paired = {"encoder": "mlp", "objective": "gje", "projector": (4,), **QUICK | {"limit": None}}
    pairs = vergence.train(str(tmp_path / "pairs.npz"), out=tmp_path / "run", **paired)
    refuses("pairs", pairs.spread, pairs.items(str(tmp_path / "pairs.npz")))
