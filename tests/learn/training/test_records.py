"""The records of a run folder: what is written comes back, older files open, and every damaged value is one line."""

import json

import pytest
from tests.learn.training.test_folder import METADATA, make
from tests.refusals import refuses
from tests.report import fixtures_report as fixtures

from vergence.learn.training.folder import RunFolder
from vergence.learn.training.records import Evaluation, RunMetadata


def test_an_evaluation_comes_back_whole():
    found = Evaluation.from_dict(fixtures.evaluation())
    assert Evaluation.from_dict(json.loads(json.dumps(found.to_dict()))) == found and found.uncertainty is None
    assert found.representations["z"].knn[30].majority == 0.952 - 0.012 and found.anomaly.scores["joint"].fpr95 == 0.312


@pytest.mark.parametrize("wrong", [{"x": 1}, "<script>", [[]]])
def test_every_wrong_value_of_an_evaluation_is_one_line(tmp_path, wrong):
    run, record, refused = make(tmp_path), fixtures.evaluation(), 0
    paths = [path for path in fixtures.nodes(record) if isinstance(path[-1], str)]
    for path in paths:
        (run.path / "evaluation.json").write_text(json.dumps(fixtures.changed(record, path, wrong)))
        try:
            run.evaluation()
        except ValueError as error:
            assert "evaluation.json is damaged" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 0.8 * len(paths)  # text may stand for text


@pytest.mark.parametrize("name", list(METADATA.to_dict()))
@pytest.mark.parametrize("wrong", [{"x": 1}, 1.5])
def test_every_wrong_field_of_metadata_is_refused(name, wrong):
    refuses(name, RunMetadata.from_dict, {**METADATA.to_dict(), name: wrong})


def test_an_enormous_file_is_not_read(tmp_path):
    run = make(tmp_path)
    with (run.path / "config.json").open("r+") as file:
        file.truncate(1 << 40)
    refuses("expected at most", RunFolder.open, run.path)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"kind": "image", "shape": (3, 32, 32)}, 32), ({"kind": "vector", "shape": (5,)}, None),
        ({"kind": "pairs", "shape": (1, 8, 4)}, None), ({"kind": "pairs", "shape": (1, 8, 8)}, 8),
    ],
)  # fmt: skip
def test_the_crop_follows_from_kind_and_shape(settings, size):
    metadata = RunMetadata(n_train=1, n_test=1, read_shape=settings["shape"], **settings)
    assert metadata.crop_size() == size and metadata.crop_size("target") == size
