r"""What comes before the objective's stage, in one run folder: a closed form, or learning to predict one.

The first stage's checkpoints hold its own numbers; those of the second the whole model, as every training's. A run that was
killed continues in the stage of its last checkpoint.

Distillation: a network learns to predict the embedding that a closed form has of each item.

    loss = mean over items of 1 - cos(A E(tau(x)) + a, c(x)),

where c(x) is the closed form's embedding of the item without augmentation, tau(x) one view of it, E the encoder, and A, a a
linear head that the objective does not see. The embeddings are computed once; a step costs one view and one pass of the
network. The term is from G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network" (arXiv:1503.02531),
where a network learns probabilities of classes; here it learns embeddings, without labels.
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.items import Array, ArrayItems, Items
from vergence.learn.encoders.networks import width
from vergence.learn.encoders.patch_maps import PatchEncoder
from vergence.learn.methods.core import Draws, Gather, ImageMethod, Method, MultiView
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.gje import GJE
from vergence.learn.training import loop
from vergence.learn.training.config import FitConfig
from vergence.learn.training.metrics import Progress, Recorder, State
from vergence.learn.training.optimizers import build_optimizer
from vergence.learn.views.images import Views
from vergence.utils.linalg import upcast_half

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["FirstStage", "distill", "epochs_for", "finish_first", "is_fitted"]

EPOCHS, STEPS = 15, 2_340  # at least: few images need many passes (docs/guides/trained.md)


class FirstStage(Recorder):
    """A recorder for the first stage: checkpoints and lines go to that of the whole training, metrics and the model do not."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def log(self, line: str) -> None:
        """Adds a line for people."""
        self.recorder.log(line)

    def save_checkpoint(self, state: State) -> None:
        """Replaces the last checkpoint."""
        self.recorder.save_checkpoint(state)

    def load_checkpoint(self) -> State | None:
        """Returns the last checkpoint; None where there is none."""
        return self.recorder.load_checkpoint()


def is_fitted(fabric: "Fabric", recorder: Recorder) -> bool:
    """Returns whether the first stage is done: the last checkpoint is one of the second."""
    state = recorder.load_checkpoint()
    fabric.barrier()  # read by every process before one writes
    return state is not None and bool(state["model"])


def inner(method: PairedMethod) -> PairedMethod:
    """Returns the closed form inside a method's encoder as a method of its own, which shares its tensors."""
    encoder = next(m for m in method.encoder.modules() if isinstance(m, PatchEncoder))
    return PairedMethod(nn.Sequential(encoder), GJE(encoder.settings.dim))


def finish_first(fabric: "Fabric", method: Method, config: FitConfig, recorder: Recorder) -> None:
    """Gives a teacher a copy of the student, and saves the checkpoint that the second stage starts from."""
    method.reset_teacher()
    if fabric.is_global_zero:
        optimizer = build_optimizer(config, method)
        recorder.save_checkpoint({"model": method.state_dict(), "optimizer": optimizer.state_dict(), "step": 0})
    fabric.barrier()


# Distillation


def epochs_for(n: int, batch_size: int) -> int:
    """Returns the passes over n items in which a network learns a closed form: 15, and as many as 2,340 steps take."""
    return max(EPOCHS, -(-STEPS // max(1, n // batch_size)))


class ItemsWithTargets(Items):
    """Items, each with a row of an array (N, D) float32, in memory or on disk, that is read next to it."""

    def __init__(self, items: Items, targets: Array) -> None:
        self.items, self.targets = items, targets
        self.shape, self.dtype, self.labels = items.shape, items.dtype, items.labels
        self.names, self.skipped = items.names, items.skipped

    def __len__(self) -> int:
        return len(self.items)

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, tuple[Any, Tensor]]]:
        """Yields (index, (items, targets)) for each index tensor; see `Items.stream`."""
        for index, x in self.items.stream(batches, workers):
            yield index, (x, torch.from_numpy(self.targets[index.cpu().numpy()]))

    def subset(self, index: Tensor) -> "ItemsWithTargets":
        """Returns the items of an index with their targets, which are copied; see `Items.subset`."""
        return ItemsWithTargets(self.items.subset(index), self.targets[index.cpu().numpy()])


class Distillation(ImageMethod):
    """An encoder and a linear head that predict an embedding of the item, of width ``dim``, from a view of it."""

    def __init__(self, encoder: nn.Module, shape: tuple[int, ...], dim: int) -> None:
        super().__init__(encoder, shape)
        self.head = nn.Linear(width(encoder, shape), dim)

    def inputs(self, views: Views) -> MultiView:
        """Returns a view of each item, and its target."""
        return _ViewWithTarget(views)

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the cosine distance between the prediction from a view (B, ...) and the target (B, D), in [0, 2]."""
        x, c = views
        z = self.encoder(x)
        self.observe(z, gather)
        return {"distance": gather(1 - F.cosine_similarity(upcast_half(self.head(z)), c)).mean()}


class _ViewWithTarget(MultiView):
    """A view of each item, and its target as it is."""

    def apply(self, x: Any, draws: Draws) -> tuple[Tensor, ...]:
        items, targets = x
        return *super().apply(items, draws), targets


class _OwnCheckpoints(FirstStage):
    """A recorder whose checkpoints are kept apart from those of the objective's stage; a line says how far each epoch came."""

    def save_checkpoint(self, state: State) -> None:
        self.recorder.save_checkpoint({"model": {}, "optimizer": {}, "step": state["step"], "distillation": state})

    def load_checkpoint(self) -> State | None:
        state = self.recorder.load_checkpoint()
        return None if state is None else state["distillation"]

    def append(self, row: dict[str, Any]) -> None:
        if "effective_rank" in row:
            words = f"cosine distance {row['distance']:.4f}, effective rank {row['effective_rank']:.1f}"
            self.log(f"distillation, epoch {row['epoch']:g}: {words}")


def distill(
    fabric: "Fabric",
    method: Method,
    items: Items,
    targets: Array,
    views: Views,
    config: FitConfig,
    recorder: Recorder,
    *,
    epochs: int,
    shape: tuple[int, ...],
    progress: Progress | None = None,
) -> None:
    """Trains a method's encoder to predict targets, and saves the checkpoint that the objective's stage starts from.

    The encoder has the full learning rate here, whatever ``config.encoder_lr`` says. Arguments are those of
    `vergence.learn.training.loop.fit`, and ``targets`` (N, D) float32, the embedding of each item, ``epochs`` in place of
    those of ``config``, and the ``shape`` (C, H, W) of the images as the encoder sees them.

    Raises:
        vergence.learn.training.loop.Interrupted: SIGINT or SIGTERM came; a checkpoint was saved.
        ValueError: The loss is not finite, or the embedding collapsed under ``strict``.
    """
    steps = dataclasses.replace(config, epochs=epochs, encoder_lr=1.0, knn_every=0)
    encoder = copy.deepcopy(method.encoder)  # several processes wrap and change what they train
    with torch.random.fork_rng(devices=[]):  # the head's first weights are a function of the seed alone
        torch.manual_seed(loop.seed_of(config.seed, "initialise", 1))
        student = Distillation(encoder, shape, targets.shape[1]).to(memory_format=torch.channels_last)
    on_device = items.to(fabric.device) if isinstance(items, ArrayItems) else items
    both = ItemsWithTargets(on_device, targets)
    loop.fit(fabric, student, both, views, steps, _OwnCheckpoints(recorder), progress=progress)
    method.encoder.load_state_dict(student.encoder.state_dict())
    finish_first(fabric, method, config, recorder)
