"""Rates and power of the rules that other libraries have, on the scores that this library's rule has: simulated and real.

README.md says how.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from experiments.runner import Option, hidden, main
from scipy.stats import false_discovery_control, sem

from vergence.decide import NeighborDetector, calibrate

RATE = 0.1
LAWS = {
    "normal": lambda g, n: g.normal(size=n),
    "rounded": lambda g, n: g.normal(size=n).round(),  # ties
}
SHIFT = 3.0  # of anomalies, in standard deviations
ITEMS = 200
SIZES, SHARES = (50, 200, 500, 2000), (0.0, 0.01, 0.1, 0.3)
RULES = ("vergence", "vergence --adaptive", "nonconform", "nonconform storey", "crepes + BH", "pyod .1", "IQR", "MAD", "ZSCORE")
VECTORS = ("bottle", "grid", "metal_nut", "pill", "tile", "wood")
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Scores:
    """A detector whose score is the item's own number."""

    def fit(self, x: np.ndarray, y: Any = None) -> "_Scores":
        return self

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x)[:, 0]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def set_params(self, **params: Any) -> "_Scores":
        return self


def nonconform(method: str) -> Rule:
    """Returns the rule of nonconform: `ConformalDetector.select` after `calibrate`."""
    import logging

    from nonconform import ConformalDetector, Split

    logging.getLogger("nonconform").setLevel(logging.ERROR)

    def flags(calibration: np.ndarray, new: np.ndarray) -> np.ndarray:
        detector = ConformalDetector(_Scores(), Split(n_calib=0.5), score_polarity="higher_is_anomalous", seed=0)
        detector.calibrate(calibration[:, None])
        return np.asarray(detector.select(new[:, None], alpha=RATE, method=method))

    return flags


def crepes(calibration: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Flags by crepes' p-values of one class, and scipy's Benjamini-Hochberg."""
    from crepes import ConformalClassifier

    model = ConformalClassifier().fit(calibration)
    p = model.predict_p(new[:, None], smoothing=False)[:, 0]
    return np.asarray(false_discovery_control(p) <= RATE)


def pyod(calibration: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Flags by PyOD's threshold: the share ``contamination`` of the scores that it was fitted to is above it."""
    from pyod.models.base import BaseDetector

    class Fixed(BaseDetector):  # type: ignore[misc]
        def __init__(self, contamination: float) -> None:
            super().__init__(contamination=contamination)

        def fit(self, X: np.ndarray, y: Any = None) -> "Fixed":
            self.decision_scores_ = X[:, 0]
            self._process_decision_scores()
            return self

        def decision_function(self, X: np.ndarray) -> np.ndarray:
            return X[:, 0]

    return np.asarray(Fixed(contamination=RATE).fit(calibration[:, None]).predict(new[:, None]) == 1)


def pythresh(name: str) -> Rule:
    """Returns a rule of pythresh, which knows the new scores alone."""

    def flags(calibration: np.ndarray, new: np.ndarray) -> np.ndarray:
        import importlib

        kind = getattr(importlib.import_module(f"pythresh.thresholds.{name.lower()}"), name)
        return np.asarray(kind().eval(new) == 1)

    return flags


def rule(name: str) -> Rule:
    """Returns the rule of a name: (calibration scores, new scores) -> flags."""
    if name.startswith("vergence"):
        adaptive = {"adaptive": True} if "adaptive" in name else {}
        return lambda calibration, new: calibrate(calibration, new, fdr=RATE, **adaptive).flag
    if name.startswith("nonconform"):
        return nonconform("storey" if "storey" in name else "bh")
    return {"crepes + BH": crepes, "pyod .1": pyod}.get(name) or pythresh(name)


def simulated(law: str, n: int, share: float, table: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns calibration scores (n,), new ones, and which of these are anomalies."""
    g = np.random.default_rng([seed, table, n, round(1000 * share)])
    odd = np.arange(ITEMS) < round(share * ITEMS)
    return LAWS[law](g, n), LAWS[law](g, ITEMS) + SHIFT * odd, odd


def real(file: Path, share: float, table: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the same of vectors (N, D): a third of the normal ones is fitted, a third calibrates, a third is judged."""
    with np.load(file) as arrays:
        x, y = arrays["X"], arrays["y"]
    g = np.random.default_rng([seed, table])
    fit, cal, new = np.array_split(g.permutation(np.flatnonzero(y == 0)), 3)
    anomalies = g.permutation(np.flatnonzero(y == 1))[: round(share * len(new) / (1 - share))]
    detector, judged = NeighborDetector().fit(x[fit]), np.r_[new, anomalies]
    score = lambda rows: np.asarray(detector.anomaly_score(x[rows]), dtype=float)  # noqa: E731
    return score(cal), score(judged), y[judged] == 1


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields each kind of scores."""
    for share in a.shares:
        rest = {"share": share, "tables": a.tables, "seed": a.seed}
        for law in LAWS:
            yield from ({"scores": law, "calibration": n, **rest} for n in a.sizes)
        if a.sets_root is not None:
            yield from ({"scores": data, "calibration": None, **rest} for data in VECTORS)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns by rule the false-discovery proportion and its standard error, the power, and how often there is a flag."""
    return {"found": {name: of_rule(a, cell, rule(name)) for name in a.rules}}


def of_rule(a: argparse.Namespace, cell: dict[str, Any], flags: Rule) -> list[float]:
    found = []
    for table in range(cell["tables"]):
        if cell["scores"] in LAWS:
            calibration, new, odd = simulated(cell["scores"], cell["calibration"], cell["share"], table, cell["seed"])
        else:
            calibration, new, odd = real(a.sets_root / f"{cell['scores']}.npz", cell["share"], table, cell["seed"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flagged = flags(calibration, new)
        found.append((flagged[~odd].sum() / max(1, flagged.sum()), flagged[odd].mean() if odd.any() else 0.0, flagged.any()))
    fdp, power, some = np.array(found, dtype=float).T
    return [round(float(x), 4) for x in (fdp.mean(), sem(fdp), power.mean(), some.mean())]


OPTIONS = {"sets_root": Option(Path), "rules": list(RULES), "seed": 0, "tables": hidden(50)}
OPTIONS |= {"sizes": hidden(SIZES), "shares": hidden(SHARES)}
TINY = {"tables": 2, "sizes": (50,), "shares": (0.1,), "rules": ["vergence"]}

if __name__ == "__main__":
    peers = ("nonconform", "crepes", "pyod", "pythresh")
    main(__doc__, "calibration_peers", OPTIONS, cells, measure, tiny=TINY, peers=peers)
