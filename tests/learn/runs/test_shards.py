"""Parts of a job, merged: the columns of one process, and its .npz to the byte, in any number and order, also after a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.test_cli import call
from tests.data.test_shards import write_tar

from vergence.learn.runs import shards
from vergence.utils.parts import Shard

pytestmark = pytest.mark.float32


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """300 new vectors, sixty of which are odd, and twenty are items of the run's source."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    x[:60] += 9
    x[60:80] = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32)[:20]
    path = tmp_path_factory.mktemp("new") / "new.npy"
    np.save(path, x[rng.permutation(300)])
    return path


def run(*words):
    found = call(*words)
    return found.returncode, found.stdout, found.stderr


def scored(table, vectors, folder, numbers, of, *more):
    for i in numbers:
        code, _, error = run("score", table.folder.path, vectors, "--shard", f"{i}/{of}", "--out", folder, *more)
        assert code == 0, error


def page(path, name):
    text = path.read_text()
    return text[text.index("<h1") :].split("</h1>")[1].replace(f">{name}<", ">NAME<")


@pytest.mark.parametrize("of", [1, 3, 7])
@pytest.mark.parametrize("more", [[], ["--fpr", "0.05"]], ids=["fdr", "fpr"])
def test_merged_parts_have_the_bytes_of_one_process(of, more, table, vectors, tmp_path):
    assert run("score", table.folder.path, vectors, "--out", tmp_path / "whole.npz", "--batch-size", 20, *more)[0] == 0
    order = np.random.default_rng(of).permutation(of) + 1
    scored(table, vectors, tmp_path / "parts", order, of, "--batch-size", 20, *more)
    code, text, _ = run("merge", tmp_path / "parts", "--out", tmp_path / "merged.npz")
    assert code == 0
    assert "flagged" in text.split("\n")[0]
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "merged.npz") as b:
        assert a.files == b.files
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])
        assert a["flag"].sum() >= 5 and a["seen"].sum() >= 10
    assert (tmp_path / "merged.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert page(tmp_path / "merged.npz.html", "new") == page(tmp_path / "whole.npz.html", "whole")


def test_items_below_all_calibration_scores_are_reported(table, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 5)).astype(np.float32)
    least = x[table.anomaly_score(x).argmin()]
    np.save(tmp_path / "stuck.npy", least + 1e-4 * rng.normal(size=(60, 5)).astype(np.float32))
    _, whole, _ = run("score", table.folder.path, tmp_path / "stuck.npy", "--out", tmp_path / "whole.csv")
    scored(table, tmp_path / "stuck.npy", tmp_path / "parts", (1, 2), 2)
    _, merged, _ = run("merge", tmp_path / "parts", "--out", tmp_path / "merged.csv")
    for text in (whole, merged):
        assert "warning: The new scores are lower overall" in text


def test_more_parts_than_items_and_parts_without_items(table, tmp_path):
    np.save(tmp_path / "few.npy", np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32))
    scored(table, tmp_path / "few.npy", tmp_path / "parts", range(1, 6), 5)
    code, _, error = run("merge", tmp_path / "parts", "--out", tmp_path / "out.csv")
    assert code == 0, error
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4


def test_embeddings_are_merged_too(table, vectors, tmp_path):
    for i in (2, 1):
        assert run("embed", table.folder.path, vectors, "--shard", f"{i}/2", "--out", tmp_path / "parts")[0] == 0
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged.npz")[0] == 0
    assert run("embed", table.folder.path, vectors, "--out", tmp_path / "whole.npz")[0] == 0
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "merged.npz") as b:
        np.testing.assert_allclose(a["z"], b["z"], rtol=1e-5, atol=1e-6)
        assert a.files == b.files
    assert not (tmp_path / "merged.npz.html").exists()


