import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vergence
from vergence.data.config import DataConfig
from vergence.training.config import ModelConfig, RunConfig
from vergence.training.folder import FORMAT, RunFolder, require_writable, run_lock
from vergence.training.records import RunMetadata
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
    with pytest.raises(ValueError, match="already holds a run"):
        make(tmp_path)


@pytest.mark.parametrize("name", ["001.png", "config.json"])
def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(tmp_path, name):
    """The files of a run among somebody's images would make a run of that folder for every other command."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text('{"size": 3}')
    with pytest.raises(ValueError, match="run to be new, empty or a run, found other files in it; choose another --out"):
        make(tmp_path)
    with pytest.raises(ValueError, match="found other files in it"):
        vergence.train("digits", out=tmp_path / "run", epochs=1)
    assert [file.name for file in (tmp_path / "run").iterdir()] == [name]


def test_hidden_files_and_what_a_killed_start_leaves_are_no_other_files(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in (".DS_Store", "lock"):
        (tmp_path / "run" / name).write_text("")
    make(tmp_path)
    (tmp_path / "run" / "notes.txt").write_text("of the run's owner")
    make(tmp_path)


def test_checkpoints_come_back_bit_for_bit(tmp_path):
    run = make(tmp_path)
    assert run.load_checkpoint() is None
    state = {"model": {"w": torch.randn(3, 4)}, "optimizer": {}, "step": 7}
    run.save_checkpoint(state)
    found = run.load_checkpoint()
    assert found["step"] == 7 and torch.equal(found["model"]["w"], state["model"]["w"])
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["last.pt"]


def test_model_comes_back_bit_for_bit_without_pickle(tmp_path):
    run = make(tmp_path)
    state = {"w": torch.randn(3, 4).t(), "n": torch.tensor(3)}
    run.save_model(state)
    found = run.load_model()
    assert all(torch.equal(found[k], state[k]) for k in state)


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def test_loading_a_checkpoint_never_runs_code(tmp_path, capsys):
    run = make(tmp_path)
    torch.save({"step": 1, "model": Evil()}, run.path / "checkpoints" / "last.pt")
    with pytest.raises(ValueError, match="damaged: it holds something else than tensors, numbers and text"):
        run.load_checkpoint()
    assert "code ran" not in capsys.readouterr().out


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


def damage(run, **changes):
    file = run.path / "config.json"
    record = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in record.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": FORMAT + 1, "vergence": "99.0"}, "written by vergence '99.0'"),
        ({"metadata": None}, "damaged"),
        ({"fit": {"epochs": 3, "no_such": 1}}, "damaged|not a run description"),
        ({"model": None}, "damaged|not a run description"),
    ],
)
def test_unreadable_descriptions_are_named(tmp_path, changes, words):
    run = make(tmp_path)
    damage(run, **changes)
    with pytest.raises(ValueError, match=words):
        RunFolder.open(run.path)


def test_missing_and_unfinished_runs_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(ValueError, match="--resume"):
        make(tmp_path).load_model()
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        RunFolder.open(tmp_path / "run")


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/last.pt"])
def test_truncated_tensors_are_named(tmp_path, name):
    run = make(tmp_path)
    run.save_model({"w": torch.randn(100)})
    run.save_checkpoint({"step": 1, "model": {"w": torch.randn(100)}, "optimizer": {}})
    file = run.path / name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        run.load_model() if "model" in name else run.load_checkpoint()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, METADATA)


def test_version_is_written(tmp_path):
    record = json.loads((make(tmp_path).path / "config.json").read_text())
    assert record["vergence"] == __version__ and record["format"] == FORMAT


def test_a_flipped_bit_is_found(tmp_path):
    run = make(tmp_path)
    run.save_model({"w": torch.randn(100)})
    run.save_checkpoint({"step": 1, "model": {"w": torch.randn(100)}, "optimizer": {}})
    for name, load in (("model.safetensors", run.load_model), ("checkpoints/last.pt", run.load_checkpoint)):
        file = run.path / name
        whole = bytearray(file.read_bytes())
        whole[len(whole) // 2] ^= 1
        file.write_bytes(whole)
        with pytest.raises(ValueError, match="SHA-256 differs") as caught:
            load()
        assert "\n" not in str(caught.value)


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


WHOLE = {"model": {}, "optimizer": {}, "step": 1}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([], "holds list"),
        (3, "holds int"),
        (torch.zeros(2), "holds Tensor"),
        ({"step": 1}, "has no 'model'"),
        ({"step": 1, "model": {}}, "has no 'optimizer'"),
        ({"optimizer": {}, "model": {}}, "has no 'step'"),
        ({**WHOLE, "step": "1"}, "step is '1'"),
        ({**WHOLE, "step": -1}, "step is -1"),
        ({**WHOLE, "step": 1.0}, "step is 1.0"),
        ({**WHOLE, "step": True}, "step is True"),
        ({**WHOLE, "step": None}, "step is None"),
        ({**WHOLE, "step": torch.tensor(1)}, "step is tensor"),
        ({**WHOLE, "step": "x" * 10**6}, r"x\.\.\. instead"),
        ({**WHOLE, "model": torch.zeros(2)}, "model is of type Tensor"),
        ({**WHOLE, "model": [1]}, "model is of type list"),
        ({**WHOLE, "optimizer": "x"}, "optimizer is of type str"),
    ],
)
def test_a_checkpoint_of_wrong_content_is_named(tmp_path, state, words):
    run = make(tmp_path)
    run.save_checkpoint(state)
    with pytest.raises(ValueError, match=f"is not a checkpoint, for .*{words}") as caught:
        run.load_checkpoint()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize("content", [b"", b"x", b"PK", pickle.dumps({"step": 1}), pickle.dumps(print)])
def test_a_checkpoint_that_is_another_file_is_one_line(tmp_path, content):
    run = make(tmp_path)
    (run.path / "checkpoints" / "last.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"last\.pt is damaged") as caught:
        run.load_checkpoint()
    assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)


def test_a_run_that_died_before_its_first_checkpoint_does_not_block_its_folder(tmp_path):
    make(tmp_path).append({"step": 1, "loss": 2.0})
    run = make(tmp_path)
    assert run.metrics() == [] and RunFolder.open(run.path).metadata == METADATA


HOLDER = """
import sys, time
from pathlib import Path
from vergence.training.folder import run_lock
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
    import fcntl

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with run_lock(tmp_path / "run"):
        pass
    assert "cannot know whether another process writes" in capsys.readouterr().err


