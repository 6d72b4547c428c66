"""The contract of a method, which turns a batch of views into named loss terms."""

import abc
from collections.abc import Callable, Mapping

from torch import Tensor, nn

__all__ = ["Gather", "Method"]

Gather = Callable[[Tensor], Tensor]


class Method(nn.Module, abc.ABC):
    """A model with its loss: training calls it on each batch and optimizes its parameters."""

    encoder: nn.Module

    @abc.abstractmethod
    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns named scalar terms; the loss is their sum.

        Args:
            views: Views of this process's items, each (B, ...).
            gather: Function from this process's embeddings (B, D) to those of all processes (N B, D), with gradient;
                called once per view, so that N processes compute the loss of one process with the whole batch.
        """

    def before_step(self, progress: float) -> None:
        """Sets what follows a schedule; ``done`` is the share of all steps that precede this one, in [0, 1).

        It is a function of the step alone, so a resumed run follows the same schedule. Does nothing by default.
        """

    def after_step(self) -> None:
        """Updates what follows the optimizer's step (a teacher's weights, an objective's bank); called without gradient.

        Does nothing by default.
        """

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings (B, D), detached, whose spread training monitors; None by default."""
        return None

    def diagnostics(self) -> dict[str, float]:
        """Returns numbers to monitor about the last batch, never part of the loss; none by default."""
        return {}

    def notices(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """Returns messages about what the `diagnostics` show to be wrong, by the diagnostic's name; none by default."""
        return {}

    def advice(self) -> str:
        """Returns what to try, besides optimizer, batch size and views, where the embedding collapses; empty by default."""
        return ""
