"""Anomaly scores of items, larger is more anomalous, and decisions on them; the noise of the samples is fixed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.detection import explain, look_at, reportable
from vergence.detection.bounds import drift_of_counts
from vergence.detection.conformal import at_most
from vergence.evaluation.levels import Levels
from vergence.methods.core import Method
from vergence.objectives.core import DensityObjective
from vergence.runs.detector import RunDetector, p_values_of_batch
from vergence.runs.rows import Columns, by_parts, stream, write_rows
from vergence.training.calibration import digests
from vergence.utils.checks import EXACT
from vergence.utils.names import counted, unknown

if TYPE_CHECKING:
    from vergence.detection.bounds import Certificate

__all__ = ["DETECTOR", "Decisions", "columns", "score", "write_scores"]

DETECTOR = "detector"  # the name of the detector's score among the objective's
FEW, CHANGED, CERTAIN = 20, 0.2, 0.001  # items; least difference of distributions, and largest p-value, that are reported
SHOWN, KEPT = 10, 48  # oddities that are printed, and that are kept for the page
TEXTS = ("level", "nearest", "reason")


def score(
    method: Method, items: Items, how: str | None = None, *, levels: Levels, found: RunDetector | None, **settings: Any
) -> Tensor:
    """Returns how anomalous each item is, (N,), on the CPU.

    Args:
        method: Trained method, in evaluation mode.
        items: Items to score.
        how: Name of a score of the objective's; None for the detector's.
        levels: Levels of the features of a batch.
        found: The run's detector; needed where ``how`` is None.
        **settings: See `vergence.runs.rows.stream`.

    Raises:
        ValueError: The objective has no score of that name.
    """
    if found is not None:
        detect = found.scores
        parts = [part["score"] for _, part in stream(lambda x: {"score": detect(levels(x))[0]}, items, **settings)]
        return torch.from_numpy(np.concatenate(parts))
    own = [part for _, part in stream(lambda x: objective_scores(method, method.encoder(x)), items, **settings)]
    if how is None or how not in own[0]:
        raise unknown("score", str(how), [DETECTOR, *own[0]])
    return torch.cat([part[how] for part in own]).cpu()


def objective_scores(method: Method, z: Tensor) -> Columns:
    """Returns the scores of the objective's own for embeddings (B, D), by name; none without a density."""
    objective = method.objective
    return by_parts(objective.scores, objective, method.projector(z)) if isinstance(objective, DensityObjective) else {}


