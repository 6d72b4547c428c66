"""Throughput of training beside a busy program, with the number of threads chosen by measuring.

python benchmarks/threads.py [--seconds 40] [--rounds 3] [--out results/threads.jsonl]    # about 11 minutes on two idle cores

The small network with VJE on 32 x 32 images of noise. The competitor is one single-threaded Python loop in a session of its own,
at equal priority. Each measurement is `loop.fit` for --seconds, in turn, in --rounds rounds; its rate is that of the second half
of the time, when the number of threads has been chosen. Medians are reported.

one alone      one thread on the idle machine, fixed
auto beside    beside the competitor, chosen by measuring; expected: >= 0.9 of one alone
two beside     beside the competitor, two threads, fixed
auto alone     idle machine, chosen by measuring; expected: >= 0.97 of two alone
two alone      idle machine, two threads, fixed
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import ledger
import torch

from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems
from vergence.data.views import ImageViews
from vergence.training import build, loop
from vergence.training.config import FitConfig, ModelConfig
from vergence.training.metrics import MemoryRecorder

SETTINGS = {  # name -> number of threads (None: chosen by measuring), whether the competitor runs
    "one alone": (1, False),
    "auto beside": (None, True),
    "two beside": (2, True),
    "auto alone": (None, False),
    "two alone": (2, False),
}


class Log(MemoryRecorder):
    """Keeps the lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


class Finished(Exception):
    """The time is over."""


@contextlib.contextmanager
def competitor(present: bool) -> Iterator[None]:
    """Runs a busy loop in another session, so that the scheduler treats it as another program."""
    if not present:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def rate(threads: int | None, seconds: float, batch_size: int) -> tuple[float, list[str]]:
    """Returns views per second in the second half of a training of some seconds, and the lines of its log."""
    settings = {
        "knn_every": 0,
        "checkpoint_seconds": 1e9,
        "device": "cpu",
        "lr": 1e-4,
    }
    fit = FitConfig(epochs=10**6, batch_size=batch_size, threads=threads, **settings)
    method = build.build_method(ModelConfig(), (3, 32, 32), None, torch.full((3,), 0.5), torch.full((3,), 0.25))
    images = torch.randint(0, 256, (batch_size * 50, 3, 32, 32), dtype=torch.uint8)
    ends, log, began = [time.perf_counter()], Log(), time.perf_counter()

    def progress(step: int, row: dict[str, float]) -> None:
        ends.append(time.perf_counter())
        if ends[-1] - began > seconds and len(ends) > 3:
            raise Finished

    views = ImageViews(ViewConfig(blur=0.0), 32)
    with contextlib.suppress(Finished):
        loop.fit(loop.launch(fit), method, ArrayItems(images), views, fit, log, progress=progress, warn=lambda message: None)
    half = [end for end in ends if end - began >= seconds / 2]
    half = half if len(half) > 1 else ends[-2:]  # steps that take longer than half of the time
    return 2 * batch_size * (len(half) - 1) / (half[-1] - half[0]), log.lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    a = ledger.parse(parser, "threads")
    if a.tiny:
        a.seconds, a.rounds, a.batch_size = 0.2, 1, 16
    most = 2
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    decisions: dict[str, list[str]] = {name: [] for name in SETTINGS}
    for _ in range(a.rounds):
        for name, (threads, beside) in SETTINGS.items():
            torch.set_num_threads(most)
            with competitor(beside):
                views_per_second, lines = rate(threads, a.seconds, a.batch_size)
            found[name].append(views_per_second)
            decisions[name] += lines
            print(f"{name:12} {views_per_second:8.0f} views/s  {'; '.join(lines)}", flush=True)
    median = {name: statistics.median(values) for name, values in found.items()}
    ratios = {"auto beside / one alone": median["auto beside"] / median["one alone"]}
    ratios |= {f"{kind} / two alone": median[kind] / median["two alone"] for kind in ("auto alone", "two beside")}
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    values = {
        "measurement": "threads",
        "seconds": a.seconds,
        "rounds": a.rounds,
        "batch_size": a.batch_size,
        "views_per_second": {name: round(value, 1) for name, value in median.items()},
        "all_views_per_second": {name: [round(value, 1) for value in values] for name, values in found.items()},
        "decisions": decisions,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
    }
    torch.set_num_threads(most)
    ledger.add(a.out, ledger.row(values, seed=0), shown=("ratios",))


if __name__ == "__main__":
    main()
