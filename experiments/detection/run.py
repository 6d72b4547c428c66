"""Detects images of foreign sets without labels: what is the encoder's part, and what the detector's. README.md says how."""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, SIZE, network
from experiments.detection import peers
from experiments.detection.stages import stage_features
from experiments.runner import Option, main, some
from experiments.shared import Timer, apart, images, kept_run, seeded
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import gaussian_blur

import vergence
from vergence.data.config import DataConfig
from vergence.data.pixels import center_crop, fit_shape
from vergence.data.sources import open_data
from vergence.decide import FeatureSets, GaussianDetector, MixtureDetector, NeighborDetector
from vergence.images.statistics import pixel_statistics
from vergence.learn.encoders.building import encoder as build_encoder
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import patch_dictionary
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.calibrated import run_sets

LIMIT, CALIBRATION, HELD, SHOWN, CORRUPTED = 10_000, 2_000, 2_000, 1_000, 400  # numbers of images
ENCODERS: dict[str, dict[str, Any]] = {
    "patches": {"recipe": "patches"},
    "vje": {"recipe": "vje_small"},
    "gje": {"recipe": "gje_small"},
    "contrastive": {"recipe": "contrastive_small"},
    "distilled": {"recipe": "distilled_vje"},
    "pretrained": {"size": SIZE},  # and those of the network
}
CORRUPTIONS = {  # strengths of the five severities
    "noise": (8, 13, 20, 31, 46),  # deviation, in gray levels
    "blur": (0.4, 0.6, 0.9, 1.3, 2.0),  # deviation of the Gaussian, in pixels
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "brightness": (20, 40, 60, 80, 110),
    "occlusion": (4, 8, 12, 16, 20),  # side of a gray square
    "pixelate": (24, 20, 16, 12, 8),  # pixels that remain per side
    "saturation": (0.6, 0.3, 0.0, 2.0, 3.5),
}
PARTS = ("train", "cal", "held", "test")  # of the reference
KINDS = {"foreign": False, "corrupted": True}
WITHOUT_EPOCHS = ("patches", "pretrained")
WIDE = 2000  # features of a stage from which it is left out
WHOLE = ("statistics", "patches", "z")
VARIANTS = {"default 6": WHOLE, "default 6 without z": WHOLE[:2], "default 6 without patches": ("statistics", "z")}
Features = dict[str, dict[str, np.ndarray]]  # level -> set -> (N, D)


def encoder_settings(name: str) -> dict[str, Any]:
    """Returns the settings of an encoder's run."""
    return ENCODERS[name] | (network() if name == "pretrained" else {})


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Returns images of bytes (N, C, H, W) convolved with a Gaussian."""
    width = 2 * min(8, x.shape[2] - 1) + 1
    return gaussian_blur(x.float(), [width, width], [sigma, sigma]).round().clamp(0, 255).byte()


def corrupted(x: Tensor, kind: str, severity: int, g: torch.Generator) -> Tensor:
    """Returns images of bytes with a corruption of severity 1 to 5."""
    strength, y = CORRUPTIONS[kind][severity - 1], x.float()
    if kind == "blur":
        return blurred(x, strength)
    if kind == "noise":
        y = y + torch.randn(y.shape, generator=g) * strength
    elif kind in ("contrast", "saturation"):
        m = y.mean((1, 2, 3) if kind == "contrast" else 1, keepdim=True)
        y = m + (y - m) * strength
    elif kind == "brightness":
        y = y + strength
    elif kind == "pixelate":
        y = F.interpolate(F.interpolate(y, (int(strength),) * 2, mode="area"), x.shape[2:], mode="nearest")
    else:
        n = int(strength)
        for one in y:
            a, b = torch.randint(0, x.shape[2] - n + 1, (2,), generator=g).tolist()
            one[:, a : a + n, b : b + n] = 127
    return y.round().clamp(0, 255).byte()


def reference(source: str, root: str, limit: int) -> dict[str, Tensor]:
    """Returns the training images of the encoder, calibration and development images, and test images."""
    run, full = (open_data(DataConfig(source=source, root=root, limit=n)) for n in (limit, None))
    train, everything = images(run.train), images(full.train)
    seen = {one.tobytes() for one in train.numpy()}
    order = torch.randperm(len(everything), generator=seeded(7)).tolist()
    free = [i for i in order if everything[i].numpy().tobytes() not in seen][: CALIBRATION + HELD]
    test = images(full.test, torch.randperm(len(full.test), generator=seeded(1))[:HELD])
    return {"train": train, "cal": everything[free[:CALIBRATION]], "held": everything[free[CALIBRATION:]], "test": test}


def foreign(name: str, root: str, shape: tuple[int, ...]) -> Tensor:
    """Returns the images of a foreign set, as bytes of a shape."""
    if name == "noise":
        return torch.randint(0, 256, (SHOWN, *shape), generator=seeded(4)).byte()
    if name == "cifar100":
        return torch.from_numpy(np.load(Path(root) / "cifar100_subset.npz")["images"]).permute(0, 3, 1, 2).contiguous()
    if name == "omniglot":
        x = torch.from_numpy(np.load(Path(root) / "omniglot.npz")["images"])
        x = x[torch.randperm(len(x), generator=seeded(3))[:SHOWN]]
        return fit_shape((x.float() * 255 / x.max()).byte()[:, None], shape)
    part = open_data(DataConfig(source=name, root=root)).test
    return fit_shape(images(part, torch.randperm(len(part), generator=seeded(2))[:SHOWN]), shape)


@functools.lru_cache(maxsize=1)
def sets(source: str, root: str, limit: int, most: int | None = None) -> dict[str, Tensor]:
    """Returns at most so many images of each of the reference's parts, and of each set that is told from its test images."""
    parts = reference(source, root, limit)
    test = parts["test"]
    names = ("cifar100", "omniglot", "fashion_mnist", "mnist", "noise")
    for name in names if source == "cifar10" else ("mnist", "omniglot", "cifar10", "noise"):
        parts[name] = foreign(name, root, tuple(test.shape[1:]))
    parts |= {"blurred": blurred(test[:SHOWN], 2.0), "inverted": 255 - test[:SHOWN]}
    for kind in CORRUPTIONS if test.shape[1] == 3 else [kind for kind in CORRUPTIONS if kind != "saturation"]:
        parts |= {f"{kind} {s}": corrupted(test[:CORRUPTED], kind, s, seeded(6)) for s in range(1, 6)}
    return {name: x[:most] for name, x in parts.items()}


