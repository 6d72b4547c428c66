"""The page of decisions: the items to filter, sort and open, scores and p-values, and what the numbers mean."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vergence.decide.decisions import Decisions
from vergence.report.charts import Series, chart, histogram
from vergence.report.rendering import workbench
from vergence.report.tiles import image_of, rounded, sheets, side_of, tile, webp, within
from vergence.utils.checks import counted, in_percent
from vergence.utils.digests import content_digest

if TYPE_CHECKING:
    from vergence.data.items import Items

__all__ = ["write_decisions"]

MOST, POINTS, DRAWN, SIDE = 20_000, 101, 20_000, 480  # rows; points of the curve; scores drawn; pixels of a large image
MEANING = [
    "The p-value of an item is the share of calibration items that are at least as anomalous, with the item itself counted among "
    "them. No fit has seen the calibration items.",
    "The rate of false alarms is an average over tables and calibration sets; a table without flags counts as 0 %. In one table "
    "more flags can be false, and in quiet ones most are.",
    "The rate holds for items of the same source as the calibration items, scored by the same model, which was fitted to "
    "neither. It does not hold for items of another source, and nothing is certain for a single item.",
    "An anomaly need not be faulty: the model finds it rare. Larger scores are more anomalous; compare them only within one "
    "table. Your review changes no number; save it as a list.",
]


def write_decisions(
    path: Path, found: Decisions, *, name: str, items: "Items | None" = None, calibration: np.ndarray | None = None
) -> Path:
    """Writes the page in one step, and returns its path; it loads no other file, and every text in it is escaped.

    Args:
        path: File to write.
        found: The decisions on the new items, with the columns ``name`` and ``score``.
        name: What the new items are called together.
        items: The new items, for their images.
        calibration: Scores (n,), larger is more anomalous, that are drawn next to those of ``found``, which has all items then.

    Example:
        >>> import tempfile
        >>> row = {"name": ["<7>"], "score": [9.0], "p_value": [0.001], "q_value": [0.001], "flag": [1]}
        >>> page = write_decisions(Path(tempfile.mkdtemp(), "s.html"), Decisions(row, 1, 1, 500, 0.1), name="<mine>")
        >>> "&lt;mine&gt;" in page.read_text(), "<7>" in page.read_text()
        (True, False)
    """
    if items is not None and len(items.shape) == 3:
        found = replace(found, noun="image")
    rows = found.most_anomalous(MOST)
    rate = "" if found.fdr is None else f", false-discovery rate {in_percent(found.fdr)}"
    return workbench(
        path,
        {**_data(found, rows), **_images(items, [str(row["name"]) for row in rows])},
        title=f"What is anomalous in {name}",
        sentences=[f"{text[:1].upper()}{text[1:]}" for text in found.sentences],
        input=f"{counted(found.total, found.noun)}, {counted(found.calibration, 'calibration item')}{rate}",
        sampled=f"The {len(rows):,} most anomalous are on this page." if len(rows) < found.total else "",
        skipped=[(one.name, one.reason) for one in items.skipped] if items is not None else [],
        meaning=MEANING,
        figures=[] if calibration is None else _figures(found, calibration),
    )


def _data(found: Decisions, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the columns of the page."""
    finite = {key: np.nan_to_num(np.array([row[of] for row in rows], float)) for key, of in KEYS.items()}
    flag, names = [int(row["flag"]) for row in rows], [str(row["name"]) or f"row {row['row']}" for row in rows]
    most = int(min(len(rows), max(50, 3 * sum(flag), len(rows) // 10)))
    return {
        "n": len(rows), "total": found.total, "noun": found.noun, "most": most, "judged": True, "ranked": True, "fixed": True,
        "rate": "calibrated", "key": f"vergence decisions {content_digest(chr(0).join(names).encode('utf-8', 'replace')).hex()}",
        "start": "flag" if any(flag) else "all", "name": names, "flag": flag, "reason": [_reason(row) for row in rows],
        **{key: rounded(values, 6) for key, values in finite.items()},
    }  # fmt: skip


KEYS = {"score": "score", "p": "p_value", "q": "q_value"}  # of the page, and columns


def _reason(row: Mapping[str, Any]) -> str:
    """Returns why an item is anomalous, and what it is most like."""
    why = str(row.get("reason") or (f"level {row['level']}" if row.get("level") else ""))
    return f"{why}; nearest training item: {str(row['nearest']).split('; ')[0]}" if row.get("nearest") else why


def _figures(found: Decisions, calibration: np.ndarray) -> list[dict[str, Any]]:
    """Returns the histogram of both groups of scores, and the curve of the p-values."""
    levels = np.linspace(0, 1, POINTS)
    share = np.searchsorted(np.sort(found.p_value), levels, side="right") / max(found.total, 1)
    lines = [Series("new items", levels.tolist(), share.tolist(), line=True)]
    lines.append(Series("only normal items", levels.tolist(), levels.tolist(), line=True))
    groups = {"calibration": _some(calibration), "new": _some(found.columns["score"])}
    both = "Both histograms are similar if new and calibration items come from one source. Anomalies lie to the right."
    curve = (
        "The share of new items with a p-value up to each level. Without anomalies the curve lies on the line; anomalies lift "
        "its left part. A curve far above the line everywhere means that the new items come from another source."
    )
    drawn = histogram(groups, "score (larger is more anomalous)"), chart(lines, "p-value", "share of the new items")
    words = ("Scores", both), ("p-values", curve)
    return [{"title": title, "words": text, "figure": figure} for (title, text), figure in zip(words, drawn, strict=True)]


def _some(scores: np.ndarray) -> list[float]:
    """Returns finite scores, of very many a sample."""
    finite = scores[np.isfinite(scores)]
    return [float(x) for x in (finite if len(finite) <= DRAWN else np.random.default_rng(0).choice(finite, DRAWN, replace=False))]


def _images(items: "Items | None", names: Sequence[str]) -> dict[str, Any]:
    """Returns the tile of each named image, and larger ones; none of items that are not images."""
    side, large = side_of(len(names)), dict[int, str]()
    tiles, at = np.full((len(names), side, side, 3), 128, dtype=np.uint8), {name: k for k, name in enumerate(names)}
    if items is None or len(items.shape) != 3:
        return sheets(tiles[:0])
    import torch

    from vergence.data.items import batches, contexts
    from vergence.data.pixels import to_bytes

    part = items.subset(torch.tensor([i for i, name in enumerate(items.names) if name in at], dtype=torch.int64))
    for rows, x in part.stream(batches(len(part), 64)):
        given = contexts(x)
        pixels = (given if given.dtype == torch.uint8 else to_bytes(given)).cpu().numpy()
        for i, one in zip(rows.tolist(), map(image_of, pixels), strict=True):
            tiles[k := at[part.names[i]]] = tile(one, side)
            large |= {k: webp(within(one, SIDE), 80)} if max(one.size) > side else {}
    return {**sheets(tiles if len(part) else tiles[:0]), "large": large}
