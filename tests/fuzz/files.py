"""The readers: every file that the library reads, changed, goes through every function that reads it."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from tests.fuzz import mutations
from tests.fuzz.judge import pack, unpack
from tests.fuzz.place import MODELS, state_bytes

import vergence
from vergence import mixtures
from vergence.data.arrays import read_for_model, read_pairs
from vergence.data.config import DataConfig
from vergence.data.images import header
from vergence.data.sources import open_data, open_items
from vergence.learn.encoders.pretrained import load_weights, read_weights
from vergence.learn.runs.detector import FILE as DETECTOR
from vergence.learn.runs.evaluate import _with_state
from vergence.learn.runs.page import write_report
from vergence.learn.runs.run import load
from vergence.learn.runs.score import Calibration
from vergence.learn.training.folder import RunFolder

__all__ = ["TARGETS"]


class Target:
    """A reader and what it is given.

    Attributes:
        name: Name of the target.
        share: Weight of the target in the number of cases.
        strategy: Function of a `Place` that returns a strategy of cases.
        run: Runs a case.
        one_line: Whether a refusal has to be one line.
    """

    def __init__(self, name, share, strategy, run, one_line=True):
        self.name, self.share, self.strategy, self.run, self.one_line = name, share, strategy, run, one_line


def _all(*calls):
    """Calls every function; raises a refusal if all of them refuse."""
    refusals = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            refusals.append(error)
    if len(refusals) == len(calls):
        raise refusals[0]


def _run_file(name, share, strategy, *calls):
    """A target of a file of the run folder; calls take the run folder's path."""

    def cases(place):
        return strategy(place).map(pack)

    def run(case, place):
        with place.replaced(place.run, name, unpack(case)):
            _all(*((lambda c=c: c(place.run)) for c in calls))

    return Target(f"run-{name.rpartition('/')[2]}", share, cases, run)


def _load(run):
    load(run, device="cpu").posterior(np.zeros((2, 6), "f4"))


def _metrics(run):
    RunFolder.open(run).metrics()


def _of_json(name):
    return lambda place: mutations.json_bytes(place.json(name))


def _of_bytes(name):
    return lambda place: mutations.damaged((place.run / name).read_bytes())


def _of_rows(place):
    rows = [json.loads(line) for line in (place.run / "metrics.jsonl").read_text().splitlines()]
    return mutations.json_lines(rows * 3)


def _of_examples(place):
    with np.load(place.run / "examples.npz") as archive:
        layout = {name: mutations.usual([x.shape], [x.dtype.str]) for name, x in archive.items()}
    return _of_bytes("examples.npz")(place) | mutations.npz_bytes([layout])


def _of_tensors(place, name="run/model.safetensors"):
    """Tensors of a file: damaged bytes, or tensors left out, of other shapes or types, or not finite."""
    data = (place.path / name).read_bytes()
    return mutations.damaged(data) | _tensors(load_tensors(data))


@st.composite
def _tensors(draw, tensors, metadata=None):
    changed = dict(tensors)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(tensors)))
        how = draw(st.sampled_from(["drop", "rename", "array", "nan"]))
        array = changed.pop(name, tensors[name])
        if how == "rename":
            changed[name + "x"] = array
        elif how == "array":
            changed[name] = mutations.build(draw(mutations.arrays([array.shape], dtypes=["<f4", "<f8", "<i8", "|u1", "|b1"])))
        elif how == "nan" and array.dtype.kind == "f":
            changed[name] = np.full_like(array, draw(st.sampled_from([np.nan, np.inf, 0, 1e30, -1])))
    return save_tensors({k: np.array(v, order="C") for k, v in changed.items()}, metadata)


@st.composite
def _of_detector(draw, place):
    """The detector: damaged bytes, other arrays, or an edited record."""
    data = (place.run / DETECTOR).read_bytes()
    how = draw(st.sampled_from(["bytes", "arrays", "arrays", "record", "record", "record"]))
    if how == "bytes":
        return draw(mutations.damaged(data))
    length = int.from_bytes(data[:8], "little")
    record = json.loads(data[8 : 8 + length])["__metadata__"]["record"]
    if how == "arrays":
        return draw(_tensors(load_tensors(data), {"record": record}))
    edited = draw(mutations.json_bytes(json.loads(record))).decode("utf-8", "replace")
    return save_tensors(load_tensors(data), {"record": edited})


def _score(path):
    run = load(path, device="cpu")
    scores = run.anomaly_score(np.zeros((2, 6), "f4"))
    assert not scores.isnan().any(), "scores that are not numbers"
    out = path.parent / "scores.npz"
    vergence.score(str(path.parent / "data.npy"), Calibration(run, workers=0), out)
    with np.load(out) as found:
        p = found["p_value"]
        assert ((p > 0) & (p <= 1)).all(), "p-values out of (0, 1]"


def _before_training(path):
    """Uses the tensors before the first step as `evaluate` does."""
    run = load(path, device="cpu")
    initial = run.folder.load_initial()
    with torch.inference_mode():
        _with_state(run, initial)(torch.zeros(2, 6))


