r"""How improbable scores are in a collection that is judged by itself: most items are typical, and none is known to be.

1. Features of a level are scored out of fold: t = log d^2, the squared Mahalanobis distance of an item under one Gaussian that is
   fitted to the likeliest three quarters of the other folds. No cluster of oddities attracts it.
2. Where a level is regular, d^2 of typical items follows e^m times an F law of 2 a and 2 b degrees of freedom: that of a
   multivariate t of 2 b degrees of freedom in 2 a dimensions; of many dimensions, a -> infinity, an inverse gamma law,
   e^m b / G with G ~ Gamma(b, 1). Its parameters are fitted to the smaller four fifths of t alone, the others count as censored,
   and the tail P follows:

       p = min(1, 2 P(t)),

   where the factor 2 is for the error of the model. Where the smaller scores do not follow the law, no p-value is small.
3. Other levels have the tail of `vergence.detection.tail_p_values`, which is fitted to less strange items one by one.
4. Levels are combined by weights w that add up to 1: p = min over levels of p_l / w_l (a weighted Bonferroni correction).

A p-value here is an estimate, not a guarantee: it extrapolates. Shapes: N items, D features, L levels, K folds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import betainc, betaln, gammainc, gammaln

from vergence.detection.conformal import tail_p_values
from vergence.detection.density import GaussianDetector
from vergence.detection.moments import deviation

__all__ = ["CrossFitted", "RadialLaw", "combined", "outward", "tail_log_p"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TRIM = 0.25  # share of the items that no fit sees
BODY = 0.8  # share of the scores that a law is fitted to
MODEL_ERROR = 2.0
MISFIT, SAMPLING = 0.035, 0.5  # largest distance of the distributions in the body, and what is added, divided by sqrt(N)
FEWEST, FEWEST_TAIL = 20, 100  # scores of a law, and of `tail_p_values`
EQUAL = 0.02  # share of the scores that may share one value
FLOOR = 0.05  # of a feature's deviation, relative to the median one
JITTER = 1e-6  # of the median deviation, so that features may be constant
TINY = 1e-300


@dataclass(frozen=True)
class RadialLaw:
    """The law of squared distances on the logarithmic scale; see the module.

    Attributes:
        location: m.
        shape: b.
        numerator: a; infinity for the inverse gamma law.
        misfit: Largest distance between the fitted and the observed distribution function in the body.
        holds: Whether the body follows the law.
    """

    location: float
    shape: float
    numerator: float
    misfit: float
    holds: bool

    @classmethod
    def of(cls, t: Floats, *, many: bool = True) -> "RadialLaw":
        """Returns the law of log squared distances (N,), N >= 20; of ``many`` dimensions, or of a number that is fitted, too.

        Example:
            >>> G = np.random.default_rng(0).gamma(3.0, size=4000)
            >>> law = RadialLaw.of(np.log(3.0 / G))
            >>> abs(round(law.location, 1)), round(law.shape), law.holds
            (0.0, 3, True)
        """
        s, n = np.sort(t), len(t)
        body, censored = s[: int(BODY * n)], n - int(BODY * n)
        spread = max(float(s[int(0.75 * n)] - s[int(0.25 * n)]) / 1.349, 1e-9)

        def loss(parameters: Floats) -> float:
            m, b, a = _parameters(parameters)
            return float(-_log_density(body - m, b, a).sum() - censored * np.log(_survival(body[-1] - m, b, a) + TINY))

        start = [float(np.median(s)), *([-2 * np.log(spread) + (0 if many else np.log(2))] * (1 if many else 2))]
        best = minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 2000})
        m, b, a = _parameters(best.x)
        misfit = float(np.abs(1 - _survival(body - m, b, a) - (np.arange(len(body)) + 0.5) / n).max())
        most_equal = np.unique(s, return_counts=True)[1].max()
        return cls(m, b, a, misfit, misfit <= MISFIT + SAMPLING / np.sqrt(n) and bool(most_equal <= max(2, EQUAL * n)))

    def log_p(self, t: Floats) -> Floats:
        """Returns log p of log squared distances; 0 throughout where the body does not follow the law."""
        if not self.holds:
            return np.zeros(len(t))
        tail = _survival(t - self.location, self.shape, self.numerator)
        return np.asarray(np.minimum(np.log(MODEL_ERROR * tail + TINY), 0.0))


def _parameters(x: Floats) -> tuple[float, float, float]:
    """Returns m, b and a; infinity where a is not among the parameters."""
    b, a = (float(np.exp(np.clip(value, -7, 25))) for value in (x[1], x[-1]))
    return float(x[0]), b, a if len(x) > 2 else np.inf


def _log_density(u: Floats, b: float, a: float) -> Floats:
    """Returns the log-density of t - m."""
    if np.isinf(a):
        return np.asarray(b * np.log(b) - b * u - b * np.exp(np.minimum(-u, 50)) - gammaln(b))
    ratio = np.log1p(a / b * np.exp(np.minimum(u, 50)))
    return np.asarray(a * np.log(a / b) + a * u - (a + b) * ratio - betaln(a, b))


def _survival(u: Floats, b: float, a: float) -> Floats:
    """Returns P(t - m >= u)."""
    if np.isinf(a):
        return np.asarray(gammainc(b, b * np.exp(np.minimum(-u, 50))))
    return np.asarray(betainc(b, a, 1 / (1 + a / b * np.exp(np.clip(u, -50, 50)))))


class CrossFitted:
    """One Gaussian for each fold, fitted without it.

    Args:
        x: Features (N, D) of the items that are fitted to.
        fold: Fold of each, (N,), 0..K-1. With one fold alone the Gaussian sees all items: for a reference that is apart.
        clean: Whether all items are taken to be typical, so that none is left out of a fit.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 3))
        >>> x[7] = 9.0
        >>> fold = np.arange(500) % 5
        >>> int(CrossFitted(x, fold).log_distance(x, fold).argmax())
        7
    """

    def __init__(self, x: Floats, fold: Ints, *, clean: bool = False) -> None:
        self.location = np.median(x, 0)
        unit = deviation(x - self.location)
        self.unit = np.maximum(unit, FLOOR * np.median(unit))
        y, folds = self.in_units(x), np.unique(fold)
        parts = [fold != k if len(folds) > 1 else fold == k for k in folds]
        self.detectors = {int(k): _gaussian(y[part], clean) for k, part in zip(folds, parts, strict=True)}

    def in_units(self, x: Floats) -> Floats:
        """Returns features (M, D) less the medians, in units of the robust deviations."""
        return np.asarray((x - self.location) / self.unit, dtype=np.float64)

    def white(self, x: Floats) -> Floats:
        """Returns features (M, D) as the first fold's Gaussian sees them: it has mean zero and unit covariance."""
        first = next(iter(self.detectors.values()))
        return np.asarray((self.in_units(x) - first.location_) @ first.root_)

    def log_distance(self, x: Floats, fold: Ints) -> Floats:
        """Returns log d^2 of items (M, D) under the Gaussian of their fold, (M,)."""
        y, t = self.in_units(x), np.zeros(len(x))
        for k, detector in self.detectors.items():
            rows = fold == k
            d = 2 * (detector.anomaly_score(y[rows]) + detector.log_norm_) if rows.any() else np.zeros(0)
            t[rows] = np.log(np.maximum(d, TINY))
        return t


