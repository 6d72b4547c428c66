"""kNN and probe accuracy and seconds of the closed-form encoder, beside pixels and their principal components, on two CPU cores.

    python -m experiments.accuracy.run cifar10 --data-root DATA --limit 10000 --note "what this measures"
    python -m experiments.accuracy.run photographs --data-root DATA
    python -m experiments.accuracy.run cifar10 --data-root DATA --limit 10000 --curve
    python -m experiments.accuracy.run cifar10 --data-root DATA --limit 10000 --curve distilled_vje
    python -m experiments.accuracy.figure                               # draws docs/figures/two_cores.png from the ledger

The first writes one row to ``results/two_cores.jsonl``; ``--curve`` a row for each point of the figure, or for those of the
recipes that are named: dictionaries of several sizes, and the small network trained for several numbers of epochs with each
objective, beside its first weights, or with VJE after as many epochs in which it learned the closed form. Points that the
ledger has from this commit are skipped. ``cpu_seconds`` are the
processor seconds of all threads in ``seconds``, the whole of ``vergence train``; on a busy machine they say more. With
``--choose`` a part of the training images is classified in place of the test images, and nothing is written: settings are
chosen so. ``photographs`` are the tiles of ``blood_cells.py``: ordinary ones, and those of white cells and platelets, of which
the ordinary ones are the most by far; one part's train, and those of other photographs are classified.
"""

import argparse
import dataclasses
import multiprocessing
import os
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vergence
from experiments import ledger
from vergence.data.sources import open_data
from vergence.evaluation import features
from vergence.evaluation.accuracy import knn_accuracy, linear_probe
from vergence.evaluation.collapse import effective_rank
from vergence.runs.evaluate import untrained_encoder
from vergence.runs.train import describe

HELD_OUT = 4_000  # training images that settings are chosen on
K = 30
ATOMS = (128, 512, 1024, 2048)  # of the second layers of a curve
EPOCHS = (2, 8, 24)  # of the networks of a curve
NETWORKS: dict[str, dict[str, Any]] = {
    "vje": {"recipe": "vje_small"},
    "gje": {"recipe": "gje_small"},
    "contrastive": {"recipe": "contrastive_small", "batch_size": 64},
}
DISTILLED = "distilled_vje"  # with as many epochs of the stage before its objective


def arguments(parser):
    """Adds the options of a benchmark on the images of one data set."""
    parser.add_argument("source")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--limit", type=int, default=10_000, help="training images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--choose", action="store_true", help="classify held-out training images; nothing is written")


def pixels(items):
    """Returns the pixels of all items, (N, D) in [0, 1]."""
    return features.pixels(next(items.stream([torch.arange(len(items))]))[1])


def tiles(root, file):
    """Writes tiles of the photographs under a root to a ``.npz`` file; returns how many are for training."""
    from experiments.detection import blood_cells  # the other data sets, and the benchmarks that import this one, do without

    found = blood_cells.labeled(root)
    np.savez(file, **found)
    return len(found["x_train"])


def knn(train, test, labels):
    """Returns the accuracy of kNN with one vote for each of 30 neighbors, in percent."""
    return round(100 * knn_accuracy(train, labels[0], test, labels[1], ks=(K,))[K]["majority"], 2)


def accuracies(name, train, test, labels):
    """Returns the accuracies of kNN and of the linear probe on features, in percent, by their names."""
    probe = linear_probe(train, labels[0], test, labels[1])["accuracy"]
    return {f"{name}knn30": knn(train, test, labels), f"{name}probe": round(100 * probe, 2)}


