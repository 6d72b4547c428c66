"""Tries on a part of the data what could be trained, as `choices` does for many sets.

Each candidate gets the same time on the training part, in a run folder of its own, and is judged on the test part: without labels
by how well it recognizes another view of an item, by its effective rank and by LiDAR; with labels by classification, too.
"""

import dataclasses
import itertools
import math
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from experiments.advice.criteria import lidar, rank_error
from torch import Tensor
from torch.nn import functional as F

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import Items, spaced
from vergence.data.pixels import to_unit
from vergence.data.sources import Data
from vergence.learn.evaluation import features
from vergence.learn.evaluation.accuracy import knn_accuracy, ridge_probe
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.runs.train import estimate, train
from vergence.learn.training import build
from vergence.learn.training.folder import holds_run
from vergence.learn.views.images import Views
from vergence.linear.estimators import JointEmbedding
from vergence.utils.terminal import note

Candidate = Literal["as_they_are", "frozen", "closed_form", "joint_embedding", "reconstruction"]
CANDIDATES: dict[Candidate, str] = {
    "as_they_are": "the items as they are",
    "frozen": "the frozen network",
    "closed_form": "the closed form",
    "joint_embedding": "a network, joint embedding",
    "reconstruction": "a network, reconstruction",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one candidate reached; None is what was not measured."""

    kind: Candidate
    command: str  # the command that trains it on all of the data; empty where there is none
    seconds: float  # of fitting it here
    items: int  # training items that it was fitted to
    epochs: int  # epochs that it was trained for; 0 without a network that is trained
    dim: int  # features D
    # see `rank_error`, of two views of test items, in [0, 1]; smaller is better
    rank_error: float
    effective_rank: float  # see `vergence.learn.evaluation.collapse.effective_rank`
    lidar: float  # see `lidar`
    knn: float | None = None  # accuracy by 20 neighbors on the test items, in [0, 1]
    probe: float | None = None  # accuracy of a ridge classifier on the test items, in [0, 1]
    interval: float | None = None  # half the width of the 95 % interval of both accuracies

    @property
    def accuracy(self) -> float:
        """Mean of both accuracies; 0 without labels."""
        return ((self.knn or 0.0) + (self.probe or 0.0)) / 2


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Returns trials, the best first: by accuracy, and without labels by how well they recognize views."""
    return sorted(trials, key=lambda trial: (-trial.accuracy, trial.rank_error))


MODELS: dict[Candidate, dict[str, Any]] = {
    "closed_form": {"encoder": "patches"},
    "joint_embedding": {"objective": "vje"},
    "reconstruction": {"method": "denoising_autoencoder"},
}
JUDGED, BANK, PAIRED = 2_000, 10_000, 1_000  # test items, training items, and test items that are seen in views, at most
VIEWS, BATCH, K, NEIGHBORS = 8, 200, 32, 20
FEWEST = 200  # items that a candidate is fitted to, at least
Network = Callable[[Tensor], Tensor]


def tried(
    data: DataConfig,
    views: ViewConfig,
    opened: Data,
    *,
    out: Path,
    minutes: float,
    frozen: str | None = None,
    weights: str | Path | None = None,
    labels: bool = True,
    seed: int = 0,
    device: str = "auto",
) -> list[Trial]:
    """Tries every candidate for a share of the time and returns what each reached, in the order of `CANDIDATES`.

    A candidate that fails, for instance since the images are too small for it, is left out, and a line says why.
    ``opened`` is the same data, open. In the folder ``out`` the runs of an earlier call are replaced. Judging adds to the
    ``minutes``, and an epoch is not cut off.
    """
    source = {f.name: getattr(data, f.name) for f in dataclasses.fields(data) if f.name != "source"}
    settings = {**source, "views": views, "seed": seed, "device": device, "calibration_share": 0.0}
    kinds = [kind for kind in CANDIDATES if kind != "frozen" or frozen is not None]
    start: dict[str, Any] = {"pretrained": True} if weights is None else {"weights": weights}
    random = build.make_views(opened, views, build.input_shapes(opened)[0])
    assert random is not None  # pairs are refused
    judge = _Judge(opened, random, labels, seed)
    seconds = 60 * minutes / max(1, len(kinds) - 1)  # items as they are take no time
    results = []
    for kind in kinds:
        try:
            if kind == "as_they_are":
                found = judge.plain()
            elif kind == "closed_form" and opened.kind == "vector":
                found = judge.closed_form()
            else:
                model = MODELS.get(kind) or {"encoder": frozen, "freeze": True, **start}
                found = _trained(data.source, out / kind, seconds, settings, model)
        except ValueError as reason:
            note(f"left out: {CANDIDATES[kind]}: {reason}")
            continue
        results.append(judge(kind, found))
    return results


@dataclass(frozen=True)
class _Fitted:
    """A candidate that is fitted: items (B, ...) -> (B, D), the side of images that it reads, and what fitting it took."""

    network: Network
    size: int | None
    device: torch.device | str = "cpu"
    command: str = ""
    seconds: float = 0.0
    items: int = 0
    epochs: int = 0


def _trained(source: str, out: Path, seconds: float, settings: dict[str, Any], model: dict[str, Any]) -> _Fitted:
    """Returns a run that was trained for about so many seconds; on fewer items where an epoch on all takes longer."""
    if holds_run(out):  # of an earlier advice
        shutil.rmtree(out)
    given = settings | model
    plan = estimate(source, out=out, **given)
    epochs, least = plan.config.fit.epochs if plan.steps else 0, plan.seconds
    if plan.steps:
        given["epochs"] = max(1, math.floor(epochs * min(1.0, seconds / plan.seconds)))
        given["warmup_epochs"] = min(plan.config.fit.warmup_epochs, given["epochs"] / 10)
        least = plan.seconds / epochs
    if least > seconds:
        given["limit"] = max(FEWEST, int(plan.items * seconds / least))
    started = time.monotonic()
    run = train(source, out=out, **given)
    took = time.monotonic() - started
    root = {} if settings["root"] is None else {"data-root": settings["root"]}
    options = (["--" + name] if value is True else ["--" + name, str(value)] for name, value in (model | root).items())
    return _Fitted(
        run.method.encoder.eval(),
        run.folder.metadata.crop_size(),
        run.device,
        command=shlex.join(["vergence", "train", source, *itertools.chain(*options), "--out", "RUN"]),
        seconds=took,
        items=run.folder.metadata.n_train,
        epochs=given.get("epochs", 0),
    )


def _pixels(x: Tensor) -> Tensor:
    """Returns images (B, C, H, W), averaged down to 32 pixels a side where they are larger, as vectors."""
    return features.pixels(F.adaptive_avg_pool2d(to_unit(x), 32) if x.shape[-1] > 32 else x)


class _Judge:
    """Some training items as a bank, some test items, and views of fewer of these: the same for every candidate."""

    def __init__(self, opened: Data, views: Views, labels: bool, seed: int) -> None:
        self.opened, self.views, self.seed, self.size = opened, views, seed, opened.size
        self.train, self.test = (part.subset(spaced(len(part), n)) for part, n in ((opened.train, BANK), (opened.test, JUDGED)))
        self.paired = self.test.subset(spaced(len(self.test), PAIRED))
        y = self.train.labels
        self.labeled = labels and y is not None and self.test.labels is not None and len(set(y.tolist()) - {-1}) >= 2

    def plain(self) -> _Fitted:
        """Returns the items as they are: images of at most 32 pixels a side, or vectors with columns of unit variance."""
        if self.opened.kind == "image":
            return _Fitted(_pixels, self.size)
        mean, std = build.statistics(self.opened.train)
        return _Fitted(lambda x: (x - mean) / std, None)

    def closed_form(self) -> _Fitted:
        """Returns joint embedding of vectors in closed form, with at most 32 components."""
        items = self.opened.train.subset(spaced(len(self.opened.train), BANK))
        started = time.monotonic()
        model = JointEmbedding(augmentation=self.views, random_state=self.seed).fit(items)
        took = time.monotonic() - started
        return _Fitted(lambda x: torch.as_tensor(model.transform(x)[:, :K]), None, seconds=took, items=len(items))

    def __call__(self, kind: Candidate, candidate: _Fitted) -> Trial:
        """Returns what a candidate reached."""
        seen = torch.stack([self._embedded(candidate, self.paired, draw)[0] for draw in range(VIEWS)], 1)  # (N, q, D)
        test, index = self._embedded(candidate, self.test)
        trial = Trial(
            kind=kind,
            command=candidate.command,
            seconds=candidate.seconds,
            items=candidate.items,
            epochs=candidate.epochs,
            dim=test.shape[1],
            rank_error=rank_error(seen[:, 0], seen[:, 1]),
            effective_rank=float(effective_rank(test)),
            lidar=lidar(seen),
        )
        return self._classified(trial, candidate, test, index) if self.labeled else trial

    def _classified(self, trial: Trial, candidate: _Fitted, test: Tensor, index: Tensor) -> Trial:
        """Adds the accuracies on labeled items."""
        assert self.train.labels is not None and self.test.labels is not None
        train, there = self._embedded(candidate, self.train)
        y, true = self.train.labels[there], self.test.labels[index]
        labeled = train[y >= 0], y[y >= 0], test[true >= 0], true[true >= 0]
        n, k = len(labeled[3]), min(NEIGHBORS, len(labeled[1]))
        accuracy, probe = knn_accuracy(*labeled, ks=(k,))[k]["majority"], ridge_probe(*labeled)["accuracy"]
        reach = 1.96 * max(math.sqrt(p * (1 - p) / n) for p in (accuracy, probe))
        return dataclasses.replace(trial, knn=accuracy, probe=probe, interval=reach)

    def _embedded(self, candidate: _Fitted, items: Items, draw: int | None = None) -> tuple[Tensor, Tensor]:
        """Returns the embeddings (N, D) of readable items, or of a view of each, and their indices (N,)."""
        generator = torch.Generator().manual_seed(1_000 * self.seed + (draw or 0))

        def function(x: Tensor) -> Tensor:
            return candidate.network(x if draw is None else self.views(x, generator))

        size = candidate.size if draw is None else None
        read = features.stream_batches(function, items, size=size, device=candidate.device, batch_size=BATCH)
        parts = [(index, z.float().cpu()) for index, z in read]
        return torch.cat([z for _, z in parts]), torch.cat([index for index, _ in parts])
