"""Checks real images next to a reference: which defects are ranked, flagged and framed; which duplicates are found.

README.md says how. The sets are folders with ``known``, ``new`` and ``truth.csv`` (file, odd, kind), some with ``masks`` or
``boxes.csv``; ``vectors`` has files of ``X`` and ``y``, and ``copies`` pairs of CIFAR-10's images that people judged.
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
from torchvision.datasets import CIFAR10

import vergence
from vergence.decide import GaussianDetector, NeighborDetector
from vergence.images.features import as_tensor
from vergence.images.frozen import FrozenNetwork, named_network

ENCODERS = ("auto", "patches", "baselines")
FOLDERS = ("magnetic_tiles", "solar_cells", "circuits")
SETS = (*FOLDERS, "vectors", "copies")
SEEDS = [0, 1, 2]  # 0 is the published split, others draw reference and new normal images again
ONCE = ("circuits", "copies")  # sets that have one split
SHARE = 0.6  # of normal vectors, for the reference
OTHERS = 700  # images of either part that are in no judged pair
BANK, EACH = 4_000, 64  # cells of a baseline, in all and of one image
LARGEST = 3  # cells of the score of an image
KEPT = 0.95  # variance that a subspace keeps


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        for encoder in a.encoders if name in FOLDERS else ("given",):
            for seed in range(1) if a.tiny or name in ONCE else a.seeds:
                yield {"set": name, "encoder": encoder, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of one set."""
    folder = Path(a.sets_root) / cell["set"]
    if cell["set"] == "vectors":
        return of_vectors(sorted(folder.glob("*.npz"))[: 1 if a.tiny else None], cell["seed"])
    if cell["set"] == "copies":
        return of_copies(folder, a.data_root, 20 if a.tiny else OTHERS)
    known, new, odd = split(folder, cell["seed"], 30 if a.tiny else None)
    timer = Timer()
    if cell["encoder"] == "baselines":
        scores = baselines(known, new)
        cpu = timer.processor_seconds() / (len(known) + len(new))
        return {**{name: auroc(odd, s) for name, s in scores.items()}, "cpu": round(cpu, 4)}
    found = vergence.check([str(p) for p in new], against=[str(p) for p in known], encoder=cell["encoder"])
    cpu = timer.processor_seconds()
    flag, p = np.array(found.items["flag"]) > 0, np.array(found.items["p_value"])
    framed = np.array([bool(found.frames(i)) for i in range(len(new))])
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
    if seed:
        normal = [*known, *(path for path in new if not odd[path.name])]
        order = np.random.default_rng(seed).permutation(len(normal))
        drawn = [normal[i] for i in order]
        known, new = drawn[: len(known)], [*drawn[len(known) :], *(path for path in new if odd[path.name])]
    known, new = known[:most], new if most is None else new[:most]
    return known, new, np.array([path.parent.name == "new" and odd[path.name] for path in new])


def of_vectors(files: list[Path], seed: int) -> dict[str, Any]:
    """Returns the AUROC of vectors next to a part of the normal ones, over files, and that of two detectors."""
    each: dict[str, list[float]] = {"auroc": [], "gaussian": [], "neighbors": []}
    timer, n = Timer(), 0
    for file in files:
        with np.load(file) as stored:
            x, odd = stored["X"].astype(np.float64), stored["y"] > 0
        normal = np.random.default_rng(seed).permutation(np.flatnonzero(~odd))
        known, new = (np.split(normal, [int(SHARE * len(normal))])[i] for i in (0, 1))
        new = np.concatenate([new, np.flatnonzero(odd)])
        found = vergence.check(x[new], against=x[known])
        each["auroc"].append(auroc(odd[new], np.array(found.items["score"])))
        for name, detector in (("gaussian", GaussianDetector()), ("neighbors", NeighborDetector(1))):
            each[name].append(auroc(odd[new], detector.fit(x[known]).anomaly_score(x[new])))
        n += len(new) + len(known)
    return {**{name: round(float(np.mean(values)), 4) for name, values in each.items()}, "cpu": timer.processor_seconds() / n}


def of_copies(folder: Path, root: str, others: int) -> dict[str, Any]:
    """Returns how many pairs of one shot are found, and how many images that nobody paired are called duplicates."""
    with next(folder.glob("*.csv")).open(newline="") as file:
        judged = {(int(row["TestID"]), int(row["TrainID"])): row["Judgment"] for row in csv.DictReader(file)}
    parts = []
    for side, train in enumerate((False, True)):
        data = CIFAR10(root, train=train).data
        mine = sorted({pair[side] for pair in judged})
        free = np.setdiff1d(np.arange(len(data)), mine)
        index = [*mine, *np.random.default_rng(0).choice(free, others, replace=False).tolist()]
        parts.append((index, [Image.fromarray(data[i]) for i in index]))
    (new, images), (known, reference) = parts
    found = vergence.check(images, against=reference, leaks=True).duplicates
    names = zip(found["path"], found["duplicate_of"], found["source"], strict=True)
    pairs = {(new[int(i)], known[int(j)]) for i, j, source in names if source == "reference"}
    hashed = {(new[i], known[j]) for i, j in hash_pairs(images, reference)}
    same = {pair for pair, judgment in judged.items() if judgment == "1"}
    free = set(new) - {i for i, _ in judged}
    row = {"judged": len(same), "others": others}
    for prefix, named in (("", pairs), ("phash_", hashed)):
        row |= {f"{prefix}found": len(named & same), f"{prefix}wrong": len({i for i, _ in named} & free)}
    return row


def hash_pairs(images: list[Image.Image], reference: list[Image.Image]) -> list[tuple[int, int]]:
    """Returns the pairs whose perceptual hashes differ in at most 8 of 64 bits, as `run.py` has it."""
    import imagehash

    a, b = (np.array([imagehash.phash(image).hash.ravel() for image in part]) for part in (images, reference))
    return [tuple(pair) for pair in np.argwhere((a[:, None] != b[None]).sum(axis=2) <= 8).tolist()]


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
    options = {"sets_root": DATA, "data_root": DATA, "sets": some(SETS), "encoders": some(ENCODERS), "seeds": SEEDS}
    main(__doc__, "check_real", options, cells, measure, tiny={"sets": first})
