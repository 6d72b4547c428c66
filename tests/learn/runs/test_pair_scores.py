"""Pairs scored by a run: p(target | context) notices a target that belongs to another context, and ordinary pairs stay quiet."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.cli.test_cli import call
from tests.conftest import angle_pairs
from tests.refusals import refuses

import vergence
from vergence.cli.score import Score, score
from vergence.learn.encoders.config import MLP
from vergence.learn.runs import detector
from vergence.learn.runs import score as scoring
from vergence.learn.runs.detector import opened
from vergence.learn.runs.score import PairReference, pair_scores

pytestmark = pytest.mark.float32


@pytest.fixture
def run(pairs):
    return pairs


def saved(path, context, target):
    np.savez(path, context=context, target=target)
    return str(path)


def test_mismatched_pairs_come_first_and_are_flagged_and_p_values_hold(run, tmp_path):
    context, target = angle_pairs(600, 1)
    target[:30] = target[np.argsort(-((target[:30, None] - target[None, 30:]) ** 2).sum(2), axis=1)[:, 0] + 30]  # of the opposite
    source = saved(tmp_path / "p.npz", context, target)
    decisions = scoring.score(run.items(source), PairReference(run), tmp_path / "s.npz", fdr=0.2)
    found = np.load(tmp_path / "s.npz")
    odd = np.arange(600) < 30
    assert found["flag"][odd].mean() > 0.9 and found["flag"][~odd].sum() <= 20
    assert set(map(int, decisions.names[:10])) <= set(range(30)) and decisions.flagged == found["flag"].sum()
    for a in (0.05, 0.2, 0.5):
        error = np.sqrt(a * (1 - a) * (1 / decisions.calibration + 1 / 570))
        assert (found["p_value"][~odd] <= a).mean() == pytest.approx(a, abs=4 * error)
    assert f"{decisions.flagged} of {len(found['flag'])} items flagged" in (tmp_path / "s.npz.html").read_text()


def test_the_command_goes_on_after_a_stop_with_the_same_bytes(run, tmp_path, monkeypatch, capsys):
    source = saved(tmp_path / "p.npz", *angle_pairs(5000, 2))
    command = {"run": str(run.folder.path), "images": source, "pairs": True, "device": "cpu"}
    score(Score(out=tmp_path / "whole.csv", **command))
    count = []

    def stopped(*args):
        count.append(1)
        if len(count) > 18:
            raise KeyboardInterrupt
        return pair_scores(*args)

    monkeypatch.setattr(scoring, "pair_scores", stopped)
    with pytest.raises(KeyboardInterrupt):
        score(Score(out=tmp_path / "s.csv", **command))
    monkeypatch.setattr(scoring, "pair_scores", pair_scores)
    score(Score(out=tmp_path / "s.csv", **command))
    assert (tmp_path / "s.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert "continuing after 4,096 items" in capsys.readouterr().err


def test_pairs_of_the_training_are_not_judged(run, tmp_path):
    context, target = (side.numpy() for side in next(opened(run.folder).train.stream([torch.arange(100)]))[1])
    source = saved(tmp_path / "p.npz", np.concatenate([context[:50]] * 2), np.concatenate([target[:50], target[50:100]]))
    scoring.score(run.items(source), PairReference(run), tmp_path / "s.npz")
    found = np.load(tmp_path / "s.npz")  # the contexts of the others are known, and their targets are not
    assert found["seen"].tolist() == [1] * 50 + [0] * 50 and not found["flag"][:50].any()


@pytest.mark.parametrize("width", [1, 2])
def test_targets_of_another_width_are_refused(run, tmp_path, width):
    context, target = angle_pairs(60, 1)
    source = saved(tmp_path / "p.npz", context, target[:, :width])
    with pytest.raises(ValueError, match=rf"expected items of shape \(3,\), as the model was trained on, found \({width},\) in"):
        scoring.score(run.items(source), PairReference(run), tmp_path / "s.csv")


def test_without_the_option_a_line_says_that_targets_are_not_judged(run, tmp_path, capsys):
    source = saved(tmp_path / "p.npz", *angle_pairs(40, 1))
    for pairs, said in ((False, True), (True, False)):
        score(Score(run=run.folder.path, images=source, out=tmp_path / f"{pairs}.csv", pairs=pairs, device="cpu"))
        line = "note: only the contexts of these pairs are scored; `pairs=True` scores each target given its context"
        assert (line in capsys.readouterr().err) is said


def test_pairs_have_a_conditional_density_by_default(tmp_path):
    source = saved(tmp_path / "pairs.npz", *angle_pairs(300, 0))
    run = vergence.train(source, out=tmp_path / "run", epochs=1, device="cpu", precision="fp32", knn_every=0)
    model = run.folder.config.model
    assert (model.objective, model.encoder, model.projector) == ("gmje", MLP(), (256, 32))
    new = run.items(saved(tmp_path / "p.npz", *angle_pairs(40, 1)))
    assert scoring.score(new, PairReference(run), tmp_path / "s.csv").total == 40
    other = vergence.train(source, out=tmp_path / "other", epochs=1, device="cpu", objective="vje", knn_every=0)
    refuses("train again with `objective='gje'`", scoring.score, source, PairReference(other), tmp_path / "s.csv")


@pytest.fixture(scope="module")
def captioned(tmp_path_factory):
    """A run on pairs of five contexts to a target, and its calibration part."""
    context, target = angle_pairs(300, 0)
    contexts = np.repeat(context, 5, 0) + 0.1 * np.random.default_rng(1).normal(size=(1500, 3)).astype(np.float32)
    folder = tmp_path_factory.mktemp("captions")
    settings = {"encoder": "mlp", "objective": "gje", "projector": (6,), "epochs": 3, "batch_size": 64, "knn_every": 0}
    source = saved(folder / "pairs.npz", contexts, np.repeat(target, 5, 0))
    run = vergence.train(source, out=folder / "run", device="cpu", precision="fp32", **settings)
    return run, opened(run.folder)


def test_of_the_contexts_of_a_target_one_calibrates(captioned, tmp_path):
    run, data = captioned
    mine, held_out = (np.unique(part.target.read(torch.arange(len(part))), axis=0) for part in (data.train, data.calibration))
    assert len(np.unique(np.concatenate([mine, held_out]), axis=0)) == len(mine) + len(held_out)
    new, others = angle_pairs(40, 1)
    found = run.match(new, others)
    assert found.pairs == len(held_out) < len(data.calibration) and (found.answer == "no match").mean() < 0.3
    source = saved(tmp_path / "p.npz", new, others)
    assert scoring.score(run.items(source), PairReference(run), tmp_path / "s.csv").calibration == len(held_out)


def test_pairs_other_than_those_of_the_training_do_not_calibrate(captioned, monkeypatch):
    run, data = captioned
    monkeypatch.setattr(detector, "opened", lambda folder: replace(data, train=data.train.subset(torch.arange(500))))
    refuses("was trained on, found others, or another split of them; train again", run.match, *angle_pairs(40, 1))


def test_a_run_says_which_target_belongs_to_a_context_or_that_none_does(run, tmp_path):
    new, others = angle_pairs(60, 1)
    found = run.match(new, others, coverage=0.9, no_match=0.1)
    assert (found.answer == "no match").mean() <= 0.3 and found.pairs == 400
    assert np.mean([i in part for i, part in enumerate(found.candidates)]) >= 0.8
    np.save(tmp_path / "a.npy", new)
    np.save(tmp_path / "b.npy", others)
    words = ("match", run.folder.path, tmp_path / "a.npy", tmp_path / "b.npy", "--no-match", "0.1", "--out", tmp_path / "m.csv")
    assert "of 60 contexts matched" in call(*words).stdout
    lines = (tmp_path / "m.csv").read_text().splitlines()
    assert lines[0] == "context,best,score,p_value,claim,answer,candidates" and len(lines) == 61
    context, target = angle_pairs(300, 0)
    quick = {"objective": "gje", "encoder": "mlp", "epochs": 1, "device": "cpu"}
    refuses("trained on pairs", vergence.train(context, out=tmp_path / "single", **quick).match, new, others)
    alone = vergence.train((context, target), out=tmp_path / "alone", calibration_share=0.0, **quick)
    refuses("`calibration_share`", alone.match, new, others)


def test_errors(run, tmp_path):
    with pytest.raises(ValueError, match="trained on pairs"):
        scoring.score(run.items(np.zeros((3, 3), dtype=np.float32)), PairReference(run), tmp_path / "s.csv")
    source = saved(tmp_path / "p.npz", *angle_pairs(40, 1))
    with pytest.raises(ValueError, match="--pairs without --fpr"):
        score(Score(run=run.folder.path, images=source, out=tmp_path / "s.csv", pairs=True, fpr=0.1))
