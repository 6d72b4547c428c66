"""Tables 5 to 7 and figure 3 of the VJE paper on a small scale: degrees of freedom, terms of the loss, the plain likelihood.

README.md says how.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from experiments.runner import DATA, SEEDS, hidden, main, some
from experiments.shared import Timer, accuracies, images, knn, seeded
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.config import DataConfig
from vergence.data.items import spaced
from vergence.data.sources import open_data
from vergence.learn.encoders.networks import small_convnet
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.objectives import VJE
from vergence.learn.training import recipes
from vergence.learn.views.images import ImageViews

NUS = (1.0, 3.0, 7.0, 20.0, 50.0, math.inf)
TERMS = (("directional", "kl"), ("directional", "radial"), ("radial", "kl"), ("radial",), ("directional",))
SETTINGS: dict[str, dict[str, Any] | None] = {"untrained": None}
SETTINGS |= {f"nu {nu:g}": {"nu": nu} for nu in NUS}
SETTINGS |= {" + ".join(terms): {"terms": terms} for terms in TERMS}
SETTINGS |= {f"beta {beta:g}": {"beta": beta} for beta in (0.75, 2.0)}
SETTINGS |= {f"plain, nu {nu:g}": {"likelihood": "plain", "nu": nu} for nu in (3.0, math.inf)}
WHOLE, POINTS = "nu 3", 5  # the paper's setting, whose course is measured so often
STEPS, BATCH = {"digits": 500, "cifar10": 120}, 128
IMAGES, TESTED, SIDE, DIM = 3_000, 1_500, 16, 256  # of CIFAR-10


@dataclass
class Set:
    """Images or vectors of both parts with labels, what makes a view of a batch, and an encoder of D features."""

    train: Tensor
    test: Tensor
    labels: tuple[Tensor, Tensor]
    view: Callable[[Tensor, torch.Generator], Tensor]
    encoder: nn.Module
    dim: int


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """Returns digits (B, 64), each moved by up to a pixel in both directions, with noise."""
    padded = F.pad(x.view(-1, 8, 8), (1, 1, 1, 1))
    corner = torch.randint(3, (2, len(x), 1, 1), generator=generator)
    row, column = (corner[i] + torch.arange(8).view(shape) for i, shape in ((0, (8, 1)), (1, (1, 8))))
    moved = padded[torch.arange(len(x)).view(-1, 1, 1), row, column].flatten(1)
    return moved + 0.1 * torch.randn(x.shape, generator=generator)


def opened(a: argparse.Namespace, name: str) -> Set:
    """Returns a data set with views and a new encoder from the global seed."""
    if name == "digits":
        digits = load_digits()
        x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
        net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        return Set(x[:1200], x[1200:], (y[:1200], y[1200:]), shifted, net, 64)
    data = open_data(DataConfig(source=name, root=a.data_root))
    parts = [items.subset(spaced(len(items), n)) for items, n in ((data.train, a.images), (data.test, a.tested))]
    train, test = (F.avg_pool2d(images(part).float() / 255, 2) for part in parts)
    views = ImageViews(recipes.get("vje_small", name).views, size=SIDE)
    labels = (torch.as_tensor(parts[0].labels), torch.as_tensor(parts[1].labels))
    return Set(train, test, labels, lambda x, g: views.apply(x, views.draw(len(x), g)), small_convnet(3), DIM)


@torch.no_grad()
def embedded(encoder: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([encoder.eval()(part) for part in x.split(500)])


def readings(data: Set, objective: VJE) -> dict[str, Any]:
    """Returns accuracies in percent of z and of the posterior's mean, and statistics of variances and lengths."""
    z = [embedded(data.encoder, part) for part in (data.train, data.test)]
    with torch.no_grad():
        mu, var = zip(*(objective.infer(part) for part in z), strict=True)
    row = accuracies("", *z, data.labels) | accuracies("mu_", *mu, data.labels)
    row |= {"variance": float(var[1].mean()), "cv": float((var[1].std(1, correction=0) / var[1].mean(1)).mean())}
    row |= {"length_z": float(z[1].norm(dim=1).mean()), "length_mu": float(mu[1].norm(dim=1).mean())}
    return row | {"rank": round(float(effective_rank(z[1])), 1)}


def course_of(data: Set, objective: VJE) -> list[float]:
    """Returns the accuracy of kNN on z and on the posterior's mean."""
    z = [embedded(data.encoder, part) for part in (data.train, data.test)]
    with torch.no_grad():
        mu = [objective.infer(part)[0] for part in z]
    return [knn(*z, data.labels), knn(*mu, data.labels)]


def fit(data: Set, objective: VJE, steps: int, seed: int, points: int) -> list[list[float]]:
    """Trains encoder and inference network with the rates of ``vje_small``; returns step and `course_of` at some steps."""
    rate, slower = VJE.small["lr"], VJE.small["encoder_lr"]
    groups = [{"params": data.encoder.parameters(), "lr": slower * rate}, {"params": objective.parameters(), "lr": rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator, course = seeded(seed), []
    for step in range(1, steps + 1):
        x = data.train[torch.randint(len(data.train), (BATCH,), generator=generator)]
        data.encoder.train()
        za, zb = (data.encoder(data.view(x, generator)) for _ in range(2))
        optimizer.zero_grad()
        sum(objective(za, zb).values()).backward()
        optimizer.step()
        schedule.step()
        if points and step % max(1, steps // points) == 0:
            course.append([step, *course_of(data, objective)])
    return course


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed, name, setting in itertools.product(a.seeds, a.data, a.only):
        yield {"data": name, "setting": setting, "steps": a.steps or STEPS[name], "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains and measures one setting."""
    torch.manual_seed(cell["seed"])
    timer, data, options = Timer(), opened(a, cell["data"]), SETTINGS[cell["setting"]]
    objective, row = VJE(data.dim, **(options or {})), {}
    if options is not None:
        course = fit(data, objective, cell["steps"], cell["seed"], POINTS if cell["setting"] == WHOLE else 0)
        row = {"course": course} if course else {}
    return readings(data, objective) | row | {"cpu_seconds": round(timer.processor_seconds(), 1)}


OPTIONS = {"data_root": DATA, "data": some(STEPS), "only": some(SETTINGS), "seeds": SEEDS, "steps": hidden(None)}
OPTIONS |= {"images": hidden(IMAGES), "tested": hidden(TESTED)}
TINY = {"only": ["untrained", WHOLE, "plain, nu inf"], "seeds": [0], "steps": 2, "images": 200, "tested": 100}

if __name__ == "__main__":
    main(__doc__, "vje", OPTIONS, cells, measure, tiny=TINY)
