"""The contract of a method, which turns a batch of views into named loss terms, and what methods on images share."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vergence.data.config import ViewConfig
from vergence.learn.encoders.networks import width
from vergence.learn.objectives.core import Objective, settings
from vergence.learn.views.images import Views, local_side
from vergence.utils.checks import expect

__all__ = ["Gather", "ImageMethod", "Method", "MultiView", "Side"]

Gather = Callable[[Tensor], Tensor]
Numbers = Callable[[int, torch.Generator], dict[str, Tensor]]
Draws = tuple[dict[str, Tensor], ...]
Side = str  # ``context``, the first view, ``target``, the second, or the name of a modality


class MultiView:
    """What a method sees of each item in a step: views, and random numbers such as a mask.

    Sampling and applying are separate steps, as for `vergence.learn.views.images.Views`: every process samples for the whole
    batch and applies its own part, so that N processes train as one does.

    Args:
        kinds: Kinds of the views, such as two of one kind, or large and small crops.
        numbers: Function of n and a CPU generator that returns tensors (n, ...) by name; they follow the views in this order.
    """

    def __init__(self, *kinds: Views, numbers: Numbers | None = None) -> None:
        self.kinds, self.numbers = kinds, numbers

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Returns the parameters of n items, on the CPU, each of shape (n, ...): of each view, then the numbers."""
        drawn = [views.draw(n, generator) for views in self.kinds]
        return *drawn, {} if self.numbers is None else self.numbers(n, generator)

    def apply(self, x: Any, draws: Draws) -> tuple[Tensor, ...]:
        """Returns the tensors, each (B, ...), of items (B, ...) that B sampled parameters (any part of a `draw`) describe."""
        several = self.kinds[0].several(x, draws[0])
        if len(several) == 1 or len(self.kinds) == 1:
            others = zip(self.kinds[1:], draws[1:-1], strict=True)
            several = several[0], *(kind.apply(x, drawn) for kind, drawn in others)
        return *several, *(number.to(x.device, non_blocking=True) for number in draws[-1].values())


class Method(nn.Module, abc.ABC):
    """A model with its loss: training calls it on each batch and optimizes its parameters.

    Attributes:
        encoder: Items (B, ...) -> embeddings (B, D), which evaluation and detection use.
        objective: Objective on pairs of embeddings; None for methods without one.
        projector: Head between the encoder and the objective.
        target_encoder: Encoder of the second view; None where both views have one.
        progress: Share of the steps that are done, in [0, 1), which schedules follow.
        n_local: Number of the last views that are small crops, as `inputs` makes them.
    """

    def __init__(self, encoder: nn.Module, objective: Objective | None = None, projector: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.objective, self.progress, self.n_local = encoder, objective, 0.0, 0
        self.projector = nn.Identity() if projector is None else projector
        self.target_encoder: nn.Module | None = None
        self._last: Tensor | None = None

    @abc.abstractmethod
    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns named scalar terms; the loss is their sum.

        Args:
            views: What `inputs` makes of this process's items, each (B, ...); by default all views.
            gather: Function from a tensor (B, ...) of this process's items to that of all processes' (N B, ...), with gradient,
                so that N processes compute the loss of one process with the whole batch.
        """

    def branch(self, side: Side) -> nn.Sequential:
        """Returns encoder and head of a side: items (B, ...) -> embeddings (B, D); by default both sides share them."""
        return nn.Sequential(self.encoder, self.projector)

    def target_network(self) -> nn.Module:
        """Returns the network of the targets."""
        return self.branch("target")

    def reset_teacher(self) -> None:
        """Makes teachers and students equal, after weights were loaded into `encoder`; by default there is no teacher."""

    def inputs(self, views: Views) -> MultiView:
        """Returns the tensors of each item that a step uses, from views of the run's strengths; by default all views."""
        self.n_local = views.local_views
        return MultiView(*views.kinds())

    def require_views(self, config: ViewConfig, shape: Sequence[int]) -> None:
        """Raises a ValueError where the encoder does not take the small crops of items of a shape."""
        if config.local_views:
            expect(len(shape) == 3, "images for local_views", f"items of shape {tuple(shape)}", "leave local_views out")
            side, most = local_side(config, shape[1]), min(shape[1:])
            expect(2 <= side <= most, f"local_size from 2 to the images' {most} pixels", side)
            require_crops(self.encoder, (shape[0], side, side), (shape[0], shape[1], shape[1]))

    def before_step(self, progress: float) -> None:
        """Sets the share of the steps that are done; called before each step."""
        self.progress = progress

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the parameters that the optimizer leaves out in this step, called before it; none by default."""
        return ()

    def after_step(self) -> None:
        """Updates what follows the optimizer's step (a teacher's weights, an objective's bank); called without gradient."""

    def observe(self, z: Tensor, gather: Gather) -> None:
        """Stores the embeddings (B, D) of a batch, from all processes, for `embeddings`."""
        self._last = gather(z.detach().float()).detach()

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings (B, D), detached, whose spread training monitors; None before the first."""
        return self._last

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
        encoder: Images (B, C, H, W) -> embeddings (B, D), as `vergence.learn.encoders.building.encoder` returns it: statistics of
            the input, then the network.
        shape: Shape (C, H, W) of the images as the encoder sees them.
    """

    multi_crop: ClassVar[bool] = False  # whether it sees more than one view
    vectors: ClassVar[bool] = False  # whether it trains on vectors, too
    small: ClassVar[Mapping[str, Any]] = settings()  # settings of the recipe NAME_small; ``{patch}`` is the side of a patch

    def __init__(self, encoder: nn.Module, shape: Sequence[int]) -> None:
        super().__init__(encoder)
        self.shape = tuple(shape)

    def require_views(self, config: ViewConfig, shape: Sequence[int]) -> None:
        """Raises a ValueError where more views are asked for than the method sees, too."""
        one = self.multi_crop or (config.n_views == 2 and not config.local_views)
        found = f"n_views={config.n_views} and local_views={config.local_views}"
        expect(one, f"one view of each image for {type(self).__name__}", found, "leave them out, or choose an objective or dino")
        super().require_views(config, shape)

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Shape of a view of an image, a square with its height; for vectors that of the vectors."""
        return self.shape if len(self.shape) == 1 else (self.shape[0], self.shape[1], self.shape[1])


def require_crops(encoder: nn.Module, crop: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raises a ValueError unless an encoder maps small crops to as many features as images; both have shapes (C, H, W)."""
    try:
        found, whole = width(encoder, crop), width(encoder, shape)
        reason = "" if found == whole else f"{found} features instead of {whole}"
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0]
    advice = f"set `local_size={shape[1]}` or `local_views=0`, or of a transformer `encoder='timm:NAME,dynamic_img_size=True'`"
    expect(not reason, f"an encoder that takes crops of {crop[1]} pixels", f"one that does not ({reason})", advice)
