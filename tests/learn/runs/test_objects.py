"""`vergence.train` takes data, networks, objectives and views as a program has them."""

import csv
import dataclasses
import gc
import shutil
import subprocess
import sys
import typing

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

import vergence
from vergence.data.config import DataConfig, ViewConfig
from vergence.learn.encoders.config import MLP
from vergence.learn.objectives.core import Objective
from vergence.learn.objectives.vje import VJE
from vergence.learn.training import config as settings
from vergence.learn.training.config import FitConfig, ModelConfig, Settings

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 32, "device": "cpu", "precision": "fp32", "knn_every": 0, "threads": 1}


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def pictures():
    return np.random.default_rng(1).integers(0, 256, (60, 12, 12, 3)).astype(np.uint8)


class Mine(Objective):
    def __init__(self, dim, *, weight: float = 1.0):
        super().__init__()
        self.dim, self.weight = dim, weight

    def forward(self, za, zb):
        return {"distance": self.weight * (za - zb).square().mean()}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8))


def test_an_array_a_tensor_and_a_file_give_one_run(vectors, tmp_path):
    np.save(tmp_path / "x.npy", vectors)
    states = [
        vergence.train(data, **QUICK).method.state_dict() for data in (vectors, torch.from_numpy(vectors), tmp_path / "x.npy")
    ]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in states[0])


@pytest.mark.parametrize("form", ["pictures", "paths", "pairs", "dataset", "table"])
def test_data_of_every_form_train(form, vectors, pictures, tmp_path):
    column = ()
    if form == "pictures":
        data = [Image.fromarray(x) for x in pictures]
    elif form == "paths":
        data = [tmp_path / f"{i}.png" for i in range(60)]
        for path, x in zip(data, pictures, strict=True):
            Image.fromarray(x).save(path)
    elif form == "pairs":
        data = (vectors, vectors[:, :3])
    elif form == "dataset":
        data = torch.utils.data.TensorDataset(torch.from_numpy(vectors), torch.arange(200) % 2)
    else:
        data, column = pa.table(dict(zip("abcdef", vectors.T, strict=True))), ("a", "c", "f")
    images = form in ("pictures", "paths")
    run = vergence.train(data, column=column, **(QUICK | {"recipe": "vje_small", "encoder": MLP()} if images else QUICK))
    shapes = {"pictures": (3, 12, 12), "paths": (3, 64, 64), "table": (3,)}
    assert run.folder.metadata.shape == shapes.get(form, (6,))
    assert run.folder.config.data.source.startswith("memory: ")


def test_a_run_in_memory_is_saved_and_its_folder_goes_with_it(vectors, tmp_path, capsys):
    run = vergence.train(vectors, labels=np.arange(200) % 2, **QUICK)
    record = vergence.evaluate(run, probes=False)
    expected, temporary = run.anomaly_score(vectors[:5]), run.folder.path
    again = vergence.load(shutil.copytree(temporary, tmp_path / "kept"), device="cpu")
    assert torch.equal(again.anomaly_score(vectors[:5]), expected)
    with pytest.raises(ValueError, match=r"vergence\.load\(path, data"):
        vergence.evaluate(again, probes=False)
    whole = vergence.load(tmp_path / "kept", device="cpu", data=vectors, labels=np.arange(200) % 2)
    capsys.readouterr()
    assert vergence.evaluate(whole, probes=False).representations == record.representations
    assert "does not know" not in capsys.readouterr().err and str(record).startswith("representation  kind")
    others = vergence.load(tmp_path / "kept", device="cpu", data=vectors / 2, labels=np.arange(200) % 2)
    vergence.evaluate(others, probes=False)
    assert "the run does not know 100 of 100 training items" in capsys.readouterr().err
    del run
    gc.collect()
    assert not temporary.exists()


@pytest.mark.parametrize("form", ["module", "factory"])
def test_a_network_of_ones_own(form, vectors, tmp_path):
    net = network()
    before = net[1].weight.clone()
    run = vergence.train(vectors, out=tmp_path / "run", encoder=net if form == "module" else network, objective="vje", **QUICK)
    assert torch.equal(net[1].weight, before), "a copy is trained"
    z = run.embed(vectors[:4])
    assert z.shape == (4, 8)
    code = "import sys, vergence; vergence.load(sys.argv[1])"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert "vergence.load(" in other.stderr and "encoder=...)" in other.stderr
    again = vergence.load(tmp_path / "run", encoder=network(), device="cpu")
    assert torch.equal(again.embed(vectors[:4]), z)
    with pytest.raises(ValueError, match="does not fit"):
        vergence.load(tmp_path / "run", encoder=nn.Sequential(nn.Flatten(), nn.Linear(6, 9)), device="cpu")


