"""Scores of pairs by a run that was trained on pairs: how unusual is each target, given its context."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vergence.data.items import Items, PairItems, batches
from vergence.data.pixels import center_crop
from vergence.data.sources import with_shape
from vergence.detection import reportable, surprise
from vergence.objectives.core import ConditionalObjective
from vergence.runs.detector import p_values_of_batch
from vergence.runs.findings import write_run_page
from vergence.runs.fitting import opened
from vergence.runs.identity import of_array, of_items, of_module, versions
from vergence.runs.score import Decisions
from vergence.runs.scoring import require_calibration
from vergence.training.calibration import FEWEST, digests
from vergence.utils import terminal
from vergence.utils.checks import require_within
from vergence.utils.files import require_table
from vergence.utils.parts import open_parts

if TYPE_CHECKING:
    from vergence.runs.run import Run

__all__ = ["pair_scores", "score_pairs"]

SAMPLES = 64  # of each conditional density
LEVEL = "target given context"


def score_pairs(run: "Run", pairs: Items, out: Path, *, fdr: float = 0.1, batch_size: int = 256) -> Decisions:
    """Writes how unusual the target of each pair is, given its context, with p-value, q-value and flag; returns what was decided.

    The score is `vergence.detection.surprise` of the target's embedding under the run's p(z_b | z_a). The pairs that the
    training kept for calibration turn it into p-values.

    Args:
        run: A run that was trained on pairs, with an objective that has a conditional density.
        pairs: Pairs to score.
        out: ``.npz``, ``.csv`` or ``.parquet`` file; a page, ``OUT.html``, is written beside it.
        fdr: Share of the flagged pairs that is ordinary, on average at most, in (0, 1).
        batch_size: Pairs at a time.

    Raises:
        ValueError: The run or the data have no pairs, the run has no conditional density or no calibration part, or its data
            cannot be opened.
    """
    require_table(out)
    require_within("(0, 1)", fdr=fdr)
    given = _pairs(run, pairs)
    if not isinstance(run.method.objective, ConditionalObjective):
        raise ValueError(
            f"expected a run with p(target | context) for --pairs, found objective '{run.folder.config.model.objective}', which "
            "has none; train again with --objective gje, or with gmje where a context has several answers"
        )
    data = opened(run.folder)
    held_out = data.calibration
    if held_out is None or len(held_out) < FEWEST:
        found = 0 if held_out is None else len(held_out)
        raise ValueError(
            f"expected a run with at least {FEWEST} calibration pairs, found {found}; train with --calibration-share"
        )
    calibration = pair_scores(run, _pairs(run, held_out), batch_size)
    require_calibration(calibration)
    decisions, known = Decisions(len(calibration), fdr, of_pairs=True), _known(data.train, held_out)
    terminal.note(str(reportable(len(calibration), len(given), fdr)))
    job: dict[str, Any] = {"job": "score pairs", "model": of_module(run.method), "fdr": fdr, "batch_size": batch_size}
    job |= {"calibration": hashlib.sha256(calibration.tobytes()).hexdigest(), **versions(), **run.recorded()}
    job["source"] = of_items(given) + _digest(given.target)
    with open_parts(out, job, derived=decisions) as kept, terminal.bar(out.name, len(given)) as advance:
        advance(kept.done)
        for start in range(kept.done, len(given), batch_size):
            part = given.subset(torch.arange(start, min(start + batch_size, len(given))))
            score = pair_scores(run, part, batch_size)
            columns: dict[str, Any] = {"name": list(part.names), "score": score, "p_value": p_values_of_batch(calibration, score)}
            columns |= {"level": [LEVEL] * len(part), "nearest": [""] * len(part), "reason": [""] * len(part)}
            kept.append({**columns, "seen": np.isin(_marks(part), known).astype(np.uint8)}, len(part))
            advance(len(part))
    write_run_page(Path(f"{out}.html"), decisions, given, name=out.stem)
    return decisions


def _digest(target: Items) -> str:
    return of_array(target.array) if hasattr(target, "array") else of_items(target)


def _pairs(run: "Run", items: Items) -> PairItems:
    if run.folder.metadata.kind != "pairs" or not isinstance(items, PairItems):
        raise ValueError("expected a run that was trained on pairs, and pairs to score (arrays context and target); found others")
    return PairItems(items.context, with_shape(items.target, run.read_shape("target"), "the targets"))


def _known(*parts: Items) -> np.ndarray:
    """Returns the digests of pairs, sorted."""
    return np.unique(np.concatenate([_marks(part) for part in parts]))


def _marks(pairs: Items) -> np.ndarray:
    """Returns a digest of each pair, (N,) uint64."""
    stream = pairs.stream(batches(len(pairs), 1024))
    parts = [digests(torch.cat([side.flatten(1).float() for side in sides], 1)) for _, sides in stream]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *parts])


@torch.inference_mode()
def pair_scores(run: "Run", pairs: PairItems, batch_size: int = 256) -> np.ndarray:
    """Returns how unusual the target of each pair is, given its context, (N,); larger is more unusual.

    Raises:
        ValueError: The objective has no conditional density.
    """
    objective = run.conditional_objective
    networks = run.method.branch("context").eval(), run.method.target_network().eval()
    sizes = run.where("context")["size"], run.where("target")["size"]
    parts = [np.zeros(0)]
    for _, sides in pairs.stream(batches(len(pairs), batch_size)):
        za, zb = (
            net(x.to(run.device) if size is None or x.ndim != 4 else center_crop(x.to(run.device), size)).float()
            for net, x, size in zip(networks, sides, sizes, strict=True)
        )
        density = objective.conditional(run.to_device(za))
        parts.append(surprise(density, run.to_device(zb), SAMPLES).cpu().double().numpy())
    return np.concatenate(parts)