def test_a_folder_removed_while_training_is_one_line(tmp_path):
    run = make(tmp_path)
    shutil.rmtree(run.path)
    with pytest.raises(ValueError, match="was removed, and nothing of it is left: train again"):
        run.append({"step": 1})


def test_a_full_disk_names_what_is_safe(tmp_path, monkeypatch):
    run = make(tmp_path)
    run.save_checkpoint({"step": 1, "model": {}, "optimizer": {}})

    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match=r"No space left on device; the last checkpoint is safe: .*--resume"):
        run.save_checkpoint({"step": 2, "model": {}, "optimizer": {}})
    assert run.load_checkpoint()["step"] == 1


@pytest.mark.parametrize(
    "name", ["config.json", "evaluation.json", "skipped.csv", "checksums.json", "model.safetensors", "checkpoints/last.pt"]
)
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_not_read(tmp_path, name, kind):
    run = make(tmp_path)
    run.save_model({"w": torch.zeros(1)})
    run.save_checkpoint({"step": 1, "model": {}, "optimizer": {}})
    file = run.path / name
    file.unlink(missing_ok=True)
    {"fifo": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero"), "folder": file.mkdir}[kind]()
    reads = {"config.json": lambda: RunFolder.open(run.path), "evaluation.json": run.evaluation, "skipped.csv": run.skipped}
    reads |= {"checkpoints/last.pt": run.load_checkpoint}
    with pytest.raises(ValueError, match=r"not a regular file|no config\.json"):
        reads.get(name, run.load_model)()


def test_rows_are_not_appended_through_a_link(tmp_path):
    run = make(tmp_path)
    other = tmp_path / "profile"
    other.write_text("mine")
    for name in ("metrics.jsonl", "log.txt"):
        (run.path / name).symlink_to(other)
    for write in (lambda: run.append({"step": 1}), lambda: run.log("x")):
        with pytest.raises(ValueError, match="cannot write"):
            write()
    run.drop_rows_after(1)
    assert other.read_text() == "mine"


def header_of(shape, dtype="F32", end=8):
    text = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 8


HEADERS = [
    header_of([2**40], end=2**42),
    header_of([2**62, 2**62]),
    header_of([2]),
    header_of([-1]),
    header_of([10**30]),
    header_of([2], "F9"),
]
HEADERS += [(2**60).to_bytes(8, "little") + b"{}", b"", b"\0" * 8, header_of([2**40]), header_of([0, 2**63], end=0)]


@pytest.mark.parametrize("content", HEADERS)
def test_a_model_that_declares_what_it_does_not_hold_is_one_line(tmp_path, content):
    run = make(tmp_path)
    (run.path / "model.safetensors").write_bytes(content)
    if content == header_of([2]):
        assert run.load_model()["w"].tolist() == [0, 0]
        return
    with pytest.raises(ValueError, match="damaged") as caught:
        run.load_model()
    assert "\n" not in str(caught.value)


def test_the_check_for_writing_leaves_a_folder_as_it_is(tmp_path):
    """No file of the check is ever under a name that a kill could leave behind, or that could be a file of one's own."""
    (tmp_path / "probe").write_text("mine")
    require_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["probe"] and (tmp_path / "probe").read_text() == "mine"
