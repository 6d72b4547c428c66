"""What is recorded while a method trains: rows of metrics, warnings, checkpoints; the check by neighbors, and loggers."""

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vergence.data.sources import Data
from vergence.learn.evaluation import features
from vergence.learn.evaluation.accuracy import knn_accuracy
from vergence.learn.evaluation.collapse import effective_rank, normalized_std
from vergence.learn.evaluation.judgment import collapse_warning
from vergence.learn.methods.core import Method
from vergence.learn.training.config import FitConfig
from vergence.learn.training.optimizers import learning_rate
from vergence.utils.checks import expect, refuse, shown

__all__ = ["Listener", "Logger", "Progress", "Recorder", "listeners_of", "online_knn"]

LOG_EVERY = 50  # steps between two rows; each row costs one synchronization with the device
PATIENCE = 2  # epochs in a row that show a symptom before it is reported
NARROW = 0.5  # share of the first epoch's spread below which an embedding under an objective of one's own is told to narrow

RESERVED = ("step", "epoch", "loss", "lr", "images_per_second", "threads")  # names of the loop's own numbers in a row
KEPT = {"sums", "count", "collapsed", "notices", "warned", "spread"}  # of the metrics, in a checkpoint

State = dict[str, Any]
Monitor = Callable[[nn.Module], dict[str, float]]  # the encoder -> numbers to record
Progress = Callable[[int, "Metrics"], bool | None]  # the steps that are done, their metrics; False ends the training
Listener = Callable[[dict[str, Any]], None]  # is called with a row of metrics
OnEpoch = Callable[[int, dict[str, Any]], None]  # with the number of epochs that are done, and the row at their end
LOGGERS = "logger to be 'tensorboard', 'csv' or an object with log_metrics(metrics, step)"
ITEMS, QUERIES = 10_000, 2_000  # most items of the check by neighbors, and most queries among them
SHARE = 5  # one item of so many is a query
NEIGHBORS = 30


