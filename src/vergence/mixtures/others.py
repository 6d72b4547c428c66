"""Conditional models around others: regressors with a standard deviation or quantiles, and models of logarithms of targets."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.log_transformed import LogTransformed
from vergence.densities.particles import systematic
from vergence.mixtures.core import Conditional, Predictive
from vergence.utils.checks import expect, require_count

__all__ = ["FromQuantiles", "GaussianRegressor", "LogScale"]


@dataclass(eq=False, repr=False)
class GaussianRegressor(Conditional):
    """A Gaussian with the mean and standard deviation of a regressor, one for each target feature, independent of each other.

    For scikit-learn's BayesianRidge and GaussianProcessRegressor, NGBoost, and others that have ``predict(X, return_std=True)``
    or ``pred_dist(X)``. One whose fit takes no ``sample_weight`` is given each row as often as its weight says, rounded.
    `vergence.mixtures.choose` compares it with the models of this library (``also``). It is not saved: a file holds arrays, and
    runs no code of others.

    Args:
        regressor: The regressor, which is cloned.
        random_state: Seed of `sample`.

    Attributes:
        fitted_: The fitted regressors, one for each target feature.

    Example:
        >>> from sklearn.linear_model import BayesianRidge
        >>> x = np.random.default_rng(0).normal(size=(200, 1))
        >>> model = GaussianRegressor(BayesianRidge()).fit(x, 2 * x[:, 0] + np.random.default_rng(1).normal(size=200))
        >>> model.predict([[1.0]]).round().tolist()
        [2.0]
    """

    regressor: Any

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        usable = any(hasattr(self.regressor, name) for name in ("predict", "pred_dist"))
        expect(usable, "a regressor with predict(X, return_std=True) or pred_dist(X)", type(self.regressor).__name__)
        self.fitted_ = _fitted(self.regressor, c, t, w)

    def _predictive(self) -> Predictive:
        def predictive(c: Tensor) -> JointGaussian:
            each = zip(*(_normal(one, c.cpu().numpy()) for one in self.fitted_), strict=True)
            mean, std = (np.stack(parts, 1) for parts in each)
            variance = torch.from_numpy(np.square(std)).to(c).clamp(min=torch.finfo(torch.float64).tiny)
            return JointGaussian(torch.from_numpy(mean).to(c), Diagonal(variance))

        return predictive


def _fitted(regressor: Any, c: Tensor, t: Tensor, w: Tensor | None) -> list[Any]:
    """Returns a fitted clone of a regressor for each target feature; one without weights has rows as often as weights say."""
    x, y, how = c.cpu().numpy(), t.cpu().numpy(), {}
    if w is not None and has_fit_parameter(regressor, "sample_weight"):
        how = {"sample_weight": w.cpu().numpy()}
    elif w is not None:
        rows = systematic(w, round(float(w.sum())), torch.Generator().manual_seed(0)).cpu().numpy()
        x, y = x[rows], y[rows]
    return [clone(regressor).fit(x, column, **how) for column in y.T]


def _normal(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation (B,) of a fitted regressor."""
    if hasattr(model, "pred_dist"):  # NGBoost
        found = model.pred_dist(x).params
        return np.asarray(found["loc"]), np.asarray(found["scale"])
    try:
        mean, std = model.predict(x, return_std=True)
    except TypeError:
        kind = type(model).__name__
        raise ValueError(f"expected a regressor with predict(X, return_std=True), found {kind}; use one that has it") from None
    return np.asarray(mean), np.asarray(std)


def _asked(regressor: Any, x: np.ndarray, levels: list[float]) -> Any:
    return regressor.predict(x, quantiles=levels)


