"""Jobs over many items that die, are stopped or meet a full disk: the same command goes on and writes the same bytes."""

import contextlib
import re
import resource
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tests.dying import dies_at

import vergence
from vergence import mixtures
from vergence.data.arrays import Pairs
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.score import Calibration
from vergence.tables import models as density

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 192, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("resuming")
    with torch.random.fork_rng():
        vergence.train("digits", out=out / "run", objective="gje", projector=(8,), **QUICK)
    rng = np.random.default_rng(0)
    np.save(out / "images.npy", rng.integers(0, 256, (12_000, 8, 8, 1), dtype=np.uint8))
    return out


def test_a_folder_with_unreadable_files_goes_on(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vergence.utils.parts.MAX_BYTES", 1000)
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for i in range(60):
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(photos / f"{i:02}.png")
    for i in (3, 21, 22, 23, 50):
        (photos / f"{i:02}.png").write_bytes(b"no image")
    (photos / "zz.png").symlink_to(photos / "05.png")
    run = vergence.load(folder / "run", device="cpu")
    whole, out = tmp_path / "whole.csv", tmp_path / "o.csv"
    assert write_embeddings(run, photos, whole, batch_size=4) == 55
    dies_at(9, type(run.method.encoder), "forward", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_embeddings(run, photos, out, batch_size=4, workers=0)
    assert not out.exists() and not out.with_name("o.csv.skipped.csv").exists()
    assert write_embeddings(run, photos, out, batch_size=4, workers=2) == 55
    assert "continuing after" in capsys.readouterr().err
    assert out.read_bytes() == whole.read_bytes()
    listings = [(tmp_path / f"{name}.csv.skipped.csv").read_text() for name in ("o", "whole")]
    assert listings[0] == listings[1] and listings[0].count("\n") == 7


@pytest.mark.slow
@pytest.mark.parametrize("change", ["file", "model", "setting", "verb"])
def test_parts_of_other_data_or_another_model_are_not_used(folder, tmp_path, monkeypatch, capsys, change):
    monkeypatch.setattr("vergence.utils.parts.MAX_BYTES", 1000)
    source, out = tmp_path / "x.npy", tmp_path / "o.csv"
    x = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), dtype=np.uint8)
    np.save(source, x)
    run = vergence.load(folder / "run", device="cpu")
    dies_at(20, type(run.method.encoder), "forward", monkeypatch, ValueError("stop"))
    with pytest.raises(ValueError, match="stop"):
        write_embeddings(run, source, out, batch_size=2)
    assert (tmp_path / ".o.csv.parts").is_dir()
    capsys.readouterr()
    batch_size = 2
    if change == "file":
        np.save(source, x[::-1])
    elif change == "model":
        with torch.no_grad():
            next(run.method.encoder.parameters()).mul_(1.5)
    elif change == "setting":
        batch_size = 4

    def write(out):
        if change == "verb":
            vergence.score(source, Calibration(run, batch_size=batch_size), out)
        else:
            write_embeddings(run, source, out, batch_size=batch_size)

    write(out)
    said = [line for line in capsys.readouterr().err.splitlines() if "recognizes other views" not in line]  # of three steps
    assert len(said) == 1 + (change == "verb") and any("starting anew, since" in line for line in said)
    write(tmp_path / "w.csv")
    assert out.read_bytes() == (tmp_path / "w.csv").read_bytes()


def test_samples_that_are_continued_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("vergence.utils.parts.MAX_BYTES", 1000)
    c = np.random.default_rng(0).normal(size=(5000, 2))
    model, pairs = mixtures.get("gaussian")().fit(c, c[:, :1]), Pairs(c, c[:, :1], ([], []))
    density.sample(model, pairs, tmp_path / "whole.npz", n=3, seed=5)
    calls = dies_at(4, type(model), "sample", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        density.sample(model, pairs, tmp_path / "o.npz", n=3, seed=5)
    assert density.sample(model, pairs, tmp_path / "o.npz", n=3, seed=5) == 15_000 and len(calls) == 6
    assert (tmp_path / "o.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert density.score_pairs(model, pairs, tmp_path / "s.csv").rows == 5000


@contextlib.contextmanager
def full_disk(limit):
    """Lets no file of this process grow beyond ``limit`` bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("verb", "limit", "name"),
    [
        ("embed", 1_000, "o.npz"), ("evaluate", 1_000, "evaluation.json"), ("examples", 12_000, "examples.npz"),
        ("report", 10_000, "report.html"),
    ],
)  # fmt: skip
def test_a_full_disk_is_one_line_and_leaves_no_half_file(folder, tmp_path, verb, limit, name):
    shutil.copytree(folder / "run", tmp_path / "run")
    run = vergence.load(tmp_path / "run", device="cpu")
    job = {
        "embed": lambda: write_embeddings(run, folder / "images.npy", tmp_path / name),
        "evaluate": lambda: evaluate(run, probes=False),
        "examples": lambda: evaluate(run, probes=False),
        "report": lambda: write_report(run.folder.path),
    }[verb]
    with full_disk(limit), pytest.raises(ValueError) as caught:
        job()
    said = str(caught.value)
    assert re.fullmatch(rf"cannot write \S*{re.escape(name)}: [^;]+; [^\n]*free space[^\n]*", said), said
    assert not list(tmp_path.rglob(name)) and not list(tmp_path.rglob(".*"))
