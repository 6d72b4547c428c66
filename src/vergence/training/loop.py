"""One flat loop on Lightning Fabric: devices, precision and processes are Fabric's, the rest is read from top to bottom.

The randomness of a step is a function of (seed, step) alone. So a run that was killed goes on bit for bit, and N processes
draw what one process would: they draw for the whole batch and take their part.
"""

import contextlib
import hashlib
import logging
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from vergence.data.items import ArrayItems, Items, PairItems
from vergence.data.views import Views
from vergence.evaluation import collapse
from vergence.evaluation.parts.spread import effective_rank, normalized_std
from vergence.methods.core import Method
from vergence.training.batchnorm import with_global_batch_norm
from vergence.training.config import FitConfig
from vergence.training.folder import RunFolder
from vergence.training.optimizers import build_optimizer, learning_rate

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = [
    "Interrupted",
    "fit",
    "launch",
    "precision",
    "require_batches",
    "require_shareable",
    "seed_of",
]

LOG_EVERY = 50  # steps between two rows of metrics.jsonl; each row costs one synchronization with the device
PATIENCE = 2  # epochs in a row that show a collapse before it is called one
AGREE_EVERY = 10  # steps between two agreements of several processes on whether to stop

Monitor = Callable[[nn.Module], dict[str, float]]


class Interrupted(Exception):
    """Training was asked to stop, and did so with a checkpoint."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} after step {step}")
        self.signum, self.step = signum, step


class Progress(Protocol):
    """What the loop tells somebody who watches."""

    def __call__(self, *, step: int, total: int, epoch: int, row: dict[str, float]) -> None:
        """Is called after every step; ``row`` holds the last metrics."""


def launch(config: FitConfig) -> "Fabric":
    """Starts the processes and returns the engine; call it once, before anything is read or written.

    Raises:
        ValueError: The device is not there.
    """
    from lightning_fabric import Fabric  # slow to import where torchmetrics is installed, and not needed to use a run

    cuda = torch.cuda.is_available()
    if config.device == "cuda" and not cuda:
        raise ValueError("device 'cuda' was asked for, but torch finds no CUDA device; use --device cpu")
    accelerator = "cuda" if cuda and config.device != "cpu" else "cpu"
    if accelerator == "cuda" and config.devices > torch.cuda.device_count():
        raise ValueError(f"{config.devices} devices were asked for, found {torch.cuda.device_count()}; lower --devices")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its notes on precision are in the run's facts
    fabric = Fabric(
        accelerator=accelerator,
        devices=config.devices,
        num_nodes=config.nodes,
        strategy="ddp" if config.devices * config.nodes > 1 else "auto",
        precision=precision(config, accelerator),
    )
    fabric.launch()
    return fabric


def precision(config: FitConfig, accelerator: str) -> Any:
    """Returns Fabric's name of the precision; ``auto`` is bfloat16 autocast where the hardware multiplies bfloat16."""
    if config.precision == "auto":
        fast = torch.cuda.is_bf16_supported() if accelerator == "cuda" else torch.cpu._is_avx512_bf16_supported()
        return "bf16-mixed" if fast else "32-true"
    return {"fp32": "32-true", "bf16": "bf16-mixed", "fp64": "64-true"}[config.precision]


