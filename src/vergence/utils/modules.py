"""Modes of networks."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_evaluation"]


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """Puts a module and its parts in evaluation mode; afterwards each part has its own mode again.

    Example:
        >>> net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with in_evaluation(net):
        ...     net[0].training
        False
        >>> net[0].training, net[1].training
        (True, False)
    """
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
