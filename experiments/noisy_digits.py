"""Pairs of bad photographs of digits: what two of them share is the digit, and their pixels suffer from noise.

    python -m experiments.noisy_digits pairs.npz

Scikit-learn's digits are photographed twice each at 16 pixels, each time with another contrast and brightness and with strong
noise, as in docs/tutorials/two_views.md.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import to_bytes
from vergence.utils.files import replacing

__all__ = ["SETTINGS", "photographs", "write_pairs"]

SIDE, NOISE, SHOTS = 16, 0.3, 12
SETTINGS: dict[str, Any] = {
    "recipe": "vje_small",
    "epochs": 5,
    "batch_size": 64,
    "lr": 2e-3,
    "encoder_lr": 1.0,
    "warmup_epochs": 1.0,
    "knn_every": 1,
}


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


if __name__ == "__main__":
    write_pairs(Path(sys.argv[1]), 0)
