"""Engines that people have, in local mode: the same scores as `score`, to the digit; the examples run."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.factories import png
from tests.learn.runs.test_callables import DIGITS

import vergence

pytestmark = pytest.mark.float32
EXAMPLES = Path(__file__).parents[3] / "examples"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
ROWS, BATCH = 1300, 50  # 26 batches


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A closed form, 1,300 encoded images in a file, two of which cannot be read, and what one process says of them."""
    folder = tmp_path_factory.mktemp("many")
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 16, 16, 3), dtype=np.uint8)
    run = vergence.train(x[:300].transpose(0, 3, 1, 2), encoder="patches:atoms=8", out=folder / "run", device="cpu")
    encoded = [png(image) for image in x]
    encoded[77], encoded[903] = b"broken", None
    table = pa.table({"name": [f"{i:04}" for i in range(ROWS)], "image": pa.array(encoded, pa.binary())})
    pq.write_table(table, folder / "images.parquet", row_group_size=BATCH)
    scorer = vergence.Scorer(run, "image", device="cpu")
    return folder, [scorer(part) for part in table.to_batches(BATCH)]


def require_same(found, many):
    """The rows are those of one process in their order, to the last bit."""
    expected = pa.concat_tables(many[1]).to_pydict()
    for name in ("name", "score", "p_value", "feature_set", "error"):
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(expected[name]))
    assert [i for i, error in enumerate(expected["error"]) if error] == [77, 903]


def in_threads(folder, scorer):
    parts = pq.read_table(folder / "images.parquet").to_batches(BATCH)
    with ThreadPoolExecutor(4) as pool:
        return pa.concat_tables(pool.map(scorer, parts)).to_pydict()


def in_datasets(folder, scorer):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_parquet(str(folder / "images.parquet"), cache_dir=str(folder / "cache"))
    return data.map(scorer, batched=True, batch_size=BATCH).to_dict()


def in_a_data_loader(folder, scorer):
    rows = pq.read_table(folder / "images.parquet").to_pylist()
    batches = list(torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=4, collate_fn=scorer))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def in_ray(folder, scorer):
    data = pytest.importorskip("ray.data")
    rows = data.read_parquet(str(folder / "images.parquet")).map_batches(scorer, batch_size=BATCH).to_pandas()
    return rows.sort_values("name").to_dict("list")


def in_spark(folder, scorer):
    sql = pytest.importorskip("pyspark.sql")
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH)
        spark.conf.set("spark.sql.files.maxPartitionBytes", (folder / "images.parquet").stat().st_size // 4)
        rows = spark.read.parquet(str(folder / "images.parquet"))  # tasks of whole row groups, so that every batch has the same
        assert rows.rdd.getNumPartitions() >= 2  # rows as one process's: the last bits depend on them
        kinds = "name string, score double, p_value double, feature_set string, error string"
        return rows.mapInPandas(scorer, kinds).orderBy("name").toPandas().to_dict("list")
    finally:
        spark.stop()


ENGINES = [in_threads, in_datasets, in_a_data_loader]
ENGINES += [pytest.param(engine, marks=pytest.mark.slow) for engine in (in_ray, in_spark)]


@pytest.mark.filterwarnings("ignore")  # of the engines
@pytest.mark.parametrize("engine", ENGINES)
def test_many_batches_in_an_engine_are_those_of_one_process(engine, many, monkeypatch):
    for name, value in {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)
    require_same(engine(many[0], vergence.Scorer(many[0] / "run", "image", device="cpu")), many)


def test_many_batches_in_daft_are_those_of_one_process(many, tmp_path):
    pytest.importorskip("daft")
    example("daft_frame.py", many[0] / "run", many[0] / "images.parquet", tmp_path / "out")
    found = pa.concat_tables([pq.read_table(file) for file in (tmp_path / "out").rglob("*.parquet")]).sort_by("name")
    require_same(found.to_pydict(), many)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, images):
    """A file of encoded images, and what `score` writes of it."""
    folder = tmp_path_factory.mktemp("engines")
    table = pa.table({"name": [f"{i}.png" for i in range(len(DIGITS))], "image": [png(x) for x in DIGITS]})
    pq.write_table(table, folder / "images.parquet")
    vergence.score(str(folder / "images.parquet"), images, folder / "whole.npz")
    return folder


def example(name, *words):
    environment = {**os.environ, **ENVIRONMENT, "DAFT_PROGRESS_BAR": "0"}
    command = [sys.executable, EXAMPLES / name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("engine", [pytest.param("ray", marks=pytest.mark.slow), "daft"])
def test_an_engine_gives_the_scores_of_the_command(engine, encoded, images, tmp_path):
    pytest.importorskip(engine)
    name = {"ray": "ray_data.py", "daft": "daft_frame.py"}[engine]
    out = tmp_path / "out"
    assert "of 40 flagged" in example(name, images.folder.path, encoded / "images.parquet", out)
    table = pa.concat_tables([pq.read_table(file) for file in sorted(out.rglob("*.parquet"))]).to_pydict()
    with np.load(encoded / "whole.npz") as whole:
        at = {name: i for i, name in enumerate(whole["name"].tolist())}
        rows = [at[name] for name in table["name"]]
        assert sorted(rows) == list(range(40))
        np.testing.assert_array_equal(table["score"], whole["score"][rows])
        np.testing.assert_array_equal(table["p_value"], whole["p_value"][rows])
        assert table["feature_set"] == whole["feature_set"][rows].tolist()
    assert set(table["error"]) == {""}
    assert "image" not in table


def test_scores_of_a_language_model_are_decided():
    assert "flagged: [195, 196, 197, 198, 199]" in example("language_model.py")


@pytest.mark.slow
def test_samples_of_a_run_are_shown_as_real_images(tmp_path):
    quick = {"projector": (8,), "epochs": 1, "batch_size": 64, "device": "cpu", "knn_every": 0}
    vergence.train("digits", out=tmp_path / "run", objective="gje", **quick)
    for name, more, size in (("s.png", (), (3, 3)), ("c.png", ("--context", "digits"), (4, 8))):
        example("sample_images.py", tmp_path / "run", tmp_path / name, "--n", 3, *more)
        with Image.open(tmp_path / name) as image:
            assert image.size == tuple(10 * n + 2 for n in size)  # 8 pixels, 2 between


def test_a_detector_of_pyod_gets_a_rate():
    pytest.importorskip("pyod")
    assert "calibrated, fdr 0.1: 39 of 40 odd items flagged" in example("pyod_scores.py")
