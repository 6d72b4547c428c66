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
from vergence.report.page import headlines, write_report
from vergence.report.tables import show_evaluation, tables
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
    print(f"The class that was left out, {HELD_OUT}, is the anomaly. Each value stands beside its best control:")
    for sentence in headlines(tables(record)):
        print(f"- {sentence}")
    print("Next: your own images with `vergence train FOLDER --out runs/mine`, or `vergence train --help`.")
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