def pixel_levels(train: Tensor) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns the features that need no encoder; a dictionary of patches is learned from the training images."""
    maps = patch_dictionary(train.split(500), train.shape[1:], Patches(atoms=128, stride=2, pool=1, second=0))
    return lambda x: {"statistics": pixel_statistics(x), "patches": maps(x.float() / 255), "pixels": x.flatten(1).float() / 255}


def run_of(a: argparse.Namespace, source: str, name: str, seed: int) -> vergence.Run:
    """Returns an encoder's run, which the cache keeps."""
    short = {"epochs": a.epochs} if a.epochs is not None and name not in WITHOUT_EPOCHS else {}
    settings = {**encoder_settings(name), **short, "limit": a.limit, "root": a.data_root, "device": "cpu", "seed": seed}
    return kept_run(a.scratch / "runs" / f"{source} {name} {seed}", source, **settings)


def encoder_levels(a: argparse.Namespace, source: str, name: str, seed: int, x: Tensor) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns the features of a trained encoder."""
    if name == "untrained":
        torch.manual_seed(seed)
        unit = x.float() / 255
        net = build_encoder("small", tuple(x.shape[1:]), unit.mean((0, 2, 3)), unit.std((0, 2, 3)))
        net.train()(x[:2000])  # statistics of its batch normalization
        net.eval()
        return lambda b: stage_features(net, b)
    run = run_of(a, source, name, seed)

    def levels(b: Tensor) -> dict[str, Tensor]:
        b = b if run.folder.metadata.crop_size() is None else center_crop(b, run.folder.metadata.crop_size())
        found = {level: f for level, f in stage_features(run.method.encoder, b).items() if f.shape[1] < WIDE}
        if isinstance(run.method.objective, DensityObjective):
            u = run.method.projector(found["z"])
            found["mu"] = run.objective.posterior(u).mean
            found |= {f"own_{how}": score[:, None] for how, score in run.objective.scores(u).items()}
        return found

    return levels


def features(a: argparse.Namespace, source: str, name: str, seed: int, parts: dict[str, Tensor]) -> Features:
    """Returns the features of all sets, from the cache where it has them."""
    file = a.scratch / f"{source} {name} {seed}.npz"
    if not file.exists():
        levels = pixel_levels(parts["train"]) if name == "pixels" else encoder_levels(a, source, name, seed, parts["train"])
        arrays: dict[str, np.ndarray] = {}
        for part, x in parts.items():
            with torch.inference_mode():
                found = [levels(b) for b in x.split(250)]
            arrays |= {f"{part}|{key}": torch.cat([one[key].float() for one in found]).numpy() for key in found[0]}
        np.savez(file, **arrays)
    out: Features = {}
    with np.load(file) as stored:
        for key in stored.files:
            part, level = key.split("|")
            out.setdefault(level, {})[part] = stored[key]
    return out


def aurocs(scores: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the AUROC of each set against the test images."""
    return {name: apart(scores["test"], values) for name, values in scores.items() if name not in PARTS}


def means(found: dict[str, float]) -> dict[str, float]:
    """Returns the mean over foreign sets and over corruptions."""
    corrupted = {name: name[-1].isdigit() and " " in name for name in found}
    groups = {kind: [found[name] for name in found if corrupted[name] == is_kind] for kind, is_kind in KINDS.items()}
    return {f"mean_{kind}": float(np.mean(values)) for kind, values in groups.items() if values}


