r"""Simple Siamese representation learning (SimSiam: Chen and He, 2021), arXiv:2011.10566.

Loss            -1/2 cos(h(z_a), sg(z_b)) - 1/2 cos(h(z_b), sg(z_a))             (eq. 2; sg: no gradient to the target)
Predictor       h: Linear-BatchNorm-ReLU-Linear with a hidden layer of D / 4

The paper keeps the predictor's learning rate constant, which gained 0.4 points on ImageNet; here it
follows the schedule of all parameters. Without a batch normalization behind the projector (``projector_norm="batch_last"``), or
without the predictor, the paper reports worse results or collapse (its tables 1 to 3).

Shapes: B pairs, D features. Terms: means over pairs; no units. The loss defines no density.
"""

from torch import Tensor
from torch.nn import functional as F

from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import Objective, settings
from vergence.learn.objectives.parts.teachers import mean_over_directions
from vergence.utils.checks import require_count

__all__ = ["SimSiam"]


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Returns D(p, z) = -mean_n cos(p_n, z_n), a scalar in [-1, 1], for predictions p = h(z_a) and targets z (B, D) (eq. 1)."""
    return -F.cosine_similarity(p, z, dim=1).mean()


class SimSiam(Objective):
    """SimSiam: predicts the direction of the other view's embedding, without gradient to this target.

    Args:
        dim: Features D of the embeddings.
        hidden: Width of the predictor's hidden layer, >= 1; D / 4 by default.

    Example:
        >>> import torch
        >>> terms = SimSiam(4)(torch.randn(16, 4), torch.randn(16, 4))
        >>> sorted(terms), -1 <= terms["cosine"].item() <= 1
        (['cosine'], True)
    """

    small = settings(projector=(512, 512), projector_norm="batch_last", options={"hidden": 128}, batch_size=128)
    several = True

    def __init__(self, dim: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = max(dim // 4, 1) if hidden is None else hidden
        require_count(hidden=hidden)
        self.dim = dim
        self.predictor = projector(dim, (hidden, dim), "batch")

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``cosine``, in [-1, 1]: the mean over the `directions` of -cos(h(z), z')."""
        return {"cosine": mean_over_directions(negative_cosine, self.predictor, za, zb)}
