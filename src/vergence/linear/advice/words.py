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
    ahead = "joint embedding" if margin > 0 else "reconstruction"
    low, high = sorted(100 * abs(bound) * (1 if bound * margin > 0 else -1) for bound in interval)
    numbers = (
        f"with {at['k']} components a linear probe finds the class of {at['joint_embedding']:.1%} of held-out items from joint "
        f"embedding, {at['reconstruction']:.1%} from reconstruction and {at['pca']:.1%} from PCA (chance {facts['chance']:.1%})"
    )
    if max(at["joint_embedding"], at["reconstruction"], at["pca"]) < facts["chance"] + facts["noise"]:
        return f"Cannot tell: {numbers}. None finds the classes; they cannot be read linearly from these data."
    worse = " PCA knows no augmentation and is ahead of both: this augmentation destroys more than it teaches."
    warning = worse if at["pca_ahead"] and at["pca"] > facts["chance"] + facts["noise"] else ""
    points = f"{100 * abs(margin):.1f} points ({low:.1f} to {high:.1f}, 95 %)"
    if verdict != "cannot_tell":
        return f"Use {NAMES[verdict]}: {numbers}. It is ahead by {points}.{warning}"
    lead = f"The difference is {points} for {ahead}" if margin else "There is no difference"
    return f"Cannot tell them apart{_same(at, facts)}: {numbers}. {lead}. Choose by cost, or by what else you need.{warning}"


def _same(at: Row, facts: Row) -> str:
    if facts["isotropic"]:
        return ", because noise that is alike in all directions cannot separate them (give your own augmentation)"
    return ", as they keep the same directions" if at["overlap"] > SAME else ""


def _spectral(verdict: str, interval: tuple[float, float], facts: Row, at: Row) -> str:
    alike = facts["labeled"] and facts["kinds"] < 2
    few = f" ({'all labels are alike' if alike else str(facts['labeled']) + ' labels are too few'})" if facts["labeled"] else ""
    overlap = f"their {at['k']} components overlap by {at['overlap']:.0%} ({interval[0]:.0%} to {interval[1]:.0%}, 95 %)"
    if verdict == "joint_embedding":
        return (
            f"Probably joint embedding, judged without labels{few}: {overlap}. Reconstruction would spend its components on what "
            "the augmentation shakes; if that is what you are after, the opposite holds."
        )
    if interval[0] > SAME or (facts["isotropic"] and at["overlap"] > SAME):
        return f"Cannot tell them apart{_same(at, facts)}, and need not{few}: {overlap}. Choose by cost."
    return f"Cannot tell without labels{few}: {overlap}. Which of them keeps what you need, a few hundred labels will say."


def _augmentation(rows: Sequence[Row], k: int) -> str:
    whole, parts = rows[0], rows[1:]
    said = f"{whole['strength']:.0%} of the variance of a view, in these directions, is the augmentation's"
    if whole.get("alignment") is not None:
        kept = f"{k} components keep {whole['alignment']:.0%} of what is linearly readable of the classes"
        return f"{said}; under it joint embedding's {kept}{_contributions(parts)}."
    if "alignment" in whole:
        return f"{said}; nothing of the classes is clearly readable, so none of its operations can be judged."
    if not parts:
        return f"{said}."
    most = min(parts, key=lambda row: float(row["unchanged"]))
    return (
        f"{said}. '{most['operation']}' matters most: without it {1 - most['unchanged']:.0%} of what is kept would be different."
    )


def _contributions(parts: Sequence[Row]) -> str:
    """Says which operation, left out, brings or costs most, where that is more than two points and twice its standard error."""
    clear = [row for row in parts if abs(row["alignment_change"]) > max(4 * LEAST, 2.1 * row["alignment_change_se"])]
    if not parts:
        return ""
    low, high = ([row for row in clear if sign * row["alignment_change"] > 0] for sign in (-1, 1))
    said = ". No single operation clearly contributes"
    if low:
        most = min(low, key=lambda row: float(row["alignment_change"]))
        said = f". '{most['operation']}' contributes most: without it {most['alignment']:.0%}"
    if high:
        worst = max(high, key=lambda row: float(row["alignment_change"]))
        said += f"; '{worst['operation']}' costs most: without it {worst['alignment']:.0%}"
    return said


def _change(verdict: str, components: Sequence[Row], augmentations: Sequence[Row], sizes: Sequence[Row]) -> str:
    """Says under which settings that were tried the verdict would be another; many were, so each must be all the clearer."""
    if "margin" not in components[0]:
        return "What would change this: labels for a few hundred items; an augmentation nearer to the noise that is in the data."
    tried = (("with {} components", components), ("without {}", augmentations[1:]), ("with {} items", sizes))
    found = []
    for other, sign in (("joint_embedding", 1), ("reconstruction", -1)):
        for setting, rows in tried if other != verdict else ():
            ahead = [_setting(row) for row in rows if row.get("clear") and sign * row["margin"] > 0]
            if ahead:
                found.append(f"{setting.format(', '.join(ahead))} {NAMES[other]} is ahead")
    if not found:
        return "Nothing that was tried would change this: other numbers of components, operations left out, fewer items."
    start = "But: " if verdict == "cannot_tell" else "What would change this: "
    return f"{start}{'; '.join(found)}."


def _setting(row: Row) -> str:
    return str(row["k"]) if "k" in row else f"'{row['operation']}'" if "operation" in row else f"{row['items']:,}"


def _scope(facts: Row) -> str:
    part = f"in the {facts['directions']} directions of most variance (of {facts['features']:,}), which hold"
    where = "" if facts["directions"] == facts["features"] else f", {part} {facts['variance_kept']:.1%} of it"
    return f"This is about linear models of {facts['items']:,} items{where}. How far networks follow them: docs/advice.md."
