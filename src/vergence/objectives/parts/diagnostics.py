"""Numbers that several objectives monitor: collapse of the embeddings, fit of the density, use of the components.

Shapes: B pairs, D features, K components.
"""

import torch
from torch import Tensor

from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.densities.moments import batch_moments
from vergence.densities.particles import KernelMixture
from vergence.objectives.parts.information import mutual_information


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
def mahalanobis(p: JointGaussian | GaussianMixture, z: Tensor) -> float:
    """Returns the mean squared Mahalanobis distance per feature of z (B, D) under p, which is 1 where p fits.

    Under a mixture, each item's distances from the components are weighted by its responsibilities.

    Example:
        >>> mahalanobis(JointGaussian(torch.zeros(2), torch.eye(2)), torch.tensor([[1.0, 1.0], [2.0, 0.0]]))
        1.5
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
def mixture(p: GaussianMixture, za: Tensor, zb: Tensor) -> dict[str, float]:
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
