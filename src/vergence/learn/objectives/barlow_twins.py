r"""Redundancy reduction (Barlow Twins: Zbontar et al., 2021), arXiv:2103.03230.

Loss            s [sum_d (1 - C_dd)^2 + lambda sum_{d != e} C_de^2],   s = 1 in the paper       (eq. 1)
Correlation     C_de = 1/B sum_n (z_a - mean)_nd (z_b - mean)_ne / (s_ad s_be),   s^2 = variance over B + 1e-5      (eq. 2)

The loss is that of the released code, as in lightly; its lambda is 0.0051, the paper's text has 0.005, the default here.
solo-learn multiplies the loss by s = 0.1 on CIFAR-10. The method gathers all processes' items, so C is that of the whole batch.

Shapes: B pairs, D features. Terms: sums over pairs of features, of means over pairs; no units. The loss defines no density.
"""

from torch import Tensor
from torch.nn import functional as F

from vergence.learn.objectives.core import Objective, settings
from vergence.learn.objectives.parts.information import off_diagonal
from vergence.utils.checks import require_within

__all__ = ["BarlowTwins"]


def cross_correlation(za: Tensor, zb: Tensor) -> Tensor:
    """Returns C_de = 1/B sum_n (z_a - mean)_nd (z_b - mean)_ne / (s_ad s_be), (D, D), for two views (B, D) (eq. 2)."""
    a, b = (F.batch_norm(z, None, None, training=True) for z in (za, zb))
    return a.mT @ b / len(za)


class BarlowTwins(Objective):
    """Barlow Twins: brings the cross-correlation of the two views' features close to the identity.

    Args:
        dim: Features D of the embeddings.
        redundancy: Weight lambda >= 0 of the correlations of different features.
        scale: Factor s > 0 of the loss, which matters to an optimizer that does not remove it, such as SGD.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        >>> round(BarlowTwins(2)(z, z)["correlation"].item(), 3), round(BarlowTwins(2)(z, -z)["correlation"].item(), 3)
        (0.0, 8.0)
    """

    small = settings(projector=(512, 512, 512), projector_norm="batch", batch_size=128)
    several = True

    def __init__(self, dim: int, *, redundancy: float = 0.005, scale: float = 1.0) -> None:
        super().__init__()
        require_within("[0, inf)", redundancy=redundancy)
        require_within("(0, inf)", scale=scale)
        self.dim, self.redundancy, self.scale = dim, redundancy, scale

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``correlation``, >= 0: sum_d (1 - C_dd)^2 + lambda sum_{d != e} C_de^2, scaled (eq. 1)."""
        C = cross_correlation(za, zb)
        return {
            "correlation": self.scale * ((1 - C).diagonal().square().sum() + self.redundancy * off_diagonal(C).square().sum())
        }