def combined(levels: Iterable[str]) -> FeatureSets:
    """Returns a run's detector of some levels, unfitted; statistics are what a run calls ``pixels``."""
    names = {"pixels" if name == "statistics" else name: name for name in levels}
    sets = run_sets(names)
    detectors = {names[name]: detector for name, detector in sets.detectors.items()}
    return FeatureSets(detectors, weights={names[name]: w for name, w in (sets.weights or {}).items()})


def scored(detector: Any, X: Features, levels: Iterable[str]) -> dict[str, np.ndarray]:
    """Fits a detector to the training images, calibrates it if it combines levels, and scores all sets."""
    chosen = {level: X[level] for level in levels}
    several, some_level = isinstance(detector, FeatureSets), next(iter(chosen.values()))

    def of(part: str) -> Any:
        return {level: values[part] for level, values in chosen.items()} if several else some_level[part]

    detector.fit(of("train"))
    if several:
        detector.calibrate(of("cal"))
    return {part: detector.anomaly_score(of(part)) for part in some_level if part != "train"}


def detectors(X: Features, name: str) -> dict[tuple[str, str], Any]:
    """Returns the detectors of an encoder by level and name; None for the objective's own score."""
    if name == "pixels":
        return {
            ("statistics", "Gaussian"): GaussianDetector(),
            ("statistics", "kNN"): NeighborDetector(20, max_items=2000),
            ("patches", "Gaussian"): GaussianDetector(),
            ("patches", "kNN"): NeighborDetector(20, max_items=2000),
            ("pixels", "kNN, cosine, 2,000 items"): NeighborDetector(metric="cosine", standardize=False, max_items=2000),
            ("pixels", "Gaussian, 64 directions"): GaussianDetector(64, standardize=False),
        }
    narrow = [level for level in X if level == "mu" or (level.startswith("stage") and X[level]["train"].shape[1] < WIDE)]
    return {
        **{(level, "own score"): None for level in X if level.startswith("own_")},
        **{(level, "Gaussian"): GaussianDetector() for level in narrow},
        ("z", "Gaussian"): GaussianDetector(),
        ("z", "Gaussian, 64 directions"): GaussianDetector(64, standardize=False),
        ("z", "mixture"): MixtureDetector(),
        ("z", "kNN"): NeighborDetector(20, max_items=2000),
        ("z", "kNN, cosine"): NeighborDetector(metric="cosine", standardize=False),
        **{(" + ".join(levels), how): combined(levels) for how, levels in VARIANTS.items()},
    }


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields an encoder and seed each; nothing about pixels depends on the seed."""
    peers.require(*a.peers)
    for source, seed, name in itertools.product(a.data, a.seeds, a.encoders):
        if name != "pixels" or seed == a.seeds[0]:
            chosen = {"detectors": a.detectors, "peers": a.peers}
            yield {"data": source, "encoder": name, "epochs": a.epochs, "seed": seed, **chosen}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each detector on an encoder's features, and for the default on them with the statistics of pixels."""
    source, name, seed = cell["data"], cell["encoder"], cell["seed"]
    most = (25 if name == "pretrained" else 100) if a.tiny else None
    parts = sets(source, a.data_root, a.limit, most)
    pixels = features(a, source, "pixels", 0, parts)
    X = pixels
    if name != "pixels":
        X = features(a, source, name, seed, parts) | {level: pixels[level] for level in ("statistics", "patches")}
    jobs = detectors(X, name)
    if a.peers:
        level = "statistics" if name == "pixels" else "z"
        jobs = {(level, how): detector for how, detector in peers.of_packages(a.peers, seed).items()}
    rows = []
    for (level, how), detector in jobs.items():
        if how.startswith(a.detectors):
            timer = Timer()
            own = detector is None
            found = aurocs({part: v[:, 0] for part, v in X[level].items()} if own else scored(detector, X, level.split(" + ")))
            seconds = round(timer.seconds(), 1)
            rows.append({"level": level, "detector": how, **means(found), "auroc": found, "seconds": seconds})
    return rows


OPTIONS = {"data_root": "data", "scratch": Option(Path, shape="required"), "data": ["cifar10", "fashion_mnist"], "seeds": [0]}
OPTIONS |= {"encoders": ["pixels", "patches", "vje", "gje", "contrastive", "untrained"], "limit": LIMIT, "epochs": int}
OPTIONS |= {"detectors": "", "peers": some(peers.MODULES, ())}
TINY = {"data": ["cifar10"], "limit": 200, "epochs": 1}
TINY["encoders"] = lambda names: names if names == ["pretrained"] else ["vje", "untrained"]

if __name__ == "__main__":
    shown = ("data", "encoder", "level", "detector", "seed", "mean_foreign", "mean_corrupted", "seconds")
    versions = (*PEERS, *peers.MODULES)
    main(__doc__, "out_of_distribution", OPTIONS, cells, measure, tiny=TINY, shown=shown, peers=versions)
