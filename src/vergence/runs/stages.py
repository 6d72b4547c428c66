"""The stages of a training with their progress bars: an encoder as it comes, a closed form, steps, or one after another."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from vergence.data.sources import Data
from vergence.data.views import Views
from vergence.encoders.config import Patches
from vergence.methods.core import Method
from vergence.methods.paired import PairedMethod
from vergence.runs import distilled
from vergence.training import closed_form, distillation, loop, staged
from vergence.training.config import FitConfig, ModelConfig
from vergence.training.folder import RunFolder
from vergence.training.metrics import Progress
from vergence.training.monitor import online_knn
from vergence.utils.terminal import bar

__all__ = ["Fit", "fit_of"]

Fit = Callable[[Any, Method, Data, RunFolder, Views | None], None]


def fit_of(model: ModelConfig) -> "Fit":
    """Returns the function that trains a model."""
    if model.freeze:
        return _keep
    if model.distill is not None:
        return _fit_distilled
    if not model.encoder.closed_form:
        return _fit
    return _fit_staged if model.encoder.takes_steps else _fit_closed_form


def _keep(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Saves an encoder as it is, and trains nothing."""
    method.to(fabric.device)
    folder.save_model(method.state_dict())


def _fit(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Trains with a progress bar."""
    config = folder.config.fit
    with _steps("epoch", config.epochs, len(opened.train), config, shown=fabric.is_global_zero) as progress:
        monitor = online_knn(opened, folder.metadata.crop_size(), fabric.device)
        loop.fit(fabric, method, opened.train, views, config, folder, monitor=monitor, progress=progress)


@contextlib.contextmanager
def _steps(label: str, epochs: int, n: int, config: FitConfig, *, shown: bool) -> Iterator[Progress | None]:
    """Shows a bar of the steps of some epochs of n items; yields what is called after each."""
    steps, done = n // config.batch_size, 0
    with bar(f"{label} 1/{epochs}", epochs * steps * config.batch_size, "images") as advance:

        def progress(step: int, row: dict[str, float]) -> None:
            nonlocal done
            note = "  ".join(f"{k} {row[k]:.4g}" for k in row if k not in _UNSHOWN)
            advance((step - done) * config.batch_size, note=note, label=f"{label} {(step - 1) // steps + 1}/{epochs}")
            done = step

        yield progress if shown else None


def _fit_closed_form(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits in closed form with a progress bar, the whole run or its first stage."""
    assert views is not None and isinstance(method, PairedMethod), "pairs and methods on images were refused"
    config, size = folder.config, folder.metadata.crop_size()
    first = config.model.encoder.takes_steps
    if first and (config.model.init is not None or staged.is_fitted(fabric, folder)):
        return
    assert isinstance(config.model.encoder, Patches), "of a closed form"
    settings = config.model.encoder.complete(folder.metadata.shape)
    with bar("dictionary", closed_form.total_images(len(opened.train), settings), "images") as advance:

        def progress(images: int, label: str) -> None:
            advance(images, label=label)

        shown = progress if fabric.is_global_zero else _unseen
        fit = staged.fit_first if first else closed_form.fit
        fit(fabric, method, opened.train, views, config, size, folder, shown)


def _fit_staged(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits the closed form inside an encoder, then trains what is behind it."""
    _fit_closed_form(fabric, method, opened, folder, views)
    _fit(fabric, method, opened, folder, views)


def _fit_distilled(fabric: Any, method: Method, opened: Data, folder: RunFolder, views: Views | None) -> None:
    """Fits a closed form in a folder of its own, trains the encoder to predict its embedding, then trains with the objective."""
    assert views is not None, "other data than images were refused"
    config, shape = folder.config.fit, folder.metadata.shape
    if not staged.is_fitted(fabric, folder):
        first = distilled.closed_form(fabric, opened, folder)
        _fit_closed_form(fabric, *first)
        targets = distilled.targets(fabric, first[0], opened.train, first[2])
        epochs = config.distill_epochs
        assert epochs is not None, "see `description.fitted`"
        with _steps("distillation", epochs, len(opened.train), config, shown=fabric.is_global_zero) as progress:
            learn = functools.partial(distillation.fit, epochs=epochs, shape=shape, progress=progress)
            learn(fabric, method, opened.train, targets, views, config, folder)
    distilled.forget(fabric, folder)
    _fit(fabric, method, opened, folder, views)


def _unseen(images: int, label: str) -> None:
    """Shows no progress."""


_UNSHOWN = {"step", "epoch", "lr", "images_per_second", "threads", "std", "variance_cv"}
