"""False-discovery proportion and power of flagged items over random splits of real scores, at the levels 0.05, 0.1 and 0.2.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiments.detection.digits import trained
from experiments.detection.run import WHOLE, combined, encoder_settings, features, scored, sets
from experiments.photographs import ORDINARY, PLATELET, WHITE_CELL, ordinary_tiles
from experiments.runner import Option, hidden, main, some
from experiments.shared import apart, kept_run
from scipy.stats import sem

from vergence.data.arrays import from_array
from vergence.data.sources import open_data
from vergence.decide import p_values, reportable, select
from vergence.decide.conformal import counts_of, drift_of_counts

LEVELS = (0.05, 0.1, 0.2)
FOREIGN = {
    "cifar10": ("cifar100", "omniglot", "inverted", "fashion_mnist", "mnist", "noise", "blurred"),
    "fashion_mnist": ("cifar10", "omniglot", "inverted", "mnist", "noise", "blurred"),
}
HELD_OUT = [4, 9]  # digits
CELLS = {"white cells": WHITE_CELL, "platelets": PLATELET}
SETS = (*FOREIGN, "blood_cells", "digits")
FEW = 400  # tiles of a batch with platelets, of which there are 47
CALIBRATIONS, SHARES, ITEMS = (200, 500, 2000), (0.05, 0.1), 1000
FROM_TRAINING = 1000  # calibration items of the training part alone, or as many hundreds as there are
SMALL = {"calibration": 200, "items": 120, "share": 0.1}  # of the digits


class Pools(NamedTuple):
    """Scores of typical and of odd items to sample from, and those that calibrate apart from them, where there are some."""

    typical: np.ndarray
    odd: np.ndarray
    items: int  # of a batch
    training: tuple[np.ndarray, np.ndarray] | None = None  # that calibrate, and that batches are sampled of


def judged(calibration: np.ndarray, typical: np.ndarray, odd: np.ndarray) -> dict[float, tuple[float, float, int]]:
    """Returns by level the false-discovery proportion, the share of unusual items reported, and their number."""
    p, found = p_values(calibration, np.r_[typical, odd]), {}
    for level in LEVELS:
        flags = select(p, level)
        false, reported = int(flags[: len(typical)].sum()), int(flags.sum())
        found[level] = (false / max(1, reported), (reported - false) / len(odd), reported)
    return found


def summary(values: list[tuple[float, float, int]], level: float) -> list[float]:
    """Returns mean, standard error and excess of the false-discovery proportion, power, and how often nothing is reported."""
    fdp, power, reported = np.array(values, dtype=float).T
    error = float(sem(fdp)) if len(fdp) > 1 else 0.0
    return [round(float(x), 4) for x in (fdp.mean(), error, (fdp > level).mean(), power.mean(), (reported == 0).mean())]


def measured(
    pools: tuple[np.ndarray, np.ndarray | None],
    odd: np.ndarray,
    *,
    calibration: int,
    items: int,
    share: float,
    splits: int,
    seed: int,
) -> dict[str, Any]:
    """Returns the results of random splits.

    Args:
        pools: Scores of typical items, of which both the calibration items and those of the batch are sampled; or scores that
            calibrate, and scores of which the batch is sampled.
        odd: Scores of unusual items.
        calibration: Number of calibration items.
        items: Number of items in the batch.
        share: Share of unusual items in the batch.
        splits: Number of splits.
        seed: Seed of the splits.
    """
    first, second = pools
    unusual = round(share * items)
    typical, whole = items - unusual, first if second is None else second
    assert len(first) >= calibration + (typical if second is None else 0) and len(whole) >= typical and len(odd) >= unusual
    found = []
    for split in range(splits):
        g = np.random.default_rng([seed, split])
        mixed = g.permutation(first)
        batch = mixed[calibration : calibration + typical] if second is None else g.permutation(second)[:typical]
        found.append(judged(mixed[:calibration], batch, g.permutation(odd)[:unusual]))
    moved = None
    if second is not None:
        moved = round(drift_of_counts(counts_of(p_values(first, second), len(first))).p_value, 4)
    return {
        "auroc": round(apart(whole, odd), 4),
        "unusual": unusual,
        "fewest": {str(level): reportable(calibration, items, level).fewest for level in LEVELS},
        "drift": moved,
        "found": {"bh": {str(level): summary([split[level] for split in found], level) for level in LEVELS}},
    }


def of_images(a: argparse.Namespace, source: str, encoder: str) -> Iterator[tuple[str, str, Pools]]:
    """Yields score, unusual set and pools of CIFAR-10 or Fashion-MNIST: the default detector's, and VJE's joint score."""
    parts = sets(source, a.data_root, a.limit, 100 if a.tiny else None)
    pixels, own = (features(a, source, name, 0, parts) for name in ("pixels", encoder))
    X = {name: (own if name == "z" else pixels)[name] for name in WHOLE}
    used = ("train", "cal", "held", "test", *FOREIGN[source])
    scores = {"detector": scored(combined(WHOLE), {level: {p: of[p] for p in used} for level, of in X.items()}, WHOLE)}
    if "own_joint" in own:
        scores["joint"] = {part: own["own_joint"][part][:, 0] for part in used}
    for how, s in scores.items():
        for name in FOREIGN[source]:
            yield how, name, Pools(np.r_[s["held"], s["test"]], s[name], a.items, (s["held"], s["test"]))


def of_cells(a: argparse.Namespace, encoder: str) -> Iterator[tuple[str, str, Pools]]:
    """Yields score, unusual set and pools of the blood-cell photographs."""
    file, found = a.scratch / "tiles.npz", ordinary_tiles(Path(a.data_root), 24 if a.tiny else None)
    np.savez(file, **found)
    short = {} if a.epochs is None or encoder == "patches" else {"epochs": a.epochs}
    settings = {**encoder_settings(encoder), "seed": 0, "device": "cpu", **short}
    run, labels = kept_run(a.scratch / "runs" / f"blood_cells {encoder} 0", str(file), **settings), found["y_test"]
    for how in ("detector", "joint") if encoder == "vje" else ("detector",):
        s = run.anomaly_score(from_array(found["x_test"]), how).numpy()
        typical, training = s[labels == ORDINARY], run.detector().calibration
        for name, kind in CELLS.items():
            items = FEW if kind == PLATELET and not a.tiny else a.items
            yield how, name, Pools(typical, s[labels == kind], items, (training, typical) if how == "detector" else None)


def of_digits(a: argparse.Namespace, encoder: str) -> Iterator[tuple[str, str, Pools]]:
    """Yields score, unusual set and pools of the photographs of digits, of which the demo was trained without one."""
    for held_out in a.held_out:
        run = trained(a.scratch, held_out, 0, **({"epochs": 1, "limit": 400} if a.tiny else {}))
        test = open_data(run.folder.config.data).test
        odd = (test.labels == held_out).numpy()
        for how in ("detector", "joint"):
            s = run.anomaly_score(test.context, how).numpy()
            yield how, f"digit {held_out}", Pools(s[~odd], s[odd], SMALL["items"])


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields each setting, and keeps the pools of its scores in ``a.pools``."""
    for data in a.data:
        for encoder in a.encoders if data != "digits" else ["vje"]:
            pools = {"blood_cells": of_cells, "digits": of_digits}.get(data)
            for how, name, of in pools(a, encoder) if pools else of_images(a, data, encoder):
                fields = {"data": data, "encoder": encoder, "score": how, "unusual_set": name, "items": of.items}
                fields |= {"splits": a.splits, "seed": a.seed}
                a.pools = {"same part": (of.typical, None), "training part": of.training}
                a.odd = of.odd
                for n in a.calibrations if data != "digits" else [SMALL["calibration"]]:
                    for share in SHARES if data != "digits" else [SMALL["share"]]:
                        yield {**fields, "calibration": n, "share": share, "calibrated_on": "same part"}
                if of.training is not None:
                    n = min(a.from_training, len(of.training[0]) // 100 * 100 or len(of.training[0]))
                    share = SHARES[1] if data == "blood_cells" else SHARES[0]
                    yield {**fields, "calibration": n, "share": share, "calibrated_on": "training part"}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    sizes = {name: cell[name] for name in ("calibration", "items", "share", "splits", "seed")}
    return measured(a.pools[cell["calibrated_on"]], a.odd, **sizes)


OPTIONS = {"data_root": "data", "scratch": Option(Path, shape="required"), "data": some(SETS), "encoders": ["vje", "patches"]}
OPTIONS |= {"held_out": HELD_OUT, "splits": 100, "seed": 0, "limit": hidden(10_000), "epochs": hidden(None)}
OPTIONS |= {"calibrations": hidden(CALIBRATIONS), "items": hidden(ITEMS), "from_training": hidden(FROM_TRAINING)}
TINY = {"limit": 200, "epochs": 1, "encoders": ["vje"], "held_out": [9], "splits": 2}
TINY |= {"calibrations": (50,), "items": 60, "from_training": 50}

if __name__ == "__main__":
    shown = ("data", "encoder", "score", "unusual_set", "calibration", "items", "share", "calibrated_on", "auroc", "found")
    main(__doc__, "calibration", OPTIONS, cells, measure, tiny=TINY, shown=shown)
