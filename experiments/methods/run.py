"""Every method on the same data and budget: kNN, probe, effective rank, detection, R-AUROC, images/s, peak memory; and baselines.

README.md says how.
"""

import argparse
import dataclasses
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from experiments import ledger
from experiments.detection.run import aurocs, foreign
from experiments.runner import DATA, SEEDS, SETTINGS, first, hidden, main, some
from experiments.shared import MemoryRecorder, Timer, accuracies, embedded, images, peak, seeded
from experiments.uncertainty.scores import ITEMS, ranking, uncertainties
from torch import Tensor

import vergence
from vergence.data.config import DataConfig
from vergence.data.items import spaced
from vergence.data.sources import Data, open_data
from vergence.learn import methods as image_methods
from vergence.learn import objectives
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.evaluation.uncertainty import neighbor_is_right
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.runs.evaluate import untrained_encoder
from vergence.learn.training import build, loop, recipes

METHODS = (*objectives.names(), *image_methods.names())
SOURCES = {name: f"{name}_imagenet" for name in ("barlow_twins", "byol", "contrastive", "moco", "simsiam", "swav", "vicreg")}
SOURCES |= {
    "vje": "vje_cifar10",
    "masked_autoencoder": "masked_autoencoder",
    "i_jepa": "i_jepa",
}  # recipes of the papers' settings
OTHERS = {"dino": ("adamw", 5e-4, 0.04), "lejepa": ("adamw", 5e-4, 5e-4)}  # as SOURCES: optimizer, rate for 256 images, decay
BASELINES = {  # encoders that are frozen, or the recipe of a closed form
    "untrained": "experiments.methods.baselines:small",
    "pixels": "experiments.methods.baselines:pixels",
    "pca": "experiments.methods.baselines:pixels",
    "patches": "patches",
}
COMPONENTS = 256  # principal components of the pixels, as many as the network has features
SEARCHED = (1.25e-4, 5e-4, 2e-3, 8e-3)  # learning rates of AdamW, with a weight decay of 1e-4
OPTIMIZER = ("optimizer", "lr", "encoder_lr", "weight_decay")  # settings of a run that a row has, as the run had them
CHOICES = ("baseline", "searched", "published")
FOREIGN = ("cifar100", "fashion_mnist", "mnist", "noise")
SHARED = ("torchvision", "lightning_fabric", "torch._dynamo", "timm", "sklearn")


