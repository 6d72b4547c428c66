"""The joint law of conformal p-values of typical items, which depends on nothing but the numbers of items.

Let n calibration items and m typical ones be exchangeable, without ties. Then N_k, the number of p-values at most k / (n + 1), is
a Polya urn's count: given the n + 1 spacings of n uniform numbers, the m items fall into them independently (Marandon, Lei,
Mary, Roquain, Adaptive novelty detection with false discovery rate guarantee, 2022; Gazin, Blanchard, Roquain, Transductive
conformal inference with adaptive scores, 2023). Ranks k of a grid are sampled directly, so that the effort does not depend on
n and m.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["counts_of", "null_counts", "rank_grid", "tail"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def rank_grid(n: int, size: int = 100) -> Ints:
    """Returns about ``size`` increasing ranks of 1..n, all small ones and then ever wider apart.

    Example:
        >>> rank_grid(5), rank_grid(10_000, 6)
        (array([1, 2, 3, 4, 5]), array([    1,     6,    40,   251,  1585, 10000]))
    """
    return np.unique(np.round(np.geomspace(1, n, size)).astype(np.int64))


def null_counts(n: int, m: int, ranks: Ints, size: int, rng: np.random.Generator) -> Ints:
    """Returns ``size`` samples of N_k at increasing ranks k, (size, G), for n calibration items and m typical ones.

    Example:
        >>> null_counts(9, 20, np.array([1, 5, 9]), 20_000, np.random.default_rng(0)).mean(0).round(1)  # m k / (n + 1)
        array([ 2., 10., 18.])
    """
    spacing = rng.standard_gamma(np.diff(ranks, prepend=0, append=n + 1), (size, len(ranks) + 1))
    cells = rng.multinomial(m, spacing / spacing.sum(1, keepdims=True))
    return cells[:, :-1].cumsum(1)


def counts_of(p: Floats, n: int, ranks: Ints) -> Ints:
    """Returns how many p-values are at most k / (n + 1), for each rank k.

    Example:
        >>> counts_of(np.array([0.1, 0.3, 0.5]), 9, np.array([1, 5, 9]))
        array([1, 3, 3])
    """
    return np.searchsorted(np.sort(p), ranks / (n + 1) * (1 + 1e-12), side="right")


def tail(n: int, m: int, k: int) -> Floats:
    """Returns P(N_k >= v) for v = 0..m, of the beta-binomial law of m items, k and n + 1 - k.

    Example:
        >>> tail(9, 2, 5).round(3)  # 1, P(at least one), P(both)
        array([1.   , 0.727, 0.273])
    """
    from scipy.special import betaln, gammaln

    v = np.arange(m + 1)
    log_pmf = gammaln(m + 1) - gammaln(v + 1) - gammaln(m - v + 1) + betaln(k + v, n + 1 - k + m - v) - betaln(k, n + 1 - k)
    return np.asarray(np.minimum(1.0, np.exp(log_pmf)[::-1].cumsum()[::-1]))
