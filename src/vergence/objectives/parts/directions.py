"""The directions of losses that predict one view's embedding from the other's."""

from torch import Tensor

__all__ = ["directions"]


def directions(za: Tensor, zb: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the pairs (query, target) of a loss, each (B, D): a -> b and b -> a; targets get no gradient.

    A teacher's embeddings are targets alone: where one of the two has no gradient, only the other is a query. So with a teacher,
    whose method calls an objective with (student a, teacher b) and (student b, teacher a), each call has one direction.

    Example:
        >>> import torch
        >>> za, zb = torch.zeros(4, 2, requires_grad=True), torch.ones(4, 2)
        >>> len(directions(za, zb)), len(directions(zb, za)), len(directions(za, za)), len(directions(zb, zb))
        (1, 1, 2, 2)
    """
    both = [(za, zb.detach()), (zb, za.detach())]
    return [pair for pair in both if pair[0].requires_grad] or both
