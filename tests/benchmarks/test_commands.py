"""Every command of benchmarks/README.md runs as it is written there, shortened by ``--tiny``.

One process imports torch and the rest once and forks for each command (`run_scripts.py`), which saves two seconds a command.
"""

import importlib.util
import json
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
PAGE = (ROOT / "benchmarks" / "README.md").read_text()
COMMANDS = re.findall(r"`(python [^`]+)`", PAGE.split("## Notes")[0])
COMMANDS = [command for command in COMMANDS if "tables.py" not in command]
NEEDS = {"peers.py": "lightly", "joint.py": "lightly", "methods.py": "lightly", "mixture_speed": "gmr"}
NEEDS |= {"corruption.py run": "lightly"}
NEEDS |= {"pretrained": "efficientnet_lite_pytorch"}
NEEDS |= {"held_out_classes": "pyod", "--peers pyod": "pyod", " pytorch-ood": "pytorch_ood"}
NEEDS |= {"figure_": "matplotlib", "_figure": "matplotlib", " draw": "matplotlib", "--draw": "matplotlib"}
LAYOUT = ("FashionMNIST/raw", "MNIST/raw", "cifar-10-batches-py")
# `bench/run.py` has no --tiny: one round of the smallest network on a small batch instead.
BENCH = {"--encoder": "small", "--rounds": "1", "--batch-size": "8", "--dim": "4", "--size": "8", "--device": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder laid out for torchvision: the given one, or what its own script prepares; skips where there is neither."""
    if all((DATA_ROOT / part).is_dir() for part in LAYOUT):
        return DATA_ROOT
    script = DATA_ROOT / "prepare.py"
    if not script.exists():
        pytest.skip(f"no {', '.join(LAYOUT)} in {DATA_ROOT.name}: set VERGENCE_DATA to a folder laid out for torchvision")
    root = tmp_path_factory.mktemp("torchvision")
    subprocess.run([sys.executable, script, root], check=True, capture_output=True)
    shutil.copy(DATA_ROOT / "bccd" / "boxes.csv", root / "bccd")
    return root


def missing(command):
    """Returns the package that a command needs and that is not installed, or None."""
    needed = [package for part, package in NEEDS.items() if part in command]
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)


def shortened(command, data, scratch):
    """Returns the words of a command with a tiny limit, for folders of this machine."""
    program, *words = shlex.split(command.replace("DATA", str(data)).replace("FOLDER", str(scratch)))
    assert program == "python"
    if words[0] != "experiments/bench/run.py":
        runs = ["--runs", str(scratch / "runs")] if "train.py" in command else []
        return [*words, *runs, "--tiny", "--out", str(scratch / "rows.jsonl")]
    named = dict(zip(words[2::2], words[3::2], strict=True)) | BENCH | {"--out": str(scratch / "rows.jsonl")}
    named |= {"--objective": "gje"} if named.get("--objective") == "all" else {}
    return [*words[:2], *(word for pair in named.items() for word in pair)]


@pytest.fixture(scope="module")
def outcomes(data, tmp_path_factory):
    """The exit code, the output and the folder of every command."""
    jobs = []
    for command in COMMANDS:
        if missing(command) is None:
            folder = tmp_path_factory.mktemp("command")
            jobs.append({"command": command, "words": shortened(command, data, folder), "folder": str(folder)})
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "BENCH_ROUND_SECONDS": "0.01"}
    runner = [sys.executable, Path(__file__).with_name("run_scripts.py"), ROOT]
    done = subprocess.run(runner, input=json.dumps(jobs), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {job["command"]: job for job in json.loads(done.stdout)}


def test_the_page_has_the_commands_of_every_benchmark():
    scripts = {file.name for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text()} - {"tables.py"}
    assert {word for command in COMMANDS for word in re.findall(r"\w+\.py", command)} == scripts
    assert sum(command.startswith("python experiments/bench/run.py") for command in COMMANDS) >= 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_runs(outcomes):
    """One test, so that several test processes do not each run all the commands."""
    assert {command: job["output"] for command, job in outcomes.items() if job["code"] != 0} == {}
    drawn = (" draw", "--draw", "_figure.py", "_figures.py")
    silent = [command for command, job in outcomes.items() if not any(word in command for word in drawn) and not rows(job)]
    assert silent == [], "no row written"


def rows(job):
    file = Path(job["folder"]) / "rows.jsonl"
    return [json.loads(row) for row in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("package", sorted({*NEEDS.values()}))
def test_packages_that_commands_need_are_installed(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed, so the commands that need it were not run")
