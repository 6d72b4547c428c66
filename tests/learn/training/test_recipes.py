import dataclasses
import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.data.config import DataConfig
from vergence.learn import methods, objectives
from vergence.learn.encoders.config import PatchesMLP, Small
from vergence.learn.runs.train import describe
from vergence.learn.training import build, recipes
from vergence.learn.training.config import FitConfig, RunConfig


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_a_whole_description_that_can_be_written_and_read(name):
    config = recipes.get(name)
    assert RunConfig.from_dict(config.to_dict()) == config
    kind = objectives.get(config.model.objective) if config.model.method is None else methods.get(config.model.method)
    assert set(config.model.options) <= set(inspect.signature(kind).parameters)
    assert "not_a_source" in recipes.get(name, "not_a_source").data.source


def test_the_papers_baselines_have_its_schedule_and_views():
    vje = recipes.get("vje_cifar10")
    assert (vje.fit.epochs, vje.fit.optimizer, vje.fit.lr, vje.views.blur) == (800, "sgd", 0.05, 0)
    for name in ("simsiam_vje_cifar10", "vicreg_vje_cifar10"):
        config = recipes.get(name)
        assert (config.fit, config.views, config.model.encoder) == (vje.fit, vje.views, vje.model.encoder)


def test_an_unknown_recipe_is_answered_with_the_nearest_name_or_the_command_that_lists_all():
    refuses(r"'vje_smal'; did you mean 'vje_small'\?", recipes.get, "vje_smal")
    refuses("rotation", recipes.suggested, {"method": "rotation"})
    refuses(r"found 'foo'; vergence list recipes lists all$", recipes.get, "foo")
    command = [sys.executable, "-m", "vergence", "list", "recipes"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in said[:-1]] == recipes.names() and said[-1].startswith("next: ")


def test_recipes_of_arxiv_2505_12477_have_lightlys_views_without_blur():
    transforms = pytest.importorskip("lightly.transforms")
    for name, kind, strength in (("contrastive", transforms.SimCLRTransform, 1.0), ("vicreg", transforms.VICRegTransform, 0.5)):
        default = {p.name: p.default for p in inspect.signature(kind.__init__).parameters.values()}
        views = recipes.get(f"{name}_cifar10").views
        jitter = [default["cj_strength"] * default[f"cj_{one}"] for one in ("bright", "contrast", "sat", "hue")]
        assert default["cj_strength"] == strength and views.jitter == pytest.approx(jitter) and views.blur == 0
        assert views.crop == (default["min_scale"], 1.0) and views.jitter_p == default["cj_prob"]
        assert (views.solarize, views.grayscale) == (default.get("solarize_prob", 0.0), default["random_gray_scale"])


@pytest.mark.parametrize("name", ["contrastive", "byol", "simsiam", "vicreg", "barlow_twins", "moco", "swav", "lejepa"])
def test_an_objective_that_needs_a_head_has_one_without_further_options(name):
    config = describe("digits", None, {"objective": name, "epochs": 3})
    assert config == recipes.override(recipes.get(f"{name}_small", "digits"), epochs=3) and config.model.projector
    assert describe("digits", "vje_small", {"objective": name}).model.projector == ()
    assert describe("x.npy", None, {"objective": name, "encoder": "mlp", "projector": (8,)}).model.projector == (8,)


def test_defaults_of_objectives_are_the_published_ones():
    def default(name, option):
        return inspect.signature(objectives.get(name)).parameters[option].default

    assert objectives.get("byol").teacher == objectives.get("moco").teacher == 0.99  # of BYOL with up to 300 epochs
    assert default("byol", "hidden") == default("moco", "hidden") == 4096 and default("moco", "temperature") == 0.2
    assert (default("swav", "frozen_steps"), default("swav", "prototypes"), default("swav", "epsilon")) == (313, 3000, 0.05)
    assert recipes.get("dino").fit.clip == 3.0


@pytest.mark.parametrize(("name", "schedule"), [("byol", "cosine"), ("moco", "cosine"), ("vssl", "constant")])
def test_a_built_teacher_has_the_schedule_of_its_method(name, schedule):
    config = describe("digits", None, {"objective": name})
    method = build.initial_method(config, (1, 8, 8), None, torch.zeros(1), torch.ones(1))
    assert method.teacher is not None and method.schedule == schedule


