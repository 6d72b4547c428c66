"""Figure 4 of the VJE paper on digits: is AUROC of one class higher where the posterior's entropy is, over beta and nu?

README.md says how.
"""

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import torch
from experiments.runner import SEEDS, first, hidden, main
from experiments.shared import Timer, apart
from experiments.vje.run import embedded, fit, opened

from vergence.learn.objectives import VJE

CLASSES, STEPS = 10, 100


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed, beta, nu in itertools.product(a.seeds, a.beta, a.nu):
        yield {"data": "digits", "beta": beta, "nu": nu, "steps": a.steps, "seed": seed}


def of_class(a: argparse.Namespace, cell: dict[str, Any], label: int) -> dict[str, float]:
    """Returns the AUROC of VJE's own scores, and entropy and summed variance of test items of the class on average."""
    torch.manual_seed(cell["seed"])
    whole = opened(a, "digits")
    data = dataclasses.replace(whole, train=whole.train[whole.labels[0] == label])
    objective, own = VJE(data.dim, beta=cell["beta"], nu=cell["nu"]), whole.labels[1] == label
    fit(data, objective, a.steps, cell["seed"], 0)
    with torch.no_grad():
        scores = objective.scores(embedded(data.encoder, data.test), generator=torch.Generator().manual_seed(0))
    row = {f"auroc_{name}": apart(scores[name][own], scores[name][~own]) for name in ("joint", "variance", "entropy")}
    return row | {name: float(scores[name][own].mean()) for name in ("variance", "entropy")}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the means over the classes."""
    timer, found = Timer(), [of_class(a, cell, label) for label in range(a.classes)]
    row: dict[str, Any] = {name: statistics.mean(values[name] for values in found) for name in found[0]}
    return row | {"cpu_seconds": round(timer.processor_seconds(), 1)}


OPTIONS = {"beta": [0.75, 1.0, 1.5], "nu": [0.25, 0.5, 3.0, 20.0], "seeds": SEEDS}
OPTIONS |= {"classes": hidden(CLASSES), "steps": hidden(STEPS)}
TINY = {"beta": first, "nu": first, "seeds": [0], "classes": 1, "steps": 2}

if __name__ == "__main__":
    main(__doc__, "vje_grid", OPTIONS, cells, measure, tiny=TINY)
