r"""Latent-Euclidean joint-embedding prediction (LeJEPA with SIGReg: Balestriero and LeCun, 2025), arXiv:2511.08544.

Loss            lambda 1/2 [T(Z_a) + T(Z_b)] + (1 - lambda) 1/2 mean_nd [(z_a - m)_nd^2 + (z_b - m)_nd^2],   m = (z_a + z_b) / 2
SIGReg          T(Z) = mean over directions u of the Epps-Pulley statistic of the sample z_n . u
Epps-Pulley     B int |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt,   phi(t) = 1/B sum_n exp(i t z_n . u)

The integral over the line is twice that over t in [0, 3], by the trapezoidal rule with 17 knots. 1,024 unit directions u are new
in every step, from the global generator, and common to both views. No stopped gradient, teacher or predictor. SIGReg and the
invariance are those of the authors' minimal example (rbalestr-lab/lejepa), as in lightly; that has lambda 0.02 and 256
directions, the released package 0.05 and 1,024. Of V views, T and the squared distances are means over all of them, and m is the
mean of the views of whole images, without small crops.

Shapes: B pairs, D features. Terms: means over pairs **and features**, as published; no units. The loss defines no density.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vergence.learn.objectives.core import Objective, settings
from vergence.utils.checks import require_count, require_within

__all__ = ["LeJEPA"]


def epps_pulley(x: Tensor, knots: int, t_max: float) -> Tensor:
    """Returns B int |phi(t) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt, (..., S), for S samples of B numbers each (..., B, S).

    They are z_n . u on S directions; the trapezoidal rule has ``knots`` in [0, t_max], half of the line.
    """
    t = torch.linspace(0, t_max, knots, dtype=x.dtype, device=x.device)
    step, gauss, xt = t_max / (knots - 1), (-t.square() / 2).exp(), x[..., None] * t
    error = (xt.cos().mean(-3) - gauss).square() + xt.sin().mean(-3).square()  # |phi - gauss|^2, with gauss real
    weights = torch.full_like(t, 2 * step)
    weights[[0, -1]] = step
    return error @ (weights * gauss) * x.shape[-2]


def sigreg(z: Tensor, u: Tensor, knots: int, t_max: float) -> Tensor:
    """Returns 1/V sum_v T(Z_v), a scalar: the mean `epps_pulley` of the views (V, B, D) over unit directions u (D, S)."""
    return epps_pulley(z @ u, knots, t_max).mean()


def invariance(z: Tensor, n_global: int = 2) -> Tensor:
    """Returns mean_vnd (z_v - m)_nd^2, a scalar, for views (V, B, D), with m the mean of the first ``n_global``."""
    return (z[:n_global].mean(0) - z).square().mean()


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

    def __init__(self, dim: int, *, weight: float = 0.05, slices: int = 1024, knots: int = 17, t_max: float = 3.0) -> None:
        super().__init__()
        require_within("[0, 1]", weight=weight)
        require_count(slices=slices)
        require_count(2, knots=knots)
        require_within("(0, inf)", t_max=t_max)
        self.dim, self.weight, self.slices, self.knots, self.t_max = dim, weight, slices, knots, t_max

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the weighted terms ``sigreg`` and ``invariance``, both >= 0; samples directions from the global generator."""
        return self.of_views((za, zb), 2)

    def of_views(self, zs: Sequence[Tensor], n_global: int) -> dict[str, Tensor]:
        """Returns the terms for V views, with common directions."""
        z = torch.stack(list(zs))
        u = torch.randn(self.dim, self.slices, dtype=z.dtype, device=z.device)
        return {
            "sigreg": self.weight * sigreg(z, u / u.norm(dim=0), self.knots, self.t_max),
            "invariance": (1 - self.weight) * invariance(z, n_global),
        }