def test_a_method_takes_its_small_recipe():
    config = describe("digits", None, {"method": "dino", "epochs": 3})
    assert config == recipes.override(recipes.get("dino_small", "digits"), epochs=3)
    other = describe("digits", "dino_small", {"objective": "vje"}).model
    assert (other.method, other.objective, other.options) == (None, "vje", {})
    assert describe("digits", "dino", {"options": {"outputs": 2}}).model.options == {"outputs": 2}
    assert describe("digits", "dino", {"local_views": 2}).views.local_views == 2
    assert describe("digits", "vje_small", {"method": "dino"}).model.objective == "none"
    refuses("method 'dino'", describe, "digits", None, {"method": "dino", "objective": "vje"})


@pytest.mark.parametrize("name", [name for name in objectives.names() if name != "none"])
def test_every_objective_has_a_recipe_behind_the_closed_form(name):
    config = recipes.get(f"patches_{name}", "digits")
    assert (config.model.objective, config.model.encoder, config.fit.encoder_lr) == (name, PatchesMLP(), 0.03)
    assert config.views == recipes.get("patches", "digits").views
    assert recipes.suggested({"encoder": "patches-mlp", "objective": name}) == f"patches_{name}"


@pytest.mark.parametrize("name", [name for name in objectives.names() if name != "none"])
def test_every_objective_has_a_small_recipe_and_takes_it(name):
    config = describe("digits", None, {"objective": name})
    assert config == recipes.get(f"{name}_small", "digits") and config.model.encoder == Small()
    assert (config.fit.lr, config.fit.encoder_lr) == ((5e-3, 0.2) if name == "vje" else (2e-3, 1.0))
    if name.partition("_")[0] in ("gje", "gmje"):
        assert config.model.projector == (256, 32)


def test_overrides_change_what_they_name_and_nothing_else():
    base = recipes.get("vje_small")
    found = recipes.override(base, epochs=3, source="digits", blur=0.5)
    assert found == dataclasses.replace(
        base,
        data=dataclasses.replace(base.data, source="digits"),
        views=dataclasses.replace(base.views, blur=0.5),
        fit=dataclasses.replace(base.fit, epochs=3),
    )


def test_options_are_merged_and_go_with_their_objective():
    base = recipes.override(recipes.get("vje_oneclass_cifar10"), options={"beta": 2.0})
    assert base.model.options == {"nu": 0.5, "beta": 2.0}
    assert recipes.override(base, objective="package.module:Other").model.options == {}
    assert recipes.override(base, objective="package.module:Other", options={"k": 3}).model.options == {"k": 3}


@pytest.mark.float32
def test_the_default_recipe_follows_the_data_and_the_settings(tmp_path, capsys):
    x = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    for name, part in {"images": x, "small": x[:, :6, :6], "vectors": x[:, 0].astype(np.float32)}.items():
        np.save(tmp_path / f"{name}.npy", part)

    def encoder(name, **settings):
        out = tmp_path / f"{name}-{len(settings)}"
        return vergence.train(tmp_path / f"{name}.npy", out=out, device="cpu", **settings).folder.config.model.encoder.kind

    assert encoder("images", seed=3, limit=20) == "patches"
    assert "random weights" not in capsys.readouterr().err
    assert encoder("images", epochs=1, batch_size=8, objective="simsiam") == "small"
    assert "weights; `recipe='patches_simsiam'` trains on top of" in capsys.readouterr().err
    assert encoder("small", epochs=1, batch_size=8, precision="fp32") == "small"
    assert encoder("vectors", epochs=1, batch_size=8) == "mlp"
    assert "random weights" not in capsys.readouterr().err
    refuses("found 'small'", encoder, "images", recipe="patches", encoder="small")
    refuses("add one, or name an objective", encoder, "images", objective="none", seed=1, limit=30, epochs=1)
    refuses("use `encoder='mlp'`", encoder, "vectors", encoder="small")


def test_settings_of_networks_alone_do_not_choose_the_model_for_images():
    images = recipes.Facts("image", (1, 9, 9), 100)
    given = {field.name: 1 for field in dataclasses.fields(DataConfig)}
    assert recipes.suggested(given, images) == "patches"
    assert recipes.suggested({}, recipes.Facts("image", (1, 6, 6), 9)) == "vje_small"
    assert recipes.suggested({}, recipes.Facts("pairs", (1, 9, 9), 9)) == "gmje_small"
    used = {"seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads", "strict", "precision"}
    for name in {field.name for field in dataclasses.fields(FitConfig)}:
        if name in used:
            assert recipes.suggested({name: 1}, images) == "patches"
        else:
            refuses("to networks", recipes.suggested, {name: 1}, images)
