"""Files that are written in one step: what an error, a signal or a dead process leaves."""

import os
import signal
import subprocess
import sys

import pytest

from vergence.utils.files import HOST, remove_leftovers, replacing


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "no" / "a.json") as part:
        part.write_text("new")
    assert caught.value.filename == str(tmp_path / "no" / "a.json") and ".part" not in str(caught.value)


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a.json") as part:
        part.write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and (tmp_path / "a.json").read_text() == "old"


def test_temporary_files_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [tmp_path / f".a.json.{HOST}.{dead.pid}.part", tmp_path / f".t.npz.{HOST}.{dead.pid}.parts"]
    left[0].write_text("half")
    left[1].mkdir()
    other = [tmp_path / f".b.json.{HOST}.{dead.pid}.part", tmp_path / f".a.json.another-host.{dead.pid}.part"]
    other += [tmp_path / f".a.json.{HOST}.{os.getppid()}.part", tmp_path / ".a.json.part"]
    for file in other:
        file.write_text("half")
    with replacing(tmp_path / "a.json") as part:
        part.write_text("whole")
    assert not left[0].exists() and left[1].exists() and all(file.exists() for file in other)
    remove_leftovers(tmp_path)
    assert not left[1].exists() and [file.exists() for file in other] == [False, True, True, True]


def test_sigterm_of_the_whole_group_ends_readers_without_a_word():
    code = "import time, torch; from vergence.data.images import parallel; from vergence.utils.files import exit_on_sigterm\n"
    code += "with exit_on_sigterm():\n for _ in parallel(len, torch.arange(600).split(1), 2): print(flush=True), time.sleep(0.1)"
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", code], **how)
    assert [process.stdout.readline() for _ in range(2)] == ["\n"] * 2  # of each reader
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=30)[1] == "" and process.returncode == 128 + signal.SIGTERM


def test_sigterm_removes_temporary_files_at_once(tmp_path):
    code = f"""
import time
from pathlib import Path
from vergence.utils.files import replacing
with replacing(Path({str(tmp_path / "t")!r})) as part:
    part.write_text("half")
    print("open", flush=True)
    for _ in range(600):  # a signal just before a long sleep would wait for its end
        time.sleep(0.1)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n" and list(tmp_path.iterdir())
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM and said == ""
    assert list(tmp_path.iterdir()) == []
