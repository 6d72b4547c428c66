"""The wide features of the default encoder and of patches_large, and their embedding: kNN and the ridge probe on the test part.

``--copies 2`` lets the finished runs average mirrored copies; ``--narrow`` leaves the wide features out.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from experiments.runner import DATA, SEEDS, Option, first, main, some
from experiments.shared import K, Timer, folder_name, kept_run, parts
from torch import Tensor
from torch.nn import functional

import vergence
from vergence.data.items import Items
from vergence.learn.encoders.patch_maps import PatchEncoder, wide_features
from vergence.learn.evaluation import features
from vergence.learn.evaluation.accuracy import knn_accuracy, ridge_probe

OPTIONS = {
    "data": Option(shape="first"),
    "data_root": DATA,
    "limit": int,
    "choose": False,
    "narrow": False,
    "copies": 0,
    "seeds": SEEDS,
}
OPTIONS |= {"recipes": some(("patches", "patches_large")), "runs": Path("runs"), "note": ""}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for recipe in a.recipes:
        for seed in a.seeds:
            yield {"data": a.data, "recipe": recipe, "limit": a.limit, "copies": a.copies, "narrow": a.narrow, "seed": seed}


def embedded(run: vergence.Run, items: Items, narrow: bool) -> tuple[Tensor | None, Tensor]:
    """Returns the wide features (N, F), and the embedding (N, D) that follows from them; with ``narrow`` the latter alone."""
    if narrow:
        return None, features.collect_features(run.method.encoder, items, **run.where())[0]
    f = features.collect_features(wide_features(run.method.encoder), items, **run.where())[0]
    affine = next(m for m in run.method.encoder.modules() if isinstance(m, PatchEncoder))
    with torch.no_grad():
        return f, functional.linear(f, affine.weight, affine.offset)


def mirror(run: vergence.Run, copies: int) -> None:
    """Lets a run average mirrored copies, as with the settings copies and mirror=1: its fit reads single copies anyway."""
    encoder = next(m for m in run.method.encoder.modules() if isinstance(m, PatchEncoder))
    encoder.settings = encoder.maps.settings = dataclasses.replace(encoder.settings, copies=copies, mirror=1)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains one run, embeds training and test items once, and classifies the latter."""
    folder, timer = a.runs / folder_name(a.data, cell["recipe"], a.limit, seed=cell["seed"]), Timer()
    trained_before = (folder / "model.safetensors").exists()
    settings = {"calibration_share": 0.0, "root": a.data_root, "limit": a.limit, "recipe": cell["recipe"], "seed": cell["seed"]}
    run = kept_run(folder, a.data, **settings)
    training, timer = None if trained_before else timer.both(), Timer()
    if a.copies:
        mirror(run, a.copies)
    train, test = parts(run.folder.config, a.choose)
    (f, z), (f_test, z_test) = (embedded(run, items, a.narrow) for items in (train, test))
    embedding, timer = timer.both(), Timer()
    assert train.labels is not None and test.labels is not None
    near = knn_accuracy(z, train.labels, z_test, test.labels, ks=(K,))[K]
    narrow = ridge_probe(z, train.labels, z_test, test.labels)["accuracy"]
    wide = None if f is None or f_test is None else ridge_probe(f, train.labels, f_test, test.labels)["accuracy"]
    return {
        "n_train": len(train),
        "n_test": len(test),
        "dim": z.shape[1],
        "width": None if f is None else f.shape[1],
        "knn30": near["majority"],
        "knn30_weighted": near["weighted"],
        "ridge": narrow,
        "ridge_wide": wide,
        "training": training,
        "embedding": embedding,
        "probing": timer.both(),
    }


if __name__ == "__main__":
    shown = ("recipe", "seed", "knn30", "ridge", "ridge_wide", "training", "embedding", "probing")
    main(__doc__, "wide", OPTIONS, cells, measure, tiny={"seeds": first, "limit": 300}, shown=shown)
