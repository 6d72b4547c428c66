"""Puts a described run together: model, input statistics, views, and what is watched while it trains."""

import difflib
import inspect
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vergence import objectives
from vergence.data.items import ArrayItems, Items, PairItems, Skipped
from vergence.data.sources import Data
from vergence.data.views import ImageViews, VectorViews, Views
from vergence.densities.gaussian import GaussianMixture
from vergence.encoders import networks
from vergence.evaluation import features, knn
from vergence.methods.paired import PairedMethod
from vergence.objectives.core import ConditionalObjective, DensityObjective, Objective
from vergence.training import loop
from vergence.training.config import FitConfig, ModelConfig, RunConfig
from vergence.training.options import current_options
from vergence.utils.devices import described
from vergence.utils.files import open_table

__all__ = [
    "build_method",
    "crop_side",
    "facts",
    "fitted",
    "holds_pairs",
    "labeled",
    "make_views",
    "online_knn",
    "parts",
    "seen_shape",
    "statistics",
    "write_skipped",
]

STATISTICS_FROM = 10_000  # items that give the input's mean and standard deviation
NUMBERS = 1 << 24  # of a mixture's density, held at a time
ONLINE_BANK, ONLINE_TEST = 10_000, 2_000  # items of the online kNN check


def build_method(
    config: ModelConfig, shape: Sequence[int], target_shape: Sequence[int] | None, mean: Tensor, std: Tensor
) -> PairedMethod:
    """Builds the method of a description.

    Args:
        config: What to build.
        shape: Of the items that the encoder sees, (C, H, W) or (D,).
        target_shape: Of the second view's items where they are of another shape; None where both are of one.
        mean: Statistics of the input, per channel or feature; those of the pairs' targets follow behind.
        std: As ``mean``.

    Raises:
        ValueError: A name or an option is unknown, or an encoder cannot take its shape.
    """
    n = shape[0]
    encoder = networks.encoder(config.encoder, shape, mean[:n], std[:n])
    dim = networks.width(encoder, shape)
    dual = target_shape is not None or config.target_encoder is not None
    seen = tuple(shape if target_shape is None else target_shape)
    second = _target_encoder(config, seen, mean[-seen[0] :], std[-seen[0] :]) if dual else None
    objective = _objective(config, (dim, *config.projector)[-1], dual)
    teacher = type(objective).teacher if config.teacher is None else config.teacher
    return PairedMethod(
        encoder,
        objective,
        projector=networks.projector(dim, config.projector),
        target_encoder=second,
        target_projector=None if second is None else _target_projector(config, networks.width(second, seen), dim),
        teacher=None if teacher is False else teacher,
    )


def _target_encoder(config: ModelConfig, shape: tuple[int, ...], mean: Tensor, std: Tensor) -> nn.Module:
    """Returns the encoder that is named, else one of the first one's name, else an MLP."""
    try:
        return networks.encoder(config.target_encoder or config.encoder, shape, mean, std)
    except ValueError:
        if config.target_encoder is not None:
            raise
        return networks.encoder("mlp", shape, mean, std)


def _target_projector(config: ModelConfig, width: int, dim: int) -> nn.Module | None:
    """Returns the second encoder's own head; without projector a linear map to the first one's width, where they differ."""
    if config.projector:
        return networks.projector(width, config.projector)
    return None if width == dim else nn.Linear(width, dim)


def _objective(config: ModelConfig, dim: int, dual: bool) -> Objective:
    kind, options = objectives.get(config.objective), current_options(config.objective, config.options)
    known = [name for name in inspect.signature(kind).parameters if name != "dim"]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(
                f"objective '{config.objective}' has no option '{name}'; it has: {', '.join(known)}"
                + (f"; did you mean '{near[0]}'?" if near else "")
            )
    own = {"tied": False} if dual and "tied" in known else {}
    try:
        return kind(dim, **{**own, **options})
    except TypeError as error:
        raise ValueError(f"objective '{config.objective}' cannot take the options {options}: {error}") from error


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


def crop_side(facts: dict[str, Any], shape: Sequence[int]) -> int | None:
    """Returns the side of the central crop that an encoder of a shape sees; pairs that are not square are not cropped."""
    square = len(shape) == 3 and (shape[1] == shape[2] or facts.get("kind") != "pairs")
    return int(shape[1]) if square else None


def fitted(items: ArrayItems, shape: tuple[int, ...]) -> ArrayItems:
    """Returns images brought to a shape on read, or vectors as they are.

    Raises:
        ValueError: The items are of another kind, or vectors of another width.
    """
    if len(items.shape) != len(shape) or (len(shape) == 1 and items.shape != shape):
        raise ValueError(f"expected items of shape {shape} as the model was trained on, found {items.shape}")
    return items.shaped(shape) if len(shape) == 3 else items


def holds_pairs(path: Path) -> bool:
    """Returns whether a file is a ``.npz`` with the arrays context and target."""
    if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {"context.npy", "target.npy"} <= set(archive.namelist())


def parts(objective: Objective | DensityObjective, z: Tensor, most: int = 4096) -> tuple[Tensor, ...]:
    """Splits embeddings (N, D) into parts whose table of items by components by features stays small; ``most`` items each."""
    found = objective.conditional(z[:1]) if isinstance(objective, ConditionalObjective) and len(z) else None
    K = found.weights.shape[-1] if isinstance(found, GaussianMixture) else 1
    split: tuple[Tensor, ...] = z.split(max(1, min(most, NUMBERS // (K * z.shape[1]))))
    return split


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
        "device": described(fabric.device),
        "processes": fabric.world_size,
        "precision": loop.precision(config.fit, fabric.device.type),
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


def online_knn(opened: Data, config: FitConfig, size: int | None, device: torch.device) -> loop.Monitor | None:
    """Returns the check of the encoder by kNN on part of the data; None without labels of two classes."""
    train, test = labeled(opened.train, ONLINE_BANK), labeled(opened.test, ONLINE_TEST)
    if train is None or test is None:
        return None

    def check(encoder: nn.Module) -> dict[str, float]:
        (z, index), (t, at) = (features.collect(encoder, part, size=size, device=device) for part in (train, test))
        assert train.labels is not None and test.labels is not None
        found = knn.knn_accuracy(z, train.labels[index], t, test.labels[at], ks=(min(30, len(z)),))
        return {"knn": next(iter(found.values()))["majority"]}

    return check


def labeled(items: Items, limit: int | None = None) -> Items | None:
    """Returns the items that have a label, at most ``limit`` of them drawn with a fixed seed; None for fewer than two classes."""
    if items.labels is None:
        return None
    index = (items.labels >= 0).nonzero().flatten()
    if len(items.labels[index].unique()) < 2:
        return None
    if limit is not None and len(index) > limit:
        index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:limit]].sort().values
    return items.subset(index)
