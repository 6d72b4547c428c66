"""Embeddings of items, with the objective's belief of each, written row by row."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vergence.data.items import Items
from vergence.data.views import ImageViews, VectorViews, Views
from vergence.encoders import networks
from vergence.evaluation.uncertainty import crop_spread
from vergence.methods.core import Method
from vergence.objectives.core import DensityObjective
from vergence.runs.rows import Columns, Reading, by_parts, of_module, write_rows
from vergence.training import build
from vergence.training.config import RunConfig
from vergence.training.records import RunMetadata
from vergence.utils.checks import require_count

__all__ = ["of_crops", "views_of", "write_embeddings"]


def views_of(config: RunConfig, metadata: RunMetadata, encoder: nn.Module) -> Views:
    """Returns the random views that a run was trained with.

    Raises:
        ValueError: The run was trained on pairs, which have none.
    """
    if metadata.kind == "pairs":
        raise ValueError("expected a run on single items for random views, found one on pairs: leave crops out")
    if config.views.function is not None:
        return build.given_views(config.views.function, metadata.shape)
    if metadata.kind == "image":
        return ImageViews(config.views, metadata.shape[1])
    standardize = networks.standardization(encoder)
    return VectorViews(config.views, standardize.mean.flatten(), standardize.std.flatten())


def of_crops(encoder: nn.Module, views: Views, x: Tensor, crops: int, seed: int = 0) -> Columns:
    """Returns ``z_crops`` (B, D), the mean direction of the embeddings of random views, and ``spread`` (B,), how they differ.

    An item's views follow from the seed, its place in the batch and the batch's size: with other batches the results differ by
    the noise of so few views.

    Args:
        encoder: Items (B, ...) -> embeddings (B, D).
        views: The random views.
        x: Items (B, ...).
        crops: Number of views of each item, >= 2.
        seed: Of the views.

    Raises:
        ValueError: There are fewer than 2 views.
    """
    require_count(2, crops=crops)
    generator = torch.Generator().manual_seed(seed)
    mean, spread = crop_spread(torch.stack([encoder(views(x, generator)).float() for _ in range(crops)]))
    return {"z_crops": mean, "spread": spread}


def write_embeddings(
    method: Method,
    items: Items,
    out: Path,
    reading: Reading,
    recorded: dict[str, Any] | None = None,
    views: Views | None = None,
    crops: int = 0,
) -> int:
    """Writes name, z, posterior mean and variance and log-density of every item; returns the number of rows.

    Without a density there are name and z. The log-density, log p(z | z) of an item and itself, needs one encoder for both
    views.

    Args:
        method: Trained method, in evaluation mode.
        items: Items to embed.
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        reading: How items are read.
        recorded: What else identifies the model, such as a digest of its configuration: numbers and text.
        views: Random views; adds the columns of `of_crops`.
        crops: Number of views of each item, where there are ``views``.
    """

    def columns(x: Tensor) -> Columns:
        found = {"z": method.encoder(x)}
        if views is not None:
            found |= of_crops(method.encoder, views, x, crops)
        objective = method.objective
        if not isinstance(objective, DensityObjective):
            return found
        z = found["z"]
        return {**found, **by_parts(lambda part: _belief(method, objective, part), objective, method.projector(z))}

    job = {"job": "embed", "model": of_module(method), **({"crops": crops} if crops else {}), **(recorded or {})}
    return write_rows(columns, items, out, job, reading)


def _belief(method: Method, objective: DensityObjective, z: Tensor) -> Columns:
    """Returns mean and variance of the posterior of embeddings (B, D) in the objective's space, and their log-density."""
    posterior = objective.posterior(z)
    columns = {"mean": posterior.mean, "variance": posterior.variance}
    if method.target_encoder is None:
        columns["log_density"] = objective.log_prob(z, z)
    return columns
