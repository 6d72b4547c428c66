r"""How improbable scores are in a collection that is judged by itself: most items are typical, and none is known to be.

1. Features of a level are scored out of fold: t = log d^2, the squared Mahalanobis distance of an item under one Gaussian that is
   fitted to the likeliest three quarters of the other folds. No cluster of outliers attracts it.
2. Where a level is regular, d^2 of typical items follows e^m times an F law of 2 a and 2 b degrees of freedom: that of a
   multivariate t of 2 b degrees of freedom in 2 a dimensions; of many dimensions, a -> infinity, an inverse gamma law,
   e^m b / G with G ~ Gamma(b, 1). Its parameters are fitted to the smaller four fifths of t alone, the others count as censored,
   and the tail P follows:

       p = min(1, 2 P(t)),

   where the factor 2 is for the error of the model. The law holds where the smaller scores follow it together with at most a
   fifth of larger ones. The tail is the heavier one, of the law alone.
3. Other levels have the tail of `vergence.decide.tail_p_values`, which is fitted to less strange items one by one.
4. Where the smaller scores do not follow a law, p is the share of the items whose score is not smaller: that gives an order, and
   by itself no flag, since N p is at least the rank.
5. Levels are combined by weights w that add up to 1: p = min over levels of p_l / w_l (a weighted Bonferroni correction).

A p-value here is an estimate, not a guarantee: it extrapolates. Shapes: N items, D features, L levels, K folds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import betainc, betaln, expit, gammainc, gammaln

from vergence.decide.conformal import tail_p_values
from vergence.decide.density import GaussianDetector
from vergence.decide.moments import robust_scale

__all__ = ["combine"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TRIM = 0.25  # share of the items that no fit sees
BODY = 0.8  # share of the scores that a law is fitted to
MODEL_ERROR = 2.0
MOST_ODD = 0.2  # share of the items
MISFIT, SAMPLING = 0.02, 0.6  # largest distance of the distributions in the body, and what is added, divided by sqrt(N)
FEWEST, FEWEST_TAIL = 20, 100  # scores of a law, and of `tail_p_values`
EQUAL = 0.02  # share of the scores that may share one value
DISCRETE = 0.5  # share of the items that share one value of a feature that varies, above which no law is expected
FLOOR = 0.05  # of a feature's deviation, relative to the median one
JITTER = 1e-6  # of the median deviation, so that features may be constant
TINY = 1e-300


@dataclass(frozen=True)
class RadialNull:
    """The law of squared distances on the logarithmic scale; see the module.

    Attributes:
        location: m.
        shape: b.
        numerator: a; infinity for the inverse gamma law.
        holds: Whether the body follows the law.
    """

    location: float
    shape: float
    numerator: float
    holds: bool

    @classmethod
    def of(cls, t: Floats, *, many: bool = True) -> "RadialNull":
        """Returns the law of log squared distances (N,), N >= 20; of ``many`` dimensions, or of a number that is fitted, too.

        Example:
            >>> G = np.random.default_rng(0).gamma(3.0, size=4000)
            >>> law = RadialNull.of(np.log(3.0 / G))
            >>> abs(round(law.location, 1)), round(law.shape), law.holds
            (0.0, 3, True)
        """
        s, n = np.sort(t), len(t)
        body, censored = s[: int(BODY * n)], n - int(BODY * n)
        spread = max(float(s[int(0.75 * n)] - s[int(0.25 * n)]) / 1.349, 1e-9)

        def loss(parameters: Floats) -> float:
            m, b, a, odd = _parameters(parameters, k)
            below = float(_log_density(body - m, b, a).sum()) + len(body) * np.log(1 - odd)
            return float(-below - censored * np.log(odd + (1 - odd) * _survival(body[-1] - m, b, a) + TINY))

        def fitted(start: Sequence[float]) -> Floats:
            options = {"xatol": 1e-6, "fatol": 1e-8, "maxiter": 4000}
            return np.asarray(minimize(loss, start, method="Nelder-Mead", options=options).x)

        k = 2 if many else 3
        best = fitted([float(np.median(s)), *[-2 * np.log(spread) + (0 if many else np.log(2))] * (k - 1)])
        m, b, a, _ = _parameters(best, k)
        m_, b_, a_, odd = _parameters(fitted([*best, 0.0]), k)
        below = (1 - odd) * (1 - _survival(body - m_, b_, a_))
        misfit = float(np.abs(below - (np.arange(len(body)) + 0.5) / n).max())
        most_equal = np.unique(s, return_counts=True)[1].max()
        return cls(m, b, a, misfit <= MISFIT + SAMPLING / np.sqrt(n) and bool(most_equal <= max(2, EQUAL * n)))

    def log_p(self, t: Floats) -> Floats:
        """Returns log p of log squared distances; 0 throughout where the body does not follow the law."""
        if not self.holds:
            return np.zeros(len(t))
        tail = _survival(t - self.location, self.shape, self.numerator)
        return np.asarray(np.minimum(np.log(MODEL_ERROR * tail + TINY), 0.0))


def _parameters(x: Floats, k: int) -> tuple[float, float, float, float]:
    """Returns m, b, a (infinity where k = 2) and the share of larger scores (0 where it is not among the parameters)."""
    b, a = (float(np.exp(np.clip(value, -7, 25))) for value in (x[1], x[k - 1]))
    odd = MOST_ODD * float(expit(x[k])) if len(x) > k else 0.0
    return float(x[0]), b, a if k > 2 else np.inf, odd


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

    Attributes:
        discrete: Whether more than half of the items share one value of a feature that varies, as 0 of a rare word's count.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 3))
        >>> x[7] = 9.0
        >>> fold = np.arange(500) % 5
        >>> int(CrossFitted(x, fold).log_distance(x, fold).argmax())
        7
    """

    def __init__(self, x: Floats, fold: Ints, *, clean: bool = False) -> None:
        self.location = np.median(x, 0)
        unit = robust_scale(x - self.location)
        self.unit = np.maximum(unit, FLOOR * np.median(unit))
        equal = np.array([np.unique(column, return_counts=True)[1].max() for column in x.T])
        self.discrete = bool(((equal > DISCRETE * len(x)) & (equal < len(x))).any())
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
            t[rows] = detector.log_distance(y[rows]) if rows.any() else 0.0
        return t


