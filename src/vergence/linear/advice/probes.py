r"""Accuracies of least-squares probes on held-out items, from the closed-form solutions; sums over classes, group by group.

Shapes: N items, r directions, L classes, G groups, k components.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.linear.advice.groups import EVERY, GROUPS, GroupedItems, Solution, folds
from vergence.utils.linalg import covariance_cholesky

__all__ = ["ClassSums", "cross_validated", "held_out", "predicted"]

RIDGE = 1e-6  # of the mean second moment of a probe's inputs


@dataclass(frozen=True)
class ClassSums:
    """Sums over the labeled items of each group.

    Attributes:
        origin: What is subtracted from items first, (r,).
        n: Items of each class, (G, L).
        sums: Of their coordinates, (G, L, r).
        second: Of the outer products of all, (G, r, r).
    """

    origin: Tensor
    n: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, group: Tensor, groups: int = GROUPS) -> "ClassSums":
        """Returns the sums for items (N, r) with labels 0 .. L-1 (or -1) and groups, on the device of the items."""
        L, r = int(labels.max()) + 1, x.shape[1]
        shapes = ((groups, L), (groups, L, r), (groups, r, r))
        n, sums, second = (torch.zeros(shape, dtype=torch.float64, device=x.device) for shape in shapes)
        origin, labels, group = x.double().mean(0), labels.to(x.device), group.to(x.device)
        for g in range(groups):
            here = (group == g) & (labels >= 0)
            mine, y = x[here].double() - origin, labels[here]
            n[g] = torch.bincount(y, minlength=L)
            sums[g].index_add_(0, y, mine)
            second[g] = mine.T @ mine
        return cls(origin, n, sums, second)

    def total(self, weights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns n (L,), sums (L, r) and second (r, r) of a weighted sum of the groups."""
        w = self.n.new_tensor(weights)
        return w @ self.n, torch.einsum("g,glr->lr", w, self.sums), torch.einsum("g,grs->rs", w, self.second)

    def correct(self, weights: Sequence[float], rows: Tensor, ks: Sequence[int], x: Tensor, labels: Tensor) -> Tensor:
        """Returns whether a least-squares probe predicts the class of each item, (number of ks, M) bool.

        The probe is the paper's: least squares from the first k of the ``rows`` of a solution to one-hot classes, here with an
        intercept and a ridge of 1e-6 of the mean second moment of its inputs.

        Args:
            weights: Groups that it is fitted to, (G,).
            rows: Of a solution, (r, r).
            ks: Numbers of components.
            x: Items (M, r).
            labels: (M,), 0 .. L-1.
        """
        n, sums, second = self.total(weights)
        N, R = n.sum(), rows[: max(ks)]
        mean, share = sums.sum(0) / N, n / N
        A = R @ (second - N * torch.outer(mean, mean)) @ R.T
        B = R @ (sums - torch.outer(n, mean)).T
        z = (x.double() - (self.origin + mean)) @ R.T
        correct = []
        for k in ks:
            ridge = RIDGE * A[:k, :k].diagonal().mean() * torch.eye(k, dtype=A.dtype, device=A.device)
            V = torch.linalg.solve(A[:k, :k] + ridge, B[:k])
            correct.append((z[:, :k] @ V + share).argmax(1).to(labels.device) == labels)
        return torch.stack(correct)

    def readable(self, rows: Tensor, weights: Sequence[float] = EVERY) -> float:
        r"""Returns tr (R C R^T)^{-1} R B R^T less its part by chance: label information that k rows R (k, r) keep.

        C is the covariance of the items and B that between classes. It is the sum of squared canonical correlations with the
        classes, T, adjusted as an R^2 is: with q = k / (N - 1), (T - (L - 1) q) / (1 - q).
        """
        n, sums, second = self.total(weights)
        N = n.sum()
        mean = sums.sum(0) / N
        some = n > 0
        between = torch.where(some[:, None], sums / n.clamp(min=1)[:, None] - mean, 0.0) * (n / N).sqrt()[:, None]
        L, _ = covariance_cholesky(rows @ (second / N - torch.outer(mean, mean)) @ rows.T)
        T = float(torch.linalg.solve_triangular(L, rows @ between.T, upper=False).square().sum())
        q = len(rows) / (float(N) - 1)
        return (T - (int(some.sum()) - 1) * q) / max(1 - q, 1e-3)


def predicted(x: Tensor, labels: Tensor, rows: Tensor, ks: Sequence[int], train: Tensor, test: Tensor) -> Tensor:
    """Returns whether a probe that is fitted to some items predicts the class of others, (number of ks, M) bool.

    Args:
        x: Items (N, r).
        labels: (N,), 0 .. L-1 or -1.
        rows: Of a solution, (r, r).
        ks: Numbers of components.
        train: Items (n,) that have labels.
        test: Items (M,) that have labels.
    """
    sums = ClassSums.of(x[train], labels[train], torch.zeros_like(labels[train]), 1)
    return sums.correct([1.0], rows, ks, x[test], labels[test])


Rows = dict[str, Tensor]


def held_out(
    grouped: GroupedItems,
    classes: ClassSums,
    ks: Sequence[int],
    rows: Callable[[list[float]], Rows],
    weights: Sequence[float] = EVERY,
) -> dict[str, Tensor]:
    """Returns each solution's accuracies, (number of ks,), by probes that are tested on the folds that they did not see.

    Args:
        grouped: Items with labels.
        classes: Their sums.
        ks: Numbers of components.
        rows: Takes weights of the groups outside a fold (G,), returns solutions (r, r) by name.
        weights: Groups that are used, (G,), 0 or 1; all by default.
    """
    assert grouped.labels is not None
    correct: dict[str, Tensor] = {}
    n = 0
    for fold in folds(weights):
        test = ((grouped.labels >= 0) & torch.isin(grouped.group, torch.tensor(fold))).nonzero().flatten()
        train = [0.0 if g in fold else w for g, w in enumerate(weights)]
        x, y = grouped.x[test.to(grouped.x.device)], grouped.labels[test]
        n += len(test)
        for name, R in rows(train).items():
            right = classes.correct(train, R, ks, x, y).sum(1)
            correct[name] = correct[name] + right if name in correct else right
    return {name: right.double() / n for name, right in correct.items()}


def cross_validated(
    grouped: GroupedItems, classes: ClassSums, ks: Sequence[int], weights: Sequence[float] = EVERY
) -> dict[str, Tensor]:
    """Returns accuracies of joint embedding, reconstruction and PCA, each solved and probed without the fold it is tested on."""

    def rows(train: list[float]) -> Rows:
        solution: Solution = grouped.solution(train)
        return {"joint_embedding": solution.W, "reconstruction": solution.E, "pca": solution.U}

    return held_out(grouped, classes, ks, rows, weights)
