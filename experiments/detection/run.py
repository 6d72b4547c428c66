"""Detects images of foreign sets without labels: what is the encoder's part, and what the detector's.

Each encoder is trained on 10,000 training images. A detector is fitted to levels of features of the same images; tails are
calibrated on 2,000 training images that neither has seen. Reported is the AUROC against typical images: 2,000 other training
images for the development sets, 2,000 test images for the sets that confirm. The default detector was chosen by the development
sets of CIFAR-10 alone: Fashion-MNIST, MNIST, noise, and blurred, covered, colored, pixelated, rotated, mixed and recombined
training images. New to it are CIFAR-100, Omniglot, inverted images, all corruptions of test images, and all of Fashion-MNIST.

    python -m experiments.detection.run --data-root DATA --scratch FOLDER   # rows of results/out_of_distribution.jsonl
    python -m experiments.detection.run --data-root DATA --scratch FOLDER --peers pyod pytorch-ood  # theirs, on the same
    python -m experiments.tables                                              # the tables of docs/detection_measured.md

The encoder ``pretrained`` is the ImageNet network of pretrained.py at 96 pixels, frozen, and ``distilled`` the small network that
learned the closed form; they are not among the default ones.
With ``--peers``, detectors of other packages are fitted to the embeddings and to the statistics of pixels instead of ours.
``FOLDER`` keeps the runs and the features, so that the command continues where it was stopped.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, SIZE, network
from experiments.detection import peers as detection_peers
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

import vergence
from experiments import ledger
from vergence.data.config import DataConfig
from vergence.data.items import Items
from vergence.data.pixels import center_crop, fit_shape
from vergence.data.sources import open_data
from vergence.detection import (
    CombinedDetector,
    GaussianDetector,
    MixtureDetector,
    NeighborDetector,
    default_detector,
    patch_dictionary,
    pixel_statistics,
    stage_features,
)
from vergence.encoders.networks import encoder as build_encoder

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
WITHOUT_EPOCHS = ("patches", "pretrained")
WIDE = 2000  # features of a stage from which it is left out
WHOLE = ("statistics", "patches", "z")
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {  # levels, and settings that differ from the default's
    "default 4": (WHOLE, {}),
    "default 4, weights of format 2": (WHOLE, {"weights": {"statistics": 0.3, "patches": 0.1}}),
    "default 4, equal weights": (WHOLE, {"weights": None}),
    "default 4 without patches": (("statistics", "z"), {}),
    "default 4 without statistics": (("patches", "z"), {}),
    "default without z": (("statistics", "patches"), {}),
}
WEIGHED = "default 5"  # default 4 with the weights that follow from what the run's embedding recognizes
FIRST = {"default": WHOLE, "default without patches": ("statistics", "z")}  # the default of detectors of format 1
Features = dict[str, dict[str, np.ndarray]]  # level -> set -> (N, D)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(items: Items, rows: Tensor) -> Tensor:
    return torch.cat([x for _, x in items.stream(iter(rows.split(1000)))])


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Returns images of bytes (N, C, H, W) convolved with a Gaussian."""
    side = min(8, x.shape[2] - 1)
    k = torch.exp(-(torch.arange(-side, side + 1) ** 2) / (2 * sigma**2))
    k, C, y = k / k.sum(), x.shape[1], x.float()
    y = F.conv2d(F.pad(y, (side, side, 0, 0), mode="reflect"), k.view(1, 1, 1, -1).expand(C, 1, 1, -1), groups=C)
    y = F.conv2d(F.pad(y, (0, 0, side, side), mode="reflect"), k.view(1, 1, -1, 1).expand(C, 1, -1, 1), groups=C)
    return y.round().clamp(0, 255).byte()


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


def quarters(x: Tensor) -> Tensor:
    """Returns images made of a quarter of each of four images."""
    y, h, w = x.clone(), x.shape[2] // 2, x.shape[3] // 2
    y[:, :, :h, w:], y[:, :, h:, :w] = torch.roll(x, 1, 0)[:, :, :h, w:], torch.roll(x, 2, 0)[:, :, h:, :w]
    y[:, :, h:, w:] = torch.roll(x, 3, 0)[:, :, h:, w:]
    return y


