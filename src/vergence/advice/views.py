r"""What the views of given data change and what they share, before any training: `vergence.advise`.

Joint embedding is solved in closed form, in the directions of most variance: with all operations of the views, and without each.
All this is about linear models; the recommendation is a simple rule, which nothing that is measured here has beaten.
docs/guides/advice.md has the fields of all records.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vergence.advice.candidates import Trial, simple_rule
from vergence.advice.directions import Groups, Solution, collect
from vergence.advice.nuisances import FixedRegion, Shared, constants, few_values, followed, places
from vergence.advice.nuisances import without as covering
from vergence.data.items import Items, PairItems, spaced
from vergence.learn.views.images import ImageViews
from vergence.learn.views.vectors import KindViews
from vergence.linear.base import MOST_DRAWS, Affine
from vergence.linear.reading import Augmentation, Composed, as_items
from vergence.utils.checks import counted, expect, require_count
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["AboutData", "Advice", "advise"]

FEWEST_ITEMS, MOST_ITEMS, VIEWS = 100, 50_000, 200_000  # items; views of all of them
PART_ITEMS, PART_VIEWS = 10_000, 40_000  # items and views, to leave an operation out
UNCHANGED = 1e-6  # a direction is unchanged where the augmentation takes a smaller share of its second moment
SEARCHED = 64  # first directions of joint embedding that are searched, and at most a quarter of all and a 16th of the pixels

# An operation's name -> the field of its strength, and the strength that leaves an item as it is
PICTURES: Mapping[str, tuple[str, Any]] = {
    "crop": ("crop", (1.0, 1.0)),
    "flip": ("flip", 0.0),
    "jitter": ("jitter_p", 0.0),
    "grayscale": ("grayscale", 0.0),
    "blur": ("blur", 0.0),
    "solarize": ("solarize", 0.0),
    "cover": ("cover", ()),
}


@dataclass(frozen=True, kw_only=True)
class AboutData:
    """What the advice is about."""

    items: int  # items that were read
    features: int  # D
    directions: int  # r, principal directions in which joint embedding is solved
    variance_kept: float  # share of the items' variance in these directions, in (0, 1]
    k: int  # components that a representation keeps
    draws: int  # draws of the augmentation per item; 0 where its covariance is given
    part: str = ""  # where the test part of the data comes from; empty outside of vergence advise
    skipped: int = 0  # files that could not be read


@dataclass(frozen=True, kw_only=True)
class OperationRow:
    """The whole augmentation, or the augmentation without one operation."""

    operation: str
    strength: float
    unchanged: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to start with, what the views change, and what they share."""

    # the summary in sentences: what to start with, what the augmentation does and shares, what the advice is about
    words: tuple[str, ...]
    facts: AboutData
    augmentations: tuple[OperationRow, ...]  # the whole augmentation, then without each operation, on a part of the items
    shared: Shared  # what the views share that they perhaps should not, such as a mark in a fixed place
    trials: tuple[Trial, ...] = ()  # what was tried; empty outside of vergence advise

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain dictionaries and lists, ready for JSON; a measurement that was not made has no key."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    def __str__(self) -> str:
        """Returns the summary, a sentence group per line."""
        return "\n".join(self.words)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def advise(
    data: Any,
    augmentation: Any = None,
    *,
    n_components: int | None = None,
    n_draws: int | None = None,
    directions: int = 256,
    max_items: int = MOST_ITEMS,
    properties: Mapping[str, Sequence[Any]] | None = None,
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Says what an augmentation changes in given data, what it leaves that it perhaps should not, and what to start with.

    Joint embedding is estimated and solved in the principal directions of most variance; it does not depend on the units of the
    features.

    Args:
        data: Items (N, D), images (N, C, H, W), or Vergence's items.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, each of which is
            left out in turn, as each operation of Vergence's views is.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, 4 to 1,000,000; by default 200,000 in all (of items with over 3,072
            features fewer), from 4 to 1,000 per item.
        directions: Largest number of directions, >= 2.
        max_items: Of more items, so many are sampled.
        properties: By name N numbers or words that say where an item is from, such as its folder or its date. The advice says
            which of them the embedding follows.
        random_state: Seed of everything that is random.
        device: Where the sums are computed, as torch names it.

    Raises:
        ValueError: The items are fewer than 100, not finite, or all alike; they are pairs; the augmentation changes the items'
            shape, or nothing.

    Example:
        >>> X = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
        >>> X[:, 4] = 3
        >>> advise(X, lambda X, g: X + 0.2 * torch.randn(X.shape, generator=g, dtype=X.dtype), n_draws=4).shared.constant
        1
    """
    require_count(0, random_state=random_state)
    if n_draws is not None:
        require_count(4, MOST_DRAWS, n_draws=n_draws)
    require_count(1, directions=directions, max_items=max_items)
    items, chosen = _opened(data, max_items, random_state)
    where = _properties(properties, chosen)
    device = str(as_device(device))
    if isinstance(augmentation, Mapping):
        augmentation = Composed(augmentation)
    augmentation = augmentation.sample if isinstance(augmentation, Affine) else augmentation
    m = _draws(items, n_draws) if callable(augmentation) else 0
    operations = [("all", augmentation), *left_out(augmentation)]
    part = spaced(len(items), PART_ITEMS)
    part_draws = max(4, math.ceil(PART_VIEWS / len(part)))
    with bar("reading and augmenting", len(items) + len(part) * len(operations) * (len(operations) > 1)) as advance:
        groups = collect(items, augmentation, directions, m, random_state, device, advance)
        solved = _solved(groups, n_components)

        def measured(other: Augmentation) -> Groups:
            return groups.under(items, other, part, part_draws, random_state, advance)

        whole = functools.cache(lambda: measured(augmentation))  # of operations and of marks

        def under(other: Augmentation) -> Groups:
            return whole() if other is augmentation else measured(other)

        rows = operation_rows(solved, operations, under)
        shared = _shared(solved, items, augmentation, where, under)
    facts = AboutData(
        items=len(groups.x),
        features=len(groups.basis.mean),
        directions=groups.x.shape[1],
        variance_kept=groups.basis.kept,
        k=solved.k,
        draws=m,
    )
    said = (_say_augmentation(rows), *map(_say_place, shared.places), *say_directions(shared, solved.k), _say_scope(facts))
    return Advice(words=(simple_rule(len(items.shape) == 3), *said), facts=facts, augmentations=rows, shared=shared)


def _opened(data: Any, most: int, seed: int) -> tuple[Items, list[int]]:
    """Returns at most so many items, and their numbers."""
    items = as_items(data)
    expect(not isinstance(items, PairItems), "single items and an augmentation", "pairs", "they are two views: train on them")
    expect(len(items) >= FEWEST_ITEMS, f"at least {FEWEST_ITEMS} items to advise on", len(items), "give more")
    chosen = torch.arange(len(items))
    if len(items) > most:
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        items = items.subset(chosen)
    return items, chosen.tolist()


def _properties(properties: Any, chosen: list[int]) -> dict[str, list[Any]]:
    """Returns the properties of the chosen items."""
    given = {} if properties is None else properties
    lists = isinstance(given, Mapping) and all(hasattr(values, "__len__") for values in given.values())
    fits = lists and all(len(values) > chosen[-1] for values in given.values())
    expect(fits, "properties to be a dictionary of lists with a value for each item", properties)
    return {name: [values[i] for i in chosen] for name, values in given.items()}


def _draws(items: Items, n_draws: int | None) -> int:
    """Returns how many draws to take of each item."""
    if n_draws is not None:
        return n_draws
    views = VIEWS * min(1.0, 3072 / math.prod(items.shape))
    return int(min(1000, max(4, math.ceil(views / len(items)))))


def left_out(augmentation: Any) -> Iterator[tuple[str, Augmentation]]:
    """Yields each operation's name and the augmentation without it; nothing if the augmentation has no named operations."""
    if isinstance(augmentation, Composed):
        for name in augmentation.parts:
            yield name, Composed({k: v for k, v in augmentation.parts.items() if k != name})
    elif isinstance(augmentation, KindViews):
        for name, neutral in augmentation.operations.items():
            if getattr(augmentation.config, name) != neutral:
                yield name, augmentation.changed(**{name: neutral})
    elif isinstance(augmentation, ImageViews):
        for name, (field, neutral) in PICTURES.items():
            if getattr(augmentation.config, field) != neutral:
                yield name, augmentation.changed(**{field: neutral})


