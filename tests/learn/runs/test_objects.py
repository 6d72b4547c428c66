"""`vergence.train` takes data, networks, objectives and views as a program has them."""

import csv
import dataclasses
import gc
import itertools
import shutil
import subprocess
import sys
import typing

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tests.refusals import refuses
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision.transforms import v2

import vergence
from vergence.data.config import DataConfig, ViewConfig
from vergence.learn import objectives
from vergence.learn.encoders.config import MLP
from vergence.learn.objectives.core import Objective
from vergence.learn.objectives.vicreg import VICReg
from vergence.learn.objectives.vje import VJE
from vergence.learn.runs.train import _objective
from vergence.learn.training import config as settings
from vergence.learn.training.config import FitConfig, ModelConfig, Settings

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 32, "device": "cpu", "precision": "fp32", "knn_every": 0, "threads": 1}


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).integers(0, 256, (60, 12, 12, 3)).astype(np.uint8)


class Mine(Objective):
    def __init__(self, dim, *, weight: float = 1.0):
        super().__init__()
        self.dim, self.weight = dim, weight

    def forward(self, za, zb):
        return {"distance": self.weight * (za - zb).square().mean()}


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8))


def test_a_shuffled_loader_is_read_once_and_a_stream_without_an_end_up_to_the_limit(vectors, tmp_path):
    labeled = TensorDataset(torch.from_numpy(vectors), torch.arange(200) % 2)
    run = vergence.train(DataLoader(labeled, batch_size=64, shuffle=True), **QUICK)
    assert run.folder.metadata.n_train == 128 and run.folder.metadata.classes == ("0", "1")
    straight = DataLoader(labeled, batch_size=7)
    assert torch.equal(run.embed(straight), run.embed(vectors))
    assert torch.equal(run.anomaly_score(straight), run.anomaly_score(vectors))

    class Endless(IterableDataset):
        def __iter__(self):
            return itertools.cycle(vectors)

    assert len(vergence.train(Endless(), limit=100, **QUICK).neighbors(vectors[:3]).names) == 3


def test_an_array_a_tensor_and_a_file_give_one_run(vectors, tmp_path):
    np.save(tmp_path / "x.npy", vectors)
    forms = (vectors, torch.from_numpy(vectors), tmp_path / "x.npy")
    states = [vergence.train(data, **QUICK).method.state_dict() for data in forms]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in states[0])


@pytest.mark.parametrize("form", ["images", "paths", "pairs", "dataset", "table"])
def test_data_of_every_form_train(form, vectors, images, tmp_path):
    column = ()
    if form == "images":
        data = [Image.fromarray(x) for x in images]
    elif form == "paths":
        data = [tmp_path / f"{i}.png" for i in range(60)]
        for path, x in zip(data, images, strict=True):
            Image.fromarray(x).save(path)
    elif form == "pairs":
        data = (vectors, vectors[:, :3])
    elif form == "dataset":
        data = torch.utils.data.TensorDataset(torch.from_numpy(vectors), torch.arange(200) % 2)
    else:
        data, column = pa.table(dict(zip("abcdef", vectors.T, strict=True))), ("a", "c", "f")
    images = form in ("images", "paths")
    run = vergence.train(data, column=column, **(QUICK | {"recipe": "vje_small", "encoder": MLP()} if images else QUICK))
    shapes = {"images": (3, 12, 12), "paths": (3, 64, 64), "table": (3,)}
    assert run.folder.metadata.shape == shapes.get(form, (6,))
    assert run.folder.config.data.source.startswith("memory: ")


def test_a_run_in_memory_is_saved_and_its_folder_goes_with_it(vectors, tmp_path, capsys):
    run = vergence.train(vectors, labels=np.arange(200) % 2, **QUICK)
    record = vergence.evaluate(run, probes=False)
    expected, temporary = run.anomaly_score(vectors[:5]), run.folder.path
    again = vergence.load(shutil.copytree(temporary, tmp_path / "kept"), device="cpu")
    assert torch.equal(again.anomaly_score(vectors[:5]), expected)
    refuses(r"vergence\.load\(path, data", vergence.evaluate, again, probes=False)
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
    code = f"import sys, vergence; vergence.load(sys.argv[1], trust_code={form == 'module'})"  # no import finds an object
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True)
    assert "in Python with vergence.load(" in other.stderr and "encoder=...)" in other.stderr
    again = vergence.load(tmp_path / "run", encoder=network(), device="cpu")
    assert torch.equal(again.embed(vectors[:4]), z)
    assert f": {'Sequential' if form == 'module' else 'network'}, vje," in repr(again)
    for wrong in (network().append(nn.Linear(8, 9)), nn.Linear(5, 3)):
        refuses("found .*, which does not fit", vergence.load, tmp_path / "run", encoder=wrong, device="cpu")
    refuses("a network, or a function that returns it", vergence.load, tmp_path / "run", encoder="mlp")


