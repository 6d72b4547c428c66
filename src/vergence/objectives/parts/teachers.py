"""Teachers: copies of a network whose weights follow it, and the schedules of their momentum."""

import copy
import math
from typing import TypeVar

import torch
from torch import nn

__all__ = ["cosine", "follow", "frozen_copy", "linear"]

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Returns a copy of a network without gradient."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float, *, buffers: bool = False) -> None:
    """Moves the teacher's parameters, w <- m w + (1 - m) student.

    Args:
        teacher: Network that follows, changed in place.
        student: Network of the same parameters.
        momentum: Weight m of the past, in [0, 1].
        buffers: Whether the student's buffers, such as running means, are copied; by default the teacher keeps its own.

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


def linear(start: float, end: float, progress: float) -> float:
    """Returns start + (end - start) p, for the share p of the steps that are done, in [0, 1] (I-JEPA).

    Example:
        >>> linear(0.5, 1.0, 0.5)
        0.75
    """
    return start + (end - start) * progress
