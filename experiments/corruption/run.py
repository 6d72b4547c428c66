"""Joint embedding against reconstruction on images that are corrupted: the deep experiment of arXiv:2505.12477, section 5.

README.md says how.
"""

import argparse
import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from experiments.advice.verdict import judged, patch_features
from experiments.corruption import image_corruptions
from experiments.corruption import table as corruption_tables
from experiments.runner import SETTINGS, Option, parse, some
from experiments.runner import run as measure_cells
from experiments.shared import MemoryRecorder, Timer, accuracies, images, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.data.pixels import to_unit
from vergence.data.sources import open_data
from vergence.densities.moments import Sums, principal_directions
from vergence.learn.encoders.networks import width
from vergence.learn.evaluation import features
from vergence.learn.methods.core import Gather, ImageMethod
from vergence.learn.training import build, loop, recipes
from vergence.learn.training.config import RunConfig
from vergence.learn.views.images import ImageViews
from vergence.linear.solutions import joint_embedding, reconstruction
from vergence.utils.devices import as_device

GRID = {"data": ["cifar10", "fashion_mnist"], "corruptions": ["gaussian_noise", "zoom_blur", "pixelate"]}
GRID |= {"severities": [1, 5], "strengths": [0, 1]}
WHOLE = {"data": ["cifar10", "fashion_mnist"], "corruptions": [*image_corruptions.KINDS]}
WHOLE |= {"severities": [1, 2, 3, 4, 5], "strengths": [0, 1, 2]}
SMALL = {"limit": 2_000, "epochs": 5, "batch_size": 64, "encoder": "small"}  # with the reduced grid
LARGE = {"limit": 50_000, "epochs": 100, "batch_size": 256, "encoder": "resnet18-cifar"}  # with the whole grid
NETWORKS = ("byol", "contrastive", "vicreg", "dino", "vje", "gje", "masked_autoencoder", "denoising_autoencoder")
RECIPES = {name: f"{name}_small" for name in (*NETWORKS, "variational_autoencoder")} | {"supervised": "jepa_small"}
PARADIGMS = (*RECIPES, "patches", "advice")
SHORT = ("contrastive", "denoising_autoencoder", "supervised", "patches", "advice")  # of them with --tiny
ATOMS, DIRECTIONS, COMPONENTS, DRAWS = 128, 256, 32, 4  # of patches and of the advice


class Parts(NamedTuple):
    """Images of bytes (N, C, H, W) and their labels (N,)."""

    train: Tensor
    labels: Tensor
    test: Tensor
    clean: Tensor
    test_labels: Tensor


class CorruptedViews(ImageViews):
    """Views of images with a corruption behind them, sampled anew for each view.

    Args:
        config: Strengths of the views.
        size: Side of a view in pixels.
        kind: One of `image_corruptions.KINDS`.
        strength: Severity of the corruption, from 1 to 5; 0 appends nothing.
    """

    def __init__(self, config: ViewConfig, size: int, kind: str, strength: int) -> None:
        super().__init__(config, size)
        self.kind, self.strength = kind, strength

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the parameters of the views, which do not depend on the strength, and a seed for each."""
        return {**super().draw(n, generator), "corruption": torch.randint(2**62, (n,), generator=generator)}

    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        y = super().apply(x, draws)
        return y if self.strength == 0 else image_corruptions.corrupted(y, self.kind, self.strength, draws["corruption"])


class Supervised(ImageMethod):
    """Cross-entropy of the classes, from a view of each image: a baseline that sees labels.

    Training takes pairs of images and one-hot labels, so that the view is made here; its seed is that of the step.
    """

    def __init__(self, encoder: nn.Module, shape: tuple[int, ...], classes: int, views: ImageViews) -> None:
        super().__init__(encoder, shape)
        self.views, self.head = views, nn.Linear(width(encoder, self.shape), classes)

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        x, y = views
        z = self.encoder(self.views(x, seeded(int(torch.randint(2**62, ())))))
        self.observe(z, gather)
        return {"cross_entropy": gather(F.cross_entropy(self.head(z).float(), y, reduction="none")).mean()}


def corrupted(x: Tensor, kind: str, severity: int, seed: int, part: str) -> Tensor:
    """Returns images of bytes, each with one fixed corruption that follows from its index, the part and the seed."""
    seeds = torch.tensor([loop.seed_of(seed, part, i) for i in range(len(x))])
    pairs = zip(x.split(500), seeds.split(500), strict=True)
    return torch.cat([image_corruptions.corrupted(some, kind, severity, own) for some, own in pairs])


@functools.cache
def clean(name: str, root: str, limit: int | None, tested: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns training images and labels, and test images and labels."""
    data = open_data(DataConfig(source=name, root=root, limit=limit))
    chosen = torch.randperm(len(data.test), generator=seeded(1))[:tested].sort().values
    return images(data.train), data.train.labels, images(data.test, chosen), data.test.labels[chosen]


