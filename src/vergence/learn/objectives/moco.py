r"""Momentum contrast, version 3 (MoCo v3: Chen, Xie and He, 2021), arXiv:2104.02057.

Loss            ctr(q(z_a), z'_b) + ctr(q(z_b), z'_a)                                          (section 3, algorithm 1)
Contrast        ctr(Q, K) = -2 tau 1/B sum_n log exp(cos(q_n, k_n) / tau) / sum_m exp(cos(q_n, k_m) / tau)      (eq. 1)
Predictor       q: Linear-BatchNorm-ReLU-Linear-BatchNorm with a hidden layer of 4096, the last one without scale and shift;
                the released code has no last BatchNorm for ResNet-50 (``last_norm=False``)
Targets         z' from a teacher, without gradient; its momentum rises from 0.99 to 1 as a cosine

Keys are the other view's embeddings of the batch, without a queue; `gmje_smc` with a ``fifo`` bank is the queue of MoCo v1, v2.
The loss is ours: lightly's NTXentLoss without a memory bank is SimCLR's, whose keys include the query's own view. It follows the
released code (facebookresearch/moco-v3); tau is that of its vision transformers, 1 for ResNet-50.

Shapes: B pairs, D features. Terms: means over pairs; nats, times 2 tau. The loss defines no density.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.densities.polar import EPS
from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import Objective, settings
from vergence.learn.objectives.parts.teachers import mean_over_directions
from vergence.utils.checks import require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["MoCo"]


def similarities(q: Tensor, k: Tensor, temperature: float) -> Tensor:
    """Returns cos(q_n, k_m) / tau for queries and keys (B, D), (B, B): the logits of eq. 1; the own key is on the diagonal."""
    return F.normalize(q, dim=1, eps=EPS) @ F.normalize(k, dim=1, eps=EPS).mT / temperature


class MoCo(Objective):
    """MoCo v3: classifies which of a teacher's embeddings of the batch is the query's other view.

    Args:
        dim: Features D of the embeddings.
        hidden: Width of the predictor's hidden layer, >= 1.
        temperature: Temperature tau > 0.
        last_norm: Whether the predictor ends with batch normalization, as in the paper.

    Example:
        >>> moco = MoCo(4, hidden=8)
        >>> moco(torch.randn(16, 4), torch.randn(16, 4)).keys()
        dict_keys(['infonce'])
        >>> round(moco.contrast(torch.randn(16, 4), torch.ones(16, 4)).item() / 0.4, 4)     # equal keys: log 16, times 2 tau
        2.7726
    """

    small = settings(projector=(512, 128), projector_norm="batch_last", options={"hidden": 512}, batch_size=128)
    several = True
    teacher = 0.99
    teacher_schedule = "cosine"

    def __init__(self, dim: int, *, hidden: int = 4096, temperature: float = 0.2, last_norm: bool = True) -> None:
        super().__init__()
        require_count(hidden=hidden)
        require_within("(0, inf)", temperature=temperature)
        self.dim, self.temperature = dim, float(temperature)
        self.predictor = projector(dim, (hidden, dim), "batch_last" if last_norm else "batch")

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``infonce``, >= 0: twice the mean over the `directions` of ctr(q(z), z')."""
        return {"infonce": 2 * mean_over_directions(self.contrast, self.predictor, za, zb)}

    def contrast(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns ctr(Q, K), a scalar, for predictions and targets (B, D)."""
        diagonal = torch.arange(len(q), device=q.device)
        return 2 * self.temperature * F.cross_entropy(similarities(q, k, self.temperature), diagonal)

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns ``accuracy``, the share of queries with their own pair as the most similar; without the predictor."""
        nearest = similarities(upcast_half(za), upcast_half(zb), self.temperature).argmax(1)
        return {"accuracy": (nearest == torch.arange(len(za), device=za.device)).float().mean().item()}
