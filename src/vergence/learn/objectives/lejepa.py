r"""Latent-Euclidean joint-embedding prediction (LeJEPA with SIGReg: Balestriero and LeCun, 2025), arXiv:2511.08544.

Loss            lambda 1/2 [T(Z_a) + T(Z_b)] + (1 - lambda) 1/2 mean_nd [(z_a - m)_nd^2 + (z_b - m)_nd^2],   m = (z_a + z_b) / 2
SIGReg          T(Z) = mean over directions u of the Epps-Pulley statistic of the sample z_n . u
Epps-Pulley     B int |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt,   phi(t) = 1/B sum_n exp(i t z_n . u)

The integral over the line is twice that over t in [0, 3], by the trapezoidal rule with 17 knots. 1,024 unit directions u are new
in every step, from the global generator, and common to both views. No stopped gradient, teacher or predictor. SIGReg and the
invariance are lightly's, which are those of the authors' minimal example (rbalestr-lab/lejepa); that has lambda 0.02 and 256
directions, the released package 0.05 and 1,024. Both views are global ones here; the paper adds small crops.

Shapes: B pairs, D features. Terms: means over pairs **and features**, as published; no units. The loss defines no density.
"""

import torch
from torch import Tensor

from vergence.learn.objectives.core import Objective, lightly_module, settings
from vergence.utils.checks import require_count, require_within

__all__ = ["LeJEPA"]


class LeJEPA(Objective):
    """LeJEPA: makes both views' embeddings equal, and their distribution a standard Gaussian in every direction.

    Args:
        dim: Features D of the embeddings.
        weight: Weight lambda of SIGReg, in [0, 1]; that of the invariance is 1 - lambda.
        slices: Random directions of a step, >= 1.
        knots: Knots of the integral, >= 2.
        t_max: Upper bound of the integral, > 0.

    Example:
        >>> terms = LeJEPA(4, slices=16)(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms)
        ['invariance', 'sigreg']
    """

    small = settings(projector=(512, 512, 64), projector_norm="batch", options={"slices": 256}, batch_size=128)
    package = "lightly"

    def __init__(self, dim: int, *, weight: float = 0.05, slices: int = 1024, knots: int = 17, t_max: float = 3.0) -> None:
        super().__init__()
        require_within("[0, 1]", weight=weight)
        require_count(slices=slices)
        require_count(2, knots=knots)
        require_within("(0, inf)", t_max=t_max)
        self.dim, self.weight, self.slices, self.knots, self.t_max = dim, weight, slices, knots, t_max

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the weighted terms ``sigreg`` and ``invariance``, both >= 0; samples directions from the global generator."""
        views, loss = torch.stack([za, zb]), lightly_module("lejepa", "lejepa_loss")
        statistic = loss.SIGReg(knots=self.knots, t_max=self.t_max, num_vectors=self.slices).to(views.device)
        return {
            "sigreg": self.weight * statistic(views),
            "invariance": (1 - self.weight) * loss.lejepa_invariance_loss(all_proj=views, global_proj=views),
        }
