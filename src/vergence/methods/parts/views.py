"""What a method sees of each item in a step: several views, or views with random numbers such as masks.

Sampling and applying are separate steps, as for `vergence.data.views.Views`: every process samples for the whole batch and
applies its own part, so that N processes train as one does.
"""

import abc
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vergence.data.views import Views

__all__ = ["Draws", "MultiView"]

Draws = tuple[dict[str, Tensor], ...]
Numbers = Callable[[int, torch.Generator], dict[str, Tensor]]


class MultiView(abc.ABC):
    """The tensors of a step, from a batch of items."""

    @abc.abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Returns the parameters of n items, on the CPU, each of shape (n, ...); ``generator`` is a CPU generator."""

    @abc.abstractmethod
    def apply(self, x: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """Returns the tensors, each (B, ...), of items (B, ...) that B sampled parameters (any part of a `draw`) describe."""


class SeveralViews(MultiView):
    """One view of each kind.

    Args:
        kinds: The kinds of views, such as two of one kind, or large and small crops.
    """

    def __init__(self, kinds: Sequence[Views]) -> None:
        self.kinds = tuple(kinds)

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Returns the parameters of each view."""
        return tuple(views.draw(n, generator) for views in self.kinds)

    def apply(self, x: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """Returns the views."""
        return tuple(views.apply(x, drawn) for views, drawn in zip(self.kinds, draws, strict=True))


class OneView(MultiView):
    """One view, and random numbers of the method for each item, such as a mask.

    Args:
        views: Kind of the view.
        numbers: Function of n and a CPU generator that returns tensors (n, ...) by name; they follow the view in this order.
    """

    def __init__(self, views: Views, numbers: Numbers) -> None:
        self.views, self.numbers = views, numbers

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Returns the parameters of the view, and the numbers."""
        return self.views.draw(n, generator), self.numbers(n, generator)

    def apply(self, x: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        """Returns the view, and the numbers on its device."""
        drawn, numbers = draws
        return self.views.apply(x, drawn), *(number.to(x.device, non_blocking=True) for number in numbers.values())
