r"""What the views of given data change and what they share, before any training: `vergence.advise`.

Joint embedding is solved in closed form, in the directions of most variance: with all operations of the views, and without each.
All this is about linear models; the recommendation is a simple rule, which nothing that is measured here has beaten.
docs/guides/advice.md has the fields of all records.

Shapes: N items, D features, r directions, m draws of the augmentation, k components.
"""

import dataclasses
import html
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.advice.directions import Reduced, Solved, read
from vergence.advice.labeled import Probed, probed
from vergence.advice.lighting import Lit, lit
from vergence.advice.nuisances import FixedMark, Shared, constants, few_values, fixed_marks, followed
from vergence.data.config import ViewConfig, default_flip
from vergence.data.items import Items, PairItems, spaced
from vergence.data.pixels import to_unit
from vergence.data.sources import open_items
from vergence.learn.training.build import marginals_of, views_for
from vergence.learn.views.images import ImageViews
from vergence.learn.views.vectors import KindViews
from vergence.linear.base import MOST_DRAWS
from vergence.linear.reading import Augmentation, Composed, as_items
from vergence.utils.checks import counted, expect, refuse, require_count, shown
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["AboutData", "Advice", "advise"]

FEWEST_ITEMS, MOST_ITEMS, VIEWS, NUMBERS = 100, 5_000, 40_000, 3_072  # items; views of items of so many features
LIT = 2_000  # images whose light is compared
UNCHANGED = 1e-6  # a direction is unchanged where the augmentation takes a smaller share of its second moment
SEARCHED = 64  # first directions of joint embedding that are searched, and at most a quarter of all and a 16th of the pixels


