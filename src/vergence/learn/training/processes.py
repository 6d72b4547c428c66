"""The processes of a training: torch's launcher starts them and ends all where one ends early; batch statistics are of all."""

import itertools
import logging
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vergence.learn.objectives.core import Objective
from vergence.utils.linalg import upcast_half

__all__ = ["NotStarted", "in_processes"]

M = TypeVar("M", bound=nn.Module)

REPORTED = {128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes after signals, which the first process has reported


class NotStarted(ValueError):
    """A training on several processes was called in one that no launcher has started."""

    def __init__(self, devices: int, nodes: int) -> None:
        machines = f", and --nnodes {nodes}, on each machine" if nodes > 1 else ""
        found = f"expected {devices * nodes} processes, found one that no launcher has started"
        super().__init__(f"{found}; start the program with torchrun --nproc-per-node {devices}{machines}")
        self.devices, self.nodes = devices, nodes


def in_processes(arguments: Sequence[str], processes: int, out: Path) -> None:
    """Runs ``vergence`` with these arguments in several processes of this machine, which torch's launcher starts and watches.

    Raises:
        ValueError: A process ended early without a message of its own.
        SystemExit: A signal came, or the first process has printed what is wrong.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    where: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "127.0.0.1"}
    logging.disable()  # of this process, which does nothing else
    try:
        with tempfile.TemporaryDirectory() as folder:
            logs = DefaultLogsSpecs(log_dir=folder)
            config = LaunchConfig(1, 1, processes, logs_specs=logs, max_restarts=0, run_id="vergence", **where)
            elastic_launch(config, sys.executable)("-m", "vergence", *arguments)
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    except ChildFailedError as error:
        rank, failure = next(iter(error.failures.items()))  # the others were ended for it
        if (code := failure.exitcode) in REPORTED or (rank == 0 and code == 2):
            sys.exit(code)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        what = f"process {rank + 1} of {processes} ({how}) ended early, and the training with it"
        again = f"vergence train --resume {shlex.quote(str(out))}"
        raise ValueError(f"{what}; continue from the last checkpoint with: {again}") from None
    finally:
        logging.disable(logging.NOTSET)


# Batch normalization over all processes, so that N processes normalize as one with the whole batch


def with_global_batch_norm(module: M, *, on_gpu: bool) -> M:
    """Makes every batch normalization see all processes' items, in place; torch's own needs a GPU.

    Those of an objective stay as they are: it gets all processes' embeddings.
    """
    gathered = {part for outer in module.modules() if isinstance(outer, Objective) for part in outer.modules()}
    for parent in [part for part in module.modules() if part not in gathered]:
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                new = nn.SyncBatchNorm.convert_sync_batchnorm(child) if on_gpu else _GlobalBatchNorm.of(child)
                setattr(parent, name, new)
    return module


class _GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and variance of all processes' items, on any device."""

    @classmethod
    def of(cls, norm: nn.modules.batchnorm._BatchNorm) -> "_GlobalBatchNorm":
        new = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        new.load_state_dict(norm.state_dict())
        for own, theirs in zip(new.parameters(), norm.parameters(), strict=True):
            own.requires_grad_(theirs.requires_grad)  # a teacher's have no gradient
        return new.to(next(itertools.chain(norm.parameters(), norm.buffers())).dtype).train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        y = upcast_half(x)
        n = y.numel() // y.shape[1] * torch.distributed.get_world_size()
        mean = all_reduce(y.sum(dims)) / n
        centered = y - mean.view(shape)
        var = all_reduce(centered.square().sum(dims)) / n
        with torch.no_grad():
            if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.detach(), rate)
                self.running_var.lerp_(var.detach() * n / (n - 1), rate)
        normal: Tensor = centered * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)