def test_a_part_that_is_there_is_not_written_again(table, vectors, tmp_path):
    scored(table, vectors, tmp_path / "parts", [1], 2)
    before = (tmp_path / "parts" / "part-1-of-2.parquet").stat().st_mtime_ns
    code, _, error = run("score", table.folder.path, vectors, "--shard", "1/2", "--out", tmp_path / "parts")
    assert code == 0
    assert "part 1/2 is there: 150 rows" in error
    assert (tmp_path / "parts" / "part-1-of-2.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["3/2", "0/2", "x", "1", "-1/2", "1/0", "99999999999/99999999999"])
def test_an_impossible_part_is_refused(text, table, vectors, tmp_path):
    code, _, error = run("score", table.folder.path, vectors, f"--shard={text}", "--out", tmp_path / "parts")
    assert code == 2
    assert "--shard I/N with 1 <= I <= N" in error


def test_what_cannot_be_merged_is_one_line(table, images, vectors, tmp_path):
    parts = tmp_path / "parts"

    def merged():
        code, _, error = run("merge", parts, "--out", tmp_path / "out.csv")
        assert code == 2
        assert len(error.strip().splitlines()) == 1
        assert not (tmp_path / "out.csv").exists()
        return error

    assert "found no file" in merged()
    parts.mkdir()
    assert "found none" in merged()
    scored(table, vectors, parts, [1, 3], 3)
    assert "missing: 2" in merged()
    code, _, error = run("score", table.folder.path, vectors, "--shard", "1/2", "--out", parts)
    assert code == 2
    assert "another number of shards: 2 and 3" in error
    code, _, error = run("score", table.folder.path, vectors, "--shard", "2/3", "--out", parts, "--fdr", "0.3")
    assert code == 2
    assert "another run, detector and settings" in error
    scored(table, vectors, parts, [2], 3)
    shutil.copy(parts / "part-2-of-3.json", parts / "part-9-of-9.json")
    assert "part [2] twice" in merged()
    (parts / "part-9-of-9.json").unlink()
    whole = (parts / "part-2-of-3.parquet").read_bytes()
    (parts / "part-2-of-3.parquet").write_bytes(whole[:200])
    assert "part-2-of-3.parquet" in merged()
    (parts / "part-2-of-3.parquet").unlink()
    assert "the rows of part 2" in merged()
    shutil.copy(parts / "part-1-of-3.parquet", parts / "part-2-of-3.parquet")
    assert "the rows of part 2 as they were written" in merged()
    record = json.loads((parts / "part-2-of-3.json").read_text())
    k, n = record["counts"][0]
    more = {**record, "counts": [[k, n + 7], *record["counts"][1:]]}
    (parts / "part-2-of-3.json").write_text(json.dumps(more))
    assert "an altered one" in merged()
    (parts / "part-2-of-3.json").write_text(json.dumps(record))
    scored(table, vectors, parts, [2], 3)  # rows that are others are written again
    assert (parts / "part-2-of-3.parquet").read_bytes() == whole
    del more["digest"]
    (parts / "part-2-of-3.json").write_text(json.dumps({**more, "digest": shards._digest(more)}))
    rows = sum(n for _, n in record["counts"])
    assert f"the rows of part 2 to be counted, found {rows + 7} counts of {rows} rows" in merged()
    (parts / "part-2-of-3.json").write_text("{")
    assert "part-2-of-3.json" in merged()


def test_the_bytes_of_a_detector_are_the_same_in_every_process(images, tmp_path):
    """They are part of a job's digest: an order by the hashes of texts made each process another job."""
    file = tmp_path / "detector.safetensors"
    file.write_bytes(images.detector().content())
    code = "import pathlib, sys; from vergence.learn.runs.calibrated import RunDetector; file = pathlib.Path(sys.argv[1])"
    code += "; sys.exit(RunDetector.read(file).content() != file.read_bytes())"
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", code, str(file)], check=True, env={**os.environ, "PYTHONHASHSEED": seed})


@pytest.mark.slow
def test_a_killed_part_goes_on_and_the_merged_table_is_the_same(images, tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "many.npy", rng.integers(0, 256, (30_000, 8, 8), dtype=np.uint8))
    words = ["score", str(images.folder.path), str(tmp_path / "many.npy"), "--shard", "1/2", "--out", str(tmp_path / "parts")]
    process = subprocess.Popen([sys.executable, "-m", "vergence", *words], env={**os.environ, "OMP_NUM_THREADS": "1"})
    hidden = tmp_path / "parts" / ".part-1-of-2.parquet.parts"
    for _ in range(1200):
        if len(list(hidden.glob("*.npz"))) >= 1 or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "parts" / "part-1-of-2.json").exists()
    code, _, error = run(*words)
    assert code == 0
    assert "continuing after" in error
    assert run(*[w.replace("1/2", "2/2") for w in words])[0] == 0
    assert run("merge", tmp_path / "parts", "--out", tmp_path / "merged.npz")[0] == 0
    assert run("score", images.folder.path, tmp_path / "many.npy", "--out", tmp_path / "whole.npz")[0] == 0
    assert (tmp_path / "merged.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


@pytest.mark.slow
def test_a_closed_form_is_trained_in_parts(tmp_path):
    words = ["train", "digits", "--recipe", "patches", "--device", "cpu", "--limit", "700"]
    for of in (2, 3):
        for i in range(of, 0, -1):
            code, text, error = run(*words, "--shard", f"{i}/{of}", "--out", tmp_path / f"parts{of}")
            assert code == 0, error
            assert f"part {i}/{of}" in text
        code, text, error = run("merge", tmp_path / f"parts{of}", "--out", tmp_path / f"run{of}")
        assert code == 0, error
    assert run(*words, "--out", tmp_path / "whole")[0] == 0
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    for of in (2, 3):
        merged = load_file(tmp_path / f"run{of}" / "model.safetensors")
        for name, values in whole.items():
            torch.testing.assert_close(merged[name], values, rtol=1e-4, atol=1e-5)
        assert (tmp_path / f"run{of}" / "detector.safetensors").exists()
    shutil.rmtree(tmp_path / "parts3" / "part-2-of-3")
    code, _, error = run("merge", tmp_path / "parts3", "--out", tmp_path / "other")
    assert code == 2
    assert "3 finished parts" in error
    code, _, error = run(*words, "--set", "seed=1", "--shard", "2/3", "--out", tmp_path / "parts3")
    assert run("merge", tmp_path / "parts3", "--out", tmp_path / "other")[0] == 2


def test_training_by_steps_has_no_parts(vectors, tmp_path):
    code, _, error = run("train", vectors, "--objective", "vje", "--shard", "1/2", "--out", tmp_path / "parts")
    assert code == 2
    assert "whose sums add" in error


def test_the_ranges_of_parts_are_all_items_in_order():
    for n in (0, 1, 10, 1000, 1024):
        for of in (1, 3, 7, 2000):
            found = [i for number in range(1, of + 1) for i in Shard(number, of).range(n, 256)]
            assert found == list(range(n))


@pytest.mark.slow
def test_parts_of_large_files_read_their_own_files_alone(images, tmp_path):
    (tmp_path / "tars").mkdir()
    for k in range(3):
        write_tar(tmp_path / "tars" / f"{k}.tar", range(20 * k, 20 * k + 20))
    for source, of in ((str(tmp_path / "tars"), 2), (f"{tmp_path}/tars/{{0..2}}.tar", 3), (str(tmp_path / "tars"), 5)):
        parts = tmp_path / f"parts{of}"
        for i in range(1, of + 1):
            code, _, error = run("score", images.folder.path, source, "--shard", f"{i}/{of}", "--out", parts)
            assert code == 0, error
        assert run("merge", parts, "--out", tmp_path / f"m{of}.npz")[0] == 0
        assert '"sheets": ["' in (tmp_path / f"m{of}.npz.html").read_text()
    assert run("score", images.folder.path, tmp_path / "tars", "--out", tmp_path / "whole.npz")[0] == 0
    with np.load(tmp_path / "whole.npz") as whole:
        for of in (2, 3, 5):
            with np.load(tmp_path / f"m{of}.npz") as merged:
                assert merged["name"].tolist() == whole["name"].tolist()
                np.testing.assert_allclose(merged["score"], whole["score"], rtol=1e-5)
                np.testing.assert_array_equal(merged["flag"], whole["flag"])