def seed_of(seed: int, purpose: str, count: int) -> int:
    """Returns the seed of one purpose at one step: independent of the process, of what came before, and of a kill.

    Example:
        >>> seed_of(0, "views", 7) == seed_of(0, "views", 7) != seed_of(0, "views", 8)
        True
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}/{count}".encode(), digest_size=7).digest(), "big")


def fit(
    fabric: "Fabric",
    method: Method,
    items: Items,
    views: Views | None,
    config: FitConfig,
    run: RunFolder,
    *,
    monitor: Monitor | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda message: print(f"warning: {message}", file=sys.stderr),
) -> None:
    """Trains ``method`` to the last epoch, from the run's last checkpoint if it has one, and writes the model.

    Args:
        fabric: The engine that `launch` gave.
        method: What is trained; changed in place.
        items: Training items; labels are not read.
        views: Makes two views of a batch; None where ``items`` are pairs already.
        config: How.
        run: Where checkpoints, metrics and the model go; written by the first process only.
        monitor: Called with the encoder every ``config.knn_every`` epochs; its numbers go to the metrics.
        progress: Called after every step.
        warn: Told once, by the first process, if the embedding collapses.

    Raises:
        Interrupted: SIGINT or SIGTERM came; a checkpoint was written.
        ValueError: The batch is larger than the data, the loss is not finite, or the embedding collapsed under ``strict``.
    """
    steps = require_batches(len(items), config)
    if fabric.world_size > 1:
        method = with_global_batch_norm(method, on_gpu=fabric.device.type == "cuda")
    state = run.load_checkpoint()
    if state is not None:
        method.load_state_dict(state["model"])
    model, optimizer = fabric.setup(method, build_optimizer(config, method.parameters()))
    step = 0
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        if fabric.is_global_zero:
            run.forget_after(step)
    items = items.to(fabric.device) if isinstance(items, ArrayItems | PairItems) else items
    journal = _Journal(run, method, config, steps, fabric.is_global_zero, monitor, progress, warn)
    saved = time.monotonic()

    with _stop_signal() as stopped, torch.random.fork_rng():
        model.train()
        while step < config.epochs * steps:
            for x in _epoch(items, config, fabric, step // steps, step % steps, steps):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config, step, steps)
                torch.manual_seed(seed_of(config.seed, "noise", step))
                terms = model(_views(views, x, config, fabric, step), gather=_gather(fabric))
                loss = torch.stack(list(terms.values())).sum()
                fabric.backward(loss)
                if config.clip is not None:
                    fabric.clip_gradients(model, optimizer, max_norm=config.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                method.after_step()
                step += 1
                journal.note(step, {"loss": loss, **terms})
                stop = _agreed(stopped, fabric, step)
                if fabric.is_global_zero and (stop or time.monotonic() - saved > config.checkpoint_seconds):
                    run.save_checkpoint(_state(method, optimizer, step))
                    saved = time.monotonic()
                if stop:
                    raise Interrupted(stop, step)
    fabric.barrier()
    if fabric.is_global_zero:
        run.save_checkpoint(_state(method, optimizer, step))
        run.save_model(method.state_dict())


def require_shareable(config: FitConfig) -> None:
    """Raises a ValueError unless the processes can share a batch evenly, each at least two items."""
    processes = config.devices * config.nodes
    if config.batch_size < 2 * processes or config.batch_size % processes:
        raise ValueError(
            f"expected a batch of at least {2 * processes} that {processes} processes can share evenly, "
            f"found {config.batch_size}; change --batch-size"
        )


def require_batches(n: int, config: FitConfig) -> int:
    """Returns the steps of an epoch of n items; an incomplete last batch is left out, and the next epoch draws another.

    Raises:
        ValueError: The batch is larger than the data, or not to be shared by the processes evenly.
    """
    require_shareable(config)
    if config.batch_size > n:
        raise ValueError(f"batch of {config.batch_size} is larger than the data, {n} items; lower --batch-size")
    return n // config.batch_size


def _state(method: Method, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    return {"model": method.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def _epoch(items: Items, config: FitConfig, fabric: "Fabric", epoch: int, start: int, steps: int) -> Iterator[Any]:
    """Yields this process's part of each batch of an epoch, from batch ``start`` on, on the device."""
    generator = torch.Generator().manual_seed(seed_of(config.seed, "order", epoch))
    order = torch.randperm(len(items), generator=generator)[: steps * config.batch_size].view(steps, -1)
    part = order.chunk(fabric.world_size, dim=1)[fabric.global_rank]
    for _, x in items.stream(part[start:], workers=config.workers):
        yield fabric.to_device(x)


def _views(views: Views | None, x: Any, config: FitConfig, fabric: "Fabric", step: int) -> tuple[Tensor, ...]:
    if views is None:
        return tuple(x)
    generator = torch.Generator().manual_seed(seed_of(config.seed, "views", step))
    part = slice(fabric.global_rank * len(x), (fabric.global_rank + 1) * len(x))
    draws = [views.draw(config.batch_size, generator) for _ in range(2)]
    return tuple(views.apply(x, {name: draw[part] for name, draw in drawn.items()}) for drawn in draws)


def _gather(fabric: "Fabric") -> Callable[[Tensor], Tensor]:
    if fabric.world_size == 1:
        return lambda z: z
    return lambda z: fabric.all_gather(z, sync_grads=True).flatten(0, 1)  # type: ignore[union-attr]


