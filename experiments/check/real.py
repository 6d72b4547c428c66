"""Checks images with real defects next to a reference: what is ranked, flagged and framed. README.md says how.

The sets are folders with ``known``, ``new`` and ``truth.csv`` (file, odd, kind); some have ``masks`` or ``boxes.csv``.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.check.run import peak
from experiments.runner import DATA, first, main, some
from experiments.shared import Timer, auroc
from PIL import Image

import vergence
from vergence.decide.density import GaussianDetector
from vergence.images.features import as_tensor
from vergence.images.frozen import FrozenNetwork, named_network

SETS = ("magnetic_tiles", "solar_cells", "circuits")
SEEDS = [0, 1, 2]  # 0 is the published split, others draw reference and new normal images again
BANK, EACH = 4_000, 64  # cells of a baseline, in all and of one image
LARGEST = 3  # cells of the score of an image
KEPT = 0.95  # variance that a subspace keeps


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        for encoder in ("auto", "patches", "baselines"):
            for seed in range(1) if a.tiny else a.seeds:
                yield {"set": name, "encoder": encoder, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of one set."""
    known, new, odd = split(Path(a.data_root) / cell["set"], cell["seed"], 30 if a.tiny else None)
    timer = Timer()
    if cell["encoder"] == "baselines":
        scores = baselines(known, new)
        cpu = timer.processor_seconds() / (len(known) + len(new))
        return {**{name: auroc(odd, s) for name, s in scores.items()}, "cpu": round(cpu, 4)}
    found = vergence.check([str(p) for p in new], against=[str(p) for p in known], encoder=cell["encoder"])
    cpu = timer.processor_seconds()
    flag, p = np.array(found.items["flag"]) > 0, np.array(found.items["p_value"])
    framed = np.array([bool(found.marked(i)) for i in range(len(new))])
    right = [r for i, path in enumerate(new) if odd[i] and (r := placed(path, found.map(i))) is not None]
    return {
        "odd": int(odd.sum()),
        "auroc": auroc(odd, np.array(found.items["score"])),
        "flagged": int(flag.sum()),
        "false": int((flag & ~odd).sum()),
        "power": round(float((flag & odd).sum() / odd.sum()), 3),
        "normal_below_.05": round(float((p[~odd] <= 0.05).mean()), 3),
        "framed_normal": round(float(framed[~odd].mean()), 3),
        "framed_odd": round(float(framed[odd].mean()), 3),
        "region_right": round(float(np.mean(right)), 3) if right else None,
        "cpu": round(cpu / (len(known) + len(new)), 4),
        "mb": peak(),
    }


def split(folder: Path, seed: int, most: int | None) -> tuple[list[Path], list[Path], np.ndarray]:
    """Returns reference and new images of a set, and which of the latter are anomalies."""
    with (folder / "truth.csv").open(newline="") as file:
        odd = {row["file"]: row["odd"] == "1" for row in csv.DictReader(file)}
    known, new = sorted((folder / "known").iterdir()), [folder / "new" / name for name in sorted(odd)]
    if seed and folder.name != "circuits":  # where a new image and its reference belong together
        normal = [*known, *(path for path in new if not odd[path.name])]
        order = np.random.default_rng(seed).permutation(len(normal))
        drawn = [normal[i] for i in order]
        known, new = drawn[: len(known)], [*drawn[len(known) :], *(path for path in new if odd[path.name])]
    known, new = known[:most], new if most is None else new[:most]
    return known, new, np.array([path.parent.name == "new" and odd[path.name] for path in new])


def placed(path: Path, heatmap: np.ndarray) -> bool | None:
    """Returns whether the largest value of a heatmap lies in a defect, or next to it; None where its place is not known."""
    with Image.open(path) as image:
        width, height = image.size
    r, c = np.unravel_index(int(heatmap.argmax()), heatmap.shape)
    y, x = (r + 0.5) / len(heatmap) * height, (c + 0.5) / len(heatmap) * width
    near_y, near_x = height / len(heatmap), width / len(heatmap)
    if (boxes := path.parents[1] / "boxes.csv").is_file():
        with boxes.open(newline="") as file:
            mine = [[float(row[k]) for k in ("x0", "y0", "x1", "y1")] for row in csv.DictReader(file) if row["file"] == path.name]
        return any(a - near_x <= x <= b + near_x and s - near_y <= y <= t + near_y for a, s, b, t in mine) if mine else None
    if not (masks := list((path.parents[1] / "masks").glob(f"{path.stem}.*"))):
        return None
    with Image.open(masks[0]) as image:
        mask = np.asarray(image.convert("L").resize((width, height))) > 127
    top, left = max(0, int(y - near_y)), max(0, int(x - near_x))
    return bool(mask[top : int(y + near_y) + 1, left : int(x + near_x) + 1].any())


def baselines(known: list[Path], new: list[Path]) -> dict[str, np.ndarray]:
    """Returns scores of new images by the cells of the same network: nearest cell, one Gaussian, residual of a subspace."""
    network = named_network("efficientnet-lite0")
    rng, bank = np.random.default_rng(0), []
    for path in known:
        x = of_cells(network, path)
        bank.append(x[rng.permutation(len(x))[:EACH]])
    x = np.concatenate(bank)
    gaussian = GaussianDetector(shrinkage=0.01).fit(x)
    mean, scale = x.mean(0), x.std(0) + 1e-6
    values, vectors = np.linalg.eigh(np.cov(((x - mean) / scale).T))
    few_directions = 1 + int(np.searchsorted(np.cumsum(values[::-1]) / values.sum(), KEPT))
    kept = vectors[:, len(values) - few_directions :]
    few = torch.from_numpy(((x - mean) / scale)[rng.permutation(len(x))[:BANK]].astype(np.float32))
    scores: dict[str, list[float]] = {"patchcore_like": [], "padim_like": [], "subspace_like": []}
    for path in new:
        y = of_cells(network, path)
        z = (y - mean) / scale
        each = {
            "patchcore_like": torch.cdist(torch.from_numpy(z.astype(np.float32)), few).amin(1).numpy(),
            "padim_like": gaussian.anomaly_score(y),
            "subspace_like": np.square(z).sum(1) - np.square(z @ kept).sum(1),
        }
        for name, values_of in each.items():
            scores[name].append(float(np.sort(values_of)[-LARGEST:].mean()))
    return {name: np.array(s) for name, s in scores.items()}


def of_cells(network: FrozenNetwork, path: Path) -> np.ndarray:
    """Returns the cells (n, D) of an image."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return network.features(as_tensor(np.ascontiguousarray(pixels)), 320)[1].flatten(1).T.double().numpy()


if __name__ == "__main__":
    main(__doc__, "check_real", {"data_root": DATA, "sets": some(SETS), "seeds": SEEDS}, cells, measure, tiny={"sets": first})
