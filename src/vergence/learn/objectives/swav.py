r"""Swapping assignments between views (SwAV: Caron et al., 2020), arXiv:2006.09882.

Loss            1/2 [l(z_a, q_b) + l(z_b, q_a)],   l(z, q) = -mean_n sum_k q_nk log p_nk                    (eq. 1 and 2)
Prediction      p_nk = exp(z_n . c_k / tau) / sum_l exp(z_n . c_l / tau),   |z_n| = |c_k| = 1
Codes           Q = Sinkhorn(exp(Z C^T / eps)): rows and columns are scaled in turn to sums of 1/K and 1/B       (eq. 3 to 5)

Of V views, the loss is the mean of l(z, q) over the codes q of views of whole images, and over all other views (algorithm 1).

Codes get no gradient. As in the released code (facebookresearch/swav) and in lightly, the
prototypes c are parameters, normalized after every step and kept as they are in the first 313 steps, and the loss is the mean of
the two directions, where eq. 1 adds them. No queue: codes are balanced over the batch of all
processes, so a small batch needs fewer prototypes.

Shapes: B pairs, D features, K prototypes. Terms: means over pairs, in nats. The loss defines no density.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.densities.polar import EPS
from vergence.learn.objectives.core import Objective, settings
from vergence.learn.objectives.parts.diagnostics import effective_components
from vergence.utils.checks import require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["SwAV"]


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Returns the codes q (B, K), of row sums 1, of similarities z_n . c_k (B, K): Q = Sinkhorn(exp(Z C^T / eps)), eq. 3 to 5."""
    Q = torch.exp(scores / epsilon)
    Q /= Q.sum()
    for _ in range(iterations):
        Q /= Q.sum(0, keepdim=True)  # to sums of 1: the factor 1/K cancels in the next line
        Q /= Q.sum(1, keepdim=True)
        Q /= len(Q)
    return Q * len(Q)


def cross_entropy(scores: Tensor, q: Tensor, temperature: float) -> Tensor:
    """Returns l(z, q) = -mean_n sum_k q_nk log p_nk, p = softmax(z_n . c_k / tau), for similarities and codes (B, K) (eq. 2)."""
    return -(q * F.log_softmax(scores / temperature, dim=1)).sum(1).mean()


class SwAV(Objective):
    """SwAV: predicts one view's assignment to clusters from the other view.

    Args:
        dim: Features D of the embeddings.
        prototypes: Number K of prototypes, >= 1.
        temperature: Temperature tau > 0 of the prediction.
        epsilon: Temperature eps >= 0.025 of the codes; Sinkhorn's sums, down to exp(-2 / eps), underflow float32 soon below.
        iterations: Iterations of Sinkhorn's algorithm, >= 1.
        frozen_steps: Steps in which the prototypes stay as they are, >= 0.

    Example:
        >>> swav = SwAV(4, prototypes=16)
        >>> terms = swav(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms), swav.prototypes.shape
        (['swapped'], torch.Size([16, 4]))
    """

    small = settings(
        projector=(512, 128), projector_norm="batch", options={"prototypes": 128, "frozen_steps": 62}, batch_size=128
    )
    steps: Tensor

    def __init__(
        self,
        dim: int,
        *,
        prototypes: int = 3000,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        frozen_steps: int = 313,
    ) -> None:
        super().__init__()
        require_count(prototypes=prototypes, iterations=iterations)
        require_count(0, frozen_steps=frozen_steps)
        require_within("(0, inf)", temperature=temperature)
        require_within("[0.025, inf)", epsilon=epsilon)  # below it exp(-2 / epsilon), a sum in Sinkhorn's, underflows in float32
        self.dim, self.temperature, self.epsilon = dim, float(temperature), float(epsilon)
        self.iterations, self.frozen_steps = iterations, frozen_steps
        self.prototypes = nn.Parameter(F.normalize(torch.randn(prototypes, dim), dim=1, eps=EPS))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``swapped``, >= 0: at most about log K if the embeddings carry no information."""
        return self.of_views((za, zb), 2)

    def of_views(self, zs: Sequence[Tensor], n_global: int) -> dict[str, Tensor]:
        """Returns ``swapped``, the mean over the views with codes, the first ``n_global``, and over the other views."""
        scores = [self.similarities(z) for z in zs]
        codes = [sinkhorn(s, self.epsilon, self.iterations) for s in scores[:n_global]]
        pairs = [(s, q) for i, q in enumerate(codes) for j, s in enumerate(scores) if i != j]
        return {"swapped": torch.stack([cross_entropy(s, q, self.temperature) for s, q in pairs]).mean()}

    def similarities(self, z: Tensor) -> Tensor:
        """Returns z_n . c_k with z on the unit sphere, (B, K), for embeddings (B, D)."""
        c = torch.where(self.steps < self.frozen_steps, self.prototypes.detach(), self.prototypes)
        return F.normalize(upcast_half(z), dim=1, eps=EPS) @ c.mT

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the prototypes in the first steps, so that an optimizer's averages of their gradient begin afterwards."""
        return (self.prototypes,) if self.steps < self.frozen_steps else ()

    @torch.no_grad()
    def update(self, za: Tensor, zb: Tensor) -> None:
        """Normalizes the prototypes, and counts the step."""
        self.prototypes.copy_(F.normalize(self.prototypes, dim=1, eps=EPS))
        self.steps += 1

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns ``prototypes``, the effective number of prototypes in the first view's predictions, from 1 to K."""
        p = (self.similarities(za) / self.temperature).softmax(1).mean(0)
        return {"prototypes": effective_components(p).item()}
