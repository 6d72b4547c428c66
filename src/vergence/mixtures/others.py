"""Regressors of other libraries that predict a mean and a standard deviation as conditional models: N(t; mean, std^2)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian
from vergence.densities.particles import systematic
from vergence.mixtures.core import Conditional, Predictive
from vergence.utils.checks import expect

__all__ = ["NormalRegressor"]


@dataclass(eq=False, repr=False)
class NormalRegressor(Conditional):
    """A Gaussian with the mean and standard deviation of a regressor, one for each target feature, independent of each other.

    For scikit-learn's BayesianRidge and GaussianProcessRegressor, NGBoost, and whatever else has ``predict(X, return_std=True)``
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
        >>> model = NormalRegressor(BayesianRidge()).fit(x, 2 * x[:, 0] + np.random.default_rng(1).normal(size=200))
        >>> model.predict([[1.0]]).round().tolist()
        [2.0]
    """

    regressor: Any
    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        usable = any(hasattr(self.regressor, name) for name in ("predict", "pred_dist"))
        expect(usable, "a regressor with predict(X, return_std=True) or pred_dist(X)", type(self.regressor).__name__)
        x, y, how = c.cpu().numpy(), t.cpu().numpy(), {}
        if w is not None and has_fit_parameter(self.regressor, "sample_weight"):
            how = {"sample_weight": w.cpu().numpy()}
        elif w is not None:
            rows = systematic(w, round(float(w.sum())), torch.Generator().manual_seed(0)).cpu().numpy()
            x, y = x[rows], y[rows]
        self.fitted_ = [clone(self.regressor).fit(x, column, **how) for column in y.T]

    def _predictive(self) -> Predictive:
        def predictive(c: Tensor) -> JointGaussian:
            mean, std = (
                np.stack(parts, 1) for parts in zip(*(_normal(one, c.cpu().numpy()) for one in self.fitted_), strict=True)
            )
            variance = torch.from_numpy(np.square(std)).to(c).clamp(min=torch.finfo(torch.float64).tiny)
            return JointGaussian(torch.from_numpy(mean).to(c), Diagonal(variance))

        return predictive


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