def test_networks_that_return_no_embeddings_are_refused(vectors):
    refuses(r"\(B, D\)", vergence.train, vectors, encoder=nn.Unflatten(1, (2, 3)), objective="vje", **QUICK)
    with pytest.raises(ValueError, match=r"a tensor of embeddings \(B, D\).* found tuple"):
        vergence.train(vectors, encoder=nn.GRU(6, 8), objective="vje", **QUICK)
    refuses("does not accept", vergence.train, vectors, encoder=nn.Linear(5, 3), objective="vje", **QUICK)


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
    refuses("or its class", vergence.load, tmp_path / "mine", objective=nn.Linear, device="cpu")
    refuses(r"D = 256.* found D = 64", vergence.train, vectors, objective=VJE(64), **QUICK)
    for criterion in (nn.Linear(2, 2), lambda za, zb: 0.0):
        with pytest.raises(ValueError, match=r"expected objective [^\n]*\nclass Mine\(Objective\):"):
            vergence.train(vectors, objective=criterion, **QUICK)


def test_an_instance_that_was_changed_is_refused_or_keeps_its_weights(vectors, tmp_path):
    changed = Mine(8)
    changed.weight = 0.01
    with pytest.raises(ValueError, match=r"as Mine\(\.\.\.\) builds it, found weight 0\.01 instead of 1\.0; give it to"):
        vergence.train(vectors, objective=changed, encoder=network, **QUICK)
    for name in objectives.names():  # what a loop of one's own changes is weights
        (used := objectives.get(name)(8))(*(z := torch.randn(2, 16, 8)).unbind())
        used.update(*z)
        _objective({"objective": used})
    frozen = VJE(8).requires_grad_(False)
    refuses("requires_grad of inference", vergence.train, vectors, objective=frozen, encoder=network, **QUICK)
    filled = VJE(256)
    for value in filled.parameters():
        value.data.fill_(0.123)
    settings = QUICK | {"lr": 1e-12, "weight_decay": 0.0}
    for seed in (0, 1):
        run = vergence.train(vectors, out=tmp_path / f"{seed}", objective=filled, seed=seed, **settings)
        assert all((value - 0.123).abs().max() < 1e-6 for value in run.method.objective.parameters())
        assert run.folder.metadata.weights.source == "objective"
    for name in ("checkpoints", "model.safetensors"):
        path = run.folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = vergence.train(vectors, out=run.folder.path, resume=True)
    assert all(torch.equal(v, run.method.state_dict()[k]) for k, v in again.method.state_dict().items())


def test_a_network_keeps_its_weights_over_seeds_or_gets_new_ones(vectors, capsys):
    net, settings = network(), QUICK | {"lr": 1e-12, "objective": "vje"}
    first, second = (vergence.train(vectors, encoder=net, seed=seed, **settings).method.encoder[1] for seed in (0, 1))
    assert capsys.readouterr().err.count("first weights are those of the module that was given, whatever the seed") == 1
    assert torch.allclose(first[1].weight, net[1].weight) and torch.allclose(second[1].weight, net[1].weight)
    new = [vergence.train(vectors, encoder=net, weights="new", seed=seed, **settings) for seed in (0, 1, 1)]
    weights = [run.method.encoder[1][1].weight for run in new]
    assert "first weights" not in capsys.readouterr().err and new[0].folder.metadata.weights.source == "random"
    assert (weights[0] - weights[1]).abs().max() > 0.01 < (weights[0] - net[1].weight).abs().max()
    assert torch.equal(weights[1], weights[2])
    plain = network()
    plain.scale = nn.Parameter(torch.ones(8))
    words = "reset_parameters for weights='new', found Sequential without; give the network's class"
    refuses(words, vergence.train, vectors, encoder=plain, weights="new", **settings)