class Recorder(Protocol):
    """Keeps what the training loop writes, as `vergence.learn.training.folder.RunFolder` does; this class drops everything."""

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row of metrics."""
        return None

    def log(self, line: str) -> None:
        """Adds a line for people."""
        return None

    def save_checkpoint(self, state: State) -> None:
        """Replaces the last checkpoint."""
        return None

    def load_checkpoint(self) -> State | None:
        """Returns the last checkpoint; None where there is none."""
        return None

    def drop_rows_after(self, step: int) -> None:
        """Drops the rows of metrics behind a step."""
        return None

    def save_model(self, state: dict[str, Tensor]) -> None:
        """Keeps the trained tensors."""
        return None


class Metrics:
    """Averages the terms of the steps into rows. Terms stay on the device until a row is due, which waits for them once.

    Arguments are those of `loop.fit`; an epoch has ``steps`` steps, and only the ``first`` process records.
    """

    def __init__(
        self,
        recorder: Recorder,
        method: Method,
        config: FitConfig,
        steps: int,
        *,
        first: bool,
        monitor: Monitor | None,
        warn: Callable[[str], None],
    ) -> None:
        self.recorder, self.method, self.config, self.steps = recorder, method, config, steps
        self.first, self.monitor, self.warn, self.warned = first, monitor, warn, False
        self.row: dict[str, float] = {}  # the last one
        self.last: dict[str, Tensor] = {}  # loss and terms of the last step, on the device
        self.spread = 0.0  # of the embeddings at the end of the first epoch
        self.collapsed = 0  # epochs in a row that show a collapse
        self.notices: dict[str, int] = {}  # epochs in a row, by the name of what an objective's numbers show
        self._restart()
        if first and config.warmup_epochs > config.epochs:
            reached = f"{config.epochs} epochs end within a warm-up of {config.warmup_epochs:g}"
            warn(f"the learning rate never reaches {config.lr:g}: {reached}; lower it with `warmup_epochs`")

    def _restart(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count, self.seen, self.since = 0, 0, time.monotonic()  # steps of the row, and those of this process

    def state(self) -> State:
        """Returns what a checkpoint keeps, so that the rows after a resume are those of an uninterrupted run."""
        return {name: getattr(self, name) for name in KEPT}

    def load_state(self, state: State) -> None:
        """Continues from what `state` returned."""
        for name in KEPT & state.keys():
            setattr(self, name, state[name])

    def add(self, step: int, loss: Tensor, terms: dict[str, Tensor]) -> None:
        """Adds the loss of a step and its terms; writes a row every `LOG_EVERY` steps and at the end of an epoch."""
        _require_own_names("terms", terms)
        self.last = {name: value.detach() for name, value in {"loss": loss, **terms}.items()}
        for name, value in self.last.items():
            self.sums[name] = self.sums.get(name, 0) + value
        if not self.row and not self.count and (z := self.method.embeddings()) is not None:  # before any step changed a weight
            found = f"NaN or infinity in the encoder's output at step {step}"
            expect(z.isfinite().all(), "finite embeddings", found, "check the network, its weights and the data")
        self.count, self.seen = self.count + 1, self.seen + 1
        if step % LOG_EVERY == 0 or step % self.steps == 0:
            self._write(step)

    def now(self, step: int) -> dict[str, float]:
        """Returns the last row with the finite loss and terms of the last step, which is ``step``. Waits for the device."""
        row = {**self.row, "step": step, **{name: value.item() for name, value in self.last.items()}}
        _require_finite(row, step)
        return row

    def finite(self) -> bool:
        """Returns whether all terms since the last row are finite: a checkpoint of others is of no use. Waits for the device."""
        return all(bool(value.isfinite().all()) for value in self.sums.values())

    def _write(self, step: int) -> None:
        rate = self.config.batch_size * self.seen / (time.monotonic() - self.since)
        means = {name: value.item() / self.count for name, value in self.sums.items()}
        lr = learning_rate(self.config, step - 1, self.steps)
        self.row = {"step": step, "epoch": round(step / self.steps, 4), **means, "lr": lr, "images_per_second": rate}
        self.row["threads"] = torch.get_num_threads()
        _require_finite(self.row, step)
        if self.first and step % self.steps == 0:
            self.row |= self._diagnose(step // self.steps)
        if self.first:
            self.recorder.append(self.row)
        self._restart()

    def _diagnose(self, epoch: int) -> dict[str, float]:
        """Returns the numbers of an epoch's end, the monitor's among them, and warns of what they show."""
        z = self.method.embeddings()
        spread = {} if z is None else {"std": normalized_std(z).mean().item(), "effective_rank": effective_rank(z).item()}
        numbers = spread | _numbers(self.method.diagnostics(), self.sums)
        symptom = None if z is None else collapse_warning(numbers, z.shape[1], self.method.advice())
        self._warn_of_collapse(symptom, epoch)
        own = self.method.objective is not None and not type(self.method.objective).__module__.startswith("vergence.")
        narrow = self._narrow(numbers["std"]) if own and z is not None and symptom is None and z.shape[1] > 1 else {}
        self._warn_of_notices(self.method.notices(numbers) | narrow)
        every = self.config.knn_every
        if self.monitor is not None and every and (epoch % every == 0 or epoch == self.config.epochs):
            self.method.eval()
            numbers |= self.monitor(self.method.encoder)
            self.method.train()
        return numbers

    def _warn_of_collapse(self, message: str | None, epoch: int) -> None:
        """Warns once of a collapse that lasts; many runs start narrow and widen in their second epoch."""
        self.collapsed = 0 if message is None else self.collapsed + 1
        if message is None or self.collapsed < PATIENCE or (self.warned and not self.config.strict):
            return
        self.recorder.log(message)
        if self.config.strict:
            raise ValueError(f"{message} (epoch {epoch}, stopped by `strict=True`)")
        self.warn(message)
        self.warned = True

    def _narrow(self, spread: float) -> dict[str, str]:
        """Returns what to look at, by the name of the number, where the spread has fallen since the first epoch."""
        self.spread = self.spread or spread
        fell = f"the spread of the embedding fell from {self.spread:.2g} in the first epoch to {spread:.2g}"
        advice = "look whether the loss has a term against collapse, and a teacher if it needs one"
        return {"std": f"{fell}: {advice}"} if spread < NARROW * self.spread else {}

    def _warn_of_notices(self, notices: dict[str, str]) -> None:
        """Warns once of each problem that an objective's numbers show for some epochs in a row."""
        before = {name: count for name, count in self.notices.items() if name in notices or count >= PATIENCE}
        self.notices = before | {name: before.get(name, 0) + 1 for name in notices}
        for name, message in notices.items():
            if self.notices[name] == PATIENCE:
                self.recorder.log(message)
                self.warn(message)


