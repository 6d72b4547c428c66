"""Joint embedding against reconstruction on images that are corrupted: the deep experiment of arXiv:2505.12477, section 5.

Every training image has one fixed corruption, which follows from its index and the seed. Paradigms are trained on these images;
what they learned is measured by kNN and a linear probe on the frozen features of test images with the same corruption, and of
clean ones. Augmentation is aligned with the corruption by appending it, at strength 0, 1 or 2 and sampled anew, to each view.

    python -m experiments.corruption.run run --data-root DATA              # the reduced grid: 140 minutes of one thread
    python -m experiments.corruption.run run --data-root DATA --whole      # all corruptions, severities and strengths: for a GPU
    python -m experiments.corruption.run draw                              # docs/figures/corruption_*.png (needs matplotlib)

A cell is a data set, corruption, severity, strength, paradigm and seed: a row of ``results/corruption.jsonl``. Cells that the
ledger has from the same commit and settings are skipped. Paradigms:

networks        byol, contrastive (SimCLR), vicreg, dino, vje, gje; masked_autoencoder, denoising_autoencoder,
                variational_autoencoder; supervised. Views, head and optimizer are those of the method's small recipe, batch and
                epochs the same for all; the masked autoencoder's network is a transformer, all others' the network of --encoder.
                With --whole they are ResNet-18 and ViT-Tiny; heads and optimizers stay those of the small recipes, where
                the paper has LARS and 1,000 epochs.
patches         closed-form joint embedding and closed-form reconstruction, from the same features of patches and the same views
advice          what `vergence advise` says before training, on pixels and on patches, with labels and joint embedding's views
"""

import argparse
import functools
import itertools
import time
from typing import Any, NamedTuple

import torch
from experiments.accuracy import run as two_cores
from experiments.corruption import image_corruptions
from experiments.corruption import table as corruption_tables
from experiments.detection.run import images, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from experiments import ledger
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.data.pixels import to_unit
from vergence.data.sources import open_data
from vergence.data.views import ImageViews
from vergence.densities.moments import Sums, principal_directions
from vergence.encoders.networks import width
from vergence.evaluation import features
from vergence.linear import advise
from vergence.linear.advice import patch_features
from vergence.linear.solutions import joint_embedding, reconstruction
from vergence.methods.core import Gather, ImageMethod
from vergence.training import build, loop, recipes
from vergence.training.config import RunConfig
from vergence.training.metrics import MemoryRecorder
from vergence.utils.devices import as_device, describe_device

