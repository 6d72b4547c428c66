"""Compares the advice with held-out probes and with trained networks, on real images under controlled noise.

README.md says how.
"""

import argparse
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from experiments.advice.small_networks import BATCH, train_autoencoder, train_vicreg, train_vje
from experiments.advice.verdict import judged, patch_features
from experiments.runner import DATA, hidden, main, some
from experiments.shared import Timer, images, seeded
from torch import Tensor
from torch.nn import functional as F

from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.linear import JointEmbedding, Reconstruction
from vergence.linear.reading import Composed

ITEMS, COMPONENTS, PATTERNS, ATOMS = 5_000, 16, 20, 128
SETS = ("fashion_mnist", "cifar10")
KINDS, STRENGTHS, ALIGNMENTS = ("smooth", "random"), (0.5, 2.0, 8.0), (0.0, 0.3, 1.0, 3.0)
PARTS = ("advice", "features", "networks")
TRAINED = {"vicreg": train_vicreg, "vje": train_vje, "autoencoder": train_autoencoder}


def settings(datasets: list[str]) -> list[dict[str, Any]]:
    """Returns the grid: the clean images, and every kind, strength and alignment of noise."""
    noisy = itertools.product(datasets, KINDS, STRENGTHS, ALIGNMENTS)
    clean = [{"data": name, "kind": "none", "strength": 0.0, "alignment": 0.0} for name in datasets]
    return clean + [dict(zip(("data", "kind", "strength", "alignment"), values, strict=True)) for values in noisy]


