"""Throughput of the bare encoder against the whole: what the data path, views, objective and loop cost on one machine.

Both are measured in turn. The whole step is `loop.fit` itself, and embedding the rows of `write_embeddings`, not copies of them.

    python -m experiments.speed.run step --encoder resnet18 --rounds 5
    python -m experiments.speed.run objective --objective all --batch-size 512
"""

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from experiments.ledger import environment
from tyro.conf import Positional

from vergence import objectives
from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems
from vergence.data.views import ImageViews
from vergence.detection.calibrated import fit_detector
from vergence.detection.findings import Tally
from vergence.detection.levels import Levels
from vergence.encoders.config import as_encoder
from vergence.methods.paired import PairedMethod
from vergence.runs.detector import dictionary
from vergence.runs.rows import Reading, collected, write_rows
from vergence.runs.run import embedded
from vergence.runs.score import columns_of
from vergence.training import build, closed_form, loop, recipes
from vergence.training.config import FitConfig, ModelConfig
from vergence.training.metrics import MemoryRecorder
from vergence.utils.checks import require_choice, shown
from vergence.utils.devices import describe_device
from vergence.utils.files import require_parent
from vergence.utils.terminal import bar, table

ROUND_SECONDS = float(os.environ.get("BENCH_ROUND_SECONDS", 6))  # length of one round of the bare step, about
FITTED = 3_000  # images that a closed form is fitted to, more than its directions
Measurement = Callable[[], float]  # one round: images per second, or seconds


