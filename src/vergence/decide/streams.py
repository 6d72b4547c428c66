r"""A stream of scores: have the normal items changed? Conformal test martingales, whose false alarms are bounded for all time.

If the n calibration scores and the stream are exchangeable, a score falls into the spacing k of the calibration scores, ties
broken at random, with probability (g_k + N_k) / (n + 1 + sum N): Polya's urn, of g_k gaps and N_k earlier scores of the stream.
So p = (what lies above + U times what lies in k) / (n + 1 + sum N) is uniform and independent of the earlier ones (Vovk,
Nouretdinov, Gammerman, Testing exchangeability on-line, 2003; Vovk, Testing randomness online, 2021), and the memory is bounded.

Five martingales bet on small u: u = p, 1 - p, |2p - 1|, 1 - |2p - 1|, and the p-value of the distance of each score of even
place to the one before, among those of random pairs of calibration scores. A bet that starts at t has the wealth
prod_{i >= t} eps u_i^(eps - 1); M_k is the mean over eps, and over starts with weights that fall as 1 / (t log^2 t). Each M_k
is a martingale from 1, so P(sup_t max_k M_k / 5 >= 1 / alarm) <= alarm by Ville's inequality and the union bound.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from vergence.decide.decisions import LEAST
from vergence.decide.inputs import Values, as_values
from vergence.utils.checks import expect, require_choice, require_count, require_within
from vergence.utils.files import explained, read_object, replacing

__all__ = ["Monitor"]

KINDS = ("higher scores", "lower scores", "less spread", "more spread", "repeated scores")
POWERS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])  # eps of the bets
CELLS = 1000  # spacings of the calibration scores that are counted, at most
SAVED = ("alarm", "seed", "items", "last", "log_wealth", "highest", "drift")  # next to the arrays


class Monitor:
    """Whether a stream's scores are still like those of calibration items, and if not, how they differ.

    The probability of an alarm over all time is at most ``alarm`` as long as the scores are exchangeable with the calibration
    scores: they may be equal, but they may not depend on their order. The memory does not grow.

    Args:
        calibration: Finite scores (n,) of normal items that no fit has seen, n >= 10.
        alarm: Probability, over all time, of an alarm though nothing changes, in (0, 1).
        seed: Seed of the random numbers that break ties.

    Attributes:
        log_wealth: Log of the largest wealth over the number of martingales, in nats; an alarm is due at log(1 / ``alarm``).
        highest: The largest ``log_wealth`` so far.
        drift: What changed most at that time: higher scores, lower scores, less spread, more spread or repeated scores.
        items: Scores since the start, or since `reset`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> monitor = Monitor(rng.normal(size=500))
        >>> monitor.update(rng.normal(size=500)), monitor.update(rng.normal(-1.5, 1, size=100)), monitor.drift
        (False, True, 'lower scores')
    """

    def __init__(self, calibration: Values, alarm: float = 0.01, seed: int = 0) -> None:
        require_within("(0, 1)", alarm=alarm)
        require_count(0, seed=seed)
        self.calibration, self.alarm, self.seed = as_values("calibration scores", calibration), alarm, seed
        n = len(self.calibration)
        expect(n >= LEAST, f"at least {LEAST} calibration scores", n, "give more normal items")
        expect(np.isfinite(self.calibration).all(), "finite calibration scores", "infinite ones", "leave these items out")
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(self.calibration)[: n // 2 * 2].reshape(-1, 2)
        self._scores, self._pairs = _Urn(self.calibration, rng), _Urn(abs(pairs[:, 0] - pairs[:, 1]), rng)
        self.reset()

    def reset(self) -> None:
        """Starts again from the calibration scores, as after an alarm whose cause was corrected."""
        self._scores.reset()
        self._pairs.reset()
        self.items, self.last = 0, 0.0
        self.bets = np.full((len(KINDS), len(POWERS)), math.log(0.5 / len(POWERS)))  # log wealth, of all that have started
        self.log_wealth = self.highest = -math.log(len(KINDS))
        self.drift = ""

    @property
    def alarmed(self) -> bool:
        """Whether there has been an alarm; it stays until `reset`."""
        return self.highest >= -math.log(self.alarm)

    def update(self, scores: Values) -> bool:
        """Returns whether there has been an alarm, after scores (m,) in their order; larger is more anomalous."""
        for s in as_values("scores", scores).tolist():
            self._see(s)
        return self.alarmed

    def _see(self, s: float) -> None:
        u = np.random.default_rng((self.seed, self.items)).random(4)
        p = self._scores.above(s, u[0], u[1])
        small = [p, 1 - p, abs(2 * p - 1), 1 - abs(2 * p - 1)]
        if self.items % 2:
            small.append(1 - self._pairs.above(0.0 if s == self.last else abs(s - self.last), u[2], u[3]))
        gain = (POWERS - 1) * np.log(np.maximum(small, 1e-300))[:, None] + np.log(POWERS)
        self.bets[: len(small)] += gain
        same, kept = self.items > 0 and s == self.last, _unspent(self.items)
        self.items, self.last = self.items + 1, s
        left = _unspent(self.items)
        self.bets = np.logaddexp(self.bets, math.log((kept - left) / len(POWERS)))
        wealth = np.logaddexp(np.logaddexp.reduce(self.bets, 1), math.log(left)) - math.log(len(KINDS))
        self.log_wealth = float(wealth.max())
        if self.log_wealth > self.highest:
            kind = KINDS[int(wealth.argmax())]
            self.highest, self.drift = self.log_wealth, KINDS[4] if same and kind == KINDS[2] else kind

    def save(self, path: str | Path) -> None:
        """Writes calibration scores and state to a JSON file, in one step."""
        content: dict[str, Any] = {name: getattr(self, name) for name in SAVED}
        content |= {"calibration": self.calibration.tolist(), "bets": self.bets.tolist()}
        content |= {"scores": self._scores.counts.tolist(), "pairs": self._pairs.counts.tolist()}
        other = Path(path).is_file() and not Path(path).read_bytes().startswith(b"{")
        expect(not other, f"no file, or the state of a monitor, at {path}", "another file", "choose another path")
        with explained(Path(path), "choose another path, or free space"), replacing(Path(path)) as part:
            part.write_text(json.dumps(content))

    @classmethod
    def load(cls, path: str | Path) -> "Monitor":
        """Returns the monitor that `save` wrote, which goes on where that one was."""
        try:
            content = read_object(Path(path))
            monitor = cls(content["calibration"], content["alarm"], content["seed"])
            for urn, name in ((monitor._scores, "scores"), (monitor._pairs, "pairs")):
                urn.counts = _like(urn.counts, content[name], name)
                expect((urn.counts >= urn.first).all(), f"counts of {name}", "smaller ones")
            monitor.bets = _like(monitor.bets, content["bets"], "bets")
            for name in ("last", "log_wealth", "highest"):
                setattr(monitor, name, float(content[name]))
                expect(math.isfinite(getattr(monitor, name)), f"a finite number {name}", content[name])
            require_choice("drift", content["drift"], ("", *KINDS))
            require_count(0, items=content["items"])
            monitor.items, monitor.drift = content["items"], str(content["drift"])
        except (LookupError, TypeError, ValueError):
            text = f"expected the state of a monitor, found {path}, which is damaged or of another kind; start anew"
            raise ValueError(text) from None
        return monitor


class _Urn:
    """How many scores fell between knots: calibration values (n,), some of the sorted ones, with random numbers for ties."""

    def __init__(self, values: np.ndarray, rng: np.random.Generator) -> None:
        ties = rng.random(len(values))
        order = np.lexsort((ties, values))
        ranks = np.unique(np.linspace(0, len(values) - 1, CELLS).round().astype(np.int64))
        self.knots, self.ties = values[order[ranks]], ties[order[ranks]]
        self.first = np.diff(ranks, prepend=-1, append=len(values))
        self.reset()

    def reset(self) -> None:
        """Forgets all but the calibration values."""
        self.counts = self.first.copy()

    def above(self, s: float, tie: float, inside: float) -> float:
        """Counts a score; returns the share above it, by random numbers in [0, 1) for ties and for the place in its cell."""
        low, high = np.searchsorted(self.knots, s), np.searchsorted(self.knots, s, side="right")
        cell = low + np.searchsorted(self.ties[low:high], tie)
        p = (self.counts[cell + 1 :].sum() + inside * self.counts[cell]) / self.counts.sum()
        self.counts[cell] += 1
        return float(p)


def _unspent(t: int) -> float:
    """Returns the share of the wealth that starts to bet after t scores."""
    return 0.5 / (1 + math.log1p(t))


def _like(array: np.ndarray, given: Any, name: str) -> np.ndarray:
    """Returns numbers of a file that are of the shape and kind of an array."""
    found = np.asarray(given)
    fits = found.shape == array.shape and found.dtype.kind in ("i" if array.dtype.kind == "i" else "if")
    expect(fits and np.isfinite(found).all(), f"{name} of shape {array.shape}", found.shape)
    return found.astype(array.dtype)
