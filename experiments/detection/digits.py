"""The demo with each digit held out in turn: AUROC of the run's detector, of VJE's own scores and of the controls beside them.

    python -m experiments.detection.digits                  # ten digits, seed 0
    python -m experiments.detection.digits --held-out 9 --seeds 0 1 2

Each row is one training with the demo's settings (`vergence.runs.demo.SETTINGS`) on pairs of noisy photographs, without the
digit, and what `vergence evaluate` writes about the 359 test photographs, of which about a tenth show it. The settings of the
default detector were chosen on seed 0 and the digits 0, 2, 4, 5, 6, 7, 8 and 9; 1 and 3 played no part.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import vergence
from experiments import ledger
from vergence.runs.demo import SETTINGS, write_pairs


def trained(source: Path, folder: Path, held_out: int, seed: int, **changes: Any) -> vergence.Run:
    """Returns a run of the demo's settings that is trained without a digit."""
    keep = tuple(digit for digit in range(10) if digit != held_out)
    settings = {**SETTINGS, "knn_every": 0, "device": "cpu", **changes}
    return vergence.train(str(source), out=folder / f"{held_out} {seed}", keep_classes=keep, seed=seed, **settings)


def measured(source: Path, folder: Path, held_out: int, seed: int, **changes: Any) -> ledger.Row:
    """Trains without a digit; returns the AUROC of every score, and how many photographs it is measured on."""
    run = trained(source, folder, held_out, seed, **changes)
    found = vergence.evaluate(run, probes=False).anomaly
    assert found is not None, "classes that training left out"
    scores = {name: round(score.auroc, 4) for name, score in found.scores.items()}
    return {"anomalies": found.n_anomalies, "others": found.n_inliers, "auroc": scores}


def main() -> None:
    """Adds a row for each digit and seed that the ledger lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", type=int, nargs="+", default=list(range(10)), choices=range(10), metavar="DIGIT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = ledger.parse(parser, "digits")
    if args.tiny:
        args.held_out = args.held_out[:1]
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "pairs.npz"
            write_pairs(source, seed)
            for held_out in args.held_out:
                if not ledger.holds(args.out, held_out=held_out, seed=seed):
                    row = measured(source, Path(folder), held_out, seed, **({"epochs": 1, "limit": 400} if args.tiny else {}))
                    ledger.add(args.out, ledger.row({"held_out": held_out, **row}, seed=seed))


if __name__ == "__main__":
    main()
