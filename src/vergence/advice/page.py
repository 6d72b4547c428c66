"""Advice in the terminal and as one page: what to start with in words, then what the views share and what they change."""

from pathlib import Path

from vergence.advice.views import Advice, say_shared
from vergence.report.rendering import count, percent, write
from vergence.utils import terminal

__all__ = ["show_advice", "write_advice"]

SECTIONS = {
    "shared": "What the views share and perhaps should not",
    "augmentations": "What each operation contributes",
    "command": "Reproduce this advice",
}


def show_advice(advice: Advice) -> None:
    """Prints the words of an advice and the tables that they rest on."""
    facts = advice.facts
    part = f" (the training part; test part: {facts.part})" if facts.part else ""
    first, *others = map(terminal.wording, advice.words)
    print("\n\n".join([first, f"Based on {facts.items:,} items{part}, {facts.draws or 'no'} views of each.", *others]) + "\n")
    terminal.table("Augmentation: share of a view's variance, and of the directions that stay", *_augmentations(advice))


def write_advice(advice: Advice, path: Path, *, name: str, command: str) -> Path:
    """Writes the page.

    Args:
        advice: The advice.
        path: File to write.
        name: Name of the data, for the title.
        command: Command that reproduces the advice.

    Returns:
        ``path``. The page appears in one step.
    """
    return write(
        path,
        "advice",
        SECTIONS,
        title=f"Advice: {name}",
        words=advice.words,
        facts=_facts(advice, name),
        shared=say_shared(advice.shared, advice.facts.k),
        augmentations=_augmentations(advice) if len(advice.augmentations) > 1 else None,
        command=command,
    )


def _facts(advice: Advice, name: str) -> dict[str, str | None]:
    facts = advice.facts
    return {
        "Data": name,
        "Items": count(facts.items),
        "Features": count(facts.features),
        "Directions": f"{count(facts.directions)}, {percent(facts.variance_kept)} % of the variance",
        "Part of the data": f"the training part (test part: {facts.part})" if facts.part else None,
        "Unreadable, left out": count(facts.skipped) if facts.skipped else None,
        "Components": count(facts.k),
        "Views of each item": count(facts.draws) if facts.draws else "covariance given",
    }


def _augmentations(advice: Advice) -> tuple[list[str], list[list[str]]]:
    names = ["all", *(f"without {row.operation}" for row in advice.augmentations[1:])]
    rows = [[name, percent(row.strength), percent(row.unchanged)] for name, row in zip(names, advice.augmentations, strict=True)]
    return ["", "strength, %", "unchanged, %"], rows