def _gaussian(x: Floats, clean: bool) -> GaussianDetector:
    """Returns the Gaussian of the likeliest three quarters of items, of all where they are clean or half of them are equal."""
    equal = np.unique(x, axis=0, return_counts=True)[1].max() > len(x) / 2
    if equal or clean:  # constant features get a deviation that is small next to the others'
        return GaussianDetector(standardize=False).fit(x + JITTER * np.random.default_rng(0).standard_normal(x.shape))
    return GaussianDetector(trim=TRIM, standardize=False).fit(x)


def outward(t: Floats, reference: Floats | None = None) -> Floats:
    """Returns how far scores lie from the middle, on either side in units of its quartile: too near is unusual, too.

    Example:
        >>> outward(np.array([-3.0, 0.0, 1.0, 2.0, 4.0])).round(1).tolist()
        [4.0, 1.0, 0.0, 1.0, 3.0]
    """
    low, middle, high = np.quantile(t if reference is None else reference, [0.25, 0.5, 0.75])
    up, down = max(high - middle, 1e-9), max(middle - low, 1e-9)
    return np.asarray(np.where(t > middle, (t - middle) / up, (middle - t) / down))


@dataclass(frozen=True)
class Evidence:
    """What one level says of N items.

    Attributes:
        log_p: log p (N,).
        holds: Whether p is small for the most unusual items only by a law that the others follow; else it is a rank.
    """

    log_p: Floats
    holds: bool

    @classmethod
    def by_tail(cls, t: Floats, fitted: Ints) -> "Evidence":
        """Returns p-values of scores (N,) by the tail of those of the items ``fitted``, of which there are no copies."""
        order = fitted[np.argsort(t[fitted], kind="stable")]
        reference = t[order]
        most_equal = np.unique(reference, return_counts=True)[1].max() if len(order) else 0
        if len(order) < FEWEST_TAIL or most_equal > max(2, EQUAL * len(order)):
            return cls.of(np.zeros(len(t)), t, reference)
        log_p = np.log(np.maximum(np.asarray(tail_p_values(reference)), TINY))
        return cls.of(np.asarray(np.interp(t, reference, log_p)), t, reference)

    @classmethod
    def of(cls, log_p: Floats, t: Floats, reference: Floats) -> "Evidence":
        """Returns p-values, or the ranks of scores (N,) among reference scores where all p-values are 1.

        Example:
            >>> t = np.array([0.0, 1.0, 1.0, 2.0])
            >>> np.exp(Evidence.of(np.zeros(4), t, t).log_p).round(2).tolist()
            [1.0, 0.75, 0.75, 0.25]
        """
        if log_p.any():
            return cls(log_p, True)
        larger = len(reference) - np.searchsorted(np.sort(reference), t, side="left")
        return cls(np.log(np.maximum(larger, 1) / max(len(reference), 1)), False)


def combine(log_p: Mapping[str, Floats], weights: Mapping[str, float]) -> tuple[Floats, Sequence[str]]:
    """Returns log p (N,) of the levels together, and the level that says so for each item.

    Example:
        >>> p, level = combine({"a": np.log([0.5, 0.001]), "b": np.log([0.2, 1.0])}, {"a": 1.0, "b": 1.0})
        >>> np.exp(p).round(3).tolist(), level
        ([0.4, 0.002], ['b', 'a'])
    """
    names, total = list(log_p), sum(weights[name] for name in log_p)
    each = np.stack([log_p[name] - np.log(weights[name] / total) for name in names])
    return np.minimum(each.min(0), 0.0), [names[i] for i in each.argmin(0)]
