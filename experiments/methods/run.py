"""Every method on the same data and budget: kNN, probe, effective rank, detection, R-AUROC, images/s, peak memory; and controls.

    python -m experiments.methods.run --data-root DATA                       # 10,000 images, 20 epochs, three seeds
    python -m experiments.methods.run --data-root DATA --seconds 300         # as many epochs as fit into 300 s of one processor
    python -m experiments.methods.run --data-root DATA --seconds 300 --set size=16 --search-share 0.2 --rates 5e-4 2e-3 8e-3
    python -m experiments.methods.run --data-root DATA --limit 2000 --epochs 5 --seeds 0

A row of ``results/methods.jsonl`` for each method, setting and seed; rows that the ledger has from the same commit are skipped.
The network is ``small``; the masked autoencoder and I-JEPA need a transformer, which has a width of 96 and a depth of 4. Methods
on pairs have the views of ``vje_small``, methods on images those of their recipe. Results are those of the last epoch. Settings:

published   the optimizer of the method's paper, with its learning rate per 256 images scaled to the batch; only for methods whose
            optimizer is known and that the library has
searched    AdamW with the best of four learning rates, by kNN among training images after half of the epochs, or after
            ``--search-share`` of them; test images and their labels serve no choice
control     no gradient: the network with its first weights, the pixels, 256 of their principal components, and the closed form
            of patches (the recipe ``patches``)

Detection is the AUROC of the run's default detector: test images against images of other sets; a control's detector reads the
control in place of an embedding. R-AUROC is measured on 2,000 test images, for every uncertainty that needs no labels. A tenth of
the epochs are warm-up. Each run has a process of its own; its peak memory, with that of the libraries, is read when the training
has ended and the detector is fitted. Images per second are those of the training loop alone, by processor time.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from experiments.accuracy import run as two_cores
from experiments.detection.run import auroc, foreign, images, seeded

import vergence
from experiments import ledger
from vergence import methods as image_methods
from vergence import objectives
from vergence.data.config import DataConfig
from vergence.data.sources import Data, open_data
from vergence.evaluation import features, uncertainty
from vergence.evaluation.collapse import effective_rank
from vergence.methods.paired import PairedMethod
from vergence.runs.evaluate import untrained_encoder
from vergence.runs.uncertainty import ITEMS, uncertainties
from vergence.training import build, loop
from vergence.training.metrics import MemoryRecorder

METHODS: dict[str, tuple[str, float, float] | None] = {  # the paper's optimizer, rate per 256 images, weight decay; None: unknown
    **dict.fromkeys((*objectives.names(), *image_methods.names())),
    "barlow_twins": ("lars", 0.2, 1e-6),
    "byol": ("lars", 0.45, 1e-6),
    "contrastive": ("lars", 0.3, 1e-6),
    "lejepa": ("adamw", 5e-4, 5e-4),
    "moco": ("lars", 0.3, 1e-6),
    "simsiam": ("sgd", 0.05, 1e-4),
    "swav": ("lars", 0.3, 1e-6),
    "vicreg": ("lars", 0.2, 1e-6),
    "vje": ("sgd", 0.05, 5e-6),
    "masked_autoencoder": ("adamw", 1.5e-4, 0.05),
    "dino": ("adamw", 5e-4, 0.04),
    "i_jepa": ("adamw", 1.25e-4, 0.04),
}
CONTROLS = {  # encoders that are frozen, or the recipe of a closed form
    "untrained": "experiments.methods.baselines:small",
    "pixels": "experiments.methods.baselines:pixels",
    "pca": "experiments.methods.baselines:pixels",
    "patches": "patches",
}
COMPONENTS = 256  # principal components of the pixels, as many as the network has features
SEARCHED = (1.25e-4, 5e-4, 2e-3, 8e-3)  # learning rates of AdamW, with a weight decay of 1e-4
OPTIMIZER = ("optimizer", "lr", "encoder_lr", "weight_decay")  # settings of a run that a row has, as the run had them
SETTINGS = ("control", "searched", "published")
FOREIGN = ("cifar100", "fashion_mnist", "mnist", "noise")
SHARED = ("torchvision", "lightning_fabric", "torch._dynamo", "lightly", "timm", "sklearn")
SHOWN, STEPS = 1_000, 8  # images of each set; steps that the training loop is timed for


def described(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings that all runs of a method share."""
    common = {"root": a.data_root, "limit": a.limit, "device": "cpu", "threads": 1}
    if method == "patches":
        return {"recipe": CONTROLS[method], **common, **a.settings, **a.options.get(method, {})}
    common |= {"batch_size": a.batch_size, "knn_every": 0}
    if method in CONTROLS:
        side = open_data(DataConfig(source=a.data, root=a.data_root)).train.shape[-1]  # a frozen encoder has another default
        own = {"recipe": "gje_small", "objective": "none", "encoder": CONTROLS[method], "freeze": True, "size": side}
        return {**own, **common, **a.settings}
    return {"recipe": f"{method}_small", **common, **a.settings, **a.options.get(method, {})}


