"""The measurements that advice consists of: rows of numbers, each with its interval."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence.data.items import Items
from vergence.linear.advice.groups import (
    EVERY,
    GROUPS,
    Advance,
    GroupedItems,
    Solution,
    half_samples,
    overlap,
    under,
    without,
)
from vergence.linear.advice.intervals import Interval, bootstrap, half_sampled, jackknife, standard_error, widened
from vergence.linear.advice.probes import ClassSums, cross_validated, held_out
from vergence.linear.advice.records import ComponentRow, DirectionRow, OperationRow, SizeRow

__all__ = ["LEAST", "SIZES", "Study", "component_rows", "direction_rows", "operation_rows", "overlap_interval"]
__all__ += ["size_rows"]

LEAST = 0.005  # differences of accuracy below half a point are of no consequence
SIZES = (1, 2, 4, 8, 16)  # groups of the curve over numbers of items; the last four groups test it


@dataclass(frozen=True)
class Study:
    """What all measurements share.

    Attributes:
        grouped: The items.
        solution: Both problems, solved on all items.
        k: Components that the verdict is about.
        classes: Sums over the labeled items; None where labels are not used.
        level: Of the intervals that decide whether a row is clear: 0.05 divided by the number of rows.
    """

    grouped: GroupedItems
    solution: Solution
    k: int
    classes: ClassSums | None
    level: float

    def probed(self, je: Tensor, rc: Tensor, halves: Sequence[float]) -> dict[str, Any]:
        """Returns the fields of `Probed` for accuracies (1 + H,), of all items and of half-samples.

        Args:
            je: Of joint embedding.
            rc: Of reconstruction.
            halves: Margins with either half of the draws.
        """
        margins = je - rc
        interval, sharper = (widened(half_sampled(margins, level), float(margins[0]), halves) for level in (0.05, self.level))
        return _probed(float(je[0]), float(rc[0]), interval, sharper)


def _probed(je: float, rc: float, interval: Interval, sharper: Interval) -> dict[str, Any]:
    clear = abs(je - rc) >= LEAST and not sharper[0] <= 0 <= sharper[1]
    return {"joint_embedding": je, "reconstruction": rc, "margin": je - rc, "interval": interval, "clear": clear}


# Directions


def direction_rows(study: Study) -> tuple[DirectionRow, ...]:
    """Returns how much variance, invariance and label information each principal direction has, and which method keeps it."""
    solution, U = study.solution, study.solution.U
    je, rc = (solution.code(rows, study.k).square().sum(1).tolist() for rows in (solution.W, solution.E))
    invariance = (((U @ solution.G) * U).sum(1) / ((U @ solution.S) * U).sum(1)).clamp(0, 1).tolist()
    labels = [None] * len(U) if study.classes is None else _between(study.grouped, U).tolist()
    variance = (solution.variance / float(solution.variance.sum())).tolist()
    return tuple(
        DirectionRow(variance=v, invariance=i, label=label, joint_embedding=a, reconstruction=b)
        for v, i, label, a, b in zip(variance, invariance, labels, je, rc, strict=True)
    )


def _between(grouped: GroupedItems, U: Tensor) -> Tensor:
    """Returns the share of each direction's variance that lies between classes."""
    assert grouped.labels is not None
    known = (grouped.labels >= 0).to(grouped.x.device)
    z, y = grouped.x[known].double() @ U.T, grouped.labels.to(known.device)[known]
    z = z - z.mean(0)
    between = sum((y == c).double().mean() * z[y == c].mean(0).square() for c in y.unique())
    share: Tensor = between / z.square().mean(0).clamp(min=1e-300)
    return share


# Numbers of components