@functools.lru_cache(maxsize=2)
def read(name: str, root: str, limit: int | None, tested: int, kind: str, severity: int, seed: int) -> Parts:
    train, labels, test, test_labels = clean(name, root, limit, tested)
    both = (corrupted(x, kind, severity, seed, part) for x, part in ((train, "train"), (test, "test")))
    return Parts(next(both), labels, next(both), test, test_labels)


def measured(parts: Parts, train: Tensor, test: Tensor, clean_test: Tensor) -> dict[str, Any]:
    """Returns kNN and probe accuracies in percent on the features of corrupted test images and of clean ones (``clean_``)."""
    labels = parts.labels, parts.test_labels
    return accuracies("", train, test, labels) | accuracies("clean_", train, clean_test, labels)


def described(a: argparse.Namespace, cell: dict[str, Any]) -> RunConfig:
    """Returns the description of a network's training; with another network than `small` a transformer has timm's own size."""
    config = recipes.get(RECIPES[cell["paradigm"]], cell["data"])
    network = str(config.model.encoder)
    if not network.startswith("timm:"):
        network = a.encoder
    elif a.encoder != "small":
        network = network.replace(",embed_dim=96,depth=4,num_heads=3", "")
    fit = {"epochs": a.epochs, "batch_size": a.batch_size, "device": a.device, "threads": a.threads, "seed": cell["seed"]}
    return recipes.override(config, encoder=network, **fit, knn_every=0, checkpoint_seconds=1e9, **a.set)


