"""The demonstration: learn what two bad photographs of one digit share, and find the digits that look unusual.

Scikit-learn's digits are photographed twice each at 16 pixels, each time with another contrast and brightness and with strong
noise. Pixels suffer from that; what two photographs of one digit share is the digit. One class is held out as the anomaly.
"""

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import to_bytes
from vergence.evaluation.judgment import accuracy_error, auroc_error
from vergence.report.page import write_report
from vergence.report.tables import show_evaluation
from vergence.runs.evaluate import evaluate
from vergence.runs.train import train
from vergence.training.records import Evaluation
from vergence.utils.files import replacing

__all__ = ["SETTINGS", "demo", "photographs", "write_pairs"]

SIDE, NOISE, SHOTS = 16, 0.3, 12
HELD_OUT = 9
SETTINGS: dict[str, Any] = {
    "recipe": "vje_small",
    "epochs": 5,
    "batch_size": 64,
    "lr": 2e-3,
    "encoder_lr": 1.0,
    "warmup_epochs": 1.0,
    "knn_every": 1,
}


def demo(out: Path, *, seed: int = 0) -> Evaluation:
    """Trains VJE on pairs of noisy photographs of digits, evaluates it beside its controls, and writes a report.

    Args:
        out: Run folder; the run of an earlier demo is replaced.
        seed: Seed of the photographs and of the training.

    Returns:
        What ``evaluation.json`` holds.

    Raises:
        ValueError: ``out`` holds something that is not a demo's run.
    """
    started = time.monotonic()
    source = out.with_name(f"{out.name}-pairs.npz")
    if out.exists() and any(out.iterdir()) and not source.exists():
        raise ValueError(f"expected {out} to be empty or the run of a demo, found other files in it; choose another --out")
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"Digits, each photographed twice with its own noise; class {HELD_OUT} is left out of the training.")
    write_pairs(source, seed)
    keep = tuple(c for c in range(10) if c != HELD_OUT)
    run = train(str(source), out=out, keep_classes=keep, seed=seed, **SETTINGS)
    print(f"trained on {run.folder.metadata.n_train:,} pairs in {time.monotonic() - started:.0f} s; now evaluating ...")
    record = evaluate(run)
    show_evaluation(record)
    report = write_report(out)
    for line in lessons(record):
        print(line)
    print(f"{time.monotonic() - started:.0f} s in all. Open {report}")
    return record


def write_pairs(path: Path, seed: int) -> None:
    """Writes pairs of photographs: the same digits of the training part SHOTS times, others once for the test part."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / digits.images.max()
    clean = F.interpolate(images, size=SIDE, mode="bilinear", align_corners=False)
    order = torch.randperm(len(clean), generator=torch.Generator().manual_seed(0))  # the split does not depend on the seed
    test, train = order[: len(order) // 5], order[len(order) // 5 :].repeat(SHOTS)
    generator = torch.Generator().manual_seed(seed)
    shots = {"context": train, "target": train, "context_test": test, "target_test": test}
    arrays: dict[str, Any] = {name: photographs(clean[index], generator).numpy() for name, index in shots.items()}
    labels = {"labels": digits.target[train.numpy()], "labels_test": digits.target[test.numpy()]}
    with replacing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays, **labels)


def photographs(clean: Tensor, generator: torch.Generator) -> Tensor:
    """Returns uint8 images each with its own contrast in [0.4, 0.8], brightness in [0.1, 0.4] and Gaussian noise of 0.3.

    Args:
        clean: (N, 1, H, W) in [0, 1].
        generator: Source of the randomness.
    """
    contrast, brightness = (torch.rand(len(clean), 1, 1, 1, generator=generator) for _ in range(2))
    shown = clean * (0.4 + 0.4 * contrast) + 0.1 + 0.3 * brightness
    noisy = shown + NOISE * torch.randn(shown.shape, generator=generator)
    return to_bytes(noisy)


def lessons(record: Evaluation) -> list[str]:
    """Returns three lines: what was learned, how well unseen digits are detected, and what to try next."""
    assert record.anomaly is not None
    accuracy = {name: r.knn[30].majority for name, r in record.representations.items() if r.knn is not None}
    best = max(("untrained", "pixels", "pca"), key=lambda name: accuracy[name])
    scores = record.anomaly.scores
    control = max((n for n in scores if scores[n].kind == "control"), key=lambda name: scores[name].auroc)
    ours = scores["detector"].auroc
    error = auroc_error(ours, record.anomaly.n_anomalies, record.anomaly.n_inliers)
    apart = accuracy_error(accuracy["z"], record.protocol.test)
    return [
        f"1. Without labels, z groups digits {_compared(accuracy['z'], accuracy[best], apart)} the best control: a majority vote "
        f"of the 30 nearest neighbors classifies {accuracy['z']:.1%} ± {apart:.1%} of the test digits correctly; on {best} "
        f"{accuracy[best]:.1%} (± is the standard error of {record.protocol.test} digits).",
        f"2. The run's detector finds the unseen digit {_compared(ours, scores[control].auroc, error)} the best control: "
        f"AUROC {ours:.3f} ± {error:.3f}, {control} {scores[control].auroc:.3f} (0.5 is chance; ± is the standard error of "
        f"{record.anomaly.n_anomalies} photographs of it).",
        "3. Next: your own images with `vergence train FOLDER --out runs/mine`, or `vergence train --help`.",
    ]


def _compared(ours: float, theirs: float, error: float) -> str:
    """Returns which of two values is larger, in words, where the standard error of the first tells them apart."""
    if abs(ours - theirs) <= error:
        return "about as well as"
    return "better than" if ours > theirs else "less well than"
