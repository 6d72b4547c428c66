r"""Expectation maximization for Gaussian mixtures over items with gaps: the likelihood of what was observed, exactly.

With o the observed features of an item, m its gaps and r_k the responsibilities under N(x_o; mu_ko, S_koo), the E step has

    E[x_m | x_o, k] = mu_km + S_kmo S_koo^{-1} (x_o - mu_ko),   Cov[x_m | x_o, k] = S_kmm - S_kmo S_koo^{-1} S_kom

and the M step is the usual one, with the covariances added to the second moments. It is right where gaps do not depend on the
missing values themselves. Items with the same gaps are computed together. Reference: Ghahramani and Jordan, Supervised learning
from incomplete data via an EM approach, 1994.

Shapes: N items, D features, K components.
"""

import math

import torch
from torch import Tensor

from vergence.densities.gaussian import LOG_2PI
from vergence.utils import linalg
from vergence.utils.limits import check_time

__all__ = ["fit_with_gaps"]

Pattern = tuple[Tensor, Tensor, Tensor, Tensor]  # items with the same gaps: (n, o) observed, weights (n,), indices (o,) and (m,)


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
    kinds, which = X.isnan().unique(dim=0, return_inverse=True)
    patterns: list[Pattern] = []
    bounds = [-math.inf]
    for i, gaps in enumerate(kinds):
        if not gaps.all():  # else nothing is known of these items
            rows, seen = which == i, (~gaps).nonzero()[:, 0]
            patterns.append((X[rows][:, seen], w[rows], seen, gaps.nonzero()[:, 0]))
    total_weight = sum(float(v.sum()) for _, v, _, _ in patterns)
    for _ in range(max_iter):
        check_time()
        total, first, second, log_likelihood = _moments(patterns, weights, means, covariances)
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


def _moments(patterns: list[Pattern], weights: Tensor, means: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    """Returns sum r (K,), sum r (x - mu) (K, D), sum r E[(x - mu)(x - mu)^T] (K, D, D), and the log-likelihood."""
    total, first, second = torch.zeros_like(weights) + 1e-300, torch.zeros_like(means), torch.zeros_like(S)
    log_likelihood = 0.0
    for x, w, seen, gaps in patterns:
        Soo = S[:, seen[:, None], seen]
        L = torch.stack([linalg.cholesky(block)[0] for block in Soo])
        delta = x[:, None] - means[:, seen]  # (n, K, o)
        white = torch.linalg.solve_triangular(L, delta.movedim(0, -1), upper=False)  # (K, o, n)
        log_p = -0.5 * (white.square().sum(1) + len(seen) * LOG_2PI) - L.diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
        joint = log_p + weights.log()[:, None]
        log_likelihood += float((w * joint.logsumexp(0)).sum())
        r = joint.softmax(0) * w  # (K, n)
        whole = delta.new_zeros(len(x), *means.shape)
        whole[:, :, seen] = delta
        if len(gaps):
            A = torch.cholesky_solve(S[:, seen[:, None], gaps], L).mT  # (K, m, o)
            whole[:, :, gaps] = (A @ delta.movedim(0, -1)).movedim(-1, 0)
            C = S[:, gaps[:, None], gaps] - A @ S[:, seen[:, None], gaps]
            second[:, gaps[:, None], gaps] += r.sum(1)[:, None, None] * C
        total, first = total + r.sum(1), first + torch.einsum("kn,nkd->kd", r, whole)
        second += torch.einsum("kn,nkd,nke->kde", r, whole, whole)
    return total, first, second, log_likelihood
