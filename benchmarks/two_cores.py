"""kNN and probe accuracy and seconds of the closed-form encoder, beside pixels and their principal components, on two CPU cores.

    python benchmarks/two_cores.py cifar10 --data-root DATA --limit 10000 --note "what this measures"

writes one row to ``results/two_cores.jsonl``. ``cpu_seconds`` are the processor seconds of all threads in ``seconds``; on a busy
machine they say more. With ``--choose`` a part of the training images is classified in place of the test images, and nothing is
written: settings are chosen so.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import ledger
import torch

import vergence
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.evaluation import controls
from vergence.evaluation.knn import knn_accuracy
from vergence.evaluation.parts.spread import effective_rank
from vergence.evaluation.probe import linear_probe
from vergence.runs.train import describe

HELD_OUT = 4_000  # training images that settings are chosen on
K = 30


def pixels(items):
    """Returns the pixels of all items, (N, D) in [0, 1]."""
    return controls.pixels(next(items.stream([torch.arange(len(items))]))[1])


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
    whole = open_data(DataConfig(source=args.source, root=args.data_root)).train
    used = set(data.train.names)
    rest = torch.tensor([i for i, name in enumerate(whole.names) if name not in used])
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(1))
    return data.train, whole.subset(rest[order[:HELD_OUT]])


def measure(args, settings):
    """Trains one run; returns its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        start, used = time.monotonic(), time.process_time()
        run = vergence.train(args.source, recipe="patches", out=Path(folder) / "run", **{"calibration_share": 0.0, **settings})
        seconds, cpu, fit_mib = time.monotonic() - start, time.process_time() - used, peak()
        train, test = parts(args, run.folder.config)
        encoder, passes = run.folder.config.model.encoder, [row["seconds"] for row in run.folder.metrics()]
        start, used = time.monotonic(), time.process_time()
        z = run.encode(train), run.encode(test)
        n, embed_cpu = len(train) + len(test), time.process_time() - used
        rate = n / (time.monotonic() - start)
    labels = train.labels, test.labels
    x = pixels(train), pixels(test)
    return {
        "encoder": encoder,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "seconds_after_each_pass": passes,
        "images_per_second": round(rate),
        "embed_cpu_milliseconds": round(1000 * embed_cpu / n, 2),
        "fit_peak_mib": fit_mib,
        "pixels_mib": (x[0].numel() + x[1].numel()) >> 20,
        **accuracies("", *z, labels),
        **accuracies("pixels_", *x, labels),
        **accuracies("pca_", *controls.pca(*x, 256), labels),
        "effective_rank": round(float(effective_rank(z[1])), 1),
    }


def main():
    """Measures one data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", default="patches")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--note", default="")
    args = ledger.parse(parser, "two_cores")
    if args.tiny:
        args.limit, args.encoder = 200, "patches:atoms=16,directions=32,dim=16,views=2"
    also = ledger.settings(args.set)
    settings = {"root": args.data_root, "limit": args.limit, "seed": args.seed, "encoder": args.encoder, "device": "cpu", **also}
    describe(args.source, "patches", settings)
    values = {"data": args.source, "limit": args.limit, "note": args.note, "cores": os.cpu_count(), **measure(args, settings)}
    ledger.add(None if args.choose else args.out, ledger.row(values, seed=args.seed))


if __name__ == "__main__":
    main()
