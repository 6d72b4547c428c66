r"""Contrastive learning as a classification by a mixture (InfoNCE: van den Oord, Li, Vinyals, 2018, arXiv:1807.03748).

Let each key k_m be the mean of a component with weight pi_m and covariance Sigma_m. Its responsibility for a query q is

    gamma_m(q) = pi_m N(q; k_m, Sigma_m) / sum_l pi_l N(q; k_l, Sigma_l)           Loss = mean over queries of -log gamma_+(q)

where + is the key of the query's positive pair. With pi_m = 1/M, Sigma_m = tau I and keys of one norm this is InfoNCE exactly,

    -log gamma_+ = -log exp(q . k_+ / tau) / sum_m exp(q . k_m / tau)

and for keys of any norm with pi_m proportional to exp(|k_m|^2 / 2 tau). The query's norm cancels. In terms of log-densities the
loss is -log p(q, +) + log p(q): the first term pulls pairs together, and the second, a likelihood with reversed sign, pushes
embeddings apart and so prevents the collapse of a likelihood alone. That InfoNCE is a degenerate Gaussian mixture is a statement
of arXiv:2603.26799; the conditions and the general form were derived here.

    components="views"    SimCLR (2020): queries are all 2 B views, keys of each the other 2 B - 1
    components="pairs"    CLIP (2021): queries z_a and keys z_b, and the reverse, averaged

The loss is ours: lightly's NTXentLoss has the first form alone, with one variance for all components, and no densities, which
scores, samples and the conditional need. Where both exist, values and gradients are equal (a test compares them).

Shapes: B pairs, D features, N queries, M keys. Terms: means over queries, in nats.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import MovingMoments
from vergence.densities.polar import EPS
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics
from vergence.utils.checks import require_choice

__all__ = ["Contrastive"]

FLOOR = 1e-2  # least learned variance; CLIP bounds its learned temperature there


def logits(q: Tensor, k: Tensor, variance: Tensor | float, weights: str = "equal") -> Tensor:
    r"""Returns log pi_m + log N(q_n; k_m, diag v) up to a constant per query, (N, M): q^T k / v - 1/2 k^T k / v + log pi_m.

    Args:
        q: Queries, (N, D).
        k: Keys, (M, D).
        variance: Variance v common to all components, (D,) or a number, > 0.
        weights: ``equal``: pi_m = 1/M; ``norm``: pi_m proportional to exp(1/2 k^T k / v), so that the logit is q^T k / v.

    Example:
        >>> logits(torch.tensor([[3.0, 0.0]]), torch.eye(2), 0.5, "norm").tolist()
        [[6.0, 0.0]]
    """
    offset = -0.5 * (k.square() / variance).sum(1) if weights == "equal" else k.new_zeros(len(k))
    return torch.addmm(offset, q / variance, k.mT)


class Contrastive(ConditionalObjective):
    """InfoNCE, also with learned variances: classifies which embedding of the batch is the query's other view.

    The loss is a classification and defines no density on pairs. The density is a Gaussian fitted to the embeddings, before they
    are normalized, by moving averages (`update`); it does not enter the loss.

    Both views get gradient. With a teacher (MoCo v3) the targets get none, and ``views`` compares with both networks' views.
    The loss is about log M at random, M = 2 B - 1 or B; on the sphere it is at least log(1 + (M - 1) exp(-2 / tau)).

    Args:
        dim: Features D of the embeddings.
        temperature: Temperature tau > 0, or the initial value of learned variances: 0.2 in MoCo v2; 0.07 in MoCo v1 and initially
            in CLIP; 0.5 in SimCLR on CIFAR-10.
        covariance: ``isotropic``: tau I, fixed; ``diagonal``: D learned variances, common to all components, > 0.01.
        weights: Weights of the components: ``equal``, or ``norm`` for dot products of keys that are not normalized.
        components: ``views`` or ``pairs``, see above; ``pairs`` for two kinds of data.
        normalize: Whether queries and keys are projected to the unit sphere.
        momentum: Weight m of the past in the moving averages that define the density after training, in [0, 1).

    Example:
        >>> terms = Contrastive(4)(torch.ones(8, 4), torch.ones(8, 4))     # 15 equal keys
        >>> sorted(terms), round(terms["infonce"].exp().item(), 3)
        (['infonce'], 15.0)
    """

    small = settings(projector=(512, 128), projector_norm="batch", batch_size=128)
    behind = settings(options={"temperature": 0.1})

    def __init__(
        self,
        dim: int,
        *,
        temperature: float = 0.2,
        covariance: Literal["isotropic", "diagonal"] = "isotropic",
        weights: Literal["equal", "norm"] = "equal",
        components: Literal["views", "pairs"] = "views",
        normalize: bool = True,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        require_choice("covariance", covariance, ("isotropic", "diagonal"))
        require_choice("weights", weights, ("equal", "norm"))
        require_choice("components", components, ("views", "pairs"))
        least = FLOOR if covariance == "diagonal" else 0.0
        if not least < temperature < math.inf:
            raise ValueError(f"expected a temperature > {least} with covariance {covariance}, found {temperature}: raise it")
        self.dim, self.temperature, self.weights = dim, float(temperature), weights
        self.components, self.normalize = components, normalize
        self.moving = MovingMoments(2 * dim, momentum=momentum)
        x = temperature - FLOOR  # softplus(rho)
        self.rho = nn.Parameter(torch.full((dim,), x + math.log(-math.expm1(-x)))) if least else None

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``infonce``: the mean of -log gamma_+, >= 0; 0 for a single pair, which has no negatives."""
        losses = [F.cross_entropy(scores, positive) for scores, positive in self.classifications(za, zb)]
        return {"infonce": torch.stack(losses).mean()}

    def classifications(self, za: Tensor, zb: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Returns, for each classification, the logits (N, M), -inf for excluded keys, and the columns of the positives (N,)."""
        a, b = (F.normalize(z, dim=1, eps=EPS) if self.normalize else z for z in (za, zb))
        B, v = len(a), self.variance()
        if self.components == "pairs":
            positive = torch.arange(B, device=a.device)
            return [(logits(a, b, v, self.weights), positive), (logits(b, a, v, self.weights), positive)]
        z = torch.cat([a, b])
        scores = logits(z, z, v, self.weights).fill_diagonal_(-math.inf)  # a view is not a key of itself
        return [(scores, torch.arange(2 * B, device=z.device).roll(B))]

    def variance(self) -> Tensor | float:
        """Returns the components' variance: tau, or the D learned ones."""
        return self.temperature if self.rho is None else F.softplus(self.rho) + FLOOR

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Updates the moving averages of mean and covariance."""
        self.moving.update(torch.cat([za, zb], 1))

    def joint(self) -> JointGaussian:
        """Returns the density over [z_a; z_b]: the Gaussian of the moving averages."""
        return self.moving.density(context=self.dim)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the accuracy of the classification, the mean variance, and `parts.diagnostics.collapse`."""
        right = [(scores.argmax(1) == positive).float().mean() for scores, positive in self.classifications(za, zb)]
        temperature = torch.as_tensor(self.variance()).mean().item()
        return {"accuracy": torch.stack(right).mean().item(), "temperature": temperature, **diagnostics.collapse(za, zb)}
