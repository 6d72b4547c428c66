"""Throughput of the bare encoder against the whole: what the data path, views, objective and loop cost on one machine.

README.md says how.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from experiments import ledger
from experiments.runner import Option, hidden, parse, run
from experiments.shared import MemoryRecorder

from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems
from vergence.decide.decisions import Tally
from vergence.learn import objectives
from vergence.learn.encoders.config import as_encoder
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.runs.calibrated import fit_detector
from vergence.learn.runs.detector import dictionary
from vergence.learn.runs.embed import embedded
from vergence.learn.runs.features import RunFeatures
from vergence.learn.runs.rows import Reading, collected, write_rows
from vergence.learn.runs.score import columns_of
from vergence.learn.training import build, closed_form, loop, recipes
from vergence.learn.training.config import FitConfig, ModelConfig
from vergence.learn.views.images import ImageViews

FITTED = 3_000  # images that a closed form is fitted to, more than its directions
Once = Callable[[], None]


class Bench:
    """A network on a device, and images of noise.

    Args:
        a: The options.
        encoder: Name of the network.
    """

    def __init__(self, a: argparse.Namespace, encoder: str) -> None:
        settings = {"optimizer": "sgd", "precision": a.precision, "device": a.device, "knn_every": 0, "checkpoint_seconds": 1e9}
        self.a, self.fit = a, FitConfig(epochs=1, batch_size=a.batch_size, **settings)
        self.fabric = loop.launch(self.fit)
        self.device = self.fabric.device
        named = as_encoder(encoder)
        self.model = ModelConfig(encoder=named, objective="gje" if named.closed_form else a.objective)
        self.clock = time.process_time if a.what == "score" and self.device.type == "cpu" else time.perf_counter
        self.images = self.noise(a.batch_size)

    def noise(self, n: int) -> torch.Tensor:
        return torch.randint(0, 256, (n, 3, self.a.size, self.a.size), dtype=torch.uint8)

    def on_device(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.device).contiguous(memory_format=torch.channels_last)

    def method(self) -> PairedMethod:
        shape = (3, self.a.size, self.a.size)
        method = build.build_method(self.model, shape, None, torch.full((3,), 0.5), torch.full((3,), 0.25))
        assert isinstance(method, PairedMethod), "of an objective"
        return method.to(self.device, memory_format=torch.channels_last)

    def precision(self) -> str:
        return loop.precision(self.fit, self.device.type)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision() == "bf16-mixed":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def seconds(self, once: Once, steps: int) -> float:
        """Returns the seconds of some steps."""
        self.wait()
        started = self.clock()
        for _ in range(steps):
            once()
        self.wait()
        return self.clock() - started

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def steps(self, once: Once) -> int:
        """Returns the number of steps of a round."""
        once()
        return max(2, round(self.a.round_seconds * 2 / self.seconds(once, 2)))

    def forward(self, method: PairedMethod) -> Once:
        """Returns the bare forward pass."""
        x = self.on_device(self.images)
        return torch.inference_mode()(lambda: method.encoder(x))

    def encoder_step(self, method: PairedMethod, pair: list[torch.Tensor]) -> Once:
        """Returns the encoder's forward and backward pass on two ready views."""

        def once() -> None:
            with self.autocast():
                z = [method.encoder(x) for x in pair]
            torch.stack([part.float().square().mean() for part in z]).sum().backward()
            for p in method.parameters():
                p.grad = None

        return once

    def written(self, function: Any, items: ArrayItems, **more: Any) -> float:
        """Returns the images per second of writing rows to a file."""
        with tempfile.TemporaryDirectory() as place:
            started = self.clock()
            reading = Reading(self.a.size, self.device, self.fit.batch_size, workers=2)
            write_rows(function, items, Path(place) / "rows.npz", {}, reading, **more)
            return len(items) / (self.clock() - started)


def step(bench: Bench) -> tuple[Once, int, Callable[[], float]]:
    """Returns the bare step, the steps of a round, and what measures the rate of the training loop."""
    views, generator = ImageViews(ViewConfig(blur=0.0), bench.a.size), torch.Generator().manual_seed(0)
    once = bench.encoder_step(bench.method(), [views(bench.on_device(bench.images), generator) for _ in range(2)])
    steps = bench.steps(once)

    def whole() -> float:
        recorder, items = MemoryRecorder(), ArrayItems(bench.images.repeat(steps, 1, 1, 1))
        loop.fit(bench.fabric, bench.method(), items, views, bench.fit, recorder, warn=lambda message: None)
        done = [0, *(row["step"] for row in recorder.rows)]
        rates = (row["images_per_second"] for row in recorder.rows)  # of rows of different lengths
        return float(done[-1] / sum((b - a) / rate for (a, b), rate in zip(itertools.pairwise(done), rates, strict=True)))

    return once, steps, whole