@dataclass
class Decisions:
    """What is decided when all items have their p-values: columns ``q_value`` and ``flag``, and what is printed.

    Items that the run was fitted to or calibrated on are not judged, since their scores say nothing about new ones: they have the
    q-value 1 and no flag, and do not count.

    Attributes:
        n: Number of calibration items.
        fdr: False-discovery rate of the flags.
        certificate: Threshold whose false-positive rate is bounded, by which items are flagged instead.
        total: Items that were judged.
        flagged: Items that were flagged; known when the file has been written.
        seen: Items that the run was fitted to or calibrated on.
        strangest: Name, score, p-value, level, nearest items and reason of the 48 strangest items, the strangest first.
        of_pairs: Whether the items are pairs, whose targets are judged given their contexts.
    """

    n: int
    fdr: float = 0.1
    certificate: "Certificate | None" = None
    total: int = 0
    flagged: int = 0
    seen: int = 0
    strangest: list[dict[str, Any]] = field(default_factory=list)
    of_pairs: bool = False

    near: ClassVar[str] = "nearest training item"
    needs: ClassVar[Sequence[str]] = ("name", "score", "p_value", *TEXTS, "seen")
    names: ClassVar[Sequence[str]] = ("q_value", "flag")
    order: ClassVar[Sequence[str]] = ("name", "score", "p_value", "q_value", "flag", *TEXTS, "seen")

    def __post_init__(self) -> None:
        self._counts = np.zeros(self.n + 2, dtype=np.int64)

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values, and keeps the strangest items."""
        self.seen += int(columns["seen"].sum())
        new = np.flatnonzero(columns["seen"] == 0)
        columns = {name: columns[name][new] for name in self.needs}
        rank = self._rank(columns["p_value"])
        self._counts += np.bincount(rank, minlength=self.n + 2)
        self.total += len(rank)
        self.flagged = int(self._flags(columns["score"], rank).sum()) + self.flagged if self.certificate else self._reported()
        order = np.argsort(-columns["score"], kind="stable")[:KEPT]
        self.strangest += [{name: columns[name][i].item() for name in self.needs} for i in order]
        self.strangest = sorted(self.strangest, key=lambda row: -row["score"])[:KEPT]

    @property
    def rows(self) -> int:
        """Items that were written, judged or not."""
        return self.total + self.seen

    @property
    def first(self) -> list[dict[str, Any]]:
        """The ten strangest items, as in ``strangest``."""
        return self.strangest[:SHOWN]

    def columns_of(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns q-value and flag of some of ``strangest``, when all items have been seen."""
        given = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in ("score", "p_value", "seen")}
        found = self.columns(given)
        return [{name: values[i].item() for name, values in found.items()} for i in range(len(rows))]

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value of each item, the least false-discovery rate at which it is reported, and whether it is flagged."""
        rank, new = self._rank(columns["p_value"]), np.asarray(columns["seen"]) == 0
        q, flag = self._q_values()[rank], self._flags(columns["score"], rank)
        return {"q_value": np.where(new, q, 1.0), "flag": (flag & new).astype(np.uint8)}

    def lines(self, noun: str = "item") -> list[str]:
        """Returns what to do, in sentences, when the file has been written; ``noun`` is what one item is called."""
        changed = self._changed()
        found = [self._found(noun, bool(changed))] if self.total else []
        known = f"warning: {counted(self.seen, 'item')} not judged, as the run was fitted to or calibrated on equal ones"
        advice = "; to judge a run's own data by itself, leave IMAGES out: vergence score RUN --out FILE"
        return [*changed, *found, *([known + ("" if self.of_pairs else advice)] if self.seen else [])]

    def _found(self, noun: str, changed: bool) -> str:
        """Returns what was flagged and what that means; no rate where the items as a whole have changed."""
        void = ", but the items as a whole are unlike the calibration items, so the rate does not hold"
        if self.certificate is not None:
            return f"{counted(self.flagged, 'item')} of {self.total:,} flagged: {self.certificate}{void if changed else ''}"
        if self.flagged and changed:
            return f"{self.flagged:,} of {counted(self.total, noun)} {'is' if self.flagged == 1 else 'are'} flagged{void}"
        if self.flagged and self.total == 1:
            return f"look at 1 {noun}; it is flagged (p = {self.strangest[0]['p_value']:.2g})"
        if self.flagged:
            return str(look_at(self.flagged, self.fdr, noun))
        return f"none of {counted(self.total, 'item')} is flagged at {self.fdr:g}: {self._why_none()}"

    def _why_none(self) -> str:
        """Returns why no item is flagged: what the numbers allow, or the least q-value that an item has."""
        if self._counts[:2].any():  # items stranger than all calibration items: with more of these they might be reported
            return str(reportable(self.n, self.total, self.fdr))
        q = self._q_values()
        least = float(q[self._counts > 0].min())
        many = int(self._counts[q <= least].sum())
        return f"the smallest q-value is {least:.2g}, of {counted(many, 'item')}; the order is still the one to look in"

    def _changed(self) -> list[str]:
        """Returns a line where the bulk of the items is stranger than the calibration items."""
        if self.total < FEW or self.n > EXACT:
            return []
        found = drift_of_counts(self._counts)  # equal scores make p-values too large, never too small
        if found.statistic < CHANGED or found.p_value > CERTAIN:
            return []
        words = f"{found.statistic:.0%} of them at least: what is ordinary has changed, or many are odd"
        return [f"warning: the items as a whole are stranger than the calibration items, {words}"]

    def _rank(self, p: np.ndarray) -> np.ndarray:
        return np.asarray(np.rint(p * (self.n + 1)), dtype=np.int64)

    def _flags(self, scores: np.ndarray, rank: np.ndarray) -> np.ndarray:
        if self.certificate is not None:
            return np.asarray(scores > self.certificate.threshold)
        return np.asarray(at_most(self._q_values(), self.fdr)[rank], dtype=bool)

    def _reported(self) -> int:
        return int(self._counts[at_most(self._q_values(), self.fdr)].sum())

    def _q_values(self) -> np.ndarray:
        """Returns the q-value of each p-value k / (n + 1), k = 0..n + 1, from the number of items that have it."""
        p = np.arange(self.n + 2) / (self.n + 1)
        q = p * self.total / np.maximum(np.cumsum(self._counts), 1)
        return np.asarray(np.minimum(np.minimum.accumulate(q[::-1])[::-1], 1.0))


def columns(
    method: Method, levels: Levels, found: RunDetector, limit: float, all_scores: bool, refused: Mapping[Any, str] | None = None
) -> Callable[[Tensor], Columns]:
    """Returns the function of a batch of items that computes what is written of each.

    Args:
        method: Trained method, in evaluation mode.
        levels: Levels of the features of a batch.
        found: The run's detector.
        limit: p-value up to which nearest typical items and a reason are given.
        all_scores: Whether each level's score and every score of the objective's own are written, too; an objective's own
            ``score`` as ``own_score``.
        refused: Names of items that must not be among those that are scored, by their digests.
    """

    def function(x: Tensor) -> Columns:
        features = levels(x)
        total, each = found.scores(features)
        marks = digests(x)
        if equal := [refused[mark] for mark in marks.tolist() if mark in refused] if refused else []:
            also = f" and {len(equal) - 1:,} more among {len(marks):,} items" if len(equal) > 1 else ""
            raise ValueError(
                f"expected calibration items that are not among the scored ones, found an equal one of {equal[0]}{also}; leave "
                "such items out of --calibration"
            )
        p = p_values_of_batch(found.calibration, total)
        written = {"score": total, "p_value": p, **explained(found, features["z"], each, p <= limit)}
        written["seen"] = np.isin(marks, found.seen).astype(np.uint8)
        if all_scores:
            written |= {f"level_{name}": each[:, i] for i, name in enumerate(found.detector.levels_)}
            own = objective_scores(method, features["z"])
            written |= {f"own_{name}" if name in written else name: value for name, value in own.items()}
        return written

    return function


def explained(found: RunDetector, z: Tensor, each: np.ndarray, unusual: np.ndarray) -> dict[str, list[str]]:
    """Returns the level that says so of each item and, of unusual items, the nearest typical items and a reason."""
    names = np.asarray(found.detector.levels_)
    nearest, reason = ([""] * len(each) for _ in range(2))
    rows = np.flatnonzero(unusual)
    similar = found.nearest(z[torch.from_numpy(rows)].float().cpu().numpy())
    why = explain(names.tolist(), np.exp(-each[rows]), found.resolution)
    for i, near, text in zip(rows, similar, why, strict=True):
        nearest[i], reason[i] = near, text
    return {"level": names[each.argmax(1)].tolist(), "nearest": nearest, "reason": reason}


def write_scores(
    method: Method,
    items: Items,
    out: Path,
    *,
    levels: Levels,
    found: RunDetector,
    job: Mapping[str, Any],
    decisions: Decisions,
    all_scores: bool = False,
    refused: Mapping[Any, str] | None = None,
    **settings: Any,
) -> int:
    """Writes score, p-value, q-value, flag and reason of every item; returns the number of rows.

    Args:
        method: Trained method, in evaluation mode.
        items: Items to score.
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        levels: Levels of the features of a batch.
        found: The detector, calibrated.
        job: What determines the rows beside these: the verb and digests of the model and its description.
        decisions: What is decided when all items are scored.
        all_scores: See `columns`.
        refused: See `columns`.
        **settings: See `vergence.runs.rows.write_rows`.
    """
    limit = 1.0 if decisions.certificate else decisions.fdr
    function = columns(method, levels, found, limit, all_scores, refused)
    return write_rows(function, items, out, job=job, derived=decisions, **settings)
