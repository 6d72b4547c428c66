"""JEPA-SCORE next to other scores of the same encoders: real defects by a frozen network, one class by small ones.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, efficientnet_lite0, network
from experiments.check.real import FOLDERS, split
from experiments.one_class.run import test_items
from experiments.runner import Option, first, main, some
from experiments.shared import Timer, auroc, folder_name, kept_run, seeded
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import Normalize

from vergence.data.sources import open_data
from vergence.learn.evaluation.anomaly import knn_distance, mahalanobis
from vergence.learn.evaluation.jepa_score import jacobian_score
from vergence.learn.runs.detector import opened

RECIPES = {"vje": "vje_small", "contrastive": "contrastive_small", "lejepa": "lejepa_small"}
SIDE, DIRECTIONS, BATCH = 64, 32, 32  # pixels of a real image; random projections of the frozen embedding
SMALLER = {"cifar10": 16}  # pixels of the images of one class


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        yield {"set": name, "encoder": "pretrained", "label": None, "seed": 0}
    for name in a.data:
        sizes = {"limit": a.limit, "tests": a.tests, "epochs": a.epochs}
        for label in a.classes if name == "digits" else a.classes[:1]:
            yield from ({"set": name, "encoder": encoder, "label": label, **sizes, "seed": 0} for encoder in a.encoders)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the AUROC of each score, and the numbers of items."""
    timer = Timer()
    n_train, odd, scores = of_images(a, cell) if cell["label"] is None else of_class(a, cell)
    counts = {"n_train": n_train, "n_typical": int((~odd).sum()), "n_anomalous": int(odd.sum())}
    return {**counts, **timer.both(), "auroc": {name: auroc(odd, values.numpy()) for name, values in scores.items()}}


def pictures(paths: list[Path]) -> Tensor:
    """Returns image files as bytes (N, 3, 64, 64)."""
    arrays = [np.asarray(Image.open(path).convert("RGB").resize((SIDE, SIDE))) for path in paths]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def frozen() -> nn.Module:
    """Returns the ImageNet network on images in [0, 1], (N, 3, H, W) -> (N, 1280)."""
    net = efficientnet_lite0()
    net.load_state_dict(torch.load(network()["weights"], weights_only=True), strict=False)
    return nn.Sequential(Normalize(net.default_cfg["mean"], net.default_cfg["std"]), net).eval()


def of_images(a: argparse.Namespace, cell: dict[str, Any]) -> tuple[int, np.ndarray, dict[str, Tensor]]:
    """Returns the scores of a real set's new images; of the Jacobian those of random orthonormal directions of the embedding."""
    known, new, odd = split(Path(a.sets_root) / cell["set"], 0, 12 if a.tiny else None)
    net, x = frozen(), pictures(new)
    with torch.inference_mode():
        z, z_new = (torch.cat([net(part.float() / 255) for part in one.split(BATCH)]) for one in (pictures(known), x))
    project = nn.Linear(z.shape[1], 2 if a.tiny else DIRECTIONS, bias=False)
    project.weight.data = torch.linalg.qr(torch.randn(project.weight.T.shape, generator=seeded(0)))[0].T.contiguous()
    net = nn.Sequential(net, project)
    jacobian = torch.cat([jacobian_score(net, part) for part in x.split(BATCH)])
    scores = {"Jacobian, 32 random directions": jacobian, "z: kNN, cosine": knn_distance(z, z_new)}
    return len(z), odd, scores | {"z: Mahalanobis": mahalanobis(z, z_new)}


def of_class(a: argparse.Namespace, cell: dict[str, Any]) -> tuple[int, np.ndarray, dict[str, Tensor]]:
    """Returns the scores of test images of all classes by a network that is trained on one."""
    name, label = cell["set"], cell["label"]
    settings = {"recipe": RECIPES[cell["encoder"]], "keep_classes": (label,), "limit": a.limit, "epochs": a.epochs, "seed": 0}
    settings |= {"root": a.data_root, "device": "cpu", "knn_every": 0, "batch_size": 32}
    settings |= {"size": SMALLER[name]} if name in SMALLER else {}
    run = kept_run(a.scratch / folder_name(name, **settings), name, **settings)
    test, odd = test_items(open_data(run.folder.config.data), label, a.tests)
    train = opened(run.folder).train
    z, z_new = run.embed(train), run.embed(test)
    scores = {"Jacobian of z": run.anomaly_score(test, "jacobian"), "run's detector": run.anomaly_score(test)}
    net, run.method.encoder = run.method.encoder, run.method.branch("context")
    scores["Jacobian behind the projector"] = run.anomaly_score(test, "jacobian")
    run.method.encoder = net
    return len(train), odd, scores | {"z: kNN, cosine": knn_distance(z, z_new), "z: Mahalanobis": mahalanobis(z, z_new)}


OPTIONS = {"data_root": Option(shape="required"), "sets_root": Option(shape="required"), "scratch": Path}
OPTIONS |= {"sets": some(FOLDERS), "data": some(("digits", "cifar10")), "encoders": some(RECIPES), "classes": [1, 3, 8]}
OPTIONS |= {"limit": 500, "tests": 300, "epochs": 20}
TINY = {"sets": first, "data": first, "encoders": first, "classes": first, "limit": 60, "tests": 10, "epochs": 1}

if __name__ == "__main__":
    main(__doc__, "jacobian", OPTIONS, cells, measure, tiny=TINY, peers=PEERS)
