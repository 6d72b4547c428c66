"""Advice in the terminal and as one page: what to start with in words, then what was tried and what the views share."""

from collections.abc import Sequence
from pathlib import Path

from vergence.advice.candidates import CANDIDATES, best_first
from vergence.advice.nuisances import FixedRegion
from vergence.advice.views import Advice, say_directions
from vergence.report.rendering import count, percent, write
from vergence.utils import terminal

__all__ = ["show_advice", "write_advice"]

BESIDE = ("items", "epochs", "effective rank", "LiDAR")  # columns of candidates that the page alone shows
SECTIONS = {
    "trials": "What was tried",
    "shared": "What the views share and perhaps should not",
    "augmentations": "What each operation contributes",
    "command": "Reproduce this advice",
}
Table = tuple[list[str], list[list[str]]]  # head and rows


def show_advice(advice: Advice) -> None:
    """Prints the words of an advice and the tables that they rest on."""
    facts = advice.facts
    part = f" of the training part (test part: {facts.part})" if facts.part else ""
    print("\n\n".join(advice.words) + f"\n\n{facts.items:,} items{part}, {facts.draws or 'no'} views of each\n")
    if advice.trials:
        head, rows = _trials(advice)
        kept = [i for i, name in enumerate(head) if name not in BESIDE]
        order = "the best first" if advice.trials[0].knn is not None else "those that recognize views best first"
        terminal.table(f"what was tried, {order}", [head[i] for i in kept], [[row[i] for i in kept] for row in rows])
    print("strength: share of a view's variance; unchanged: share of directions that joint embedding keeps as before")
    terminal.table("the augmentation", *_augmentations(advice))


def write_advice(advice: Advice, path: Path, *, name: str, command: str, marks: Sequence[str] = ()) -> Path:
    """Writes the page.

    Args:
        advice: The advice.
        path: File to write.
        name: Name of the data, for the title.
        command: Command that reproduces the advice.
        marks: A picture of each place in ``advice.shared``, as a data address.

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
        trials=_trials(advice) if advice.trials else None,
        marks=list(zip(marks, map(_place, advice.shared.places), strict=True)),
        shared=say_directions(advice.shared, advice.facts.k),
        augmentations=_augmentations(advice) if len(advice.augmentations) > 1 else None,
        command=command,
    )


def _facts(advice: Advice, name: str) -> dict[str, str | None]:
    facts = advice.facts
    return {
        "Data": name,
        "Items": count(facts.items),
        "Features": count(facts.features),
        "Directions": f"{count(facts.directions)}, {percent(facts.variance_kept)}% of the variance",
        "Part of the data": f"the training part (test part: {facts.part})" if facts.part else None,
        "Unreadable, left out": count(facts.skipped) if facts.skipped else None,
        "Components": count(facts.k),
        "Views of each item": count(facts.draws) if facts.draws else "covariance given",
    }


def _trials(advice: Advice) -> Table:
    """Returns the table of candidates, those that recognize views best first; with labels by their accuracy."""
    labeled = advice.trials[0].knn is not None
    head = ["", "items", "epochs", "seconds", "views lost, %", "effective rank", "LiDAR"]
    head += ["kNN, %", "probe, %", "+-, points"] if labeled else []
    rows = []
    for trial in best_first(advice.trials):
        cells = [CANDIDATES[trial.kind], count(trial.items), str(trial.epochs), f"{trial.seconds:.0f}", percent(trial.rank_error)]
        cells += [f"{trial.effective_rank:.0f}", f"{trial.lidar:.0f}"]
        rows.append(cells + ([percent(value) for value in (trial.knn, trial.probe, trial.interval)] if labeled else []))
    return head, rows


def _place(place: FixedRegion) -> list[str]:
    """Returns top, left, height and width of a mark, then its share, the usual one and the change in percent."""
    return [*map(str, place.box), *(percent(x) for x in (place.share, place.usual, place.change))]


def _augmentations(advice: Advice) -> Table:
    """Returns the table of operations."""
    names = ["all", *(f"without {row.operation}" for row in advice.augmentations[1:])]
    rows = [[name, percent(row.strength), percent(row.unchanged)] for name, row in zip(names, advice.augmentations, strict=True)]
    return ["", "strength, %", "unchanged, %"], rows
