"""A run outside the library: one graph as ONNX and as an exported program, a folder with a model card, neighbors with names."""

import json

import numpy as np
import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.cli.commands import main
from vergence.decide.conformal import ranked
from vergence.learn.runs import export as module
from vergence.learn.runs.export import export
from vergence.learn.runs.hub import from_pretrained, save_pretrained

pytestmark = [pytest.mark.float32, pytest.mark.filterwarnings("ignore")]  # of torch's exporters


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """A closed form on the digits."""
    with torch.random.fork_rng(devices=[]):
        return vergence.train("digits", recipe="patches", limit=600, device="cpu", out=tmp_path_factory.mktemp("p") / "run")


def computed(file, x):
    """What the graph computes, in one batch of another size than the example's."""
    if file.suffix == ".pt2":
        return [out.detach().numpy() for out in torch.export.load(file).module()(x)]
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(file.read_bytes()).run(None, {"x": x.numpy()})


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
@pytest.mark.parametrize("name", ["images", "table", pytest.param("patches", marks=pytest.mark.slow)])
def test_the_graph_agrees_with_the_library(name, ending, request, tmp_path):
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    run = request.getfixturevalue(name)
    file = tmp_path / f"x.{ending}"
    found = export(run, file)
    assert found.shape == run.folder.metadata.item_shape()
    assert found.difference <= 5e-3
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (5, *found.shape)).astype(np.uint8) if found.dtype == "uint8" else rng.normal(size=(5, *found.shape))
    x = torch.from_numpy(x if x.dtype == np.uint8 else x.astype(np.float32))
    z, score, p = computed(file, x)
    assert z.shape[0] == score.shape[0] == p.shape[0] == 5
    if name == "table":  # the others have a feature set with products in bfloat16 where that is faster
        np.testing.assert_allclose(score, run.anomaly_score(x.numpy()).numpy(), rtol=1e-3)
        np.testing.assert_allclose(z, run.embed(x.numpy()).numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(p, ranked(run.detector().calibration, score))


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_an_item_with_nan_or_infinity_is_not_judged(ending, table, tmp_path):
    if ending == "onnx":
        pytest.importorskip("onnxscript")
    export(table, tmp_path / f"x.{ending}")
    x = torch.from_numpy(np.random.default_rng(5).normal(size=(5, 5)).astype(np.float32))
    broken = x.clone()
    broken[1, 2], broken[3, 0] = torch.nan, torch.inf
    outputs = (computed(tmp_path / f"x.{ending}", items)[1:] for items in (x, broken))
    for whole, part in zip(*outputs, strict=True):
        assert np.isnan(part[[1, 3]]).all()
        np.testing.assert_array_equal(part[[0, 2, 4]], whole[[0, 2, 4]])


@pytest.mark.slow
def test_floats_are_an_input_too_and_what_does_not_fit_is_refused(images, table, tmp_path):
    found = export(images, tmp_path / "f.pt2", dtype="float32")
    assert found.dtype == "float32"
    refuses(r"the ending of x\.pkl", export, images, tmp_path / "x.pkl")
    refuses("dtype uint8 of a run on images", export, table, tmp_path / "x.pt2", dtype="uint8")
    refuses("cannot write", export, images, tmp_path / "no" / "x.pt2")
    assert not list(tmp_path.glob("x*"))


@pytest.mark.slow
def test_a_graph_that_differs_is_not_kept(images, tmp_path, monkeypatch):
    whole = module._Sets.forward
    monkeypatch.setattr(module._Sets, "forward", lambda self, s: 1.2 * whole(self, s))  # a planted error
    refuses("agrees with the library", export, images, tmp_path / "x.pt2")
    assert not (tmp_path / "x.pt2").exists()


def test_the_folder_for_others_loads_and_has_a_card(images, tmp_path):
    folder = save_pretrained(images, tmp_path / "mine")
    card = (folder / "README.md").read_text()
    assert "library_name: vergence" in card
    assert "287 items" in card
    assert not (folder / "checkpoints").exists()
    again = from_pretrained(folder)
    x = np.zeros((2, 8, 8), np.uint8)
    torch.testing.assert_close(again.anomaly_score(x), images.anomaly_score(x))
    hub = pytest.importorskip("huggingface_hub")
    assert hub.ModelCard.load(folder / "README.md").data.library_name == "vergence"
    refuses("a new folder", save_pretrained, images, folder)
    refuses("a folder, or a repository on the Hub", from_pretrained, tmp_path / "nothing here")


def test_neighbors_and_export_as_commands(images, tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "bank.npy", rng.integers(0, 256, (50, 8, 8), dtype=np.uint8))
    np.save(tmp_path / "query.npy", np.load(tmp_path / "bank.npy")[7:9])
    words = ["neighbors", str(images.folder.path), str(tmp_path / "bank.npy"), "--query", str(tmp_path / "query.npy")]
    main([*words, "--n", "3", "--out", str(tmp_path / "n.csv")])
    lines = (tmp_path / "n.csv").read_text().splitlines()
    assert lines[0] == "name,neighbor,similarity"
    assert [line.split(",")[1] for line in lines[1::3]] == ["7", "8"]
    main(["export", str(images.folder.path), "--format", "torch", "--out", str(tmp_path / "x.pt2")])
    assert "-> z, score, p_value." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["export", str(images.folder.path), "--out", str(tmp_path / "x.pt2")])
    assert "ending in .onnx" in capsys.readouterr().err
    assert json.loads((images.folder.path / "config.json").read_text())