@dataclass(frozen=True, kw_only=True)
class AboutData:
    """What the advice is about.

    Attributes:
        items: Items that were read.
        features: D.
        directions: r, principal directions in which joint embedding is solved.
        variance_kept: Share of the items' variance in these directions, in (0, 1].
        k: Components that a representation keeps.
        draws: Draws of the augmentation per item; 0 where its covariance is given.
    """

    items: int
    features: int
    directions: int
    variance_kept: float
    k: int
    draws: int
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
    """What to start with, what the views change, and what they share.

    Attributes:
        words: Sentences: what to start with, what the augmentation does and shares, what the advice is about.
        facts: What it is about, in numbers.
        augmentations: The whole augmentation, then without each operation, on a part of the items.
        shared: What the views share that they perhaps should not, such as a fixed mark.
        accuracy: Items as they are next to the closed form, by labels; None where they are too few.
    """

    words: tuple[str, ...]
    facts: AboutData
    augmentations: tuple[OperationRow, ...]
    shared: Shared
    accuracy: Probed | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain dictionaries and lists, ready for JSON; a measurement that was not made has no key."""
        fields = dataclasses.asdict(self, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None})
        plain: dict[str, Any] = json.loads(json.dumps(fields))
        return plain

    def __str__(self) -> str:
        """Returns the summary, a sentence group per line."""
        return "\n".join(self.words)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(text)}</p>" for text in self.words)


def advise(
    data: Any,
    augmentation: Any = None,
    *,
    labels: Any = None,
    n_components: int | None = None,
    n_draws: int | None = None,
    directions: int = 256,
    properties: Mapping[str, Sequence[Any]] | None = None,
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Says what an augmentation changes in given data, what it leaves that it perhaps should not, and what to start with.

    Joint embedding is estimated and solved in the principal directions of most variance; it does not depend on the units of the
    features. Of more than 5,000 items, so many are sampled.

    Args:
        data: Items (N, D) or images (N, C, H, W); or what else `vergence.train` takes, such as a data set or a folder. Of a
            built-in name the test part is read; ``NAME:train`` reads the other.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, each of which is
            left out in turn, as each operation of Vergence's views is. By default those of `vergence.train`.
        labels: Class of each item (N,), any integers, -1 where unknown. With them a probe compares the items as they are with
            joint embedding, and what classes explain is no nuisance.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, 4 to 1,000,000; by default 40,000 in all (of items with over 3,072
            features fewer), from 4 to 1,000 per item.
        directions: Largest number of directions, >= 2.
        properties: By name N numbers or words that say where an item is from, such as its folder or its date. The advice says
            which of them the embedding follows.
        random_state: Seed of everything that is random.
        device: Where the sums are computed, as torch names it.

    Raises:
        ValueError: The items are fewer than 100, not finite, or all equal; they are pairs; the augmentation changes the items'
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
    require_count(1, directions=directions)
    items, chosen = _opened(data, random_state)
    where, y, images = _properties(properties, chosen), _labels(labels, chosen), len(items.shape) == 3
    device = str(as_device(device))
    if augmentation is None:
        kind, config = "image" if images else "vector", ViewConfig(flip=default_flip(data if isinstance(data, str) else ""))
        augmentation = views_for(kind, config, items.shape, lambda: marginals_of(items, config))
    elif isinstance(augmentation, Mapping):
        augmentation = Composed(augmentation)
    views = VIEWS * min(1.0, NUMBERS / math.prod(items.shape))
    m = (n_draws or int(min(1000, max(4, math.ceil(views / len(items)))))) if callable(augmentation) else 0
    reading = read(items, augmentation, directions, m, random_state, device)
    y, r = None if y is None else y[reading.index], reading.x.shape[1]
    if n_components is not None:
        require_count(1, r - 1, n_components=n_components)
    k = int(n_components or max(1, min(32, r // 2)))
    operations = [("all", augmentation), *left_out(augmentation)]
    with bar("augmenting", len(operations)) as advance:
        whole = reading.solved()
        if whole is None:
            refuse("an augmentation that changes the items", "S = G: joint embedding is a tie")
        rows = tuple(operation_rows(reading, whole, operations, k, advance))
    shared, accuracy = _shared(reading, whole, augmentation, where, y), probed(reading, y, k)
    facts = AboutData(
        items=len(reading.x), features=len(reading.basis.mean), directions=r, variance_kept=reading.kept, k=k, draws=m
    )
    kept = f"{facts.directions} of {facts.features:,} directions, {100 * facts.variance_kept:.1f} % of the variance"
    scope = f"All this is about linear models ({kept}). How far networks follow them: docs/guides/advice.md."
    start, strength = _say_start(accuracy, images), _say_augmentation(rows, "a function" if m else "noise")
    words = (*((*start, strength) if accuracy else (strength, *start)), *say_shared(shared, k), scope)
    return Advice(words=words, facts=facts, augmentations=rows, shared=shared, accuracy=accuracy)


def _opened(data: Any, seed: int) -> tuple[Items, Tensor]:
    """Returns at most so many items as are read, and their numbers; raises a ValueError for pairs and for few items."""
    items = as_items(data) if isinstance(data, Items) or hasattr(data, "__array__") else open_items(data)
    expect(not isinstance(items, PairItems), "single items and an augmentation", "pairs", "they are two views: train on them")
    expect(len(items) >= FEWEST_ITEMS, f"at least {FEWEST_ITEMS} items to advise on", len(items), "give more")
    chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:MOST_ITEMS].sort().values
    return items if len(chosen) == len(items) else items.subset(chosen), chosen


def _properties(properties: Any, chosen: Tensor) -> dict[str, list[Any]]:
    given = {} if properties is None else properties
    lists = isinstance(given, Mapping) and all(hasattr(values, "__len__") for values in given.values())
    fits = lists and all(len(values) > chosen[-1] for values in given.values())
    expect(fits, "properties to be a dictionary of lists with a value for each item", properties)
    return {name: [values[i] for i in chosen.tolist()] for name, values in given.items()}


def _labels(labels: Any, chosen: Tensor) -> Tensor | None:
    if labels is None:
        return None
    y = np.asarray(labels)
    fits = y.ndim == 1 and len(y) > chosen[-1] and y.dtype.kind in "iu"
    expect(fits, "labels as an integer for each item, -1 where unknown", shown(labels), "number the classes")
    return torch.as_tensor(y.astype(np.int64))[chosen]


def left_out(augmentation: Any) -> Iterator[tuple[str, Augmentation]]:
    """Yields each operation's name and the augmentation without it; nothing if the augmentation has no named operations."""
    if isinstance(augmentation, Composed):
        for name in augmentation.parts:
            yield name, Composed({k: v for k, v in augmentation.parts.items() if k != name})
    elif isinstance(augmentation, ImageViews | KindViews):
        for name, neutral in augmentation.operations.items():
            if getattr(augmentation.config, name) != neutral:
                yield name.removesuffix("_p"), augmentation.changed(**{name: neutral})


# Measurements


def operation_rows(
    reading: Reduced, whole: Solved, operations: Iterable[tuple[str, Augmentation]], k: int, advance: Callable[[int], None]
) -> Iterator[OperationRow]:
    """Yields the row of the whole augmentation and of the augmentation without each operation that does something."""
    for name, augmentation in operations:
        model = whole if name == "all" else reading.solved(augmentation)
        advance(1)
        # None: a tie without the operation; the same: it does nothing, as grayscale on gray images
        if model is None or (name != "all" and np.array_equal(model.components_, whole.components_)):
            continue
        yield OperationRow(operation=name, strength=model.strength_, unchanged=reading.overlap(model, whole, k))


