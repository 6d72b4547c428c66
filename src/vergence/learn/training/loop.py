"""One flat loop on Lightning Fabric: devices, precision and processes are Fabric's, the rest is read from top to bottom.

The randomness of a step is a function of (seed, step) alone. So a run that was killed resumes bit for bit, and N processes
sample what one process would: each samples for the whole batch and takes its part.
"""

import contextlib
import hashlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vergence.data.items import ArrayItems, Items, PairItems, contexts
from vergence.learn.methods.core import Method
from vergence.learn.training.config import FitConfig
from vergence.learn.training.metrics import Metrics, Monitor, Progress, Recorder
from vergence.learn.training.optimizers import build_optimizer, learning_rate, load_optimizer, set_learning_rate
from vergence.learn.training.processes import NotStarted, with_global_batch_norm
from vergence.learn.views.images import Views
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.devices import cpu_threads, fast_bfloat16

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Interrupted", "fit", "launch", "precision", "require_batches", "require_shareable", "seed_of"]
__all__ += ["stop_signal"]

AGREE_EVERY = 10  # steps between two agreements of several processes on whether to stop
ASKED = signal.NSIG  # in place of a signal: ``progress`` asked for the end


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal, after saving a checkpoint; no Exception, so that a sweep that catches those ends, too."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} after step {step}")
        self.signum, self.step = signum, step


def launch(config: FitConfig) -> "Fabric":
    """Joins this process with the others and returns the engine; call it once, before anything is read or written.

    Raises:
        ValueError: The device is not available.
        NotStarted: There are to be several processes, and no launcher has started this one.
    """
    from lightning_fabric import Fabric  # slow to import where torchmetrics is installed, and not needed to use a run

    cuda = torch.cuda.is_available()
    expect(config.device != "cuda" or cuda, "a CUDA device for device 'cuda', but torch finds none", advice="use `device='cpu'`")
    accelerator = "cuda" if cuda and config.device != "cpu" else "cpu"
    if accelerator == "cuda" and config.devices > torch.cuda.device_count():
        raise ValueError(f"expected at most {torch.cuda.device_count()} devices, found {config.devices}; lower `devices`")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # the precision is in the run's metadata
    several, arithmetic = config.devices * config.nodes > 1, precision(config, accelerator)
    how: dict[str, Any] = {"strategy": "ddp" if several else "auto", "precision": arithmetic, "num_nodes": config.nodes}
    fabric = Fabric(accelerator=accelerator, devices=config.devices, **how)
    environment = getattr(fabric.strategy, "cluster_environment", None)
    if environment is not None and several and not environment.creates_processes_externally:
        raise NotStarted(config.devices, config.nodes)
    fabric.launch()
    return fabric


