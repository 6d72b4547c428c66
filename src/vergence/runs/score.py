"""Anomaly scores of items; larger is more anomalous, and the noise of the samples is fixed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.methods.paired import PairedMethod
from vergence.objectives.core import DensityObjective
from vergence.runs.identity import of_module
from vergence.runs.rows import Columns, by_parts, stream, write_rows
from vergence.utils.names import unknown

__all__ = ["score", "write_scores"]


def score(method: PairedMethod, objective: DensityObjective, items: Items, how: str | None = None, **settings: Any) -> Tensor:
    """Returns how anomalous each item is, (N,), on the CPU.

    Args:
        method: Trained method, in evaluation mode.
        objective: The method's density.
        items: Items to score.
        how: Name of the score; the objective's first by default.
        **settings: See `vergence.runs.rows.stream`.

    Raises:
        ValueError: The objective has no score of that name.
    """
    scores = [columns for _, columns in stream(lambda x: _scores(method, objective, x), items, **settings)]
    names = list(scores[0])
    if how is not None and how not in names:
        raise unknown("score", how, names)
    return torch.cat([part[how or names[0]] for part in scores]).cpu()


def write_scores(
    method: PairedMethod,
    objective: DensityObjective,
    items: Items,
    out: Path,
    *,
    recorded: dict[str, Any] | None = None,
    **settings: Any,
) -> int:
    """Writes name and every score of every item; returns the number of rows.

    Args:
        method: Trained method, in evaluation mode.
        objective: The method's density.
        items: Items to score.
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        recorded: What else identifies the model, such as a digest of its configuration: numbers and text.
        **settings: See `vergence.runs.rows.write_rows`.
    """
    job = {"job": "score", "model": of_module(method), **(recorded or {})}
    return write_rows(lambda x: _scores(method, objective, x), items, out, job=job, **settings)


def _scores(method: PairedMethod, objective: DensityObjective, x: Tensor) -> Columns:
    return by_parts(objective.scores, objective, method.projector(method.encoder(x)))