# Measurements


@dataclass(frozen=True)
class Solved:
    """What all measurements share."""

    groups: Groups
    solution: Solution
    k: int

    @property
    def ties(self) -> int:
        """Directions that the augmentation leaves unchanged; among more than k of them joint embedding's choice is arbitrary."""
        return int((self.solution.omega > 1 - UNCHANGED).sum())


def _solved(groups: Groups, n_components: int | None) -> Solved:
    r = groups.x.shape[1]
    if n_components is not None:
        require_count(1, r - 1, n_components=n_components)
    solution = groups.solution()
    tied = solution.tied or (groups.covariance is None and solution.moments.unchanged())
    expect(not tied, "an augmentation that changes the items", "S = G: joint embedding is a tie")
    return Solved(groups, solution, int(n_components or max(1, min(32, r // 2))))


def operation_rows(
    solved: Solved, operations: Sequence[tuple[str, Any]], under: Callable[[Augmentation], Groups]
) -> tuple[OperationRow, ...]:
    """Returns the row of the whole augmentation and of the augmentation without each operation."""
    if len(operations) == 1:
        return (_operation("all", solved, solved.solution, solved.solution),)
    rows: list[OperationRow] = []
    whole = None
    for name, augmentation in operations:
        solution = under(augmentation).solution()
        if solution.moments.unchanged() or solution.tied:  # joint embedding is a tie without the operation
            continue
        whole = whole or solution
        if rows and torch.equal(whole.moments.S, solution.moments.S):  # the operation does nothing, as grayscale on gray images
            continue
        rows.append(_operation(name, solved, solution, whole))
    return tuple(rows)


def _operation(name: str, solved: Solved, solution: Solution, whole: Solution) -> OperationRow:
    """Returns an augmentation's row."""
    strength = 1 - float(solution.moments.G.trace() / solution.moments.S.trace())
    return OperationRow(operation=name, strength=strength, unchanged=whole.overlap(solution.W, whole.W, solved.k))


def _shared(
    solved: Solved,
    items: Items,
    augmentation: Any,
    properties: Mapping[str, Sequence[Any]],
    under: Callable[[Augmentation], Groups],
) -> Shared:
    """Returns what the first directions of joint embedding share that is not the things themselves."""
    groups, solution = solved.groups, solved.solution
    pictures = len(items.shape) == 3
    m = min(SEARCHED, groups.x.shape[1] // 4, *((math.prod(items.shape) // 16,) if pictures else ()))
    if m < 2:
        return Shared(directions=m, unchanged=solved.ties)
    W = solution.W[:m]
    codes = groups.x.double() @ W.T
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    shape = items.shape if crop is None else (items.shape[0], crop, crop)
    directions, covariance = groups.basis.directions.double(), groups.moments().clean
    found: list[FixedRegion] = []
    if pictures and callable(augmentation):
        patterns = directions @ (covariance @ W.T)
        offset = (0, 0) if crop is None else tuple(max(0, round((side - crop) / 2)) for side in items.shape[1:])
        boxes = [
            dataclasses.replace(place, box=(place.box[0] + offset[0], place.box[1] + offset[1], *place.box[2:]))
            for place in places(patterns.cpu(), shape)
        ]
        found = _covered(solved, boxes, augmentation, under) if boxes else []
    return Shared(
        directions=m,
        unchanged=solved.ties,
        constant=constants(directions, covariance),
        places=tuple(found),
        valued=tuple(few_values(codes)),
        followed=tuple(followed(codes, {name: values for name, values in properties.items() if len(values) == len(codes)})),
    )


def _covered(
    solved: Solved, found: list[FixedRegion], augmentation: Any, under: Callable[[Augmentation], Groups]
) -> list[FixedRegion]:
    """Returns places with what covering each changes: the same closed form with one more operation, on a part of the items."""
    before = under(augmentation).solution()
    after = [under(covering(augmentation, place.box)).solution() for place in found]
    return [
        dataclasses.replace(place, change=1 - before.overlap(one.W, before.W, solved.k))
        for place, one in zip(found, after, strict=True)
    ]


# Words


def _say_augmentation(rows: Sequence[OperationRow]) -> str:
    """Says how strong the augmentation is, and which operation changes the representation most."""
    whole, parts = rows[0], rows[1:]
    strength = f"{whole.strength:.0%} of the variance of a view, in these directions, comes from the augmentation"
    if not parts:
        return f"{strength}."
    most = min(parts, key=lambda row: row.unchanged)
    return f"{strength}. '{most.operation}' matters most: without it {1 - most.unchanged:.0%} of the representation would differ."


def _say_place(place: FixedRegion) -> str:
    """Says where a mark is, and what to do."""
    top, left, height, width = place.box
    where = f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
    where += "" if place.channel is None else f", in channel {place.channel}"
    text = f"The embedding sees a mark in a fixed place, {where}: {place.share:.0%} of one direction lies there, "
    text += f"{place.usual:.0%} in a usual place of this shape."
    if place.change is not None:
        text += f" Covered in every view, {place.change:.0%} of the embedding changes."
    return f"{text} If it is a stamp, a border or a bar, cover it: --set 'cover={place.box}'."


def say_directions(shared: Shared, k: int) -> list[str]:
    """Names ties, constant features, directions of few values and properties of files that are followed, and what to do."""
    said = []
    if shared.unchanged > k:
        said.append(
            f"The views leave {shared.unchanged} directions unchanged: which {k} joint embedding keeps is arbitrary. "
            "Some noise in the views breaks the tie."
        )
    if shared.constant:
        said.append(
            f"Constant in all items: {counted(shared.constant, 'feature')}, such as a border, a dead pixel or an empty column. "
            "Nothing can be learned from that. If it should vary, look at how the data were made."
        )
    for one in shared.valued:
        counts = ", ".join(f"{n:,}" for n in one.counts)
        said.append(
            f"One direction takes only {one.values} values ({counts} of the items looked at). If they are batches, cameras or "
            "formats rather than things, join or separate them before you train."
        )
    for follow in shared.followed:
        said.append(
            f"The embedding follows the {follow.name} of the files: it explains {follow.explained:.0%} of it. If that is no "
            "property of the things, mix it in the data or remove what gives it away."
        )
    return said


def _say_scope(facts: AboutData) -> str:
    part = f"in the {facts.directions} directions of most variance (of {facts.features:,}), which hold"
    where = "" if facts.directions == facts.features else f", {part} {facts.variance_kept:.1%} of it"
    return f"This is about linear models of {facts.items:,} items{where}. How far networks follow them: docs/guides/advice.md."
