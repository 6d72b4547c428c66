"""The directions of losses that predict one view's embedding from the other's."""

import torch
from torch import Tensor, nn

from vergence.objectives.parts.packages import lightly_module
from vergence.utils.linalg import upcast_half


def directions(za: Tensor, zb: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the pairs (query, target) of a loss, each (B, D): a -> b and b -> a; targets get no gradient.

    A teacher's embeddings are targets alone: where one of the two has no gradient, only the other is a query. So with a teacher,
    whose method calls an objective with (student a, teacher b) and (student b, teacher a), each call has one direction.

    Example:
        >>> za, zb = torch.zeros(4, 2, requires_grad=True), torch.ones(4, 2)
        >>> len(directions(za, zb)), len(directions(zb, za)), len(directions(za, za)), len(directions(zb, zb))
        (1, 1, 2, 2)
    """
    both = [(za, zb.detach()), (zb, za.detach())]
    return [pair for pair in both if pair[0].requires_grad] or both


def negative_cosine(kind: str, predictor: nn.Module, za: Tensor, zb: Tensor) -> Tensor:
    """Returns the mean of -cos(q(z), z') over the pairs and the `directions`, a scalar in [-1, 1]; the cosine is lightly's.

    Args:
        kind: The objective's name, for the message where lightly is missing.
        predictor: Predictor q.
        za: Embeddings (B, D).
        zb: Embeddings of the other view (B, D).

    Example:
        >>> round(negative_cosine("byol", nn.Identity(), torch.eye(2), torch.eye(2)).item(), 4)
        -1.0
    """
    loss = lightly_module(kind, "negative_cosine_similarity").NegativeCosineSimilarity()
    return torch.stack([loss(predictor(z), target) for z, target in directions(upcast_half(za), upcast_half(zb))]).mean()
