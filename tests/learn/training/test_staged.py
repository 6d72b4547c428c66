"""A closed form with a network behind it: where training starts, resuming in either stage, every objective, bad input."""

import pytest
import torch

import vergence
from vergence.learn import objectives
from vergence.learn.encoders.config import PatchSettings
from vergence.learn.encoders.patch_maps import RefinedEncoder
from vergence.learn.objectives.core import DensityObjective

TINY = "patches-mlp:atoms=16,patch=3,directions=20,dim=8"
QUICK = {"recipe": "patches_vje", "encoder": TINY, "device": "cpu", "limit": 600, "batch_size": 64, "knn_every": 0}
QUICK |= {"projector": (), "epochs": 2, "calibration_share": 0.0}
ALONE = {"recipe": "patches", "encoder": TINY.replace("-mlp", ""), "device": "cpu", "limit": 600, "calibration_share": 0.0}

pytestmark = pytest.mark.float32


def test_training_starts_from_the_closed_form(tmp_path):
    closed = vergence.train("digits", out=tmp_path / "closed", **ALONE)
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


@pytest.mark.slow
def test_a_fitted_closed_form_is_a_first_stage(tmp_path):
    whole = vergence.train("digits", out=tmp_path / "whole", **QUICK)
    vergence.train("digits", out=tmp_path / "closed", **ALONE)
    steps = {name: QUICK[name] for name in ("epochs", "batch_size", "knn_every", "projector", "device")}
    behind = vergence.train(out=tmp_path / "behind", init=tmp_path / "closed", objective="vje", **steps)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(behind.embed(x), whole.embed(x))
    vergence.train(out=tmp_path / "kept", init=tmp_path / "closed", freeze=True)
    frozen = vergence.train(out=tmp_path / "frozen", init=tmp_path / "kept", objective="vje", **steps)
    assert torch.equal(frozen.embed(x), whole.embed(x))
    again = vergence.train("digits", out=tmp_path / "again", init=tmp_path / "behind", objective="gje", limit=300, epochs=1)
    assert torch.equal(again.method.encoder[1].closed_form.weight, whole.method.encoder[1].closed_form.weight)
    with pytest.raises(ValueError, match="`init=RUN`"):
        vergence.train(out=tmp_path / "not", init=tmp_path / "closed")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in objectives.names() if issubclass(objectives.get(n), objectives.DensityObjective)])
def test_every_objective_with_a_density_has_a_recipe_on_patches(tmp_path, name):
    settings = {key: value for key, value in QUICK.items() if key not in ("recipe", "projector")}
    run = vergence.train("digits", out=tmp_path / "run", recipe=f"patches_{name}", **{**settings, "limit": 300})
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    loaded = vergence.load(tmp_path / "run")
    assert loaded.folder.config.model.objective == name and torch.equal(loaded.embed(x), run.embed(x))
    assert len(loaded.anomaly_score(x)) == 5 if isinstance(loaded.method.objective, DensityObjective) else name == "jepa"
    if loaded.method.teacher is not None:  # its closed form is the student's
        student, teacher = loaded.method.branch("context").state_dict(), loaded.method.teacher.state_dict()
        assert torch.allclose(student["0.1.closed_form.weight"], teacher["0.1.closed_form.weight"])


def test_the_gradient_reaches_the_network_and_not_the_closed_form():
    encoder = RefinedEncoder(1, PatchSettings(atoms=4, patch=3, dim=5)).train()
    encoder(torch.rand(6, 1, 8, 8)).square().sum().backward()
    assert {name for name, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0} == {"outer.weight"}
    assert not any(p.requires_grad for p in encoder.closed_form.parameters())
