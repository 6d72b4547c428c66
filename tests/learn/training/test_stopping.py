"""A run that is stopped in any of its stages goes on with the same bytes."""

import contextlib
import os
import signal

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import vergence
from vergence.learn import methods
from vergence.learn.runs import stages
from vergence.learn.training import closed_form, loop
from vergence.learn.training import staged as distillation

pytestmark = pytest.mark.float32

TINY = "patches:atoms=16,patch=3,directions=20,dim=8"
STEPS = {"limit": 600, "batch_size": 64, "knn_every": 0, "calibration_share": 0.0, "precision": "fp32", "device": "cpu"}
KINDS = {
    "closed": {"recipe": "patches", "encoder": TINY, "device": "cpu"},
    "two": {"recipe": "patches", "encoder": "patches:atoms=8,patch=4,directions=20,dim=8,second=12", "device": "cpu"},
    "behind": {**STEPS, "recipe": "patches_vje", "encoder": TINY.replace(":", "-mlp:"), "projector": (), "epochs": 2},
    "distilled": {**STEPS, "recipe": "distilled_vje", "distill": TINY, "distill_epochs": 2, "epochs": 1},
}
FIT, STEP, EMBED = (closed_form._Fit, "_stop"), (loop, "_agreed"), (stages, "_embed_into")

SLOW = [("closed", FIT, 14), ("two", FIT, 4), ("behind", FIT, 8)]
SLOW += [("distilled", FIT, 8), ("distilled", EMBED, 1), ("distilled", STEP, 11), ("distilled", STEP, 22)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Digits of 16 x 16 pixels."""
    file = tmp_path_factory.mktemp("digits") / "x.npy"
    np.save(file, (np.kron(load_digits().images, np.ones((2, 2))) * (255 / 16)).astype(np.uint8)[:300])
    return str(file)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Returns the run of a kind that was not stopped."""
    runs = {}

    def get(kind):
        if kind not in runs:
            data = source if kind == "two" else "digits"
            runs[kind] = vergence.train(data, out=tmp_path_factory.mktemp(kind) / "run", **KINDS[kind])
        return runs[kind]

    return get


def require_equal(whole, resumed):
    files = [run.folder.path / "model.safetensors" for run in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = [[(row["step"], row.get("loss")) for row in run.folder.metrics()] for run in (whole, resumed)]
    assert rows[0] == rows[1] and rows[0]


@pytest.mark.parametrize(
    ("kind", "where", "at"),
    [("closed", FIT, 8), ("two", FIT, 2), ("behind", STEP, 5), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_stopped_run_resumes_with_the_same_bytes(whole, source, tmp_path, monkeypatch, kind, where, at):
    calls, original = [], getattr(*where)

    def stop_once(*arguments):
        calls.append(0)
        if len(calls) == at:
            if where == EMBED:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    data = source if kind == "two" else "digits"
    with monkeypatch.context() as patch, pytest.raises((loop.Interrupted, KeyboardInterrupt)):
        patch.setattr(*where, stop_once)
        vergence.train(data, out=tmp_path / "run", **KINDS[kind])
    require_equal(whole(kind), vergence.train(out=tmp_path / "run", resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cut", "empty", "short", "left"])
def test_embeddings_that_are_not_whole_are_computed_again_and_none_stay(whole, tmp_path, monkeypatch, change):
    name = "finish_first" if change == "left" else "distill"
    original = getattr(distillation, name)

    def stop(*arguments, **_):
        if change == "left":
            original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(distillation, name, stop)
        vergence.train("digits", out=tmp_path / "run", **KINDS["distilled"])
    file = tmp_path / "run/closed_form/embedding.npy"
    rows, content = np.load(file), file.read_bytes()
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    if change == "short":
        np.save(file, rows[:10])
    elif change != "left":
        file.write_bytes(content[: 0 if change == "empty" else -100])
    require_equal(whole("distilled"), vergence.train(out=tmp_path / "run", resume=True))
    assert not file.exists()


VIT = "timm:vit_tiny_patch16_224,patch_size=2,embed_dim=12,depth=1,num_heads=3,class_token=False,global_pool=avg"
SMALL = {
    "masked_autoencoder": ({"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}, VIT),
    "i_jepa": ({"predictor_width": 8, "predictor_depth": 1, "predictor_heads": 2, "momentum": 0.5}, VIT),
    "dino": ({"outputs": 8, "hidden": 8, "bottleneck": 4, "momentum": 0.5}, "small"),
}

VECTORS = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
QUICK = {"epochs": 3, "batch_size": 32, "device": "cpu", "precision": "fp32", "knn_every": 0, "threads": 1}


def test_a_sweep_that_catches_exceptions_ends_with_a_signal():
    started = []

    def stop(step, row):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt, match="stopped by SIGTERM after step 1"):
        for seed in range(3):
            started.append(seed)
            with contextlib.suppress(Exception):
                vergence.train(VECTORS, seed=seed, on_step=stop, **QUICK)
    assert started == [0]


def test_a_function_that_returns_false_ends_a_training_that_can_be_used_and_resumed(tmp_path, capsys):
    rows = []

    def listen(step, row):
        rows.append(row)
        return step < 5

    run = vergence.train(VECTORS, out=tmp_path / "run", on_step=listen, **QUICK)
    assert "stopped after step 5 of 12, as on_step returned False; resume=True continues" in capsys.readouterr().err
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5] and {"directional", "radial", "kl"} < rows[0].keys()
    assert rows[0]["loss"] == pytest.approx(sum(rows[0][name] for name in ("directional", "radial", "kl")), rel=1e-5)
    assert len({row["loss"] for row in rows}) == 5, "each step has its own loss"
    assert run.anomaly_score(VECTORS[:2]).isfinite().all() and vergence.evaluate(run, probes=False).protocol.epoch == 1
    whole = vergence.train(VECTORS, out=tmp_path / "whole", **QUICK)
    require_equal(whole, vergence.train(VECTORS, out=tmp_path / "run", resume=True))


class Died(BaseException):
    """The process ends without another word."""


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.names())
def test_a_method_that_dies_goes_on_bit_for_bit(name, tmp_path):
    options, encoder = SMALL.get(name, ({}, "small"))
    settings = {**STEPS, "method": name, "options": options, "encoder": encoder, "epochs": 2, "batch_size": 32, "limit": 96}
    settings |= {"checkpoint_seconds": 0.0, "threads": 1}

    def die(step, row):
        if step == 4:
            raise Died

    whole = vergence.train("digits", out=tmp_path / "whole", **settings)
    with pytest.raises(Died):
        vergence.train("digits", out=tmp_path / "run", on_step=die, **settings)
    assert torch.load(tmp_path / "run/checkpoints/last.pt", weights_only=True)["step"] == 3
    require_equal(whole, vergence.train(out=tmp_path / "run", resume=True))