def _require_own_names(what: str, values: Mapping[str, object], taken: Iterable[str] = ()) -> None:
    """Raises a ValueError where one of an objective's or a method's numbers has the name of another number of a row."""
    others = tuple(dict.fromkeys((*RESERVED, *taken)))
    for name in values:
        expect(name not in others, f"names of {what} other than {', '.join(others)}", f"'{name}'", "give it another name")


def _numbers(diagnostics: Mapping[str, Any], terms: Iterable[str]) -> dict[str, float]:
    """Returns diagnostics as numbers, which code from outside the library may return as tensors."""
    _require_own_names("diagnostics", diagnostics, terms)
    numbers: dict[str, float] = {}
    for name, value in diagnostics.items():
        try:
            numbers[name] = value if isinstance(value, int) else float(value)
        except (TypeError, ValueError, RuntimeError):
            refuse("a number for each name of diagnostics", f"{name} of type {type(value).__name__}", "reduce it")
    return numbers


def _require_finite(row: dict[str, float], step: int) -> None:
    bad = ", ".join(name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value))
    advice = "lower `lr`, add `warmup_epochs=5` or `clip=1`, or check the data"
    expect(not bad, "finite losses", f"NaN or infinity in {bad} at step {step}", advice)


# The monitor: nearest neighbors among part of the labeled training items


def online_knn(opened: Data, size: int | None, device: torch.device) -> Monitor | None:
    """Returns a function that classifies held-out training items by the nearest neighbors in an encoder's embeddings.

    A fifth of at most 10,000 labeled training items are queries, the others their neighbors. The test part is never read, so that
    settings may be chosen by this number and the test part stays blind to the choice. The encoder has been trained on the
    queries' inputs, without their labels: the number is for comparisons between runs, not for reports. The encoder, on
    ``device``, sees a central crop of ``size`` pixels per side, None for vectors. For fewer than five labeled items or fewer than
    two classes there is no function.
    """
    labels = opened.train.labels
    index = torch.zeros(0, dtype=torch.int64) if labels is None else (labels >= 0).nonzero().flatten()
    index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:ITEMS]].sort().values
    count = min(QUERIES, len(index) // SHARE)
    if labels is None or len(labels[index].unique()) < 2 or count == 0:
        return None
    items = opened.train.subset(index)
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(1))
    queries, bank = (items.subset(index.sort().values) for index in order.split([count, len(items) - count]))

    def check(encoder: nn.Module) -> dict[str, float]:
        parts = bank, queries
        (z, index), (q, index_q) = (features.collect_features(encoder, part, size=size, device=device) for part in parts)
        assert bank.labels is not None and queries.labels is not None
        k = min(NEIGHBORS, len(z))
        accuracy = knn_accuracy(z, bank.labels[index], q, queries.labels[index_q], ks=(k,))
        return {"knn": accuracy[k]["majority"]}

    return check


# What listens to a training: loggers and functions of the program's


class Logger(Protocol):
    """What logs numbers, such as one of `lightning.fabric.loggers`."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Logs the numbers of a step."""


def listeners_of(logger: "str | Logger | None", on_epoch: "OnEpoch | None", out: Path) -> list[Listener]:
    """Returns what is called with each row of metrics; loggers by name write to the folder ``logs`` of the run folder."""
    listeners: list[Listener] = []
    if logger is not None:
        listeners.append(functools.partial(_log, _logger(logger, out)))
    if on_epoch is not None:
        listeners.append(functools.partial(_epoch, on_epoch))
    return listeners


def _log(logger: Logger, row: dict[str, Any]) -> None:
    numbers = {key: value for key, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
    logger.log_metrics(numbers, int(numbers.pop("step")))
    if callable(save := getattr(logger, "save", None)):
        save()


def _epoch(call: OnEpoch, row: dict[str, Any]) -> None:
    if "loss" in row and float(row["epoch"]).is_integer():
        call(int(row["epoch"]), row)


def _logger(logger: "str | Logger", out: Path) -> Logger:
    if not isinstance(logger, str):
        expect(callable(getattr(logger, "log_metrics", None)), LOGGERS, type(logger).__name__)
        return logger
    from lightning_fabric.loggers.csv_logs import CSVLogger
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    kinds = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    expect(logger in kinds, LOGGERS, shown(logger))
    try:
        made: Logger = kinds[logger](root_dir=str(out), name="logs", version="")
    except ModuleNotFoundError as error:
        refuse(f"the package of logger {logger!r} to be installed", str(error).splitlines()[0])
    return made
