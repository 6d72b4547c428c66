r"""Information terms of a batch of embeddings: covariance, entropy, KL from the standard normal, mutual information.

A likelihood alone is lowest where an encoder maps everything to one point: scaling embeddings by a adds D log a. The terms here
prevent this collapse. Over a batch with mean m and covariance S (divided by N), all with gradient in the embeddings:

    KL = 1/2 [tr S + |m|^2 - D - log |S|]                           of the batch's Gaussian from N(0, I), for one view
    -I = 1/2 [log |S| - log |S_aa| - log |S_bb|] = 1/2 sum_i log(1 - rho_i^2)     rho: canonical correlations of two views

The KL fixes the scale (its minimum is at S = I, m = 0); the mutual information does not depend on it. With the likelihood under
any other density in place of the batch's Gaussian, -I becomes

    nll - H(a) - H(b),   H = 1/2 log |2 pi e S| of a view

which does not depend on the scale either if the density follows it. All terms are derived here, for arXiv:2603.26799.

Shapes: N pairs, D features. In nats.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vergence.densities.gaussian import GaussianMixture
from vergence.utils.checks import require_choice, require_positive, require_within
from vergence.utils.linalg import upcast_half

__all__ = [
    "MIXTURE_LOSSES",
    "MixtureLoss",
    "Moments",
    "entropy",
    "kl_standard_normal",
    "kl_views",
    "likelihood_loss",
    "log_det",
    "mi_kl",
    "mixture_loss",
    "moments",
    "mutual_information",
    "oas",
    "pointwise_information",
    "require_settings",
    "require_several",
    "require_spread",
    "shrunk",
    "view_moments",
]

MixtureLoss = Literal["mi_kl", "entropy_kl", "joint_kl", "naive"]
MIXTURE_LOSSES = ("mi_kl", "entropy_kl", "joint_kl", "naive")
SMALLEST = (1e-15, 1e-140)  # difference of embeddings: in float32 and half precision, in float64
JITTER = {torch.float32: 1e-6, torch.float64: 1e-10}  # in units of the mean variance; added to every covariance


@dataclass(frozen=True)
class Moments:
    """Mean (D,) and covariance (D, D) of a batch."""

    mean: Tensor
    S: Tensor

    def block(self, where: slice) -> "Moments":
        """Returns the mean and the covariance of some features."""
        return Moments(self.mean[where], self.S[where, where])


def moments(z: Tensor, shrinkage: float | None = 0.0) -> Moments:
    """Returns mean and covariance (divided by N) of embeddings, with gradient.

    Args:
        z: Embeddings, (N, D).
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
    """Returns the oracle-approximating shrinkage of a covariance of n Gaussian items, in (0, 1].

    Y. Chen, A. Wiesel, Y. C. Eldar, A. O. Hero, "Shrinkage algorithms for MMSE covariance estimation", IEEE Transactions on
    Signal Processing, 2010, equation 23; detectors have scikit-learn's form without the terms 2 / D.

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
    """Returns log |S| of a positive definite (D, D), with gradient; NaN for any other matrix.

    The Cholesky factor is computed in float64: in float32, covariances with the least jitter fail from a few features on. The
    call does not wait for the device.

    Example:
        >>> round(log_det(4 * torch.eye(2)).item(), 3)
        2.773
    """
    L, failed = torch.linalg.cholesky_ex(S.double())
    value: Tensor = 2 * L.diagonal().log().sum()
    return torch.where(failed == 0, value, math.nan).to(S.dtype)


def kl_standard_normal(m: Moments) -> Tensor:
    """Returns KL(N(mean, S) || N(0, I)) in nats, a scalar >= 0.

    Example:
        >>> kl_standard_normal(Moments(torch.ones(3), torch.eye(3))).item()
        1.5
    """
    return 0.5 * (m.S.trace() + m.mean.square().sum() - len(m.mean) - log_det(m.S))


def kl_views(a: Moments, b: Moments) -> Tensor:
    """Returns KL_a + KL_b: the divergences of two views from the standard normal, in nats."""
    return kl_standard_normal(a) + kl_standard_normal(b)


def mutual_information(m: Moments, split: int) -> Tensor:
    """Returns the Gaussian mutual information of the first ``split`` features and the others in nats, >= 0.

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


def require_several(za: Tensor) -> None:
    """Raises a ValueError where a view (B, D) has one embedding: variances have no value."""
    if len(za) < 2:
        raise ValueError(f"expected a batch of at least 2 embeddings that differ, found {len(za)}: raise the batch size")


