"""What the hostile cases found, each in a few lines."""

import json
import re
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from vergence import linear, mixtures
from vergence.data.config import DataConfig
from vergence.data.items import batches
from vergence.data.sources import open_data
from vergence.report.reading import _examples, _part
from vergence.training.folder import RunFolder
from vergence.utils.devices import as_device


def refused(call, match):
    with pytest.raises(ValueError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def density(tmp_path_factory):
    """The bytes of a density's file: (header, tensors)."""
    file = tmp_path_factory.mktemp("density") / "m.safetensors"
    x = np.random.default_rng(0).normal(size=(40, 4))
    mixtures.get("gaussian")().fit(x[:, :2], x[:, 2:]).save(file)
    data = file.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"], load_tensors(data)


def write(path, head, tensors):
    file = path / "m.safetensors"
    file.write_bytes(save_tensors(tensors, head))
    return file


@pytest.mark.parametrize("part", ["settings", "state"])
@pytest.mark.parametrize("text", ["[]", "null", "x", "[" * 5000])
def test_a_density_file_whose_header_is_no_object(tmp_path, density, part, text):
    head, tensors = density
    refused(lambda: mixtures.load(write(tmp_path, {**head, part: text}, tensors)), "JSON objects")


def test_a_density_file_without_a_part_of_its_state(tmp_path, density):
    head, tensors = density
    for name in ("means_", "cholesky_"):
        rest = {key: value for key, value in tensors.items() if key != name}
        refused(lambda rest=rest: mixtures.load(write(tmp_path, head, rest)), "found damage")
    state = json.loads(head["state"])
    for name in ("n_targets_", "n_features_in_"):
        less = json.dumps({key: value for key, value in state.items() if key != name})
        refused(lambda less=less: mixtures.load(write(tmp_path, {**head, "state": less}, tensors)), "found damage")
    assert mixtures.load(write(tmp_path, head, tensors)).n_targets_ == 2


def test_a_density_file_whose_format_has_two_lines(tmp_path, density):
    head, tensors = density
    refused(lambda: mixtures.load(write(tmp_path, {**head, "format": "a\nb"}, tensors)), r"found format 'a\\nb'")


def test_tables_of_records_and_parts_of_two_types(tmp_path):
    refused(lambda: linear.advise(np.zeros((40, 6), "f4,i4")), "convert it")
    refused(lambda: linear.advise(np.zeros((40, 3, 4, 4), "f4,i4")), "convert it")
    y = np.zeros(4, "i8")
    for dates in (y.astype("M8[s]"), y.astype("U3")):
        np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 2)), x_test=np.zeros((4, 2)), y_train=y, y_test=dates)
        refused(lambda: open_data(DataConfig(source=str(tmp_path / "x.npz"))), "of one type")


def test_a_device_that_is_no_text():
    for name in (1.5, [], None):
        refused(lambda name=name: as_device(name), "expected a device")


def test_targets_that_are_one_value_or_records():
    model, x = mixtures.get("gaussian")(), np.zeros((3, 2))
    refused(lambda: model.fit(x, np.array(2.0)), "single value")
    refused(lambda: model.fit(x, np.zeros(3, "f4,i4")), "convert it")
    refused(lambda: model.fit(np.zeros((3, 2), "M8[s]"), x), "convert it")


def test_settings_of_linear_models():
    x = np.random.default_rng(0).normal(size=(40, 3))
    refused(lambda: linear.Reconstruction(center=None).fit(x), "center")
    refused(lambda: linear.Reconstruction().fit(np.zeros((3, 6), "f4,i4")), "convert it")
    for state in (float("inf"), [1], -1):
        refused(lambda state=state: linear.Reconstruction(random_state=state).fit(x), "random_state")
    noise = lambda x, g: x + torch.randn(x.shape, generator=g, dtype=x.dtype)  # noqa: E731
    refused(lambda: linear.JointEmbedding(augmentation=noise, n_draws="a").fit(x), "n_draws")


def test_targets_of_linear_models_that_are_records_or_complex():
    x = np.random.default_rng(0).normal(size=(40, 3))
    for targets in (np.zeros(shape, kind) for kind in ("f4,i4", "c8", "M8[s]") for shape in (40, (40, 2))):
        refused(lambda y=targets: linear.Supervised(augmentation=0.1).fit(x, y), "convert them")


def test_arguments_of_advise():
    x = np.random.default_rng(0).normal(size=(130, 3))
    refused(lambda: linear.advise(x, 0.1, directions={}), "directions")
    refused(lambda: linear.advise(x, 0.1, n_draws="a"), "n_draws")
    refused(lambda: linear.advise(x, 0.1, random_state=-1), "random_state")
    refused(lambda: linear.advise(x, 0.1, labels=np.zeros(130, "f4,i4")), "labels")


def test_batches_of_no_size():
    for size in (-1, 0, 2.5):
        refused(lambda size=size: list(batches(5, size)), re.escape(f"found {size}"))


def test_a_checkpoint_that_ends_its_pickle_early(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, None, None)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.pt").write_bytes(b"Q" + bytes(50))  # an instruction that takes from an empty stack
    refused(folder.load_checkpoint, "is damaged")


def test_examples_whose_header_ends_early(tmp_path):
    file, notes = tmp_path / "examples.npz", []
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00\x0a\x00{'descr': \n")
    assert _part(file, _examples, notes) is None
    assert notes == ["examples.npz is damaged and left out (('EOF in multi-line statement', (2, 0)))."]
