"""A conditional model on the logarithms of positive targets, whose answers are in the targets' own unit."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.base import clone
from torch import Tensor

from vergence.densities.log_transformed import LogTransformed
from vergence.mixtures.core import Conditional, Predictive
from vergence.utils.checks import expect

__all__ = ["LogScale"]


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
        >>> import numpy as np
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