def optimizer(a: argparse.Namespace, method: str) -> dict[str, Any]:
    """Returns the settings of a method's published optimizer."""
    published = METHODS[method]
    assert published is not None, "of methods whose optimizer is known"
    return {"optimizer": published[0], "lr": published[1] * a.batch_size / 256, "encoder_lr": 1.0, "weight_decay": published[2]}


def trained(a: argparse.Namespace, settings: dict[str, Any], folder: Path) -> tuple[vergence.Run, float]:
    """Returns a run and the processor seconds that it took, with its detector."""
    start = time.process_time()
    short = {"warmup_epochs": settings["epochs"] / 10} if "epochs" in settings else {}
    run = vergence.train(a.data, out=folder, **settings, **short)
    return run, time.process_time() - start


def epochs(a: argparse.Namespace, settings: dict[str, Any], place: Path) -> int:
    """Returns the epochs of the budget; for one in seconds, by the speed of a run's training loop after an epoch."""
    if a.seconds is None:
        return a.epochs
    run, _ = trained(a, {**settings, "epochs": 1, "seed": 0}, place / "trial")
    rate = speed(a, run, open_data(run.folder.config.data), steps=4 * a.steps)
    return max(1, int(a.seconds * rate / run.folder.metadata.n_train))


def searched(a: argparse.Namespace, key: dict[str, Any], settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """Returns AdamW's settings with the learning rate that is best among training images after a share of the epochs.

    The search has seed 0 and is that of an earlier row of the same commit and settings, where there is one.
    """
    found = next((row["search"] for row in ledger.rows(a.out) if ledger.matches(row, **key)), None) if a.out else None
    if found is None:
        found, some = {}, max(1, int(a.search_share * settings["epochs"]))
        for rate in a.rates:
            trial = {
                **settings,
                "optimizer": "adamw",
                "weight_decay": 1e-4,
                "lr": rate,
                "epochs": some,
                "knn_every": some,
                "seed": 0,
            }
            rows = trained(a, trial, place / f"search {rate}")[0].folder.metrics()
            found[str(rate)] = round(next(row["knn"] for row in reversed(rows) if "knn" in row), 4)
    return best(found)


def earlier(a: argparse.Namespace, key: dict[str, Any]) -> dict[str, Any]:
    """Returns AdamW's settings with the learning rate that the last row of the same settings found, whatever its commit.

    The row may have another budget, ``--search-seconds``: a search that was long enough for one serves a longer one.
    """
    key = key if a.search_seconds is None else {**key, "budget_seconds": a.search_seconds}
    found = [row for row in ledger.rows(a.out) if ledger.has(row, **key)]
    if not found:
        raise SystemExit(f"expected a row of {key['method']} with these settings, found none; leave out --earlier-search")
    return best(found[-1]["search"]) | {"search_commit": found[-1].get("search_commit", found[-1]["commit"])}


def best(search: dict[str, float]) -> dict[str, Any]:
    """Returns AdamW's settings with the best learning rate of a search, which holds kNN accuracies by rate."""
    return {"optimizer": "adamw", "weight_decay": 1e-4, "lr": float(max(search, key=search.__getitem__)), "search": search}


def speed(a: argparse.Namespace, run: vergence.Run, opened: Data, steps: int) -> float:
    """Returns images per processor second of a run's training loop: views, network, loss, optimizer."""
    config, shape, moments = run.folder.config, run.folder.metadata.shape, build.statistics(opened.train)
    fit = dataclasses.replace(config.fit, epochs=1, warmup_epochs=0.0, checkpoint_seconds=1e9)
    method = build.initial_method(config, shape, None, *moments)
    views = build.make_views(opened, config.views, shape)
    for n in (1, steps):  # the first one warms up
        part = opened.train.subset(torch.arange(n * fit.batch_size) % len(opened.train))
        start = time.process_time()
        loop.fit(loop.launch(fit), method, part, views, fit, MemoryRecorder(), warn=lambda message: None)
        used = time.process_time() - start
    return steps * fit.batch_size / used


def errors(run: vergence.Run, train: torch.Tensor, test: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
    """Returns recall at 1 and the R-AUROC of every uncertainty that needs no labels, on at most 2,000 test items."""
    some = torch.linspace(0, len(test) - 1, min(ITEMS, len(test))).long()
    z, right = test[some], uncertainty.neighbor_is_right(test[some], labels[some])
    with torch.inference_mode():
        scores = uncertainties(train, z, run)
    ranked = {name: round(uncertainty.ranking(u, right)["auroc"], 4) for name, u in scores.items()}
    return {"recall_at_1": round(float(right.double().mean()), 4), "r_auroc": ranked}


def measured(run: vergence.Run, opened: Data, parts: dict[str, torch.Tensor], control: bool) -> dict[str, Any]:
    """Returns what is measured of a run, and the accuracies of its first weights unless it is a control."""
    labels = [part.labels for part in (opened.train, opened.test)]
    row: dict[str, Any] = {}
    for name, net in (("", run.method.encoder), *(() if control else (("untrained_", untrained_encoder(run)),))):
        z = [
            features.collect_features(net.eval(), part, size=run.size, device=run.device)[0]
            for part in (opened.train, opened.test)
        ]
        row |= two_cores.accuracies(name, *z, labels) | {f"{name}effective_rank": round(float(effective_rank(z[1])), 1)}
        row |= errors(run, *z, labels[1]) if not name else {}
    found = auroc({name: run.anomaly_score(x).numpy() for name, x in parts.items()})
    return row | {"auroc": {name.removeprefix("conf:"): round(value, 4) for name, value in found.items()}}


def components(run: vergence.Run, opened: Data, n: int) -> vergence.Run:
    """Returns the run of the pixels behind a projection to n principal components, which its detector reads."""
    x = run.embed(opened.train)
    linear = torch.nn.Linear(x.shape[1], min(n, *x.shape))
    axes = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)[2][: linear.out_features].float()
    linear.load_state_dict({"weight": axes, "bias": -axes @ x.mean(0)})
    return vergence.Run(run.folder, PairedMethod(torch.nn.Sequential(*run.method.encoder, linear), None), run.device)


def one(a: argparse.Namespace, key: dict[str, Any], seed: int, answer: Any) -> None:
    """Trains and measures one run, in a process of its own; sends what a row needs."""
    torch.manual_seed(seed)
    method, setting = key["method"], key["setting"]
    with tempfile.TemporaryDirectory() as folder:
        place, settings = Path(folder), described(a, method)
        values: dict[str, Any] = {"optimizer": None, "lr": None, "search": None, "images_per_second": None}
        if setting != "control":
            settings["epochs"] = epochs(a, settings, place)
            if setting == "published":
                values |= optimizer(a, method)
            else:
                values |= earlier(a, key) if a.earlier_search else searched(a, key, settings, place)
        own = {name: values[name] for name in OPTIMIZER if values.get(name) is not None}
        run, seconds = trained(a, {**settings, **own, "seed": seed}, place / "run")
        values |= {} if setting == "control" else {name: getattr(run.folder.config.fit, name) for name in OPTIMIZER}
        opened = open_data(run.folder.config.data)
        run = components(run, opened, COMPONENTS) if method == "pca" else run
        values |= {"seconds": round(seconds, 1), "trained_epochs": settings.get("epochs", 0), "peak_mib": two_cores.peak()}
        values |= {} if setting == "control" else {"images_per_second": round(speed(a, run, opened, a.steps), 1)}
        model = run.folder.config.model
        values |= {name: getattr(model, name) for name in ("objective", "options", "projector", "projector_norm")}
        values |= {"encoder": str(model.encoder), "precision": run.folder.metadata.precision}
        values |= measured(run, opened, typical_and_foreign(a, opened), setting == "control")
    answer.send(values)


def apart(a: argparse.Namespace, key: dict[str, Any], seed: int) -> dict[str, Any] | None:
    """Returns what `one` measures in a process of its own; None where it failed, which the process has explained."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=one, args=(a, key, seed, send))
    process.start()
    send.close()
    try:
        values: dict[str, Any] | None = receive.recv()
    except EOFError:
        values = None
    process.join()
    return values


def typical_and_foreign(a: argparse.Namespace, opened: Data) -> dict[str, torch.Tensor]:
    """Returns test images, and images of other sets, by the names that `auroc` reads."""
    test = opened.test
    typical = images(test, torch.randperm(len(test), generator=seeded(1))[: a.shown])
    read = foreign(a.data_root, tuple(typical.shape[1:]))
    return {"test": typical} | {f"conf:{name}": read[name]()[: a.shown] for name in a.foreign}


def rows_to_measure(a: argparse.Namespace) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the key and the seed of each row: controls first, then whole settings, so that a stop leaves few gaps."""
    shared: dict[str, Any] = {"measurement": "methods", "data": a.data, "n_train": a.limit, "batch_size": a.batch_size}
    shared |= {"epochs": None if a.seconds else a.epochs, "budget_seconds": a.seconds, "set": a.settings}
    shared |= {"search_share": a.search_share, "rates": a.rates}
    for seed, setting in itertools.product(a.seeds, [one for one in SETTINGS if one in a.chosen]):
        for method in a.controls if setting == "control" else a.methods:
            if setting != "published" or METHODS[method] is not None:
                yield {**shared, "method": method, "setting": setting}, seed


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
    parser.add_argument("--rates", type=float, nargs="+", default=list(SEARCHED), help="learning rates that the search tries")
    parser.add_argument("--search-share", type=float, default=0.5, help="share of the epochs that the search trains for")
    parser.add_argument("--earlier-search", action="store_true", help="take the search of an earlier row, whatever its commit")
    parser.add_argument("--search-seconds", type=float, help="with --earlier-search: budget of the row whose search is taken")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--foreign", nargs="*", default=list(FOREIGN), choices=list(FOREIGN))
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the runs, in JSON")
    parser.add_argument("--note", default="", help="written to each row")
    a = ledger.parse(parser, "methods")
    a.settings, a.shown, a.steps, a.controls, a.options = (
        ledger.settings(a.set),
        SHOWN,
        STEPS,
        list(CONTROLS),
        {},
    )
    if a.tiny:
        a.methods, a.chosen, a.controls = ["simsiam"], ["searched", "control"], ["pca", "patches"]
        a.seeds, a.foreign = [0], ["noise"]
        a.seconds, a.earlier_search = None, False
        a.limit, a.epochs, a.batch_size, a.shown, a.rates, a.steps = 64, 1, 16, 40, [SEARCHED[0]], 1
        a.settings |= {"size": 8}
        a.options = {"simsiam": {"options": {"hidden": 8}, "projector": (16, 16)}}
        a.options["patches"] = {"encoder": "patches:atoms=4,second=0,directions=16,dim=8"}
    for name in filter(importlib.util.find_spec, SHARED):  # imported once, before the processes fork
        importlib.import_module(name)
    failed = []
    for key, seed in rows_to_measure(a):
        if ledger.holds(a.out, **key, seed=seed):
            continue
        if (values := apart(a, key, seed)) is None:
            failed.append(f"{key['method']} ({key['setting']}, seed {seed})")
            continue
        row = ledger.row({**key, "note": a.note, **values}, seed=seed, peers=("lightly", "timm"))
        ledger.add(a.out, row, shown=("method", "setting", "lr", "seed", "knn30", "probe", "auroc", "r_auroc", "seconds"))
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
