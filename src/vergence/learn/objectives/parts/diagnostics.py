"""Numbers that several objectives monitor: collapse of the embeddings, fit of the density, use of the components.

Shapes: B pairs, D features, K components.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.moments import batch_moments
from vergence.densities.particles import KernelMixture
from vergence.learn.objectives.parts.information import mutual_information

__all__ = ["notices"]

WEAK = "the regularization is too weak; with a likelihood as the loss, use `loss='mi_kl'`, or increase `beta` or `eta`"


@torch.no_grad()
def collapse(za: Tensor, zb: Tensor) -> dict[str, float]:
    """Returns diagnostics that show a collapse of two views, (B, D) each.

    ``variance`` (mean over features), ``eigenvalue_min`` and ``condition`` of the first view's covariance without shrinkage,
    and the mutual ``information`` of the views in nats, 0 where a feature is constant. Only ``variance`` where B <= 2 D.
    """
    m = batch_moments(torch.cat([za, zb], 1).double())
    a = m.block(slice(0, za.shape[1]))
    numbers = {"variance": a.S.diagonal().mean().item()}
    if len(za) <= m.S.shape[0]:  # the spectrum of so few items says nothing
        return numbers
    values = torch.linalg.eigvalsh(a.S)
    varies = bool((m.S.diagonal() > 0).all())
    return numbers | {
        "eigenvalue_min": values[0].item(),
        "condition": (values[-1] / values[0].clamp(min=1e-30)).item(),
        "information": mutual_information(m, za.shape[1]).item() if varies else 0.0,
    }


@torch.no_grad()
def mahalanobis(p: JointGaussian | MixtureOfGaussians, z: Tensor) -> float:
    """Returns the mean squared Mahalanobis distance per feature of z (B, D) under p, which is 1 where p fits.

    Under a mixture, each item's distances from the components are weighted by its responsibilities.
    """
    if isinstance(p, KernelMixture):
        return (p.spread(z.to(p.keys)) / p.h2).item()
    if isinstance(p, JointGaussian):
        squares = p.S.quadratic(z.to(p.loc) - p.loc)
    else:
        parts = p.component_distribution
        z = z.to(parts.loc)
        squares = (p.responsibilities(z) * parts.S.quadratic(z[:, None] - parts.loc)).sum(-1)
    return squares.mean().item() / z.shape[1]


def effective_components(weights: Tensor) -> Tensor:
    """Returns the effective number of components exp(H), from 1 to K, (...), for weights (..., K).

    Example:
        >>> round(effective_components(torch.tensor([0.5, 0.5, 0.0])).item(), 3)
        2.0
    """
    number: Tensor = torch.special.entr(weights).sum(-1).exp()
    return number


@torch.no_grad()
def mixture(p: MixtureOfGaussians, za: Tensor, zb: Tensor) -> dict[str, float]:
    """Returns the diagnostics of a joint mixture over [z_a; z_b] and of the embeddings (B, D) that it describes.

    `mahalanobis`; ``components``, the effective number; ``component_share``, its share of the components that have weight; and
    `collapse`.
    """
    used = effective_components(p.weights).item()
    return {
        "mahalanobis": mahalanobis(p, torch.cat([za, zb], 1)),
        "components": used,
        "component_share": used / p.weights.count_nonzero().item(),
        **collapse(za, zb),
    }


def notices(stats: Mapping[str, float]) -> dict[str, str]:
    """Returns messages by the name of the diagnostic that shows a problem; what is missing is left out.

    Args:
        stats: Diagnostics of the last batch. ``variance``: mean over features, too small below 1e-4 with ``mahalanobis``, as
            losses on directions leave the scale free. ``condition`` of the covariance, too large above 1e5. ``mahalanobis``: mean
            per feature, 1 where the density fits, too large above 2. ``ess``: effective share of a bank's particles, too small
            below 0.1. ``component_share``: effective share of a mixture's components, too small below 0.2.

    Example:
        >>> list(notices({"variance": 1e-7, "mahalanobis": 1.0, "ess": 0.05}))
        ['variance', 'ess']
        >>> notices({"variance": 1.0, "condition": 40.0, "mahalanobis": 1.01, "component_share": 0.8})
        {}
    """
    messages = _collapse(stats)
    if stats.get("ess", 1.0) < 0.1:
        hint = "raise momentum, u, or the temperature"
        messages["ess"] = f"few particles carry the bank's weight (effective share {stats['ess']:.2g}): {hint}"
    if stats.get("component_share", 1.0) < 0.2:
        share = f"effective share {stats['component_share']:.2g}"
        messages["component_share"] = f"few components are used ({share}): set fewer components, or lower the floor"
    return messages


def _collapse(stats: Mapping[str, float]) -> dict[str, str]:
    """Returns a message where embeddings shrink or lose directions, or where the density lags behind them; at most one."""
    fits = abs(stats.get("mahalanobis", 0.0) - 1) < 0.05
    trap = "; Mahalanobis distances still look like a perfect fit (the trace trap)" if fits else ""
    if stats.get("variance", 1.0) < 1e-4 and "mahalanobis" in stats:
        return {"variance": f"the embedding shrinks to a point (mean variance {stats['variance']:.2g}{trap}): {WEAK}"}
    if stats.get("condition", 1.0) > 1e5:
        lost = f"the embedding loses directions (condition {stats['condition']:.2g}{trap})"
        return {"condition": f"{lost}: {WEAK}, or use a narrower projector"}
    if stats.get("mahalanobis", 1.0) > 2:
        hint = "lower the learning rate, or let the density follow faster (a lower momentum, a smaller bank, more EM steps)"
        return {"mahalanobis": f"the density lags behind the embedding (Mahalanobis {stats['mahalanobis']:.2g} of 1): {hint}"}
    return {}
