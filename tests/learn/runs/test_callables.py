"""A run as a function of batches of columns: every kind of batch and of item, equal to `score` and `embed`; bad rows are told."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from tests.factories import png
from tests.refusals import refuses

import vergence
from vergence.learn.runs import callables

pytestmark = pytest.mark.float32
DIGITS = np.round(load_digits().images[:40] * (255 / 16)).astype(np.uint8)


@pytest.fixture(scope="module")
def scores(images, tmp_path_factory):
    """What `score` writes of the digits."""
    out = tmp_path_factory.mktemp("scores") / "s.npz"
    vergence.score(DIGITS, images, out)
    with np.load(out) as table:
        return list(zip(table["score"], table["p_value"], table["feature_set"], strict=True))


def equal(out, scores):
    for i in range(len(DIGITS)):
        s, p, feature_set = scores[i]
        assert out["score"][i] == pytest.approx(s, rel=1e-5)
        assert out["p_value"][i] == pytest.approx(p)
        assert out["feature_set"][i] == feature_set
    assert set(out["error"]) == {""}


KINDS = {
    "arrays": lambda folder: DIGITS, "bytes": lambda folder: [png(x) for x in DIGITS],
    "structs": lambda folder: [{"bytes": png(x), "path": None} for x in DIGITS],
    "images": lambda folder: [Image.fromarray(x) for x in DIGITS],
    "objects": lambda folder: np.array([png(x) for x in DIGITS], dtype=object), "tensor": lambda folder: torch.from_numpy(DIGITS),
    "paths": lambda folder: [str(_file(folder, i)) for i in range(len(DIGITS))],
}  # fmt: skip


def _file(folder, i):
    path = folder / f"{i}.png"
    path.write_bytes(png(DIGITS[i]))
    return path


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_item_has_the_score_that_the_command_gives(kind, images, scores, tmp_path):
    out = vergence.Scorer(images)({"id": np.arange(40), "image": KINDS[kind](tmp_path)})
    assert list(out) == ["id", "score", "p_value", "feature_set", "error"]
    assert out["score"].dtype == out["p_value"].dtype == np.float64
    equal(out, scores)


def test_every_kind_of_batch_comes_back_as_it_went_in(images, scores):
    scorer = vergence.Scorer(images, batch_size=16)
    encoded = [png(x) for x in DIGITS]
    arrow = scorer(pa.table({"id": list(range(40)), "image": encoded}))
    assert isinstance(arrow, pa.Table)
    assert arrow.schema.field("score").type == pa.float64()
    assert arrow.schema.field("feature_set").type == arrow.schema.field("error").type == pa.string()
    equal(arrow.to_pydict(), scores)
    equal(scorer(pa.RecordBatch.from_pydict({"image": encoded})).to_pydict(), scores)
    equal(scorer([{"image": x} for x in encoded]), scores)  # the rows that a data loader collates
    equal(scorer(DIGITS), scores)
    pd = pytest.importorskip("pandas")
    frame = scorer(pd.DataFrame({"image": encoded, "id": range(40)}, index=range(100, 140)))
    assert list(frame.index) == list(range(100, 140))
    equal(frame.reset_index(drop=True), scores)
    parts = list(scorer(iter([pd.DataFrame({"image": encoded[:20]}), pd.DataFrame({"image": encoded[20:]})])))  # Spark
    equal(pd.concat(parts, ignore_index=True), scores)


def test_rows_that_cannot_be_read_give_a_reason_and_stop_nothing(images, scores, tmp_path):
    good = png(DIGITS[0])
    out = vergence.Scorer(images)({"image": [good, None, b"", good[:60], str(tmp_path / "no.png"), 7, {"bytes": None}, good]})
    assert [bool(e) for e in out["error"]] == [False, True, True, True, True, True, True, False]
    assert out["error"][1] == out["error"][6] == "no value"
    assert np.isnan(out["score"][1:7]).all()
    assert out["score"][0] == out["score"][7] == pytest.approx(scores[0][0], rel=1e-5)
    assert vergence.Scorer(images)({"image": []})["score"].shape == (0,)
    assert set(vergence.Scorer(images)({"image": [None, None]})["error"]) == {"no value"}


def test_vectors_of_another_width_or_with_nan_are_told(table):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5)).astype(np.float32)
    scorer = vergence.Scorer(table)
    out = scorer({"z": [x[0], x[1][:3], x[2] * np.nan, None, b"text"]})
    assert [bool(e) for e in out["error"]] == [False, True, True, True, True]
    assert "5" in out["error"][1]
    assert scorer({"z": x})["error"] == [""] * 4
    assert scorer(pa.table({"z": list(x), "name": list("abcd")}))["name"].to_pylist() == list("abcd")
    refuses("column=", scorer, {"a": x, "b": x})
    refuses("a column among a, b", vergence.Scorer(table, column="c"), {"a": x, "b": x})


def test_a_run_on_a_table_reads_its_features(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=300), "b": rng.normal(size=300), "color": rng.choice(["red", "blue"], 300).tolist()}
    run = vergence.train(pa.table(rows), objective="vje", encoder="mlp", epochs=1, out=tmp_path / "run", device="cpu")
    out = vergence.Scorer(run)({"a": [0.0, None], "b": [0.5, 1.0], "color": ["red", "blue"], "id": [1, 2]})
    assert out["error"] == ["", "no value of a"]
    assert out["p_value"][0] > 0
    assert out["id"] == [1, 2]


@pytest.mark.parametrize("given", ["run", "path"])
def test_embeddings_equal_those_of_the_run(given, images):
    embedder = vergence.Embedder(images if given == "run" else images.folder.path)
    out = embedder({"image": [png(DIGITS[0]), None, png(DIGITS[1])]})
    assert out["z"].dtype == np.float32
    np.testing.assert_allclose(out["z"][[0, 2]], images.embed(DIGITS[:2]).numpy(), rtol=1e-4, atol=1e-5)
    assert np.isnan(out["z"][1]).all()
    arrow = embedder(pa.table({"image": [png(DIGITS[0])]}))
    assert pa.types.is_fixed_size_list(arrow.schema.field("z").type)


def test_a_network_of_ones_own_embeds_whole_images():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    wide = np.zeros((50, 90, 3), np.uint8)
    wide[:, 60:] = 255
    out = vergence.Embedder(net)({"image": [png(wide), png(wide[:, ::-1])]})
    assert out["z"].shape == (2, 4)
    assert not np.allclose(out["z"][0] - out["z"][1], np.nan)
    refuses("timm:NAME", vergence.Embedder("nothing"), {"image": [png(wide)]})


def test_a_network_computes_each_batch_once_and_nothing_else():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    embedder, sizes = vergence.Embedder(net, batch_size=2), []
    net.register_forward_hook(lambda module, inputs, out: sizes.append(len(out)))
    embedder({"image": [png(np.zeros((9, 9, 3), np.uint8))] * 5})
    assert sizes == [2, 2, 1]


def test_it_travels_to_another_process_as_a_path(images, tmp_path):
    scorer = vergence.Scorer(images)
    scorer(DIGITS[:2])
    packed = pickle.dumps(scorer)
    assert len(packed) < 1000
    (tmp_path / "scorer.pkl").write_bytes(packed)
    np.save(tmp_path / "x.npy", DIGITS[:4])
    code = "import pickle, sys, numpy; s = pickle.load(open(sys.argv[1], 'rb')); print(*s(numpy.load(sys.argv[2]))['p_value'])"
    command = [sys.executable, "-c", code, tmp_path / "scorer.pkl", tmp_path / "x.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert [float(p) for p in done.stdout.split()] == pytest.approx(list(scorer(DIGITS[:4])["p_value"])), done.stderr


def test_a_path_that_is_no_run_is_refused_at_once(tmp_path):
    refuses("run", vergence.Scorer, tmp_path)
    refuses("batch_size", vergence.Scorer, tmp_path, batch_size=0)


def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    sizes = []

    def function(x):
        sizes.append(len(x))
        if len(x) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        return {"score": x[:, 0].numpy()}

    x = torch.arange(10.0)[:, None]
    assert callables._halved(function, x)["score"].tolist() == list(range(10))
    assert max(sizes[1:]) <= 5
    with pytest.raises(RuntimeError, match="out of memory"):
        callables._halved(lambda x: (_ for _ in ()).throw(RuntimeError("out of memory")), x)
    with pytest.raises(RuntimeError, match="other"):
        callables._halved(lambda x: (_ for _ in ()).throw(RuntimeError("other")), x)


def test_a_data_loader_uses_it_to_collate(images, scores):
    rows = [{"image": png(x)} for x in DIGITS]
    loader = torch.utils.data.DataLoader(rows, batch_size=20, num_workers=2, collate_fn=vergence.Scorer(images))
    batches = list(loader)
    equal({name: np.concatenate([b[name] for b in batches]) for name in batches[0]}, scores)


@pytest.mark.parametrize("encoder", ["patches:atoms=8", "patches-mlp:atoms=8", "small"])
def test_scores_in_threads_are_those_of_one(encoder, tmp_path):
    more = {} if encoder == "patches:atoms=8" else {"epochs": 1}
    x = np.random.default_rng(0).integers(0, 256, (600, 3, 16, 16), dtype=np.uint8)
    run = vergence.train(x[:300], encoder=encoder, out=tmp_path / "run", device="cpu", **more)
    scorer, batches = vergence.Scorer(run, device="cpu", batch_size=8), np.split(x[300:], 50)
    ways = [run.anomaly_score, lambda part: scorer({"x": part})["score"], lambda part: run.embed(part)]
    for way in ways:
        one = [np.asarray(way(part)) for part in batches]
        with ThreadPoolExecutor(4) as pool:
            many = list(pool.map(lambda part, way=way: np.asarray(way(part)), batches * 2))
        assert all(map(np.array_equal, many, one * 2))
