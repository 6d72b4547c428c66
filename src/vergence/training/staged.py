"""Training in two stages, in one run folder: a closed form, and a network behind it with an objective.

The first stage's checkpoints hold its sums; those of the second the whole model, as every training's. A run that was killed
continues in the stage of its last checkpoint. See `vergence.training.distillation` for another first stage.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vergence.data.items import Items
from vergence.data.views import Views
from vergence.encoders.patch_maps import PatchEncoder
from vergence.methods.core import Method
from vergence.methods.paired import PairedMethod
from vergence.objectives.gje import GJE
from vergence.training import closed_form
from vergence.training.config import FitConfig, ModelConfig, RunConfig
from vergence.training.metrics import Recorder, State
from vergence.training.optimizers import build_optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["FirstStage", "finish_first", "fit_first", "is_fitted", "require_one_encoder"]


class FirstStage:
    """A recorder for the first stage: checkpoints and lines go to another one, rows of metrics and the model do not.

    Args:
        recorder: Recorder of the whole training.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.log = recorder, recorder.log

    def save_checkpoint(self, state: State) -> None:
        """Replaces the last checkpoint."""
        self.recorder.save_checkpoint(state)

    def load_checkpoint(self) -> State | None:
        """Returns the last checkpoint; None where there is none."""
        return self.recorder.load_checkpoint()

    def append(self, row: dict[str, Any]) -> None:
        """Drops the row: metrics count the second stage's steps."""

    def drop_rows_after(self, step: int) -> None:
        """Does nothing: there are no rows."""

    def save_model(self, state: dict[str, Tensor]) -> None:
        """Drops the model, which the second stage completes."""


def require_one_encoder(config: ModelConfig) -> None:
    """Raises a ValueError where an encoder with a closed form is one of two."""
    if config.encoder.closed_form and config.target_encoder is not None:
        raise ValueError(
            "expected no target_encoder with the encoder 'patches-mlp', whose closed form is of one kind of view; leave it out"
        )


def is_fitted(fabric: "Fabric", recorder: Recorder) -> bool:
    """Returns whether the first stage is done: the last checkpoint is one of the second."""
    state = recorder.load_checkpoint()
    fabric.barrier()  # read by every process before one writes
    return state is not None and bool(state["model"])


def fit_first(
    fabric: "Fabric",
    method: PairedMethod,
    items: Items,
    views: Views,
    config: RunConfig,
    size: int | None,
    recorder: Recorder,
    progress: closed_form.Progress,
) -> None:
    """Fits the closed form inside a method's encoder, and saves the checkpoint that the second stage starts from.

    See `closed_form.fit_closed_form` for the arguments.
    """
    encoder = next(m for m in method.encoder.modules() if isinstance(m, PatchEncoder))
    shared = PairedMethod(nn.Sequential(encoder), GJE(encoder.settings.dim))
    closed_form.fit_closed_form(fabric, shared, items, views, config, size, FirstStage(recorder), progress)
    finish_first(fabric, method, config.fit, recorder)


def finish_first(fabric: "Fabric", method: Method, config: FitConfig, recorder: Recorder) -> None:
    """Gives a teacher a copy of the student, and saves the checkpoint that the second stage starts from."""
    method.reset_teacher()
    if fabric.is_global_zero:
        optimizer = build_optimizer(config, method)
        recorder.save_checkpoint({"model": method.state_dict(), "optimizer": optimizer.state_dict(), "step": 0})
    fabric.barrier()
