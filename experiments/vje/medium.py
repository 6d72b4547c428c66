"""One point of medium size: ResNet-18 on CIFAR-10 at 32 pixels by VJE, SimCLR, VICReg and GJE, with what an epoch costs.

README.md says how.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from experiments.methods.run import speed
from experiments.runner import DATA, hidden, main, some
from experiments.shared import Timer, accuracies, embedded, folder_name, kept_run

from vergence.data.sources import open_data

METHODS: dict[str, dict[str, Any]] = {
    "vje": {"recipe": "vje_cifar10"},
    "simclr": {"recipe": "contrastive_cifar10"},
    "vicreg": {"recipe": "vicreg_vje_cifar10"},
    "gje": {"recipe": "vje_cifar10", "objective": "gje", "projector": (512, 64)},  # VJE's schedule, a head of ours
}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed, method in itertools.product(a.seeds, a.methods):
        yield {"method": method, "limit": a.limit or None, "epochs": a.epochs, "batch_size": a.batch_size, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains one run, or goes on with one that was stopped, and reads the accuracies of its embedding."""
    settings = {**METHODS[cell["method"]], **{name: cell[name] for name in ("limit", "epochs", "batch_size", "seed")}}
    settings |= {"root": a.data_root, "device": a.device, "workers": a.workers, "knn_every": 0}
    settings |= {} if a.limit else {"calibration_share": 0.0}  # the papers train on all images
    settings |= {"encoder": a.encoder} if a.encoder else {}
    folder = a.scratch / folder_name(cell["method"], **{name: cell[name] for name in ("limit", "epochs", "batch_size", "seed")})
    timer = Timer()
    run = kept_run(folder, "cifar10", **{name: value for name, value in settings.items() if value is not None})
    seconds = timer.both()  # also of the detector; of a training that was stopped, those since
    data = open_data(run.folder.config.data)
    test = data.test.subset(torch.arange(min(a.tests, len(data.test))))
    z = embedded(run, data.train, test)
    cost = {} if a.device != "cpu" else {"ms_an_image": round(1000 / speed(run, data, steps=a.steps), 1)}
    return cost | seconds | accuracies("", *z, (torch.as_tensor(data.train.labels), torch.as_tensor(test.labels)))


OPTIONS = {"data_root": DATA, "methods": some(METHODS), "seeds": [0], "limit": 0, "epochs": 50, "batch_size": 256}
OPTIONS |= {"tests": 10_000, "device": "cpu", "workers": 0, "scratch": Path, "encoder": hidden(None), "steps": hidden(2)}
TINY = {"limit": 64, "epochs": 1, "batch_size": 32, "tests": 50, "encoder": "small", "device": "cpu"}

if __name__ == "__main__":
    main(__doc__, "medium", OPTIONS, cells, measure, tiny=TINY)