def test_the_head_of_a_recipe_does_not_appear_in_silence(vectors, capsys):
    wide = (512, 512, 512)
    cases = [
        (VICReg(8), {}, (), 0), (VICReg(512), {}, wide, 1), ("vicreg", {}, wide, 1), ("vicreg", {"projector": (8,)}, (8,), 0),
    ]  # fmt: skip
    for objective, given, projector, told in cases:
        run = vergence.train(vectors, encoder=network, objective=objective, **given, **QUICK)
        assert run.folder.config.model.projector == projector
        assert capsys.readouterr().err.count("`projector=()` leaves it out") == told
    with pytest.raises(ValueError, match=r"D = 512, as the encoder and its head have, .*`projector=\(\)` for no head"):
        vergence.train(vectors, encoder=network, objective=VICReg(9), **QUICK)


def test_a_loop_of_ones_own_and_a_training_of_the_same_objects_are_one_model(vectors):
    encoder, objective, rows, seen = network(), VICReg(8), [], []

    def views(x, generator):
        seen.append(x)
        return x

    told = {"views": views, "on_step": lambda step, row: rows.append(row)}
    run = vergence.train(vectors, encoder=encoder, objective=objective, **told, **QUICK)
    mine, theirs = ({name: p.shape for name, p in part.named_parameters()} for part in (encoder, run.method.encoder[1]))
    assert mine == theirs and not list(run.method.projector.parameters()) and type(run.method.objective) is VICReg
    za, zb = (encoder(run.method.encoder[0](x)) for x in seen[:2])
    terms = {name: value.item() for name, value in objective(za, zb).items()}
    assert {name: rows[0][name] for name in terms} == pytest.approx(terms, rel=1e-4, abs=1e-6)


def test_two_networks_are_a_pair_and_one_that_is_shared_is_told(vectors, capsys):
    pair = (network(), nn.Sequential(nn.Linear(6, 8)))
    run = vergence.train((vectors, vectors), encoder=pair, objective=VICReg(8), **QUICK)
    assert type(run.method.target_encoder[1][0]) is nn.Linear and "share one encoder" not in capsys.readouterr().err
    vergence.train((vectors, vectors), encoder=network, objective=VICReg(8), **QUICK)
    assert "contexts and targets are of one shape and share one encoder; `target_encoder='mlp'`" in capsys.readouterr().err


def test_items_that_are_kept_apart_are_told(vectors, capsys):
    vergence.train(vectors, **QUICK)
    told = "of 200 items 40 to test and 32 to calibrate are not trained on (holdout, calibration_share)"
    assert told in capsys.readouterr().err
    vergence.train(vectors, holdout=0.3, **QUICK)
    assert "not trained on" not in capsys.readouterr().err


def test_views_are_strengths_a_transform_or_a_function(vectors, images):
    strengths = ViewConfig(noise=0.0, mask=0.5)
    assert vergence.train(vectors, views=strengths, **QUICK).folder.config.views == strengths

    def views(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    first, second = (vergence.train(vectors, views=views, **QUICK).embed(vectors[:4]) for _ in range(2))
    assert torch.equal(first, second)
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(12, antialias=True)])
    run = vergence.train(images, views=transform, objective="vje", encoder="small", **QUICK)
    assert run.folder.config.views.function is not None


@pytest.mark.parametrize(
    ("views", "word"), [(lambda x, g: x[:, :3], "shape"), (lambda x, g: x * float("nan"), "finite"), (lambda x, g: "x", "str")]
)
def test_views_are_checked_in_the_first_step(views, word, vectors):
    refuses(word, vergence.train, vectors, views=views, **QUICK)


def test_an_encoder_of_nan_is_named_in_the_first_step(vectors):
    net = network()
    nn.init.constant_(net[1].bias, torch.nan)
    refuses("NaN or infinity in the encoder's output at step 1; check the network", vergence.train, vectors, encoder=net, **QUICK)


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
    refuses("logger", vergence.train, vectors, logger="paper", **QUICK)


def test_objects_are_refused_where_processes_cannot_have_them(vectors):
    refuses("torchrun", vergence.train, vectors, objective="vje", devices=2, **QUICK)


def test_every_setting_is_a_typed_keyword():
    typed = typing.get_type_hints(Settings, {**vars(settings), "nn": nn, "Objective": Objective})
    fields = {f.name: f.type for part in (DataConfig, ViewConfig, ModelConfig, FitConfig) for f in dataclasses.fields(part)}
    wider = {"encoder", "target_encoder", "objective", "distill", "options", "root", "weights", "init", "kind"}
    assert set(typed) == set(fields) - {"source", "function"}
    same = set(typed) - wider
    assert {name: typed[name] for name in same} == {name: fields[name] for name in same}
