r"""Variational Self-Supervised Learning (2025), arXiv:2504.04318.

Student     q(s | x_a) = N(f(z_a), diag v(z_a))
Teacher     p(s | x_b) = N(z_b, diag w(z_b)), w a moving average of v, z_b the embedding of a moving average of the encoder:
            a prior from the other view, without gradient
Loss        -E_q log p + beta KL(q || p)                                                                    analytic
            1 - cos(f, z_b) + beta [1 - cos(f, z_b) + 1 - cos(v, w)]                                        cosine
Density     p(z_b | z_a) = N(alpha f(z_a), gamma diag v(z_a)),   p(z_a) = N(mu, Sigma)

The paper's ELBO has the teacher as prior, and the cross-view likelihood in place of a reconstruction. Its text was available in
part only (abstract and introduction; a description of the terms in arXiv:2602.05639, section 2). What follows is a reading:

- The embedding is the teacher's mean, and v reads the variance from it.
- f is a predictor that only the student has, as in BYOL. No predictor is described; ``predictor=False`` has q's mean at z_a, too.
- The cosine terms: of means for the likelihood, of means and of variances for the KL, all with equal weights. The description
  says that they depend only on the directions of the mean and variance vectors; ``likelihood="sample"`` takes the cosine of a
  sample of q instead of its mean, which does not.
- The expectation over q is exact in the analytic form; ``likelihood="sample"`` has one sample of it.
- Momentum, widths, beta and every setting of training were not recovered.

The cosine form leaves the scales of f and v free, and the analytic one has its optimum at half of the teacher's variance (below).
The density after training therefore has two scalars, alpha and gamma, of greatest likelihood on the moving average of the pairs.

Analytic form, derived: for a fixed teacher the best student is f = z_b, v = w beta / (1 + beta). A teacher that follows such a
student has smaller and smaller variances, down to ``floor``; likewise scaling embeddings by a and variances by a^2 adds D log a
to the loss. Nothing in either form keeps embeddings of different items apart but the lag of the teacher and the predictor.

Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats; cosines without unit.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import MovingMoments
from vergence.densities.power_spherical import direction
from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import ConditionalObjective
from vergence.learn.objectives.parts.teachers import directions, follow, frozen_copy
from vergence.utils.checks import require_choice, require_count
from vergence.utils.linalg import upcast_half

__all__ = ["VSSL"]

Loss = Literal["cosine", "analytic"]
Likelihood = Literal["expected", "sample"]
SMALLEST = 1e-12  # least gamma, for embeddings that a student hits exactly


def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """Returns 1 - cos(x, y), in [0, 2], (...), for (..., D) of any scale; 1 where one of them is zero."""
    return 1 - (direction(x) * direction(y)).sum(-1)


def cross_entropy(mu: Tensor, v: Tensor, m: Tensor, w: Tensor) -> Tensor:
    """Returns -E log N(s; m, diag w) of s ~ N(mu, diag v) in nats, (...), for (..., D); with v = 0 the value at s = mu."""
    return 0.5 * ((v + (mu - m).square()) / w + w.log() + math.log(2 * math.pi)).sum(-1)


def kl_diagonal(mu: Tensor, v: Tensor, m: Tensor, w: Tensor) -> Tensor:
    """Returns KL(N(mu, diag v) || N(m, diag w)) in nats, (...), for (..., D)."""
    return 0.5 * ((v + (mu - m).square()) / w - 1 + w.log() - v.log()).sum(-1)


class VSSL(ConditionalObjective):
    """Variational self-supervised learning: fits a student's Gaussian for one view to its teacher's for the other.

    Args:
        dim: Features D of the embeddings.
        loss: ``cosine`` or ``analytic``, the closed forms for Gaussians.
        likelihood: ``expected``, or of one ``sample`` of q.
        beta: Weight of the KL, >= 0.
        predictor: Whether the student's mean is a network of its embedding instead of the embedding.
        hidden: Width of the hidden layer of f and v, >= 2; 2 D but at least 64 by default.
        floor: Least variance, > 0, in squared units of the embedding.
        momentum: Weight of the past in [0, 1) in the teacher's variance and in the averages that define the density; that of
            the teacher's encoder is the run's ``teacher``, 0.99 by default.

    Example:
        >>> vssl = VSSL(4)
        >>> terms = vssl(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms), vssl.posterior(torch.randn(3, 4)).entropy().shape
        (['kl', 'likelihood'], torch.Size([3]))
    """

    teacher = 0.99
    advice = "keep the predictor, or slow the teacher"
    moments: Tensor

    def __init__(
        self,
        dim: int,
        *,
        loss: Loss = "cosine",
        likelihood: Likelihood = "expected",
        beta: float = 1.0,
        predictor: bool = True,
        hidden: int | None = None,
        floor: float = 1e-2,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        hidden = max(2 * dim, 64) if hidden is None else hidden
        require_count(2, hidden=hidden)  # layer normalization of one feature is constant
        require_choice("loss", loss, get_args(Loss))
        require_choice("likelihood", likelihood, get_args(Likelihood))
        if not 0 <= beta < math.inf or not 0 < floor < math.inf:
            raise ValueError(f"expected beta >= 0 and floor > 0, found beta={beta}, floor={floor}: the defaults are 1 and 0.01")
        self.dim, self.loss, self.likelihood, self.beta, self.floor = dim, loss, likelihood, float(beta), float(floor)
        self.mean = projector(dim, (hidden, dim)) if predictor else nn.Identity()
        self.variance = projector(dim, (hidden, dim))
        self.averaged = frozen_copy(self.variance)
        self.moving = MovingMoments(dim, momentum=momentum)
        # of f z_b, f f and z_b z_b over v: alpha = gamma = 1
        self.register_buffer("moments", torch.tensor([1.0, 1.0, 1.0 + dim]))

    def student(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean f and variance v of q(s | x), each (B, D), for embeddings (B, D)."""
        z = upcast_half(z)
        return upcast_half(self.mean(z)), F.softplus(upcast_half(self.variance(z))) + self.floor

    @torch.no_grad()
    def prior(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean z and variance w of the teacher's p(s | x), each (B, D), for its embeddings (B, D), without gradient."""
        z = upcast_half(z)
        return z.detach(), F.softplus(upcast_half(self.averaged(z))) + self.floor

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns ``likelihood`` and ``kl``, the mean of the directions a -> b and b -> a.

        An embedding without gradient is a teacher's, and only a target (`vergence.learn.objectives.parts.teachers.directions`).
        """
        queries, targets = zip(*directions(za, zb), strict=True)
        mu, v = self.student(torch.cat(queries))
        m, w = self.prior(torch.cat(targets))
        s, spread = (mu, v) if self.likelihood == "expected" else (mu + v.sqrt() * torch.randn_like(v), torch.zeros_like(v))
        if self.loss == "analytic":
            terms = {"likelihood": cross_entropy(s, spread, m, w), "kl": self.beta * kl_diagonal(mu, v, m, w)}
        else:
            kl = cosine_distance(mu, m) + cosine_distance(v, w)
            terms = {"likelihood": cosine_distance(s, m), "kl": self.beta * kl}
        return {name: term.mean() for name, term in terms.items()}

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves the teacher's variance toward the student's, and updates the averages that define the density."""
        follow(self.averaged, self.variance, self.moving.momentum)
        self.moving.update(za)
        za, zb = za.to(self.moments), zb.to(self.moments)
        f, v = self.student(za)
        products = [(x * y / v).sum(-1).mean() for x, y in ((f, zb), (f, f), (zb, zb))]
        self.moments.lerp_(torch.stack(products), 1 - self.moving.keep())

    def scales(self) -> tuple[Tensor, Tensor]:
        """Returns the maximum-likelihood alpha and gamma on the averaged pairs, scalars."""
        fz, ff, zz = self.moments
        alpha = fz / ff.clamp(min=torch.finfo(ff.dtype).tiny)
        return alpha, ((zz - alpha * fz) / self.dim).clamp(min=SMALLEST)

    def conditional(self, z: Tensor) -> JointGaussian:
        """Returns p(z_b | z_a) = N(alpha f, gamma diag v), q with its two scalars corrected, for embeddings z_a (B, D)."""
        f, v = self.student(z)
        alpha, gamma = self.scales()
        return JointGaussian(alpha * f, Diagonal(gamma * v))

    def marginal(self) -> JointGaussian:
        """Returns p(z_a), the Gaussian of the moving averages over (D,)."""
        return self.moving.density()

    def scores(self, z: Tensor) -> dict[str, Tensor]:
        """Returns scores by name, each (B,): -log p(z_a), and three that the student computes from one view alone.

        ``score`` is -log p(z_a), ``cross_entropy`` -E_q log p with the teacher's Gaussian of the same embedding, ``variance``
        and ``entropy`` are those of `conditional`.
        """
        belief, crossed = self.conditional(z), cross_entropy(*self.student(z), *self.prior(z))
        spread = {"variance": belief.variance.sum(-1), "entropy": belief.entropy()}
        return {"score": self.score(z), "cross_entropy": crossed, **spread}

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns mean and coefficient of variation of q's variance, the cosine of f and z_b, and gamma."""
        f, v = self.student(za)
        cosine = 1 - cosine_distance(f, upcast_half(zb)).mean()
        cv = v.std(correction=0) / v.mean()
        numbers = {"variance_mean": v.mean(), "variance_cv": cv, "cosine": cosine, "gamma": self.scales()[1]}
        return {name: value.item() for name, value in numbers.items()}