def trained(a: argparse.Namespace, cell: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """Trains a network and returns what is measured of it."""
    config, shape = described(a, cell), tuple(parts.train.shape[1:])
    items: ArrayItems | PairItems = ArrayItems(parts.train)
    mean, std = build.statistics(items)
    views: ImageViews | None = CorruptedViews(config.views, shape[1], cell["corruption"], cell["strength"])
    fabric, notes = loop.launch(config.fit), []
    if cell["paradigm"] == "supervised":
        one_hot = F.one_hot(parts.labels).float()
        items = PairItems(ArrayItems(parts.train), ArrayItems(one_hot))
        torch.manual_seed(cell["seed"])
        method = Supervised(build.initial_encoder(config, shape, mean, std), shape, one_hot.shape[1], views)
        views = None  # the method makes them
    else:
        method = build.initial_method(config, shape, None, mean, std)
    loop.fit(fabric, method, items, views, config.fit, MemoryRecorder(), warn=notes.append)

    x = (parts.train, parts.test, parts.clean)
    z = [features.collect_features(method.encoder, ArrayItems(part), device=fabric.device)[0] for part in x]
    fit = {name: getattr(config.fit, name) for name in ("optimizer", "lr", "encoder_lr", "weight_decay")}
    fit |= {"network": str(config.model.encoder), "precision": loop.precision(config.fit, fabric.device.type)}
    return {**measured(parts, *z), **fit, "warnings": notes}


def views_of(cell: dict[str, Any], side: int) -> CorruptedViews:
    """Returns the views of joint embedding's networks, which the closed forms and the advice have, too."""
    return CorruptedViews(recipes.get("vje_small", cell["data"]).views, side, cell["corruption"], cell["strength"])


@torch.no_grad()
def closed_forms(a: argparse.Namespace, cell: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """Solves both linear problems in the principal directions of features of patches, from the same views."""
    views, device, seed = views_of(cell, parts.train.shape[2]), as_device(a.device), cell["seed"]
    maps = patch_features(parts.train, views, atoms=a.atoms, seed=seed, device=str(device))
    first = [maps(to_unit(x.to(device))) for x in parts.train.split(250)]
    center, V = principal_directions(first, min(DIRECTIONS, len(parts.train) - 1, first[0].shape[1]), torch.float32)

    def embed(x: Tensor) -> Tensor:
        return torch.cat([(maps(to_unit(some.to(device))) - center) @ V for some in x.split(250)]).cpu()

    sums = Sums(V.shape[1], DRAWS)
    for i, (x, f) in enumerate(zip(parts.train.split(250), first, strict=True)):
        g = seeded(loop.seed_of(seed, "views", i))
        sums.add((f @ V).double().cpu(), (embed(views(x.to(device), g)).double() for _ in range(DRAWS)))
    m = sums.moments()
    z = [embed(x) - m.mean.float() for x in (parts.train, parts.test, parts.clean)]
    rows = {"joint_embedding": joint_embedding(m.G, m.S)[0], "reconstruction": reconstruction(m.M, m.S)[0]}
    return {name: measured(parts, *(part @ W[:COMPONENTS].T.float() for part in z)) for name, W in rows.items()}


def advised(a: argparse.Namespace, cell: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """Returns the verdict on pixels and on features of patches."""
    views, seed, row = views_of(cell, parts.train.shape[2]), cell["seed"], {}
    maps = patch_features(parts.train, views, atoms=a.atoms, seed=seed, device=str(as_device(a.device)))
    settings = {"k": COMPONENTS, "n_draws": DRAWS, "seed": seed, "device": a.device}
    for name, of in {"pixels": None, "patches": maps}.items():
        found = judged(parts.train, views.__call__, parts.labels, features=of, **settings)
        row[name] = {"verdict": found.verdict, "margin": found.margin, "interval": found.interval}
    return row


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the cells of the grid; those that the images cannot have are left out, with a line."""
    skipped = set()
    grid = itertools.product(a.seeds, a.data, a.corruptions, a.severities, a.strengths, a.paradigms)
    for values in grid:
        cell = dict(zip(("seed", "data", "corruption", "severity", "strength", "paradigm"), values, strict=True))
        shape = (1, 28, 28) if cell["data"] == "fashion_mnist" else (3, 32, 32)
        try:
            image_corruptions.require(shape, cell["corruption"], cell["severity"])
        except ValueError as error:
            skipped.add(f"{cell['data']} left out: {error}")
            continue
        learns = cell["paradigm"] in RECIPES
        cell |= {name: getattr(a, name) if learns else None for name in ("epochs", "batch_size", "encoder")}
        cell |= {"n_train": a.limit, "n_test": a.tested}
        yield cell | {"set": a.set if learns else {}, "atoms": None if learns else a.atoms}
    for line in sorted(skipped):
        print(line)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns what is measured of one cell."""
    parts = read(cell["data"], a.data_root, a.limit, a.tested, cell["corruption"], cell["severity"], cell["seed"])
    timer, work = Timer(), {"patches": closed_forms, "advice": advised}.get(cell["paradigm"], trained)
    return work(a, cell, parts) | {"seconds": round(timer.processor_seconds(), 1)}


OPTIONS = {"what": Option(choices=("run", "draw"), shape="first"), "data_root": str, "whole": False}
OPTIONS |= {name: Option(type(values[0]), choices=values, shape="several") for name, values in WHOLE.items()}
OPTIONS |= {name: type(value) for name, value in SMALL.items()}
OPTIONS |= {"strengths": Option(int, choices=range(6), shape="several"), "paradigms": some(PARADIGMS), "seeds": [0]}
OPTIONS |= {"tested": 10_000, "device": "cpu", "threads": int, "atoms": ATOMS, "set": SETTINGS, "note": ""}
TINY = {"data": ["cifar10"], "corruptions": ["gaussian_noise"], "severities": [5], "strengths": [1], "encoder": "small"}
TINY |= {"limit": 120, "tested": 60, "epochs": 1, "batch_size": 60, "atoms": 8, "device": "cpu", "set": lambda settings: {}}
TINY["paradigms"] = lambda names: [name for name in names if name in SHORT] or names[:1]


def main() -> None:
    a = parse(__doc__, "corruption", OPTIONS, TINY)
    for name, value in (WHOLE | LARGE if a.whole else GRID | SMALL).items():
        setattr(a, name, value if getattr(a, name) is None else getattr(a, name))
    if a.what == "draw":
        corruption_tables.draw(a.tiny)
    elif a.data_root is None:
        raise SystemExit("expected --data-root with 'run', found none; name a folder laid out for torchvision")
    else:
        shown = ("data", "corruption", "severity", "strength", "paradigm", "seed", "knn30", "probe", "clean_probe")
        shown += ("joint_embedding", "reconstruction", "pixels", "patches", "seconds")
        measure_cells(a, cells, measure, peers=("timm",), shown=shown)


if __name__ == "__main__":
    main()
