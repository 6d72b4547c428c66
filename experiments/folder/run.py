"""Judges folders of photographs by themselves, with oddities planted among them: how well they are ranked, and what is flagged.

README.md says how.
"""

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.photographs import blood_cells
from experiments.runner import DATA, SEEDS, first, main
from experiments.shared import Timer, auroc, seeded
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST
from torchvision.transforms.v2.functional import gaussian_blur

import vergence
from vergence.data.items import ArrayItems
from vergence.detection import pixel_statistics

KINDS = ("digits", "clothes", "noise", "mixed")
SHARES = (0.005, 0.02, 0.05)
CELLS = "cells"  # the kind of oddities among tiles of blood cells
SIDE, SIGMA = 64, 1.07  # of a tile; of its blur, 4 pixels of the 240 that it had
NEIGHBORS, COMPONENTS = 5, 64  # of the controls


def sample(images: Any, n: int, seed: int) -> torch.Tensor:
    return torch.as_tensor(images[np.random.default_rng(seed).permutation(len(images))[:n]])


def gray(kind: Any, root: str, n: int, seed: int) -> torch.Tensor:
    """Returns n gray images of a set, as colored ones of 32 pixels."""
    x = sample(kind(root).data, n, seed)[:, None].float()
    return F.interpolate(x, size=32, mode="bilinear", antialias=True).round().byte().expand(-1, 3, -1, -1)


def oddities(kind: str, root: str, n: int, seed: int) -> torch.Tensor:
    """Returns n images (n, 3, 32, 32) that are not photographs."""
    if kind == "mixed":
        numbers = [len(part) for part in np.array_split(np.arange(n), 3)]
        return torch.cat([oddities(name, root, m, seed) for name, m in zip(KINDS[:3], numbers, strict=True)])
    if kind == "noise":
        return torch.randint(0, 256, (n, 3, 32, 32), generator=seeded(seed), dtype=torch.uint8)
    return gray(MNIST if kind == "digits" else FashionMNIST, root, n, seed)


@functools.cache
def tiles(root: str) -> torch.Tensor:
    """Returns the middle squares (M, 3, 64, 64) of the quarters of all blood-cell photographs."""
    squares = []
    for file in sorted(blood_cells(Path(root))[0].glob("*.jpg")):
        with Image.open(file) as image:
            whole = image.convert("RGB").resize((640, 480))
        quarters = [whole.crop((x + 40, y, x + 280, y + 240)) for y in (0, 240) for x in (0, 320)]
        squares += [np.asarray(quarter.resize((SIDE, SIDE), Image.Resampling.BOX)) for quarter in quarters]
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)


def altered(root: str, spare: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """Returns n images (n, 3, 64, 64), of each kind in turn, of tiles that the folder does not have."""
    others = F.interpolate(sample(CIFAR10(root).data, n, seed).permute(0, 3, 1, 2).float(), size=SIDE, mode="bicubic")
    strokes = 255 - F.interpolate(gray(MNIST, root, n, seed).float(), size=SIDE)
    x = spare[:n].float()
    gray_ones = x.mean(1, keepdim=True).expand_as(x)
    kinds = [others, strokes, torch.zeros_like(x), gaussian_blur(x, [9, 9], [SIGMA, SIGMA]), 255 - x, gray_ones, x / 4]
    return torch.stack([kinds[i % len(kinds)][i] for i in range(n)]).clamp(0, 255).byte()


def photographs(root: str, kind: str, m: int, n: int, seed: int) -> torch.Tensor:
    """Returns n images, the last m of which are odd."""
    if kind == CELLS:
        x = sample(tiles(root), len(tiles(root)), seed)
        return torch.cat([x[: n - m], altered(root, x[n - m :], m, seed)]) if m else x[:n]
    x = sample(CIFAR10(root).data, n - m, seed).permute(0, 3, 1, 2)
    return torch.cat([x, oddities(kind, root, m, seed)]) if m else x


def controls(x: torch.Tensor, odd: np.ndarray) -> dict[str, float]:
    """Returns the AUROC of plain scores of images (N, 3, H, W)."""
    small = F.interpolate(x.float() / 255, size=32, mode="area")
    pixels, channels = small.flatten(1).numpy(), torch.cat([small.mean((2, 3)), small.std((2, 3))], 1).numpy()
    scores = {
        "fifth neighbor, pixels": neighbor(pixels),
        "fifth neighbor, principal components": neighbor(PCA(COMPONENTS, random_state=0).fit_transform(pixels)),
        "isolation forest, statistics": -IsolationForest(random_state=0).fit(s := pixel_statistics(x).numpy()).score_samples(s),
        "fifth neighbor, means and deviations of channels": neighbor(StandardScaler().fit_transform(channels)),
    }
    return {name: auroc(odd, values) for name, values in scores.items()}


def neighbor(x: np.ndarray) -> np.ndarray:
    """Returns the distance of each item to its fifth neighbor, (N,)."""
    return NearestNeighbors(n_neighbors=NEIGHBORS + 1).fit(x).kneighbors(x)[0][:, -1]  # the first one is the item


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    settings = [("digits", 0.0, 3000), *((kind, share, 3000) for kind in KINDS for share in SHARES)]
    settings += [(CELLS, share, 600) for share in (0.0, *SHARES)]
    for seed in a.seeds:
        for kind, share, n in [("digits", 0.02, 300), (CELLS, 0.05, 140)] if a.tiny else settings:
            yield {"kind": kind, "share": share, "n": n, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of one folder."""
    n, seed = cell["n"], cell["seed"]
    m = round(cell["share"] * n)
    order = torch.randperm(n, generator=seeded(seed))
    x, odd = photographs(a.data_root, cell["kind"], m, n, seed)[order], (order >= n - m).numpy()
    timer = Timer()
    found = vergence.score_folder(ArrayItems(x))
    seconds = round(timer.seconds(), 1)
    grouped = np.array([bool(name) for name in found.columns["group"]])
    row = {"flagged_odd": int(found.flag[odd].sum()), "flagged_others": int(found.flag[~odd].sum()), "seconds": seconds}
    row |= {"grouped_odd": int(grouped[odd].sum()), "grouped_others": int(grouped[~odd].sum())}
    if m:
        precision = round(float(odd[np.argsort(-found.score)[:m]].mean()), 3)
        row |= {"auroc": auroc(odd, found.score), "precision": precision, "controls": controls(x, odd)}
    return row


if __name__ == "__main__":
    main(__doc__, "folder", {"data_root": DATA, "seeds": SEEDS}, cells, measure, tiny={"seeds": first})
