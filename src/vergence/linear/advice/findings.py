"""The findings that advice is made of: plain rows of numbers, each with its interval.

Three errors enter an interval: which labeled items the probe was tried on (bootstrap of paired differences), which items the
solutions saw (jackknife over groups, for overlaps), and which views were drawn of them (halves of the draws).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vergence.linear.advice.evidence as ev
from vergence.data.items import Items
from vergence.linear.advice.words import LEAST

__all__ = ["SIZES", "components", "directions_table", "jackknifed_overlap", "operations", "sizes_curve"]

PART_VIEWS = 40_000  # for each operation left out
STUDENT = 2.093  # 97.5 % of Student's t with 19 degrees of freedom: 20 groups
SIZES = (1, 2, 4, 8, 16)  # groups of the sample-size curve; the last four test it


def directions_table(found: ev.Evidence, solution: ev.Solution, k: int, known: bool) -> list[dict[str, Any]]:
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


def components(found: ev.Evidence, solution: ev.Solution, ks: Sequence[int], known: bool, level: float) -> list[dict[str, Any]]:
    """Returns, for each number of components, the overlap and, with labels, accuracies, margin and interval."""
    right = [ev.cross_validated(part, ks) for part in (found, *found.split())] if known else []
    rows = []
    for i, k in enumerate(ks):
        row: dict[str, Any] = {"k": k, "overlap": _overlap(solution, k)}
        if right:
            three = [{name: ok[i] for name, ok in one.items()} for one in right]
            halves = [(one["joint_embedding"], one["reconstruction"]) for one in three[1:]]
            row |= _compared(three[0]["joint_embedding"], three[0]["reconstruction"], halves, level, pca=three[0]["pca"])
            best = max(("joint_embedding", "reconstruction"), key=row.__getitem__)
            row["pca_ahead"] = _interval(three[0]["pca"], three[0][best])[0] > 0
        rows.append(row)
    return rows


def _compared(je: Tensor, rc: Tensor, halves: Sequence[tuple[Tensor, Tensor]], level: float, **others: Tensor) -> dict[str, Any]:
    """Returns accuracies from what each probe gets right of the same items, the margin, its 95 % interval, and if it is clear.

    Clear is what an interval of the sharper ``level`` excludes from zero: many settings are looked at.
    """
    row: dict[str, Any] = {"joint_embedding": je, "reconstruction": rc, **others}
    row = {name: float(right.double().mean()) for name, right in row.items()}
    margin = row["joint_embedding"] - row["reconstruction"]
    of_halves = [float(a.double().mean() - b.double().mean()) for a, b in halves]
    low, high = _widened(_interval(je, rc, level), margin, of_halves)
    interval = _widened(_interval(je, rc), margin, of_halves)
    return row | {"margin": margin, "interval": interval, "clear": abs(margin) >= LEAST and not low <= 0 <= high}


def _widened(interval: tuple[float, float], value: float, halves: Sequence[float]) -> tuple[float, float]:
    """Returns the interval widened by the error that sampling the augmentation leaves.

    That error falls with the number of draws at least as 1 / m: what the value gained over its mean from half as many draws
    is about what it would gain with infinitely many.
    """
    drift = value - sum(halves) / len(halves) if halves else 0.0
    return interval[0] + min(drift, 0.0), interval[1] + max(drift, 0.0)


def _interval(a: Tensor, b: Tensor, level: float = 0.05) -> tuple[float, float]:
    """Returns the bootstrap interval of the difference of two accuracies on the same items; the solutions stay as they are.

    Each item's difference is -1, 0 or 1, so that resampling items is a multinomial draw of their numbers.
    """
    n = len(a)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    draws = np.random.default_rng(0).multinomial(n, [only_a / n, only_b / n, 1 - (only_a + only_b) / n], size=40_000)
    low, high = np.quantile((draws[:, 0] - draws[:, 1]) / n, [level / 2, 1 - level / 2])
    return float(low), float(high)


def jackknifed_overlap(found: ev.Evidence, solution: ev.Solution, k: int) -> tuple[float, float]:
    """Returns the 95 % interval of the overlap: solutions without each group in turn, widened by the error of sampling.

    A bootstrap would not do: repeated items settle the solutions less, which shifts the overlap.
    """
    without = [_overlap(found.solution([float(g != left) for g in range(ev.GROUPS)]), k) for left in range(ev.GROUPS)]
    overlap, se = ev.jackknifed(torch.tensor([_overlap(solution, k), *without], dtype=torch.float64))
    halves = [_overlap(part.solution(), k) for part in found.split()]
    low, high = _widened((overlap - STUDENT * se, overlap + STUDENT * se), overlap, halves)
    return max(0.0, low), min(1.0, high)


def _overlap(solution: ev.Solution, k: int) -> float:
    return solution.overlap(solution.W, solution.E, k)


def operations(
    found: ev.Evidence,
    solution: ev.Solution,
    part: Items,
    augmentation: Any,
    parts: Sequence[tuple[str, Any]],
    k: int,
    known: bool,
    seed: int,
    level: float,
    advance: ev.Advance,
) -> list[dict[str, Any]]:
    """Returns what the whole does, and what is missing without each operation (all of them on a part of the items)."""
    labels = ev.LabelMoments.of(found) if known else None
    everything = None if labels is None else _readable(labels, k)
    if not parts:
        halves = [one.solution() for one in found.split()]
        return [_treatment("all", found, [solution, *halves], solution, k, labels, everything, level)[0]]
    rows: list[dict[str, Any]] = []
    m, whole, first = max(4, math.ceil(PART_VIEWS / len(part))), None, None
    for name, one in (("all", augmentation), *parts):
        statistics = ev.rebased(found, part, one, m, seed, str(found.x.device))
        advance(len(part))
        if statistics[0].unchanged():  # without it joint embedding is a tie
            continue
        solutions = [ev.solve(each) for each in statistics]
        whole = whole or solutions[0]
        if rows and torch.equal(whole.S, solutions[0].S):  # grayscale of gray images does nothing
            continue
        row, shares = _treatment(name, found, solutions, whole, k, labels, everything, level)
        first = shares if first is None else first
        if shares is not None and first is not None:
            row["alignment_change"], row["alignment_change_se"] = ev.jackknifed(shares - first)
        rows.append(row)
    return rows


def _treatment(
    name: str,
    found: ev.Evidence,
    solutions: Sequence[ev.Solution],
    whole: ev.Solution,
    k: int,
    labels: ev.LabelMoments | None,
    everything: Tensor | None,
    level: float,
) -> tuple[dict[str, Any], Tensor | None]:
    """Returns an augmentation's row, and its alignment with each group of items left out; None where nothing is readable."""
    solution = solutions[0]
    row: dict[str, Any] = {"operation": name, "strength": 1 - float(solution.G.trace() / solution.S.trace())}
    row["unchanged"] = whole.overlap(solution.W, whole.W, k)
    if labels is None:
        return row, None
    right = [(_right(found, one.W, k), _right(found, one.E, k)) for one in solutions]
    row |= _compared(*right[0], right[1:], level)
    if everything is None:
        return row | {"alignment": None}, None
    shares = labels.readable(solution.W[:k]) / everything
    return row | {"alignment": min(1.0, max(0.0, float(shares[0])))}, shares


