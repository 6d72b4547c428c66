"""Joint embedding or reconstruction, before any training: what the closed forms say of one's data and augmentations.

With labels, even of few items, the verdict is measured: both closed-form solutions are probed under cross-validation. Without,
only the spectra speak. They tell whether the choice matters (do the two keep the same directions?), and where the two have
almost nothing in common, joint embedding did better in most of our experiments (docs/advice.md); in between the answer is that
one cannot tell. All this is about linear models of the data; how far networks follow them is measured in docs/advice.md.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import vergence.linear.advice.evidence as ev
import vergence.linear.advice.findings as findings
from vergence.data.items import Items, PairItems
from vergence.linear.advice.pipeline import Composed, left_out
from vergence.linear.advice.words import APART, LEAST, words
from vergence.linear.base import Affine
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["Advice", "advise"]

LABELED = 100  # labeled items that a measurement needs
VIEWS = 200_000  # sampled by default, of items of up to 3,072 features
PART_ITEMS = 10_000  # items on which operations are left out
Verdict = Literal["joint_embedding", "reconstruction", "cannot_tell"]


@dataclass(frozen=True)
class Advice:
    """A recommendation and what it rests on; plain numbers throughout, see `to_dict`.

    Attributes:
        verdict: ``joint_embedding``, ``reconstruction`` or ``cannot_tell``.
        basis: ``labels`` where it was measured, ``spectrum`` where no labels were there.
        margin: With labels, accuracy of joint embedding minus that of reconstruction; without, their overlap at k.
        interval: 95 % interval of the margin, by bootstrap.
        words: What it says, in sentences; what would change it comes last.
        facts: Items, features, directions, the variance they keep, k, draws, labeled items, classes, chance.
        spectrum: ``variance``, ``omega``, ``phi`` of each direction or component, descending.
        directions: The principal directions: ``variance`` (share), ``invariance`` in [0, 1], ``label`` (share of it that is
            between classes; None without labels), ``joint_embedding`` and ``reconstruction`` (R^2 with which each tells it).
        components: For each k: overlap, and with labels the accuracies of the two and of PCA, margin and interval.
        augmentations: The whole and each operation left out, on part of the items: ``strength``, the share of the views'
            variance that is the augmentation's; ``unchanged``, how far joint embedding keeps the same span; with labels
            ``alignment``, the share of the linearly readable label information that its k components keep, and accuracies.
        sizes: For each number of items: overlap with the span that all items give, and with labels accuracies.
    """

    verdict: Verdict
    basis: Literal["labels", "spectrum"]
    margin: float
    interval: tuple[float, float]
    words: tuple[str, ...]
    facts: dict[str, Any]
    spectrum: dict[str, list[float]]
    directions: list[dict[str, Any]]
    components: list[dict[str, Any]]
    augmentations: list[dict[str, Any]]
    sizes: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain dictionaries and lists, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """Returns the words, a line each."""
        return "\n".join(self.words)


def advise(
    data: Any,
    augmentation: Any = None,
    *,
    labels: Any = None,
    n_components: int | None = None,
    n_draws: int | None = None,
    directions: int = 256,
    max_items: int = 50_000,
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Advises on joint embedding or reconstruction for some data and an augmentation.

    Both problems are estimated and solved in the principal directions of most variance, at most ``directions`` of them; for
    images of many pixels these are found by a randomized projection of part of the items, and the advice says how much of
    the variance they keep. 50,000 images of 32 pixels take about a minute on two cores.

    Args:
        data: Items (N, D), images (N, C, H, W), or Vergence's items.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, of which each
            is left out in turn, as each operation of Vergence's views is.
        labels: (N,) integers or strings; -1 is unknown among integers. Items' own labels by default.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, >= 4; by default 200,000 in all (of items with more than 3,072 features
            fewer), from 4 to 1,000 an item. The error that sampling leaves is estimated from halves of the draws and widens
            the intervals.
        directions: Largest number of directions, >= 2.
        max_items: Of more items, so many are drawn.
        random_state: Seed of everything that is random.
        device: Where the moments are taken, as torch names it.

    Raises:
        ValueError: The items are fewer than 100, not finite, or all alike; they are pairs; labels are of another number; the
            augmentation changes the items' shape, or nothing.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(2, size=2000)
        >>> X = rng.normal(size=(2000, 12)) * ([1.0] * 2 + [9.0] * 10)  # strong noise in ten features
        >>> X[:, 0] += 3 * y                                            # what matters is a weak one
        >>> shake = lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype) * X.new_tensor([0.3] * 2 + [9.0] * 10)
        >>> advice = advise(X, shake, labels=y, n_components=2)
        >>> advice.verdict, advice.margin > 0.2
        ('joint_embedding', True)
        >>> advise(X, None, labels=y).verdict  # noise that is alike everywhere ranks directions as variance does
        'cannot_tell'
    """
    items, y, classes = _opened(data, labels, max_items, random_state)
    augmentation = Composed(augmentation) if isinstance(augmentation, Mapping) else augmentation
    augmentation = augmentation.sample if isinstance(augmentation, Affine) else augmentation
    m = _check(items, augmentation, n_draws, directions)
    device = str(as_device(device))
    parts = list(left_out(augmentation))
    part = items.subset(torch.linspace(0, len(items) - 1, min(len(items), PART_ITEMS)).long())
    with bar("reading and augmenting", len(items) + len(part) * (len(parts) + bool(parts))) as advance:
        found = ev.collect(
            items,
            augmentation,
            y,
            directions=directions,
            n_draws=m,
            random_state=random_state,
            device=device,
            advance=advance,
        )
        k = _number(n_components, found.x.shape[1])
        solution = found.solution()
        if float(solution.omega.mean()) > 1 - 1e-9 or (found.halves and found.statistics([1.0] * ev.GROUPS).unchanged()):
            raise ValueError(
                "the augmentation changes nothing (S = G), so joint embedding is a tie; give one that changes the items"
            )
        ks = sorted({k, *(2**j for j in range(1, 12) if 2**j <= found.x.shape[1] // 2)})
        known = _enough(found.labels)
        level = 0.05 / (len(ks) + len(parts) + len(findings.SIZES))
        components = findings.components(found, solution, ks, known, level)
        augmentations = findings.operations(found, solution, part, augmentation, parts, k, known, random_state, level, advance)
    at = components[ks.index(k)]
    verdict, margin, interval = _measured(at) if known else _spectral(at, findings.jackknifed_overlap(found, solution, k))
    facts = _facts(found, k, m if callable(augmentation) else 0, classes, known)
    facts["isotropic"] = augmentation is None or (not callable(augmentation) and np.ndim(augmentation) == 0)
    sizes = findings.sizes_curve(found, solution, k, known, level)
    said = words(verdict, margin, interval, facts, components, augmentations, sizes)
    return Advice(
        verdict,
        "labels" if known else "spectrum",
        margin,
        interval,
        said,
        facts,
        {name: getattr(solution, name).tolist() for name in ("variance", "omega", "phi")},
        findings.directions_table(found, solution, k, known),
        components,
        augmentations,
        sizes,
    )


def _opened(data: Any, labels: Any, most: int, seed: int) -> tuple[Items, Tensor | None, list[str]]:
    """Returns items, labels 0 .. L-1 (-1 unknown), and the classes."""
    items = ev.as_items(data)
    y = labels if labels is not None else items.labels
    array = None if y is None else np.asarray(y)
    if array is not None and array.shape != (len(items),):
        raise ValueError(f"expected one label for each of {len(items)} items, found shape {array.shape}; -1 marks unknown ones")
    if len(items) < 100:
        raise ValueError(f"expected at least 100 items to advise on, found {len(items)}; give more")
    classes, index = ([], None) if array is None else _encoded(array)
    if len(items) > most:
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        items, index = items.subset(chosen), None if index is None else index[chosen]
    return items, index, classes


def _encoded(labels: Any) -> tuple[list[str], Tensor]:
    """Returns the classes, and labels 0 .. L-1; -1 for what is -1, None or not a number."""
    if labels.dtype.kind == "f" and not np.array_equal(labels[np.isfinite(labels)], np.round(labels[np.isfinite(labels)])):
        raise ValueError("expected labels that are classes, found fractions: round them into classes first")
    unknown = np.array([v is None or v != v or v == -1 for v in labels.tolist()])
    if labels.dtype.kind == "f":
        labels = np.where(unknown, -1, labels).astype(np.int64)
    values, inverse = np.unique(np.asarray(labels[~unknown].tolist()), return_inverse=True)
    index = np.full(len(labels), -1)
    index[~unknown] = inverse
    return [str(v) for v in values], torch.from_numpy(index)


def _check(items: Items, augmentation: Any, n_draws: int | None, directions: int) -> int:
    """Returns how many draws to take of each item."""
    if isinstance(items, PairItems):
        raise ValueError(
            "expected single items and an augmentation, found pairs: they are two views already; train on both and compare"
        )
    if directions < 2 or math.prod(items.shape) < 2:
        raise ValueError(
            f"expected at least 2 directions, found {min(directions, math.prod(items.shape))}: nothing to choose among"
        )
    if n_draws is not None and n_draws < 4:
        raise ValueError(f"expected n_draws of at least 4, as two halves of them tell the error of sampling, found {n_draws}")
    views = VIEWS * min(1.0, 3072 / math.prod(items.shape))
    return n_draws or int(min(1000, max(4, math.ceil(views / len(items)))))


def _number(n_components: int | None, r: int) -> int:
    if n_components is None:
        return max(1, min(32, r // 2))
    if not isinstance(n_components, (int, np.integer)) or not 1 <= n_components < r:
        raise ValueError(f"expected n_components from 1 to {r - 1}, below the {r} directions of the data, found {n_components}")
    return n_components


def _enough(labels: Tensor | None) -> bool:
    return labels is not None and int((labels >= 0).sum()) >= LABELED and len(labels[labels >= 0].unique()) >= 2


def _spectral(at: Mapping[str, Any], interval: tuple[float, float]) -> tuple[Verdict, float, tuple[float, float]]:
    """Returns the verdict that an overlap gives by itself, the overlap, and its interval."""
    return ("joint_embedding" if interval[1] < APART else "cannot_tell"), at["overlap"], interval


def _measured(at: Mapping[str, Any]) -> tuple[Verdict, float, tuple[float, float]]:
    """Returns the verdict of the probes, the margin, and its interval."""
    margin, (low, high) = at["margin"], at["interval"]
    if abs(margin) < LEAST or low <= 0 <= high:
        return "cannot_tell", margin, (low, high)
    return ("joint_embedding" if margin > 0 else "reconstruction"), margin, (low, high)


def _facts(found: ev.Evidence, k: int, n_draws: int, classes: list[str], known: bool) -> dict[str, Any]:
    y = found.labels
    labeled = y[y >= 0] if y is not None else torch.empty(0)
    chance = float(labeled.long().bincount().max() / len(labeled)) if len(labeled) else 0.0
    return {
        "items": len(found.x),
        "features": len(found.basis.mean),
        "directions": found.x.shape[1],
        "variance_kept": found.basis.kept,
        "k": k,
        "draws": n_draws,
        "labeled": len(labeled),
        "classes": classes if known else [],
        "kinds": len(labeled.unique()),
        "chance": chance if known else None,
        "noise": 2 * math.sqrt(chance * (1 - chance) / max(1, len(labeled))),
    }
