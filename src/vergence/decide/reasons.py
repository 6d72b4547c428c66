"""A reason for each unusual item, in words: the levels at which it is rare, and what can be seen or measured.

Shapes: N typical items, M items, L levels, D features.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vergence.decide.inputs import numeric
from vergence.utils.checks import expect, require_count
from vergence.utils.dtypes import Floats

__all__ = ["explain"]

RARE = 0.01  # share of typical items, below which a level is part of a reason
RARE_ALONE = 0.1  # the same of a level that is the whole reason


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
    expect(isinstance(levels, Sequence), "levels to be a list of names", levels)
    listed = words is None or (isinstance(words, list | tuple) and all(isinstance(some, list | tuple) for some in words))
    texts = listed and all(isinstance(word, str) for some in words or () for word in some)
    expect(texts, "words to be a list of texts for each item", words)
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
