r"""What a batch of embeddings occupies: covariance, log-determinant, KL from the standard normal, mutual information.

A likelihood alone is lowest where an encoder shrinks everything to a point: scaled by a, it falls by D log a. These terms pay
for volume. Over a batch with mean m and covariance S (divided by N), all with gradient in the embeddings:

    KL = 1/2 [tr S + |m|^2 - D - log |S|]                           of the batch's Gaussian from N(0, I), for one view
    -I = 1/2 [log |S| - log |S_aa| - log |S_bb|] = 1/2 sum_i log(1 - rho_i^2)     rho: canonical correlations of two views

The first pins the scale (its minimum is S = I, m = 0), the second does not feel it. With the likelihood of any other density in
the place of the batch's own, -I becomes

    nll - H(a) - H(b),   H = 1/2 log |2 pi e S| of a view

which again does not feel the scale if the density follows it. All are derived here, for arXiv 2603.26799.

Shapes: N pairs, D features. In nats.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.utils.linalg import upcast_half

__all__ = [
    "Moments",
    "coupled",
    "diagnostics",
    "entropy",
    "kl_standard_normal",
    "kl_views",
    "log_det",
    "moments",
    "mutual_information",
    "oas",
    "priced",
    "require_loss",
    "shrunk",
]

JITTER = {torch.float32: 1e-6, torch.float64: 1e-10}  # of the mean variance, added to every covariance


@dataclass(frozen=True)
class Moments:
    """Mean (D,) and covariance (D, D) of a batch."""

    mean: Tensor
    S: Tensor

    def block(self, where: slice) -> "Moments":
        """Returns those of some features."""
        return Moments(self.mean[where], self.S[where, where])


def moments(z: Tensor, shrinkage: float | None = 0.0) -> Moments:
    """Returns mean and covariance (divided by N) of embeddings, with gradient.

    Args:
        z: (N, D); half precision becomes float32.
        shrinkage: a in (1 - a) S + a tr(S) / D I, in [0, 1]; None takes `oas`, which grows as N falls toward D.

    Example:
        >>> moments(torch.tensor([[1.0], [3.0]])).S.round(decimals=3).tolist()
        [[1.0]]
    """
    z = upcast_half(z)
    mean = z.mean(0)
    x = z - mean
    S = x.mT @ x / len(z)
    return Moments(mean, shrunk(S, len(z), shrinkage))


def shrunk(S: Tensor, n: int | Tensor, shrinkage: float | None) -> Tensor:
    """Returns (1 - a) S + (a + jitter) tr(S) / D I for a covariance of n items; a = ``shrinkage``, or `oas` for None.

    Example:
        >>> shrunk(torch.tensor([[2.0, 1.0], [1.0, 4.0]]), 9, 0.5).round(decimals=3).tolist()
        [[2.5, 0.5], [0.5, 3.5]]
    """
    a = oas(S.detach(), n) if shrinkage is None else shrinkage
    scale = S.diagonal().mean()
    eye = torch.eye(S.shape[0], dtype=S.dtype, device=S.device)
    return (1 - a) * S + (a + JITTER[S.dtype]) * scale * eye


def oas(S: Tensor, n: int | Tensor) -> Tensor:
    """Returns the oracle-approximating shrinkage of a covariance of n Gaussian items (2010), in (0, 1].

    Example:
        >>> oas(torch.eye(4), 10).item(), round(oas(torch.diag(torch.tensor([9.0, 1.0, 1.0, 1.0])), 1000).item(), 3)
        (1.0, 0.004)
    """
    D = S.shape[0]
    squares, trace = S.square().sum(), S.trace().square()
    above = (1 - 2 / D) * squares + trace
    below = (n + 1 - 2 / D) * (squares - trace / D)
    return torch.where(below > 0, above / below, 1.0).clamp(max=1.0)


def log_det(S: Tensor) -> Tensor:
    """Returns log |S| of a positive definite (D, D), with gradient; NaN for a matrix that is not.

    The Cholesky factor is one of float64: in float32 covariances with the least jitter fail from a few features on. Nothing
    waits for the device.

    Example:
        >>> round(log_det(4 * torch.eye(2)).item(), 3)
        2.773
    """
    L, failed = torch.linalg.cholesky_ex(S.double())
    found: Tensor = 2 * L.diagonal().log().sum()
    return torch.where(failed == 0, found, math.nan).to(S.dtype)


def kl_standard_normal(m: Moments) -> Tensor:
    """Returns KL(N(mean, S) || N(0, I)) in nats, a scalar >= 0.

    Example:
        >>> kl_standard_normal(Moments(torch.ones(3), torch.eye(3))).item()
        1.5
    """
    return 0.5 * (m.S.trace() + m.mean.square().sum() - len(m.mean) - log_det(m.S))


def kl_views(a: Moments, b: Moments) -> Tensor:
    """Returns KL_a + KL_b, of two views."""
    return kl_standard_normal(a) + kl_standard_normal(b)


def mutual_information(m: Moments, split: int) -> Tensor:
    """Returns the mutual information of the first ``split`` features and the others if both are Gaussian, in nats, >= 0.

    Example:
        >>> S = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
        >>> round(mutual_information(Moments(torch.zeros(2), S), 1).item(), 4)     # -1/2 log(1 - 0.64)
        0.5108
    """
    a, b = m.block(slice(0, split)), m.block(slice(split, None))
    return 0.5 * (log_det(a.S) + log_det(b.S) - log_det(m.S))


def entropy(m: Moments) -> Tensor:
    """Returns the entropy of the Gaussian of these moments, H = 1/2 log |2 pi e S| in nats.

    Example:
        >>> round(entropy(Moments(torch.zeros(2), torch.eye(2))).item(), 4)
        2.8379
    """
    return 0.5 * (log_det(m.S) + len(m.mean) * (1 + math.log(2 * math.pi)))


def priced(loss: str, nll: Tensor, a: Moments, b: Moments, *, eta: float, beta: float) -> dict[str, Tensor]:
    """Returns a likelihood's terms by name of the loss, in nats: ``nll`` or ``mi``, and ``kl``.

    Args:
        loss: ``mi_kl`` or ``entropy_kl`` (`coupled`), ``joint_kl`` (nll + beta (KL_a + KL_b)) or ``naive`` (nll alone, which
            collapses).
        nll: Minus the mean joint log-density of the two views, a scalar.
        a: Moments of the first view, with gradient.
        b: Of the second.
        eta: Weight of the KL in these two.
        beta: Weight of the KL in ``joint_kl``.
    """
    if loss == "naive":
        return {"nll": nll}
    if loss == "joint_kl":
        return {"nll": nll, "kl": beta * kl_views(a, b)}
    return coupled(nll, a, b, eta)


def require_loss(loss: str, known: tuple[str, ...], eta: float, beta: float) -> None:
    """Raises a ValueError unless the loss is known and its weights are positive."""
    if loss not in known:
        raise ValueError(f"expected loss among {', '.join(known)}, found {loss!r}")
    if not (eta > 0 and beta > 0):
        raise ValueError(f"expected eta, beta > 0, found eta={eta}, beta={beta}")


def coupled(nll: Tensor, a: Moments, b: Moments, eta: float) -> dict[str, Tensor]:
    """Returns the terms that pay a likelihood's price: ``mi`` = nll - H(a) - H(b) and ``kl`` = eta (KL_a + KL_b), in nats.

    Args:
        nll: Minus the mean joint log-density of the two views, a scalar.
        a: Moments of the first view, with gradient.
        b: Of the second.
        eta: Weight of the KL.
    """
    return {"mi": nll - entropy(a) - entropy(b), "kl": eta * kl_views(a, b)}


@torch.no_grad()
def diagnostics(za: Tensor, zb: Tensor) -> dict[str, float]:
    """Returns what shows a collapse of two views, (B, D) each.

    ``variance`` (the mean over features), ``eigenvalue_min`` and ``condition`` of the first view's covariance without shrinkage,
    and the mutual ``information`` in nats, 0 where a feature is constant. Only the first where B does not exceed 2 D.
    """
    m = moments(torch.cat([za, zb], 1).double())
    a = m.block(slice(0, za.shape[1]))
    found = {"variance": a.S.diagonal().mean().item()}
    if len(za) <= m.S.shape[0]:  # the spectrum of so few says nothing
        return found
    values = torch.linalg.eigvalsh(a.S)
    told = bool((m.S.diagonal() > 0).all())
    return found | {
        "eigenvalue_min": values[0].item(),
        "condition": (values[-1] / values[0].clamp(min=1e-30)).item(),
        "information": mutual_information(m, za.shape[1]).item() if told else 0.0,
    }
