"""What listens to a training: loggers and functions of the program's."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Listener", "Logger", "listeners_of"]

Listener = Callable[[dict[str, Any]], None]  # is called with a row of metrics
OnEpoch = Callable[[int, dict[str, Any]], None]  # with the number of epochs that are done, and the row at their end


class Logger(Protocol):
    """What logs numbers, such as one of `lightning.fabric.loggers`."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Logs the numbers of a step."""


def listeners_of(logger: "str | Logger | None", on_epoch: "OnEpoch | None", out: Path) -> list[Listener]:
    """Returns what is called with each row of metrics.

    Args:
        logger: ``tensorboard`` or ``csv``, which write to the folder ``logs`` of ``out``; an object; or None.
        on_epoch: Called with the number of epochs that are done, and the row at their end.
        out: The run folder.

    Raises:
        ValueError: The logger is none of these, or its package is missing.
    """
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
        if not callable(getattr(logger, "log_metrics", None)):
            wanted = "'tensorboard', 'csv' or an object with log_metrics(metrics, step)"
            raise ValueError(f"expected logger to be {wanted}, found {type(logger).__name__}")
        return logger
    from lightning_fabric.loggers.csv_logs import CSVLogger
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    kinds = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    if logger not in kinds:
        raise ValueError(f"expected logger to be 'tensorboard', 'csv' or an object with log_metrics, found {logger!r}")
    try:
        made: Logger = kinds[logger](root_dir=str(out), name="logs", version="")
    except ModuleNotFoundError as error:
        raise ValueError(f"expected the package of logger {logger!r} to be installed: {str(error).splitlines()[0]}") from None
    return made
