r"""Bootstrap Your Own Latent (BYOL: Grill et al., 2020), arXiv:2006.07733.

Loss            2 - 2 cos(q(z_a), z'_b)  +  2 - 2 cos(q(z_b), z'_a)              (eq. 2, in both directions)
Predictor       q: Linear-BatchNorm-ReLU-Linear with a hidden layer of 4096
Targets         z' from a teacher, w' <- m w' + (1 - m) w, without gradient
Schedule        m = 1 - (1 - 0.99) (cos(pi k / K) + 1) / 2 at step k of K

The two directions are added, as in the paper; lightly's tutorials take the mean of the negative cosines.
m starts at 0.99, as in the paper's shorter runs (0.996 for 1,000 epochs). Without a teacher (``teacher=False``) the targets are
the student's own embeddings without gradient. The predictor's batch normalization sees one view, of all processes, at a time.

Shapes: B pairs, D features. Terms: means over pairs; no units. The loss defines no density.
"""

from torch import Tensor
from torch.nn import functional as F

from vergence.learn.encoders.networks import projector
from vergence.learn.objectives.core import Objective, settings
from vergence.learn.objectives.parts.teachers import mean_over_directions
from vergence.utils.checks import require_count

__all__ = ["BYOL"]


def similarity(p: Tensor, target: Tensor) -> Tensor:
    """Returns mean_n cos(p_n, z'_n), a scalar, for p = q(z) and targets (B, D).

    Eq. 2 is 2 - 2 times this, the mean of |p_n/|p_n| - z'_n/|z'_n||^2.
    """
    return F.cosine_similarity(p, target, dim=1).mean()


class BYOL(Objective):
    """BYOL: predicts the direction of a teacher's embedding of the other view.

    Args:
        dim: Features D of the embeddings.
        hidden: Width of the predictor's hidden layer, >= 1.

    Example:
        >>> import torch
        >>> terms = BYOL(4, hidden=8)(torch.randn(16, 4), torch.randn(16, 4))
        >>> sorted(terms), 0 <= terms["cosine"].item() <= 8
        (['cosine'], True)
    """

    small = settings(projector=(512, 128), projector_norm="batch", options={"hidden": 512}, batch_size=128)
    several = True
    teacher = 0.99
    teacher_schedule = "cosine"

    def __init__(self, dim: int, *, hidden: int = 4096) -> None:
        super().__init__()
        require_count(hidden=hidden)
        self.dim = dim
        self.predictor = projector(dim, (hidden, dim), "batch")

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the only term, ``cosine``, in [0, 8]: twice the mean over the `directions` of 2 - 2 cos(q(z), z')."""
        return {"cosine": 4 - 4 * mean_over_directions(similarity, self.predictor, za, zb)}
