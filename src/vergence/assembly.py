"""Puts a described run together: model, input statistics, views, and what is watched while it trains."""

import difflib
import inspect
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vergence import networks, objectives, training
from vergence.config import FitConfig, ModelConfig, RunConfig
from vergence.data import Data, Items, PairItems, Skipped
from vergence.evaluation import features, knn
from vergence.files import open_table
from vergence.methods.paired import PairedMethod
from vergence.objectives.core import Objective
from vergence.views import ImageViews, VectorViews, Views

__all__ = ["build", "facts", "labelled", "make_views", "online_knn", "seen_shape", "statistics", "write_skipped"]

STATISTICS_FROM = 10_000  # items that give the input's mean and standard deviation
ONLINE_BANK, ONLINE_TEST = 10_000, 2_000  # items of the online kNN check


def build(
    config: ModelConfig, shape: Sequence[int], target_shape: Sequence[int] | None, mean: Tensor, std: Tensor
) -> PairedMethod:
    """Builds the method of a description.

    Args:
        config: What to build.
        shape: Of the items that the encoder sees, (C, H, W) or (D,).
        target_shape: Of the second view's items where they are of another kind; None for one encoder.
        mean: Statistics of the input, per channel or feature; a second encoder's follow behind.
        std: As ``mean``.
    """
    n = shape[0]
    encoder = networks.encoder(config.encoder, shape, mean[:n], std[:n])
    second = None if target_shape is None else networks.encoder(config.encoder, target_shape, mean[n:], std[n:])
    dim = networks.width(encoder, shape)
    return PairedMethod(
        encoder,
        _objective(config, (dim, *config.projector)[-1]),
        projector=networks.projector(dim, config.projector),
        target_encoder=second,
        teacher=config.teacher,
    )


def _objective(config: ModelConfig, dim: int) -> Objective:
    kind = objectives.get(config.objective)
    known = [name for name in inspect.signature(kind).parameters if name != "dim"]
    for name in config.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f"objective '{config.objective}' has no option '{name}'; it has: {', '.join(known)}"
                + (f"; did you mean '{near[0]}'?" if near else "")
            )
    try:
        return kind(dim, **config.options)
    except TypeError as error:
        raise ValueError(f"objective '{config.objective}' cannot take the options {config.options}: {error}") from error


def seen_shape(opened: Data) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Returns the shapes that the encoder, and a second one for unlike pairs, sees after the crop."""
    shape = opened.train.shape
    if isinstance(opened.train, PairItems):
        target = opened.train.target_shape
        return shape, None if target == shape else target
    return (shape if opened.size is None else (shape[0], opened.size, opened.size)), None


def statistics(items: Items) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation per channel (images, in [0, 1]) or feature; constant ones get deviation 1."""
    some = torch.linspace(0, len(items) - 1, min(len(items), STATISTICS_FROM)).long()
    parts = [x if isinstance(x, (tuple, list)) else (x,) for _, x in items.stream(iter(some.split(256)))]
    moments = [_moments(torch.cat([part[i] for part in parts])) for i in range(len(parts[0]))]
    return torch.cat([m for m, _ in moments]), torch.cat([s for _, s in moments])


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.double() / 255 if x.dtype == torch.uint8 else x.double()
    x = x.transpose(0, 1).flatten(1)
    std, mean = torch.std_mean(x, dim=1, correction=0)
    return mean.float(), torch.where(std > 1e-6, std, 1.0).float()


def write_skipped(path: Path, skipped: Sequence[Skipped]) -> None:
    """Lists what could not be read; writes nothing where all could be."""
    if skipped:
        with open_table(path) as table:
            table.append({"name": [s.name for s in skipped], "reason": [s.reason for s in skipped]})


def facts(
    config: RunConfig, opened: Data, shape: Sequence[int], target_shape: Sequence[int] | None, method: nn.Module, fabric: Any
) -> dict[str, Any]:
    """Returns what was found at the start of a run: data, shapes, machine and versions."""
    return {
        "kind": opened.kind,
        "classes": list(opened.classes),
        "n_train": len(opened.train),
        "n_test": len(opened.test),
        "note": opened.note,
        "skipped": len(opened.skipped),
        "read_shape": list(opened.train.shape),
        "shape": list(shape),
        "target_shape": None if target_shape is None else list(target_shape),
        "parameters": sum(p.numel() for p in method.parameters()),
        "device": torch.cuda.get_device_name() if fabric.device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads",
        "processes": fabric.world_size,
        "precision": training.precision(config.fit, fabric.device.type),
        "torch": torch.__version__,
        "commit": commit(),
    }


def commit() -> str | None:
    """Returns the commit of the code where it runs from a checkout; with a plus where files differ from it."""
    where = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=where,
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def make_views(opened: Data, config: RunConfig, shape: Sequence[int], mean: Tensor, std: Tensor) -> Views | None:
    """Returns what makes two views of a batch; None for data that comes as pairs."""
    if opened.kind == "pairs":
        return None
    return ImageViews(config.views, shape[1]) if opened.kind == "image" else VectorViews(config.views, mean, std)


def online_knn(opened: Data, config: FitConfig, size: int | None, device: torch.device) -> training.Monitor | None:
    """Returns the check of the encoder by kNN on part of the data; None without labels of two classes."""
    train, test = labelled(opened.train, ONLINE_BANK), labelled(opened.test, ONLINE_TEST)
    if train is None or test is None:
        return None

    def check(encoder: nn.Module) -> dict[str, float]:
        (z, index), (t, at) = (features.collect(encoder, part, size=size, device=device) for part in (train, test))
        assert train.labels is not None and test.labels is not None
        found = knn.knn_accuracy(z, train.labels[index], t, test.labels[at], ks=(min(30, len(z)),))
        return {"knn": next(iter(found.values()))["majority"]}

    return check


def labelled(items: Items, limit: int | None = None) -> Items | None:
    """Returns the items that have a label, at most ``limit`` of them drawn with a fixed seed; None for fewer than two classes."""
    if items.labels is None:
        return None
    index = (items.labels >= 0).nonzero().flatten()
    if len(items.labels[index].unique()) < 2:
        return None
    if limit is not None and len(index) > limit:
        index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:limit]].sort().values
    return items.subset(index)