def precision(config: FitConfig, accelerator: str) -> Any:
    """Returns Fabric's name of the precision; ``auto`` is bfloat16 autocast where that is faster."""
    if config.precision == "auto":
        return "bf16-mixed" if fast_bfloat16(accelerator) else "32-true"
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
    recorder: Recorder,
    *,
    monitor: Monitor | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda message: terminal.note(message, "warning"),
) -> int:
    """Trains ``method`` to the last epoch, from the recorder's last checkpoint if it has one, and saves the model.

    Args:
        fabric: The engine that `launch` returned.
        method: Method to train; changed in place.
        items: Training items; labels are not read.
        views: Random views, of which the method makes what it sees of a batch; None where ``items`` are pairs already.
        config: Settings.
        recorder: Keeps checkpoints, metrics and the model; used by the first process only.
        monitor: Called with the encoder every ``config.knn_every`` epochs; its numbers are added to the metrics.
        progress: Called by the first process after every step; training ends where it returns False.
        warn: Called by the first process with each warning, once.

    Returns:
        The steps that are done.

    Raises:
        Interrupted: SIGINT or SIGTERM came; a checkpoint was saved.
        ValueError: The batch is larger than the data, the loss is not finite, or the embedding collapsed under ``strict``.
    """
    steps = require_batches(len(items), config)
    model, optimizer, state = _restore(fabric, method, config, recorder)
    step: int = state["step"]
    if step > config.epochs * steps:
        raise ValueError(f"expected a checkpoint of at most {config.epochs * steps} steps, found one of step {step}; train again")
    items = items.to(fabric.device) if isinstance(items, ArrayItems | PairItems) else items
    metrics = Metrics(recorder, method, config, steps, first=fabric.is_global_zero, monitor=monitor, warn=warn)
    metrics.load_state(state["metrics"])

    def gather(z: Tensor) -> Tensor:
        return z if fabric.world_size == 1 else fabric.all_gather(z, sync_grads=True).flatten(0, 1)  # type: ignore[union-attr]

    saved, computing = time.monotonic(), cpu_threads(config.threads or state["threads"])
    with stop_signal() as stopped, torch.random.fork_rng(), computing:
        model.train()
        for x in _batches(items, config, fabric, step, steps):
            set_learning_rate(optimizer, learning_rate(config, step, steps))
            method.before_step(step / (config.epochs * steps))
            torch.manual_seed(seed_of(config.seed, "noise", step))
            terms = model(_views(method, views, x, config, fabric, step), gather=gather)
            loss = torch.stack(list(terms.values())).sum()
            _backward(fabric, method, model, optimizer, loss, config.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            method.after_step()
            step += 1
            metrics.add(step, loss, terms)
            stop = _agreed(stopped, fabric, step, progress is not None and progress(step, metrics) is False)
            if fabric.is_global_zero and (stop or time.monotonic() - saved > config.checkpoint_seconds) and metrics.finite():
                recorder.save_checkpoint(_state(method, optimizer, step, metrics))
                saved = time.monotonic()
            if stop == ASKED:
                break
            if stop:
                raise Interrupted(stop, step)
    fabric.barrier()
    if fabric.is_global_zero:
        recorder.save_checkpoint(_state(method, optimizer, step, metrics))
        recorder.save_model(method.state_dict())
    return step


def _backward(
    fabric: "Fabric", method: Method, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, clip: float | None
) -> None:
    """Computes the gradients, drops those of frozen parameters, and bounds the norm of the others."""
    fabric.backward(loss)
    for parameter in method.frozen():
        parameter.grad = None
    if clip is not None:
        fabric.clip_gradients(model, optimizer, max_norm=clip)


def _restore(
    fabric: "Fabric", method: Method, config: FitConfig, recorder: Recorder
) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """Returns the model and the optimizer as Fabric wraps them, and the last checkpoint's step, metrics and threads."""
    if fabric.world_size > 1:
        method = with_global_batch_norm(method, on_gpu=fabric.device.type == "cuda")
    state = recorder.load_checkpoint()
    model, optimizer = fabric.setup(method, build_optimizer(config, method))  # converts parameters to the run's precision
    if state is not None:
        _load(method.load_state_dict, state["model"])
        _load(load_optimizer, optimizer, state["optimizer"], config)
    state = state or {"step": 0}
    if fabric.is_global_zero:
        recorder.drop_rows_after(state["step"])
    return model, optimizer, {"step": state["step"], "metrics": state.get("metrics") or {}, "threads": state.get("threads")}


def _load(load: Callable[..., Any], *arguments: Any) -> None:
    try:
        load(*arguments)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise ValueError(f"the checkpoint does not fit the run's description ({reason}); train again") from None


def require_shareable(config: FitConfig) -> None:
    """Raises a ValueError unless the processes can share a batch evenly, each at least two items."""
    processes = config.devices * config.nodes
    shared = f" that {processes} processes can share evenly" if processes > 1 else ""
    even = config.batch_size >= 2 * processes and config.batch_size % processes == 0
    expect(even, f"a batch of at least {2 * processes} items{shared}", config.batch_size, "change `batch_size`")


def require_batches(n: int, config: FitConfig) -> int:
    """Returns the steps of an epoch of n items; an incomplete last batch is left out, of other items in each epoch."""
    require_shareable(config)
    expect(config.batch_size <= n, f"a batch of at most the {n} training items", config.batch_size, "lower `batch_size`")
    return n // config.batch_size


def _state(method: Method, optimizer: torch.optim.Optimizer, step: int, metrics: Metrics) -> dict[str, Any]:
    state = {"model": method.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    return state | {"metrics": metrics.state(), "threads": torch.get_num_threads()}


def _batches(items: Items, config: FitConfig, fabric: "Fabric", step: int, steps: int) -> Iterator[Any]:
    """Yields this process's part of each batch from ``step`` on, of epochs of ``steps`` batches, on the device."""
    for epoch in range(step // steps, config.epochs):
        generator = torch.Generator().manual_seed(seed_of(config.seed, "order", epoch))
        order = torch.randperm(len(items), generator=generator)[: steps * config.batch_size].view(steps, -1)
        part = order.chunk(fabric.world_size, dim=1)[fabric.global_rank]
        for _, x in items.stream(part[max(0, step - epoch * steps) :], workers=config.workers):
            yield fabric.to_device(x)


def _views(method: Method, views: Views | None, x: Any, config: FitConfig, fabric: "Fabric", step: int) -> tuple[Tensor, ...]:
    if views is None:
        return tuple(x)
    inputs = method.inputs(views)
    generator = torch.Generator().manual_seed(seed_of(config.seed, "views", step))
    n = len(contexts(x))
    part = slice(fabric.global_rank * n, (fabric.global_rank + 1) * n)
    draws = inputs.draw(config.batch_size, generator)
    return inputs.apply(x, tuple({name: draw[part] for name, draw in drawn.items()} for drawn in draws))


def _agreed(stopped: list[int], fabric: "Fabric", step: int, asked: bool) -> int:
    """Returns the signal that stops all processes after this step, `ASKED` where the first one was asked to, or 0."""
    stopped += [ASKED] * asked
    if fabric.world_size == 1:
        return stopped[-1] if stopped else 0
    if step % AGREE_EVERY:
        return 0
    flag = torch.tensor(stopped[-1] if stopped else 0, device=fabric.device)
    return int(fabric.all_reduce(flag, reduce_op="max").item())  # type: ignore[union-attr]


@contextlib.contextmanager
def stop_signal() -> Iterator[list[int]]:
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
