import errno
import fcntl
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.data.config import DataConfig
from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.folder import FORMAT, RunFolder, run_lock
from vergence.learn.training.records import RunMetadata
from vergence.utils.files import require_writable
from vergence.utils.version import __version__

CONFIG = RunConfig(data=DataConfig(source="digits", keep_classes=(1, 2)), model=ModelConfig(options={"nu": float("inf")}))

METADATA = RunMetadata(kind="image", n_train=3, n_test=1, read_shape=(1, 8, 8), shape=(1, 8, 8), classes=("a", "b"))


def make(tmp_path):
    return RunFolder.create(tmp_path / "run", CONFIG, METADATA)


def test_config_comes_back_whole_with_tuples_and_infinities(tmp_path):
    make(tmp_path)
    found = RunFolder.open(tmp_path / "run")
    assert found.config == CONFIG and found.metadata == METADATA
    json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_an_existing_run_is_not_overwritten(tmp_path):
    make(tmp_path).save_checkpoint({"model": {}, "optimizer": {}, "step": 1})
    refuses("already holds a run", make, tmp_path)


@pytest.mark.parametrize("name", ["001.png", "config.json"])
def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(tmp_path, name):
    """The files of a run among somebody's images would make a run of that folder for every other command."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text('{"size": 3}')
    refuses("found other files", make, tmp_path)
    refuses("found other files in it", vergence.train, "digits", out=tmp_path / "run", epochs=1)
    assert [file.name for file in (tmp_path / "run").iterdir()] == [name]


def test_hidden_files_and_what_a_killed_start_leaves_are_no_other_files(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in (".DS_Store", "lock"):
        (tmp_path / "run" / name).write_text("")
    make(tmp_path)
    (tmp_path / "run" / "notes.txt").write_text("of the run's owner")
    make(tmp_path)


def test_metrics_survive_a_half_written_line(tmp_path):
    run = make(tmp_path)
    run.append({"step": 1, "loss": 2.0})
    run.append({"step": 2, "loss": float("nan")})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert run.metrics() == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]
    run.drop_rows_after(1)
    run.append({"step": 2, "loss": 1.0})
    assert [r["step"] for r in run.metrics()] == [1, 2]


def test_a_start_from_step_0_is_logged_where_it_drops_rows(tmp_path):
    run = make(tmp_path)
    run.drop_rows_after(0)
    assert not (run.path / "metrics.jsonl").exists() and not (run.path / "log.txt").exists()
    run.append({"step": 1, "loss": 2.0})
    run.drop_rows_after(1)
    assert not (run.path / "log.txt").exists()
    run.drop_rows_after(0)
    assert not run.metrics() and "training starts again from step 0" in (run.path / "log.txt").read_text()


def test_a_flipped_bit_is_found(tmp_path):
    run = make(tmp_path)
    run.save_model({"w": torch.randn(100)})
    run.save_checkpoint({"step": 1, "model": {"w": torch.randn(100)}, "optimizer": {}})
    for name, load in (("model.safetensors", run.load_model), ("checkpoints/last.pt", run.load_checkpoint)):
        file = run.path / name
        whole = bytearray(file.read_bytes())
        whole[len(whole) // 2] ^= 1
        file.write_bytes(whole)
        refuses("SHA-256 differs", load)


def test_a_kill_between_checksum_and_file_loses_nothing(tmp_path, monkeypatch):
    run = make(tmp_path)
    run.save_checkpoint({"step": 1, "model": {}, "optimizer": {}})

    def dies(self, content):
        if "last.pt" in self.name:
            raise KeyboardInterrupt
        return write(self, content)

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", dies)
    for step in (2, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            run.save_checkpoint({"step": step, "model": {}, "optimizer": {}})
        assert run.load_checkpoint()["step"] == 1
    monkeypatch.undo()
    run.save_checkpoint({"step": 5, "model": {}, "optimizer": {}})
    run.save_model({"w": torch.zeros(1)})
    assert {len(v) for v in json.loads((run.path / "checksums.json").read_text()).values()} == {1}


def test_a_run_that_died_before_its_first_checkpoint_does_not_block_its_folder(tmp_path):
    make(tmp_path).append({"step": 1, "loss": 2.0})
    run = make(tmp_path)
    assert run.metrics() == [] and RunFolder.open(run.path).metadata == METADATA


HOLDER = """
import sys, time
from pathlib import Path
from vergence.learn.training.folder import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_until_its_process_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"in use by process {holder.pid} on ") as caught, run_lock(tmp_path / "run"):
            pass
        assert "\n" not in str(caught.value)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert (tmp_path / "run" / "lock").exists()
    with run_lock(tmp_path / "run"):
        assert f"process {os.getpid()} on " in (tmp_path / "run" / "lock").read_text()
    assert list((tmp_path / "run").iterdir()) == []


