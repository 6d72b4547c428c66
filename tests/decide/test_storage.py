"""Detectors come back from files as they were, and nothing else does."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tests.refusals import refuses

from vergence.decide import Detector, GaussianDetector, MixtureDetector, NeighborDetector
from vergence.mixtures import GaussianMixture

X = np.random.default_rng(0).normal(size=(200, 5))
ALL = [GaussianDetector(), MixtureDetector(), NeighborDetector(metric="cosine")]


@pytest.mark.parametrize("detector", ALL, ids=lambda v: type(v).__name__)
def test_a_file_gives_the_same_scores(detector, tmp_path):
    detector.fit(X).save(tmp_path / "d.safetensors")
    again = Detector.load(tmp_path / "d.safetensors")
    assert (again.score_samples(X) == detector.score_samples(X)).all()
    assert (again.predict(X) == detector.predict(X)).all()
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "d.safetensors").read_bytes()


def changed(path, change):
    """Writes the file with other metadata or arrays."""
    with safe_open(path, framework="numpy") as file:
        head = json.loads(file.metadata()["estimator"])
    arrays = load_file(path)
    change(head, arrays)
    save_file(arrays, path, metadata={"estimator": head["text"] if "text" in head else json.dumps(head)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head, arrays: arrays.pop("root_"), "an array root_"),
        (lambda head, arrays: arrays.update(root_=arrays["root_"][:2]), "damage"),
        (lambda head, arrays: arrays.update(root_=arrays["root_"] * np.nan), "NaN or infinity in root_"),
        (lambda head, arrays: head.update({"class": "os.system"}), "an estimator among"),
        (lambda head, arrays: head.update({"class": "GaussianDetektor"}), "did you mean 'GaussianDetector'"),
        (lambda head, arrays: head.update(format=99), "format 99"),
        (lambda head, arrays: head.update(text="[" * 100_000), "damaged"),
        (lambda head, arrays: head.update(state=[]), "damage"),
        (lambda head, arrays: head["state"].update(fit=1), "own 'fit'"),
        (lambda head, arrays: head["state"].update(score_samples_={"array": "nothing"}), "an array nothing"),
        (lambda head, arrays: head["state"].pop("offset_"), "offset_"),
        (lambda head, arrays: head["settings"].update(shell="rm"), "found shell"),
        (lambda head, arrays: head["settings"].update(trim={"more": 1}), "an array, list or dictionary"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(change, message, tmp_path):
    path = tmp_path / "d.safetensors"
    GaussianDetector().fit(X).save(path)
    changed(path, change)
    refuses(message, Detector.load, path)


def test_files_of_other_estimators_and_settings_that_are_no_data_are_refused(tmp_path):
    GaussianMixture(2).fit(X).save(tmp_path / "m.safetensors")
    refuses("GaussianMixture", Detector.load, tmp_path / "m.safetensors")
    refuses("no file", Detector.load, tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="found a Generator"):
        detector = MixtureDetector(2, random_state=0).fit(X).set_params(random_state=np.random.default_rng(0))
        detector.save(tmp_path / "x.safetensors")
    refuses("not fitted", GaussianDetector().save, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()
