"""What a run's uncertainties say: written, read back, shown, and equal to the measurements made by hand."""

import json

import numpy as np
import pytest
import torch

import vergence
from vergence.data.sources import open_data
from vergence.learn.evaluation.uncertainty import crop_spread, neighbor_is_right, neighbor_spread, ranking
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.tables import show_evaluation
from vergence.learn.runs.uncertainty import ITEMS
from vergence.learn.training.records import Evaluation

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 400, "device": "cpu", "precision": "fp32", "knn_every": 0}
OWN = {
    "vje": {"posterior variance", "posterior entropy"},
    "gmje": {"posterior variance", "posterior entropy"},
    "contrastive": set(),
}


@pytest.fixture(scope="module", params=list(OWN))
def run(request, tmp_path_factory):
    settings = {} if request.param == "vje" else {"projector": (8,)}
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("u") / "run", objective=request.param, **settings, **QUICK)


@pytest.fixture(scope="module")
def record(run):
    return evaluate(run, uncertainty=True)


def test_every_uncertainty_stands_beside_its_controls(run, record):
    found, objective = record.uncertainty, run.folder.config.model.objective
    baselines = {name for name, one in found.scores.items() if one.kind == "baseline"}
    assert baselines == {"norm of z", "kNN distance"}
    assert found.scores.keys() - baselines == {"neighbor spread", "density of z", "spread over crops"} | OWN[objective]
    assert all(0 <= one.r_auroc <= 1 and 0 <= one.aurc <= 1 for one in found.scores.values())
    assert 0 < found.recall_at_1 <= 1 and found.crops == 8 and found.items == record.protocol.test <= ITEMS


def test_numbers_are_those_made_by_hand(run, record):
    opened = open_data(run.folder.config.data)
    items = opened.test
    z, bank, y = run.embed(items), run.embed(opened.train), items.labels
    right = neighbor_is_right(z, y)
    found = record.uncertainty
    assert found.recall_at_1 == pytest.approx(float(right.double().mean()))
    assert found.scores["norm of z"].r_auroc == pytest.approx(ranking(-z.norm(dim=1), right)["auroc"], abs=1e-6)
    if record.protocol.bank == len(bank) == 400 and len(run.items("digits:train")) == 400:
        assert found.scores["neighbor spread"].r_auroc == pytest.approx(
            ranking(neighbor_spread(bank, z), right)["auroc"], abs=1e-6
        )
    mean, spread = run.spread(items.subset(torch.arange(20)), crops=3)
    assert mean.shape == (20, z.shape[1]) and 0 <= spread.min() and spread.max() <= 1
    assert torch.equal(spread, run.spread(items.subset(torch.arange(20)), crops=3)[1])
    assert not torch.equal(spread, run.spread(items.subset(torch.arange(20)), crops=3, seed=1)[1])


def test_pairs_are_calibrated_or_bounded(run, record):
    p = record.uncertainty.predictive
    match run.folder.config.model.objective:
        case "vje":
            assert p.elbo <= p.log_prob and p.gap == pytest.approx(p.log_prob - p.elbo, rel=1e-6) and p.pit_ks is None
            assert 1 <= p.effective_samples <= p.samples
        case "gmje":
            assert 0 < p.pit_ks < 1 and 0 <= p.inside_50 <= p.inside_90 <= 1 and 0 <= p.region_50 <= p.region_90 <= 1
            assert p.energy_score > 0 and p.elbo is None


def test_the_record_is_written_read_shown_and_reported(run, record, capsys):
    stored = json.loads((run.folder.path / "evaluation.json").read_text())
    assert Evaluation.from_dict(stored) == run.folder.evaluation()
    assert stored["uncertainty"]["scores"]["kNN distance"]["r_auroc"] == record.uncertainty.scores["kNN distance"].r_auroc
    show_evaluation(record)
    shown = capsys.readouterr().out
    assert "R-AUROC" in shown and "kNN distance (baseline)" in shown
    text = write_report(run.folder.path).read_text()
    assert "Does the uncertainty mean anything?" in text and "R-AUROC" in text and "neighbor spread" in text


def test_crops_are_columns_of_embed(run, tmp_path):
    items = run.items("digits").subset(torch.arange(30))
    assert (
        write_embeddings(run, items, tmp_path / "plain.npz")
        == write_embeddings(run, items, tmp_path / "crops.npz", crops=4)
        == 30
    )
    with np.load(tmp_path / "plain.npz") as plain, np.load(tmp_path / "crops.npz") as crops:
        assert set(crops.files) - set(plain.files) == {"z_crops", "spread"}
        assert np.array_equal(plain["z"], crops["z"])
        mean, spread = run.spread(items, crops=4)
        assert np.allclose(crops["z_crops"], mean, atol=1e-5) and np.allclose(crops["spread"], spread, atol=1e-5)
        assert np.allclose(1 - np.linalg.norm(crops["z_crops"], axis=1), crops["spread"], atol=1e-5)


def test_spread_is_that_of_the_views_of_training(run):
    from vergence.learn.runs.rows import views_of

    items = run.items("digits").subset(torch.arange(12))
    x = next(items.stream(iter([torch.arange(12)])))[1]
    views, generator = views_of(run.folder, run.method), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        z = torch.stack([run.method.encoder(views(x, generator)) for _ in range(5)])
    assert torch.allclose(run.spread(items, crops=5)[1], crop_spread(z)[1], atol=1e-5)


def test_vectors_and_no_labels_are_measured_as_far_as_possible(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", x=rng.normal(size=(300, 6)).astype(np.float32))
    run = vergence.train(str(tmp_path / "v.npz"), out=tmp_path / "run", encoder="mlp", **QUICK | {"limit": None})
    found = evaluate(run, probes=False, uncertainty=True).uncertainty
    assert found.recall_at_1 is None and all(one.r_auroc is None for one in found.scores.values())
    assert "spread over crops" in found.scores and found.predictive is not None


def test_bad_input_is_reported(run, tmp_path):
    items = run.items("digits").subset(torch.arange(5))
    with pytest.raises(ValueError, match="crops"):
        run.spread(items, crops=1)
    with pytest.raises(ValueError, match="crops"):
        write_embeddings(run, items, tmp_path / "a.npz", crops=1)
    assert not (tmp_path / "a.npz").exists()


def test_runs_on_pairs_have_calibration_but_no_crops(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", context=x, target=x + 0.3 * rng.normal(size=x.shape).astype(np.float32))
    run = vergence.train(
        str(tmp_path / "pairs.npz"),
        out=tmp_path / "run",
        encoder="mlp",
        objective="gje",
        projector=(4,),
        **QUICK | {"limit": None},
    )
    found = evaluate(run, probes=False, uncertainty=True).uncertainty
    assert found.crops == 0 and found.predictive.pairs > 10 and found.predictive.inside_90 > 0
    with pytest.raises(ValueError, match="pairs"):
        run.spread(run.items(str(tmp_path / "pairs.npz")))
