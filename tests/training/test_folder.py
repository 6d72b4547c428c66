import json

import pytest
import torch

from vergence.data.config import DataConfig
from vergence.training.config import ModelConfig, RunConfig
from vergence.training.folder import FORMAT, RunFolder
from vergence.utils.version import __version__

CONFIG = RunConfig(data=DataConfig(source="digits", keep_classes=(1, 2)), model=ModelConfig(options={"nu": float("inf")}))


def make(tmp_path):
    return RunFolder.create(tmp_path / "run", CONFIG, {"n_train": 3})


def test_config_comes_back_whole_with_tuples_and_infinities(tmp_path):
    make(tmp_path)
    found = RunFolder.open(tmp_path / "run")
    assert found.config == CONFIG and found.facts == {"n_train": 3}
    json.loads((tmp_path / "run" / "config.json").read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_an_existing_run_is_not_overwritten(tmp_path):
    make(tmp_path)
    with pytest.raises(ValueError, match="already holds a run"):
        make(tmp_path)


def test_checkpoints_come_back_bit_for_bit(tmp_path):
    run = make(tmp_path)
    assert run.load_checkpoint() is None
    state = {"model": {"w": torch.randn(3, 4)}, "step": 7}
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
    with pytest.raises(ValueError, match="damaged"):
        run.load_checkpoint()
    assert "code ran" not in capsys.readouterr().out


def test_metrics_survive_a_half_written_line(tmp_path):
    run = make(tmp_path)
    run.append({"step": 1, "loss": 2.0})
    run.append({"step": 2, "loss": float("nan")})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert run.metrics() == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]
    run.forget_after(1)
    run.append({"step": 2, "loss": 1.0})
    assert [r["step"] for r in run.metrics()] == [1, 2]


def damage(run, **changes):
    file = run.path / "config.json"
    record = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in record.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": FORMAT + 1, "vergence": "99.0"}, "written by vergence 99.0"),
        ({"facts": None}, "damaged"),
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
    run.save_checkpoint({"step": 1, "model": {"w": torch.randn(100)}})
    file = run.path / name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        run.load_model() if "model" in name else run.load_checkpoint()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write"):
        RunFolder.create(tmp_path / "file" / "run", CONFIG, {})


def test_version_is_written(tmp_path):
    record = json.loads((make(tmp_path).path / "config.json").read_text())
    assert record["vergence"] == __version__ and record["format"] == FORMAT
