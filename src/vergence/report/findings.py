"""What scoring found, as sentences, as a table, and as a page with pictures and reasons."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vergence.data.items import Items, batches, contexts
from vergence.data.pixels import to_bytes
from vergence.detection import look_at
from vergence.detection.findings import Findings
from vergence.detection.groups import Group
from vergence.report.charts import thumbnail
from vergence.report.rendering import write
from vergence.utils.checks import counted

__all__ = ["about", "lines", "nearest_title", "write_findings"]

SECTIONS = {
    "oddities": "The most unusual, the strangest first",
    "groups": "Groups of items that are alike and unlike all others",
    "copies": "Copies and near-duplicates",
    "leaks": "Copies or near-duplicates of items in the other source",
    "meaning": "What the numbers mean",
}
ODD, MEMBERS, GROUPS = 48, 12, 30  # items and groups on the page
LEAKS = 3  # that are printed
SIDE = 128  # pixels of a picture
SCORES = "Larger scores are more anomalous; they are comparable within one table alone."
CALIBRATED = (
    "The p-value of an item is the share of ordinary items, which no fit has seen, that are at least as anomalous. If the items "
    "come from where these came from, then on average at most the stated share of the flagged items is ordinary; one list can "
    "hold more."
)
BY_ITSELF = (
    "Nothing here is known to be ordinary. Each item was scored by fits that had seen neither it nor a copy of it. Its p-value "
    "says how probable its score is if the tail of the less strange items goes on as it begins: a model, not a guarantee. The "
    "ranking is the surest part; of a group of items that are alike it shows the strangest alone, and the group stands below."
)


def lines(findings: Findings, noun: str = "item") -> list[str]:
    """Returns what to do, in sentences, the most important first; ``noun`` is what one item is called."""
    columns = findings.columns
    leaks = [(name, other) for name, other in zip(columns["name"], columns.get("leak", ()), strict=False) if other]
    first = [findings.changed] if findings.changed else []
    if "leak" in columns and not leaks:
        first.append("no item is a copy or near-duplicate of one in the other source")
    verdict = [_verdict(findings, noun)] if findings.total else []
    number = {"copies of other items": "same_as", "near-duplicates of other items": "similar_to"}
    number["copies or near-duplicates of items in the other source"] = "leak"
    copies = {what: sum(map(bool, columns.get(column, ()))) for what, column in number.items()}
    last = [f"{what}: {n:,}" for what, n in copies.items() if n]
    if "leak" in columns:
        some = ", ".join(f"{name} is {other}" for name, other in leaks[:LEAKS])
        last.append(f"for instance {some}; {findings.leak_scope}" if some else findings.leak_scope)
    if findings.unjudged:
        equal = "not judged, as the run was fitted to or calibrated on equal ones"
        last.append(f"warning: {counted(findings.unjudged, 'item')} {equal}{findings.advice}")
    return [*first, *verdict, *(about(findings, group) for group in findings.groups), *last]


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
        model = ", if the tail of the others goes on as it begins" if findings.calibration is None else ""
        return f"{look_at(n, fdr, noun)}{model}"
    return f"none of {counted(total, 'item')} is flagged at {fdr:g}: {findings.why_none}"


def about(findings: Findings, group: Group) -> str:
    """Returns what an odd group is, in a sentence."""
    name, p = findings.columns["name"][group.medoid], f"p = {group.p_value:.2g}"
    if group.distance < 1:
        return f"{group.size:,} items like {name} are nearly the same, and no farther from the mean than a typical item ({p})"
    return (
        f"{group.size:,} items like {name} form a group of their own: {group.distance:.3g} times as far from the mean as a "
        f"typical item ({p})"
    )


def nearest_title(findings: Findings) -> str:
    """Returns what the items of the column ``nearest`` are."""
    return "nearest ordinary item" if findings.calibration is None else "nearest training item"


Shown = dict[str, Any]  # an item on the page: name, picture (data URL; empty for vectors), lines about it, whether flagged


def write_findings(path: Path, findings: Findings, items: Items, *, name: str, other: Items | None = None) -> Path:
    """Writes the page in one step; it loads nothing from elsewhere, and every text in it is escaped. Returns its path.

    The items, and others among which leaks were looked for, are for their pictures; ``name`` is that of the items, for the title.

    Example:
        >>> import tempfile
        >>> from vergence.data.items import ArrayItems
        >>> row = {"name": ["<7>"], "score": [9.0], "p_value": [0.001], "flag": [1], "level": ["z"], "reason": ["z 1 in 500"]}
        >>> items = ArrayItems(torch.zeros(1, 3))
        >>> page = write_findings(Path(tempfile.mkdtemp(), "s.html"), Findings(row, 1, 1, calibration=500), items, name="mine")
        >>> "&lt;7&gt;" in page.read_text(), "<7>" in page.read_text()
        (True, False)
    """
    strangest, copies = findings.strangest(ODD), _copies(findings)
    clusters = [(f"{about(findings, g)}; the most central first", g.members[:MEMBERS].tolist()) for g in findings.groups[:GROUPS]]
    pictures = _pictures(items, [findings.names[i] for i in {*strangest, *(i for _, rows in (*clusters, *copies) for i in rows)}])

    def together(groups: list[tuple[str, list[int]]]) -> list[Shown]:
        return [
            {"sentence": said, "shown": [_shown(name, pictures) for name in (findings.names[i] for i in rows)]}
            for said, rows in groups
        ]

    alone = findings.calibration is None
    parts: dict[str, Any] = {"oddities": [_odd(findings, i, pictures) for i in strangest]}
    parts |= {"groups": together(clusters), "copies": together(copies)} if alone else {}
    parts |= {} if other is None else {"leaks": _leaks(findings, items, other)}
    return write(
        path,
        "findings",
        {key: heading for key, heading in SECTIONS.items() if key in (*parts, "meaning")},
        title=f"Unusual items: {name}",
        name=name,
        lead=lines(findings, "picture" if len(items.shape) == 3 else "item"),
        meaning=[BY_ITSELF if alone else CALIBRATED, SCORES],
        facts={
            "Items": f"{findings.total:,}",
            "Flagged": f"{findings.flagged:,}",
            "False-discovery rate": "" if findings.certificate else f"{findings.fdr:g}",
            "Unreadable": f"{len(items.skipped) or ''}",
            "Calibration items": "" if findings.calibration is None else f"{findings.calibration:,}",
            "Odd groups": str(len(findings.groups)) if alone else "",
        },
        **parts,
    )


def _shown(name: str, pictures: Mapping[str, str], lines: Sequence[str] = (), flagged: bool = False) -> Shown:
    return {"name": name, "picture": pictures.get(name, ""), "lines": lines, "flagged": flagged}


def _odd(findings: Findings, i: int, pictures: Mapping[str, str]) -> Shown:
    """Returns what the page shows of a strange item."""
    row = findings.row(i)
    said = [f"score {row['score']:.3g}, p = {row['p_value']:.2g}", str(row["reason"] or f"level {row['level']}")]
    said += [str(row["measured"])] if row.get("measured") else []
    said += [f"{nearest_title(findings)}: {str(row['nearest']).split('; ')[0]}"] if row.get("nearest") else []
    said += [f"in the group of {row['group']}"] if row.get("group") else []
    return _shown(str(row["name"]), pictures, said, bool(row["flag"]))


def _copies(findings: Findings) -> list[tuple[str, list[int]]]:
    """Returns a sentence and the rows of each group of copies, the largest first."""
    place = {name: i for i, name in enumerate(findings.names)}
    groups: dict[tuple[tuple[str, str], str], list[int]] = {}
    for kind, column in ((("copy", "copies"), "same_as"), (("near-duplicate", "near-duplicates"), "similar_to")):
        for i, first in enumerate(findings.columns.get(column, ())):
            if first:
                groups.setdefault((kind, first), [place[first]]).append(i)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:GROUPS]
    return [(f"{len(rows) - 1:,} {kind[len(rows) > 2]} of {first}", rows[:MEMBERS]) for (kind, first), rows in largest]


def _leaks(findings: Findings, items: Items, other: Items) -> list[Shown]:
    """Returns the items that are in the other source, too, each beside the item there."""
    pairs = [(name, there) for name, there in zip(findings.names, findings.columns["leak"], strict=True) if there][:GROUPS]
    ours, theirs = _pictures(items, [name for name, _ in pairs]), _pictures(other, [there for _, there in pairs])
    return [
        {"sentence": f"{name}, and {there} of the other source", "shown": [_shown(name, ours), _shown(there, theirs)]}
        for name, there in pairs
    ]


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
