"""What the data path, views, objective and loop cost on top of the bare encoder: both measured in turn, on one machine.

The whole step is `loop.fit` itself, not a copy of it.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from vergence import objectives
from vergence.training import build
from vergence.training import loop
from vergence.runs.run import Run
from vergence.data.config import DataConfig, ViewConfig
from vergence.training.config import FitConfig, ModelConfig, RunConfig
from vergence.data.items import ArrayItems
from vergence.utils.devices import described
from vergence.training.folder import RunFolder
from vergence.utils.terminal import bar, table
from vergence.data.views import ImageViews

__all__ = ["bench"]

STEPS_SECONDS = 6.0  # length of one round of the bare step, about


def bench(
    *,
    what: str = "step",
    encoder: str = "small",
    objective: str = "vje",
    size: int = 32,
    batch_size: int = 256,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dim: int = 128,
    rounds: int = 5,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measures images per second of the bare encoder and of the whole, in turn, and their ratio.

    ``objective``: what an objective costs in a step (loss, gradient and update on random embeddings; twice the loss where it has
    a teacher, whose own forward passes are left out), as a share of the encoder's step on the same batch; ``objective="all"``
    measures every one.
    ``step``: forward and backward pass of the encoder on two ready views, against the training loop on a data set in memory
    (views, objective, optimizer, metrics). ``embed``: forward pass, against `Run.write_embeddings` to a ``.npz``.

    Args:
        what: ``step``, ``embed`` or ``objective``.
        encoder: As for `train`.
        objective: As for `train`.
        size: Side of the images, 3 channels.
        batch_size: Images in a step.
        precision: ``auto``, ``fp32`` or ``bf16``; ``embed`` computes in float32.
        device: ``auto``, ``cpu`` or ``cuda``.
        dim: Features of the embeddings of ``objective``.
        rounds: Rounds; the ratio is the median of the rounds' ratios.
        out: Ledger to add the row to, or None.

    Returns:
        The row.
    """
    fit = FitConfig(
        epochs=1,
        batch_size=batch_size,
        optimizer="sgd",
        precision=precision,
        device=device,
        knn_every=0,
        checkpoint_seconds=1e9,
    )
    fabric = loop.launch(fit)
    if what == "objective":
        return _objectives(encoder, objective, size, dim, rounds, fit, fabric, out)
    measure = {"step": _step, "embed": _embed}[what]
    bare, whole = measure(ModelConfig(encoder=encoder, objective=objective), fit, fabric, size)
    pairs = []
    with bar(f"bench {what}", rounds + 1, "rounds") as advance:
        for _ in range(rounds + 1):
            pairs.append((bare(), whole()))
            advance(1)
    pairs = pairs[1:]  # the first round warms up
    row = {
        "measurement": f"bench {what}",
        "encoder": encoder,
        "objective": objective,
        "size": size,
        "batch_size": batch_size,
        "precision": loop.precision(fit, fabric.device.type) if what == "step" else "32-true",
        "device": described(fabric.device),
        "torch": torch.__version__,
        "commit": build.commit(),
        "rounds": rounds,
        "bare_images_per_second": round(statistics.median(b for b, _ in pairs), 1),
        "whole_images_per_second": round(statistics.median(w for _, w in pairs), 1),
        "ratio": round(statistics.median(w / b for b, w in pairs), 3),
    }
    table(f"vergence bench {what}", ["", "value"], [[name, str(value)] for name, value in row.items()])
    _keep(row, out)
    return row


