r"""VI-SimSiam, a spherical posterior around SimSiam's prediction (2022), arXiv:2203.11437.

Posterior     q(u | z_i) = PS(u; mu_i, kappa_i),   (mu_i, kappa_i) = h(z_i)         power spherical, on the unit sphere
Prior         p(u) uniform on the sphere
Loss          1/2 sum over (i, j) of -log PS(sg(z_j/|z_j|); mu_i, kappa_i) + beta KL(q_i || p)         sg: no gradient
Density       p(z_b/|z_b| | z_a) = PS(mu_a, kappa_a), of directions, with respect to the sphere's area

At beta = 0 and a constant kappa the gradient is SimSiam's up to a weight of each pair, kappa / (1 + cos), so that a pair of low
concentration counts less. At beta = 1 the normalizing constants cancel: with c = mu_i^T z_j/|z_j| and E over q_i,

    loss of a pair = kappa (E log(1 + mu^T u) - log(1 + c)) + log area,                                       (derived)

whose best kappa is finite for c < 1, and bounded from below by log area - (D - 1) / 2 as c -> 1. Below 1 it is not: agreement
without limit is rewarded by kappa without limit. Constant embeddings minimize the loss, as SimSiam's; what keeps the encoder from
them is that the target has no gradient while the input of h has.

Not recovered from the paper: the weight of the KL (here beta, 1 for the evidence lower bound; 0 leaves the likelihood alone), the
parametrization of kappa (here (D - 1) softplus of one output, so that |E u| = softplus / (1 + softplus) does not depend on D),
the widths of h, and every setting of training. h has layer instead of batch normalization, so that an item's density does not
depend on its batch.

Shapes: B pairs, D features. Terms: means over pairs, in nats.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.densities.power_spherical import PowerSpherical, direction
from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import Objective, require_pairs
from vergence.utils.checks import expect, require_count
from vergence.utils.linalg import upcast_half

__all__ = ["VISimSiam"]


class VISimSiam(Objective):
    """Variational-inference SimSiam: the direction of one view under a power spherical density given the other.

    Args:
        dim: Features D of the embeddings, >= 2.
        beta: Weight of the KL to the uniform distribution, averaged over the two views, >= 0.
        hidden: Width of the predictor's hidden layer, >= 2; D / 4 by default, as SimSiam's, but at least 16.

    Example:
        >>> objective = VISimSiam(8)
        >>> terms = objective(torch.randn(4, 8), torch.randn(4, 8))
        >>> sorted(terms), objective.posterior(torch.randn(4, 8)).entropy().shape
        (['alignment', 'kl'], torch.Size([4]))
    """

    advice = "use beta of 1 or more"
    on_sphere = True

    def __init__(self, dim: int, *, beta: float = 1.0, hidden: int | None = None) -> None:
        super().__init__()
        hidden = max(dim // 4, 16) if hidden is None else hidden
        require_count(2, dim=dim, hidden=hidden)
        expect(0 <= beta < math.inf, "beta >= 0", f"{beta}: 1 is the evidence lower bound, 0 the likelihood alone")
        self.dim, self.beta = dim, float(beta)
        self.predictor = projector(dim, (hidden, dim + 1))

    def posterior(self, z: Tensor) -> PowerSpherical:
        """Returns q(u | z), a power spherical distribution of the direction u, of batch (B,) over (D,)."""
        h = upcast_half(self.predictor(upcast_half(z)))
        return PowerSpherical(direction(h[..., :-1]), (self.dim - 1) * F.softplus(h[..., -1]))

    def conditional(self, z: Tensor) -> PowerSpherical:
        """Returns p(z_b/|z_b| | z_a) for embeddings z_a (B, D): `posterior`."""
        return self.posterior(z)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns ``alignment``, the mean of both directions, and ``kl``, the mean of both views."""
        q = self.posterior(torch.cat([za, zb]))
        target = direction(torch.cat([zb, za]).detach())
        return {"alignment": -q.finite_log_prob(target).mean(), "kl": self.beta * q.kl_to_uniform().mean()}

    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b/|z_b| | z_a) in nats with respect to the sphere's area, (B,), for embeddings (B, D)."""
        require_pairs(za, zb, self.dim)
        return self.posterior(za).log_prob(direction(zb))

    def score(self, z: Tensor) -> Tensor:
        """Returns the anomaly score of each embedding, (B,): ``alignment`` of `scores`."""
        return self.scores(z)["alignment"]

    def scores(self, z: Tensor) -> dict[str, Tensor]:
        """Returns scores of each embedding under its own posterior, (B,); larger is more anomalous.

        ``alignment`` is -log p(z/|z| | z) in nats, ``concentration`` -kappa, the paper's uncertainty, and ``entropy`` that of the
        posterior, in nats.
        """
        q = self.posterior(z)
        return {"alignment": -q.finite_log_prob(direction(z)), "concentration": -q.kappa, "entropy": q.entropy()}

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the posterior's mean length |E u|, in [0, 1), and the cosine of prediction and target, means over the batch."""
        q = self.posterior(za)
        numbers = {"length": q.mean.norm(dim=-1), "cosine": (q.mu * direction(zb)).sum(-1)}
        return {name: value.mean().item() for name, value in numbers.items()}