@st.composite
def _checkpoints(draw, place):
    """The last checkpoint: damaged bytes, or a part left out, renamed or of another type."""
    data = (place.run / "checkpoints" / "last.pt").read_bytes()
    if draw(st.booleans()):
        return draw(mutations.damaged(data))
    state = torch.load(place.run / "checkpoints" / "last.pt", weights_only=True)
    for _ in range(draw(st.integers(1, 2))):
        tree = state
        key = draw(st.sampled_from(sorted(map(str, tree))))
        if key in tree and isinstance(tree[key], dict) and tree[key] and draw(st.booleans()):
            tree = tree[key]
            key = draw(st.sampled_from(list(tree)))
        how = draw(st.sampled_from(["drop", "value", "tensor"]))
        if how == "drop":
            tree.pop(key, None)
        else:
            tree[key] = draw(mutations.values) if how == "value" else torch.zeros(draw(st.sampled_from([(), (1,), (3, 2), (0,)])))
    return state_bytes(state)


def _resume(case, place):
    """Resumes a copy of a finished run from a changed checkpoint: its last step is done, so that little is computed."""
    with place.scratch() as folder:
        run = Path(shutil.copytree(place.run, folder / "run"))
        (run / "checksums.json").unlink()
        (run / "checkpoints" / "last.pt").write_bytes(unpack(case))
        RunFolder.open(run).load_checkpoint()
        vergence.train(out=run, resume=True)


def _file(name, share, strategy, run):
    """A target of a file with an ending of its own, written into a scratch folder."""

    def written(case, place):
        with place.scratch() as folder:
            file = folder / f"x{name[name.index('.') :]}"
            file.write_bytes(unpack(case))
            run(file, place)

    return Target(name.replace(".", "-"), share, lambda place: strategy(place).map(pack), written)


def _arrays(file, place):
    _all(
        lambda: _read_data(file),
        lambda: place.loaded.anomaly_score(str(file)),
        lambda: read_pairs(file),
        lambda: read_for_model(file, ([], []), paired=False),
    )


def _read_data(file):
    data = open_data(DataConfig(source=str(file)), workers=0)
    list(data.train.stream([torch.arange(min(2, len(data.train)))]))


def _table(file, place):
    _all(lambda: _read_data(file), lambda: place.loaded.anomaly_score(str(file)))


def _csv(file, place):
    _all(lambda: read_pairs(file, ["y"]), lambda: read_for_model(file, (["a", "b"], ["y"]), paired=False))


def _image(file, place):
    header(file)
    _all(
        lambda: open_items(str(file.parent), shape=(1, 8, 8)).read(torch.tensor([0])),
        lambda: place.loaded_images.anomaly_score(str(file.parent)),
    )


def _images(*names):
    return lambda place: st.sampled_from(names).flatmap(lambda name: mutations.damaged((place.path / name).read_bytes()))


@st.composite
def _densities(draw, place):
    """A density's file: damaged bytes, other arrays, or an edited header."""
    data = (place.path / f"{draw(st.sampled_from(sorted(MODELS)))}.safetensors").read_bytes()
    how = draw(st.sampled_from(["bytes", "arrays", "header", "header"]))
    if how == "bytes":
        return draw(mutations.damaged(data))
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])["__metadata__"]
    if how == "arrays":
        return draw(_tensors(load_tensors(data), head))
    edited = draw(mutations.json_bytes(json.loads(head["estimator"])).filter(_is_object))
    return save_tensors(load_tensors(data), {"estimator": edited.decode("utf-8", "replace")})


def _is_object(data):
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _density(file, place):
    model = mixtures.load(file)
    contexts = np.zeros((2, 2))
    _all(
        lambda: model.predict(contexts),
        lambda: model.sample(contexts, 2),
        lambda: model.score_samples(contexts, np.zeros((2, 2))),
        lambda: model.intervals(contexts),
    )


def _weights(file, place):
    load_weights(place.network(), read_weights(file), file.name)


TARGETS = [
    _run_file("config.json", 8, _of_json("config.json"), _load, write_report),
    _run_file("evaluation.json", 5, _of_json("evaluation.json"), lambda run: RunFolder.open(run).evaluation(), write_report),
    _run_file("metrics.jsonl", 5, _of_rows, _metrics, write_report), _run_file("examples.npz", 3, _of_examples, write_report),
    _run_file("skipped.csv", 2, lambda place: mutations.csv_bytes(), lambda run: RunFolder.open(run).skipped(), write_report),
    _run_file("checksums.json", 2, _of_json("checksums.json"), _load), _run_file("model.safetensors", 6, _of_tensors, _load),
    _run_file("initial.safetensors", 2, _of_tensors, _before_training), _run_file(DETECTOR, 3, _of_detector, _score),
    Target("run-last.pt", 5, lambda place: _checkpoints(place).map(pack), _resume),
    _file("data.npz", 8, lambda place: mutations.npz_bytes(), _arrays),
    _file("data.npy", 8, lambda place: mutations.npy_bytes(), _arrays),
    _file("table.csv", 8, lambda place: mutations.csv_bytes(), _csv),
    _file("picture.png", 5, _images("b.png", "c.png", "photos/0.png"), _image),
    _file("picture.jpg", 5, _images("a.jpg", "d.jpg"), _image),
    _file("weights.pth", 4, lambda place: mutations.damaged((place.path / "weights.pth").read_bytes()), _weights),
    _file("weights.safetensors", 4, lambda place: _of_tensors(place, "weights.safetensors"), _weights),
    _file("density.safetensors", 8, _densities, _density),
    _file("table.parquet", 4, lambda place: mutations.damaged((place.path / "table.parquet").read_bytes()), _table),
]  # fmt: skip
