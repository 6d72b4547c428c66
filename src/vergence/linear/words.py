"""Advice in plain words."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["APART", "LEAST", "NAMES", "SAME", "words"]

NAMES = {"joint_embedding": "joint embedding", "reconstruction": "reconstruction", "pca": "PCA", "cannot_tell": "cannot tell"}
SAME, APART = 0.97, 0.3  # overlaps: above it the choice hardly mattered in our experiments, below joint embedding did better
LEAST = 0.005  # differences of accuracy below half a point are of no consequence

Row = Mapping[str, Any]


def words(
    verdict: str,
    margin: float,
    interval: tuple[float, float],
    facts: Row,
    components: Sequence[Row],
    augmentations: Sequence[Row],
    sizes: Sequence[Row],
) -> tuple[str, ...]:
    """Returns the recommendation, what the augmentation does, what would change the verdict, and what it is about."""
    at = next(row for row in components if row["k"] == facts["k"])
    first = _measured(verdict, margin, interval, facts, at) if "margin" in at else _spectral(verdict, interval, facts, at)
    change = _change(verdict, components, augmentations, sizes)
    return first, _augmentation(augmentations, facts["k"]), change, _scope(facts)


def _measured(verdict: str, margin: float, interval: tuple[float, float], facts: Row, at: Row) -> str:
    low, high = (100 * bound for bound in interval)
    numbers = (
        f"with {at['k']} components a linear probe finds the class of {at['joint_embedding']:.1%} of held-out items from joint "
        f"embedding, {at['reconstruction']:.1%} from reconstruction and {at['pca']:.1%} from PCA (chance {facts['chance']:.1%}). "
        f"The margin is {100 * margin:+.1f} points ({low:+.1f} to {high:+.1f}, 95 %)"
    )
    worse = at["pca"] > max(at["joint_embedding"], at["reconstruction"]) + 2 * LEAST
    warning = " PCA knows no augmentation and is ahead of both: this augmentation destroys more than it teaches." if worse else ""
    if verdict != "cannot_tell":
        return f"Use {NAMES[verdict]}: {numbers}.{warning}"
    same = ", as they keep the same directions" if at["overlap"] > SAME else ""
    return f"Cannot tell them apart{same}: {numbers}. Choose by cost, or by what else you need.{warning}"


def _spectral(verdict: str, interval: tuple[float, float], facts: Row, at: Row) -> str:
    few = f" ({facts['labelled']} labels are too few)" if facts["labelled"] else ""
    overlap = f"their {at['k']} components overlap by {at['overlap']:.0%} ({interval[0]:.0%} to {interval[1]:.0%}, 95 %)"
    if verdict == "joint_embedding":
        return (
            f"Probably joint embedding, judged without labels{few}: {overlap}. Reconstruction would spend its components on what "
            "the augmentation shakes; if that is what you are after, the opposite holds."
        )
    if at["overlap"] > SAME:
        return f"Cannot tell them apart, and need not{few}: {overlap}, so both keep the same directions. Choose by cost."
    return f"Cannot tell without labels{few}: {overlap}. Which keeps the better ones, labels of some hundred items will say."


def _augmentation(rows: Sequence[Row], k: int) -> str:
    whole, parts = rows[0], rows[1:]
    said = f"{whole['strength']:.0%} of the variance of a view is the augmentation's"
    if "alignment" in whole:
        kept = f"{k} components keep {whole['alignment']:.0%} of what is linearly readable of the classes"
        return f"{said}; under it joint embedding's {kept}{_contributions(whole, parts)}."
    if not parts:
        return f"{said}."
    most = min(parts, key=lambda row: float(row["unchanged"]))
    return f"{said}. '{most['operation']}' matters most: without it {1 - most['unchanged']:.0%} of what is kept would be other."


def _contributions(whole: Row, parts: Sequence[Row]) -> str:
    """Says which operation, left out, costs or brings most of the alignment."""
    if not parts:
        return ""
    low, high = (f(parts, key=lambda row: float(row["alignment"])) for f in (min, max))
    helps = low["alignment"] < whole["alignment"] - 2 * LEAST
    hurts = high["alignment"] > whole["alignment"] + 2 * LEAST
    said = f". '{low['operation']}' contributes most: without it {low['alignment']:.0%}" if helps else ""
    said = said or ". No single operation contributes more than a point"
    return said + (f"; '{high['operation']}' costs most: without it {high['alignment']:.0%}" if hurts else "")


def _change(verdict: str, components: Sequence[Row], augmentations: Sequence[Row], sizes: Sequence[Row]) -> str:
    """Says under which settings that were tried the verdict would be another."""
    if "margin" not in components[0]:
        return "What would change this: labels of some hundred items; an augmentation nearer to the noise that is in the data."
    tried = (("with {} components", components), ("without {}", augmentations[1:]), ("with {} items", sizes))
    found = []
    for other, sign in (("joint_embedding", 1), ("reconstruction", -1)):
        for setting, rows in tried if other != verdict else ():
            ahead = [_setting(row) for row in rows if _ahead(row, sign)]
            if ahead:
                found.append(f"{setting.format(', '.join(ahead))} {NAMES[other]} is ahead")
    if not found:
        return "Nothing that was tried would change this: other numbers of components, operations left out, fewer items."
    return f"What would change this: {'; '.join(found)}."


def _ahead(row: Row, sign: int) -> bool:
    """Says whether one method is ahead by more than chance, and by enough to matter."""
    return "margin" in row and bool(sign * row["margin"] >= LEAST and not row["interval"][0] <= 0 <= row["interval"][1])


def _setting(row: Row) -> str:
    return str(row["k"]) if "k" in row else f"'{row['operation']}'" if "operation" in row else f"{row['items']:,}"


def _scope(facts: Row) -> str:
    part = f"in the {facts['directions']} directions of most variance (of {facts['features']:,}), which hold"
    where = "" if facts["directions"] == facts["features"] else f", {part} {facts['variance_kept']:.1%} of it"
    return f"This is about linear models of {facts['items']:,} items{where}. How far networks follow them: docs/advice.md."