def embed(bench: Bench) -> tuple[Once, int, Callable[[], float]]:
    """Returns the bare forward pass, the steps of a round, and what measures the rate of writing embeddings."""
    method = bench.method().eval()
    once = bench.forward(method)
    steps = bench.steps(once)
    items = ArrayItems(bench.images.repeat(steps, 1, 1, 1))
    return once, steps, lambda: bench.written(embedded(method), items)


def score(bench: Bench) -> tuple[Once, int, Callable[[], float]]:
    """As `embed`, for writing scores, with a run's features and a detector of 2,000 images."""
    size, parts, method = bench.a.size, [ArrayItems(bench.noise(n)) for n in (2000, 500)], bench.method().eval()
    if not bench.model.encoder.takes_steps:  # without weights it has constant embeddings, which a detector leaves out
        config, items = recipes.get("patches"), ArrayItems(bench.noise(FITTED))
        closed_form.fit_closed_form(bench.fabric, method, items, ImageViews(config.views, size), config, size, MemoryRecorder())
    features_of = RunFeatures(method, (3, size, size))
    if features_of.patches is None:
        features_of.maps = dictionary(parts[0], size, bench.fit.workers)
        features_of.to(bench.device)
    reading = Reading(size, bench.device, bench.fit.batch_size, workers=2)
    training, held_out = (collected(features_of, part, reading) for part in parts)
    detector, once = fit_detector(training, held_out, features_of.maps), bench.forward(method)
    steps = bench.steps(once)
    items = ArrayItems(bench.noise(steps * bench.fit.batch_size))
    columns = columns_of(method, features_of, detector, 0.1, all_scores=False, refused={})
    return once, steps, lambda: bench.written(columns, items, derived=Tally(len(detector.calibration)))


def compared(bench: Bench) -> dict[str, Any]:
    """Measures bare and whole in turn; the ratio is the median of the rounds' ratios."""
    once, steps, whole = {"step": step, "embed": embed, "score": score}[bench.a.what](bench)
    n = steps * bench.fit.batch_size
    pairs = [(n / bench.seconds(once, steps), whole()) for _ in range(bench.a.rounds + 1)][1:]  # the first round warms up
    return {
        "objective": bench.model.objective,
        "precision": bench.precision() if bench.a.what == "step" else "32-true",
        "bare_images_per_second": round(statistics.median(b for b, _ in pairs), 1),
        "whole_images_per_second": round(statistics.median(w for _, w in pairs), 1),
        "ratio": round(statistics.median(w / b for b, w in pairs), 3),
    }


def objective_step(name: str, n: int, dim: int, device: torch.device) -> Once:
    """Returns loss, gradient and update of an objective; twice the loss where it has a teacher, whose own passes are left out."""
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


def shares(bench: Bench) -> dict[str, Any]:
    """Measures the encoder's step on two ready views and each objective in turn; shares are medians of the rounds' ratios."""
    a, x = bench.a, bench.on_device(bench.images)
    names = objectives.names() if a.objective == "all" else [a.objective]
    bench.model = ModelConfig(encoder=bench.model.encoder)
    bare = bench.encoder_step(bench.method(), [x, x])
    losses = {name: objective_step(name, a.batch_size, a.dim, bench.device) for name in names}
    rounds = []
    for _ in range(a.rounds + 1):
        rounds.append({"": bench.seconds(bare, 1), **{name: bench.seconds(once, 10) / 10 for name, once in losses.items()}})
    rounds = rounds[1:]  # the first round warms up
    return {
        "dim": a.dim,
        "precision": bench.precision(),
        "step_seconds": round(statistics.median(seconds[""] for seconds in rounds), 4),
        "objective_seconds": {name: round(statistics.median(seconds[name] for seconds in rounds), 5) for name in names},
        "share": {name: round(statistics.median(seconds[name] / seconds[""] for seconds in rounds), 5) for name in names},
    }


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    named = {"measurement": f"bench {a.what}", "encoder": a.encoder, "size": a.size, "batch_size": a.batch_size}
    yield {**named, "asked": [a.objective, a.precision, a.dim], "rounds": a.rounds, "seed": 0}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    bench = Bench(a, a.encoder)
    return shares(bench) if a.what == "objective" else compared(bench)


OPTIONS = {"what": Option(choices=("step", "embed", "score", "objective"), shape="first"), "encoder": "small"}
OPTIONS |= {"objective": "vje", "size": 32, "batch_size": 256, "dim": 128, "rounds": 5, "device": "auto"}
OPTIONS["precision"] = Option(default="auto", choices=("auto", "fp32", "bf16"))
OPTIONS["round_seconds"] = hidden(6.0)  # length of one round of the bare step, about
TINY = {"encoder": "small", "rounds": 1, "batch_size": 8, "dim": 4, "size": 8, "device": "cpu", "round_seconds": 0.01}
TINY |= {"objective": lambda name: "gje" if name == "all" else name}

if __name__ == "__main__":
    a = parse(__doc__, "bench", OPTIONS, TINY)
    if a.what == "objective" and a.out is not None:
        a.out = ledger.Out(a.out.file, "objectives")
    run(a, cells, measure)
