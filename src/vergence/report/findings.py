"""What `vergence score` found, as one page: what to look at, with pictures and reasons; odd groups; copies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vergence.report.rendering import write

__all__ = ["Group", "Shown", "write_findings"]

SECTIONS = {
    "oddities": "The most unusual, the strangest first",
    "groups": "Groups of items that are alike and unlike all others",
    "copies": "Copies and near-duplicates",
    "leaks": "Copies or near-duplicates of items in the other source",
    "meaning": "What the numbers mean",
}


@dataclass(frozen=True)
class Shown:
    """One item on the page.

    Attributes:
        name: Its name.
        picture: Data URL of a picture; empty for vectors.
        lines: What is said about it, each in a line of its own.
        flagged: Whether it is reported.
    """

    name: str
    picture: str = ""
    lines: tuple[str, ...] = ()
    flagged: bool = False


@dataclass(frozen=True)
class Group:
    """Items that belong together, with a sentence about them."""

    sentence: str
    items: Sequence[Shown]


def write_findings(
    path: Path,
    *,
    name: str,
    lead: Sequence[str],
    meaning: Sequence[str],
    facts: Mapping[str, str],
    oddities: Sequence[Shown],
    groups: Sequence[Group] | None = None,
    copies: Sequence[Group] | None = None,
    leaks: Sequence[Group] | None = None,
) -> Path:
    """Writes the page in one step; it loads nothing from elsewhere, and every text in it is escaped.

    Args:
        path: File to write.
        name: Name of the items, for the title.
        lead: Sentences that say what to do, the most important first.
        meaning: Sentences that say what the numbers mean and what is not promised.
        facts: Facts by their names; empty ones are left out.
        oddities: The most unusual items, the strangest first.
        groups: Odd groups, each with its most central item first; None leaves the section out.
        copies: Groups of copies; None leaves the section out.
        leaks: Items beside those of another source that are alike; None leaves the section out.

    Returns:
        ``path``.

    Example:
        >>> import tempfile
        >>> page = Path(tempfile.mkdtemp(), "scores.csv.html")
        >>> shown = [Shown("<7>.png", lines=("p = 0.001",), flagged=True)]
        >>> facts = {"Items": "1"}
        >>> write_findings(page, name="mine", lead=["look at 1 item"], meaning=[], facts=facts, oddities=shown).name
        'scores.csv.html'
        >>> "&lt;7&gt;.png" in page.read_text(), "<7>" in page.read_text()
        (True, False)
    """
    given = {"groups": groups, "copies": copies, "leaks": leaks}
    sections = {key: heading for key, heading in SECTIONS.items() if given.get(key, ()) is not None}
    values = {"lead": lead, "meaning": meaning, "facts": facts, "oddities": oddities, **given}
    return write(path, "findings", sections, {}, title=f"Unusual items: {name}", name=name, **values)
