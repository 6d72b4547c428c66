"""False-discovery proportion and power of flagged items over random splits of real scores, at the levels 0.05, 0.1 and 0.2.

Each setting has anomaly scores of typical images that nothing was fitted to, and of unusual ones. A split calibrates on a
random part of the typical images and judges a batch of other typical images with a share of unusual ones among them:
`p_values`, then `select` by Benjamini-Hochberg and by Storey. The detector is fitted once; splits differ in calibration
and batch only.

    python -m experiments.calibration.run --data-root DATA --scratch FOLDER     # adds to results/calibration.jsonl

Scores are those of the default detector, and of VJE's joint score as a score that ranks badly. CIFAR-10 and Fashion-MNIST: the
features of `out_of_distribution.py`, which ``FOLDER`` keeps; typical are 4,000 images, half of the training part and half of the
test part. With calibration items ``training part``, only images of the training part calibrate, and only images of the test part
are judged. Digits: the demo without a digit, and the photographs of its test part. Blood cells: the tiles of `blood_cells.py`;
the ordinary tiles of the photographs that were not trained on, or, as ``training part``, the calibration tiles of the run,
which are of the photographs that it was trained on.

The rate of errors is the mean of the false-discovery proportion. All splits of a setting share their images and one fit, so
standard errors are those of the splits, not of other images. ``fewest`` is the number of items that have to be reported
before any can be (`vergence.detection.reportable`), ``drift`` the p-value of the question whether the typical images of the two
parts differ (`vergence.detection.conformal.drift_of_counts`).
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from experiments.detection import blood_cells
from experiments.detection.blood_cells import ORDINARY, PLATELET, WHITE_CELL
from experiments.detection.digits import trained
from experiments.detection.run import WHOLE, Features, features, scored, sets
from scipy.stats import sem
from sklearn.metrics import roc_auc_score

import vergence
from experiments import ledger
from vergence.data.arrays import from_array
from vergence.data.sources import open_data
from vergence.detection import default_detector, p_values, reportable, select
from vergence.detection.conformal import drift_of_counts
from vergence.runs.demo import write_pairs

LEVELS = (0.05, 0.1, 0.2)
METHODS = ("bh",)
FOREIGN = {
    "cifar10": ("cifar100", "omniglot", "inverted", "fashion_mnist", "mnist", "noise", "blurred"),
    "fashion_mnist": ("cifar10", "omniglot", "inverted", "mnist", "noise", "blurred"),
}
HELD_OUT = (4, 9)  # digits
CELLS = {"white cells": WHITE_CELL, "platelets": PLATELET}
SETS = (*FOREIGN, "blood_cells", "digits")
FEW = 400  # tiles of a batch with platelets, of which there are 47
CALIBRATIONS, SHARES, ITEMS = (200, 500, 2000), (0.05, 0.1), 1000
FROM_TRAINING = 1000  # calibration items of the training part alone, or as many hundreds as there are
SMALL = {"calibration": 200, "items": 120, "share": 0.1}  # of the digits
Scores = dict[str, dict[str, np.ndarray]]  # score -> set -> (N,)


def judged(calibration: np.ndarray, typical: np.ndarray, odd: np.ndarray) -> dict[str, dict[str, tuple[float, float, int]]]:
    """Returns by method and level the false-discovery proportion, the share of unusual items reported, and their number."""
    p = p_values(calibration, np.r_[typical, odd])
    found: dict[str, dict[str, tuple[float, float, int]]] = {}
    for method in METHODS:
        found[method] = {}
        for level in LEVELS:
            flags = select(p, level)
            false, reported = int(flags[: len(typical)].sum()), int(flags.sum())
            found[method][str(level)] = (false / max(1, reported), (reported - false) / len(odd), reported)
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
    typical, apart = items - unusual, second is not None
    needed = (calibration, typical) if apart else (calibration + typical, 0)
    lengths = (len(first), 0 if second is None else len(second))
    assert lengths[0] >= needed[0] and lengths[1] >= needed[1] and len(odd) >= unusual, f"{needed} of {lengths}, {len(odd)}"
    found = []
    for split in range(splits):
        g = np.random.default_rng([seed, split])
        mixed = g.permutation(first)
        batch = mixed[calibration : calibration + typical] if second is None else g.permutation(second)[:typical]
        found.append(judged(mixed[:calibration], batch, g.permutation(odd)[:unusual]))
    by = {m: {str(a): summary([one[m][str(a)] for one in found], a) for a in LEVELS} for m in METHODS}
    whole = first if second is None else second
    auroc = roc_auc_score(np.r_[np.zeros(len(whole)), np.ones(len(odd))], np.r_[whole, odd])
    fewest = {str(a): reportable(calibration, items, a).fewest for a in LEVELS}
    n = len(first)
    ranks = None if second is None else np.rint((n + 1) * p_values(first, second)).astype(np.int64)
    moved = None if ranks is None else round(drift_of_counts(np.bincount(ranks, minlength=n + 2)).p_value, 4)
    return {"auroc": round(float(auroc), 4), "unusual": unusual, "fewest": fewest, "drift": moved, "found": by}


def photographs(a: argparse.Namespace, source: str, encoder: str) -> Scores:
    """Returns the scores of the sets of CIFAR-10 or Fashion-MNIST by an encoder's default detector, and by VJE's joint score."""
    named = {"pixels": "pixels", encoder: encoder}
    cached = all((a.scratch / f"{source} {name} 0.npz").exists() for name in named)
    parts = {} if cached else sets(source, a.data_root, a.limit)
    if a.tiny:
        parts = {name: x[:100] for name, x in parts.items()}
    pixels, own = (features(a, source, name, 0, parts) for name in named)
    used = ("train", "cal", "held", "test", *(f"conf:{name}" for name in FOREIGN[source]))
    X: Features = {name: {part: (own if name == "z" else pixels)[name][part] for part in used} for name in WHOLE}
    scores = {"detector": scored(default_detector(WHOLE), X, WHOLE)}
    if "own_joint" in own:
        scores["joint"] = {part: own["own_joint"][part][:, 0] for part in used}
    return scores


def digits(folder: Path, held_out: int, seed: int, **changes: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns by score the scores of the test photographs of other digits, and of the one that the demo was trained without."""
    source = folder / "pairs.npz"
    if not source.exists():
        write_pairs(source, seed)
    run = trained(source, folder, held_out, seed, **changes)
    test = open_data(run.folder.config.data).test
    odd = (test.labels == held_out).numpy()
    scores = {how: run.anomaly_score(test.context, how).numpy() for how in ("detector", "joint")}
    return {how: (s[~odd], s[odd]) for how, s in scores.items()}


