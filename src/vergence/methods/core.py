"""The contract of a method: what turns a batch of views into named loss terms."""

import abc
from collections.abc import Callable

from torch import Tensor, nn

__all__ = ["Gather", "Method"]

Gather = Callable[[Tensor], Tensor]


class Method(nn.Module, abc.ABC):
    """A model with its loss. Training wraps it whole, calls it on a batch, and steps its parameters."""

    encoder: nn.Module

    @abc.abstractmethod
    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns named scalar terms; the loss is their sum.

        Args:
            views: Views of this process's items, each (B, ...).
            gather: Turns this process's (B, D) into all processes' (N B, D), with gradient; called once a view on
                embeddings, so that N processes compute the loss of one process with the whole batch.
        """

    def after_step(self) -> None:
        """Moves what follows the optimizer's step: a teacher's weights, an objective's bank. Called without gradient."""

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings (B, D), detached, whose spread training watches; None where there are none."""
        return None

    def diagnostics(self) -> dict[str, float]:
        """Returns numbers worth watching about the last batch; never part of the loss."""
        return {}