def reference(source: str, root: str, limit: int) -> dict[str, Tensor]:
    """Returns the training images of the encoder, calibration and development images, and test images."""
    run, full = (open_data(DataConfig(source=source, root=root, limit=n)) for n in (limit, None))
    train = images(run.train, torch.arange(len(run.train)))
    everything = images(full.train, torch.arange(len(full.train)))
    seen = {one.tobytes() for one in train.numpy()}
    order = torch.randperm(len(everything), generator=seeded(7)).tolist()
    free = [i for i in order if everything[i].numpy().tobytes() not in seen][: CALIBRATION + HELD]
    test = images(full.test, torch.randperm(len(full.test), generator=seeded(1))[:HELD])
    return {"train": train, "cal": everything[free[:CALIBRATION]], "held": everything[free[CALIBRATION:]], "test": test}


def foreign(root: str, shape: tuple[int, ...]) -> dict[str, Callable[[], Tensor]]:
    """Returns how to read each foreign set, as bytes of a shape."""

    def of(name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            part = open_data(DataConfig(source=name, root=root)).test
            return fit_shape(images(part, torch.randperm(len(part), generator=seeded(2))[:SHOWN]), shape)

        return read

    def omniglot() -> Tensor:
        x = torch.from_numpy(np.load(Path(root) / "omniglot.npz")["images"])
        x = x[torch.randperm(len(x), generator=seeded(3))[:SHOWN]]
        return fit_shape((x.float() * 255 / x.max()).byte()[:, None], shape)

    def cifar100() -> Tensor:
        return torch.from_numpy(np.load(Path(root) / "cifar100_subset.npz")["images"]).permute(0, 3, 1, 2).contiguous()

    noise = torch.randint(0, 256, (SHOWN, *shape), generator=seeded(4)).byte()
    known = {"omniglot": omniglot, "cifar100": cifar100, "noise": lambda: noise}
    return known | {name: of(name) for name in ("mnist", "fashion_mnist", "cifar10")}


def sets(source: str, root: str, limit: int) -> dict[str, Tensor]:
    """Returns the reference's parts, then development sets ``dev:...`` and confirming sets ``conf:...``."""
    parts = reference(source, root, limit)
    held, test = parts["held"][:SHOWN], parts["test"]
    read = foreign(root, tuple(test.shape[1:]))
    if source == "cifar10":
        dev = {name: read[name]() for name in ("fashion_mnist", "mnist", "noise")} | {"blurred": blurred(held, 2.0)}
        dev |= {kind: corrupted(held, kind, 3, seeded(5)) for kind in ("occlusion", "saturation", "pixelate")}
        dev |= {"rotated": held.rot90(1, (2, 3))}
        conf = {name: read[name]() for name in ("cifar100", "omniglot", "fashion_mnist", "mnist", "noise")}
    else:
        dev, conf = {}, {name: read[name]() for name in ("mnist", "omniglot", "cifar10", "noise")}
    dev |= {"quarters": quarters(held), "mixed": ((held.float() + torch.roll(held, 1, 0).float()) / 2).byte()}
    conf |= {"blurred": blurred(test[:SHOWN], 2.0), "inverted": 255 - test[:SHOWN]}
    for kind in CORRUPTIONS if test.shape[1] == 3 else [kind for kind in CORRUPTIONS if kind != "saturation"]:
        conf |= {f"{kind} {s}": corrupted(test[:CORRUPTED], kind, s, seeded(6)) for s in range(1, 6)}
    return {**parts, **{f"dev:{k}": v for k, v in dev.items()}, **{f"conf:{k}": v for k, v in conf.items()}}


def pixel_levels(train: Tensor) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns the features that need no encoder; a dictionary of patches is learned from the training images."""
    maps = patch_dictionary(train.split(500))
    return lambda x: {"statistics": pixel_statistics(x), "patches": maps(x.float() / 255), "pixels": x.flatten(1).float() / 255}


def run_folder(a: argparse.Namespace, source: str, name: str, seed: int) -> Path:
    """Returns the folder of an encoder's run in the cache."""
    folder: Path = a.scratch / "runs" / f"{source} {name} {seed}"
    return folder


def _opened(a: argparse.Namespace, source: str, name: str, seed: int) -> vergence.Run:
    """Returns an encoder's run from the cache."""
    return vergence.load(run_folder(a, source, name, seed), device="cpu", trust_code=True)


def encoder_levels(a: argparse.Namespace, source: str, name: str, seed: int, x: Tensor) -> Callable[[Tensor], dict[str, Tensor]]:
    """Returns the features of a trained encoder; its run is kept in the cache."""
    if name == "untrained":
        torch.manual_seed(seed)
        unit = x.float() / 255
        net = build_encoder("small", tuple(x.shape[1:]), unit.mean((0, 2, 3)), unit.std((0, 2, 3)))
        net.train()(x[:2000])  # statistics of its batch normalization
        net.eval()
        return lambda b: stage_features(net, b)
    out = run_folder(a, source, name, seed)
    if not (out / "model.safetensors").exists():
        short = {"epochs": a.epochs} if a.epochs is not None and name not in WITHOUT_EPOCHS else {}
        more = network() if name == "pretrained" else {}
        settings = {**ENCODERS[name], **more, **short, "limit": a.limit, "root": a.data_root, "device": "cpu", "seed": seed}
        vergence.train(source, out=out, **settings)
    run = _opened(a, source, name, seed)

    def levels(b: Tensor) -> dict[str, Tensor]:
        b = b if run.size is None else center_crop(b, run.size)
        found = {level: f for level, f in stage_features(run.method.encoder, b).items() if f.shape[1] < WIDE}
        if run.has_density:
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


def auroc(scores: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the AUROC of each set against its typical images."""
    found = {}
    for name in scores:
        if ":" in name:
            typical = scores["held" if name.startswith("dev:") else "test"]
            labels = np.r_[np.zeros(len(typical)), np.ones(len(scores[name]))]
            found[name] = float(roc_auc_score(labels, np.r_[typical, scores[name]]))
    return found


def means(found: dict[str, float]) -> dict[str, float]:
    """Returns the mean over development sets, over foreign sets that confirm, and over corruptions."""
    groups: dict[str, list[float]] = {"dev": [], "foreign": [], "corrupted": []}
    for name, value in found.items():
        groups["dev" if name.startswith("dev:") else "corrupted" if name[-1].isdigit() and " " in name else "foreign"].append(
            value
        )
    return {f"mean_{name}": float(np.mean(values)) for name, values in groups.items() if values}


def scored(detector: Any, X: Features, levels: Iterable[str]) -> dict[str, np.ndarray]:
    """Fits a detector to the training images, calibrates it if it combines levels, and scores all sets."""
    chosen = {level: X[level] for level in levels}
    if isinstance(detector, CombinedDetector):
        of = lambda part: {level: values[part] for level, values in chosen.items()}  # noqa: E731
        detector.fit(of("train")).calibrate(of("cal"))
    else:
        (one,) = chosen.values()
        of = lambda part: one[part]  # noqa: E731
        detector.fit(of("train"))
    return {part: detector.anomaly_score(of(part)) for part in next(iter(chosen.values())) if part != "train"}


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
    own = {(level, "own score"): None for level in X if level.startswith("own_")}
    stages = {
        (level, "Gaussian"): GaussianDetector() for level in X if level.startswith("stage") and X[level]["train"].shape[1] < 2000
    }
    mu = {("mu", "Gaussian"): GaussianDetector()} if "mu" in X else {}
    return {
        **own,
        **stages,
        **mu,
        ("z", "Gaussian"): GaussianDetector(),
        ("z", "Gaussian, 64 directions"): GaussianDetector(64, standardize=False),
        ("z", "mixture"): MixtureDetector(),
        ("z", "kNN"): NeighborDetector(20, max_items=2000),
        ("z", "kNN, cosine"): NeighborDetector(metric="cosine", standardize=False),
    }


def first_default(levels: Iterable[str]) -> CombinedDetector:
    """Returns the default of detectors of format 1: the least p-value of unweighted levels, without directions of z."""
    parts = {
        level: GaussianDetector(trim=0.05) if level == "statistics" else NeighborDetector(20, max_items=2000) for level in levels
    }
    return CombinedDetector(parts, combine="least")


def evaluate(a: argparse.Namespace, source: str, name: str, seed: int, parts: dict[str, Tensor], pixels: Features) -> None:
    """Adds a row for each detector on an encoder's features, and for the default on them with the statistics of pixels."""
    X = pixels if name == "pixels" else features(a, source, name, seed, parts)
    jobs: dict[tuple[str, str], Any] = detectors(X, name)
    if name != "pixels":
        X = {**X, "statistics": pixels["statistics"], "patches": pixels["patches"]}
        jobs |= {(" + ".join(levels), how): default_detector(levels, **rule) for how, (levels, rule) in VARIANTS.items()}
        jobs |= {(" + ".join(levels), how): first_default(levels) for how, levels in FIRST.items()}
    if name not in ("pixels", "untrained") and WEIGHED.startswith(a.detectors):
        error = _opened(a, source, name, seed).detector().relative_error
        jobs[" + ".join(WHOLE), WEIGHED] = default_detector(WHOLE, relative_error=error)
    if a.peers:
        level = "statistics" if name == "pixels" else "z"
        jobs = {(level, how): detector for how, detector in detection_peers.of(a.peers, seed).items()}
    for (level, detector_name), detector in jobs.items():
        if not detector_name.startswith(a.detectors):
            continue
        fields = {"data": source, "encoder": name, "level": level, "detector": detector_name, "seed": seed, "epochs": a.epochs}
        if ledger.holds(a.out, **fields):
            continue
        start = time.perf_counter()
        if detector is None:
            scores = {part: values[:, 0] for part, values in X[level].items()}
        else:
            scores = scored(detector, X, level.split(" + "))
        found = auroc(scores)
        row = {**fields, **means(found), "auroc": found, "seconds": round(time.perf_counter() - start, 1)}
        ledger.add(
            a.out,
            ledger.row(row, seed=seed, peers=(*a.peers, *(PEERS if name == "pretrained" else ()))),
            shown=(*fields, "mean_dev", "mean_foreign", "mean_corrupted", "seconds"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", default="data", help="folder for torchvision, with omniglot.npz and cifar100_subset.npz")
    parser.add_argument("--scratch", type=Path, required=True, help="folder of the runs and features")
    parser.add_argument("--data", nargs="+", default=["cifar10", "fashion_mnist"])
    parser.add_argument("--encoders", nargs="+", default=["pixels", "patches", "vje", "gje", "contrastive", "untrained"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--epochs", type=int, help="of the networks; the recipe's by default")
    parser.add_argument("--detectors", default="", help="only detectors whose names begin like this, such as 'default'")
    parser.add_argument("--peers", nargs="+", default=[], choices=list(detection_peers.MODULES), help="packages, instead of ours")
    a = ledger.parse(parser, "out_of_distribution")
    detection_peers.require(*a.peers)
    if a.tiny:
        shown, encoders = (25, a.encoders) if a.encoders == ["pretrained"] else (100, ["vje", "untrained"])
        a.limit, a.encoders, a.data, a.epochs = 200, encoders, ["cifar10"], 1
    a.scratch.mkdir(parents=True, exist_ok=True)
    for source in a.data:
        parts = sets(source, a.data_root, a.limit)
        if a.tiny:
            parts = {name: x[:shown] for name, x in parts.items()}
        pixels = features(a, source, "pixels", 0, parts)
        for seed in a.seeds:
            for name in a.encoders:
                if name != "pixels" or seed == a.seeds[0]:  # nothing about pixels depends on the seed
                    evaluate(a, source, name, seed, parts, pixels)


if __name__ == "__main__":
    main()
