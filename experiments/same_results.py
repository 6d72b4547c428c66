"""Runs small commands of eight kinds and stores, or compares, what they write: a refactoring must not change a result.

    python experiments/same_results.py freeze FOLDER    # before: runs the commands, keeps their files
    python experiments/same_results.py compare FOLDER  # after: runs them again, prints each difference; fails if any

Groups of commands may follow (closed net staged distilled pairs folder density advice); all by default.

Weights and floating-point results depend on the processor and on torch's version, so FOLDER is made on the machine where it is
compared and is not committed. Names of tensors may change: weights are compared by content. Files of settings are not compared.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

UNTIMED = ("second", "threads", "time", "per_second", "device", "version", "commit", "memory", "command", "bytes", "format")
TRAIN = ["--device", "cpu", "--threads", "1", "--precision", "fp32"]


def make_inputs(folder):
    """Writes the inputs: images, pairs, a folder of pictures with outliers, a table."""
    from PIL import Image
    from sklearn.datasets import load_diabetes, load_digits

    digits = load_digits()
    images = np.kron((digits.images * 15.9).astype(np.uint8), np.ones((1, 3, 3), np.uint8))
    rng = np.random.default_rng(0)
    images = np.clip(images + rng.normal(0, 8, images.shape), 0, 255).astype(np.uint8)
    np.savez(folder / "images.npz", images=images[:400], labels=digits.target[:400])
    new = images[900:1020].copy()
    new[::30] = rng.integers(0, 256, new[::30].shape)
    np.savez(folder / "new.npz", images=new)
    halves = images.astype(np.float32) / 255
    flat = halves[:, ::2, ::2].reshape(len(halves), 2, -1)
    np.savez(folder / "pairs.npz", context=flat[:600, 0], target=flat[:600, 1])
    np.savez(folder / "new_pairs.npz", context=flat[900:1100, 0], target=np.roll(flat[900:1100, 1], 1, 0))
    (folder / "pictures").mkdir()
    (folder / "new_pictures").mkdir()
    for i, image in enumerate(images[1200:1400]):
        odd = 255 - image if i % 50 == 7 else images[1200] if i in (60, 61) else image
        Image.fromarray(odd).save(folder / "pictures" / f"{i:03}.png")
        if i < 60:
            Image.fromarray(odd if i % 6 == 0 else images[1400 + i]).save(folder / "new_pictures" / f"{i:03}.png")
    x, y = load_diabetes(return_X_y=True)
    table, names = np.column_stack([x[:, [2, 3, 8, 0]], y]), "bmi,bp,s5,age,target"
    np.savetxt(folder / "table.csv", table[:340], "%.6g", ",", header=names, comments="")
    np.savetxt(folder / "new.csv", table[340:], "%.6g", ",", header=names, comments="")


def commands(out):
    """Returns the commands of each group, the arguments of ``vergence`` each; all write below ``out``, under the group's name."""
    closed, net, staged, distilled, pairs = (str(out / name) for name in ("closed", "net", "staged", "distilled", "pairs"))
    small = ["--limit", "150", "--epochs", "1"]
    return {
        "closed": [
            ["train", "images.npz", "--out", closed, "--recipe", "patches", *TRAIN],
            ["evaluate", closed],
            ["score", closed, "new.npz", "--out", str(out / "closed.csv")],
            ["score", closed, "new.npz", "--all-scores", "--fpr", "0.05", "--out", str(out / "closed_fpr.csv")],
        ],
        "net": [
            ["train", "images.npz", "--out", net, "--recipe", "vje_small", "--epochs", "2", *TRAIN],
            ["evaluate", net],
            ["embed", net, "new.npz", "--out", str(out / "net_embedded.csv")],
            ["score", net, "new.npz", "--all-scores", "--out", str(out / "net.csv")],
        ],
        "staged": [["train", "images.npz", "--out", staged, "--recipe", "patches_vje", *small, *TRAIN]],
        "distilled": [
            ["train", "images.npz", "--out", distilled, "--recipe", "distilled_vje", "--distill-epochs", "1", *small, *TRAIN]
        ],
        "pairs": [
            ["train", "pairs.npz", "--out", pairs, "--objective", "gmje", "--epochs", "3", *TRAIN],
            ["evaluate", pairs],
            ["score", pairs, "new_pairs.npz", "--pairs", "--out", str(out / "pairs.csv")],
        ],
        "folder": [
            ["check", "pictures", "--out", str(out / "check")],
            ["check", "new_pictures", "--against", "pictures", "--leaks", "--out", str(out / "check_leaks")],
        ],
        "density": [
            ["density", "fit", "table.csv", "--target", "target", "--out", str(out / "density.safetensors")],
            [
                "density",
                "fit",
                "table.csv",
                "--target",
                "target",
                "--model",
                "mixture",
                "--out",
                str(out / "density_em.safetensors"),
            ],
            ["density", "predict", str(out / "density.safetensors"), "new.csv", "--out", str(out / "density_predicted.csv")],
        ],
        "advice": [["advise", "images.npz", "--draws", "20", "--out", str(out / "advice")]],
    }