def described(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings that all runs of a method share."""
    common = {"root": a.data_root, "limit": a.limit, "device": "cpu", "threads": 1}
    if method == "patches":
        return {"recipe": BASELINES[method], **common, **a.set, **a.tiny_options.get(method, {})}
    common |= {"batch_size": a.batch_size, "knn_every": 0}
    if method in BASELINES:
        side = open_data(DataConfig(source=a.data, root=a.data_root)).train.shape[-1]  # a frozen encoder has another default
        baseline = {"recipe": "gje_small", "objective": "none", "encoder": BASELINES[method], "freeze": True, "size": side}
        return {**baseline, **common, **a.set}
    return {"recipe": f"{method}_small", **common, **a.set, **a.tiny_options.get(method, {})}


def optimizer(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings of a method's published optimizer, whose rate is scaled to the batch."""
    if method in OTHERS:
        name, rate, decay = OTHERS[method]
    else:
        fit = recipes.get(SOURCES[method]).fit
        name, rate, decay = fit.optimizer, fit.lr * 256 / fit.batch_size, fit.weight_decay
    return {"optimizer": name, "lr": rate * a.batch_size / 256, "encoder_lr": 1.0, "weight_decay": decay}


def trained(a: argparse.Namespace, settings: dict[str, Any], folder: Path) -> vergence.Run:
    """Returns a run, a tenth of whose epochs are warm-up."""
    short = {"warmup_epochs": settings["epochs"] / 10} if "epochs" in settings else {}
    return vergence.train(a.data, out=folder, **settings, **short)


def epochs(a: argparse.Namespace, settings: dict[str, Any], place: Path) -> int:
    """Returns the epochs of the budget; for one in seconds, by the speed of a run's training loop after an epoch."""
    if a.seconds is None:
        return a.epochs
    run = trained(a, {**settings, "epochs": 1, "seed": 0}, place / "trial")
    rate = speed(run, open_data(run.folder.config.data), steps=4 * a.steps)
    return max(1, int(a.seconds * rate / run.folder.metadata.n_train))


def searched(a: argparse.Namespace, key: dict[str, Any], settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """Returns AdamW's settings with the learning rate that is best among training images after a share of the epochs.

    The search has seed 0 and is that of an earlier row of the same settings and commit, where there is one; with
    ``--earlier-search`` of any commit, and with ``--search-seconds`` of another budget: a search that was long enough for one
    budget serves a longer one.
    """
    key = {name: value for name, value in key.items() if name != "seed"}
    if a.earlier_search:
        key |= {} if a.search_seconds is None else {"budget_seconds": a.search_seconds}
        rows = [row for row in ledger.rows(a.out) if ledger.has(row, **key)]
        if not rows:
            raise SystemExit(f"expected a row of {key['method']} with these settings, found none; leave out --earlier-search")
        return best(rows[-1]["search"]) | {"search_commit": rows[-1].get("search_commit", rows[-1]["commit"])}
    for row in ledger.rows(a.out) if a.out else ():
        if ledger.matches(row, **key):
            return best(row["search"])
    found, share = {}, max(1, int(a.search_share * settings["epochs"]))
    for rate in a.rates:
        trial = {"optimizer": "adamw", "weight_decay": 1e-4, "lr": rate, "epochs": share, "knn_every": share, "seed": 0}
        metrics = trained(a, settings | trial, place / f"search {rate}").folder.metrics()
        found[str(rate)] = round(next(row["knn"] for row in reversed(metrics) if "knn" in row), 4)
    return best(found)


def best(search: dict[str, float]) -> dict[str, Any]:
    """Returns AdamW's settings with the best learning rate of a search, which holds kNN accuracies by rate."""
    return {"optimizer": "adamw", "weight_decay": 1e-4, "lr": float(max(search, key=search.__getitem__)), "search": search}


def speed(run: vergence.Run, opened: Data, steps: int) -> float:
    """Returns images per processor second of a run's training loop: views, network, loss, optimizer."""
    config, shape, moments = run.folder.config, run.folder.metadata.shape, build.statistics(opened.train)
    fit = dataclasses.replace(config.fit, epochs=1, warmup_epochs=0.0, checkpoint_seconds=1e9)
    method = build.initial_method(config, shape, None, *moments)
    views = build.make_views(opened, config.views, shape)
    for n in (1, steps):  # the first one warms up
        part = opened.train.subset(torch.arange(n * fit.batch_size) % len(opened.train))
        timer = Timer()
        loop.fit(loop.launch(fit), method, part, views, fit, MemoryRecorder(), warn=lambda message: None)
    return steps * fit.batch_size / timer.processor_seconds()


def errors(run: vergence.Run, train: Tensor, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """Returns recall at 1 and the R-AUROC of every uncertainty that needs no labels, on at most 2,000 test items."""
    chosen = spaced(len(test), ITEMS)
    z, right = test[chosen], neighbor_is_right(test[chosen], labels[chosen])
    with torch.inference_mode():
        scores = uncertainties(train, z, run)
    ranked = {name: round(ranking(u, right)["auroc"], 4) for name, u in scores.items()}
    return {"recall_at_1": round(float(right.double().mean()), 4), "r_auroc": ranked}


def measured(a: argparse.Namespace, run: vergence.Run, opened: Data, baseline: bool) -> dict[str, Any]:
    """Returns what is measured of a run, and the accuracies of its first weights unless it is a baseline."""
    labels = opened.train.labels, opened.test.labels
    row: dict[str, Any] = {}
    for name, net in (("", run.method.encoder), *(() if baseline else (("untrained_", untrained_encoder(run)),))):
        z = embedded(run, opened.train, opened.test, net=net)
        row |= accuracies(name, *z, labels) | {f"{name}effective_rank": round(float(effective_rank(z[1])), 1)}
        row |= {} if name else errors(run, *z, labels[1])
    test = images(opened.test, torch.randperm(len(opened.test), generator=seeded(1))[: a.shown])
    sets = {"test": test} | {name: foreign(name, a.data_root, tuple(test.shape[1:]))[: a.shown] for name in a.foreign}
    found = aurocs({name: run.anomaly_score(x).numpy() for name, x in sets.items()})
    return row | {"auroc": {name: round(value, 4) for name, value in found.items()}}


def components(run: vergence.Run, opened: Data, n: int) -> vergence.Run:
    """Returns the run of the pixels behind a projection to n principal components, which its detector reads."""
    x = run.embed(opened.train)
    linear = torch.nn.Linear(x.shape[1], min(n, *x.shape))
    axes = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)[2][: linear.out_features].float()
    linear.load_state_dict({"weight": axes, "bias": -axes @ x.mean(0)})
    return vergence.Run(run.folder, PairedMethod(torch.nn.Sequential(*run.method.encoder, linear), None), run.device)


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what names each row: baselines first, then whole settings, so that a stop leaves few gaps."""
    for name in filter(importlib.util.find_spec, SHARED):  # imported once, before the processes fork
        importlib.import_module(name)
    common: dict[str, Any] = {"measurement": "methods", "data": a.data, "n_train": a.limit, "batch_size": a.batch_size}
    common |= {"epochs": None if a.seconds else a.epochs, "budget_seconds": a.seconds, "set": a.set}
    common |= {"search_share": a.search_share, "rates": a.rates}
    for seed, setting in itertools.product(a.seeds, [choice for choice in CHOICES if choice in a.settings]):
        for method in a.baselines if setting == "baseline" else a.methods:
            if setting != "published" or method in SOURCES or method in OTHERS:
                yield {**common, "method": method, "setting": setting, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains and measures one run, in a process of its own."""
    torch.manual_seed(cell["seed"])
    method, baseline = cell["method"], cell["setting"] == "baseline"
    place = a.scratch / "-".join((method, cell["setting"], str(cell["seed"])))
    settings, values = described(a, method), {"optimizer": None, "lr": None, "search": None, "images_per_second": None}
    if not baseline:
        settings["epochs"] = epochs(a, settings, place)
        values |= optimizer(a, method) if cell["setting"] == "published" else searched(a, cell, settings, place)
    chosen = {name: values[name] for name in OPTIMIZER if values.get(name) is not None}
    timer = Timer()
    run = trained(a, {**settings, **chosen, "seed": cell["seed"]}, place / "run")
    values |= {"seconds": round(timer.processor_seconds(), 1), "trained_epochs": settings.get("epochs", 0)}
    config, opened = run.folder.config, open_data(run.folder.config.data)
    run = components(run, opened, COMPONENTS) if method == "pca" else run
    values |= {"peak_mib": peak()}
    if not baseline:
        values |= {name: getattr(config.fit, name) for name in OPTIMIZER}
        values |= {"images_per_second": round(speed(run, opened, a.steps), 1)}
    values |= {name: getattr(config.model, name) for name in ("objective", "options", "projector", "projector_norm")}
    values |= {"encoder": str(config.model.encoder), "precision": run.folder.metadata.precision}
    return values | measured(a, run, opened, baseline)


OPTIONS = {"data_root": DATA, "data": "cifar10", "methods": some(METHODS), "settings": some(CHOICES), "seeds": SEEDS}
OPTIONS |= {"limit": 10_000, "epochs": 20, "seconds": float, "rates": list(SEARCHED), "search_share": 0.5, "batch_size": 128}
OPTIONS |= {"earlier_search": False, "search_seconds": float, "foreign": some(FOREIGN), "set": SETTINGS, "note": ""}
# Images of each set, steps that the training loop is timed for.
OPTIONS |= {"baselines": hidden(list(BASELINES)), "shown": hidden(1_000), "steps": hidden(8), "tiny_options": hidden({})}
TINY = {"methods": ["simsiam"], "settings": ["searched", "baseline"], "baselines": ["pca", "patches"], "seeds": [0]}
TINY |= {"limit": 64, "epochs": 1, "seconds": None, "rates": first, "batch_size": 16, "earlier_search": False}
TINY |= {"set": lambda settings: settings | {"size": 8}, "foreign": ["noise"], "shown": 40, "steps": 1}
TINY["tiny_options"] = {"simsiam": {"options": {"hidden": 8}, "projector": (16, 16)}}
TINY["tiny_options"]["patches"] = {"encoder": "patches:atoms=4,second=0,directions=16,dim=8"}

if __name__ == "__main__":
    shown = ("method", "setting", "lr", "seed", "knn30", "probe", "auroc", "r_auroc", "seconds")
    main(__doc__, "methods", OPTIONS, cells, measure, tiny=TINY, peers=("timm",), shown=shown, apart="fork")
