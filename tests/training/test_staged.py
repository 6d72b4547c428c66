"""A closed form with a network behind it: where training starts, resuming in either stage, every objective, bad input."""

import os
import signal

import numpy as np
import pytest
import torch
from tests import forked

import vergence
from vergence import objectives
from vergence.encoders.config import PatchSettings
from vergence.encoders.patch_maps import RefinedEncoder
from vergence.runs.run import write_embeddings
from vergence.training import closed_form, loop

TINY = "patches-mlp:atoms=16,patch=3,directions=20,dim=8"
QUICK = {"recipe": "patches_vje", "encoder": TINY, "device": "cpu", "limit": 600, "batch_size": 64, "knn_every": 0}
QUICK |= {"projector": (), "epochs": 2, "calibration_share": 0.0}

pytestmark = pytest.mark.float32


def test_training_starts_from_the_closed_form(tmp_path):
    alone = {"recipe": "patches", "encoder": TINY.replace("-mlp", ""), "device": "cpu", "limit": 600, "calibration_share": 0.0}
    closed = vergence.train("digits", out=tmp_path / "closed", **alone)
    views = {"crop": closed.folder.config.views.crop, "flip": closed.folder.config.views.flip, "jitter": (0.4, 0.0, 0.4, 0.0)}
    views |= {"jitter_p": 1.0, "grayscale": closed.folder.config.views.grayscale}
    run = vergence.train("digits", out=tmp_path / "run", **QUICK, **views, lr=0.0, weight_decay=0.0)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(run.embed(x), closed.embed(x))
    trained = vergence.train("digits", out=tmp_path / "trained", **QUICK, **views)
    refined = trained.method.encoder[1]
    assert isinstance(refined, RefinedEncoder) and not torch.equal(trained.embed(x), closed.embed(x))
    assert torch.equal(refined.closed_form.weight, closed.method.encoder[1].weight)
    assert torch.equal(refined.closed_form.maps.filters, closed.method.encoder[1].maps.filters)


def test_a_fitted_closed_form_is_a_first_stage(tmp_path):
    whole = vergence.train("digits", out=tmp_path / "whole", **QUICK)
    alone = {"recipe": "patches", "encoder": TINY.replace("-mlp", ""), "device": "cpu", "limit": 600, "calibration_share": 0.0}
    vergence.train("digits", out=tmp_path / "closed", **alone)
    steps = {name: QUICK[name] for name in ("epochs", "batch_size", "knn_every", "projector", "device")}
    behind = vergence.train(out=tmp_path / "behind", init=tmp_path / "closed", objective="vje", **steps)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(behind.embed(x), whole.embed(x))
    vergence.train(out=tmp_path / "kept", init=tmp_path / "closed", freeze=True)
    frozen = vergence.train(out=tmp_path / "frozen", init=tmp_path / "kept", objective="vje", **steps)
    assert torch.equal(frozen.embed(x), whole.embed(x))
    again = vergence.train("digits", out=tmp_path / "again", init=tmp_path / "behind", objective="gje", limit=300, epochs=1)
    assert torch.equal(again.method.encoder[1].closed_form.weight, whole.method.encoder[1].closed_form.weight)
    with pytest.raises(ValueError, match="train a network behind a fitted one with --init RUN --objective vje"):
        vergence.train(out=tmp_path / "not", init=tmp_path / "closed")


@pytest.mark.parametrize("stage", ["dictionary", "views", "steps"])
def test_a_stopped_run_resumes_with_the_same_bytes(tmp_path, monkeypatch, stage):
    whole = vergence.train("digits", out=tmp_path / "whole", **QUICK)
    owner, name = (loop, "_agreed") if stage == "steps" else (closed_form._Fit, "_stop")
    at, calls, original = {"dictionary": 1, "views": 8, "steps": 5}[stage], [], getattr(owner, name)

    def stop_once(*arguments):
        calls.append(0)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch, pytest.raises(loop.Interrupted):
        patch.setattr(owner, name, stop_once)
        vergence.train("digits", out=tmp_path / "run", **QUICK)
    resumed = vergence.train(out=tmp_path / "run", resume=True)
    files = [run.folder.path / "model.safetensors" for run in (whole, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = [[(row["step"], row["loss"]) for row in run.folder.metrics()] for run in (whole, resumed)]
    assert rows[0] == rows[1] and rows[0][-1][0] == 18


@pytest.mark.parametrize("name", [n for n in objectives.names() if issubclass(objectives.get(n), objectives.DensityObjective)])
def test_every_objective_with_a_density_has_a_recipe_on_patches(tmp_path, name):
    settings = {key: value for key, value in QUICK.items() if key not in ("recipe", "projector")}
    run = vergence.train("digits", out=tmp_path / "run", recipe=f"patches_{name}", **{**settings, "limit": 300})
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    loaded = vergence.load(tmp_path / "run")
    assert loaded.folder.config.model.objective == name and torch.equal(loaded.embed(x), run.embed(x))
    assert len(loaded.anomaly_score(x)) == 5 if loaded.has_density else name == "jepa"
    if loaded.method.teacher is not None:  # its closed form is the student's
        student, teacher = loaded.method.branch("context").state_dict(), loaded.method.teacher.state_dict()
        assert torch.allclose(student["0.1.closed_form.weight"], teacher["0.1.closed_form.weight"])


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    command = ["train", "digits", "--recipe", "patches_vje", "--encoder", TINY, "--device", "cpu"]
    command += ["--limit", "300", "--batch-size", "64", "--epochs", "1", "--precision", "fp32"]
    for n in (1, 2):
        forked.run(*command, "--devices", n, "--out", tmp_path / str(n), check=True)
    one, two = vergence.load(tmp_path / "1"), vergence.load(tmp_path / "2")
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(two.embed(x), one.embed(x), rtol=1e-2, atol=1e-3)


def test_a_run_evaluates_embeds_and_reports(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", **{**QUICK, "limit": None})
    record = vergence.evaluate(run, probes=False)
    z, closed_form = (record.representations[name].knn[20].majority for name in ("z", "closed_form"))
    assert z > 0.6 and z > closed_form - 0.05
    assert vergence.write_report(tmp_path / "run").exists()
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert write_embeddings(run, x, tmp_path / "z.npz") == 5


@pytest.mark.parametrize(
    ("x", "settings", "match"),
    [
        (np.zeros((40, 3), np.float32), {}, "expected images for encoder 'patches', found vector data"),
        (
            np.zeros((40, 9, 9), np.uint8),
            {"target_encoder": "small"},
            "expected no target_encoder with the encoder 'patches-mlp'",
        ),
        (np.zeros((40, 9, 9), np.uint8), {"batch_size": 64}, "expected a batch of at most the 32 training items"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, x, settings, match):
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(ValueError, match=match) as caught:
        vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", **{**QUICK, "limit": None, "batch_size": 16, **settings})
    assert "\n" not in str(caught.value)


def test_the_gradient_reaches_the_network_and_not_the_closed_form():
    encoder = RefinedEncoder(1, PatchSettings(atoms=4, patch=3, dim=5)).train()
    encoder(torch.rand(6, 1, 8, 8)).square().sum().backward()
    assert {name for name, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0} == {"outer.weight"}
    assert not any(p.requires_grad for p in encoder.closed_form.parameters())