def _readable(labels: ev.LabelMoments, k: int) -> Tensor | None:
    """Returns what all directions tell of the classes, as many as the labels suffice for, (1 + G,); None if that is nothing."""
    r = labels.sums.shape[2]
    everything = labels.readable(torch.eye(r)[: min(r, max(2 * k, int(labels.n.sum()) // 10))])
    total, se = ev.jackknifed(everything)
    return everything if total > 2 * se else None


def _right(found: ev.Evidence, rows: Tensor, k: int) -> Tensor:
    """Returns which labeled items a solution that saw no labels gets right: the probe alone is held out."""
    assert found.labels is not None
    here = (found.labels >= 0).nonzero().flatten()
    fold = found.group[here] % ev.FOLDS
    right = [ev.predicted(found.x, found.labels, rows, [k], here[fold != f], here[fold == f])[0] for f in range(ev.FOLDS)]
    return torch.cat(right)


def sizes_curve(found: ev.Evidence, whole: ev.Solution, k: int, known: bool, level: float) -> list[dict[str, Any]]:
    """Returns, for growing numbers of items, how settled the codes are and, with labels, accuracies on the last four groups."""
    held_out = list(range(SIZES[-1], ev.GROUPS))
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        weights = [float(g < size) for g in range(ev.GROUPS)]
        n = int((found.group < size).sum())
        m = found.moments[0].draws
        if n <= 2 * k or (m and n * (m - 1) < 2 * found.x.shape[1]):
            continue
        solution = found.solution(weights)
        settled = {name: whole.overlap(a, b, k) for name, a, b in (("je", solution.W, whole.W), ("rc", solution.E, whole.E))}
        row: dict[str, Any] = {"items": n, "overlap": _overlap(solution, k)}
        row |= {"joint_embedding_settled": settled["je"], "reconstruction_settled": settled["rc"]}
        if known:
            row |= _learned(found, solution, weights, k, size, held_out, level)
        rows.append(row)
    return rows


def _learned(
    found: ev.Evidence, solution: ev.Solution, weights: list[float], k: int, size: int, held_out: list[int], level: float
) -> dict[str, Any]:
    """Returns accuracies on the held-out groups after seeing ``size`` groups, labels included; none with too few labels."""
    assert found.labels is not None
    known = found.labels >= 0
    train = (known & (found.group < size)).nonzero().flatten()
    test = (known & torch.isin(found.group, torch.tensor(held_out))).nonzero().flatten()
    if len(train) <= 2 * k or len(test) == 0:
        return {}

    labels = found.labels

    def right(rows: Tensor) -> Tensor:
        return ev.predicted(found.x, labels, rows, [k], train, test)[0]

    three = [solution, *(half.solution(weights) for half in found.split())]
    pairs = [(right(one.W), right(one.E)) for one in three]
    return _compared(*pairs[0], pairs[1:], level, pca=right(three[0].U))
