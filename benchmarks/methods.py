"""Every method on the same network, data, views and budget: kNN, probe, effective rank, detection, images/s, peak memory.

    python benchmarks/methods.py --data-root DATA                       # 10,000 images, 20 epochs, three seeds
    python benchmarks/methods.py --data-root DATA --seconds 300         # as many epochs as fit into 300 s of one processor
    python benchmarks/methods.py --data-root DATA --limit 2000 --epochs 5 --seeds 0

A row of ``results/methods.jsonl`` for each method, setting and seed; rows that the ledger has from the same commit are skipped.
The network is ``small``, the views are those of ``vje_small``, and results are those of the last epoch. Two settings:

published   the optimizer of the method's paper, with its learning rate per 256 images scaled to the batch
searched    AdamW with the best of three learning rates, by kNN among training images after a quarter of the budget

Detection is the AUROC of the run's default detector: test images against images of other sets. Each run has a process of its own,
whose peak memory holds the libraries, too. Images per second are those of one processor, without its waiting.
"""

import argparse
import itertools
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import ledger
import torch
import two_cores
from out_of_distribution import auroc, foreign, images, seeded

import vergence
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.evaluation import features
from vergence.evaluation.parts.spread import effective_rank
from vergence.runs.evaluate import untrained_encoder
from vergence.training import recipes

METHODS = {  # objective: optimizer of the paper, learning rate per 256 images, weight decay
    "barlow_twins": ("lars", 0.2, 1e-6),
    "byol": ("lars", 0.45, 1e-6),
    "contrastive": ("lars", 0.3, 1e-6),
    "lejepa": ("adamw", 5e-4, 5e-4),
    "moco": ("lars", 0.3, 1e-6),
    "simsiam": ("sgd", 0.05, 1e-4),
    "swav": ("lars", 0.3, 1e-6),
    "vicreg": ("lars", 0.2, 1e-6),
    "vje": ("sgd", 0.05, 5e-6),
}
HEADS: dict[str, dict[str, Any]] = {"contrastive": {"projector": (512, 128), "projector_norm": "batch"}}  # as of SimCLR
SEARCHED = (5e-4, 2e-3, 8e-3)  # learning rates of AdamW, with a weight decay of 1e-4
SETTINGS = ("published", "searched")
FOREIGN = ("cifar100", "fashion_mnist", "mnist", "noise")
SHOWN = 1_000  # images of each set