def require_spread(za: Tensor, zb: Tensor) -> None:
    """Raises a ValueError where a view (B, D) has one embedding or equal ones: its covariance has no determinant.

    Embeddings are equal where they differ by less than 1e-15, or by less than 1e-140 in float64: the inverse of their
    covariance would not be finite. On an accelerator only B is checked, because comparing embeddings would wait for the
    device at every step.

    Example:
        >>> require_spread(torch.ones(4, 2), torch.randn(4, 2))
        Traceback (most recent call last):
        ValueError: expected a batch of at least 2 embeddings that differ, found 4 equal ones: lower the learning rate, or ...
    """
    require_several(za)
    if za.device.type == "cpu" and any(bool(((z - z[:1]).abs() < SMALLEST[z.dtype == torch.float64]).all()) for z in (za, zb)):
        hint = "lower the learning rate, or check the data"
        raise ValueError(f"expected a batch of at least 2 embeddings that differ, found {len(za)} equal ones: {hint}")


def view_moments(za: Tensor, zb: Tensor, shrinkage: float | None) -> tuple[Moments, Moments]:
    """Returns the `moments` of two views (B, D) each, whose embeddings must differ (`require_spread`)."""
    require_spread(za, zb)
    return moments(za, shrinkage), moments(zb, shrinkage)


def pointwise_information(p: GaussianMixture, za: Tensor, zb: Tensor) -> Tensor:
    """Returns the mean pointwise mutual information log p(z_a, z_b) / (p(z_a) p(z_b)) in nats, a scalar.

    Args:
        p: Density over [z_a; z_b], with z_a as the context.
        za: First views, (B, D).
        zb: Second views, (B, D).
    """
    pa, pb = p.marginal("context"), p.marginal("target")
    return -(pa.log_prob(za) + pb.log_prob(zb) - p.log_prob(torch.cat([za, zb], 1))).mean()


def require_settings(loss: str, known: Iterable[str], *, eta: float, beta: float, shrinkage: float | None) -> None:
    """Raises a ValueError unless the loss is known, its weights are positive, and the shrinkage is None or in [0, 1]."""
    require_choice("loss", loss, known)
    require_positive(eta=eta, beta=beta)
    if shrinkage is not None:
        require_within("[0, 1]", shrinkage=shrinkage)


def likelihood_loss(
    loss: str, p: GaussianMixture, za: Tensor, zb: Tensor, *, eta: float, beta: float, shrinkage: float | None
) -> dict[str, Tensor]:
    """Returns the terms of a joint likelihood with regularization, in nats.

    With nll = -mean log p(z_a, z_b):

        entropy_kl   ``mi`` = nll - H(a) - H(b),  ``kl`` = eta (KL_a + KL_b)
        joint_kl     ``nll``,                     ``kl`` = beta (KL_a + KL_b)
        naive        ``nll``: collapses

    Args:
        loss: One of these names.
        p: Density over [z_a; z_b].
        za: First views, (B, D).
        zb: Second views, (B, D).
        eta: Weight of the KL in ``entropy_kl``.
        beta: Weight of the KL in ``joint_kl``.
        shrinkage: Shrinkage of the batch's covariances in H and KL, in [0, 1]; None estimates it.

    Raises:
        ValueError: The loss is unknown, or the batch has no covariance (`require_spread`).
    """
    require_choice("loss", loss, ("entropy_kl", "joint_kl", "naive"))
    if loss == "naive":
        return {"nll": -p.log_prob(torch.cat([za, zb], 1)).mean()}
    a, b = view_moments(za, zb, shrinkage)
    nll = -p.log_prob(torch.cat([za, zb], 1)).mean()
    if loss == "joint_kl":
        return {"nll": nll, "kl": beta * kl_views(a, b)}
    return {"mi": nll - entropy(a) - entropy(b), "kl": eta * kl_views(a, b)}


def mi_kl(p: GaussianMixture, za: Tensor, zb: Tensor, *, eta: float, shrinkage: float | None) -> dict[str, Tensor]:
    """Returns the terms ``mi`` = -mean log p(z_a, z_b) / (p(z_a) p(z_b)) and ``kl`` = eta (KL_a + KL_b), in nats.

    Arguments and errors are those of `likelihood_loss`; the density p is meant without a gradient of its own.

    Example:
        >>> p = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.eye(2)[None], context=1)    # independent views
        >>> terms = mi_kl(p, torch.randn(8, 1), torch.randn(8, 1), eta=1.0, shrinkage=0.0)
        >>> abs(terms["mi"].item()) < 1e-5
        True
    """
    a, b = view_moments(za, zb, shrinkage)
    return {"mi": -pointwise_information(p, za, zb), "kl": eta * kl_views(a, b)}


def mixture_loss(
    loss: MixtureLoss, p: GaussianMixture, za: Tensor, zb: Tensor, *, eta: float, beta: float, shrinkage: float | None
) -> dict[str, Tensor]:
    """Returns the terms of any `MixtureLoss` for a density without a gradient of its own: `mi_kl`, or `likelihood_loss`."""
    if loss == "mi_kl":
        return mi_kl(p, za, zb, eta=eta, shrinkage=shrinkage)
    return likelihood_loss(loss, p, za, zb, eta=eta, beta=beta, shrinkage=shrinkage)
