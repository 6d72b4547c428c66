"""Tail probabilities of scores under the scores of typical items, beyond the largest of them too."""

from typing import Any

import numpy as np

__all__ = ["Tail"]

SHARE = 0.1  # of the typical scores that the tail is fitted to
FEWEST = 10  # scores in the tail, below which it is exponential


class Tail:
    r"""Log-probabilities that a typical score is at least as large as a given one.

    Up to the 0.9-quantile u of the typical scores the empirical share is interpolated; beyond it the excess follows a generalized
    Pareto distribution, P(s > u + y) = q (1 + xi y / sigma)^(-1/xi), fitted by probability-weighted moments (Hosking, Wallis,
    Parameter and quantile estimation for the generalized Pareto distribution, 1987) with xi from 1/m to 0.9. With xi = 1/m it is
    the predictive distribution of an exponential tail whose rate is known from m excesses, under the prior 1 / rate. It ranks
    items beyond the largest typical score, where all empirical shares are equal; it guarantees no rate: calibrate what is
    computed from it.

    Args:
        scores: Scores of typical items (n,), larger is more anomalous.
        w: Their weights (n,), or None.

    Example:
        >>> tail = Tail(np.random.default_rng(0).exponential(size=20_000))
        >>> (-tail.log_probability(np.array([1.0, 5.0, 12.0]))).round(1).tolist()
        [1.0, 5.0, 12.0]
    """

    def __init__(self, scores: np.ndarray, w: np.ndarray | None = None) -> None:
        order = np.argsort(scores, kind="stable")
        s, weight = scores[order], (np.ones(len(scores)) if w is None else w[order])
        total = weight.sum()
        above = np.cumsum(weight[::-1])[::-1]  # weight at or above each score
        self.scores, first = np.unique(s, return_index=True)
        self.log_share = np.log(above[first] / (total + 1))
        tail = above <= max(SHARE * total, above[-1]) * (1 + 1e-12)
        start = int(np.flatnonzero(tail)[0])
        below = s[:start][s[:start] < s[start]]
        self.threshold = float(below[-1]) if len(below) else float(s[start])
        self.log_rate = float(np.interp(self.threshold, self.scores, self.log_share))
        self.sigma, self.xi = _pareto(s[tail] - self.threshold, weight[tail], float(np.ptp(s)))

    def arrays(self) -> dict[str, Any]:
        """Returns the state as arrays and numbers; see `of`."""
        return dict(vars(self))

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Tail":
        """Returns the tail of a state that `arrays` returned."""
        tail = cls.__new__(cls)
        vars(tail).update(state)
        return tail

    def log_probability(self, scores: np.ndarray) -> np.ndarray:
        """Returns log p of each score, (N,), at most 0; it decreases strictly beyond the threshold."""
        inside = np.interp(scores, self.scores, self.log_share, left=0.0)
        excess = np.maximum(scores - self.threshold, 0.0) / self.sigma
        beyond = self.log_rate - (np.log1p(self.xi * excess) / self.xi if self.xi > 0 else excess)
        return np.asarray(np.where(scores > self.threshold, beyond, inside))


def _pareto(excess: np.ndarray, w: np.ndarray, spread: float) -> tuple[float, float]:
    """Returns sigma and xi of excesses (m,) in ascending order."""
    total = w.sum()
    mean = float(w @ excess / total)
    if not mean > 0:
        return spread if spread > 0 else 1.0, 0.0
    least = min(float(np.sum(w**2)) / total**2, 0.9)  # 1 / m, where m counts equal weights
    survival = (np.cumsum(w[::-1])[::-1] - w / 2) / total
    first = float(w @ (survival * excess) / total)
    if total < FEWEST or not mean > 2 * first:
        return mean, least
    xi = min(max(2 - mean / (mean - 2 * first), least), 0.9)
    return mean * (1 - xi), xi