class _Journal:
    """What is written and told of the steps. Terms stay on the device until a row is due, which waits for them once."""

    def __init__(
        self,
        run: RunFolder,
        method: Method,
        config: FitConfig,
        steps: int,
        first: bool,
        monitor: Monitor | None,
        progress: Progress | None,
        warn: Callable[[str], None],
    ) -> None:
        self.run, self.method, self.config, self.steps, self.first = run, method, config, steps, first
        self.monitor, self.progress, self.warn, self.warned = monitor, progress, warn, False
        self.noticed: dict[str, int] = {}
        self.row: dict[str, float] = {}
        self.symptoms = 0
        self._restart()

    def _restart(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count, self.since = 0, time.monotonic()

    def note(self, step: int, terms: dict[str, Tensor]) -> None:
        """Takes the terms of a step; writes a row every `LOG_EVERY` steps and at the end of an epoch."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach()
        self.count += 1
        if step % LOG_EVERY == 0 or step % self.steps == 0:
            self._write(step)
        if self.progress is not None:
            epoch = (step - 1) // self.steps + 1
            self.progress(step=step, total=self.config.epochs * self.steps, epoch=epoch, row=self.row)

    def _write(self, step: int) -> None:
        rate = self.config.batch_size * self.count / (time.monotonic() - self.since)
        means = {name: value.item() / self.count for name, value in self.sums.items()}
        lr = learning_rate(self.config, step - 1, self.steps)
        self.row = {"step": step, "epoch": round(step / self.steps, 4), **means, "lr": lr, "images_per_second": rate}
        _require_finite(self.row, step)
        if self.first and step % self.steps == 0:
            self.row |= self._watch(step // self.steps)
        if self.first:
            self.run.append(self.row)
        self._restart()

    def _watch(self, epoch: int) -> dict[str, float]:
        """Returns the epoch's diagnostics, the monitor's numbers among them, and warns of a collapse."""
        z = self.method.embeddings()
        spread = {} if z is None else {"std": normalized_std(z).mean().item(), "effective_rank": effective_rank(z).item()}
        numbers = spread | self.method.diagnostics()
        message = None if z is None else collapse.warning(numbers, advice=self.method.advice())
        self.symptoms = 0 if message is None else self.symptoms + 1
        if self.symptoms < PATIENCE:  # many a run begins narrow and opens in its second epoch
            message = None
        if message is not None and self.config.strict:
            self.run.log(message)
            raise ValueError(f"{message} (epoch {epoch}, stopped by --strict)")
        if message is not None and not self.warned:
            self.run.log(message)
            self.warn(message)
            self.warned = True
        self._notice(numbers)
        every = self.config.knn_every
        if self.monitor is not None and every and (epoch % every == 0 or epoch == self.config.epochs):
            self.method.eval()
            numbers |= self.monitor(self.method.encoder)
            self.method.train()
        return numbers

    def _notice(self, numbers: dict[str, float]) -> None:
        """Tells once of each thing that an objective's numbers have shown to go wrong for some epochs in a row."""
        found = self.method.notices(numbers)
        told = {name: count for name, count in self.noticed.items() if name in found or count >= PATIENCE}
        self.noticed = told | {name: told.get(name, 0) + 1 for name in found}
        for name, message in found.items():
            if self.noticed[name] == PATIENCE:
                self.run.log(message)
                self.warn(message)


def _require_finite(row: dict[str, float], step: int) -> None:
    bad = [name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
    if bad:
        raise ValueError(
            f"{', '.join(bad)} not finite by step {step}: lower --lr, add --warmup-epochs or --clip 1, or check the data"
        )


def _agreed(stopped: list[int], fabric: "Fabric", step: int) -> int:
    """Returns the signal that stops all processes after this step, or 0."""
    if fabric.world_size == 1:
        return stopped[-1] if stopped else 0
    if step % AGREE_EVERY:
        return 0
    flag = torch.tensor(stopped[-1] if stopped else 0, device=fabric.device)
    return int(fabric.all_reduce(flag, reduce_op="max").item())  # type: ignore[union-attr]


@contextlib.contextmanager
def _stop_signal() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM so that the step under way ends first; a second one acts at once."""
    caught: list[int] = []

    def note(signum: int, frame: object) -> None:
        caught.append(signum)
        signal.signal(signum, before[signal.Signals(signum)])

    try:
        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        before = {}
    try:
        yield caught
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
