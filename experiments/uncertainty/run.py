"""Which uncertainty ranks errors, and which ranks foreign images? CIFAR-10, one encoder and seed a row, beside controls.

    python -m experiments.uncertainty.run --data-root DATA                               # all encoders, on the test images
    python -m experiments.uncertainty.run --data-root DATA --choose --only "vje, 16 px"  # on training images: nothing is written
    python -m experiments.tables                                                     # the tables of docs/uncertainty.md

Encoders: the closed-form recipe `patches` with 256 atoms in one layer and with its defaults, four convolutions on 16 pixels
trained for 8 epochs with each objective, and the recipe `vje_small` on 32 pixels, all on 10,000 images (`ENCODERS`). Each row has
what `experiments/uncertainty/protocol.py` measures on 2,000 test images, and for every uncertainty the AUROC of foreign images
(`FOREIGN`), 250 of each. With ``--choose`` training images that no run has seen take the place of the test images: the settings
of the uncertainties were chosen so. Runs that are in ``--runs`` already are used.
"""

import argparse
import dataclasses
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from experiments.uncertainty.controls import compressed_size
from experiments.uncertainty.protocol import apart as auroc
from experiments.uncertainty.protocol import protocol
from torch import Tensor

import vergence
from experiments import ledger
from vergence.data.config import DataConfig
from vergence.data.items import ArrayItems, Items
from vergence.data.pixels import to_unit
from vergence.data.sources import Data, open_data
from vergence.runs import uncertainty as measured

LIMIT, FOREIGNERS = 10_000, 250  # images to learn from, and of each foreign set
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
FOREIGN = ("fashion_mnist", "mnist", "noise")


def run_of(name: str, seed: int, a: argparse.Namespace, folder: Path) -> vergence.Run:
    """Returns the trained run of an encoder and seed, from the folder where it is there."""
    out = folder / f"{name.replace(', ', '-').replace(' ', '')}-{seed}"
    if (out / "model.safetensors").exists():
        return vergence.load(out, device="cpu")
    limit = {"limit": 300, "epochs": 1} if a.tiny else {"limit": LIMIT}
    settings = ENCODERS[name] | limit | {"seed": seed, "root": a.data_root, "device": "cpu"}
    recipe = settings.pop("recipe")
    return vergence.train("cifar10", out=out, recipe=recipe, **settings)


def opened_for(run: vergence.Run, a: argparse.Namespace) -> Data:
    """Returns a run's data; with ``--choose`` unseen training images in place of the test images."""
    opened = open_data(run.folder.config.data)
    if a.tiny:
        return dataclasses.replace(opened, test=opened.test.subset(torch.arange(200)))
    if not a.choose:
        some = torch.linspace(0, len(opened.test) - 1, measured.ITEMS).long()
        return dataclasses.replace(opened, test=opened.test.subset(some))
    whole = open_data(DataConfig(source="cifar10", root=a.data_root, size=run.folder.config.data.size)).train
    used = set(opened.train.names)
    rest = torch.tensor([i for i, name in enumerate(whole.names) if name not in used])
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(1))
    return dataclasses.replace(opened, test=whole.subset(rest[order[: measured.ITEMS]]))


def foreign(run: vergence.Run, root: str, n: int) -> dict[str, Items]:
    """Returns n images of each foreign set, in the run's shape."""
    found: dict[str, Items] = {}
    for name in FOREIGN[:-1]:
        items = run.items(name, root=root)
        found[name] = items.subset(torch.arange(min(n, len(items))))
    shape = run.read_shape()
    noise = torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))
    return found | {"noise": ArrayItems((255 * noise).byte())}


def apart(run: vergence.Run, bank: Tensor, opened: Data, root: str, n: int) -> dict[str, dict[str, float]]:
    """Returns the AUROC of each foreign set by every uncertainty that needs no labels."""
    typical = opened.test.subset(torch.linspace(0, len(opened.test) - 1, min(n, len(opened.test))).long())
    every = {name: _scores(run, bank, items) for name, items in {"typical": typical, **foreign(run, root, n)}.items()}
    first = every.pop("typical")
    return {name: {key: auroc(first[key], u) for key, u in scores.items() if key in first} for name, scores in every.items()}


@torch.inference_mode()
def _scores(run: vergence.Run, bank: Tensor, items: Items) -> dict[str, Tensor]:
    found = measured.uncertainties(bank, run.embed(items), run)
    x = next(iter(items.stream(iter([torch.arange(len(items))]))))[1]
    found["file size"] = compressed_size((255 * to_unit(x)).byte())
    return found | {"spread over crops": run.spread(items)[1]}


def row_of(name: str, seed: int, a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the measurements of an encoder and seed."""
    began = time.monotonic()
    run = run_of(name, seed, a, folder)
    opened = opened_for(run, a)
    train, test = run.embed(opened.train), run.embed(opened.test)
    found = protocol(run, opened, train, test)
    far = apart(run, train, opened, a.data_root, 50 if a.tiny else FOREIGNERS)
    return {**found, "foreign": far, "trained_at": run.folder.metadata.commit, "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--only", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, help="folder of the runs; a temporary one by default")
    parser.add_argument("--choose", action="store_true", help="measure on unseen training images, and write nothing")
    a = ledger.parse(parser, "uncertainty")
    with tempfile.TemporaryDirectory() as scratch:
        for seed, name in itertools.product(a.seeds, a.only[1:2] if a.tiny else a.only):
            key = {"encoder": name, "data": "cifar10", "limit": LIMIT}
            if a.choose or not ledger.holds(a.out, **key, seed=seed):
                row = key | row_of(name, seed, a, a.runs or Path(scratch))
                ledger.add(None if a.choose else a.out, ledger.row(row, seed=seed))


if __name__ == "__main__":
    main()
