"""Simulated rates of `vergence.decide.calibrate` and `Calibrated`: false-discovery proportion and power where the truth is known.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from experiments.runner import hidden, main, some
from scipy.stats import sem

from vergence.decide import Calibrated, GaussianDetector, calibrate

ITEMS, FDR, FAR = 200, 0.1, 3.0  # of a table; the rate asked for; standard deviations by which anomalies are away
WAYS: dict[str, dict[str, Any]] = {"fdr": {}, "adaptive": {"adaptive": True}, "confidence": {"confidence": 0.95}}
LAWS = ("normal", "counts", "two values")
SHARES, SIZES = (0.0, 0.01, 0.1, 0.3), (50, 200, 500, 2000)
CHANGES = {"none": (0, 1), "shift .3": (0.3, 1), "shift -.5": (-0.5, 1), "scale 1.3": (0, 1.3), "scale .7": (0, 0.7)}
SETTINGS = ("tables", "one file", "nights", "change", "folds", "weights")
EVERY = 20  # of so many nights one has anomalies


def drawn(law: str, rng: np.random.Generator, size: int, far: float = 0.0) -> np.ndarray:
    """Returns scores of a law; anomalies are ``far`` away."""
    if law == "two values":
        return (rng.random(size) < (0.2 if far == 0 else 0.9)).astype(float)
    x = rng.normal(far, 1, size)
    return x if law == "normal" else np.floor(np.exp(x / 2))


def table(cell: dict[str, Any], rng: np.random.Generator, odd: int) -> np.ndarray:
    """Returns the scores of a table, those of anomalies last."""
    return np.r_[drawn(cell["law"], rng, ITEMS - odd), drawn(cell["law"], rng, odd, FAR)]


def counted(flag: np.ndarray, odd: int) -> tuple[int, int]:
    """Returns how many flags there are, and how many of them are false."""
    return int(flag.sum()), int(flag[: len(flag) - odd].sum())


def summary(found: list[tuple[int, int]], odd: int) -> dict[str, Any]:
    """Returns the mean false-discovery proportion with its error, and the power."""
    all_, false = np.array(found, dtype=float).T
    share = false / np.maximum(all_, 1)
    power = float(((all_ - false) / odd).mean()) if odd else None
    return {"fdp": float(share.mean()), "fdp_error": float(sem(share)), "power": power, "some": float((all_ > 0).mean())}


def of_tables(cell: dict[str, Any], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Another calibration set for each table."""
    odd = round(cell["share"] * ITEMS)
    way = WAYS[cell["way"]]
    flags = [calibrate(drawn(cell["law"], rng, cell["calibration"]), table(cell, rng, odd), **way).flag for _ in range(runs)]
    return summary([counted(flag, odd) for flag in flags], odd)


def of_one_file(cell: dict[str, Any], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """Forty tables for each calibration set: the share of sets whose own mean is above the rate."""
    odd, way, means = round(cell["share"] * ITEMS), WAYS[cell["way"]], []
    for _ in range(max(runs // 10, 2)):
        cal = drawn(cell["law"], rng, cell["calibration"])
        found = [counted(calibrate(cal, table(cell, rng, odd), **way).flag, odd) for _ in range(40)]
        means.append(summary(found, odd)["fdp"])
    return {"fdp": float(np.mean(means)), "fdp_error": float(sem(means)), "above": float((np.array(means) > FDR).mean())}


def of_nights(cell: dict[str, Any], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """One calibration set, one night in twenty with anomalies: false ones among all flags, and how many other nights have one."""
    odd, found = round(cell["share"] * ITEMS), []
    for _ in range(max(runs // 40, 1)):
        cal = drawn(cell["law"], rng, cell["calibration"])
        for night in range(EVERY * 10):
            there = odd if night % EVERY == 0 else 0
            found.append(counted(calibrate(cal, table(cell, rng, there), **WAYS[cell["way"]]).flag, there))
    all_, false = np.array(found).T
    quiet = np.arange(len(all_)) % EVERY > 0
    share = false / np.maximum(all_, 1)
    pooled = float(false.sum() / max(all_.sum(), 1))
    return {
        "fdp": float(share.mean()),
        "fdp_error": float(sem(share)),
        "pooled": pooled,
        "quiet": float((all_[quiet] > 0).mean()),
    }


def of_change(cell: dict[str, Any], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often a change of normal items is told, at the level of a note and at that of a warning."""
    mean, sd = CHANGES[cell["change"]]
    found = [
        calibrate(drawn(cell["law"], rng, cell["calibration"]), mean + sd * drawn(cell["law"], rng, ITEMS)) for _ in range(runs)
    ]
    told = [one.shift is not None and one.shift <= 0.01 for one in found]
    return {"told": float(np.mean(told)), "warned": float(np.mean([one.changed for one in found]))}


def of_detectors(cell: dict[str, Any], runs: int, rng: np.random.Generator) -> dict[str, Any]:
    """A detector of three features with folds, or with the weights of a known shift by half a standard deviation."""
    odd, found, p = round(cell["share"] * ITEMS), [], []
    options: dict[str, Any] = (
        {"folds": 5} if cell["setting"] == "folds" else {"weights": lambda x: np.exp(np.asarray(x)[:, 0] / 2)}
    )
    by = 0.0 if cell["setting"] == "folds" else 0.5
    for _ in range(runs):
        x, new = rng.normal(size=(cell["calibration"], 3)), rng.normal([by, 0, 0], 1, (ITEMS, 3))
        new[len(new) - odd :, 1] += 2 * FAR
        split = int(rng.integers(2**31))  # a fixed seed takes the same ranks of the first feature each time
        model = Calibrated(GaussianDetector(), random_state=split, **({"share": 0.5} | options)).fit(x).decide(new)
        found.append(counted(model.flag, odd))
        p.append((model.p_value[: ITEMS - odd] <= FDR).mean())
    return {**summary(found, odd), "p_at_rate": float(np.mean(p))}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields each setting."""
    fields = {"runs": a.runs, "items": ITEMS, "fdr": FDR, "seed": a.seed}
    for setting in a.settings:
        for n in a.sizes if setting in ("tables", "one file") else (500,):
            for law in LAWS if setting == "tables" or setting == "change" else LAWS[:1]:
                one = {**fields, "setting": setting, "calibration": n, "law": law}
                if setting == "change":
                    yield from ({**one, "change": name} for name in (CHANGES if law == LAWS[0] else ["none"]))
                elif setting in ("folds", "weights"):
                    yield from ({**one, "way": "fdr", "share": share} for share in SHARES)
                else:
                    shares = {"tables": SHARES, "one file": (0.1,), "nights": (0.025,)}[setting]
                    ways = ("fdr", "confidence") if setting == "one file" else WAYS
                    yield from ({**one, "way": way, "share": share} for share in shares for way in ways)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    of = {"tables": of_tables, "one file": of_one_file, "nights": of_nights, "change": of_change}
    return of.get(cell["setting"], of_detectors)(cell, cell["runs"], np.random.default_rng(cell["seed"]))


OPTIONS = {"settings": some(SETTINGS), "runs": 200, "seed": 0, "sizes": hidden(SIZES)}
TINY = {"runs": 2, "sizes": (50,)}

if __name__ == "__main__":
    main(__doc__, "calibration_rates", OPTIONS, cells, measure, tiny=TINY)
