r"""Expectation maximization for Gaussian mixtures over items with gaps: the likelihood of what was observed, exactly.

With o the observed features of an item, m its gaps and r_k the responsibilities under N(x_o; mu_ko, S_koo), the E step has

    E[x_m | x_o, k] = mu_km + S_kmo S_koo^{-1} (x_o - mu_ko),   Cov[x_m | x_o, k] = S_kmm - S_kmo S_koo^{-1} S_kom

and the M step is the standard one, with the covariances added to the second moments. It is right where gaps do not depend on the
missing values themselves. Items with the same gaps are computed together. Reference: Ghahramani and Jordan, Supervised learning
from incomplete data via an EM approach, 1994.

Shapes: N items, D features, K components.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.densities.gaussian import LOG_2PI
from vergence.utils import linalg
from vergence.utils.limits import check_time

__all__ = ["fit_with_gaps"]

BLOCK = 1 << 22  # numbers in a block of items with gaps of their own


@dataclass(frozen=True)
class _Pattern:
    """Items with the same gaps."""

    x: Tensor  # (n, o), their observed features
    w: Tensor  # (n,)
    seen: Tensor  # (o,), indices of the observed features
    gaps: Tensor  # (m,), of the others


def fit_with_gaps(
    X: Tensor,
    w: Tensor | None,
    weights: Tensor,
    means: Tensor,
    covariances: Tensor,
    *,
    reg: float,
    tol: float = 1e-6,
    max_iter: int = 200,
    prior: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, list[float]]:
    """Returns weights, means and covariances of a mixture, and the mean log-likelihood in nats before each iteration.

    Items X are (N, D), with NaN in gaps, and their weights w (N,). The mixture to begin with has weights (K,), means (K, D) and
    covariances (K, D, D), to whose diagonals ``reg`` >= 0 is added. EM ends at a gain of ``tol`` nats. ``prior`` is the sum of
    squares (D, D) of one item that each component has seen before the data.
    """
    w = X.new_ones(len(X)) if w is None else w
    kinds, which, count = X.isnan().unique(dim=0, return_inverse=True, return_counts=True)
    alone = (count[which] == 1) & ~kinds[which].all(1)
    blocks = alone.nonzero()[:, 0].split(max(1, BLOCK // covariances.numel()))
    single = [(X[rows], w[rows]) for rows in blocks if len(rows)]
    patterns, bounds = [], [-math.inf]
    for i, gaps in enumerate(kinds):
        if count[i] > 1 and not gaps.all():  # items without any value say nothing
            rows = which == i
            patterns.append(_Pattern(X[rows][:, ~gaps], w[rows], (~gaps).nonzero()[:, 0], gaps.nonzero()[:, 0]))
    total_weight = sum(float(p.w.sum()) for p in patterns) + float(w[alone].sum())
    for _ in range(max_iter):
        check_time()
        parts = [_moments(patterns, weights, means, covariances), *(_of_rows(*b, weights, means, covariances) for b in single)]
        total, first, second, log_likelihood = (sum(part) for part in zip(*parts, strict=True))
        bounds.append(log_likelihood / total_weight)
        step = first / total[:, None]
        scatter = second - total[:, None, None] * step[..., None] * step[:, None]
        count = total
        if prior is not None:
            scatter, count = scatter + prior, total + 1
        covariances = scatter / count[:, None, None] + reg * torch.eye(X.shape[1]).to(X)
        weights, means = total / total.sum(), means + step
        if abs(bounds[-1] - bounds[-2]) < tol:
            break
    return weights, means, covariances, bounds[1:]


def _moments(patterns: list[_Pattern], weights: Tensor, means: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Returns sum r (K,), sum r (x - mu) (K, D), sum r E[(x - mu)(x - mu)^T] (K, D, D), and the log-likelihood."""
    total, first, second = torch.zeros_like(weights) + 1e-300, torch.zeros_like(means), torch.zeros_like(S)
    log_likelihood = 0.0
    for p in patterns:
        Soo = S[:, p.seen[:, None], p.seen]
        L = torch.stack([linalg.cholesky(block)[0] for block in Soo])
        delta = p.x[:, None] - means[:, p.seen]  # (n, K, o)
        white = torch.linalg.solve_triangular(L, delta.movedim(0, -1), upper=False)  # (K, o, n)
        log_p = -0.5 * (white.square().sum(1) + len(p.seen) * LOG_2PI) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
        joint = log_p + weights.log()[:, None]
        log_likelihood += float((p.w * joint.logsumexp(0)).sum())
        r = joint.softmax(0) * p.w  # (K, n)
        whole = delta.new_zeros(len(p.x), *means.shape)
        whole[:, :, p.seen] = delta
        if len(p.gaps):
            A = torch.cholesky_solve(S[:, p.seen[:, None], p.gaps], L).mT  # (K, m, o)
            whole[:, :, p.gaps] = (A @ delta.movedim(0, -1)).movedim(-1, 0)
            C = S[:, p.gaps[:, None], p.gaps] - A @ S[:, p.seen[:, None], p.gaps]
            second[:, p.gaps[:, None], p.gaps] += r.sum(1)[:, None, None] * C
        total, first = total + r.sum(1), first + torch.einsum("kn,nkd->kd", r, whole)
        second += torch.einsum("kn,nkd,nke->kde", r, whole, whole)
    return total, first, second, log_likelihood


def _of_rows(x: Tensor, w: Tensor, weights: Tensor, means: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Returns `_moments` of items (n, D) that each have gaps of their own: gaps are independent features at 0 of variance 1."""
    seen = (~x.isnan()).to(x)
    gaps, delta = 1 - seen, (x.nan_to_num(0.0)[:, None] - means) * seen[:, None]  # (n, K, D)

    def between(a: Tensor, b: Tensor) -> Tensor:
        return S * (a[:, None, :, None] * b[:, None, None, :])

    L = linalg.cholesky(between(seen, seen) + torch.diag_embed(gaps)[:, None])[0]
    white = torch.linalg.solve_triangular(L, delta[..., None], upper=False)[..., 0]
    log_p = -0.5 * (white.square().sum(-1) + seen.sum(1)[:, None] * LOG_2PI) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    joint = log_p + weights.log()
    r = joint.softmax(1) * w[:, None]
    A = torch.cholesky_solve(between(seen, gaps), L).mT
    whole = delta + (A @ delta[..., None])[..., 0]
    second = torch.einsum("nk,nkde->kde", r, between(gaps, gaps) - A @ between(seen, gaps))
    second += torch.einsum("nk,nkd,nke->kde", r, whole, whole)
    return r.sum(0), torch.einsum("nk,nkd->kd", r, whole), second, float((w * joint.logsumexp(1)).sum())
