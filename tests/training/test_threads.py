"""The number of threads of a training: chosen by measuring without other effects, recorded, kept on resume, overridden."""

import json

import pytest
import torch

import vergence
from vergence.densities.em import fit as em
from vergence.linear import JointEmbedding
from vergence.mixtures import GaussianMixture
from vergence.training.config import RunConfig
from vergence.training.folder import RunFolder
from vergence.training.loop import Interrupted
from vergence.utils import threads
from vergence.utils.threads import using

SETTINGS = {"encoder": "mlp", "epochs": 2, "limit": 128, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}
pytestmark = pytest.mark.float32


@pytest.fixture(autouse=True)
def _two():
    with using(2):
        yield


@pytest.fixture
def slow(monkeypatch):
    """Every step counts as long work, and calls with two threads as slow ones; collects what is called in trials."""
    calls = []

    def seconds(work, number, limit=0.0):
        work()
        calls.append(number)
        return {1: 1.0, 2: 9.0}[number]

    monkeypatch.setattr(threads, "PATIENCE", 0.0)
    monkeypatch.setattr(threads, "_seconds", seconds)
    return calls


def train(out, **settings):
    return vergence.train("digits", out=out, **SETTINGS | settings)


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def tensors(out):
    return RunFolder.open(out).load_model()


def checkpoint(out):
    return torch.load(out / "checkpoints" / "last.pt", weights_only=True)


def test_a_training_chooses_records_and_restores_its_number(tmp_path, slow):
    train(tmp_path / "run")
    assert slow == [1, 2] and torch.get_num_threads() == 2
    assert [row["threads"] for row in rows(tmp_path / "run")] == [1, 1]
    assert checkpoint(tmp_path / "run")["threads"] == 1
    assert "1 thread (chosen by measuring)" in (tmp_path / "run" / "log.txt").read_text()


def test_a_trial_leaves_no_trace_in_the_model(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(threads, "choose", lambda work, most: work() or 2)
    train(tmp_path / "tried")
    monkeypatch.setattr(threads, "choose", lambda work, most: 2)
    train(tmp_path / "other")
    tried, other = tensors(tmp_path / "tried"), tensors(tmp_path / "other")
    assert all(torch.equal(tried[name], other[name]) for name in other)


def test_nothing_is_tried_with_one_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "choose", lambda *_: pytest.fail("tried"))
    with using(1):
        train(tmp_path / "one")
    assert checkpoint(tmp_path / "one")["threads"] == 1


def test_a_requested_number_is_used_and_may_change_on_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "choose", lambda *_: pytest.fail("tried"))
    monkeypatch.setattr(threads, "PATIENCE", 0.0)
    train(tmp_path / "run", threads=1)
    assert {row["threads"] for row in rows(tmp_path / "run")} == {1}
    assert "1 thread (as requested)" in (tmp_path / "run" / "log.txt").read_text()
    assert isinstance(RunFolder.open(tmp_path / "run").config, RunConfig)
    (tmp_path / "run" / "model.safetensors").unlink()
    again = vergence.train(None, out=tmp_path / "run", resume=True, threads=2)
    assert again.folder.config.fit.threads == 2 and checkpoint(tmp_path / "run")["threads"] == 2


def test_a_resumed_run_keeps_the_recorded_number_without_a_trial(tmp_path, slow, monkeypatch):
    append = RunFolder.append

    def interrupting(self, row):
        append(self, row)
        if row["step"] == 3:
            raise Interrupted(2, row["step"])

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(RunFolder, "append", interrupting)
        train(tmp_path / "cut", epochs=3, checkpoint_seconds=0.0)
    assert checkpoint(tmp_path / "cut")["threads"] == 1
    slow.clear()
    vergence.train(None, out=tmp_path / "cut", resume=True)
    assert not slow and rows(tmp_path / "cut")[-1]["threads"] == 1
    assert "1 thread (as before)" in (tmp_path / "cut" / "log.txt").read_text()


def test_embedding_and_scoring_choose_and_restore(tmp_path, slow):
    run = train(tmp_path / "run", threads=1)
    x = torch.randint(0, 255, (300, 1, 8, 8), dtype=torch.uint8)
    with using(1):
        expected = run.score(x, batch_size=100)
    assert not slow
    found = run.score(x, batch_size=100)
    assert slow == [1, 2] and torch.get_num_threads() == 2
    assert torch.allclose(found, expected, rtol=1e-4)


def test_em_chooses_and_restores(slow):
    X = torch.randn(500, 3, dtype=torch.float64).numpy()
    model = GaussianMixture(2, random_state=0, tol=1e-2).fit(X)
    assert slow[:2] == [1, 2] and torch.get_num_threads() == 2
    assert abs(model.lower_bound_ - GaussianMixture(2, random_state=0, tol=1e-2).fit(X).lower_bound_) < 1e-9


def test_em_keeps_its_choice_between_two_runs_on_the_same_items(slow):
    X = torch.randn(500, 3, dtype=torch.float64)
    data = em.Data(X, None, X.mean(0), X.device)
    initial = em.Mixture(torch.ones(1, 1).double(), torch.zeros(1, 1, 3).double(), torch.eye(3).double()[None, None])
    for _ in range(2):
        em.run(data, em.structure("full"), initial, max_iter=3)
    assert slow == [1, 2] and torch.get_num_threads() == 2


@pytest.mark.parametrize("augmentation", [None, lambda x, g: x + torch.randn(x.shape, generator=g, dtype=x.dtype)])
def test_closed_forms_choose_and_restore(slow, augmentation):
    X = torch.randn(400, 5, dtype=torch.float64).numpy()
    JointEmbedding(2, augmentation=augmentation, random_state=0).fit(X)
    assert slow == [1, 2] and torch.get_num_threads() == 2
