"""Arguments that nobody means: one line on stderr, exit code 2, nothing written; and options that come from the configuration."""

import dataclasses
import subprocess
import sys

import pytest
from tests.cli.test_cli import call, refused

from vergence import mixtures
from vergence.cli import density, options
from vergence.cli.train import Train
from vergence.data.config import DataConfig
from vergence.learn.training.config import FitConfig, ModelConfig

pytestmark = pytest.mark.float32

MANY = "9" * 30


@pytest.mark.parametrize("size", ["-1", "0", MANY])
def test_batch_sizes(gaussian, tmp_path, size):
    words = "--batch-size of at least 1" if size != MANY else "--batch-size of at most"
    refused("train", "digits", "--out", tmp_path / "run", "--batch-size", size, words=words)
    for command in ("embed", "score"):
        refused(command, gaussian, "digits", "--out", tmp_path / "e.npz", "--batch-size", size, words=words)
    assert list(tmp_path.iterdir()) == []


def test_counts(gaussian, tmp_path):
    refused("advise", "digits", "--out", tmp_path / "a", "--draws", MANY, words="--draws of at most")
    refused("demo", "--out", tmp_path / "d", "--seed", "-1", words="--seed of at least 0")
    refused("density", "sample", "m.safetensors", "x.npz", "--out", tmp_path / "y.npz", "--n", MANY, words="--n of at most")
    refused("train", "digits", "--out", tmp_path / "run", "--keep-classes", "0", MANY, words="--keep-classes of at most")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["-" * 3000, "-" * 3000 + "1", "(" * 3000, "[" * 90 + "]" * 90, "9" * 5000])
def test_settings_that_python_cannot_read(tmp_path, value):
    message = refused("train", "digits", "--out", tmp_path / "run", "--objective", "vje", "--set", f"dim={value}", words="dim")
    assert len(message) < 300
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [("train", "", "--out", "{}/run"), ("embed", "", "digits", "--out", "{}/e.npz"), ("advise", "", "--out", "{}/a"),
     ("score", "run", "", "--out", "{}/e.npz"), ("report", ""), ("train", "digits", "--out", "")],
)  # fmt: skip
def test_empty_arguments(tmp_path, arguments):
    refused(*(text.format(tmp_path) for text in arguments), words="is empty")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_photographs_in_the_place_of_a_run(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for command in (("embed", photos, photos), ("score", photos, photos)):
        message = refused(*command, "--out", tmp_path / "e.npz", words="has no config.json")
        assert f"--out {photos}" not in message
    for command in ("evaluate", "report"):
        assert f"--out {photos}" not in refused(command, photos, words="has no config.json")
    assert list(photos.iterdir()) == []


def test_options_of_training_are_the_configurations():
    help_text = " ".join(call("train", "--help").stdout.replace("│", " ").split())
    for config in (DataConfig, ModelConfig, FitConfig):
        for field in dataclasses.fields(config):
            if field.name in options.SETTINGS:
                assert options.described(field.name).split(".")[0] in help_text
    names = [field.name for field in dataclasses.fields(Train)]
    assert all(options.ALIASES.get(name, name) in names for name in options.SETTINGS)
    assert "Stop at unreadable images instead of skipping them, and stop when the embedding collapses." in help_text
    assert "Default: 1 for images, 30 for vectors" in help_text and "{sgd|adamw|lars}" in help_text


def test_every_setting_has_a_description():
    for name in options.known_settings():
        assert len(options.described(name)) > 8 and options.described(name).endswith("."), name
        assert "`" not in options.described(name)


def test_help_loads_no_numerics():
    code = "import sys\nfrom vergence.cli.commands import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'numpy', 'sklearn', 'jinja2') if m in sys.modules], file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"


def test_a_setting_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="nu twice"):
        options.parse_settings(["nu=1", "nu=2"])


def test_the_help_of_density_names_every_model():
    named = density.MODELS.removeprefix("Model to fit: ").partition(";")[0]
    assert set(named.split(", ")) == set(mixtures.MODELS)