def run(out, groups):
    """Runs the commands of some groups on the same inputs, and keeps what each prints."""
    with tempfile.TemporaryDirectory() as place:
        make_inputs(Path(place))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        chosen = [(group, command) for group, own in commands(out).items() if group in groups for command in own]
        for number, (group, command) in enumerate(chosen):
            result = subprocess.run(
                [sys.executable, "-m", "vergence", *command], cwd=place, env=environment, capture_output=True, text=True
            )
            (out / f"{group}_{number:02}.txt").write_text(result.stdout.replace(str(out), "OUT"))
            if result.returncode:
                print(f"FAILED ({result.returncode}): vergence {' '.join(command)}\n{result.stderr[-2000:]}")


def numbers(value, path=""):
    """Yields every number or word of nested lists and dictionaries with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not any(word in str(key).lower() for word in UNTIMED):
                yield from numbers(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{index}]")
    elif isinstance(value, str):
        try:
            yield path, float(value)
        except ValueError:
            yield path, value
    else:
        yield path, value


def contents(path):
    """Returns what a file holds, as a dictionary from places to numbers and words; None for what is not compared."""
    if path.name in ("config.json", "advice.html") or path.suffix in (".html", ".txt", ".pt"):
        return None
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        tensors = sorted(load_file(path).items())
        marks = sorted(hashlib.sha256(v.tobytes()).hexdigest()[:16] for _, v in tensors if v.size)
        return {f"{mark} {marks[:i].count(mark)}": "tensor" for i, mark in enumerate(marks)}
    if path.suffix == ".json":
        return dict(numbers(json.loads(path.read_text())))
    if path.suffix == ".jsonl":
        return dict(numbers([json.loads(line) for line in path.read_text().splitlines()]))
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return dict(numbers({name: list(column) for name, *column in zip(*csv.reader(file), strict=True)}))
    return None


def difference(a, b):
    """Returns how far two values are apart: 0 for equal ones, the relative difference of numbers, infinity otherwise."""
    if a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
        return 0.0
    if isinstance(a, int | float) and isinstance(b, int | float):
        return abs(a - b) / max(abs(a), abs(b))
    return math.inf


def compare(before, after, groups):
    """Prints the differences between two folders, file by file; returns whether there is one."""
    differs = False
    for path in sorted(p for p in before.rglob("*") if p.is_file() and contents(p) is not None):
        name = path.relative_to(before)
        if not str(name).startswith(tuple(groups)):
            continue
        if not (after / name).exists():
            print(f"{name}: not written now")
            differs = True
            continue
        old, new = contents(path), contents(after / name)
        apart = {place: difference(old[place], new[place]) for place in old.keys() & new.keys()}
        unequal = {place: far for place, far in apart.items() if far}
        gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
        if unequal or gone or added:
            differs = True
            far = max(unequal, key=unequal.get, default=None)
            worst = f"; largest at {far}: {old[far]!r} -> {new[far]!r} ({unequal[far]:.1e})" if far else ""
            print(f"{name}: {len(unequal)} of {len(apart)} differ{worst}; gone {gone[:6]}, new {added[:6]}")
    return differs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["freeze", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    given = parser.parse_args()
    chosen = given.groups or list(commands(Path()))
    if given.action == "freeze":
        given.folder.mkdir(parents=True)
        run(given.folder.resolve(), chosen)
    else:
        with tempfile.TemporaryDirectory() as now:
            run(Path(now), chosen)
            differs = compare(given.folder, Path(now), chosen)
        print("different" if differs else "equal")
        sys.exit(differs)
