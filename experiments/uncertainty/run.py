"""Which uncertainty ranks errors, and which ranks foreign images? CIFAR-10, one encoder and seed a row, with baselines.

README.md says how.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from experiments.runner import DATA, hidden, main, some
from experiments.shared import Timer, apart, images, kept_run, parts, seeded
from experiments.uncertainty.baselines import compressed_size
from experiments.uncertainty.protocol import protocol
from experiments.uncertainty.scores import ITEMS, uncertainties
from torch import Tensor

import vergence
from vergence.data.items import ArrayItems, Items, spaced
from vergence.data.pixels import to_unit
from vergence.data.sources import open_data

LIMIT = 10_000  # images to learn from
SMALL = {"recipe": "jepa_small", "size": 16, "epochs": 8, "batch_size": 128, "knn_every": 0}
HEAD = {"projector": (256, 32)}
ENCODERS: dict[str, dict[str, Any]] = {
    "patches, 32 px": {"recipe": "patches", "encoder": "patches:atoms=256,second=0,directions=1024,dim=256"},
    "vje, 16 px": SMALL | {"objective": "vje"},
    "vje, 32 px": {"recipe": "vje_small"},
    "contrastive, 16 px": SMALL | HEAD | {"objective": "contrastive"},
    "gmje, 16 px": SMALL | HEAD | {"objective": "gmje"},
    "patches, two layers": {"recipe": "patches"},
}
FOREIGN = ("fashion_mnist", "mnist")  # and noise


def foreign(run: vergence.Run, root: str, n: int) -> dict[str, Items]:
    """Returns n images of each foreign set, in the run's shape."""
    sets = {name: run.items(name, root=root) for name in FOREIGN}
    noise = torch.rand(n, *run.folder.metadata.item_shape(), generator=seeded(0))
    some = {name: items.subset(torch.arange(min(n, len(items)))) for name, items in sets.items()}
    return some | {"noise": ArrayItems((255 * noise).byte())}


@torch.inference_mode()
def scores(run: vergence.Run, bank: Tensor, items: Items) -> dict[str, Tensor]:
    """Returns every uncertainty that needs no labels."""
    found = uncertainties(bank, run.embed(items), run)
    found["file size"] = compressed_size((255 * to_unit(images(items))).byte())
    return found | {"spread over crops": run.spread(items)[1]}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for seed, name in itertools.product(a.seeds, a.only):
        yield {"encoder": name, "data": "cifar10", "limit": LIMIT, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurements of an encoder and seed."""
    timer, name, seed = Timer(), cell["encoder"], cell["seed"]
    short = {"limit": 300, "epochs": 1} if a.tiny else {"limit": LIMIT}
    settings = ENCODERS[name] | short | {"seed": seed, "root": a.data_root, "device": "cpu"}
    folder = (a.runs or a.scratch) / f"{name.replace(', ', '-').replace(' ', '')}-{seed}"
    run = kept_run(folder, "cifar10", **settings)
    test = parts(run.folder.config, a.choose, ITEMS)[1]
    test = test.subset(torch.arange(200) if a.tiny else spaced(len(test), ITEMS))
    opened = dataclasses.replace(open_data(run.folder.config.data), test=test)
    bank = run.embed(opened.train)
    found = protocol(run, opened, bank, run.embed(test))
    first = scores(run, bank, test.subset(spaced(len(test), a.foreigners)))
    far = {
        kind: {key: apart(first[key], u) for key, u in scores(run, bank, items).items() if key in first}
        for kind, items in foreign(run, a.data_root, a.foreigners).items()
    }
    return {**found, "foreign": far, "trained_at": run.folder.metadata.commit, "seconds": timer.seconds()}


if __name__ == "__main__":
    options = {"data_root": DATA, "only": some(ENCODERS), "seeds": [0], "runs": Path, "choose": False, "foreigners": hidden(250)}
    main(__doc__, "uncertainty", options, cells, measure, tiny={"only": ["vje, 16 px"], "foreigners": 50})
