"""The page that `vergence score` writes beside its table: pictures of what is unusual, with score, p-value and reason."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vergence.data.items import Items, batches, contexts
from vergence.data.pixels import to_bytes
from vergence.report.charts import thumbnail
from vergence.report.findings import Group, Shown, write_findings

if TYPE_CHECKING:
    from vergence.runs.judging import Judged
    from vergence.runs.score import Decisions

__all__ = ["write_folder_page", "write_run_page"]

ODD, MEMBERS, GROUPS = 48, 12, 30  # items and groups on the page
SIDE = 128  # pixels of a picture
SCORES = "Larger scores are more anomalous; they are comparable within one table alone."
OF_RUN = (
    "The p-value of an item is the share of ordinary items, which no fit has seen, that are at least as anomalous. If the items "
    "come from where these came from, then on average at most the stated share of the flagged items is ordinary; one list can "
    "hold more."
)
OF_FOLDER = (
    "Nothing here is known to be ordinary. Each item was scored by fits that had seen neither it nor a copy of it. Its p-value "
    "says how probable its score is if the tail of the less strange items goes on as it begins: a model, not a guarantee. The "
    "ranking is the surest part; of a group of items that are alike it shows the strangest alone, and the group stands below."
)


def write_folder_page(path: Path, found: "Judged", items: Items, *, name: str, other: Items | None = None) -> Path:
    """Writes the page of a folder that was judged by itself.

    Args:
        path: File to write.
        found: What was found.
        items: The items, for their pictures.
        name: Name of the folder.
        other: Items among which leaks were looked for, for their pictures.
    """
    place = {one: i for i, one in enumerate(found.names)}
    order = found.strangest(ODD).tolist()
    clusters = found.groups[:GROUPS]
    copies = _copies(found, place)
    shown = (
        {i for group in clusters for i in group.members[:MEMBERS].tolist()} | set(order) | {i for _, rows in copies for i in rows}
    )
    picture = _pictures(items, [found.names[i] for i in sorted(shown)])
    columns = found.columns()

    def plain(rows: Iterable[int]) -> list[Shown]:
        return [Shown(found.names[i], picture.get(found.names[i], "")) for i in rows]

    n = int(found.flag.sum())
    return write_findings(
        path,
        name=name,
        lead=found.lines(_noun(items)),
        meaning=[OF_FOLDER, SCORES],
        facts=_facts(len(found.names), n, found.fdr, items) | {"Odd groups": str(len(found.groups))},
        oddities=[_shown({key: values[i] for key, values in columns.items()}, picture, found.near) for i in order],
        groups=[
            Group(
                f"{found.about(cluster)}; the most central first",
                plain(cluster.members[:MEMBERS].tolist()),
            )
            for cluster in clusters
        ],
        copies=[Group(sentence, plain(rows)) for sentence, rows in copies],
        leaks=None if other is None else _leaks(found, items, other),
    )


def write_run_page(path: Path, decisions: "Decisions", items: Items, *, name: str) -> Path:
    """Writes the page of items that a run scored.

    Args:
        path: File to write.
        decisions: What was decided, with the strangest items.
        items: The items, for their pictures.
        name: Name of the items.
    """
    rows = decisions.strangest
    picture = _pictures(items, [row["name"] for row in rows])
    flags = decisions.columns_of(rows)
    oddities = [_shown({**row, **flag}, picture, decisions.near) for row, flag in zip(rows, flags, strict=True)]
    facts = _facts(decisions.total, decisions.flagged, None if decisions.certificate else decisions.fdr, items)
    facts |= {"Calibration items": f"{decisions.n:,}"}
    return write_findings(
        path, name=name, lead=decisions.lines(_noun(items)), meaning=[OF_RUN, SCORES], facts=facts, oddities=oddities
    )


def _shown(row: Mapping[str, Any], picture: Mapping[str, str], near: str) -> Shown:
    lines = [f"score {row['score']:.3g}, p = {row['p_value']:.2g}", str(row["reason"] or f"level {row['level']}")]
    lines += [str(row["measured"])] if row.get("measured") else []
    lines += [f"{near}: {str(row['nearest']).split('; ')[0]}"] if row.get("nearest") else []
    lines += [f"in the group of {row['group']}"] if row.get("group") else []
    return Shown(str(row["name"]), picture.get(str(row["name"]), ""), tuple(lines), bool(row["flag"]))


def _facts(total: int, flagged: int, fdr: float | None, items: Items) -> dict[str, str]:
    rate = "" if fdr is None else f"{fdr:g}"
    return {
        "Items": f"{total:,}",
        "Flagged": f"{flagged:,}",
        "False-discovery rate": rate,
        "Unreadable": f"{len(items.skipped) or ''}",
    }


def _copies(found: "Judged", place: Mapping[str, int]) -> list[tuple[str, list[int]]]:
    """Returns a sentence and the members of each group of copies, the largest first."""
    groups: dict[tuple[tuple[str, str], str], list[int]] = {}
    for kind, names in ((("copy", "copies"), found.same_as), (("near-duplicate", "near-duplicates"), found.similar_to)):
        for i, first in enumerate(names):
            if first:
                groups.setdefault((kind, first), [place[first]]).append(i)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:GROUPS]
    return [(f"{len(rows) - 1:,} {kind[len(rows) > 2]} of {first}", rows[:MEMBERS]) for (kind, first), rows in largest]


def _leaks(found: "Judged", items: Items, other: Items) -> list[Group]:
    """Returns the items that are in the other source, too, each beside the item there."""
    pairs = [(name, there) for name, there in zip(found.names, found.leak, strict=True) if there][:GROUPS]
    mine = _pictures(items, [name for name, _ in pairs])
    theirs = _pictures(other, [there for _, there in pairs])
    return [
        Group(f"{name}, and {there} of the other source", [Shown(name, mine.get(name, "")), Shown(there, theirs.get(there, ""))])
        for name, there in pairs
    ]


def _noun(items: Items) -> str:
    return "picture" if len(items.shape) == 3 else "item"


def _pictures(items: Items, names: Sequence[str]) -> dict[str, str]:
    """Returns the data URL of the picture of each of some items; nothing for items that are not images."""
    if len(items.shape) != 3:
        return {}
    wanted = set(names)
    index = torch.tensor([i for i, name in enumerate(items.names) if name in wanted], dtype=torch.int64)
    part = items.subset(index)
    found: dict[str, str] = {}
    for rows, x in part.stream(batches(len(part), 64)):
        given = contexts(x)
        images = (given if given.dtype == torch.uint8 else to_bytes(given)).cpu().numpy()
        found |= {part.names[row]: thumbnail(images, j, SIDE) for j, row in enumerate(rows.tolist())}
    return found
