"""Teachers: copies of a network whose weights follow it, the schedules of their momentum, and losses with their targets."""

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["cosine", "follow", "frozen_copy"]

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Returns a copy of a network without gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float, *, buffers: bool = False) -> None:
    """Moves the teacher's parameters, w <- m w + (1 - m) student.

    With ``buffers`` those of the student, such as running means, are copied; by default the teacher keeps its own.

    Example:
        >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
        >>> follow(teacher, student, 0.75)
        >>> teacher.weight.item()
        0.25
    """
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.lerp_(s, 1 - momentum)
    if buffers:
        for mine, other in zip(teacher.buffers(), student.buffers(), strict=True):
            mine.copy_(other)


def cosine(start: float, end: float, progress: float) -> float:
    """Returns end - (end - start) (1 + cos(pi p)) / 2, for the share p of the steps that are done, in [0, 1] (BYOL, DINO).

    Example:
        >>> [round(cosine(0.996, 1.0, p), 4) for p in (0.0, 0.5, 1.0)]
        [0.996, 0.998, 1.0]
    """
    return end - (end - start) * 0.5 * (1 + math.cos(math.pi * progress))


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


def mean_over_directions(loss: Callable[[Tensor, Tensor], Tensor], predictor: nn.Module, za: Tensor, zb: Tensor) -> Tensor:
    """Returns the mean over the `directions` of loss(q(z), z'), a scalar, for a predictor q and two views (B, D).

    Example:
        >>> round(mean_over_directions(nn.functional.l1_loss, nn.Identity(), torch.zeros(4, 2), torch.ones(4, 2)).item(), 4)
        1.0
    """
    return torch.stack([loss(predictor(z), target) for z, target in directions(za, zb)]).mean()
