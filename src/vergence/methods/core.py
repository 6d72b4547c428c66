"""The contract of a method, which turns a batch of views into named loss terms, and what methods on images share."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from vergence.data.views import Views
from vergence.methods.parts.views import MultiView, SeveralViews
from vergence.objectives.core import Objective

__all__ = ["Gather", "ImageMethod", "Method", "mean_over"]

Gather = Callable[[Tensor], Tensor]


class Method(nn.Module, abc.ABC):
    """A model with its loss: training calls it on each batch and optimizes its parameters.

    Attributes:
        encoder: Items (B, ...) -> embeddings (B, D), which evaluation and detection use.
        objective: Objective on pairs of embeddings; None for methods without one.
        projector: Head between the encoder and the objective.
        target_encoder: Encoder of the second view; None where both views have one.
    """

    encoder: nn.Module
    objective: Objective | None
    projector: nn.Module
    target_encoder: nn.Module | None

    @abc.abstractmethod
    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns named scalar terms; the loss is their sum.

        Args:
            views: What `inputs` makes of this process's items, each (B, ...); by default two views.
            gather: Function from a tensor (B, ...) of this process's items to that of all processes' (N B, ...), with gradient,
                so that N processes compute the loss of one process with the whole batch.
        """

    @abc.abstractmethod
    def branch(self, side: Literal["context", "target"]) -> nn.Sequential:
        """Returns encoder and head of a side: items (B, ...) -> embeddings (B, D)."""

    @abc.abstractmethod
    def target_network(self) -> nn.Module:
        """Returns the network of the targets."""

    @abc.abstractmethod
    def reset_teacher(self) -> None:
        """Makes teachers and students equal, after weights were loaded into `encoder`."""

    def inputs(self, views: Views) -> MultiView:
        """Returns the tensors of each item that a step uses, from views of the run's strengths; by default two views."""
        return SeveralViews((views, views))

    def before_step(self, progress: float) -> None:
        """Called before each step with the share of the steps that are done, in [0, 1), which schedules follow."""

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the parameters that the optimizer leaves out in this step, called before it; none by default."""
        return ()

    def after_step(self) -> None:
        """Updates what follows the optimizer's step (a teacher's weights, an objective's bank); called without gradient."""

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings (B, D), detached, whose spread training monitors; None by default."""
        return None

    def diagnostics(self) -> dict[str, float]:
        """Returns numbers to monitor about the last batch, never part of the loss; none by default."""
        return {}

    def notices(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """Returns messages about problems that the `diagnostics` show, by the diagnostic's name; none by default."""
        return {}

    def advice(self) -> str:
        """Returns what to try, besides optimizer, batch size and views, if the embedding collapses; empty by default."""
        return ""


class ImageMethod(Method):
    """A method on images that has one encoder and no density over pairs of embeddings.

    A concrete class is built by ``Cls(encoder, shape, *, ...)`` with its paper's values as defaults. Random numbers are part of
    `inputs`, so that several processes train as one does.

    Args:
        encoder: Images (B, C, H, W) -> embeddings (B, D), as `vergence.encoders.networks.encoder` returns it: statistics of the
            input, then the network.
        shape: Shape (C, H, W) of the images as the encoder sees them.
    """

    package: ClassVar[str | None] = None  # of an extra that the loss needs; a trained method is used without it
    small: ClassVar[Mapping[str, Any]] = {}  # settings of the recipe NAME_small; ``{patch}`` is the side of a patch

    def __init__(self, encoder: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.shape, self.progress = encoder, tuple(shape), 0.0
        self.objective, self.projector, self.target_encoder = None, nn.Identity(), None
        self._last: Tensor | None = None

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Shape of a view of an image, a square with its height; for vectors that of the vectors."""
        return self.shape if len(self.shape) == 1 else (self.shape[0], self.shape[1], self.shape[1])

    def branch(self, side: Literal["context", "target"]) -> nn.Sequential:
        """Returns the encoder, which both sides share."""
        return nn.Sequential(self.encoder, self.projector)

    def target_network(self) -> nn.Module:
        """Returns the encoder."""
        return self.encoder

    def reset_teacher(self) -> None:
        """Does nothing: there is no teacher."""

    def before_step(self, progress: float) -> None:
        """Sets the share of the steps that are done, which determines a teacher's momentum."""
        self.progress = progress

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings (B, D), detached."""
        return self._last

    def observe(self, z: Tensor, gather: Gather) -> None:
        """Stores the embeddings (B, D) of a batch, from all processes, for `embeddings`."""
        self._last = gather(z.detach().float()).detach()


def mean_over(items: Tensor, gather: Gather) -> Tensor:
    """Returns the mean of a number of each item, (B,) -> (), over the items of all processes."""
    return gather(items).mean()
