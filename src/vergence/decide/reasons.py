"""A reason for each anomaly, in words: the feature sets in which it is rare, and what can be seen or measured.

Shapes: N normal items, M items, L feature sets, D features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vergence.decide.inputs import array_of
from vergence.utils.checks import expect, require_count
from vergence.utils.dtypes import Floats

__all__ = ["explain"]

RARE = 0.01  # share of normal items, below which a feature set is part of a reason
RARE_ALONE = 0.1  # the same of a feature set that is the whole reason


def explain(feature_sets: Sequence[str], p_values: Any, n: int, words: Sequence[Sequence[str]] | None = None) -> list[str]:
    """Returns why each item is anomalous: the feature sets in which it is rare, the rarest first, then words about it.

    A feature set counts as rare where at most one in 100 normal items is as anomalous. Of an item that is rare in none, the
    rarest is named if at most one in 10 is. Among n normal items nothing rarer than 1 in n can be seen, so none is reported.

    Args:
        feature_sets: Names of the L feature sets.
        p_values: Shares (M, L) of the normal items that are at least as anomalous in each of them, in (0, 1].
        n: Number of normal items.
        words: More about each item (M,), lists of texts that follow.

    Example:
        >>> explain(["pixels", "z"], [[0.0001, 0.004], [0.3, 0.02]], 500, [["dark"], []])
        ['pixels rarer than 1 in 500; z 1 in 200; dark', 'z 1 in 50']
        >>> explain(["pixels", "z"], [[0.4, 0.5]], 500)
        ['']
    """
    require_count(1, n=n)
    expect(isinstance(feature_sets, Sequence), "feature_sets to be a list of names", feature_sets)
    listed = words is None or (isinstance(words, list | tuple) and all(isinstance(some, list | tuple) for some in words))
    texts = listed and all(isinstance(word, str) for some in words or () for word in some)
    expect(texts, "words to be a list of texts for each item", words)
    p = array_of("p_values", p_values).astype(np.float64)
    fits = p.ndim == 2 and p.shape[1] == len(feature_sets) and (words is None or len(words) == len(p))
    expect(fits, f"p-values (M, {len(feature_sets)}) and words (M,)", p.shape)
    return ["; ".join([*_rare(feature_sets, row, n), *(words[i] if words is not None else ())]) for i, row in enumerate(p)]


def _rare(feature_sets: Sequence[str], p: Floats, n: int) -> list[str]:
    order = [i for i in np.argsort(p, kind="stable").tolist() if p[i] <= RARE] or [int(p.argmin())]
    order = [i for i in order if p[i] <= RARE_ALONE]
    beyond = ", ".join(str(feature_sets[i]) for i in order if p[i] < 1 / n)
    within = [f"{feature_sets[i]} 1 in {float(f'{1 / p[i]:.1g}'):,.0f}" for i in order if p[i] >= 1 / n]
    return [f"{beyond} rarer than 1 in {n:,}", *within] if beyond else within