GRID = {"data": ["cifar10", "fashion_mnist"], "corruptions": ["gaussian_noise", "zoom_blur", "pixelate"]}
GRID |= {"severities": [1, 5], "strengths": [0, 1]}
WHOLE = {"data": ["cifar10", "fashion_mnist"], "corruptions": [*image_corruptions.KINDS]}
WHOLE |= {"severities": [1, 2, 3, 4, 5], "strengths": [0, 1, 2]}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # paradigm: recipe, and what differs from it
    "byol": ("byol_small", {}),
    "contrastive": ("contrastive_small", {}),
    "vicreg": ("vicreg_small", {}),
    "dino": ("dino_small", {}),
    "vje": ("vje_small", {}),
    "gje": ("gje_small", {}),
    "masked_autoencoder": ("masked_autoencoder_small", {}),
    "denoising_autoencoder": ("denoising_autoencoder_small", {}),
    "variational_autoencoder": ("variational_autoencoder_small", {}),
    "supervised": ("jepa_small", {}),  # the views of contrastive
}
PARADIGMS = (*RECIPES, "patches", "advice")
TINY = ("contrastive", "denoising_autoencoder", "supervised", "patches", "advice")  # of them with --tiny
ATOMS, DIRECTIONS, COMPONENTS, DRAWS = 128, 256, 32, 4  # of patches and of the advice
COST = {  # processor milliseconds for an image and epoch with the network `small`, its evaluation included, on a busy machine
    "byol": 6.0,  # measured, as contrastive and denoising_autoencoder; the others by their passes through networks
    "contrastive": 4.0,
    "vicreg": 4.5,
    "dino": 7.0,
    "vje": 4.0,
    "gje": 4.0,
    "masked_autoencoder": 4.0,
    "denoising_autoencoder": 5.0,
    "variational_autoencoder": 5.0,
    "supervised": 2.0,
}
ONCE = {"patches": 20.0, "advice": 40.0}  # processor milliseconds for an image


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
    """Cross-entropy of the classes, from a view of each image: a control that sees labels.

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
    some = torch.randperm(len(data.test), generator=seeded(1))[:tested].sort().values
    train = images(data.train, torch.arange(len(data.train)))
    return train, data.train.labels, images(data.test, some), data.test.labels[some]


@functools.lru_cache(maxsize=2)
def read(name: str, root: str, limit: int | None, tested: int, kind: str, severity: int, seed: int) -> Parts:
    train, labels, test, test_labels = clean(name, root, limit, tested)
    both = (corrupted(x, kind, severity, seed, part) for x, part in ((train, "train"), (test, "test")))
    return Parts(next(both), labels, next(both), test, test_labels)


def measured(parts: Parts, train: Tensor, test: Tensor, clean_test: Tensor) -> dict[str, Any]:
    """Returns kNN and probe accuracies in percent on the features of corrupted test images and of clean ones (``clean_``)."""
    labels = parts.labels, parts.test_labels
    return two_cores.accuracies("", train, test, labels) | two_cores.accuracies("clean_", train, clean_test, labels)


def described(a: argparse.Namespace, cell: dict[str, Any], seed: int) -> RunConfig:
    """Returns the description of a network's training; with another network than `small` a transformer has timm's own size."""
    recipe, own = RECIPES[cell["paradigm"]]
    config = recipes.override(recipes.get(recipe, cell["data"]), **own)
    own = str(config.model.encoder)
    if own.startswith("timm:"):
        network = own if a.encoder == "small" else own.replace(",embed_dim=96,depth=4,num_heads=3", "")
    else:
        network = a.encoder
    fit = {"epochs": a.epochs, "batch_size": a.batch_size, "device": a.device, "seed": seed, "knn_every": 0, "threads": a.threads}
    return recipes.override(config, encoder=network, **fit, checkpoint_seconds=1e9, **a.settings)


def trained(a: argparse.Namespace, cell: dict[str, Any], seed: int, parts: Parts) -> dict[str, Any]:
    """Trains a network and returns what is measured of it."""
    config, shape = described(a, cell, seed), tuple(parts.train.shape[1:])
    items: ArrayItems | PairItems = ArrayItems(parts.train)
    mean, std = build.statistics(items)
    views: ImageViews | None = CorruptedViews(config.views, shape[1], cell["corruption"], cell["strength"])
    fabric, notes = loop.launch(config.fit), []
    if cell["paradigm"] == "supervised":
        one_hot = F.one_hot(parts.labels).float()
        items = PairItems(ArrayItems(parts.train), ArrayItems(one_hot))
        torch.manual_seed(seed)
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
def closed_forms(a: argparse.Namespace, cell: dict[str, Any], seed: int, parts: Parts) -> dict[str, Any]:
    """Solves both linear problems in the principal directions of features of patches, from the same views."""
    views, device = views_of(cell, parts.train.shape[2]), as_device(a.device)
    maps = patch_features(ArrayItems(parts.train), views, atoms=a.atoms, seed=seed, device=str(device))
    first = [maps(to_unit(x.to(device))) for x in parts.train.split(250)]
    center, V = principal_directions(first, min(DIRECTIONS, len(parts.train) - 1, first[0].shape[1]), torch.float32)

    def embed(x: Tensor) -> Tensor:
        return torch.cat([(maps(to_unit(some.to(device))) - center) @ V for some in x.split(250)]).cpu()

    sums = Sums(V.shape[1], DRAWS)
    for i, (x, f) in enumerate(zip(parts.train.split(250), first, strict=True)):
        g = seeded(loop.seed_of(seed, "views", i))
        sums.add((f @ V).double().cpu(), (embed(views(x.to(device), g)).double() for _ in range(DRAWS)))
    m = sums.moments(centered=True)
    z = [embed(x) - m.mean.float() for x in (parts.train, parts.test, parts.clean)]
    rows = {"joint_embedding": joint_embedding(m.G, m.S)[0], "reconstruction": reconstruction(m.M, m.S)[0]}
    return {name: measured(parts, *(part @ W[:COMPONENTS].T.float() for part in z)) for name, W in rows.items()}


def advised(a: argparse.Namespace, cell: dict[str, Any], seed: int, parts: Parts) -> dict[str, Any]:
    """Returns the advice on pixels and on features of patches; operations are not left out in turn."""
    views = views_of(cell, parts.train.shape[2])
    row = {}
    settings = {
        "labels": parts.labels.numpy(),
        "n_components": COMPONENTS,
        "n_draws": DRAWS,
        "random_state": seed,
        "device": a.device,
    }
    maps = patch_features(ArrayItems(parts.train), views, atoms=a.atoms, seed=seed, device=str(as_device(a.device)))
    features_of = {"pixels": "raw", "patches": maps}
    for name, of in features_of.items():
        found = advise(parts.train, views.__call__, features=of, **settings)
        row[name] = {"verdict": found.verdict, "margin": found.margin, "interval": found.interval}
    return row


def cells(a: argparse.Namespace) -> list[tuple[dict[str, Any], int]]:
    """Returns the cells of the grid with their seeds; those that the images cannot have are left out, with a line."""
    found, skipped = [], set()
    grid = itertools.product(a.seeds, a.data, a.corruptions, a.severities, a.strengths, a.paradigms)
    for seed, *names in grid:
        cell = dict(zip(("data", "corruption", "severity", "strength", "paradigm"), names, strict=True))
        shape = (1, 28, 28) if cell["data"] in ("mnist", "fashion_mnist") else (3, 32, 32)
        try:
            image_corruptions.require(shape, cell["corruption"], cell["severity"])
        except ValueError as error:
            skipped.add(f"{cell['data']} left out: {error}")
            continue
        learns = cell["paradigm"] in RECIPES
        cell |= {"n_train": a.limit, "n_test": a.tested, "epochs": a.epochs if learns else None}
        cell |= {"batch_size": a.batch_size if learns else None, "encoder": a.encoder if learns else None}
        found.append((cell | {"set": a.settings if learns else {}, "atoms": None if learns else a.atoms}, seed))
    for line in sorted(skipped):
        print(line)
    return found


def minutes(todo: list[tuple[dict[str, Any], int]]) -> float:
    """Returns about how many processor minutes cells take."""
    total = 0.0
    for cell, _ in todo:
        n, name = cell["n_train"] or 50_000, cell["paradigm"]
        total += n * (COST[name] * cell["epochs"] if name in COST else ONCE[name]) / 60_000
    return total


def run(a: argparse.Namespace) -> None:
    """Measures the cells that the ledger lacks."""
    todo = [(cell, seed) for cell, seed in cells(a) if not ledger.holds(a.out, **cell, seed=seed)]
    own = a.encoder == "small" and a.device == "cpu"
    about = f"about {minutes(todo):.0f} processor minutes" if own else "no estimate for this network and device"
    print(f"{len(todo)} cells to measure: {about}", flush=True)
    for cell, seed in todo:
        parts = read(cell["data"], a.data_root, a.limit, a.tested, cell["corruption"], cell["severity"], seed)
        began = time.process_time()
        work = {"patches": closed_forms, "advice": advised}.get(cell["paradigm"], trained)
        values = work(a, cell, seed, parts) | {"seconds": round(time.process_time() - began, 1), "note": a.note}
        device = describe_device(as_device(a.device)) if work is trained else None
        row = ledger.row(cell | values, seed=seed, peers=("lightly", "timm"), device=device)
        shown = ("data", "corruption", "severity", "strength", "paradigm", "seed", "knn30", "probe", "clean_probe")
        ledger.add(a.out, row, shown=(*shown, "joint_embedding", "reconstruction", "pixels", "patches", "seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "draw"))
    parser.add_argument("--data-root")
    parser.add_argument("--whole", action="store_true", help="the whole grid: 50,000 images, 100 epochs, ResNet-18")
    parser.add_argument("--data", nargs="+", choices=GRID["data"])
    parser.add_argument("--corruptions", nargs="+", choices=image_corruptions.KINDS, metavar="KIND")
    parser.add_argument("--severities", type=int, nargs="+", choices=WHOLE["severities"])
    parser.add_argument(
        "--strengths",
        type=int,
        nargs="+",
        choices=range(6),
        metavar="STRENGTH",
        help="severities of the corruption that is appended to views, at most 5; 0: none",
    )
    parser.add_argument("--paradigms", nargs="+", default=list(PARADIGMS), choices=PARADIGMS, metavar="PARADIGM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="training images")
    parser.add_argument("--tested", type=int, default=10_000, help="test images at most")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--encoder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of a training; by default as many as are fastest")
    parser.add_argument("--atoms", type=int, default=ATOMS, help="of the dictionary of patches")
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of all networks' runs, in JSON")
    parser.add_argument("--note", default="", help="written to each row")
    a = ledger.parse(parser, "corruption")
    small, whole = (2_000, 5, 64, "small"), (50_000, 100, 256, "resnet18-cifar")
    names = ("limit", "epochs", "batch_size", "encoder")
    defaults = {**(WHOLE if a.whole else GRID), **dict(zip(names, whole if a.whole else small, strict=True))}
    for name, value in defaults.items():
        setattr(a, name, value if getattr(a, name) is None else getattr(a, name))
    a.settings = ledger.settings(a.set)
    if a.tiny:
        a.data, a.corruptions, a.severities, a.strengths, a.encoder = ["cifar10"], ["gaussian_noise"], [5], [1], "small"
        a.limit, a.tested, a.epochs, a.batch_size, a.atoms = 120, 60, 1, 60, 8
        a.device, a.settings = "cpu", {}
        a.paradigms = [name for name in a.paradigms if name in TINY] or a.paradigms[:1]
    if a.what == "draw":
        corruption_tables.draw(None if a.tiny else ledger.ROOT / "docs" / "figures")
    elif a.data_root is None:
        parser.error("expected --data-root with 'run', found none; name a folder laid out for torchvision")
    else:
        run(a)


if __name__ == "__main__":
    main()
