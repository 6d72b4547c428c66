r"""The deterministic joint-embedding predictor: squared error to the other view's embedding, the baseline of arXiv:2603.26799.

Loss            1/2 E|f(z_a) - sg(z_b)|^2 + 1/2 E|f(z_b) - sg(z_a)|^2          sg: no gradient to the target
Optimum         f(z_a) = E[z_b | z_a], the conditional mean; where several answers exist, it lies between them and may be none
Value there     E sum_d Var(z_bd | z_a)                                       (one direction; derived)
Density after   p(z_b | z_a) = N(f(z_a), diag v),   v_d = E(z_bd - f(z_a)_d)^2,   p(z_a) = N(mu, Sigma)

Up to constants the loss is the negative log-likelihood of that density with v fixed at 1/2. That it collapses to the conditional
mean is the paper's statement; the part of the paper that was available does not describe the predictor, which follows the proxy
below.

The encoder can collapse, too: no term fixes the scale, constant embeddings have loss 0, and scaling embeddings by a scales the
best loss by a^2. A teacher as the target and a predictor only slow the collapse: in the tests' short run the scale drifts and the
narrowest direction vanishes (the covariance's ``condition`` grows more than fiftyfold).

PROXY values, from the same author's BiJEPA (arXiv:2603.00049): a predictor with one hidden layer of 64, layer normalization and
ReLU (stated of its encoder), teacher momentum 0.995. The width 2 D >= 64 and the momentum 0.99 are ours.

Shapes: B pairs, D features. Terms: means over pairs, sums over features; squared units of the embedding, not nats.
"""

import torch
from torch import Tensor, nn

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import MovingMoments
from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import ConditionalObjective
from vergence.learn.objectives.parts import diagnostics
from vergence.utils.checks import require_count
from vergence.utils.linalg import upcast_half

__all__ = ["JEPA"]

FLOOR = 1e-12  # least variance of a residual, for embeddings that a predictor hits exactly


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Returns E|f - sg(z)|^2, a scalar: mean over pairs, sum over features (B, D); the target gets no gradient.

    Example:
        >>> squared_error(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0]])).item()
        3.5
    """
    return (prediction - target.detach()).square().sum(-1).mean()


class JEPA(ConditionalObjective):
    """Joint-embedding prediction: a network f predicts one view's embedding from the other's.

    Args:
        dim: Features D of the embeddings.
        hidden: Width of the predictor's hidden layer, >= 2; 2 D but at least 64 by default.
        tied: Whether one network serves both directions; with two, for views of unlike kinds, the density is that of a -> b.
        momentum: Weight m of the past in the moving averages that define the density after training, in [0, 1).

    Example:
        >>> jepa = JEPA(4)
        >>> terms = jepa(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms), jepa.conditional(torch.randn(3, 4)).mean.shape
        (['squared'], torch.Size([3, 4]))
    """

    teacher = 0.99
    residual: Tensor

    def __init__(self, dim: int, *, hidden: int | None = None, tied: bool = True, momentum: float = 0.99) -> None:
        super().__init__()
        hidden = max(2 * dim, 64) if hidden is None else hidden
        require_count(2, hidden=hidden)  # layer normalization of one feature is constant
        self.dim = dim
        self.predictors = nn.ModuleList(projector(dim, (hidden, dim)) for _ in range(1 if tied else 2))
        self.moving = MovingMoments(dim, momentum=momentum)
        self.register_buffer("residual", torch.ones(dim))

    def predict(self, z: Tensor, *, backward: bool = False) -> Tensor:
        """Returns f(z), (B, D): the prediction of z_b from z_a, or with ``backward`` of z_a from z_b."""
        f: Tensor = self.predictors[-1 if backward else 0](upcast_half(z))
        return upcast_half(f)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``squared``, the mean of both directions; where z_b is a teacher's, b -> a trains f alone."""
        ab = squared_error(self.predict(za), zb)
        ba = squared_error(self.predict(zb, backward=True), za)
        return {"squared": 0.5 * (ab + ba)}

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Updates the moving averages of z_a's mean and covariance, and of the squared residuals of a -> b."""
        self.moving.update(za)
        self.residual.lerp_(self._residuals(za, zb).square().mean(0), 1 - self.moving.keep())

    def _residuals(self, za: Tensor, zb: Tensor) -> Tensor:
        za, zb = za.to(self.residual), zb.to(self.residual)
        return zb - self.predict(za)

    def conditional(self, z: Tensor) -> JointGaussian:
        """Returns p(z_b | z_a) = N(f(z_a), diag v) for embeddings z_a (B, D); v does not depend on z_a."""
        return JointGaussian(self.predict(z), Diagonal(self.residual.clamp(min=FLOOR)))

    def marginal(self) -> JointGaussian:
        """Returns p(z_a), the Gaussian of the moving averages over (D,)."""
        return self.moving.density()

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns ``explained``, the share of z_b's variance that f explains (at most 1), the density's fit, and the spread."""
        residual = self._residuals(za, zb).square().mean(0).sum()
        total = zb.var(0, correction=0).sum().clamp(min=FLOOR)
        fit = diagnostics.mahalanobis(self.conditional(za), zb)
        return {"explained": (1 - residual / total).item(), "mahalanobis": fit, **diagnostics.collapse(za, zb)}