def _gaussian(x: Floats, clean: bool) -> GaussianDetector:
    """Returns the Gaussian of the likeliest three quarters of items, of all where they are clean or half of them are equal."""
    equal = np.unique(x, axis=0, return_counts=True)[1].max() > len(x) / 2
    if equal or clean:  # constant features get a deviation that is small beside the others'
        return GaussianDetector(standardize=False).fit(x + JITTER * np.random.default_rng(0).standard_normal(x.shape))
    return GaussianDetector(trim=TRIM, standardize=False).fit(x)


def outward(t: Floats, reference: Floats | None = None) -> Floats:
    """Returns how far scores lie from the middle, on either side in units of its quartile: too near is odd, too.

    Example:
        >>> outward(np.array([-3.0, 0.0, 1.0, 2.0, 4.0])).round(1).tolist()
        [4.0, 1.0, 0.0, 1.0, 3.0]
    """
    low, middle, high = np.quantile(t if reference is None else reference, [0.25, 0.5, 0.75])
    up, down = max(high - middle, 1e-9), max(middle - low, 1e-9)
    return np.asarray(np.where(t > middle, (t - middle) / up, (middle - t) / down))


def tail_log_p(t: Floats) -> Floats:
    """Returns log p of scores (N,) by `vergence.detection.tail_p_values`; 0 for few scores, or where many are equal."""
    most_equal = np.unique(t, return_counts=True)[1].max() if len(t) else 0
    if len(t) < FEWEST_TAIL or most_equal > max(2, EQUAL * len(t)):
        return np.zeros(len(t))
    return np.asarray(np.log(np.maximum(np.asarray(tail_p_values(t)), TINY)))


def combined(log_p: Mapping[str, Floats], weights: Mapping[str, float]) -> tuple[Floats, Sequence[str]]:
    """Returns log p (N,) of the levels together, and the level that says so for each item.

    Example:
        >>> p, level = combined({"a": np.log([0.5, 0.001]), "b": np.log([0.2, 1.0])}, {"a": 1.0, "b": 1.0})
        >>> np.exp(p).round(3).tolist(), level
        ([0.4, 0.002], ['b', 'a'])
    """
    names, total = list(log_p), sum(weights[name] for name in log_p)
    each = np.stack([log_p[name] - np.log(weights[name] / total) for name in names])
    return np.minimum(each.min(0), 0.0), [names[i] for i in each.argmin(0)]
