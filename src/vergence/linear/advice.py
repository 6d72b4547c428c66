"""Joint embedding or reconstruction, before any training: what the closed forms say of one's data and augmentations.

With labels, even of few items, the verdict is measured: both closed-form solutions are probed under cross-validation. Without,
only the spectra speak. They tell whether the choice matters (do the two keep the same directions?), and where the two have
almost nothing in common, joint embedding did better in most of our experiments (docs/advice.md); in between the answer is that
one cannot tell. All this is about linear models of the data; how far networks follow them is measured in docs/advice.md.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import vergence.linear.evidence as ev
from vergence.data_items import Items, PairItems
from vergence.linear.fitting import Affine
from vergence.linear.words import APART, LEAST, words
from vergence.terminal import bar

__all__ = ["Advice", "advise"]

LABELLED = 100  # labelled items that a measurement needs
BOOTSTRAP = 100  # solutions for the interval of the overlap
PART_ITEMS, PART_DRAWS = 10_000, 4  # items and draws for each operation left out
SIZES = (1, 2, 4, 8, 16)  # groups of the sample-size curve; the last four test it
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
        facts: Items, features, directions, the variance they keep, k, draws, labelled items, classes, chance.
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
    n_draws: int = 4,
    directions: int = 256,
    max_items: int = 50_000,
    random_state: int = 0,
    device: str = "cpu",
) -> Advice:
    """Advises on joint embedding or reconstruction for some data and an augmentation.

    Both problems are estimated and solved in the principal directions of most variance, at most ``directions`` of them; for
    images of many pixels these are found by a randomised projection of part of the items, and the advice says how much of
    the variance they keep. 50,000 images of 32 pixels take about a minute or two on two cores.

    Args:
        data: Items (N, D), images (N, C, H, W), or Vergence's items.
        augmentation: As in `JointEmbedding`; or a dictionary of named functions, applied one after the other, of which each
            is left out in turn, as each operation of Vergence's views is.
        labels: (N,) integers or strings; -1 is unknown among integers. Items' own labels by default.
        n_components: k; by default 32, and at most half of the directions.
        n_draws: Draws of the augmentation for each item, >= 2.
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
    augmentation = ev.Composed(augmentation) if isinstance(augmentation, Mapping) else augmentation
    augmentation = augmentation.sample if isinstance(augmentation, Affine) else augmentation
    _check(items, augmentation, n_draws, directions)
    parts = list(ev.left_out(augmentation))
    part = items.subset(torch.linspace(0, len(items) - 1, min(len(items), PART_ITEMS)).long())
    with bar("reading and augmenting", len(items) + len(part) * (len(parts) + bool(parts))) as advance:
        found = ev.collect(
            items,
            augmentation,
            y,
            directions=directions,
            n_draws=n_draws,
            random_state=random_state,
            device=device,
            advance=advance,
        )
        k = _number(n_components, found.x.shape[1])
        solution = found.solution()
        if float(solution.omega.mean()) > 1 - 1e-9:
            raise ValueError(
                "the augmentation changes nothing (S = G), so joint embedding is a tie; give one that changes the items"
            )
        ks = sorted({k, *(2**j for j in range(1, 12) if 2**j <= found.x.shape[1] // 2)})
        known = _enough(found.labels)
        right = ev.cross_validated(found, ks) if known else {}
        augmentations = _augmentations(found, solution, part, augmentation, parts, k, known, device, random_state, advance)
    components = _components(found, solution, ks, right)
    at = components[ks.index(k)]
    verdict, margin, interval = _verdict(at, _bootstrapped(found, k, at["overlap"], random_state))
    facts = _facts(found, k, n_draws if callable(augmentation) else 0, classes, known)
    sizes = _sizes(found, k, known)
    said = words(verdict, margin, interval, facts, components, augmentations, sizes)
    return Advice(
        verdict,
        "labels" if known else "spectrum",
        margin,
        interval,
        said,
        facts,
        {name: getattr(solution, name).tolist() for name in ("variance", "omega", "phi")},
        _directions(found, solution, k, known),
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
    classes: list[str] = []
    index = None
    if array is not None:
        values, inverse = np.unique(array, return_inverse=True)
        unknown = values == -1 if values.dtype.kind in "iuf" else np.zeros(len(values), dtype=bool)
        classes = [str(v) for v in values[~unknown]]
        index = torch.from_numpy(np.where(unknown[inverse], -1, inverse - int(unknown.any())))
    if len(items) > most:
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(seed))[:most].sort().values
        items, index = items.subset(chosen), None if index is None else index[chosen]
    return items, index, classes


def _check(items: Items, augmentation: Any, n_draws: int, directions: int) -> None:
    if isinstance(items, PairItems):
        raise ValueError(
            "expected single items and an augmentation, found pairs: they are two views already; train on both and compare"
        )
    if n_draws < 2:
        raise ValueError(f"expected n_draws of at least 2, to tell an augmentation's mean from its spread, found {n_draws}")
    if directions < 2:
        raise ValueError(f"expected at least 2 directions, found {directions}; 256 is the default")


def _number(n_components: int | None, r: int) -> int:
    if n_components is None:
        return max(1, min(32, r // 2))
    if not 1 <= n_components < r:
        raise ValueError(f"expected n_components from 1 to {r - 1}, below the {r} directions of the data, found {n_components}")
    return n_components


def _enough(labels: Tensor | None) -> bool:
    return labels is not None and int((labels >= 0).sum()) >= LABELLED and len(labels[labels >= 0].unique()) >= 2


# Measured


def _components(
    found: ev.Evidence, solution: ev.Solution, ks: Sequence[int], right: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    rows = []
    for i, k in enumerate(ks):
        row: dict[str, Any] = {"k": k, "overlap": _overlap(solution, k)}
        if right:
            row |= _compared(right["joint_embedding"][i], right["reconstruction"][i], pca=right["pca"][i])
        rows.append(row)
    return rows


def _interval(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the difference of two accuracies on the same items.

    Each item's difference is -1, 0 or 1, so that resampling items is a multinomial draw of their numbers.
    """
    n = len(a)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    draws = np.random.default_rng(0).multinomial(n, [only_a / n, only_b / n, 1 - (only_a + only_b) / n], size=10_000)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, [0.025, 0.975])
    return float(low), float(high)


def _bootstrapped(found: ev.Evidence, k: int, overlap: float, seed: int) -> tuple[float, float]:
    """Returns the 95 % interval of the overlap: solutions on groups of items drawn with replacement.

    Fewer different items make both solutions less settled and so their overlap smaller: the quantiles are mirrored at the
    overlap that was found (the basic bootstrap), which takes that shift off instead of adding it a second time.
    """
    rng = np.random.default_rng(seed)
    draws = (rng.multinomial(ev.GROUPS, [1 / ev.GROUPS] * ev.GROUPS).astype(float) for _ in range(BOOTSTRAP))
    low, high = np.quantile([_overlap(found.solution(w.tolist()), k) for w in draws], [0.025, 0.975])
    return max(0.0, float(2 * overlap - high)), min(1.0, float(2 * overlap - low))


def _overlap(solution: ev.Solution, k: int) -> float:
    return solution.overlap(solution.W, solution.E, k)


def _verdict(at: Mapping[str, Any], overlap: tuple[float, float]) -> tuple[Verdict, float, tuple[float, float]]:
    if "margin" not in at:
        return ("joint_embedding" if overlap[1] < APART else "cannot_tell"), at["overlap"], overlap
    margin, (low, high) = at["margin"], at["interval"]
    if abs(margin) < LEAST or low <= 0 <= high:
        return "cannot_tell", margin, (low, high)
    return ("joint_embedding" if margin > 0 else "reconstruction"), margin, (low, high)


def _facts(found: ev.Evidence, k: int, n_draws: int, classes: list[str], known: bool) -> dict[str, Any]:
    y = found.labels
    labelled = y[y >= 0] if y is not None else torch.empty(0)
    return {
        "items": len(found.x),
        "features": len(found.basis.mean),
        "directions": found.x.shape[1],
        "variance_kept": found.basis.kept,
        "k": k,
        "draws": n_draws,
        "labelled": len(labelled),
        "classes": classes if known else [],
        "chance": float(labelled.long().bincount().max() / len(labelled)) if known else None,
    }


def _directions(found: ev.Evidence, solution: ev.Solution, k: int, known: bool) -> list[dict[str, Any]]:
    """Returns how each principal direction fares."""
    je, rc = (solution.code(rows, k).square().sum(1) for rows in (solution.W, solution.E))
    U = solution.U
    invariance = ((U @ solution.G) * U).sum(1) / ((U @ solution.S) * U).sum(1)
    share = _between(found, U) if known else None
    total = float(solution.variance.sum())
    return [
        {
            "variance": float(solution.variance[i]) / total,
            "invariance": min(1.0, max(0.0, float(invariance[i]))),
            "label": None if share is None else float(share[i]),
            "joint_embedding": float(je[i]),
            "reconstruction": float(rc[i]),
        }
        for i in range(len(U))
    ]


def _between(found: ev.Evidence, U: Tensor) -> Tensor:
    """Returns the share of each direction's variance that lies between classes."""
    assert found.labels is not None
    known = (found.labels >= 0).to(found.x.device)
    z, y = found.x[known].double() @ U.T, found.labels.to(known.device)[known]
    z = z - z.mean(0)
    between = sum((y == c).double().mean() * z[y == c].mean(0).square() for c in y.unique())
    share: Tensor = between / z.square().mean(0).clamp(min=1e-300)
    return share


def _augmentations(
    found: ev.Evidence,
    solution: ev.Solution,
    part: Items,
    augmentation: Any,
    parts: Sequence[tuple[str, Any]],
    k: int,
    known: bool,
    device: str,
    seed: int,
    advance: ev.Advance,
) -> list[dict[str, Any]]:
    """Returns what the whole does, and what is missing without each operation (all of them on a part of the items)."""
    if not parts:
        return [_treatment("all", found, solution, solution, k, known)]
    rows, whole = [], None
    for name, one in (("all", augmentation), *parts):
        solution = ev.solve(ev.rebased(found, part, one, PART_DRAWS, seed, device), None)
        whole = solution if whole is None else whole
        advance(len(part))
        if whole is solution or not torch.equal(whole.S, solution.S):  # greyscale of grey images does nothing
            rows.append(_treatment(name, found, solution, whole, k, known))
    return rows


def _treatment(name: str, found: ev.Evidence, solution: ev.Solution, whole: ev.Solution, k: int, known: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"operation": name, "strength": 1 - float(solution.G.trace() / solution.S.trace())}
    row["unchanged"] = whole.overlap(solution.W, whole.W, k)
    if known:
        row["alignment"] = ev.information(found, solution.W[:k])
        row |= _compared(_right(found, solution.W, k), _right(found, solution.E, k))
    return row


def _right(found: ev.Evidence, rows: Tensor, k: int) -> Tensor:
    """Returns which labelled items a solution that saw no labels gets right: the probe alone is held out."""
    assert found.labels is not None
    here = (found.labels >= 0).nonzero().flatten()
    fold = found.group[here] % ev.FOLDS
    right = [ev.predicted(found.x, found.labels, rows, [k], here[fold != f], here[fold == f])[0] for f in range(ev.FOLDS)]
    return torch.cat(right)


def _compared(je: Tensor, rc: Tensor, **others: Tensor) -> dict[str, Any]:
    """Returns accuracies from what each probe gets right of the same items, the margin and its 95 % interval."""
    row: dict[str, Any] = {"joint_embedding": je, "reconstruction": rc, **others}
    row = {name: float(right.double().mean()) for name, right in row.items()}
    return row | {"margin": row["joint_embedding"] - row["reconstruction"], "interval": _interval(je, rc)}


def _sizes(found: ev.Evidence, k: int, known: bool) -> list[dict[str, Any]]:
    whole = found.solution()
    held_out = list(range(SIZES[-1], ev.GROUPS))
    rows = []
    for size in SIZES:
        weights = [float(g < size) for g in range(ev.GROUPS)]
        n = int((found.group < size).sum())
        if n <= 2 * k:
            continue
        solution = found.solution(weights)
        settled = {name: whole.overlap(a, b, k) for name, a, b in (("je", solution.W, whole.W), ("rc", solution.E, whole.E))}
        row: dict[str, Any] = {"items": n, "overlap": _overlap(solution, k)}
        row |= {"joint_embedding_settled": settled["je"], "reconstruction_settled": settled["rc"]}
        if known:
            row |= _learnt(found, solution, k, size, held_out)
        rows.append(row)
    return rows


def _learnt(found: ev.Evidence, solution: ev.Solution, k: int, size: int, held_out: list[int]) -> dict[str, Any]:
    """Returns accuracies on the held-out groups after seeing ``size`` groups, labels included; none with too few labels."""
    assert found.labels is not None
    known = found.labels >= 0
    train = (known & (found.group < size)).nonzero().flatten()
    test = (known & torch.isin(found.group, torch.tensor(held_out))).nonzero().flatten()
    if len(train) <= 2 * k or len(test) == 0:
        return {}
    je, rc, pca = (
        ev.predicted(found.x, found.labels, rows, [k], train, test)[0] for rows in (solution.W, solution.E, solution.U)
    )
    return _compared(je, rc, pca=pca)