def described(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings that all runs of a method share."""
    known = f"{method}_small" in recipes.names()
    own = {"recipe": f"{method}_small"} if known else {"recipe": "vje_small", "objective": method}
    common = {"root": a.data_root, "limit": a.limit, "batch_size": a.batch_size, "device": "cpu", "threads": 1}
    return {**own, **HEADS.get(method, {}), **common, "warmup_epochs": 1.0, "knn_every": 0, **a.settings}


def optimizer(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings of a method's published optimizer."""
    name, rate, decay = METHODS[method]
    return {"optimizer": name, "lr": rate * a.batch_size / 256, "weight_decay": decay}


def trained(a: argparse.Namespace, settings: dict[str, Any], folder: Path) -> tuple[vergence.Run, float]:
    """Returns a run and the processor seconds that it took, with its detector."""
    start = time.process_time()
    run = vergence.train(a.data, out=folder, **settings)
    return run, time.process_time() - start


def epochs(a: argparse.Namespace, settings: dict[str, Any], place: Path) -> int:
    """Returns the epochs of the budget; for one in seconds, after training one and two epochs."""
    if a.seconds is None:
        return a.epochs
    one, two = (trained(a, {**settings, "epochs": n, "seed": 0}, place / f"trial {n}")[1] for n in (1, 2))
    return max(1, int(a.seconds / max(two - one, 1e-3)))


def searched(a: argparse.Namespace, settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """Returns AdamW's settings with the learning rate that is best among training images after a quarter of the epochs."""
    some = max(1, settings["epochs"] // 4)
    found = {}
    for rate in a.rates:
        trial = {**settings, "optimizer": "adamw", "weight_decay": 1e-4, "lr": rate, "epochs": some, "knn_every": some, "seed": 0}
        rows = trained(a, trial, place / f"search {rate}")[0].folder.metrics()
        found[rate] = next(row["knn"] for row in reversed(rows) if "knn" in row)
    return {"optimizer": "adamw", "weight_decay": 1e-4, "lr": max(found, key=found.__getitem__), "search": found}


def measured(a: argparse.Namespace, run: vergence.Run, parts: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns what is measured of a run."""
    opened = open_data(run.folder.config.data)
    labels = [part.labels for part in (opened.train, opened.test)]
    row: dict[str, Any] = {}
    for name, net in (("", run.method.encoder), ("untrained_", untrained_encoder(run))):
        z = [features.collect(net.eval(), part, size=run.size, device=run.device)[0] for part in (opened.train, opened.test)]
        row |= two_cores.accuracies(name, *z, labels) | {f"{name}effective_rank": round(float(effective_rank(z[1])), 1)}
    found = auroc({name: run.score(x).numpy() for name, x in parts.items()})
    return row | {"auroc": {name.removeprefix("conf:"): round(value, 4) for name, value in found.items()}}


def one(a: argparse.Namespace, method: str, setting: str, seed: int, answer: Any) -> None:
    """Trains and measures one run, in a process of its own; sends what a row needs."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        place, settings = Path(folder), described(a, method)
        settings["epochs"] = epochs(a, settings, place)
        own = optimizer(a, method) if setting == "published" else searched(a, settings, place)
        rates = own.pop("search", None)
        run, seconds = trained(a, {**settings, **own, "seed": seed}, place / "run")
        config, metadata = run.folder.config, run.folder.metadata
        parts = typical_and_foreign(a)
        values = {
            "objective": config.model.objective,
            "options": config.model.options,
            "projector": [*config.model.projector],
            "projector_norm": config.model.projector_norm,
            **own,
            "search": rates,
            "trained_epochs": settings["epochs"],
            "seconds": round(seconds, 1),
            "images_per_second": round(metadata.n_train * settings["epochs"] / seconds, 1),
            "precision": metadata.precision,
            **measured(a, run, parts),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    answer.send(values)


def apart(a: argparse.Namespace, method: str, setting: str, seed: int) -> dict[str, Any]:
    """Returns what `one` measures in a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=one, args=(a, method, setting, seed, send))
    process.start()
    send.close()
    try:
        values: dict[str, Any] = receive.recv()
    except EOFError:
        raise SystemExit(f"{method}, {setting}, seed {seed} failed; see above") from None
    process.join()
    return values


def typical_and_foreign(a: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Returns test images, and images of other sets, by the names that `auroc` reads."""
    test = open_data(DataConfig(source=a.data, root=a.data_root)).test
    typical = images(test, torch.randperm(len(test), generator=seeded(1))[: a.shown])
    read = foreign(a.data_root, tuple(typical.shape[1:]))
    return {"test": typical} | {f"conf:{name}": read[name]()[: a.shown] for name in a.foreign}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--settings", dest="chosen", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seconds", type=float, help="budget of a training in seconds of one processor, instead of --epochs")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--foreign", nargs="*", default=list(FOREIGN), choices=list(FOREIGN))
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the runs, in JSON")
    parser.add_argument("--note", default="", help="written to each row")
    a = ledger.parse(parser, "methods")
    a.settings, a.shown, a.rates = ledger.settings(a.set), SHOWN, SEARCHED
    if a.tiny:
        a.methods, a.chosen, a.seeds, a.foreign = ["simsiam"], ["searched"], [0], ["noise"]
        a.limit, a.epochs, a.batch_size, a.shown, a.rates = 64, 1, 16, 40, SEARCHED[:1]
        a.settings |= {"size": 8, "options": {"hidden": 8}, "projector": (16, 16)}
    for seed, method, setting in itertools.product(a.seeds, a.methods, a.chosen):
        key = {"measurement": "methods", "data": a.data, "method": method, "setting": setting, "n_train": a.limit}
        key |= {"epochs": None if a.seconds else a.epochs, "budget_seconds": a.seconds, "batch_size": a.batch_size}
        if not ledger.holds(a.out, **key, seed=seed):
            values = apart(a, method, setting, seed)
            row = ledger.row({**key, "note": a.note, **values}, seed=seed, peers=("lightly",))
            ledger.add(a.out, row, shown=("method", "setting", "seed", "knn30", "probe", "effective_rank", "auroc", "seconds"))


if __name__ == "__main__":
    main()
