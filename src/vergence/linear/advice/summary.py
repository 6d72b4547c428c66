"""Advice in sentences."""

from collections.abc import Sequence
from typing import TypeVar

from vergence.linear.advice.intervals import Interval
from vergence.linear.advice.measures import LEAST
from vergence.linear.advice.records import ComponentRow, Facts, OperationRow, Probed, SizeRow

__all__ = ["APART", "NAMES", "SAME", "SPACES", "summary"]

NAMES = {"joint_embedding": "joint embedding", "reconstruction": "reconstruction", "pca": "PCA", "cannot_tell": "cannot tell"}
SPACES = {"raw": "", "patches": " patch features", "given": " features"}
SAME, APART = 0.97, 0.3  # overlaps: above, the choice hardly mattered in our experiments; below, joint embedding did better

T = TypeVar("T")


def summary(
    verdict: str,
    margin: float,
    interval: Interval,
    facts: Facts,
    components: Sequence[ComponentRow],
    augmentations: Sequence[OperationRow],
    sizes: Sequence[SizeRow],
) -> tuple[str, ...]:
    """Returns the recommendation, what the augmentation does, what would change the verdict, and what the advice is about."""
    at = next(row for row in components if row.k == facts.k)
    first = _spectral(verdict, interval, facts, at) if at.margin is None else _measured(verdict, margin, interval, facts, at)
    change = _change(verdict, components, augmentations, sizes)
    return first, _augmentation(augmentations, facts.k), change, _scope(facts)


def _measured(verdict: str, margin: float, interval: Interval, facts: Facts, at: ComponentRow) -> str:
    je, rc, pca, chance = (_present(x) for x in (at.joint_embedding, at.reconstruction, at.pca, facts.chance))
    numbers = (
        f"with {at.k} components a linear probe predicts the class of {je:.1%} of held-out items from joint embedding, "
        f"{rc:.1%} from reconstruction and {pca:.1%} from PCA (chance {chance:.1%})"
    )
    if max(je, rc, pca) < chance + facts.noise:
        return f"Cannot tell: {numbers}. None is better than chance; the classes cannot be read linearly from these data."
    worse = " PCA, which uses no augmentation, is better than both: this augmentation removes more information than it adds."
    warning = worse if at.pca_ahead and pca > chance + facts.noise else ""
    low, high = sorted(100 * abs(bound) * (1 if bound * margin > 0 else -1) for bound in interval)
    points = f"{100 * abs(margin):.1f} points ({low:.1f} to {high:.1f}, 95 %)"
    if verdict != "cannot_tell":
        return f"Use {NAMES[verdict]}: {numbers}. It is ahead by {points}.{warning}"
    ahead = "joint embedding" if margin > 0 else "reconstruction"
    lead = f"The difference is {points} in favor of {ahead}" if margin else "There is no difference"
    return f"Cannot tell them apart{_same(at, facts)}: {numbers}. {lead}. Choose by cost or by other needs.{warning}"


def _same(at: ComponentRow, facts: Facts) -> str:
    if facts.isotropic:
        return ", because noise of equal variance in all directions cannot separate them (give your own augmentation)"
    return ", because they keep the same directions" if at.overlap > SAME else ""


def _spectral(verdict: str, interval: Interval, facts: Facts, at: ComponentRow) -> str:
    reason = "all labels are the same" if facts.kinds < 2 else f"{facts.labeled} labels are too few"
    few = f" ({reason})" if facts.labeled else ""
    share = f"{at.overlap:.0%} ({interval[0]:.0%} to {interval[1]:.0%}, 95 %)"
    overlap = f"the {at.k} components of joint embedding and those of reconstruction overlap by {share}"
    if verdict == "joint_embedding":
        return (
            f"Probably joint embedding, judged without labels{few}: {overlap}. Reconstruction would use its components for "
            "directions that the augmentation perturbs; if these are what you need, use reconstruction."
        )
    if interval[0] > SAME or (facts.isotropic and at.overlap > SAME):
        return f"Cannot tell them apart{_same(at, facts)}, and the choice does not matter{few}: {overlap}. Choose by cost."
    return f"Cannot tell without labels{few}: {overlap}. A few hundred labels show which of them keeps what you need."


def _augmentation(rows: Sequence[OperationRow], k: int) -> str:
    whole, parts = rows[0], rows[1:]
    strength = f"{whole.strength:.0%} of the variance of a view, in these directions, comes from the augmentation"
    if whole.alignment is not None:
        kept = f"{k} components keep {whole.alignment:.0%} of the linearly readable label information"
        return f"{strength}; joint embedding's {kept}{_contributions(parts)}."
    if whole.margin is not None:
        return f"{strength}; no label information is clearly readable, so the operations cannot be judged."
    if not parts:
        return f"{strength}."
    most = min(parts, key=lambda row: row.unchanged)
    return f"{strength}. '{most.operation}' matters most: without it {1 - most.unchanged:.0%} of the representation would differ."


def _contributions(parts: Sequence[OperationRow]) -> str:
    """Names the operations that help and hurt most, where that is more than two points and twice its standard error."""
    if not parts:
        return ""
    change = {row.operation: _present(row.alignment_change) for row in parts}
    clear = [row for row in parts if abs(change[row.operation]) > max(4 * LEAST, 2.1 * _present(row.alignment_change_se))]
    text = ". No single operation clearly contributes"
    helps = [row for row in clear if change[row.operation] < 0]
    if helps:
        most = min(helps, key=lambda row: change[row.operation])
        text = f". '{most.operation}' contributes most: without it {_present(most.alignment):.0%}"
    hurts = [row for row in clear if change[row.operation] > 0]
    if hurts:
        worst = max(hurts, key=lambda row: change[row.operation])
        text += f"; '{worst.operation}' costs most: without it {_present(worst.alignment):.0%}"
    return text


def _change(
    verdict: str, components: Sequence[ComponentRow], augmentations: Sequence[OperationRow], sizes: Sequence[SizeRow]
) -> str:
    """Names the settings under which another method is clearly ahead; their intervals allow for the number of settings."""
    if components[0].margin is None:
        return "What would change this: labels for a few hundred items; an augmentation closer to the noise in the data."
    tried: tuple[tuple[str, list[tuple[str, Probed]]], ...] = (
        ("with {} components", [(str(row.k), row) for row in components]),
        ("without {}", [(f"'{row.operation}'", row) for row in augmentations[1:]]),
        ("with the first {} items", [(f"{row.items:,}", row) for row in sizes]),
    )
    changes = []
    for other, sign in (("joint_embedding", 1), ("reconstruction", -1)):
        for setting, rows in tried if other != verdict else ():
            ahead = [name for name, row in rows if row.clear and sign * _present(row.margin) > 0]
            if ahead:
                changes.append(f"{setting.format(', '.join(ahead))} {NAMES[other]} is ahead")
    if not changes:
        return "Nothing that was tried would change this: other numbers of components, operations left out, fewer items."
    start = "But: " if verdict == "cannot_tell" else "What would change this: "
    return f"{start}{'; '.join(changes)}."


def _present(value: T | None) -> T:
    assert value is not None
    return value


def _scope(facts: Facts) -> str:
    of = f"{facts.features:,}{SPACES[facts.space]}"
    part = f"in the {facts.directions} directions of most variance (of {of}), which hold"
    where = "" if facts.directions == facts.features else f", {part} {facts.variance_kept:.1%} of it"
    return f"This is about linear models of {facts.items:,} items{where}. How far networks follow them: docs/advice.md."