@functools.cache
def halved(name: str, root: str, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns halved images of both parts, (N, C, H, W) in [0, 1], and their labels."""
    data = open_data(DataConfig(source=name, root=root))
    arrays = []
    for part in (data.train, data.test):
        index = torch.randperm(len(part), generator=seeded(0))[:n].sort().values
        arrays += [F.avg_pool2d(images(part, index).float() / 255, 2), part.labels[index]]
    return tuple(arrays)  # nothing below changes them


def patterns(kind: str, shape: torch.Size) -> Tensor:
    """Returns orthonormal patterns (20, D)."""
    C, H, W = shape
    if kind == "random":
        return torch.linalg.qr(torch.randn(C * H * W, PATTERNS, generator=seeded(1)))[0].T.contiguous()
    rows, columns = (torch.arange(n) + 0.5 for n in (H, W))
    waves = [
        torch.outer(torch.cos(math.pi * u * rows / H), torch.cos(math.pi * v * columns / W)).expand(C, H, W).flatten()
        for u, v in itertools.product(range(5), range(4))
    ]
    return F.normalize(torch.stack(waves), dim=1)


def augmentation(shape: torch.Size, scale: float, P: Tensor, amplitude: float) -> Composed:
    """Returns shift, white noise, and fresh noise of the corruption's own patterns, for flat images."""

    def shift(X: Tensor, generator: torch.Generator) -> Tensor:
        padded = F.pad(X.view(-1, *shape), (1, 1, 1, 1), mode="replicate")
        i, j = torch.randint(3, (2, len(X)), generator=generator)
        rows, columns = (k[:, None] + torch.arange(n) for k, n in ((i, shape[1]), (j, shape[2])))
        n, c = torch.arange(len(X)), torch.arange(shape[0])
        return padded[n[:, None, None, None], c[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]].flatten(
            1
        )

    def white(X: Tensor, generator: torch.Generator) -> Tensor:
        return X + 0.1 * scale * torch.randn(X.shape, generator=generator)

    def aligned(X: Tensor, generator: torch.Generator) -> Tensor:
        return X + amplitude * torch.randn(len(X), len(P), generator=generator) @ P

    return Composed({"shift": shift, "white": white} | ({"aligned": aligned} if amplitude > 0 else {}))


def compared(a: Tensor, b: Tensor) -> dict:
    """Returns the accuracies of two probes on the same items, and which is higher."""
    d = a.double() - b.double()
    margin, se = d.mean().item(), d.flatten().std().item() / math.sqrt(d.shape[-1])
    ahead = "tie" if abs(margin) < max(0.005, 2 * se) else "joint_embedding" if margin > 0 else "reconstruction"
    return {"joint_embedding": a.double().mean().item(), "reconstruction": b.double().mean().item(), "ahead": ahead}


def probed(train: Tensor, test: Tensor, labels: Tensor, test_labels: Tensor) -> Tensor:
    """Returns which test items a least-squares probe with an intercept and a ridge of 1e-6 gets right."""
    mean, scale = train.mean(0), train.std(0).clamp(min=1e-12)
    z, t = (((part - mean) / scale).double() for part in (train, test))
    y = F.one_hot(labels.long()).double()
    A = z.T @ z
    V = torch.linalg.solve(A + 1e-6 * A.diagonal().mean() * torch.eye(len(A), dtype=A.dtype), z.T @ (y - y.mean(0)))
    return (t @ V + y.mean(0)).argmax(1) == test_labels


def problem(setting: dict, root: str, items: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Composed]:
    """Returns corrupted items and labels of both parts, and the augmentation."""
    x, y, t, ty = halved(setting["data"], root, items)
    shape, scale = x.shape[1:], x.flatten(1).var(0).mean().sqrt().item()
    P = patterns("smooth" if setting["kind"] == "none" else setting["kind"], shape)
    amplitude = scale * math.sqrt(setting["strength"] * math.prod(shape) / len(P))
    generator = seeded(2)
    X, T = (part.flatten(1) + amplitude * torch.randn(len(part), len(P), generator=generator) @ P for part in (x, t))
    return X, y, T, ty, augmentation(shape, scale, P, setting["alignment"] * amplitude)


def advised(setting: dict, root: str, items: int) -> dict:
    """Returns the advice with and without labels, and the closed forms' accuracies on the test part."""
    X, y, T, ty, tau = problem(setting, root, items)
    row = {}
    for basis, labels in (("labels", y), ("spectrum", None)):
        a = judged(X, tau, labels, k=COMPONENTS, n_draws=8)
        row[basis] = {"verdict": a.verdict, "margin": a.margin, "interval": a.interval}
        if basis == "labels":
            row["components"] = [{"k": at.k, "overlap": at.overlap, "margin": at.margin} for at in a.components]
    models = [kind(COMPONENTS, augmentation=tau, n_draws=8).fit(X) for kind in (JointEmbedding, Reconstruction)]
    right = [probed(*(torch.from_numpy(m.transform(part)) for part in (X, T)), y, ty) for m in models]
    return row | {"closed_form": compared(*right)}


def compared_features(setting: dict, root: str, items: int) -> dict:
    """Returns the advice with labels on the items' own numbers and on features of patches of the same corrupted images."""
    X, y, _, _, tau = problem(setting, root, items)
    shape = halved(setting["data"], root, 1)[0].shape[1:]
    maps = patch_features(X.view(-1, *shape), None, atoms=ATOMS)
    row = {}
    for name, features in (("raw", None), ("patches", lambda x: maps(x.float().view(-1, *shape)))):
        timer = Timer()
        a = judged(X, tau, y, features=features, k=COMPONENTS, n_draws=4)
        row[name] = {"verdict": a.verdict, "margin": a.margin, "interval": a.interval, "seconds": timer.seconds()}
    return row


def trained(setting: dict, root: str, items: int, epochs: int, seeds: int) -> dict:
    """Returns the networks' accuracies on the test part."""
    X, y, T, ty, tau = problem(setting, root, items)
    nets = {name: [] for name in TRAINED}
    for seed, (name, train) in itertools.product(range(seeds), TRAINED.items()):
        encoder = train(X, tau, COMPONENTS, epochs=epochs, seed=seed)
        with torch.inference_mode():
            nets[name].append(probed(encoder(X).double(), encoder(T).double(), y, ty))
    mean = {name: torch.stack(correct).double().mean(0) for name, correct in nets.items()}
    return {"networks": compared(mean["vicreg"], mean["autoencoder"]), "vje": compared(mean["vje"], mean["autoencoder"])}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for setting, part in itertools.product(settings(a.datasets)[: 1 if a.tiny else None], a.parts):
        key = {"what": part, **setting, "items": a.items, "k": COMPONENTS}
        networks = {"epochs": a.epochs, "seeds": a.seeds, "seed": list(range(a.seeds))}
        yield key | (networks if part == "networks" else {"seed": 0})


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    timer, problem_of = Timer(), (cell, a.data_root, a.items)
    if cell["what"] == "networks":
        values = trained(*problem_of, a.epochs, a.seeds)
    else:
        values = {"advice": advised, "features": compared_features}[cell["what"]](*problem_of)
    return values | {"seconds": timer.seconds()}


if __name__ == "__main__":
    options = {"data_root": DATA, "datasets": some(SETS), "parts": some(PARTS), "epochs": 20, "seeds": 2, "items": hidden(ITEMS)}
    main(__doc__, "advice", options, cells, measure, tiny={"items": BATCH, "epochs": 1, "seeds": 1})
