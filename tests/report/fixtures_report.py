"""A run folder as training and evaluation leave it: real digits, with numbers measured on their pixels."""

import copy
import json

import numpy as np

CLASSES = [str(digit) for digit in range(10)]
TERMS = {"directional": (560.0, 431.25), "radial": (9.0, 3.5), "kl": (22.0, 61.5)}


def digits(n):
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.repeat(np.repeat(found.images[:n] * 255 / 16, 2, 1), 2, 2).round().astype(np.uint8)
    return found.data[:n].astype(np.float32), found.target[:n].astype(np.int64), images[:, None]


def config(**changes):
    parts = {
        "vergence": "0.1.0",
        "format": 1,
        "data": {"source": "digits", "root": None, "keep_classes": list(range(9)), "limit": None},
        "views": {"crop": [0.2, 1.0], "flip": 0.0},
        "model": {"encoder": {"kind": "small", "deep": False}, "objective": "vje", "options": {"nu": 3.0, "beta": 1.0}},
        "fit": {"epochs": 30, "batch_size": 256, "optimizer": "adamw", "lr": 0.001, "seed": 0},
    }
    facts = {"classes": CLASSES, "n_train": 1293, "n_test": 360, "shape": [1, 16, 16], "read_shape": [1, 16, 16], "kind": "image"}
    facts |= {"note": "20 % held out, stratified, seed 0", "parameters": 1234567, "device": "cpu, 2 threads"}
    facts |= {"precision": "bf16-mixed", "commit": "0123456789ab"}
    return parts | {"metadata": facts} | changes


def metrics():
    rows = []
    for step in range(5, 155, 5):
        share = np.exp(-step / 40)
        terms = {name: end + (start - end) * share for name, (start, end) in TERMS.items()}
        rows.append({"step": step, "epoch": step / 5, "loss": sum(terms.values()), **terms, "lr": 0.001 * share})
        rows[-1] |= {"images_per_second": 780.0 + step % 7, "seconds": 0.3 * step}
        rows.append({"step": step, "epoch": step / 5, "std": 0.9 - 0.2 * share, "effective_rank": 31.0 - 20 * share})
        rows[-1] |= {"variance_mean": 0.31 + 0.6 * share, "variance_cv": 0.77 * (1 - share)}
    return [*rows, {"step": 50, "epoch": 10.0, "knn": 0.8125}, {"step": 150, "epoch": 30.0, "knn": 0.9375}]


PROBE = {"train_accuracy": 1.0, "iterations": 40, "converged": True}


def representation(kind, dim, base, probe):
    knn = {k: {"majority": base - 0.004 * i, "weighted": base - 0.003 * i} for i, k in enumerate(["1", "5", "20", "30", "200"])}
    collapse = {"std": 0.9, "std_min": 0.4, "effective_rank": 31.0, "norm": 16.0}
    return {"kind": kind, "dim": dim, "knn": knn, "probe": PROBE | {"accuracy": probe}, "collapse": collapse}


def evaluation(**changes):
    detector = {"kind": "model", "auroc": 0.914, "aupr": 0.655, "fpr95": 0.312}
    scores = {
        "joint": detector,
        "directional": detector | {"auroc": 0.902, "aupr": 0.64, "fpr95": 0.35},
        "entropy": detector | {"auroc": 0.583, "aupr": 0.155, "fpr95": 0.851},
        "knn distance on z": {"kind": "baseline", "auroc": 0.887, "aupr": 0.61, "fpr95": 0.402},
        "knn distance on pixels": {"kind": "baseline", "auroc": 0.871, "aupr": 0.66, "fpr95": 0.455},
    }
    return {
        "protocol": {"bank": 1293, "test": 324, "epoch": 30, "seed": 0, "seconds": 12.5, "objective": "vje"}
        | {"note": "anomalous classes left out"},
        "representations": {
            "z": representation("model", 256, 0.952, 0.961), "mu": representation("model", 256, 0.944, 0.955),
            "untrained": representation("baseline", 256, 0.801, 0.874), "pixels": representation("baseline", 256, 0.915, 0.972),
            "pca": representation("baseline", 64, 0.921, 0.969),
        },
        "posterior": {"variance_mean": 0.3125, "variance_cv": 0.7725, "norm_z": 16.125, "norm_mu": 12.25, "entropy": 250.5},
        "anomaly": {"inliers": CLASSES[:9], "anomalies": ["9"], "n_inliers": 324, "n_anomalies": 36, "scores": scores},
    } | changes  # fmt: skip


def examples(n=240, queries=4):
    """Principal components and nearest neighbors of the pixels; the score is the distance to the mean of the inliers."""
    x, label, thumbnail = digits(n)
    centered = x - x.mean(0)
    anomalous = label == 9
    score = np.linalg.norm(x - x[~anomalous].mean(0), axis=1).astype(np.float32) + 8 * anomalous
    distance = np.linalg.norm(x[:queries, None] - x[None], axis=2)
    return {
        "xy": centered @ np.linalg.svd(centered, full_matrices=False)[2][:2].T, "label": label, "score": score.astype(np.float32),
        "anomalous": anomalous, "thumbnail": thumbnail,
        "name": np.array([f"test/{digit}/{i:04}.png" for i, digit in enumerate(label)]),
        "neighbors": np.argsort(distance, axis=1)[:, :9],
    }  # fmt: skip


def write_run(run, *, config=None, rows=None, evaluation=None, examples=None, skipped=()):
    """Writes those files of a run folder that are given."""
    run.mkdir(parents=True, exist_ok=True)
    for name, record in (("config.json", config), ("evaluation.json", evaluation)):
        if record is not None:
            (run / name).write_text(json.dumps(record))
    if rows is not None:
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if examples is not None:
        np.savez(run / "examples.npz", **examples)
    if skipped:
        (run / "skipped.csv").write_text("name,reason\n" + "".join(f'"{name}","{reason}"\n' for name, reason in skipped))
    return run


def nodes(value, path=()):
    """Yields the path of every value, containers included."""
    if path:
        yield path
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from nodes(entry, (*path, key))


def changed(record, path, value):
    record = copy.deepcopy(record)
    holder = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return record
