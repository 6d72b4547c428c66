"""Engines that people have, in local mode: the same scores as `score`, to the digit; the examples run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.learn.runs.test_callables import DIGITS, png

import vergence

pytestmark = pytest.mark.float32
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, images):
    """A file of encoded pictures, and what `score` writes of it."""
    folder = tmp_path_factory.mktemp("engines")
    table = pa.table({"name": [f"{i}.png" for i in range(len(DIGITS))], "image": [png(x) for x in DIGITS]})
    pq.write_table(table, folder / "pictures.parquet")
    vergence.score(str(folder / "pictures.parquet"), images, folder / "whole.npz")
    return folder


def example(name, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "DAFT_PROGRESS_BAR": "0"}
    command = [sys.executable, EXAMPLES / name, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("engine", [pytest.param("ray", marks=pytest.mark.slow), "daft"])
def test_an_engine_gives_the_scores_of_the_command(engine, pictures, images, tmp_path):
    pytest.importorskip(engine)
    name = {"ray": "ray_data.py", "daft": "daft_frame.py"}[engine]
    out = tmp_path / "out"
    assert "of 40 flagged" in example(name, images.folder.path, pictures / "pictures.parquet", out)
    table = pa.concat_tables([pq.read_table(file) for file in sorted(out.rglob("*.parquet"))]).to_pydict()
    with np.load(pictures / "whole.npz") as whole:
        at = {name: i for i, name in enumerate(whole["name"].tolist())}
        rows = [at[name] for name in table["name"]]
        assert sorted(rows) == list(range(40))
        np.testing.assert_array_equal(table["score"], whole["score"][rows])
        np.testing.assert_array_equal(table["p_value"], whole["p_value"][rows])
        assert table["level"] == whole["level"][rows].tolist()
    assert set(table["error"]) == {""}
    assert "image" not in table


def test_scores_of_a_language_model_are_decided():
    assert "flagged: [195, 196, 197, 198, 199]" in example("language_model.py")


@pytest.mark.slow
def test_samples_of_a_run_are_shown_as_real_pictures(tmp_path):
    from PIL import Image

    quick = {"projector": (8,), "epochs": 1, "batch_size": 64, "device": "cpu", "knn_every": 0}
    vergence.train("digits", out=tmp_path / "run", objective="gje", **quick)
    for name, more, size in (("s.png", (), (3, 3)), ("c.png", ("--context", "digits"), (4, 8))):
        example("sample_pictures.py", tmp_path / "run", tmp_path / name, "--n", 3, *more)
        with Image.open(tmp_path / name) as image:
            assert image.size == tuple(10 * n + 2 for n in size)  # 8 pixels, 2 between


def test_a_detector_of_pyod_gets_a_rate():
    pytest.importorskip("pyod")
    assert "calibrated, fdr 0.1: 39 of 40 odd items flagged" in example("pyod_scores.py")