def of_photographs(a: argparse.Namespace, source: str, encoder: str) -> Iterator[tuple[dict[str, Any], Any, np.ndarray]]:
    """Yields the fields, the pools and the unusual scores of each setting of CIFAR-10 or Fashion-MNIST."""
    for how, s in photographs(a, source, encoder).items():
        for name in FOREIGN[source]:
            fields = {"data": source, "encoder": encoder, "score": how, "unusual_set": name}
            yield from of_pools(a, fields, (np.r_[s["held"], s["test"]], None), s[f"conf:{name}"], a.items)
            own = {"calibration": a.from_training, "items": a.items, "share": SHARES[0], "calibrated_on": "training part"}
            yield {**fields, **own}, (s["held"], s["test"]), s[f"conf:{name}"]


def of_pools(
    a: argparse.Namespace, fields: dict[str, Any], pools: Any, odd: np.ndarray, items: int
) -> Iterator[tuple[dict[str, Any], Any, np.ndarray]]:
    """Yields the settings in which calibration items and batch come from one pool, by numbers and share."""
    for n in a.calibrations:
        for share in SHARES:
            yield {**fields, "calibration": n, "items": items, "share": share, "calibrated_on": "same part"}, pools, odd


def of_cells(a: argparse.Namespace, encoder: str) -> Iterator[tuple[dict[str, Any], Any, np.ndarray]]:
    """Yields the fields, the pools and the unusual scores of each setting of the blood-cell photographs."""
    file, out = a.scratch / "tiles.npz", a.scratch / "runs" / f"blood_cells {encoder} 0"
    found = blood_cells.parts(Path(a.data_root), 24 if a.tiny else None)
    if not (out / "model.safetensors").exists():
        np.savez(file, **found)
        short = {} if a.epochs is None or encoder == "patches" else {"epochs": a.epochs}
        vergence.train(str(file), out=out, seed=0, device="cpu", **blood_cells.ENCODERS[encoder], **short)
    run, labels = vergence.load(out, device="cpu"), found["y_test"]
    tested = from_array(found["x_test"])
    for how in ("detector", "joint") if encoder == "vje" else ("detector",):
        s = run.anomaly_score(tested, how).numpy()
        for name, kind in CELLS.items():
            fields = {"data": "blood_cells", "encoder": encoder, "score": how, "unusual_set": name}
            items, typical, odd = (FEW if kind == PLATELET and not a.tiny else a.items), s[labels == ORDINARY], s[labels == kind]
            yield from of_pools(a, fields, (typical, None), odd, items)
            if how == "detector":
                known = run.detector().calibration
                calibration = min(a.from_training, len(known) // 100 * 100 or len(known))
                own = {"calibration": calibration, "items": items, "share": SHARES[1], "calibrated_on": "training part"}
                yield {**fields, **own}, (known, typical), odd


def of_digits(a: argparse.Namespace, folder: Path) -> Iterator[tuple[dict[str, Any], Any, np.ndarray]]:
    """Yields the fields, the pools and the unusual scores of each setting of the digits."""
    for held_out in a.held_out:
        short = {"epochs": 1, "limit": 400} if a.tiny else {}
        for how, (typical, odd) in digits(folder, held_out, 0, **short).items():
            fields = {"data": "digits", "encoder": "vje", "score": how, "unusual_set": f"digit {held_out}"}
            yield {**fields, **SMALL, "calibrated_on": "same part"}, (typical, None), odd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default="data", help="folder for torchvision, with omniglot.npz and cifar100_subset.npz")
    parser.add_argument("--scratch", type=Path, required=True, help="folder of the runs and features of out_of_distribution.py")
    parser.add_argument("--data", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--encoders", nargs="+", default=["vje", "patches"], help="not for digits, which have vje")
    parser.add_argument("--held-out", nargs="+", type=int, default=list(HELD_OUT), help="digits")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the splits")
    a = ledger.parse(parser, "calibration")
    a.limit, a.epochs, a.calibrations, a.items, a.from_training = 10_000, None, CALIBRATIONS, ITEMS, FROM_TRAINING
    if a.tiny:
        a.limit, a.epochs, a.encoders, a.held_out, a.splits = 200, 1, ["vje"], [9], 2
        a.calibrations, a.items, a.from_training = (50,), 60, 50
    if "blood_cells" in a.data and not (boxes := blood_cells.blood_cells(Path(a.data_root))[1]).exists():
        parser.error(f"expected {boxes} beside the photographs; leave blood_cells out of --data without them")
    a.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        settings = [of_photographs(a, source, encoder) for source in a.data if source in FOREIGN for encoder in a.encoders]
        settings += [of_cells(a, encoder) for encoder in a.encoders if "blood_cells" in a.data]
        settings += [of_digits(a, Path(folder))] if "digits" in a.data else []
        for fields, pools, odd in (one for some in settings for one in some):
            fields |= {"splits": a.splits}
            if not ledger.holds(a.out, **fields, seed=a.seed):
                sizes = {name: fields[name] for name in ("calibration", "items", "share", "splits")}
                row = {**fields, **measured(pools, odd, **sizes, seed=a.seed)}
                ledger.add(a.out, ledger.row(row, seed=a.seed), shown=(*fields, "auroc", "found"))


if __name__ == "__main__":
    main()
