import dataclasses
import inspect

import numpy as np
import pytest

import vergence
from vergence import objectives
from vergence.data.config import DataConfig
from vergence.encoders import networks
from vergence.training import recipes
from vergence.training.config import FitConfig, ModelConfig, RunConfig


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_a_whole_description_that_can_be_written_and_read(name):
    config = recipes.get(name)()
    assert RunConfig.from_dict(config.to_dict()) == config
    kind = objectives.get(config.model.objective)
    assert set(config.model.options) <= set(inspect.signature(kind).parameters)
    family = config.model.encoder.split("-")[0]
    assert family in networks.KNOWN or family.startswith("timm:")
    text = recipes.get(name).__doc__
    assert "Command:" in text and "Device and time:" in text


def test_recipes_hold_the_papers_settings():
    fit = recipes.vje_cifar10().fit
    assert (fit.epochs, fit.batch_size, fit.optimizer, fit.lr, fit.weight_decay, fit.warmup_epochs) == (
        800,
        256,
        "sgd",
        0.05,
        5e-6,
        0,
    )
    assert recipes.vje_cifar10().views.blur == 0 and recipes.vje_imagenet().views.blur == 0.5
    assert recipes.vje_cifar10().model.encoder == "resnet18-cifar"
    assert recipes.vje_cifar10_200().fit.epochs == 200
    one = recipes.vje_oneclass_cifar10(inlier=3)
    assert (one.data.keep_classes, one.fit.batch_size, one.fit.lr, one.model.options["nu"]) == ((3,), 64, 5e-6, 0.5)
    imagenet = recipes.vje_imagenet()
    assert (imagenet.fit.epochs, imagenet.fit.warmup_epochs, imagenet.model.encoder) == (100, 10, "resnet50-imagenet")


def test_every_public_recipe_of_the_file_is_listed_whatever_its_name(monkeypatch):
    def other(source: str = "digits") -> RunConfig:
        return recipes.vje_small(source)

    other.__module__ = recipes.__name__
    monkeypatch.setattr(recipes, "gje_other", other, raising=False)
    assert "gje_other" in recipes.names() and recipes.get("gje_other")().data.source == "digits"
    assert {"override", "get", "names"}.isdisjoint(recipes.names())


def test_unknown_recipes_are_refused():
    with pytest.raises(ValueError, match=r"expected a recipe among .*vje_small.*found 'vje_smal'; did you mean 'vje_small'?"):
        recipes.get("vje_smal")


def test_overrides_change_what_they_name_and_nothing_else():
    base = recipes.vje_small()
    found = recipes.override(base, epochs=3, source="digits", blur=0.5)
    assert (found.fit.epochs, found.data.source, found.views.blur) == (3, "digits", 0.5)
    assert found == dataclasses.replace(
        base,
        data=dataclasses.replace(base.data, source="digits"),
        views=dataclasses.replace(base.views, blur=0.5),
        fit=dataclasses.replace(base.fit, epochs=3),
    )


def test_strict_reaches_the_data_and_the_training():
    found = recipes.override(recipes.vje_small(), strict=True)
    assert found.data.strict and found.fit.strict


def test_options_are_merged_and_go_with_their_objective():
    base = recipes.override(recipes.vje_oneclass_cifar10(), options={"beta": 2.0})
    assert base.model.options == {"nu": 0.5, "beta": 2.0}
    assert recipes.override(base, objective="package.module:Other").model.options == {}
    assert recipes.override(base, objective="package.module:Other", options={"k": 3}).model.options == {"k": 3}


@pytest.mark.parametrize(
    ("name", "words"), [("epoch", "did you mean 'epochs'"), ("zzz", "expected a setting among .*epochs.*found 'zzz'")]
)
def test_unknown_settings_are_refused(name, words):
    with pytest.raises(ValueError, match=words):
        recipes.override(recipes.vje_small(), **{name: 1})


@pytest.mark.float32
def test_the_default_recipe_follows_the_data_and_the_settings(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)
    for name, part in {"images": x, "small": x[:, :6, :6], "vectors": x[:, 0].astype(np.float32)}.items():
        np.save(tmp_path / f"{name}.npy", part)

    def encoder(name, **settings):
        out = tmp_path / f"{name}-{len(settings)}"
        return vergence.train(tmp_path / f"{name}.npy", out=out, device="cpu", **settings).folder.config.model.encoder

    assert encoder("images", seed=3, limit=20).startswith("patches:")
    assert encoder("images", epochs=1, batch_size=8, knn_every=0) == "small"
    assert encoder("small", epochs=1, batch_size=8, precision="fp32") == "small"
    assert recipes.default("image", (1, 6, 6), []) == recipes.default("pairs", (1, 9, 9), []) == "vje_small"
    with pytest.raises(ValueError, match="use --encoder mlp"):
        encoder("vectors")
    assert recipes.default("image", (1, 9, 9), [field.name for field in dataclasses.fields(DataConfig)]) == "patches"
    used = {"seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads", "strict"}
    for name in {field.name for part in (FitConfig, ModelConfig) for field in dataclasses.fields(part)}:
        assert recipes.default("image", (1, 9, 9), [name]) == ("patches" if name in used else "vje_small"), name