def peak():
    """Returns the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def parts(args, config):
    """Returns training items, and the items that are classified."""
    data = open_data(config.data)
    if not args.choose:
        return data.train, data.test
    whole = open_data(dataclasses.replace(config.data, limit=None)).train
    used = set(data.train.names)
    rest = torch.tensor([i for i, name in enumerate(whole.names) if name not in used])
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(1))
    return data.train, whole.subset(rest[order[:HELD_OUT]])


def curve(epochs=EPOCHS, atoms=ATOMS):
    """Returns the settings of each point of a curve, the quick ones first."""
    sizes = [{"atoms": min(n, 512), "second": n, "directions": min(2048, 4 * n), "dim": min(512, 2 * n)} for n in atoms]
    names = ["patches:" + ",".join(f"{key}={value}" for key, value in size.items()) for size in sizes]
    dictionaries = [{"recipe": "patches", "encoder": name} for name in names]
    trained = [{**network, "epochs": n} for n in epochs for network in NETWORKS.values()]
    return dictionaries + trained + [{"recipe": DISTILLED, "distill_epochs": n} for n in epochs]


def trained(source, **settings):
    """Returns a run that is trained now, and its seconds, processor seconds and largest memory in MiB."""
    start, used = time.monotonic(), time.process_time()
    run = vergence.train(source, **settings)
    seconds = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - used}
    return run, {**{name: round(value, 1) for name, value in seconds.items()}, "fit_peak_mib": peak()}


def measure(args, source, settings):
    """Trains one run on a source; returns its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        run, costs = trained(source, out=Path(folder) / "run", **{"calibration_share": 0.0, **settings})
        train, test = parts(args, run.folder.config)
        config, passes = run.folder.config, [row["seconds"] for row in run.folder.metrics() if "seconds" in row]
        start, used = time.monotonic(), time.process_time()
        z = run.embed(train), run.embed(test)
        n, embed_cpu = len(train) + len(test), time.process_time() - used
        rate = n / (time.monotonic() - start)
        first = {} if settings["recipe"] == "patches" else {"untrained_": untrained(run, train, test)}
    labels = train.labels, test.labels
    x = pixels(train), pixels(test)
    others = {"pixels_": x, "pca_": features.pca(*x, 256), **first}
    return {
        "encoder": str(config.model.encoder),
        "objective": config.model.objective,
        "distill": config.model.distill,
        "epochs": config.fit.epochs,
        **costs,
        "seconds_after_each_pass": passes,  # of the closed form
        "images_per_second": round(rate),
        "embed_cpu_milliseconds": round(1000 * embed_cpu / n, 2),
        "largest_class": round(100 * float(test.labels.bincount().max() / len(test)), 2),  # in percent
        "pixels_mib": (x[0].numel() + x[1].numel()) >> 20,
        **accuracies("", *z, labels),
        **{name: value for control, both in others.items() for name, value in accuracies(control, *both, labels).items()},
        "effective_rank": round(float(effective_rank(z[1])), 1),
    }


def untrained(run, *parts):
    """Returns the embeddings of the first weights of a run's network."""
    net = untrained_encoder(run).eval()
    return [features.collect_features(net, part, size=run.size, device=run.device)[0] for part in parts]


def main():
    """Measures one data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    arguments(parser)
    parser.add_argument("--encoder", help="another encoder than that of the recipe patches")
    every = sorted({point["recipe"] for point in curve()})
    help_curve = "points of the figure, of every recipe or of these, in place of the recipe patches"
    parser.add_argument("--curve", nargs="*", choices=every, metavar="RECIPE", help=help_curve)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--note", default="")
    args = ledger.parse(parser, "two_cores")
    points = [{"recipe": "patches"}]
    if args.curve is not None:
        points = [point for point in curve() if not args.curve or point["recipe"] in args.curve]
    if args.tiny:
        args.limit, small = 200, {"recipe": "patches", "encoder": "patches:atoms=16,second=16,directions=32,dim=16,views=2"}
        points = [small] if args.curve is None else [*curve((1,), ())[:1], small]
    also = {} if args.encoder is None else {"encoder": args.encoder}
    also |= {"root": args.data_root, "limit": args.limit, "seed": args.seed, "device": "cpu", **ledger.settings(args.set)}
    with tempfile.TemporaryDirectory() as folder:
        source = args.source
        if args.source == "photographs":
            source = str(Path(folder) / "tiles.npz")
            also["limit"] = args.limit = min(args.limit, tiles(Path(args.data_root), source))
        measure_all(args, source, points, also)


def measure_all(args, source, points, also):
    """Adds a row for each point of a source."""
    for point in points:
        recipe, settings = point["recipe"], {name: value for name, value in {**point, **also}.items() if name != "recipe"}
        describe(source, recipe, settings)
        key = {"data": args.source, "limit": args.limit, "point": None if args.curve is None else point}
        if args.curve is not None and ledger.holds(args.out, **key, seed=args.seed):
            continue
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # whose memory is this point's
            measured = apart.submit(measure, args, source, {"recipe": recipe, **settings}).result()
        values = {**key, "note": args.note, "cores": os.cpu_count(), **measured}
        ledger.add(None if args.choose else args.out, ledger.row(values, seed=args.seed))


if __name__ == "__main__":
    main()
