"""Simulated streams of `vergence.decide.Monitor`: alarms though nothing changes, and how soon one comes if something does.

README.md says how.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from experiments.runner import hidden, main

from vergence.decide import Monitor

QUIET, STREAMS, ITEMS = 200, 15, 400  # streams without and with a change, and scores of each
LEVEL = {True: 0.1, False: 0.01}  # alarm of streams without and with a change
Law = Callable[[np.random.Generator, int], np.ndarray]
LAWS: dict[str, Law] = {
    "normal": lambda g, n: g.normal(size=n),
    "rounded": lambda g, n: g.normal(size=n).round(),
    "two values": lambda g, n: (g.random(n) < 0.2).astype(float),
}
CHANGES: dict[str, Law] = {
    "mean +.5": lambda g, n: g.normal(0.5, 1, n),
    "mean +1": lambda g, n: g.normal(1, 1, n),
    "mean -.5": lambda g, n: g.normal(-0.5, 1, n),
    "mean -3": lambda g, n: g.normal(-3, 1, n),
    "spread .2": lambda g, n: g.normal(0, 0.2, n),
    "spread .7": lambda g, n: g.normal(0, 0.7, n),
    "spread 1.5": lambda g, n: g.normal(0, 1.5, n),
    "one score for ever": lambda g, n: np.full(n, g.normal()),
    "5 % outliers": lambda g, n: g.normal(size=n) + 5 * (g.random(n) < 0.05),
}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields streams without a change by law and number of calibration scores, and those with a change."""
    for n in (10, 50, 500):
        yield from ({"stream": law, "calibration": n, "changed": False, "streams": a.quiet, "seed": a.seed} for law in LAWS)
    for name in CHANGES:
        yield {"stream": name, "calibration": 500, "changed": True, "streams": a.streams, "seed": a.seed}


def first_alarm(monitor: Monitor, scores: np.ndarray) -> float:
    """Returns after how many scores there is an alarm; infinity for none."""
    return next((i for i, s in enumerate(scores, 1) if monitor.update([s])), np.inf)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    normal, after = LAWS.get(cell["stream"], LAWS["normal"]), CHANGES.get(cell["stream"])
    lengths = []
    for i in range(cell["streams"]):
        g = np.random.default_rng([cell["seed"], i, cell["calibration"]])
        calibration = normal(g, cell["calibration"])
        monitor = Monitor(calibration, alarm=LEVEL[after is None], seed=i)
        lengths.append(first_alarm(monitor, (after or normal)(g, ITEMS)))
    found = np.isfinite(lengths)
    middle = float(np.median(np.array(lengths)[found])) if after is not None and found.any() else None
    return {"alarm": LEVEL[after is None], "alarms": float(found.mean()), "after": middle}


OPTIONS = {"seed": 0, "quiet": hidden(QUIET), "streams": hidden(STREAMS)}

if __name__ == "__main__":
    main(__doc__, "calibration_streams", OPTIONS, cells, measure, tiny={"quiet": 2, "streams": 1})
