"""The description of a run: bounds on every number from which something is allocated."""

import dataclasses
import json

import pytest
from tests.refusals import refuses

from vergence.data.config import DataConfig
from vergence.learn.training.config import FitConfig, ModelConfig, RunConfig
from vergence.learn.training.folder import RunFolder
from vergence.learn.training.recipes import override
from vergence.learn.training.records import RunMetadata

CONFIG = RunConfig(data=DataConfig(source="digits"))
METADATA = RunMetadata(kind="image", n_train=3, n_test=1, read_shape=(1, 8, 8), shape=(1, 8, 8))
HUGE = [2**60, 10**30, float("inf")]


def numbers(kind):
    return [(kind, name, most) for name, most in kind.most.items()]


@pytest.mark.parametrize(("kind", "name", "most"), [*numbers(FitConfig), *numbers(DataConfig)])
def test_numbers_have_upper_bounds(kind, name, most):
    source = {"source": "digits"} if kind is DataConfig else {}
    assert getattr(kind(**source, **{name: most}), name) == most
    for value in (most * 2, 10**30, *((float("inf"),) if name in ("lr", "weight_decay", "warmup_epochs") else ())):
        refuses(f"expected {name} of at most {most:,}, found", kind, **source, **{name: value})


def test_every_count_has_an_upper_bound():
    for kind in (DataConfig, FitConfig):
        counts = {field.name for field in dataclasses.fields(kind) if field.type in ("int", "int | None", int, int | None)}
        assert counts and counts <= kind.most.keys()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"projector": (10**12,)}, "widths of at most 65,536"), ({"projector": (8,) * 17}, "at most 16 projector widths"),
        ({"projector": (65_536, 65_536)}, "at most 1,073,741,824 weights"), ({"projector": (0,)}, "widths of at least 1"),
        *(({"options": {name: value}}, f"option {name} of at most") for name in ("bank", "components") for value in HUGE),
        ({"options": {"hidden": 10**6}}, "option hidden of at most"), ({"options": {"steps": 10**6}}, "option steps of at most"),
    ],
)  # fmt: skip
def test_sizes_of_the_model_are_refused_before_anything_is_allocated(tmp_path, model, words):
    refuses(words, ModelConfig, **model)
    refuses(words, override, CONFIG, **model)
    run = RunFolder.create(tmp_path / "run", CONFIG, METADATA)
    record = json.loads((run.path / "config.json").read_text())
    record["model"] |= {k: list(v) if isinstance(v, tuple) else v for k, v in model.items()}
    (run.path / "config.json").write_text(json.dumps(record).replace("Infinity", '"inf"'))
    refuses(rf"config\.json is damaged: .*{words}", RunFolder.open, run.path)


def test_options_of_ones_own_objective_have_no_bounds():
    assert ModelConfig(objective="package.module:Class", options={"bank": 2**40}).options["bank"] == 2**40
    assert ModelConfig(projector=(65_536, 16_384)).projector == (65_536, 16_384)
    assert ModelConfig(objective="contrastive", options={"components": "pairs"}).options == {"components": "pairs"}