def _keep(row: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


Measured = tuple[Callable[[], float], Callable[[], float]]


def _step(model: ModelConfig, fit: FitConfig, fabric: Any, size: int) -> Measured:
    views = ImageViews(ViewConfig(blur=0.0), size)
    images = torch.randint(0, 256, (fit.batch_size, 3, size, size), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    pair = [views(images.to(fabric.device).contiguous(memory_format=torch.channels_last), generator) for _ in range(2)]
    method = _method(model, size).to(fabric.device)
    once = _bare(method, pair, _autocast(fit, fabric))

    steps = _steps(once, fabric.device)

    def whole() -> float:
        many = ArrayItems(images.repeat(steps, 1, 1, 1))
        with tempfile.TemporaryDirectory() as place:
            config = RunConfig(data=DataConfig(source="random"), model=model, fit=fit)
            run = RunFolder.create(Path(place) / "run", config, {})
            loop.fit(fabric, _method(model, size), many, views, fit, run, warn=lambda message: None)
            rows = [row for row in run.metrics() if "images_per_second" in row]
        return float(statistics.mean(row["images_per_second"] for row in rows))

    return lambda: _rate(once, steps, fit.batch_size, fabric.device), whole


def _embed(model: ModelConfig, fit: FitConfig, fabric: Any, size: int) -> Measured:
    images = torch.randint(0, 256, (fit.batch_size, 3, size, size), dtype=torch.uint8)
    on_device = images.to(fabric.device).contiguous(memory_format=torch.channels_last)
    method = _method(model, size).to(fabric.device).eval()

    @torch.inference_mode()
    def once() -> None:
        method.encoder(on_device)

    steps = _steps(once, fabric.device)
    items = ArrayItems(images.repeat(steps, 1, 1, 1))
    folder = RunFolder(Path(), RunConfig(data=DataConfig(source="random"), model=model), {"shape": [3, size, size]})
    run = Run(folder, method, fabric.device)

    def whole() -> float:
        with tempfile.TemporaryDirectory() as place:
            began = time.perf_counter()
            run.write_embeddings(items, Path(place) / "embeddings.npz", batch_size=fit.batch_size)
            return len(items) / (time.perf_counter() - began)

    return lambda: _rate(once, steps, fit.batch_size, fabric.device), whole


def _objectives(
    encoder: str, objective: str, size: int, dim: int, rounds: int, fit: FitConfig, fabric: Any, out: Path | None
) -> dict[str, Any]:
    """Measures the bare step and each objective in turn; returns the row."""
    images = torch.randint(0, 256, (fit.batch_size, 3, size, size), dtype=torch.uint8)
    pair = [images.to(fabric.device).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    bare = _bare(_method(ModelConfig(encoder=encoder), size).to(fabric.device), pair, _autocast(fit, fabric))
    names = objectives.names() if objective == "all" else [objective]
    losses = {name: _loss(name, fit.batch_size, dim, fabric.device) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in ("", *names)}
    with bar("bench objective", rounds + 1, "rounds") as advance:
        for _ in range(rounds + 1):
            seconds[""].append(1 / _rate(bare, 1, 1, fabric.device))
            for name in names:
                seconds[name].append(1 / _rate(losses[name], 10, 1, fabric.device))
            advance(1)
    step = statistics.median(seconds[""][1:])  # the first round warms up
    record = {
        "measurement": "bench objective",
        "encoder": encoder,
        "size": size,
        "batch_size": fit.batch_size,
        "dim": dim,
        "precision": loop.precision(fit, fabric.device.type),
        "device": described(fabric.device),
        "torch": torch.__version__,
        "commit": build.commit(),
        "rounds": rounds,
        "step_seconds": round(step, 4),
        "objective_seconds": {name: round(statistics.median(seconds[name][1:]), 5) for name in names},
        "share": {
            name: round(statistics.median(s / b for s, b in zip(seconds[name][1:], seconds[""][1:], strict=True)), 5)
            for name in names
        },
    }
    found = [[name, f"{record['objective_seconds'][name] * 1e3:.1f} ms", f"{record['share'][name]:.2%}"] for name in names]
    table(f"vergence bench objective: {encoder}'s step takes {step:.3f} s", ["", "loss", "of the step"], found)
    _keep(record, out)
    return record


def _loss(name: str, n: int, dim: int, device: torch.device) -> Callable[[], None]:
    """Returns one pass of an objective: loss, gradient and update."""
    torch.manual_seed(0)
    kind = objectives.get(name)
    made, calls = kind(dim).to(device), 1 if kind.teacher is None else 2
    za = torch.randn(n, dim, device=device)
    zb = 0.8 * za + 0.6 * torch.randn(n, dim, device=device)
    pair = [z.requires_grad_() for z in (za, zb)]

    def once() -> None:
        torch.stack([term for _ in range(calls) for term in made(*pair).values()]).sum().backward()
        for p in (*pair, *made.parameters()):
            p.grad = None
        with torch.no_grad():
            made.update(*(z.detach() for z in pair))

    return once


def _bare(method: Any, pair: list[torch.Tensor], autocast: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    """Returns forward and backward pass of an encoder on two ready views."""

    def once() -> None:
        with autocast():
            z = [method.encoder(x) for x in pair]
        torch.stack([part.float().square().mean() for part in z]).sum().backward()
        for p in method.parameters():
            p.grad = None

    return once


def _method(model: ModelConfig, size: int) -> Any:
    method = build.build_method(model, (3, size, size), None, torch.full((3,), 0.5), torch.full((3,), 0.25))
    return method.to(memory_format=torch.channels_last)


def _autocast(fit: FitConfig, fabric: Any) -> Callable[[], AbstractContextManager[Any]]:
    if loop.precision(fit, fabric.device.type) == "bf16-mixed":
        return lambda: torch.autocast(fabric.device.type, torch.bfloat16)
    return nullcontext


def _steps(once: Callable[[], None], device: torch.device) -> int:
    once()
    return max(2, round(STEPS_SECONDS * _rate(once, 2, 1, device)))


def _rate(once: Callable[[], None], steps: int, images: int, device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        once()
    _wait(device)
    return steps * images / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
