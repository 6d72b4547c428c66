r"""What a person's marks say about images without a mark.

Marks come one after the other, and a person may stop at any time. So bounds are confidence sequences, which hold at all times at
once: with x_t = 1 for an anomaly and p_t its probability given the marks before, for any lambda > 0

    prod_t exp(lambda x_t) / (1 - p_t + p_t exp(lambda))

has mean one and exceeds 1 / a with a probability of at most a (Ville's inequality; Waudby-Smith & Ramdas, Estimating means of
bounded random variables by betting, 2024). So has its mean over some lambda. It is log-convex in p_t, so that a bound on a
constant p holds for the mean of p_t.

Shapes: T marks, N images.
"""

import bisect
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import logsumexp

from vergence.images.review import Review
from vergence.utils.dtypes import Bools, Floats, Ints

LAMBDA = np.geomspace(0.25, 8.0, 6)
ERROR, FOUND = 0.05, 0.9  # probability that a bound is wrong; share of the anomalies to find
FEWEST, CAPTURED = 10, 5  # marks in a row that are reported; anomalies among random images from which a number is estimated


def _evidence(x: Floats, p: npt.ArrayLike) -> float:
    """Returns the log of the mean product of marks (T,) of probabilities p, a number or (T,)."""
    p = np.broadcast_to(np.asarray(p, dtype=np.float64), x.shape)[:, None]
    return float(logsumexp(LAMBDA * x.sum() - np.log1p(p * np.expm1(LAMBDA)).sum(0)) - np.log(len(LAMBDA)))


def least_share(anomaly: npt.ArrayLike) -> float:
    """Returns a lower bound, in [0, 1], on the share of anomalies among images like those marked (T,), whenever one stops."""
    x = np.asarray(anomaly, dtype=np.float64)

    def excess(p: float) -> float:
        return _evidence(x, p) + math.log(ERROR)

    return float(brentq(excess, 1e-9, x.mean())) if x.any() and excess(1e-9) > 0 else 0.0


def most_left(anomaly: npt.ArrayLike, total: int) -> int:
    """Returns an upper bound on the anomalies among so many images, of which those marked (T,) are the first in random order."""
    x = np.asarray(anomaly, dtype=np.float64)
    before, left = np.concatenate([[0.0], np.cumsum(x)[:-1]]), total - np.arange(len(x))
    least, most = int(x.sum()), total - int((1 - x).sum())

    def refuted(n: int) -> bool:
        return _evidence(1 - x, 1 - (n - before) / left) >= -math.log(ERROR)

    return least + bisect.bisect_left(range(least + 1, most + 1), True, key=refuted)


def at_random(digest: Ints) -> Ints:
    """Returns images in an order that is random, and the same whatever they are called, by their digests (N,)."""
    return np.argsort(digest, kind="stable")[np.random.default_rng(0).permutation(len(digest))]


def marks_in_words(review: Review, names: Sequence[str], digest: Ints, score: Callable[[Ints], Floats]) -> list[str]:
    """Returns what follows from marks of images (N,) in an order, and at random; ``score`` is the order without some marks."""
    anomaly = review.marked(names, "anomaly")
    marked = anomaly | review.marked(names, "normal")
    rank = np.array([review.ranks.get(name, 0) for name in names])
    first = _run(np.isin(np.arange(1, rank.max(initial=0) + 1), rank[marked]))
    top = marked & (rank > 0) & (rank <= first)
    rest = at_random(digest)
    rest = rest[~top[rest]]
    random = rest[: _run(marked[rest])]
    by_rank = anomaly[np.flatnonzero(top)[np.argsort(rank[top], kind="stable")]]
    notes = []
    if first >= FEWEST:
        notes.append(f"You marked {int(by_rank.sum()):,} of the first {len(by_rank):,} as anomalies.")
        if (least := math.floor(100 * least_share(by_rank))) >= 1:
            notes[0] += f" With 95 % confidence, at least {least} % of images of this source that score as high are anomalies."
    if len(random) >= FEWEST:
        s, captured = score(random), random[anomaly[random]]
        ahead = (s[rest[~marked[rest]]] > s[captured][:, None]).sum(1)
        found, most = int(anomaly[random].sum()), most_left(anomaly[random], len(rest))
        head = f"You marked {found:,} of {len(random):,} others at random as {'an anomaly' if found == 1 else 'anomalies'}."
        notes.append(f"{head} With 95 % confidence, at most {most:,} of all {len(rest):,} others are anomalies.")
        notes.append(_further(int(anomaly[top].sum()), ahead, len(rest) / len(random)))
    return [*filter(None, notes)]


def _run(marked: Bools) -> int:
    """Returns how many are marked before the first that is not."""
    return int(np.argmin(np.append(marked, False)))


def _further(found: int, ahead: Ints, each: float) -> str:
    """Returns how many others to check, by those ahead of the anomalies among random ones, each of which stands for some."""
    if len(ahead) < CAPTURED:
        return ""
    wanted = math.ceil((FOUND * (found + each * len(ahead)) - found) / each - 1e-9)
    if wanted <= 0:
        return "By these, the first ones hold about 90 % of all anomalies."
    return f"Check about {int(np.sort(ahead)[wanted - 1]):,} more in this order to find 90 % of all anomalies."
