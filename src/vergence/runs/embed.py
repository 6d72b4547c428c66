"""Embeddings of items, with the objective's belief of each, written row by row."""

from pathlib import Path
from typing import Any

from torch import Tensor

from vergence.data.items import Items
from vergence.methods.paired import PairedMethod
from vergence.objectives.core import DensityObjective
from vergence.runs.identity import of_module
from vergence.runs.rows import Columns, by_parts, write_rows

__all__ = ["write_embeddings"]


def write_embeddings(
    method: PairedMethod, items: Items, out: Path, *, recorded: dict[str, Any] | None = None, **settings: Any
) -> int:
    """Writes name, z, posterior mean and variance and log-density of every item; returns the number of rows.

    Without a density there are name and z. The log-density, log p(z | z) of an item and itself, needs one encoder for both
    views.

    Args:
        method: Trained method, in evaluation mode.
        items: Items to embed.
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        recorded: What else identifies the model, such as a digest of its configuration: numbers and text.
        **settings: See `vergence.runs.rows.write_rows`.
    """

    def columns(x: Tensor) -> Columns:
        z = method.encoder(x)
        objective = method.objective
        if not isinstance(objective, DensityObjective):
            return {"z": z}
        return {"z": z, **by_parts(lambda part: _belief(method, objective, part), objective, method.projector(z))}

    job = {"job": "embed", "model": of_module(method), **(recorded or {})}
    return write_rows(columns, items, out, job=job, **settings)


def _belief(method: PairedMethod, objective: DensityObjective, z: Tensor) -> Columns:
    """Returns mean and variance of the posterior of embeddings (B, D) in the objective's space, and their log-density."""
    posterior = objective.posterior(z)
    columns = {"mean": posterior.mean, "variance": posterior.variance}
    if method.target_encoder is None:
        columns["log_density"] = objective.log_prob(z, z)
    return columns
