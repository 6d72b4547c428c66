"""The page of decisions from scores of any model: both histograms, the curve of p-values, the most unusual rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vergence.decide.decisions import Decisions
from vergence.report.charts import Series, chart, histogram
from vergence.report.rendering import write

__all__ = ["write_decisions"]

SECTIONS = {
    "table": "The most unusual items",
    "scores": "Scores",
    "curve": "p-values",
    "meaning": "What the numbers mean, and what they do not",
}
SHOWN, POINTS, DRAWN = 20, 101, 20_000  # rows of the table; points of the curve; scores of a histogram
MEANING = [
    "The p-value of an item is the share of calibration items that are at least as strange, the item itself counted among them.",
    "A false-discovery rate is an average over tables: of the flagged items of one table, more can be ordinary.",
    "The numbers hold for items of the same source as the calibration items, scored by the same model, which was fitted to "
    "neither. They say nothing of items from elsewhere, and nothing of a single item for sure.",
    "They do not say that an item is faulty: unusual is what the model finds rare.",
]


def write_decisions(
    path: Path, found: Decisions, calibration: np.ndarray, scores: np.ndarray, names: Sequence[str], *, name: str
) -> Path:
    """Writes the page in one step, and returns its path.

    Args:
        path: File to write.
        found: The decisions on the new items.
        calibration: Scores (n,), larger is stranger.
        scores: Scores of the new items (m,).
        names: Names of the new items (m,).
        name: What the new items are called together.
    """
    order = np.lexsort((-scores, found.p_value))[:SHOWN]
    rows = [
        {
            "row": int(i) + 1,
            "name": names[i],
            "score": f"{scores[i]:.4g}",
            "p": f"{found.p_value[i]:.3g}",
            "q": f"{found.q_value[i]:.3g}",
            "flag": "yes" if found.flag[i] else "",
        }
        for i in order
    ]
    levels = np.linspace(0, 1, POINTS)
    share = np.searchsorted(np.sort(found.p_value), levels, side="right") / len(scores)
    lines = [Series("new items", levels.tolist(), share.tolist(), line=True)]
    lines.append(Series("ordinary items alone", levels.tolist(), levels.tolist(), line=True))
    groups = {"calibration": _some(calibration), "new": _some(scores)}
    return write(
        path,
        "decisions",
        SECTIONS,
        title=f"Unusual items: {name}",
        name=name,
        lead=found.sentences,
        facts={
            "New items": f"{len(scores):,}",
            "Flagged": f"{int(found.flag.sum()):,}",
            "Calibration items": f"{found.calibration:,}",
        },
        rows=rows,
        histogram=histogram(groups, "score (larger is stranger)"),
        curve=chart(lines, "p-value", "share of the new items"),
        meaning=MEANING,
    )


def _some(scores: np.ndarray) -> list[float]:
    """Returns finite scores, of very many a sample."""
    finite = scores[np.isfinite(scores)]
    return [float(x) for x in (finite if len(finite) <= DRAWN else np.random.default_rng(0).choice(finite, DRAWN, replace=False))]
