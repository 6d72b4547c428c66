"""Fixed cuts on quality features of sites, as CellProfiler users and coSMicQC set them, and the judge of any decision.

A table has an array (N,) for each feature of N sites; names are those of CellProfiler's MeasureImageQuality.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from experiments.plates.layout import CHANNELS, ERRORS
from scipy import fft, ndimage

CUTS = (2.0, 2.5, 3.0)
WINDOW = 20  # pixels of the squares of LocalFocusScore
Table = Mapping[str, np.ndarray]


def image_quality(image: np.ndarray) -> dict[str, float]:
    """Returns the features of MeasureImageQuality of a site (5, side, side) uint16, without thresholds and Haralick's texture."""
    found: dict[str, float] = {}
    for name, pixels in zip(CHANNELS, image / 65535, strict=True):
        median, mean = float(np.median(pixels)), float(pixels.mean())
        of_channel = {
            "PowerLogLogSlope": slope(pixels),
            "FocusScore": float(pixels.var()) / mean,
            f"LocalFocusScore_{WINDOW}": local_focus(pixels),
            "PercentMaximal": 100 * float((pixels == pixels.max()).mean()),
            "PercentMinimal": 100 * float((pixels == pixels.min()).mean()),
            "MeanIntensity": mean,
            "MedianIntensity": median,
            "StdIntensity": float(pixels.std()),
            "MADIntensity": float(np.median(np.abs(pixels - median))),
            "MinIntensity": float(pixels.min()),
            "MaxIntensity": float(pixels.max()),
        }
        for feature, value in of_channel.items():
            kind, _, scale = feature.partition("_")
            found["_".join(filter(None, ("ImageQuality", kind, name, scale)))] = value
    return found


def slope(pixels: np.ndarray) -> float:
    """Returns the slope of the logarithm of power over that of the radius in the spectrum, up to an eighth of the width."""
    y, x = (np.minimum(np.arange(n), n - 1 - np.arange(n)) for n in pixels.shape)  # as CellProfiler counts radii
    radius = np.floor(np.hypot(y[:, None], x[None])).astype(int) + 1
    power = np.bincount(radius.ravel(), (np.abs(fft.fft2(pixels - pixels.mean())) ** 2).ravel())
    shown = np.arange(2, int(min(pixels.shape) / 8))
    shown = shown[power[shown] > 0]
    return float(np.polyfit(np.log(shown), np.log(power[shown]), 1)[0]) if len(shown) > 1 else 0.0


def local_focus(pixels: np.ndarray) -> float:
    """Returns the variance over squares of their variance by their mean."""
    squares = [-(-n // WINDOW) for n in pixels.shape]
    rows, columns = (np.arange(n) * m // n for n, m in zip(pixels.shape, squares, strict=True))
    label = rows[:, None] * squares[1] + columns[None]
    every = np.arange(squares[0] * squares[1])
    score = ndimage.variance(pixels, label, every) / np.maximum(ndimage.mean(pixels, label, every), 1e-9)
    return float(np.var(score))


def z_scores(values: np.ndarray, robust: bool, reference: np.ndarray | None = None) -> np.ndarray:
    """Returns z scores by mean and deviation, or by median and median absolute deviation; where that is 0, by the former."""
    known = values if reference is None else values[reference]
    spread = 1.4826 * np.median(np.abs(known - np.median(known))) if robust else 0.0
    center, spread = (np.median(known), spread) if spread > 0 else (known.mean(), known.std())
    return (values - center) / spread if spread > 0 else np.zeros_like(values)


def conditions(table: Table, sets: Iterable[Mapping[str, float]], robust: bool, reference: np.ndarray | None) -> np.ndarray:
    """Returns which sites meet any set of conditions as coSMicQC reads them.

    A set is met if all its features are beyond their thresholds: above a positive one, below a negative one.
    """
    met = []
    for thresholds in sets:
        scores = {name: z_scores(table[name], robust, reference) for name in thresholds}
        met.append(np.all([scores[n] > t if t > 0 else scores[n] < t for n, t in thresholds.items()], axis=0))
    return np.any(met, axis=0)


def cut_names(table: Table, features: Sequence[str], cut: float) -> list[dict[str, float]]:
    """Returns a set of one condition for each feature of each channel; ``-`` before a feature is a lower bound."""
    found = []
    for feature in features:
        kind, sign = feature.lstrip("-"), -1 if feature.startswith("-") else 1
        found += [{name: sign * cut} for name in table if name.startswith(f"ImageQuality_{kind}_")]
    return found


def fixed_cuts(table: Table, control: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the sites (N,) that each fixed cut flags.

    ``blur and saturation`` are the two features that tutorials of the field cut, ``every feature`` cuts all on both sides;
    scores are plain over the plate, robust over the plate, or robust over the control sites.
    """
    kinds = sorted({name.split("_")[1] for name in table})
    rules = {
        "blur and saturation": ["-PowerLogLogSlope", "PercentMaximal"],
        "every feature": [sign + kind for kind in kinds for sign in ("", "-")],
    }
    scores = {"plain": (False, None), "robust": (True, None), "controls": (True, control)}
    return {
        f"{rule}, {score}, {cut:g}": conditions(table, cut_names(table, features, cut), *how)
        for rule, features in rules.items()
        for score, how in scores.items()
        for cut in CUTS
    }


def judge(decisions: Iterable[Mapping[str, Any]], truth: Iterable[Mapping[str, Any]], flag: str = "flagged") -> dict[str, Any]:
    """Returns how decisions agree with the truth of a plate.

    Args:
        decisions: Rows with ``Metadata_Well``, ``Metadata_Site`` and the column ``flag``: 1 or True where a site is flagged.
        truth: Rows of ``truth.csv``. Every site of it needs a decision.
        flag: Name of the column.

    Returns:
        ``false_share``, the share of normal sites among the flagged ones (0 where none is); ``power`` by kind of error, and
        ``power_seen`` of errors that are not small; ``control_flags`` and ``treated_flags``, the flagged shares of normal sites.
    """
    flags = {(r["Metadata_Well"], int(r["Metadata_Site"])): str(r[flag]).lower() in ("1", "true", "1.0") for r in decisions}
    rows = list(truth)
    missing = [r["site"] for r in rows if (r["Metadata_Well"], int(r["Metadata_Site"])) not in flags]
    if missing:
        raise ValueError(f"expected a decision for every site, found none for {len(missing)} sites, the first {missing[0]}")
    flagged = np.array([flags[r["Metadata_Well"], int(r["Metadata_Site"])] for r in rows])
    kind, treated = np.array([r["error"] for r in rows]), np.array([bool(int(r["treated"])) for r in rows])
    normal, seen = kind == "", np.array([r["severity"] in ("medium", "large") for r in rows])

    def share(part: np.ndarray) -> float | None:
        return float(flagged[part].mean()) if part.any() else None

    return {
        "sites": len(rows),
        "errors": int((~normal).sum()),
        "flagged": int(flagged.sum()),
        "false_share": float(normal[flagged].mean()) if flagged.any() else 0.0,
        "power": {name: share(kind == name) for name in ERRORS},
        "power_seen": share(seen),
        "seen_by_kind": {name: share(seen & (kind == name)) for name in ERRORS},
        "control_flags": share(normal & ~treated),
        "treated_flags": share(normal & treated),
    }
