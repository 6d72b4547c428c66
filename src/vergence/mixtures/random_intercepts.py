r"""A line with one intercept per subject: panels, repeated measurements, plots and batches.

With groups g, standardized contexts x and each target feature separately,

    t = m + x b + u_g + e,   b ~ N(0, s^2 / h I),   u_g ~ N(0, s^2 r),   e ~ N(0, s^2)

With a_g = 1 - (1 + n_g r)^(-1/2) for the n_g rows of a group, rows minus a_g times the mean of their group are independent, so
that given r it is a ridge regression. The restricted likelihood, over b too, of the targets (N,) is maximized over r and h.

A new subject has variance s^2 (1 + r + leverage). One of the fit (`RandomIntercepts.of`) has the mean of u_g given its rows,
n_g r / (1 + n_g r) times their mean residual, and what is left of its variance, r / (1 + n_g r). Both are Student's t, with the
degrees of freedom that the effective numbers of slopes and intercepts leave of N - 1 (`vergence.mixtures.BayesianLine`).

Rows of weight w count as w rows with one mean: e ~ N(0, s^2 / w).

Sources: Henderson, Best linear unbiased estimation and prediction under a selection model (1975); Patterson and Thompson,
Recovery of inter-block information when block sizes are unequal (1971).
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import minimize
from torch import Tensor
from typing_extensions import Self

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures.bayesian_line import LEAST, student
from vergence.mixtures.core import Conditional, Predictive
from vergence.utils.checks import expect

__all__ = ["RandomIntercepts"]

RATIOS = (1e-4, 1e4)  # limits of r, and of h over the mean squared singular value
GRID = 9  # values of each in the first search

Array = np.ndarray


@dataclass(frozen=True)
class _Whitened:
    """Rows that are independent given r: a target y (N,), and contexts x (N, C) by their parts, both apart from the intercept."""

    y: Array
    along: Array  # (C + 1,) of the columns of x and of y, per unit of the intercept's column
    size: float  # squared length of the intercept's column
    log_det: float
    s: Array  # singular values and right vectors of x
    vectors: Array
    observed: Array  # y along the left vectors

    @classmethod
    def of(cls, x: Array, y: Array, w: Array, group: Array, r: float) -> "_Whitened":
        v, rows = np.sqrt(w), np.column_stack([np.ones(len(y)), x, y])
        n = np.bincount(group, w)
        a = (1 - (1 + n * r) ** -0.5) / n
        sums = np.stack([np.bincount(group, w * column) for column in rows.T], 1)
        rows = v[:, None] * (rows - (a[:, None] * sums)[group])
        one, rest = rows[:, 0], rows[:, 1:]
        size = float(one @ one)
        along = one @ rest / size
        rest = rest - np.outer(one, along)
        U, s, vectors = np.linalg.svd(rest[:, :-1], full_matrices=False)
        return cls(rest[:, -1], along, size, float(np.log1p(n * r).sum()), s, vectors, U.T @ rest[:, -1])

    def h(self, log_h: float) -> float:
        """Returns h for the logarithm of its share of the mean squared singular value."""
        return math.exp(log_h) * max(float(np.square(self.s).mean()), 1e-12)

    def residual(self, h: float) -> float:
        """Returns (N - 1) s^2 of the maximum."""
        return max(float(self.y @ self.y - (self.s**2 / (self.s**2 + h) * self.observed**2).sum()), 1e-300)

    def restricted(self, log_h: float) -> float:
        """Returns the restricted log-likelihood of the targets (nats), maximal over s, up to a constant."""
        h, n = self.h(log_h), len(self.y) - 1
        spread = float(np.log1p(self.s**2 / h).sum()) + self.log_det + math.log(self.size)
        return -0.5 * (n * math.log(self.residual(h) / n) + spread)


def _best(x: Array, y: Array, w: Array, group: Array) -> tuple[float, float]:
    """Returns log r and log h (see `_Whitened.h`) of the largest restricted likelihood within limits."""

    def whitened(log_r: float) -> _Whitened:
        return _Whitened.of(x, y, w, group, math.exp(log_r))

    low, high = map(math.log, RATIOS)
    grid = np.linspace(low, high, GRID)
    each = {log_r: whitened(log_r) for log_r in grid}
    start = max(((a, b) for a in grid for b in grid), key=lambda one: each[one[0]].restricted(one[1]))
    found = minimize(lambda one: -whitened(one[0]).restricted(one[1]), start, method="Nelder-Mead", bounds=[(low, high)] * 2)
    return float(found.x[0]), float(found.x[1])


class RandomIntercepts(Conditional):
    """p(target | context) of a line with random intercepts of groups: that of a new group, or by `of` that of a group of the fit.

    Target features are independent given context and group. `fit` needs ``groups``.

    Args:
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        degrees_: Degrees of freedom of each target feature (T,), at least 3; the distribution has the fewest.
        ratio_: r of each target feature (T,), the variance of intercepts over that of rows.
        groups_: Names of the groups (G,), in order.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> group = np.repeat(np.arange(40), 6)
        >>> x = rng.normal(size=(240, 1))
        >>> t = x[:, 0] + 3 * rng.normal(size=40)[group] + 0.3 * rng.normal(size=240)
        >>> model = RandomIntercepts().fit(x, t, groups=group)
        >>> new, seen = (float(one.predict([[0.0]], return_std=True)[1][0]) for one in (model, model.of(7)))
        >>> round(new), round(seen, 1)
        (3, 0.3)
    """

    def fit(self, context: Any, target: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fits to pairs of groups (N,), and returns the estimator; see `Conditional.fit`."""
        expect(groups is not None, "groups (N,)", "none", "give them, or use the model line")
        there = ~self._read(context, target, reset=True)[1].isnan().any(1).cpu().numpy()
        there &= sample_weight is None or np.asarray(sample_weight) > 0
        self.groups_ = np.unique(np.asarray(groups)[there]).tolist()
        super().fit(context, target, sample_weight, groups=groups)
        return self

    def of(self, group: Any) -> "RandomIntercepts":
        """Returns the model of a group whose rows `fit` has seen."""
        names = list(self.groups_)
        expect(group in names, "a group of the fit", group, "use the model itself for new ones")
        found = copy.copy(self)
        found.group_ = names.index(group)
        return found

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        x, y = (part.cpu().numpy() for part in self._standardized(c, t))
        group, weight = label.cpu().numpy(), np.ones(len(x)) if w is None else w.cpu().numpy()
        n, self.group_ = np.bincount(group, weight), -1
        each = [self._of_target(x, column, weight, group, n) for column in y.T]
        for name in each[0]:
            setattr(self, f"{name}_", np.stack([found[name] for found in each]))

    def _of_target(self, x: Array, y: Array, w: Array, group: Array, n: Array) -> dict[str, Any]:
        """Returns the fitted state of a target feature, in standardized units."""
        log_r, log_h = _best(x, y, w, group)
        r = math.exp(log_r)
        one = _Whitened.of(x, y, w, group, r)
        h, C = one.h(log_h), x.shape[1]
        b = one.vectors.T @ (one.s / (one.s**2 + h) * one.observed)
        root = one.vectors * (one.s**2 + h)[:, None] ** -0.5
        free = scipy.linalg.null_space(one.vectors).T / math.sqrt(h) if len(root) < C else np.zeros((0, C))
        m = one.along[-1] - one.along[:-1] @ b
        center = np.stack([np.bincount(group, w * column) / n for column in x.T], 1)
        share = n * r / (1 + n * r)
        shift = share * (np.bincount(group, w * y) / n - m - center @ b)
        used = float((one.s**2 / (one.s**2 + h)).sum() + share.sum())
        found = {"ratio": r, "penalty": h, "variance": one.residual(h) / (len(y) - 1), "slopes": b, "intercept": m}
        found["degrees"] = max(LEAST, len(y) - 1 - used)
        found |= {"root": np.concatenate([root, free]), "middle": one.along[:-1], "size": one.size}
        return {**found, "share": share, "shift": shift, "center": center}

    def _predictive(self) -> Predictive:
        (context, target), (logits, g) = self._scales(), student(float(self.degrees_.min()))

        def predictive(c: Tensor) -> MixtureOfGaussians:
            x = context.to(c).cpu().numpy()
            each = [self._moments(x, d) for d in range(self.n_targets_)]
            mean, variance = (torch.from_numpy(np.stack(parts, 1)).to(c) for parts in zip(*each, strict=True))
            spread = Diagonal(variance[:, None] / g.to(c)[:, None])
            p = MixtureOfGaussians(logits.to(c).expand(len(c), -1), mean[:, None].expand(-1, len(g), -1), spread)
            return target.back(p)  # type: ignore[no-any-return]

        return predictive

    def _moments(self, x: Array, d: int) -> tuple[Array, Array]:
        """Returns mean and variance (B,) of a target feature, both standardized."""
        g, seen = self.group_, self.group_ >= 0
        share, shift = (self.share_[d, g], self.shift_[d, g]) if seen else (0.0, 0.0)
        at = x - (share * self.center_[d, g] if seen else 0.0) - (1 - share) * self.middle_[d]
        leverage = (1 - share) ** 2 / self.size_[d] + np.square(at @ self.root_[d].T).sum(1)
        mean = self.intercept_[d] + x @ self.slopes_[d] + shift
        return mean, self.variance_[d] * (1 + self.ratio_[d] * (1 - share) + leverage)
