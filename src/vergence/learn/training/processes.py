"""The processes of a training on one machine: the first starts the others, and where one ends early, all end with one message.

The others make the same call of `vergence.train` in an interpreter of their own: neither the command nor a user's script runs
again.
"""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from vergence.learn.objectives.core import Objective
from vergence.utils.checks import refuse
from vergence.utils.linalg import upcast_half

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["CALL", "together"]

M = TypeVar("M", bound=nn.Module)

FIRST, CALL = "VERGENCE_FIRST_PROCESS", "VERGENCE_TRAIN"  # environment variables of the others: the first's number, the call
EVERY = 0.2  # seconds between two looks at the other processes
NOTICED = 2.0  # seconds in which a process that has ended is noticed for certain
GRACE = 10.0  # seconds in which a process reports the end of another by an exception, before it is ended
STOPPED = {128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes after signals, on which all agree

_others: list[subprocess.Popen[bytes]] = []  # what this process has started, by rank from 1


def start_others(fabric: "Fabric", devices: int, nodes: int, call: Mapping[str, Any] | None) -> None:
    """Makes a call of `vergence.train` in ``devices - 1`` more processes, unless a launcher outside starts the processes.

    They get the environment variables of ``torch.distributed`` (MASTER_ADDR, MASTER_PORT, NODE_RANK, LOCAL_RANK, WORLD_SIZE).

    Args:
        fabric: The engine, before it is launched.
        devices: Processes of this machine.
        nodes: Machines.
        call: Arguments of the call, as JSON has them; None where they are objects of this process.

    Raises:
        ValueError: There is no such call.
    """
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    environment = getattr(fabric.strategy, "cluster_environment", None)
    if not isinstance(environment, LightningEnvironment) or environment.creates_processes_externally:
        return
    if call is None:
        hint = "save them and give paths and names package.module:NAME, or start the script with torchrun"
        refuse(f"paths and names with --devices {devices}", "data, a network or code that this process alone holds", hint)
    where = {"MASTER_ADDR": environment.main_address, "MASTER_PORT": environment.main_port}
    where |= {"NODE_RANK": environment.node_rank(), "LOCAL_RANK": 0, "WORLD_SIZE": devices * nodes}
    os.environ.update({name: str(value) for name, value in where.items()})
    modules = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)  # where code of the user's may be
    for rank in range(1, devices):
        also = {"LOCAL_RANK": str(rank), FIRST: str(os.getpid()), CALL: json.dumps(call), "PYTHONPATH": modules}
        command = [sys.executable, "-c", "from vergence.learn.runs.train import join; join()"]
        _others.append(subprocess.Popen(command, env={**os.environ, **also}, stdin=subprocess.DEVNULL))


@contextlib.contextmanager
def together(out: Path) -> Iterator[None]:
    """Ends this process, and those that it started, when another process of the training ends early.

    Args:
        out: Run folder, for the message.

    Raises:
        ValueError: Another process ended, and a collective operation of this one failed for it. A process that does not notice
            within ten seconds prints the message and exits with 2.

    Example:
        >>> with together(Path("runs/a")):
        ...     pass
    """
    watch = _Watch(out)
    watch.start()
    try:
        yield
    except BaseException as error:
        lost = isinstance(error, RuntimeError) and watch.found.wait(NOTICED)
        _end_others()
        if lost:
            raise ValueError(watch.message) from error
        raise
    finally:
        watch.done.set()


def _end_others() -> None:
    for other in _others:
        other.kill()
        other.wait()


class _Watch(threading.Thread):
    """Looks at the other processes until ``done`` is set.

    Attributes:
        found: Set when another process has ended early.
        message: Which one, and what to do.
        done: Set when this process has no use of the others anymore.
    """

    def __init__(self, out: Path) -> None:
        super().__init__(name="vergence-processes", daemon=True)
        self.found, self.done = threading.Event(), threading.Event()
        self.message, self._out = "", out

    def run(self) -> None:
        while not self.done.wait(EVERY):
            if FIRST in os.environ and os.getppid() != int(os.environ[FIRST]):
                self._find("process 1")
                self._stop(os.environ.get("LOCAL_RANK") == "1")
            for rank, code in enumerate((other.poll() for other in _others), 1):
                if code:
                    self._find(f"process {rank + 1} of {len(_others) + 1}{_how(code)}")
                if code and code not in STOPPED:
                    _end_others()
                    if not self.done.wait(GRACE):
                        self._stop(True)

    def _find(self, who: str) -> None:
        again = f"vergence train --resume {shlex.quote(str(self._out))}"
        self.message = f"{who} ended early, and the training with it; go on from the last checkpoint with: {again}"
        self.found.set()

    def _stop(self, say: bool) -> None:
        """Ends this process, which may be waiting for the one that has ended."""
        if say:
            print(f"error: {self.message}", file=sys.stderr, flush=True)
        os._exit(2)


def _how(code: int) -> str:
    """Returns how a process ended.

    Example:
        >>> _how(-9), _how(1)
        (' (SIGKILL)', ' (exit code 1)')
    """
    return f" (exit code {code})" if code > 0 else f" ({signal.Signals(-code).name})"


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
