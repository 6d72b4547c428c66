"""A reason for each unusual item, in words: the levels at which it is rare, and what can be seen or measured.

Shapes: N typical items, M items, L levels, D features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vergence.detection.inputs import as_values, features_of, numeric
from vergence.detection.moments import deviation
from vergence.utils.checks import counted, expect, require_count, require_within

__all__ = ["explain", "extremes", "look_at", "outlying_features"]

Floats = npt.NDArray[np.float64]
RARE = 0.01  # share of typical items, below which a level is part of a reason
RARE_ALONE = 0.1  # the same of a level that is the whole reason
EXTREME = 0.005  # the same of a measurement
FAR = 4.0  # robust standard deviations of a feature
NAMED = 2  # measurements and features that a reason names
WORDS = {  # of `vergence.detection.images.Measured`, by name and whether the value is low
    ("brightest", True): "no bright parts",
    ("brightest", False): "very bright parts",
    ("darkest", True): "very dark parts",
    ("darkest", False): "no dark parts",
    ("information", True): "few shades",
    ("information", False): "many shades",
    ("color", True): "weak colors",
    ("color", False): "strong colors",
}
SHARES = {0.1: "a tenth", 0.2: "a fifth", 0.25: "a quarter", 0.5: "half"}


def explain(levels: Sequence[str], p_values: Any, n: int, words: Sequence[Sequence[str]] | None = None) -> list[str]:
    """Returns why each item is unusual: the levels at which it is rare, the rarest first, then words about it.

    A level counts as rare where at most one in 100 typical items is as unusual; of an item that is rare at none, the rarest is
    named if at most one in 10 is. Of n typical items nothing rarer than 1 in n can be seen, so that the reason does not say more.

    The shares of n typical items that are at least as unusual at each of the levels are (M, L). Words about each item, (M,), such
    as those of `extremes`, follow.

    Example:
        >>> explain(["pixels", "z"], [[0.0001, 0.004], [0.3, 0.02]], 500, [["dark"], []])
        ['pixels rarer than 1 in 500; z 1 in 200; dark', 'z 1 in 50']
        >>> explain(["pixels", "z"], [[0.4, 0.5]], 500)
        ['']
    """
    require_count(1, n=n)
    p = numeric("p_values", p_values).double().cpu().numpy()
    fits = p.ndim == 2 and p.shape[1] == len(levels) and (words is None or len(words) == len(p))
    expect(fits, f"p-values (M, {len(levels)}) and words (M,)", p.shape)
    return ["; ".join([*_rare(levels, row, n), *(words[i] if words is not None else ())]) for i, row in enumerate(p)]


def _rare(levels: Sequence[str], p: Floats, n: int) -> list[str]:
    order = [i for i in np.argsort(p, kind="stable").tolist() if p[i] <= RARE] or [int(p.argmin())]
    order = [i for i in order if p[i] <= RARE_ALONE]
    beyond = ", ".join(str(levels[i]) for i in order if p[i] < 1 / n)
    within = [f"{levels[i]} 1 in {float(f'{1 / p[i]:.1g}'):,.0f}" for i in order if p[i] >= 1 / n]
    return [f"{beyond} rarer than 1 in {n:,}", *within] if beyond else within


def extremes(measurements: Mapping[str, Any], typical: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the measurements of each item that at most one in 200 typical items exceeds, the rarest first, at most two.

    Values (M,) are given by name, as of `vergence.detection.measure`, those of typical items (N,) by the same names.

    Example:
        >>> extremes({"sharpness": [0.0, 9.0]}, {"sharpness": np.arange(1, 401) / 100})
        [('low sharpness',), ('high sharpness',)]
    """
    fits = isinstance(measurements, Mapping) and isinstance(typical, Mapping) and measurements.keys() <= typical.keys()
    expect(fits, "two dictionaries of measurements by the same names", "others", "pass vars(measure(images))")
    ranked: list[list[tuple[float, str]]] = []
    for name, given in measurements.items():
        v, usual = (as_values(name, values).cpu().numpy() for values in (given, typical[name]))
        usual = np.sort(usual)
        below = np.searchsorted(usual, v, side="right") / len(usual)
        above = 1 - np.searchsorted(usual, v, side="left") / len(usual)
        ranked = ranked or [[] for _ in v]
        for shares, b, a in zip(ranked, below.tolist(), above.tolist(), strict=True):
            shares.append((min(b, a), WORDS.get((name, b < a), f"{'low' if b < a else 'high'} {name}")))
    return [tuple(word for share, word in sorted(shares)[:NAMED] if share <= EXTREME) for shares in ranked]


def outlying_features(x: Any, typical: Any, names: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """Returns the features of each vector that are farthest from the median, in robust standard deviations, at most two.

    Features within 4 standard deviations are not named. A robust standard deviation is 1.4826 times the median absolute
    deviation, and the plain one of a feature that is one value for most vectors.

    The vectors are (M, D), typical ones (N, D); the names (D,) are the features' numbers, from 0, by default.

    Example:
        >>> outlying_features([[0.0, 7.413]], np.linspace([-1, -1], [1, 1], 2001), ["width", "height"])
        [('height 10 standard deviations above the median',)]
    """
    v, usual = (features_of(name, values).double().cpu().numpy() for name, values in (("x", x), ("typical", typical)))
    names = list(names)
    fits = v.shape[1] == usual.shape[1] and len(names) in (0, v.shape[1])
    expect(fits, f"{v.shape[1]} features and as many names", f"{usual.shape[1]} and {len(names)}")
    middle = np.median(usual, axis=0)
    z = (v - middle) / np.where(np.ptp(usual, axis=0) > 0, deviation(usual - middle), np.inf)
    order = np.argsort(-np.abs(z), axis=1, kind="stable")[:, :NAMED]
    return [
        tuple(
            f"{names[j] if len(names) else f'feature {j}'} {abs(row[j]):.2g} standard deviations "
            f"{'above' if row[j] > 0 else 'below'} the median"
            for j in best.tolist()
            if abs(row[j]) > FAR
        )
        for row, best in zip(z, order, strict=True)
    ]


def look_at(n: int, fdr: float, noun: str = "item") -> str:
    """Returns what to do with n reported items, in a sentence.

    Example:
        >>> look_at(37, 0.1, "picture")
        'look at 37 pictures; on average at most a tenth of them will be fine'
    """
    require_count(0, n=n)
    require_within("[0, 1]", fdr=fdr)
    share = SHARES.get(fdr, f"{fdr:.2%}".replace(".00", ""))
    return f"look at {counted(n, noun)}; on average at most {share} of them will be fine"
