r"""The deterministic joint-embedding predictor: squared error to the other view's embedding, the baseline of arXiv:2603.26799.

Loss            1/2 E|f(z_a) - sg(z_b)|^2 + 1/2 E|f(z_b) - sg(z_a)|^2          sg: no gradient to the target
Optimum         f(z_a) = E[z_b | z_a], the conditional average: of several answers the middle, which may be none of them
Value there     E sum_d Var(z_bd | z_a)                                       (one direction; derived)
Density after   p(z_b | z_a) = N(f(z_a), diag v),   v_d = E(z_bd - f(z_a)_d)^2,   p(z_a) = N(mu, Sigma)

Up to constants the loss is the negative log-likelihood of that density with v held at 1/2. That it collapses to the conditional
average is the paper's statement; the predictor's form is not in what was available of it and follows the proxy below.

Another collapse is the encoder's: no term pays for volume, constant embeddings cost nothing, and scaling embeddings by a
scales the best loss by a^2. A teacher as the target and a predictor only slow that: in the tests' short run the scale drifts and
the narrowest direction is lost among the others (the covariance's ``condition`` grows more than fiftyfold).

PROXY values, of the same author's BiJEPA (arXiv:2603.00049): a predictor of one hidden layer of 64, layer normalization and ReLU
(said of its encoder), teacher momentum 0.995. The width 2 D >= 64 and the momentum 0.99 are ours.

Shapes: B pairs, D features. Terms: means over pairs, sums over features; squared units of the embedding, not nats.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.encoders.networks import projector
from vergence.objectives.core import ConditionalObjective, require_pairs
from vergence.objectives.parts import volume
from vergence.objectives.parts.moving import MovingGaussian
from vergence.utils.linalg import upcast_half

__all__ = ["JEPA", "squared_error"]

FLOOR = 1e-12  # least variance of a residual, for embeddings that a predictor hits exactly


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Returns E|f - sg(z)|^2, a scalar: mean over pairs, sum over features (B, D); the target gets no gradient.

    Example:
        >>> squared_error(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0]])).item()
        3.5
    """
    return (prediction - target.detach()).square().sum(-1).mean()


class JEPA(ConditionalObjective):
    """Joint-embedding prediction: a network f from one view's embedding to the other's.

    Args:
        dim: Features D of the embeddings.
        hidden: Width of the predictor's hidden layer; 2 D but at least 64 by default.
        tied: One network for both directions; False: one each, for pairs of unlike kinds, and `conditional` is that of a -> b.
        momentum: m of the moving averages that the density after training comes from, in [0, 1).

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> jepa = JEPA(4)
        >>> terms = jepa(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms), jepa.conditional(torch.randn(3, 4)).mean.shape
        (['squared'], torch.Size([3, 4]))
    """

    teacher: ClassVar[float | None] = 0.99
    residual: Tensor

    def __init__(self, dim: int, *, hidden: int | None = None, tied: bool = True, momentum: float = 0.99) -> None:
        super().__init__()
        hidden = max(2 * dim, 64) if hidden is None else hidden
        if hidden < 2:
            raise ValueError(f"expected hidden >= 2, found {hidden}: layer normalization of one feature leaves nothing of z")
        self.dim = dim
        self.predictors = nn.ModuleList(projector(dim, (hidden, dim)) for _ in range(1 if tied else 2))
        self.moving = MovingGaussian(dim, momentum=momentum)
        self.register_buffer("residual", torch.ones(dim))

    def predict(self, z: Tensor, *, backward: bool = False) -> Tensor:
        """Returns f(z), (B, D), of z_a for z_b; ``backward`` of z_b for z_a, which is the same where tied."""
        f: Tensor = self.predictors[-1 if backward else 0](upcast_half(z))
        return upcast_half(f)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the one term, ``squared``, averaged over both directions; where z_b is a teacher's, b -> a trains f alone.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        ab = squared_error(self.predict(za), upcast_half(zb))
        ba = squared_error(self.predict(zb, backward=True), upcast_half(za))
        return {"squared": 0.5 * (ab + ba)}

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves the averages of z_a's mean and covariance and of the squared residuals of a -> b; the first steps weigh alike."""
        self.moving.update(za)
        self.residual.lerp_(self._residuals(za, zb).square().mean(0), 1 - self.moving.keep())

    def _residuals(self, za: Tensor, zb: Tensor) -> Tensor:
        za, zb = za.to(self.residual), zb.to(self.residual)
        return zb - self.predict(za)

    def conditional(self, z: Tensor) -> JointGaussian:
        """Returns p(z_b | z_a) = N(f(z_a), diag v) for embeddings z_a (B, D); v does not depend on z_a."""
        return JointGaussian(self.predict(z), Diagonal(self.residual.clamp(min=FLOOR)))

    def marginal(self) -> JointGaussian:
        """Returns p(z_a), of moving averages, a Gaussian over (D,)."""
        return self.moving.density()

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the share of z_b's variance that f explains (at most 1), `mahalanobis` and `parts.volume.diagnostics`."""
        left = self._residuals(za, zb).square().mean(0).sum()
        total = zb.var(0, correction=0).sum().clamp(min=FLOOR)
        return {"explained": (1 - left / total).item(), "mahalanobis": self.mahalanobis(za, zb), **volume.diagnostics(za, zb)}
