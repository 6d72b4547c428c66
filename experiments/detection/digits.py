"""Noisy digits, one held out in turn: AUROC of the detector of the run, of the scores of VJE itself and of the baselines.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.noisy_digits import SETTINGS, write_pairs
from experiments.runner import first, main
from experiments.shared import kept_run

import vergence

TINY = {"epochs": 1, "limit": 400}


def trained(folder: Path, held_out: int, seed: int, **changes: Any) -> vergence.Run:
    """Returns a run of the demo's settings that is trained without a digit, on pairs of a seed that are written where missing."""
    source = folder / f"pairs {seed}.npz"
    if not source.exists():
        write_pairs(source, seed)
    keep = tuple(digit for digit in range(10) if digit != held_out)
    settings = {**SETTINGS, "knn_every": 0, "device": "cpu", **changes}
    return kept_run(folder / f"digit {held_out} {seed}", str(source), keep_classes=keep, seed=seed, **settings)


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    return ({"held_out": held_out, "seed": seed} for seed in a.seeds for held_out in a.held_out)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains without a digit; returns the AUROC of every score, and how many photographs it is measured on."""
    run = trained(a.scratch, **cell, **(TINY if a.tiny else {}))
    found = vergence.evaluate(run, probes=False).anomaly
    assert found is not None, "classes that training left out"
    scores = {name: round(score.auroc, 4) for name, score in found.scores.items()}
    return {"anomalies": found.n_anomalies, "others": found.n_inliers, "auroc": scores}


if __name__ == "__main__":
    options = {"held_out": list(range(10)), "seeds": [0]}
    main(__doc__, "digits", options, cells, measure, tiny={"held_out": first})