@dataclass(eq=False, repr=False)
class FromQuantiles(Conditional):
    r"""A density of one target feature from the quantiles of a regressor, such as TabPFN, TabICL, CatBoost or a quantile forest.

    With quantiles q_1 <= ... <= q_K at the levels (k - 1/2) / K it is sum_k N(t; q_k, h_k^2) / K, where h_k is half the mean
    distance of q_k to its neighbors, and at both ends the distance to the neighbor. Quantiles that cross are sorted.
    `vergence.mixtures.choose` compares it with the models of this library (``also``), and adjusts its intervals by rows that it
    has not seen. It is not saved.

    Args:
        regressor: The regressor, which is cloned.
        quantiles: How to ask it: a function of the fitted regressor, contexts (B, C) and K levels in (0, 1) that returns (B, K).
            By default ``regressor.predict(contexts, quantiles=levels)``.
        n_levels: K, at least 2.
        random_state: Seed of `sample`.

    Attributes:
        fitted_: The fitted regressor.

    Example:
        >>> from sklearn.linear_model import BayesianRidge
        >>> from scipy.special import ndtri
        >>> def quantiles(regressor, x, levels):
        ...     mean, std = regressor.predict(x, return_std=True)
        ...     return mean[:, None] + std[:, None] * ndtri(levels)
        >>> x = np.random.default_rng(0).normal(size=(200, 1))
        >>> y = 2 * x[:, 0] + np.random.default_rng(1).normal(size=200)
        >>> model = FromQuantiles(BayesianRidge(), quantiles).fit(x, y)
        >>> [round(float(v)) for v in model.intervals([[1.0]], 0.9)[0]]
        [0, 3]
    """

    regressor: Any
    quantiles: Callable[[Any, np.ndarray, list[float]], Any] = _asked
    n_levels: int = 40

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        require_count(2, n_levels=self.n_levels)
        expect(t.shape[1] == 1, "one target feature for a regressor of quantiles", t.shape[1], "fit a model to each")
        self.fitted_ = _fitted(self.regressor, c, t, w)[0]

    def _predictive(self) -> Predictive:
        K = self.n_levels
        levels = [(k + 0.5) / K for k in range(K)]

        def predictive(c: Tensor) -> MixtureOfGaussians:
            q = np.asarray(self.quantiles(self.fitted_, c.cpu().numpy(), levels), dtype=np.float64)
            fits = q.shape == (len(c), K) and bool(np.isfinite(q).all())
            expect(fits, f"finite quantiles {(len(c), K)}", f"shape {q.shape}", "mend the function quantiles")
            q = np.sort(q, 1)
            gap = np.diff(q, axis=1)
            h = np.column_stack([gap[:, :1], gap[:, :-1] + gap[:, 1:], gap[:, -1:]]) / [1, *[4] * (K - 2), 1]
            least = 1e-3 * (q[:, -1:] - q[:, :1]) / K + np.finfo(np.float64).eps * np.abs(q).max(1, keepdims=True) + 1e-150
            mean, variance = (torch.from_numpy(v).to(c)[..., None] for v in (q, np.maximum(h, least) ** 2))
            return MixtureOfGaussians(torch.zeros(len(c), K).to(c), mean, Diagonal(variance))

        return predictive


@dataclass(eq=False, repr=False)
class LogScale(Conditional):
    """p(target | context) of a model of log targets, by the change of variables: for amounts over several powers of ten.

    Each target column whose values are all above 0 is taken in logarithms; the others stay as they are. Log-densities are
    those of the targets in their own unit, so `vergence.mixtures.choose` compares them with those of any other model.

    Args:
        model: The model of the log targets, which is cloned.
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        model_: The fitted model.
        logs_: (T,), which targets are in logarithms.

    Example:
        >>> from vergence.mixtures import ConditionalGaussian
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 1))
        >>> model = LogScale(ConditionalGaussian()).fit(x, np.exp(3 * x[:, 0] + rng.normal(size=2000)))
        >>> model.intervals([[1.0]], 0.9).round(-1).tolist(), model.quantile([[1.0]], 0.5).round(-1).tolist()
        ([[0.0, 100.0]], [20.0])
    """

    model: Conditional
    fits_gaps: ClassVar[bool] = True  # the model treats them as its own

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        expect(isinstance(self.model, Conditional), "a conditional model of the log targets", type(self.model).__name__)
        logs = (t > 0).logical_or(t.isnan()).all(0)
        expect(bool(logs.any()), "a target whose values are all above 0", f"least {t.nan_to_num(torch.inf).amin():.3g}")
        self.logs_ = logs.cpu().numpy()
        y = torch.where(logs, t.where(logs, 1.0).log(), t)
        weight = None if w is None else w.cpu().numpy()
        self.model_ = clone(self.model).set_params(device=self.device)
        self.model_.fit(c.cpu().numpy(), y.cpu().numpy(), weight, groups=label.cpu().numpy())

    def _predictive(self) -> Predictive:
        model, (logs,) = copy.copy(self.model_), self._tensors(self.logs_)
        model.device = self.device
        inner = model._predictive()
        return lambda c: LogTransformed(model._at(inner, c), logs)

    def _at(self, predictive: Predictive, c: Tensor) -> Any:
        return predictive(c)

    def _width(self) -> int:
        return int(self.model_._width())
