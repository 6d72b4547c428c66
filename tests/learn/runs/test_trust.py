"""Runs of strangers: no command imports what a run names outside the library, unless the user trusts it."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.test_cli import refused
from tests.refusals import refuses

import vergence
from vergence.cli import commands
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.training.folder import RunFolder

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 128, "device": "cpu", "precision": "fp32", "knn_every": 0}
PAYLOAD = """
from pathlib import Path
Path({marker!r}).touch()
from vergence.learn.objectives.gje import GJE
class O(GJE):
    pass
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, with a module next to it that its user named."""
    folder = tmp_path_factory.mktemp("trust")
    (folder / "payload.py").write_text(PAYLOAD.format(marker=str(folder / "imported")))
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.syspath_prepend(str(folder))
        vergence.train("digits", out=folder / "run", objective="payload:O", **QUICK)
        del sys.modules["payload"]
    assert (folder / "imported").exists()
    np.save(folder / "x.npy", np.zeros((3, 1, 8, 8), dtype=np.uint8))
    return folder


@pytest.fixture(params=["working folder", "next to the run"])
def folder(request, trained, tmp_path, monkeypatch):
    """The run as a stranger sends it: the module can be imported, and leaves a file when it is."""
    shutil.copytree(trained, tmp_path / "got")
    here = tmp_path / "got" if request.param == "next to the run" else tmp_path / "work"
    here.mkdir(exist_ok=True)
    (tmp_path / "got" / "payload.py").unlink()
    (tmp_path / "got" / "imported").unlink()
    (here / "payload.py").write_text(PAYLOAD.format(marker=str(tmp_path / "imported")))
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    yield tmp_path / "got"
    sys.modules.pop("payload", None)


def arguments(command, folder):
    run, x = folder / "run", folder / "x.npy"
    more = {
        "train": ["--resume", run],
        "evaluate": [run, "--no-probes", "--device", "cpu"],
        "embed": [run, x, "--out", folder / "e.npz", "--device", "cpu"],
        "score": [run, x, "--out", folder / "s.csv", "--device", "cpu"],
        "check": [x, "--encoder", run, "--out", folder / "check"],
    }
    return [command, *map(str, more[command])]


@pytest.mark.parametrize("command", ["train", "evaluate", "embed", "score", "check"])
def test_every_command_refuses_foreign_code_before_it_is_imported(folder, command):
    marker = folder.parent / "imported"
    assert "--trust-code" in refused(*arguments(command, folder), words="'payload:O'")
    assert not marker.exists() and "payload" not in sys.modules
    commands.main([*arguments(command, folder), "--trust-code"])
    assert marker.exists()


def test_the_python_calls_refuse_it_too(folder):
    marker = folder.parent / "imported"
    for call in (
        lambda: vergence.load(folder / "run"),
        lambda: vergence.train(out=folder / "run", resume=True),
        lambda: vergence.train(out=folder / "run", resume=True, epochs=1),
        lambda: vergence.train(out=folder / "run", resume=True, objective="vje", trust_code=False),
        lambda: RunFolder.open(folder / "run"),
    ):
        refuses(r"trust_code|was 'payload:O', now 'vje'", call)
    assert not marker.exists() and "payload" not in sys.modules
    run = vergence.load(folder / "run", device="cpu", trust_code=True)
    assert marker.exists() and evaluate(run, probes=False).representations.keys() >= {"z", "mu"}


def test_whoever_names_the_class_trusts_it(folder):
    vergence.train(out=folder / "run", resume=True, objective="payload:O")
    assert (folder.parent / "imported").exists()


def test_a_report_imports_nothing_and_its_command_refuses_foreign_code(folder):
    page = write_report(folder / "run").read_text(encoding="utf-8")
    assert "RunFolder.open(pathlib.Path(sys.argv[1])).config" in page
    assert not (folder.parent / "imported").exists() and "payload" not in sys.modules


def renamed(folder, **model):
    file = folder / "run" / "config.json"
    record = json.loads(file.read_text())
    record["model"] |= model
    file.write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["idlelib.idle:x", "os:system", ":", "payload:", ":O", "vergence.learn.objectives.gje:GJE"])
def test_whatever_has_a_colon_is_code(folder, name):
    renamed(folder, objective=name)
    refuses("trust_code", vergence.load, folder / "run")
    assert "idlelib.idle" not in sys.modules and not (folder.parent / "imported").exists()


@pytest.mark.parametrize("name", ["payload", "core", "parts", "__init__", "../payload", "payload.O"])
def test_other_names_are_looked_up_and_never_imported(folder, name):
    renamed(folder, objective=name)
    refuses("objective", vergence.load, folder / "run", device="cpu")
    assert not (folder.parent / "imported").exists() and "payload" not in sys.modules


@pytest.mark.parametrize("name", ["payload:O", "timm:hf-hub:a/b", "timm:hf_hub:a/b", "timm:local-dir:/tmp", "timm:../payload"])
@pytest.mark.parametrize("field", ["encoder", "target_encoder"])
def test_encoders_are_names_of_the_library_or_of_timms_registry(folder, name, field):
    pytest.importorskip("timm")
    renamed(folder, objective="gje", **{field: name})
    refuses(r"encoder|timm", vergence.load, folder / "run", device="cpu")
    assert not (folder.parent / "imported").exists() and "payload" not in sys.modules


def test_nothing_reads_pickles_or_evaluates_text():
    unsafe = r"allow_pickle=True|weights_only=False|\bpickle\.loads?\(|joblib\.load\(|read_pickle\(|(?<![\w.])(?:eval|exec)\("
    for file in Path(vergence.__file__).parent.rglob("*.py"):
        assert not re.search(unsafe, file.read_text(encoding="utf-8")), file
