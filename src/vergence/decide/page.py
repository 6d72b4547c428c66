"""The page of decisions: what was found, the most unusual items, scores and p-values, and what the numbers mean."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vergence.data.items import Items, batches, contexts
from vergence.data.pixels import to_bytes
from vergence.decide.decisions import HELD, Decisions
from vergence.report.charts import Series, chart, histogram, thumbnail
from vergence.report.rendering import write

__all__ = ["write_decisions"]

SECTIONS = {
    "strangest": "The most unusual, the strangest first",
    "scores": "Scores",
    "curve": "p-values",
    "meaning": "What the numbers mean, and what they do not",
}
SHOWN, POINTS, DRAWN, SIDE = 20, 101, 20_000, 128  # rows of the table; points of the curve; scores drawn; pixels of a picture
MEANING = [
    "The p-value of an item is the share of calibration items, which no fit has seen, that are at least as strange, the item "
    "itself counted among them.",
    "A false-discovery rate is an average over tables: of the flagged items at most the stated share is ordinary on average, and "
    "of those of one table more can be.",
    "The numbers hold for items of the same source as the calibration items, scored by the same model, which was fitted to "
    "neither. They say nothing of items from elsewhere, and nothing of a single item for sure.",
    "They do not say that an item is faulty: unusual is what the model finds rare. Larger scores are stranger; they are "
    "comparable within one table alone.",
]


def write_decisions(
    path: Path, found: Decisions, *, name: str, items: Items | None = None, calibration: np.ndarray | None = None
) -> Path:
    """Writes the page in one step, and returns its path; it loads nothing from elsewhere, and every text in it is escaped.

    Args:
        path: File to write.
        found: The decisions on the new items, with the columns ``name`` and ``score``.
        name: What the new items are called together.
        items: The new items, for their pictures.
        calibration: Scores (n,), larger is stranger, that are drawn next to those of ``found``, which has all items then.

    Example:
        >>> import tempfile
        >>> row = {"name": ["<7>"], "score": [9.0], "p_value": [0.001], "q_value": [0.001], "flag": [1]}
        >>> page = write_decisions(Path(tempfile.mkdtemp(), "s.html"), Decisions(row, 1, 1, 500, 0.1), name="mine")
        >>> "&lt;7&gt;" in page.read_text(), "<7>" in page.read_text()
        (True, False)
    """
    if items is not None and len(items.shape) == 3:
        found = replace(found, noun="picture")
    explained = "level" in found.columns
    rows = found.strangest(HELD if explained else SHOWN)
    drawn = {} if calibration is None else _drawn(found, calibration)
    return write(
        path,
        "decisions",
        {key: heading for key, heading in SECTIONS.items() if drawn or key not in ("scores", "curve")},
        title=f"Unusual items: {name}",
        name=name,
        lead=found.sentences,
        facts={
            "Items": f"{found.total:,}",
            "Flagged": f"{found.flagged:,}",
            "False-discovery rate": "" if found.fdr is None else f"{found.fdr:g}",
            "Unreadable": f"{len(items.skipped) or ''}" if items is not None else "",
            "Calibration items": f"{found.calibration:,}",
        },
        cards=_cards(rows, items) if explained else [],
        rows=[] if explained else [_row(row) for row in rows],
        meaning=MEANING,
        **drawn,
    )


def _row(row: Mapping[str, Any]) -> list[Any]:
    numbers = f"{row['score']:.4g}", f"{row['p_value']:.3g}", f"{row['q_value']:.3g}"
    return [row["row"], row["name"], *numbers, "yes" if row["flag"] else ""]


def _drawn(found: Decisions, calibration: np.ndarray) -> dict[str, Any]:
    """Returns the histogram of both groups of scores, and the curve of the p-values."""
    levels = np.linspace(0, 1, POINTS)
    share = np.searchsorted(np.sort(found.p_value), levels, side="right") / found.total
    lines = [Series("new items", levels.tolist(), share.tolist(), line=True)]
    lines.append(Series("ordinary items alone", levels.tolist(), levels.tolist(), line=True))
    groups = {"calibration": _some(calibration), "new": _some(found.columns["score"])}
    return {
        "histogram": histogram(groups, "score (larger is stranger)"),
        "curve": chart(lines, "p-value", "share of the new items"),
    }


def _some(scores: np.ndarray) -> list[float]:
    """Returns finite scores, of very many a sample."""
    finite = scores[np.isfinite(scores)]
    return [float(x) for x in (finite if len(finite) <= DRAWN else np.random.default_rng(0).choice(finite, DRAWN, replace=False))]


def _cards(rows: list[dict[str, Any]], items: Items | None) -> list[dict[str, Any]]:
    """Returns what the page shows of strange items: name, picture (data URL; empty for vectors), lines, whether flagged."""
    pictures = _pictures(items, {str(row["name"]) for row in rows})
    cards = []
    for row in rows:
        lines = [f"score {row['score']:.3g}, p = {row['p_value']:.2g}", str(row["reason"] or f"level {row['level']}")]
        lines += [f"nearest training item: {str(row['nearest']).split('; ')[0]}"] if row.get("nearest") else []
        name = str(row["name"])
        cards.append({"name": name, "picture": pictures.get(name, ""), "lines": lines, "flagged": bool(row["flag"])})
    return cards


def _pictures(items: Items | None, wanted: set[str]) -> dict[str, str]:
    """Returns the data URL of the picture of each of some items; nothing for items that are not images."""
    if items is None or len(items.shape) != 3:
        return {}
    part = items.subset(torch.tensor([i for i, name in enumerate(items.names) if name in wanted], dtype=torch.int64))
    pictures: dict[str, str] = {}
    for rows, x in part.stream(batches(len(part), 64)):
        given = contexts(x)
        images = (given if given.dtype == torch.uint8 else to_bytes(given)).cpu().numpy()
        pictures |= {part.names[row]: thumbnail(images, j, SIDE) for j, row in enumerate(rows.tolist())}
    return pictures
