"""kNN and probe accuracy and seconds of the closed-form encoder, next to pixels and their principal components, on two CPU cores.

README.md says how.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from experiments import photographs
from experiments.runner import SETTINGS, Option, main
from experiments.shared import Timer, accuracies, embedded, images, parts, peak

import vergence
from vergence.learn.evaluation import features
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.runs.evaluate import untrained_encoder

ATOMS = (128, 512, 1024, 2048)  # of the second layers of a curve
EPOCHS = (2, 8, 24)  # of the networks of a curve
NETWORKS: dict[str, dict[str, Any]] = {
    "vje": {"recipe": "vje_small"},
    "gje": {"recipe": "gje_small"},
    "contrastive": {"recipe": "contrastive_small", "batch_size": 64},
}
DISTILLED = "distilled_vje"  # with as many epochs of the stage before its objective
TINY_PATCHES = "atoms=16,second=16,directions=32,dim=16,views=2"
RECIPES = sorted({"patches", DISTILLED, *(network["recipe"] for network in NETWORKS.values())})
IMAGES = {"source": Option(shape="first"), "data_root": "data", "limit": 10_000, "seed": 0, "choose": False}
OPTIONS = IMAGES | {"encoder": str, "curve": Option(choices=RECIPES, shape="any"), "set": SETTINGS, "note": ""}


def curve() -> list[dict[str, Any]]:
    """Returns the settings of each point of a curve, the quick ones first."""
    sizes = [{"atoms": min(n, 512), "second": n, "directions": min(2048, 4 * n), "dim": min(512, 2 * n)} for n in ATOMS]
    names = ["patches:" + ",".join(f"{key}={value}" for key, value in size.items()) for size in sizes]
    dictionaries = [{"recipe": "patches", "encoder": name} for name in names]
    networks = [{**network, "epochs": n} for n in EPOCHS for network in NETWORKS.values()]
    return dictionaries + networks + [{"recipe": DISTILLED, "distill_epochs": n} for n in EPOCHS]


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the recipe patches, or the points of the curve."""
    points = [None] if a.curve is None else [point for point in curve() if not a.curve or point["recipe"] in a.curve]
    if a.source == "photographs":
        tiles = photographs.labeled_tiles(Path(a.data_root))
        np.savez(a.scratch / "tiles.npz", **tiles)
        a.limit = min(a.limit, len(tiles["x_train"]))
    changes = ({} if a.encoder is None else {"encoder": a.encoder}) | a.set
    if a.tiny:
        points = points[len(ATOMS) :][:1] or points[:1]  # a network, where there is one
    for point in points:
        yield {"data": a.source, "limit": a.limit, "point": point, "set": changes, "seed": a.seed}


def costly(source: str, **settings: Any) -> tuple[vergence.Run, dict[str, Any]]:
    """Returns a run that is trained now, and its seconds, processor seconds and largest memory in MiB."""
    timer = Timer()
    run = vergence.train(source, **settings)
    return run, {**timer.both(), "fit_peak_mib": peak()}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains one run; returns its numbers."""
    settings = {"root": a.data_root, "limit": a.limit, "seed": a.seed, "recipe": "patches"} | {
        **(cell["point"] or {}),
        **cell["set"],
    }
    settings |= {"encoder": f"patches:{TINY_PATCHES}"} if a.tiny and settings["recipe"] == "patches" else {}
    source = str(a.scratch / "tiles.npz") if a.source == "photographs" else a.source
    run, costs = costly(source, out=a.scratch / "run", **{"calibration_share": 0.0, "device": "cpu", **settings})
    train, test = parts(run.folder.config, a.choose)
    timer = Timer()
    z = run.embed(train), run.embed(test)
    n, embed_cpu, embed_seconds = len(train) + len(test), timer.processor_seconds(), timer.seconds()
    labels, x = (train.labels, test.labels), [features.pixels(images(part)) for part in (train, test)]
    others = {"pixels_": x, "pca_": features.pca(*x, 256)}
    if settings["recipe"] != "patches":
        others["untrained_"] = embedded(run, train, test, net=untrained_encoder(run))
    config = run.folder.config
    return {
        "cores": os.cpu_count(),
        "encoder": str(config.model.encoder),
        "objective": config.model.objective,
        "distill": config.model.distill and str(config.model.distill),
        "epochs": config.fit.epochs,
        **costs,
        "seconds_after_each_pass": [row["seconds"] for row in run.folder.metrics() if "seconds" in row],  # of the closed form
        "images_per_second": round(n / embed_seconds),
        "embed_cpu_milliseconds": round(1000 * embed_cpu / n, 2),
        "largest_class": round(100 * float(test.labels.bincount().max() / len(test)), 2),  # in percent
        "pixels_mib": sum(part.numel() for part in x) >> 20,
        **accuracies("", *z, labels),
        **{name: value for baseline, both in others.items() for name, value in accuracies(baseline, *both, labels).items()},
        "effective_rank": round(float(effective_rank(z[1])), 1),
    }


if __name__ == "__main__":
    main(__doc__, "two_cores", OPTIONS, cells, measure, tiny={"limit": 200}, apart="spawn")