def test_without_locks_the_training_runs_and_says_what_it_cannot_know(tmp_path, monkeypatch, capsys):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with run_lock(tmp_path / "run"):
        pass
    assert "cannot know whether another process writes" in capsys.readouterr().err


def test_a_folder_removed_while_training_is_one_line(tmp_path):
    run = make(tmp_path)
    shutil.rmtree(run.path)
    refuses("nothing of it is left", run.append, {"step": 1})


def test_a_full_disk_names_what_is_safe(tmp_path, monkeypatch):
    run = make(tmp_path)
    run.save_checkpoint({"step": 1, "model": {}, "optimizer": {}})

    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    state = {"step": 2, "model": {}, "optimizer": {}}
    refuses(r"No space left on device; the last checkpoint is safe: .*--resume", run.save_checkpoint, state)
    assert run.load_checkpoint()["step"] == 1


def test_rows_are_not_appended_through_a_link(tmp_path):
    run = make(tmp_path)
    other = tmp_path / "profile"
    other.write_text("mine")
    for name in ("metrics.jsonl", "log.txt"):
        (run.path / name).symlink_to(other)
    for write in (lambda: run.append({"step": 1}), lambda: run.log("x")):
        refuses("cannot write", write)
    run.drop_rows_after(1)
    assert other.read_text() == "mine"


def test_the_check_for_writing_leaves_a_folder_as_it_is(tmp_path):
    """No file of the check is ever under a name that a kill could leave behind, or that could be a file of one's own."""
    (tmp_path / "probe").write_text("mine")
    require_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["probe"] and (tmp_path / "probe").read_text() == "mine"


def test_checkpoints_and_models_come_back_bit_for_bit(tmp_path):
    run = make(tmp_path)
    assert run.load_checkpoint() is None
    state = {"model": {"w": torch.randn(3, 4)}, "optimizer": {}, "step": 7}
    run.save_checkpoint(state)
    again = run.load_checkpoint()
    assert again["step"] == 7 and torch.equal(again["model"]["w"], state["model"]["w"])
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["last.pt"]
    run.save_model({"w": torch.randn(3, 4).t(), "n": torch.tensor(3)})
    assert run.load_model()["n"] == 3


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def saved(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def tensors(shape, end=8):
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 8


def config(**changes):
    record = {"vergence": __version__, "format": FORMAT, **CONFIG.to_dict(), "metadata": METADATA.to_dict(), **changes}
    return json.dumps({key: value for key, value in record.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, r"no config\.json"), ("config.json", b"{", "damaged"),
        ("config.json", config(format=FORMAT + 1, vergence="99.0"), "written by vergence '99.0'"),
        ("config.json", config(metadata=None), "damaged"),
        ("config.json", config(fit={"epochs": 3, "no_such": 1}), "damaged|not a run description"),
        ("config.json", config(model=None), "damaged|not a run description"), ("model.safetensors", None, "--resume"),
        ("model.safetensors", b"", "damaged"), ("model.safetensors", tensors([2**40], end=2**42), "damaged"),
        ("model.safetensors", tensors([-1]), "damaged"), ("model.safetensors", (2**60).to_bytes(8, "little") + b"{}", "damaged"),
        ("checkpoints/last.pt", b"PK", "damaged"), ("checkpoints/last.pt", pickle.dumps(print), "damaged"),
        ("checkpoints/last.pt", saved({"step": 1, "model": Evil()}), "something else than tensors"),
        ("checkpoints/last.pt", saved([]), "holds list"), ("checkpoints/last.pt", saved({"step": 1}), "has no 'model'"),
        ("checkpoints/last.pt", saved({"step": "x" * 10**6, "model": {}, "optimizer": {}}), r"step is 'x.*\.\.\. instead"),
        ("checkpoints/last.pt", saved({"step": True, "model": {}, "optimizer": {}}), "step is True"),
        ("checkpoints/last.pt", saved({"step": 1, "model": [1], "optimizer": {}}), "model is of type list"),
    ],
)  # fmt: skip
def test_damaged_files_are_one_line_and_run_no_code(tmp_path, name, content, words, capsys):
    run = make(tmp_path)
    file = run.path / name
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        read(run, name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700 and "code ran" not in capsys.readouterr().out


def read(run, name):
    reads = {"config.json": lambda: RunFolder.open(run.path), "evaluation.json": run.evaluation, "skipped.csv": run.skipped}
    return (reads | {"checkpoints/last.pt": run.load_checkpoint, "model.safetensors": run.load_model})[name]()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json", "fifo"), ("evaluation.json", "device"), ("skipped.csv", "folder"), ("model.safetensors", "device"),
        ("checkpoints/last.pt", "fifo"),
    ],
)  # fmt: skip
def test_what_is_no_regular_file_is_not_read(tmp_path, name, kind):
    run = make(tmp_path)
    file = run.path / name
    file.unlink(missing_ok=True)
    {"fifo": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero"), "folder": file.mkdir}[kind]()
    refuses(r"not a regular file|no config\.json", read, run, name)
