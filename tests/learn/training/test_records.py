"""The records of a run folder: what is written comes back, older files open, and every damaged value is one line."""

import copy
import json

import pytest
from tests.learn.training.test_folder import METADATA, make

from vergence.learn.training.folder import RunFolder
from vergence.learn.training.records import Evaluation, RunMetadata

REPRESENTATION = {
    "kind": "model",
    "dim": 8,
    "collapse": {"std": 0.9, "std_min": 0.5, "effective_rank": 3.0, "norm": 2},
    "knn": {"1": {"majority": 0.5, "weighted": 0.6}, "30": {"majority": 0.7, "weighted": 0.8}},
    "probe": {"accuracy": 0.9, "train_accuracy": 1.0, "iterations": 7, "converged": True},
    "ridge": 0.8,
}
EVALUATION = {
    "protocol": {"bank": 9, "test": 3, "epoch": 2, "seed": 0, "note": "last epoch", "seconds": 1.5, "objective": "vje"},
    "representations": {"z": REPRESENTATION, "pixels": {**REPRESENTATION, "kind": "baseline", "knn": None, "probe": None}},
    "posterior": {"variance_mean": 0.3, "variance_cv": 0.7, "norm_z": 1.0, "norm_mu": 0.5, "entropy": -3.0},
    "anomaly": {
        "inliers": ["a"],
        "anomalies": ["b"],
        "n_inliers": 2,
        "n_anomalies": 1,
        "scores": {"joint": {"kind": "model", "auroc": 0.9, "aupr": 0.8, "fpr95": 0.1}},
    },
}


def places(record, path=()):
    """Yields the path of every value, containers included."""
    for key, value in record.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def changed(record, path, value):
    record = copy.deepcopy(record)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return record


def test_an_evaluation_comes_back_whole():
    found = Evaluation.from_dict(EVALUATION)
    assert found.to_dict() == {**EVALUATION, "uncertainty": None}
    assert found.representations["z"].knn[30].majority == 0.7 and found.anomaly.scores["joint"].fpr95 == 0.1


@pytest.mark.parametrize("wrong", [{"x": 1}, "<script>", [[]]])
def test_every_wrong_value_of_an_evaluation_is_one_line(tmp_path, wrong):
    run, refused = make(tmp_path), 0
    for path in places(EVALUATION):
        (run.path / "evaluation.json").write_text(json.dumps(changed(EVALUATION, path, wrong)))
        try:
            run.evaluation()
        except ValueError as error:
            assert "evaluation.json is damaged" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > len(list(places(EVALUATION))) * 0.8  # text may stand for text


@pytest.mark.parametrize("name", list(METADATA.to_dict()))
@pytest.mark.parametrize("wrong", [{"x": 1}, 1.5])
def test_every_wrong_field_of_metadata_is_refused(name, wrong):
    with pytest.raises(ValueError, match=name):
        RunMetadata.from_dict({**METADATA.to_dict(), name: wrong})


def test_an_enormous_file_is_not_read(tmp_path):
    run = make(tmp_path)
    with (run.path / "config.json").open("r+") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="expected at most"):
        RunFolder.open(run.path)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"kind": "image", "shape": (3, 32, 32)}, 32),
        ({"kind": "vector", "shape": (5,)}, None),
        ({"kind": "pairs", "shape": (1, 8, 4)}, None),
        ({"kind": "pairs", "shape": (1, 8, 8)}, 8),
    ],
)
def test_the_crop_follows_from_kind_and_shape(settings, size):
    metadata = RunMetadata(n_train=1, n_test=1, read_shape=settings["shape"], **settings)
    assert metadata.crop_size() == size and metadata.crop_size("target") == size
