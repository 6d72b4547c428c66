"""Arguments that nobody means: one line on stderr, exit code 2, nothing written; and options that come from the configuration."""

import contextlib
import dataclasses
import inspect
import os
import subprocess
import sys

import pytest
from tests.cli.test_cli import CLI, call, refused

from vergence import mixtures
from vergence.cli import density, options
from vergence.cli.train import Train
from vergence.data.config import DataConfig
from vergence.learn import methods, objectives, outline
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


LIGHT = [
    "train --help", "train --help --recipe vje_small", "list recipes", "list objectives", "list encoders", "list settings nu",
    *(f"train digits --{word}" for word in ("recipe vj", "objective vj", "encoder vj", "method vj", "distill vj", "views vj")),
    *(f"train digits --{word}" for word in ("set nuu=3", "lr -1", "objective gje --set nu=3")), "advise digits --views vj",
]  # fmt: skip


def test_lists_help_and_refusals_of_names_load_no_numerics():
    code = (
        "import sys\nfrom vergence.cli.commands import main\ncodes = []\nfor line in sys.argv[1:]:\n    try: main(line.split())\n"
    )
    code += "    except SystemExit as stop: codes.append(stop.code)\n    else: codes.append(0)\n"
    code += "print(codes, [m for m in ('torch', 'numpy', 'sklearn', 'jinja2') if m in sys.modules], file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", code, *LIGHT], capture_output=True, text=True, check=True)
    *errors, last = found.stderr.splitlines()
    assert last == f"{[0] * 6 + [2] * 10} []" and len(errors) == 10 and all(line.startswith("error: expected") for line in errors)


def test_what_is_read_from_a_file_is_what_its_class_has():
    for name in (*objectives.names(), *methods.names()):
        kind, read = (objectives if name in objectives.names() else methods).get(name), outline(name)
        given = {key: one.default for key, one in inspect.signature(kind).parameters.items() if one.default is not one.empty}
        assert (inspect.getdoc(kind), kind.small, given) == (read.doc, read.settings.get("small", {}), read.options)
        assert getattr(kind, "behind", None) == read.settings.get("behind")


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudoterminal")
def test_colors_are_those_of_a_terminal_unless_the_environment_says_otherwise():
    import pty

    def shown(terminal, **environment):
        ours, theirs = pty.openpty() if terminal else os.pipe()
        env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"}
        with subprocess.Popen([*CLI, "check", "--help"], env=env | environment, stdout=theirs) as process:
            os.close(theirs)
            text = b""
            with contextlib.suppress(OSError):  # of a terminal that is closed
                while part := os.read(ours, 65536):
                    text += part
        os.close(ours)
        assert process.returncode == 0 and b"--against" in text
        return b"\x1b[" in text

    assert shown(True) and not shown(True, NO_COLOR="1") and not shown(False) and shown(False, FORCE_COLOR="1")


def test_a_setting_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="nu twice"):
        options.parse_settings(["nu=1", "nu=2"])


def test_the_help_of_density_names_every_model():
    named = density.MODELS.removeprefix("Model to fit: ").partition(";")[0]
    assert set(named.split(", ")) == set(mixtures.MODELS)
