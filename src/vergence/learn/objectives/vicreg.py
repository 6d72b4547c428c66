r"""Variance-invariance-covariance regularization (VICReg: Bardes, Ponce and LeCun, 2022), arXiv:2105.04906.

Loss            lambda s(Z_a, Z_b) + mu 1/2 [v(Z_a) + v(Z_b)] + nu [c(Z_a) + c(Z_b)]           (eq. 6; the factor 1/2: see below)
Invariance      s = 1/(B D) sum_nd (z_a - z_b)_nd^2
Variance        v(Z) = 1/D sum_d max(0, 1 - sqrt(Var(z_d) + 1e-4))                             (eq. 1 and 2)
Covariance      c(Z) = 1/D sum_{d != e} Cov(z_d, z_e)^2                                        (eq. 3 and 4)

Var and Cov divide by B - 1. The terms are those of the released code (facebookresearch/vicreg), as in lightly. That differs from
the paper in two points: the variance terms of the two views are averaged, where eq. 6 adds them (solo-learn follows the
paper), and s is a mean over features, where eq. 5 sums them. With the same weights 25, 25, 1 these are different functions.
Of V views, s is the mean over pairs, v the mean over views, and c twice the mean over views.

Shapes: B pairs, D features. Terms: means over pairs **and features**, as published; no units. The loss defines no density.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.learn.objectives.core import Objective, settings, view_pairs
from vergence.learn.objectives.parts.information import off_diagonal
from vergence.utils.checks import require_within

__all__ = ["VICReg"]


def invariance(za: Tensor, zb: Tensor) -> Tensor:
    """Returns s = 1/(B D) sum_nd (z_a - z_b)_nd^2, a scalar, for two views (B, D): eq. 5, but a mean over features."""
    return F.mse_loss(za, zb)


def hinge(z: Tensor) -> Tensor:
    """Returns v = 1/D sum_d max(0, 1 - sqrt(Var(z_d) + 1e-4)), a scalar, for embeddings (B, D) (eq. 1 and 2)."""
    return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()


def covariance(z: Tensor) -> Tensor:
    """Returns c = 1/D sum_{d != e} Cov(z_d, z_e)^2, a scalar, for embeddings (B, D) (eq. 3 and 4)."""
    x = z - z.mean(0)
    return off_diagonal(torch.einsum("nd,ne->de", x, x) / (len(z) - 1)).square().sum() / z.shape[1]


class VICReg(Objective):
    """VICReg: makes both views' embeddings equal, with standard deviations of at least 1 and uncorrelated features.

    Args:
        dim: Features D of the embeddings.
        invariance: Weight lambda >= 0 of the distance between the views.
        variance: Weight mu >= 0 of the hinge on the standard deviations.
        decorrelation: Weight nu >= 0 of the squared covariances.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])     # variances 4/3, without correlation
        >>> {name: round(term.item(), 3) for name, term in VICReg(2)(z, z + 0.2).items()}
        {'invariance': 1.0, 'hinge': 0.0, 'covariance': 0.0}
    """

    small = settings(projector=(512, 512, 512), projector_norm="batch", batch_size=128)
    several = True

    def __init__(self, dim: int, *, invariance: float = 25.0, variance: float = 25.0, decorrelation: float = 1.0) -> None:
        super().__init__()
        require_within("[0, inf)", invariance=invariance, variance=variance, decorrelation=decorrelation)
        self.dim, self.invariance, self.variance, self.decorrelation = dim, invariance, variance, decorrelation

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the weighted terms ``invariance``, ``hinge`` (of the variances) and ``covariance``."""
        return self.of_views((za, zb), 2)

    def of_views(self, zs: Sequence[Tensor], n_global: int) -> dict[str, Tensor]:
        """Returns the terms for V views, of which two small crops are no pair."""
        return {
            "invariance": self.invariance * torch.stack([invariance(*pair) for pair in view_pairs(zs, n_global)]).mean(),
            "hinge": self.variance * torch.stack([hinge(z) for z in zs]).mean(),
            "covariance": self.decorrelation * 2 * torch.stack([covariance(z) for z in zs]).mean(),
        }
