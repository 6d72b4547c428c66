"""Peak memory of jobs over many items, beyond the same job on few items; all data is synthetic.

python benchmarks/memory.py --scratch FOLDER                             # 15 minutes on a quiet core
python benchmarks/memory.py --scratch FOLDER --limit 2000 --only predict                # seconds

Each job runs as a command in a process of its own, first on 1,000 items (the library, the model and the buffers of a batch) and
then on all; the difference of the two peaks of resident memory is what grows with the items. The images have 32 px and one
channel. The encoder is trained for two steps; it is ``mlp`` by default, since the time is that of the encoder and the memory of
the items is not.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ledger
import numpy as np
from PIL import Image

import vergence
from vergence import mixtures

SIDE, FEW, TINY = 32, 1_000, 100
JOBS = {"score": 1_000_000, "embed": 1_000_000, "files": 100_000, "predict": 10_000_000}
WAIT = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(json.dumps([code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""


def images(path: Path, n: int) -> Path:
    """Writes a sparse ``.npy`` file of n images with noise in a few of them."""
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (n, SIDE, SIDE, 1))
    array[:: max(1, n // 100)] = np.random.default_rng(0).integers(0, 256, array[:: max(1, n // 100)].shape, dtype=np.uint8)
    array.flush()
    return path


def files(folder: Path, n: int) -> Path:
    """Writes n small PNG files of 1,000 different pictures, each file on its own."""
    folder.mkdir(exist_ok=True)
    rng, content = np.random.default_rng(0), []
    for i in range(min(n, 1000)):
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(folder / f"{i:06}.png")
        content.append((folder / f"{i:06}.png").read_bytes())
    for i in range(len(content), n):
        (folder / f"{i:06}.png").write_bytes(content[i % len(content)])
    return folder


def contexts(path: Path, n: int) -> Path:
    """Writes n contexts of two features."""
    array = np.lib.format.open_memmap(path, "w+", np.float32, (n, 2))
    rng = np.random.default_rng(0)
    for start in range(0, n, 1 << 20):
        array[start : start + (1 << 20)] = rng.normal(size=array[start : start + (1 << 20)].shape)
    array.flush()
    return path


def models(scratch: Path, encoder: str) -> tuple[Path, Path]:
    """Writes a run and a density; returns their paths."""
    run, density = scratch / f"run_{encoder}", scratch / "density.safetensors"
    rng = np.random.default_rng(0)
    if not run.exists():
        np.save(scratch / "train.npy", rng.integers(0, 256, (512, SIDE, SIDE, 1), dtype=np.uint8))
        quick = {"epochs": 1, "batch_size": 256, "device": "cpu", "precision": "fp32", "knn_every": 0}
        vergence.train(str(scratch / "train.npy"), out=run, encoder=encoder, objective="gje", projector=(32,), **quick)
    c = rng.normal(size=(2000, 2))
    mixtures.get("gaussian")().fit(c, c @ [1.0, -1.0] + 0.1 * rng.normal(size=2000)).save(density)
    return run, density


def command(job: str, n: int, scratch: Path, encoder: str) -> list[str]:
    """Writes the data of a job on n items; returns its command."""
    run, density = models(scratch, encoder)
    verb = [sys.executable, "-m", "vergence.cli.commands"]
    if job == "predict":
        return [*verb, "density", "predict", str(density), str(contexts(scratch / f"contexts{n}.npy", n))]
    source = files(scratch / f"files{n}", n) if job == "files" else images(scratch / f"images{n}.npy", n)
    return [*verb, "score" if job == "score" else "embed", str(run), str(source), "--device", "cpu"]


def peak(job: str, n: int, scratch: Path, encoder: str) -> tuple[int, float]:
    """Returns the peak of resident memory in bytes, of the largest process, and the seconds of a job on n items."""
    out = scratch / f"{job}{n}.npz"
    arguments = [sys.executable, "-c", WAIT, *command(job, n, scratch, encoder), "--out", str(out)]
    start = time.perf_counter()
    started = subprocess.run(arguments, capture_output=True, text=True, check=True)
    code, kilobytes = json.loads(started.stdout.splitlines()[-1])
    if code:
        raise RuntimeError(f"{shlex.join(arguments[3:])} ended with code {code}: {started.stderr}")
    out.unlink()
    return kilobytes * 1024, time.perf_counter() - start


def measure(job: str, n: int, scratch: Path, encoder: str) -> dict[str, Any]:
    """Returns the row of a job on n items."""
    few, _ = peak(job, min(n, FEW), scratch, encoder)
    whole, seconds = peak(job, n, scratch, encoder)
    model = "gaussian" if job == "predict" else encoder
    row = {"measurement": "peak memory", "job": job, "model": model, "items": n, "asked": JOBS[job], "bytes": whole}
    row |= {"bytes_of_1000": few, "beyond": whole - few, "gib_beyond": round((whole - few) / 2**30, 3)}
    return row | {"seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True, help="folder for data and output: 5 GB for all jobs")
    parser.add_argument("--limit", type=int, help="most items of a job")
    parser.add_argument("--only", choices=JOBS, action="append", help="jobs to measure; all by default")
    parser.add_argument("--encoder", default="mlp", help="encoder of the run (default: mlp)")
    a = ledger.parse(parser, "memory")
    a.scratch.mkdir(parents=True, exist_ok=True)
    limit = TINY if a.tiny else a.limit
    for job in a.only or JOBS:
        values = measure(job, min(JOBS[job], limit or JOBS[job]), a.scratch, a.encoder)
        ledger.add(a.out, ledger.row(values, seed=0))


if __name__ == "__main__":
    main()
