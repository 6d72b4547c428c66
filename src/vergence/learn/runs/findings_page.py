"""What scoring found, as sentences, as a table, and as a page with pictures and reasons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vergence.data.items import Items, batches, contexts
from vergence.data.pixels import to_bytes
from vergence.decide import look_at
from vergence.decide.findings import Findings
from vergence.report.charts import thumbnail
from vergence.report.rendering import write
from vergence.utils.checks import counted

__all__ = ["lines", "write_findings"]

SECTIONS = {
    "outliers": "The most unusual, the strangest first",
    "meaning": "What the numbers mean",
}
ODD = 48  # items on the page
SIDE = 128  # pixels of a picture
SCORES = "Larger scores are more anomalous; they are comparable within one table alone."
CALIBRATED = (
    "The p-value of an item is the share of ordinary items, which no fit has seen, that are at least as anomalous. If the items "
    "come from where these came from, then on average at most the stated share of the flagged items is ordinary; one list can "
    "hold more."
)


def lines(findings: Findings, noun: str = "item") -> list[str]:
    """Returns what to do, in sentences, the most important first; ``noun`` is what one item is called."""
    first = [findings.changed] if findings.changed else []
    verdict = [_verdict(findings, noun)] if findings.total else []
    last = []
    if findings.unjudged:
        equal = "not judged, as the run was fitted to or calibrated on equal ones"
        last.append(f"warning: {counted(findings.unjudged, 'item')} {equal}{findings.advice}")
    return [*first, *verdict, *last]


def _verdict(findings: Findings, noun: str) -> str:
    """Returns what was flagged and what that means; no rate where the items as a whole have changed."""
    total, n, fdr = findings.total, findings.flagged, findings.fdr
    void = ", but the items as a whole are unlike the calibration items, so the rate does not hold" if findings.changed else ""
    if findings.certificate is not None:
        return f"{counted(n, 'item')} of {total:,} flagged: {findings.certificate}{void}"
    if n and void:
        return f"{n:,} of {counted(total, noun)} {'is' if n == 1 else 'are'} flagged{void}"
    if n and total == 1:
        return f"look at 1 {noun}; it is flagged (p = {findings.columns['p_value'][0]:.2g})"
    if n:
        return look_at(n, fdr, noun)
    return f"none of {counted(total, 'item')} is flagged at {fdr:g}: {findings.why_none}"


Shown = dict[str, Any]  # an item on the page: name, picture (data URL; empty for vectors), lines about it, whether flagged


def write_findings(path: Path, findings: Findings, items: Items, *, name: str) -> Path:
    """Writes the page in one step; it loads nothing from elsewhere, and every text in it is escaped. Returns its path.

    The items are for their pictures; ``name`` is that of the items, for the title.

    Example:
        >>> import tempfile
        >>> from vergence.data.items import ArrayItems
        >>> row = {"name": ["<7>"], "score": [9.0], "p_value": [0.001], "flag": [1], "level": ["z"], "reason": ["z 1 in 500"]}
        >>> items = ArrayItems(torch.zeros(1, 3))
        >>> page = write_findings(Path(tempfile.mkdtemp(), "s.html"), Findings(row, 1, 1, calibration=500), items, name="mine")
        >>> "&lt;7&gt;" in page.read_text(), "<7>" in page.read_text()
        (True, False)
    """
    strangest = findings.strangest(ODD)
    pictures = _pictures(items, [findings.names[i] for i in strangest])
    return write(
        path,
        "findings",
        SECTIONS,
        title=f"Unusual items: {name}",
        name=name,
        lead=lines(findings, "picture" if len(items.shape) == 3 else "item"),
        meaning=[CALIBRATED, SCORES],
        facts={
            "Items": f"{findings.total:,}",
            "Flagged": f"{findings.flagged:,}",
            "False-discovery rate": "" if findings.certificate else f"{findings.fdr:g}",
            "Unreadable": f"{len(items.skipped) or ''}",
            "Calibration items": f"{findings.calibration:,}",
        },
        outliers=[_odd(findings, i, pictures) for i in strangest],
    )


def _shown(name: str, pictures: Mapping[str, str], lines: Sequence[str] = (), flagged: bool = False) -> Shown:
    return {"name": name, "picture": pictures.get(name, ""), "lines": lines, "flagged": flagged}


def _odd(findings: Findings, i: int, pictures: Mapping[str, str]) -> Shown:
    """Returns what the page shows of a strange item."""
    row = findings.row(i)
    said = [f"score {row['score']:.3g}, p = {row['p_value']:.2g}", str(row["reason"] or f"level {row['level']}")]
    said += [f"nearest training item: {str(row['nearest']).split('; ')[0]}"] if row.get("nearest") else []
    return _shown(str(row["name"]), pictures, said, bool(row["flag"]))


def _pictures(items: Items, names: Sequence[str]) -> dict[str, str]:
    """Returns the data URL of the picture of each of some items; nothing for items that are not images."""
    if len(items.shape) != 3:
        return {}
    wanted = set(names)
    part = items.subset(torch.tensor([i for i, name in enumerate(items.names) if name in wanted], dtype=torch.int64))
    pictures: dict[str, str] = {}
    for rows, x in part.stream(batches(len(part), 64)):
        given = contexts(x)
        images = (given if given.dtype == torch.uint8 else to_bytes(given)).cpu().numpy()
        pictures |= {part.names[row]: thumbnail(images, j, SIDE) for j, row in enumerate(rows.tolist())}
    return pictures
