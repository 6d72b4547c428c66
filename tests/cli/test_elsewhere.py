"""What Windows and macOS do differently, as far as Linux can tell: processes that spawn, and a default encoding of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = """
import multiprocessing, sys
from vergence.cli.commands import main

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "Fotos ä"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(24):
        base = np.linspace(0, 200, 32)[None, :, None] + 20 * rng.normal(size=(32, 32, 3))
        Image.fromarray(base.clip(0, 255).astype(np.uint8)).save(folder / f"{i:02}.png")
    return folder


def run(words, folder, script):
    (folder / "start.py").write_text(script)
    command = [sys.executable, "-X", "warn_default_encoding", "start.py", *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
@pytest.mark.float32
@pytest.mark.parametrize("verb", ["check", "train"])
def test_processes_that_spawn_give_the_same_and_files_say_their_encoding(photos, tmp_path, verb):
    words = ["check", photos, "--workers", 2] if verb == "check" else ["train", photos, "--set", "workers=2", "--size", 16]
    outputs = []
    for how in ("spawn", "fork"):
        (tmp_path / how).mkdir()
        done = run([*words, "--threads", 1, "--out", "out"], tmp_path / how, SCRIPT.replace("spawn", how))
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.split("\n") if "EncodingWarning" in line and "/vergence/" in line] == []
        file = tmp_path / how / "out" / ("items.csv" if verb == "check" else "model.safetensors")
        outputs.append(file.read_bytes())
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_windows_has_no_modules_of_unix_and_trains_all_the_same(tmp_path):
    lines = [
        "import sys",
        "for name in ('resource', 'fcntl', 'pwd', 'grp'):",
        "    sys.modules[name] = None",
        "import torch, vergence",
    ]
    lines += [
        "from pathlib import Path", "from vergence.advice import advise", "from vergence.learn.runs import train",
        "x = torch.randn(80, 5)",
    ]  # fmt: skip
    lines += ["run = vergence.train(x, epochs=1, device='cpu', precision='fp32', out='run')"]
    lines += ["print(run.embed(x).shape, train.plan(x, out=Path('plan'), epochs=1, device='cpu', precision='fp32')[-1])"]
    done = run([], tmp_path, "\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert "torch.Size([80, 256])" in done.stdout and "GiB" not in done.stdout and "it can be wrong by half" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_help_and_names_are_printed_without_unicode(encoding):
    code = (
        "from vergence.cli.commands import main, _open_streams; _open_streams(); print('1 × \\u017b…\\udcff'); main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True)
    first, *rest = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == b"" and first.endswith(b"Z...\xff")
    assert len(rest) > 20 and (encoding != "ascii" or b"* " in done.stdout)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "| head -1"])
def test_a_closed_output_ends_quietly(closed):
    words = f"{sys.executable} -m vergence list objectives {closed}"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def test_an_output_that_is_full_is_no_success():
    if not Path("/dev/full").exists():
        pytest.skip("a device that is always full")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m vergence list objectives >/dev/full"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "No space left on device" in done.stderr and len(done.stderr.splitlines()) == 1