def test_networks_that_return_no_embeddings_are_refused(vectors):
    with pytest.raises(ValueError, match=r"\(B, D\)"):
        vergence.train(vectors, encoder=nn.Unflatten(1, (2, 3)), objective="vje", **QUICK)
    with pytest.raises(ValueError, match=r"a tensor of embeddings \(B, D\).* found tuple"):
        vergence.train(vectors, encoder=nn.GRU(6, 8), objective="vje", **QUICK)
    with pytest.raises(ValueError, match="does not accept"):
        vergence.train(vectors, encoder=nn.Linear(5, 3), objective="vje", **QUICK)


def test_objectives_are_classes_and_instances(vectors, tmp_path):
    instance = vergence.train(vectors, objective=VJE(256, nu=1.0), **QUICK)
    named = vergence.train(vectors, objective="vje", options={"nu": 1.0}, **QUICK)
    assert (instance.folder.config.model.objective, instance.folder.config.model.options) == ("vje", {"nu": 1.0})
    assert all(torch.equal(v, named.method.state_dict()[k]) for k, v in instance.method.state_dict().items())
    assert vergence.train(vectors, objective=VJE, **QUICK).folder.config.model.objective == "vje"
    run = vergence.train(vectors, out=tmp_path / "mine", objective=Mine(256, weight=2.0), **QUICK)
    assert isinstance(run.method.objective, Mine) and run.method.objective.weight == 2
    for given in (Mine, Mine(256)):
        assert vergence.load(tmp_path / "mine", objective=given, device="cpu").method.objective.weight == 2
    with pytest.raises(ValueError, match="or its class"):
        vergence.load(tmp_path / "mine", objective=nn.Linear, device="cpu")
    with pytest.raises(ValueError, match=r"D = 256.* found D = 64"):
        vergence.train(vectors, objective=VJE(64), **QUICK)
    with pytest.raises(ValueError, match="expected objective"):
        vergence.train(vectors, objective=nn.Linear(2, 2), **QUICK)


def test_views_are_strengths_a_transform_or_a_function(vectors, pictures):
    strengths = ViewConfig(noise=0.0, mask=0.5)
    assert vergence.train(vectors, views=strengths, **QUICK).folder.config.views == strengths

    def views(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    first, second = (vergence.train(vectors, views=views, **QUICK).embed(vectors[:4]) for _ in range(2))
    assert torch.equal(first, second)
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(12, antialias=True)])
    run = vergence.train(pictures, views=transform, objective="vje", encoder="small", **QUICK)
    assert run.folder.config.views.function is not None


@pytest.mark.parametrize(
    ("views", "word"), [(lambda x, g: x[:, :3], "shape"), (lambda x, g: x * float("nan"), "finite"), (lambda x, g: "x", "str")]
)
def test_views_are_checked_in_the_first_step(views, word, vectors):
    with pytest.raises(ValueError, match=word):
        vergence.train(vectors, views=views, **QUICK)


def test_loggers_and_functions_hear_of_the_training(vectors, tmp_path):
    steps, epochs, logged = [], [], []

    class Logger:
        def log_metrics(self, metrics, step):
            logged.append((step, metrics["loss"]))

    told = {"on_step": lambda step, row: steps.append(step), "on_epoch": lambda epoch, row: epochs.append((epoch, row["loss"]))}
    run = vergence.train(vectors, objective="vje", logger=Logger(), **told, **(QUICK | {"epochs": 2}))
    rows = [row for row in run.folder.metrics() if "loss" in row]
    assert steps == list(range(1, rows[-1]["step"] + 1)) and [n for n, _ in epochs] == [1, 2]
    assert logged == [(row["step"], row["loss"]) for row in rows]
    vergence.train(vectors, out=tmp_path / "run", objective="vje", logger="csv", **QUICK)
    with (tmp_path / "run" / "logs" / "metrics.csv").open() as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == pytest.approx([rows[0]["loss"]], rel=1)
    with pytest.raises(ValueError, match="logger"):
        vergence.train(vectors, logger="paper", **QUICK)


def test_objects_are_refused_where_processes_cannot_have_them(vectors):
    with pytest.raises(ValueError, match="torchrun"):
        vergence.train(vectors, objective="vje", devices=2, **QUICK)


def test_every_setting_is_a_typed_keyword():
    typed = typing.get_type_hints(Settings, {**vars(settings), "nn": nn, "Objective": Objective})
    fields = {f.name: f.type for part in (DataConfig, ViewConfig, ModelConfig, FitConfig) for f in dataclasses.fields(part)}
    wider = {"encoder", "target_encoder", "objective", "distill", "options", "root", "weights", "init", "kind"}
    assert set(typed) == set(fields) - {"source", "function"}
    assert {name: typed[name] for name in typed if name not in wider} == {
        name: fields[name] for name in typed if name not in wider
    }