def _shared(
    reading: Reduced, whole: Solved, augmentation: Any, properties: Mapping[str, Sequence[Any]], y: Tensor | None
) -> Shared:
    """Returns what the first directions of joint embedding share that is not the things themselves."""
    items, r, ties = reading.items, reading.x.shape[1], int((whole.spectrum_ > 1 - UNCHANGED).sum())
    images = len(items.shape) == 3
    m = min(SEARCHED, r // 4, *((math.prod(items.shape) // 16,) if images else ()))
    lights = tuple(_lights(reading, y)) if images else ()
    if m < 2:
        return Shared(directions=m, unchanged=ties, lights=lights)
    codes, directions = reading.codes(whole, m), reading.basis.directions.double().cpu()
    crop = augmentation.size if isinstance(augmentation, ImageViews) else None
    patterns = directions @ (reading.x.T @ codes)
    return Shared(
        directions=m,
        unchanged=ties,
        constant=constants(directions, reading.x.T @ reading.x),
        fixed_marks=tuple(_marks(patterns, items.shape, crop) if images and callable(augmentation) else ()),
        lights=lights,
        valued=tuple(few_values(codes, y)),
        followed=followed(codes, {name: values for name, values in properties.items() if len(values) == len(codes)}),
    )


def _marks(patterns: Tensor, shape: Sequence[int], crop: int | None) -> Iterator[FixedMark]:
    """Yields the fixed marks of items whose views are center crops of this side."""
    side = shape[1:] if crop is None else (crop, crop)
    top, left = (max(0, round((whole - part) / 2)) for whole, part in zip(shape[1:], side, strict=True))
    for mark in fixed_marks(patterns, (shape[0], *side)):
        yield dataclasses.replace(mark, box=(mark.box[0] + top, mark.box[1] + left, *mark.box[2:]))


def _lights(reading: Reduced, y: Tensor | None) -> list[Lit]:
    part = spaced(len(reading.index), LIT)
    read = [F.adaptive_avg_pool2d(to_unit(x), 16) for _, x in reading.items.stream(iter(reading.index[part].split(64)))]
    return lit(torch.cat(read), None if y is None else y[part])


# Words


def simple_rule(images: bool) -> str:
    """Returns what to start with where no labels decide: no criterion without labels chose better in docs/guides/advice.md."""
    if images:
        return (
            "Start with a pretrained network if the images are photographs, otherwise with the closed form (vergence train). "
            "Networks that were trained for minutes on a CPU were worse on most data."
        )
    return (
        "Start with the vectors as they are, in columns of unit variance. On some data, closed form or networks were better: "
        "labels of some items show it."
    )


def _say_start(accuracy: Probed | None, images: bool) -> tuple[str, ...]:
    """Says what to start with: of vectors by their labels, if there are any; of images by the rule, since probes are linear."""
    if images or accuracy is None:
        return (*(() if accuracy is None else (f"Linear maps of pixels: {accuracy}",)), simple_rule(images))
    best = "the vectors as they are" if accuracy.interval[1] >= 0 else "joint embedding in closed form"
    return (f"Start with {best}. {accuracy}",)


def _say_augmentation(rows: Sequence[OperationRow], given: str) -> str:
    """Says what the augmentation is, how strong it is, and which operation changes the representation most."""
    whole, parts = rows[0], rows[1:]
    named = ", ".join(row.operation for row in parts) or given
    strength = f"{100 * whole.strength:.0f} % of a view's variance comes from the augmentation ({named})."
    if not parts:
        return strength
    most = min(parts, key=lambda row: row.unchanged)
    changed = f"without it {100 * (1 - most.unchanged):.0f} % of the representation would differ."
    return f"{strength} '{most.operation}' matters most: {changed}"


def _say_mark(mark: FixedMark) -> str:
    top, left, height, width = mark.box
    where = f"rows {top} to {top + height - 1}, columns {left} to {left + width - 1}"
    found = f"{100 * mark.share:.0f} % of one direction lies there, {100 * mark.others:.0f} % in other regions of this shape"
    return f"Fixed mark: {where}. {found}. If it is a stamp, a border or a bar, cover it: `cover={mark.box}`."


def _say_light(light: Lit) -> str:
    way = "from top to bottom" if light.axis == "rows" else "from left to right"
    low, high = (f"{100 * (math.exp(gradient) - 1):+.0f} %" for gradient in light.gradients)
    found = f"{high} in about {100 * light.share:.0f} % of the images, {low} in the others"
    advice = "If these are two cameras or lamps, divide each image by the mean image of its group."
    return f"Two groups differ in their light {way}: {found}. {advice}"


def say_shared(shared: Shared, k: int) -> list[str]:
    """Names marks, lights, ties, constants, directions of few values and properties that are followed, and what to do."""
    words = [*map(_say_mark, shared.fixed_marks), *map(_say_light, shared.lights)]
    if shared.unchanged > k:
        words.append(
            f"The views leave {shared.unchanged} directions unchanged: which {k} joint embedding keeps is arbitrary. "
            "Some noise in the views breaks the tie."
        )
    if shared.constant:
        words.append(
            f"Constant: {counted(shared.constant, 'feature')}, such as a border, a dead pixel or an empty column. "
            "If these should vary, check how the data were made."
        )
    for each in shared.valued:
        counts = ", ".join(f"{n:,}" for n in each)
        words.append(
            f"One direction takes only {len(each)} values ({counts} items). If these are batches, cameras or formats, join or "
            "separate them before the training."
        )
    for name, share in shared.followed.items():
        words.append(
            f"The embedding follows the {name} of the files: it explains {100 * share:.0f} % of it. If the {name} should not "
            "matter, mix it in the data, or remove its traces."
        )
    return words