def component_rows(study: Study, ks: Sequence[int]) -> tuple[ComponentRow, ...]:
    """Returns, for each number of components, the overlap and, with labels, accuracies, margin and interval."""
    overlaps = [overlap(study.solution, k) for k in ks]
    if study.classes is None:
        return tuple(ComponentRow(k=k, overlap=o) for k, o in zip(ks, overlaps, strict=True))
    grouped, classes = study.grouped, study.classes
    every = [cross_validated(grouped, classes, ks, weights) for weights in (EVERY, *half_samples())]
    accuracy = {name: torch.stack([one[name] for one in every], 1) for name in every[0]}  # (number of ks, 1 + H)
    halves = [cross_validated(part, classes, ks) for part in grouped.split()]
    rows = []
    for i, k in enumerate(ks):
        je, rc, pca = (accuracy[name][i] for name in ("joint_embedding", "reconstruction", "pca"))
        drift = [float(half["joint_embedding"][i] - half["reconstruction"][i]) for half in halves]
        ahead = half_sampled(pca - (je if je[0] >= rc[0] else rc))[0] > 0
        measured = study.probed(je, rc, drift)
        rows.append(ComponentRow(k=k, overlap=overlaps[i], pca=float(pca[0]), pca_ahead=ahead, **measured))
    return tuple(rows)


def overlap_interval(study: Study) -> Interval:
    """Returns the 95 % interval of the overlap at k."""
    grouped, k = study.grouped, study.k
    every = [overlap(study.solution, k), *(overlap(grouped.solution(without(g)), k) for g in range(GROUPS))]
    values = torch.tensor(every, dtype=torch.float64)
    low, high = widened(jackknife(values), every[0], [overlap(part.solution(), k) for part in grouped.split()])
    return max(0.0, low), min(1.0, high)


# Operations of the augmentation


def operation_rows(
    study: Study,
    items: Items,
    index: Tensor,
    draws: int,
    operations: Sequence[tuple[str, Any]],
    seed: int,
    advance: Advance,
) -> tuple[OperationRow, ...]:
    """Returns the row of the whole augmentation and of the augmentation without each operation, on a part of the items.

    Args:
        study: What all measurements share.
        items: The source.
        index: (M,), the part.
        draws: Of each of its items.
        operations: (``all``, the augmentation), then (name, the augmentation without it).
        seed: Of the draws.
        advance: Called with the number of items of each operation.
    """
    readable = None if study.classes is None else _readable(study.classes, study.k)
    if len(operations) == 1:
        return (_operation("all", study, study.solution, readable)[0],)
    rows: list[OperationRow] = []
    first, whole = None, None
    for name, augmentation in operations:
        part = under(study.grouped, items, index, augmentation, draws, seed)
        advance(len(index))
        moments = part.moments()
        solution = Solution.of(moments)
        if moments.unchanged() or solution.tied:  # joint embedding is a tie without the operation
            continue
        whole = whole or solution
        if rows and torch.equal(whole.S, solution.S):  # the operation does nothing, as grayscale on gray images
            continue
        row, shares = _operation(name, dataclasses.replace(study, grouped=part, solution=solution), whole, readable)
        first = shares if first is None else first
        if shares is not None and first is not None:
            change = shares - first
            row = dataclasses.replace(row, alignment_change=float(change[0]), alignment_change_se=float(change[1:].std()))
        rows.append(row)
    return tuple(rows)


def _operation(name: str, study: Study, whole: Solution, readable: Tensor | None) -> tuple[OperationRow, Tensor | None]:
    """Returns an augmentation's row, and its alignment (1 + H,), of all items and of half-samples; None if nothing is readable.

    The solutions saw no labels, so that the probes alone are held out.
    """
    solution, k, classes = study.solution, study.k, study.classes
    strength = 1 - float(solution.G.trace() / solution.S.trace())
    row = OperationRow(operation=name, strength=strength, unchanged=whole.overlap(solution.W, whole.W, k))
    if classes is None:
        return row, None
    samples = [EVERY, *half_samples()]
    every = [solution, *(study.grouped.solution(weights) for weights in samples[1:])]
    accuracy = [_accuracy(study, one, weights) for one, weights in zip(every, samples, strict=True)]
    halves = [_accuracy(study, part.solution(), EVERY) for part in study.grouped.split()]
    je, rc = torch.tensor(accuracy, dtype=torch.float64).T
    row = dataclasses.replace(row, **study.probed(je, rc, [a - b for a, b in halves]))
    if readable is None:
        return row, None
    kept = [classes.readable(one.W[:k], weights) for one, weights in zip(every, samples, strict=True)]
    shares = torch.tensor(kept, dtype=torch.float64) / readable
    return dataclasses.replace(row, alignment=min(1.0, max(0.0, float(shares[0])))), shares