def bench(
    what: Positional[Literal["step", "embed", "score", "objective"]] = "step",
    *,
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

    ``step``: forward and backward pass of the encoder on two ready views, against the training loop on a data set in memory
    (views, objective, optimizer, metrics). ``embed``: forward pass, against `write_embeddings` to a ``.npz``. ``score``: forward
    pass, against the rows of `score` to a ``.npz`` with a fitted detector, on a CPU by the time of its processors. A closed form,
    ``encoder="patches"``, which takes no steps, is for ``embed`` and ``score``; for ``score`` it is fitted to noise first.
    ``objective``: cost of an objective in a step (loss, gradient and update on random embeddings; twice the loss where it has
    a teacher, whose own forward passes are left out), as a share of the encoder's step on the same batch; ``objective="all"``
    measures every one.

    Args:
        what: ``step``, ``embed``, ``score`` or ``objective``.
        encoder: As for ``vergence train``.
        objective: As for ``vergence train``.
        size: Side of the images in pixels; they have 3 channels.
        batch_size: Images in a step.
        precision: ``auto``, ``fp32`` or ``bf16``; ``embed`` computes in float32.
        device: ``auto``, ``cpu`` or ``cuda``.
        dim: Number of features of the embeddings for ``objective``.
        rounds: Number of rounds after the first, which warms up; the ratio is the median of the rounds' ratios.
        out: Ledger (``.jsonl``) that the row is added to; None for none.

    Returns:
        The row.

    Raises:
        ValueError: ``what`` or a name is unknown, ``what`` needs steps that the encoder does not take, or the device is not
            available.
    """
    require_choice("what", what, ("step", "embed", "score", "objective"))
    if out is not None:
        require_parent(out)
    if as_encoder(encoder).closed_form:
        _require_no_steps(what, encoder)
        objective = "gje"
    settings = {"optimizer": "sgd", "precision": precision, "device": device, "knn_every": 0, "checkpoint_seconds": 1e9}
    fit = FitConfig(epochs=1, batch_size=batch_size, **settings)  # type: ignore[arg-type]
    fabric = loop.launch(fit)
    if what == "objective":
        row = _objective_row(encoder, objective, size, dim, rounds, fit, fabric)
    else:
        row = _ratio_row(what, ModelConfig(encoder=as_encoder(encoder), objective=objective), size, rounds, fit, fabric)
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return row


def _require_no_steps(what: str, encoder: str) -> None:
    """Raises a ValueError where steps of a closed form would be measured, or a network is behind it."""
    if what in ("step", "objective") or as_encoder(encoder).takes_steps:
        raise ValueError(
            f"expected a network for bench {what}, found encoder {shown(encoder)}; choose another --encoder, or measure "
            "embed or score of patches"
        )


def _ratio_row(what: str, model: ModelConfig, size: int, rounds: int, fit: FitConfig, fabric: Any) -> dict[str, Any]:
    """Measures bare and whole in turn, prints a table and returns the row."""
    bare, whole = {"step": _step, "embed": _embed, "score": _score}[what](model, fit, fabric, size)
    pairs = []
    with bar(f"bench {what}", rounds + 1, "rounds") as advance:
        for _ in range(rounds + 1):
            pairs.append((bare(), whole()))
            advance(1)
    pairs = pairs[1:]  # the first round warms up
    row = {
        "measurement": f"bench {what}",
        "encoder": str(model.encoder),
        "objective": model.objective,
        "size": size,
        "batch_size": fit.batch_size,
        "precision": loop.precision(fit, fabric.device.type) if what == "step" else "32-true",
        **_machine(fabric),
        "rounds": rounds,
        "bare_images_per_second": round(statistics.median(b for b, _ in pairs), 1),
        "whole_images_per_second": round(statistics.median(w for _, w in pairs), 1),
        "ratio": round(statistics.median(w / b for b, w in pairs), 3),
    }
    table(f"bench {what}", ["", "value"], [[name, str(value)] for name, value in row.items()])
    return row


def _machine(fabric: Any) -> dict[str, Any]:
    return {**environment(), "device": describe_device(fabric.device), "threads": torch.get_num_threads(), "seed": 0}


def _step(model: ModelConfig, fit: FitConfig, fabric: Any, size: int) -> tuple[Measurement, Measurement]:
    """Returns the rates of the bare step and of the training loop."""
    views = ImageViews(ViewConfig(blur=0.0), size)
    images = _images(fit.batch_size, size)
    generator = torch.Generator().manual_seed(0)
    pair = [views(images.to(fabric.device).contiguous(memory_format=torch.channels_last), generator) for _ in range(2)]
    once = _encoder_step(_method(model, size).to(fabric.device), pair, _autocast(fit, fabric))
    steps = _steps(once, fabric.device)

    def whole() -> float:
        recorder = MemoryRecorder()
        items = ArrayItems(images.repeat(steps, 1, 1, 1))
        loop.fit(fabric, _method(model, size), items, views, fit, recorder, warn=lambda message: None)
        done = [0, *(row["step"] for row in recorder.rows)]
        rates = (row["images_per_second"] for row in recorder.rows)  # of rows of different lengths
        return float(done[-1] / sum((b - a) / rate for (a, b), rate in zip(itertools.pairwise(done), rates, strict=True)))

    return lambda: _rate(once, steps, fit.batch_size, fabric.device), whole


def _embed(model: ModelConfig, fit: FitConfig, fabric: Any, size: int) -> tuple[Measurement, Measurement]:
    """Returns the rates of the bare forward pass and of writing embeddings."""
    images = _images(fit.batch_size, size)
    on_device = images.to(fabric.device).contiguous(memory_format=torch.channels_last)
    method = _method(model, size).to(fabric.device).eval()

    @torch.inference_mode()
    def once() -> None:
        method.encoder(on_device)

    steps = _steps(once, fabric.device)
    items = ArrayItems(images.repeat(steps, 1, 1, 1))

    def whole() -> float:
        with tempfile.TemporaryDirectory() as place:
            started = time.perf_counter()
            reading = Reading(size, fabric.device, fit.batch_size, workers=2)
            write_rows(embedded(method), items, Path(place) / "embeddings.npz", {"job": "embed"}, reading)
            return len(items) / (time.perf_counter() - started)

    return lambda: _rate(once, steps, fit.batch_size, fabric.device), whole


def _score(model: ModelConfig, fit: FitConfig, fabric: Any, size: int) -> tuple[Measurement, Measurement]:
    """Returns the rates of the bare forward pass and of writing scores, with a run's levels and a detector of 2,000 images."""
    images = _images(fit.batch_size, size)
    on_device = images.to(fabric.device).contiguous(memory_format=torch.channels_last)
    parts = [ArrayItems(_images(n, size)) for n in (2000, 500)]
    method = _method(model, size).to(fabric.device).eval()
    if not model.encoder.takes_steps:  # without weights it has constant embeddings, which a detector leaves out
        config = recipes.get("patches")
        items, views = ArrayItems(_images(FITTED, size)), ImageViews(config.views, size)
        closed_form.fit_closed_form(fabric, method, items, views, config, size, MemoryRecorder())
    levels = Levels(method, (3, size, size))
    if levels.patches is None:
        levels.maps = dictionary(parts[0], size, fit.workers)
        levels.to(fabric.device)
    reading = Reading(size, fabric.device, fit.batch_size, workers=2)
    training, held_out = (collected(levels, part, reading) for part in parts)
    found = fit_detector(training, held_out, levels.maps)
    clock = time.process_time if fabric.device.type == "cpu" else time.perf_counter

    @torch.inference_mode()
    def once() -> None:
        method.encoder(on_device)

    steps = _steps(once, fabric.device)
    items = ArrayItems(_images(steps * fit.batch_size, size))

    def whole() -> float:
        with tempfile.TemporaryDirectory() as place:
            started = clock()
            out = Path(place) / "scores.npz"
            function = columns_of(method, levels, found, 0.1, all_scores=False, refused={})
            write_rows(function, items, out, {}, reading, derived=Tally(len(found.calibration)))
            return len(items) / (clock() - started)

    return lambda: _rate(once, steps, fit.batch_size, fabric.device, clock), whole


def _objective_row(encoder: str, objective: str, size: int, dim: int, rounds: int, fit: FitConfig, fabric: Any) -> dict[str, Any]:
    """Measures the bare step and each objective in turn, prints a table and returns the row."""
    names = objectives.names() if objective == "all" else [objective]
    seconds = _objective_seconds(encoder, names, size, dim, rounds, fit, fabric)
    step = statistics.median(seconds[""])
    shares = {name: statistics.median(s / b for s, b in zip(seconds[name], seconds[""], strict=True)) for name in names}
    row = {
        "measurement": "bench objective",
        "encoder": encoder,
        "size": size,
        "batch_size": fit.batch_size,
        "dim": dim,
        "precision": loop.precision(fit, fabric.device.type),
        **_machine(fabric),
        "rounds": rounds,
        "step_seconds": round(step, 4),
        "objective_seconds": {name: round(statistics.median(seconds[name]), 5) for name in names},
        "share": {name: round(share, 5) for name, share in shares.items()},
    }
    body = [[name, f"{row['objective_seconds'][name] * 1e3:.1f} ms", f"{row['share'][name]:.2%}"] for name in names]
    table(f"bench objective: {encoder}'s step takes {step:.3f} s", ["", "loss", "of the step"], body)
    return row


def _objective_seconds(
    encoder: str, names: list[str], size: int, dim: int, rounds: int, fit: FitConfig, fabric: Any
) -> dict[str, list[float]]:
    """Returns the seconds of each round by the objective's name; those of the encoder's step by the empty name."""
    images = _images(fit.batch_size, size)
    pair = [images.to(fabric.device).contiguous(memory_format=torch.channels_last) for _ in range(2)]
    step = _encoder_step(_method(ModelConfig(encoder=as_encoder(encoder)), size).to(fabric.device), pair, _autocast(fit, fabric))
    losses = {name: _objective_step(name, fit.batch_size, dim, fabric.device) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in ("", *names)}
    with bar("bench objective", rounds + 1, "rounds") as advance:
        for _ in range(rounds + 1):
            seconds[""].append(1 / _rate(step, 1, 1, fabric.device))
            for name in names:
                seconds[name].append(1 / _rate(losses[name], 10, 1, fabric.device))
            advance(1)
    return {name: found[1:] for name, found in seconds.items()}  # the first round warms up


def _objective_step(name: str, n: int, dim: int, device: torch.device) -> Callable[[], None]:
    """Returns a function that computes loss, gradient and update of an objective once."""
    torch.manual_seed(0)
    kind = objectives.get(name)
    loss, calls = kind(dim).to(device), 1 if kind.teacher is None else 2
    za = torch.randn(n, dim, device=device)
    zb = 0.8 * za + 0.6 * torch.randn(n, dim, device=device)
    pair = [za.requires_grad_(), zb.requires_grad_(kind.teacher is None)]  # a teacher's embeddings get no gradient

    def once() -> None:
        torch.stack([term for _ in range(calls) for term in loss(*pair).values()]).sum().backward()
        for p in (*pair, *loss.parameters()):
            p.grad = None
        with torch.no_grad():
            loss.update(*(z.detach() for z in pair))

    return once


def _encoder_step(
    method: PairedMethod, pair: list[torch.Tensor], autocast: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], None]:
    """Returns a function that runs the encoder's forward and backward pass on two ready views once."""

    def once() -> None:
        with autocast():
            z = [method.encoder(x) for x in pair]
        torch.stack([part.float().square().mean() for part in z]).sum().backward()
        for p in method.parameters():
            p.grad = None

    return once


def _images(n: int, size: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8)


def _method(model: ModelConfig, size: int) -> PairedMethod:
    method = build.build_method(model, (3, size, size), None, torch.full((3,), 0.5), torch.full((3,), 0.25))
    assert isinstance(method, PairedMethod), "of an objective"
    return method.to(memory_format=torch.channels_last)


def _autocast(fit: FitConfig, fabric: Any) -> Callable[[], AbstractContextManager[Any]]:
    if loop.precision(fit, fabric.device.type) == "bf16-mixed":
        return lambda: torch.autocast(fabric.device.type, torch.bfloat16)
    return nullcontext


def _steps(once: Callable[[], None], device: torch.device) -> int:
    once()
    return max(2, round(ROUND_SECONDS * _rate(once, 2, 1, device)))


def _rate(
    once: Callable[[], None], steps: int, images: int, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    _wait(device)
    started = clock()
    for _ in range(steps):
        once()
    _wait(device)
    return steps * images / (clock() - started)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    tyro.cli(bench)
