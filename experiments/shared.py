"""What several experiments share: runs that are kept in a folder, embeddings and their accuracies, times, images.

Shapes: images of bytes (N, C, H, W), features (N, D), labels (N,).
"""

import dataclasses
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import vergence
from vergence.data.items import Items
from vergence.data.sources import open_data
from vergence.learn.evaluation import features
from vergence.learn.evaluation.accuracy import knn_accuracy, linear_probe
from vergence.learn.training.config import RunConfig
from vergence.learn.training.metrics import Recorder

K, HELD_OUT = 30, 4_000  # neighbors; training images that settings are chosen on


class MemoryRecorder(Recorder):
    """Keeps the rows of metrics of a training and drops everything else."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


class Timer:
    """Seconds and processor seconds of all threads since it was made; the latter say more on a busy machine."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        return time.perf_counter() - self.wall

    def processor_seconds(self) -> float:
        return time.process_time() - self.processor

    def both(self) -> dict[str, float]:
        return {"seconds": round(self.seconds(), 1), "cpu_seconds": round(self.processor_seconds(), 1)}


def peak() -> int:
    """Returns the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(items: Items, rows: Tensor | None = None) -> Tensor:
    """Returns the images of some items, or of all."""
    rows = torch.arange(len(items)) if rows is None else rows
    return torch.cat([x for _, x in items.stream(iter(rows.split(1000)))])


def kept_run(folder: Path, source: str, **settings: Any) -> vergence.Run:
    """Returns the run of a folder, as it is read from there; resumes one that was stopped, and trains one that is missing."""
    if not (folder / "model.safetensors").exists():
        stopped = (folder / "config.json").exists()
        how = {"resume": True} if stopped else settings
        vergence.train(None if stopped else source, out=folder, trust_code=True, **how)
    return vergence.load(folder, device=settings.get("device", "auto"), trust_code=True)


def folder_name(*words: Any, **settings: Any) -> str:
    """Returns the name of a run's folder, which has its settings."""
    named = (f"{key}={value}" for key, value in settings.items() if key not in ("root", "weights", "device"))
    return "-".join(map(str, (*words, *named))).replace("/", "_").replace(" ", "")


def parts(config: RunConfig, choose: bool = False, most: int = HELD_OUT) -> tuple[Items, Items]:
    """Returns training items, and the test items, or with ``choose`` training images that the run has not seen."""
    data = open_data(config.data)
    if not choose:
        return data.train, data.test
    whole, used = open_data(dataclasses.replace(config.data, limit=None)).train, set(data.train.names)
    rest = torch.tensor([i for i, name in enumerate(whole.names) if name not in used])
    return data.train, whole.subset(rest[torch.randperm(len(rest), generator=seeded(1))[:most]])


def embedded(run: vergence.Run, *items: Items, net: nn.Module | None = None) -> list[Tensor]:
    """Returns the embeddings of items by the run's encoder, or by another network as the run would read them."""
    net = (run.method.encoder if net is None else net).eval()
    return [features.collect_features(net, part, size=run.folder.metadata.crop_size(), device=run.device)[0] for part in items]


def knn(train: Tensor, test: Tensor, labels: tuple[Tensor, Tensor]) -> float:
    """Returns the accuracy of kNN with one vote for each of 30 neighbors, in percent."""
    return round(100 * knn_accuracy(train, labels[0], test, labels[1], ks=(K,))[K]["majority"], 2)


def accuracies(name: str, train: Tensor, test: Tensor, labels: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Returns the accuracies of kNN and of the linear probe on features, in percent, by their names."""
    probe = linear_probe(train, labels[0], test, labels[1])["accuracy"]
    return {f"{name}knn30": knn(train, test, labels), f"{name}probe": round(100 * probe, 2)}


def auroc(odd: np.ndarray, scores: np.ndarray) -> float:
    """Returns the AUROC of scores, larger where items are odd, with four digits."""
    return round(float(roc_auc_score(odd, scores)), 4)


def apart(typical: np.ndarray | Tensor, odd: np.ndarray | Tensor) -> float:
    """Returns the AUROC with which scores tell odd items from typical ones."""
    scores = np.concatenate([np.asarray(typical), np.asarray(odd)])
    return float(roc_auc_score(np.arange(len(scores)) >= len(typical), scores))