def _accuracy(study: Study, solution: Solution, weights: Sequence[float]) -> tuple[float, float]:
    assert study.classes is not None
    rows = {"joint_embedding": solution.W, "reconstruction": solution.E}
    accuracy = held_out(study.grouped, study.classes, [study.k], lambda train: rows, weights)
    return float(accuracy["joint_embedding"]), float(accuracy["reconstruction"])


def _readable(classes: ClassSums, k: int) -> Tensor | None:
    """Returns the label information in all directions, as many as the labels suffice for, (1 + H,); None if it is not clear."""
    r = classes.second.shape[1]
    rows = torch.eye(r, dtype=torch.float64, device=classes.second.device)[: min(r, max(2 * k, int(classes.n.sum()) // 10))]

    def values(samples: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor([classes.readable(rows, weights) for weights in (EVERY, *samples)], dtype=torch.float64)

    jackknifed = values([without(g) for g in range(GROUPS)])
    return values(half_samples()) if float(jackknifed[0]) > 2 * standard_error(jackknifed) else None


# Numbers of items


def size_rows(study: Study) -> tuple[SizeRow, ...]:
    """Returns, for growing numbers of items, how settled the codes are and, with labels, accuracies on the last four groups.

    The intervals of these margins hold the solutions fixed: they are about the first items, not about any that many.
    """
    grouped, whole, k = study.grouped, study.solution, study.k
    rows = []
    for size in SIZES:
        weights = [float(g < size) for g in range(GROUPS)]
        n, m = int((grouped.group < size).sum()), grouped.sums[0].draws
        if n <= 2 * k or (m and n * (m - 1) < 2 * grouped.x.shape[1]):
            continue
        solution = grouped.solution(weights)
        je, rc = (whole.overlap(a, b, k) for a, b in ((solution.W, whole.W), (solution.E, whole.E)))
        row = SizeRow(items=n, overlap=overlap(solution, k), joint_embedding_settled=je, reconstruction_settled=rc)
        rows.append(dataclasses.replace(row, **_learned(study, solution, weights)))
    return tuple(rows)


def _learned(study: Study, solution: Solution, weights: list[float]) -> dict[str, Any]:
    """Returns accuracies on the last groups after learning from the first, labels included; nothing with too few labels."""
    grouped, classes, k = study.grouped, study.classes, study.k
    if classes is None or grouped.labels is None:
        return {}
    test = ((grouped.labels >= 0) & (grouped.group >= SIZES[-1])).nonzero().flatten()
    if float(classes.total(weights)[0].sum()) <= 2 * k or len(test) == 0:
        return {}
    x, y = grouped.x[test.to(grouped.x.device)], grouped.labels[test]

    def right(rows: Tensor) -> Tensor:
        return classes.correct(weights, rows, [k], x, y)[0]

    pairs = [(right(one.W), right(one.E)) for one in (solution, *(part.solution(weights) for part in grouped.split()))]
    je, *je_halves = (float(a.double().mean()) for a, _ in pairs)
    rc, *rc_halves = (float(b.double().mean()) for _, b in pairs)
    drift = [a - b for a, b in zip(je_halves, rc_halves, strict=True)]
    interval, sharper = (widened(bootstrap(*pairs[0], level), je - rc, drift) for level in (0.05, study.level))
    return {**_probed(je, rc, interval, sharper), "pca": float(right(solution.U).double().mean())}
