r"""A stream of scores: has what is ordinary changed? A conformal test martingale, whose false alarms are bounded for all time.

Each score gets a p-value among all before it, ties broken at random: p = (#{s_i > s} + U #{s_i = s or it}) / (n + 1), independent
and uniform as long as scores are exchangeable. The wealth of betting on small p-values, a mixture over all eps in (0, 1) of
prod eps p_i^(eps - 1), is M = int_0^1 eps^m e^{(1 - eps) a} d eps with a = -sum log p_i, and P(sup M >= 1 / alpha) <= alpha
(Vovk, Nouretdinov, Gammerman, Testing exchangeability on-line, 2003; Vovk, Testing randomness online, 2021).
"""

import bisect
import math

import numpy as np
from scipy.special import gammainc, gammaln

from vergence.decide.decisions import LEAST
from vergence.decide.inputs import Values, as_values
from vergence.utils.checks import expect, require_count, require_within

__all__ = ["Monitor"]

TERMS = 500  # of a series, where the incomplete gamma function underflows


class Monitor:
    """Whether a stream's scores are still like those of calibration items.

    Args:
        calibration: Scores (n,) of ordinary items, n >= 10.
        alarm: Probability, over all time, of an alarm though nothing changes, in (0, 1).
        seed: Seed of the random numbers that break ties.

    Attributes:
        log_wealth: log M in nats; an alarm is due at log(1 / ``alarm``).
        highest: The largest log M so far.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> monitor = Monitor(rng.normal(size=500))
        >>> monitor.update(rng.normal(size=500)), monitor.update(rng.normal(1.5, 1, size=100))
        (False, True)
    """

    def __init__(self, calibration: Values, alarm: float = 0.01, seed: int = 0) -> None:
        require_within("(0, 1)", alarm=alarm)
        require_count(0, seed=seed)
        scores = as_values("calibration scores", calibration).cpu().numpy()
        expect(len(scores) >= LEAST, f"at least {LEAST} calibration scores", len(scores), "give more ordinary items")
        self.alarm, self._seen, self._rng = alarm, sorted(scores.tolist()), np.random.default_rng(seed)
        self.log_wealth, self.highest, self._items, self._a = 0.0, 0.0, 0, 0.0

    def update(self, scores: Values) -> bool:
        """Returns whether there has been an alarm, after scores (m,) in their order; larger is stranger."""
        for s in as_values("scores", scores).cpu().tolist():
            left, right = bisect.bisect_left(self._seen, s), bisect.bisect_right(self._seen, s)
            above, equal = len(self._seen) - right, right - left + 1  # with itself
            p = (above + self._rng.uniform() * equal) / (len(self._seen) + 1)
            self._seen.insert(right, s)
            self._items, self._a = self._items + 1, self._a - math.log(max(p, 1e-300))
            self.log_wealth = log_wealth(self._items, self._a)
            self.highest = max(self.highest, self.log_wealth)
        return self.highest >= -math.log(self.alarm)


def log_wealth(m: int, a: float) -> float:
    """Returns log int_0^1 eps^m e^{(1 - eps) a} d eps, a >= 0.

    Example:
        >>> round(log_wealth(1, 1.0), 4), round(log_wealth(0, 0.0), 4)
        (-0.3309, 0.0)
    """
    if a > 0 and (share := float(gammainc(m + 1, a))) > 1e-200:
        return a - (m + 1) * math.log(a) + float(gammaln(m + 1)) + math.log(share)
    term = total = 1 / (m + 1)  # sum_k a^k m! / (m + 1 + k)!, whose terms fall where a < m
    for k in range(1, TERMS):
        term *= a / (m + 1 + k)
        total += term
    return math.log(total)
