"""The contract of estimators of p(target | context) on fixed data: fit, then a distribution for every context.

Shapes: N items, B queries, C context features, T target features. Log-densities are in nats, in the units of the data.
"""

import abc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.mixtures.storage import Stored
from vergence.utils.devices import as_device

__all__ = ["Conditional", "Scale", "seed_of", "to_numpy", "warn_unfinished"]

BLOCK = 1 << 22  # numbers in a block of queries: rows x components x features

Answer = JointGaussian | GaussianMixture


class Scale:
    """Standardized units x' = (x - mean) / std; a constant column keeps its unit.

    Attributes:
        mean: (D,).
        std: (D,), > 0.
    """

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float64) for v in (mean, std))

    @classmethod
    def of(cls, x: Tensor) -> "Scale":
        """Returns the scale of items x (N, D)."""
        std = x.std(0, correction=0)
        constant = std <= 1e-14 * x.abs().amax(0)
        return cls(torch.where(constant, x[0], x.mean(0)).cpu(), torch.where(constant, 1.0, std).cpu())

    def to(self, x: Tensor) -> Tensor:
        """Returns x in standardized units."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def back(self, p: Any) -> Any:
        """Returns the distribution of x for one of x'."""
        like = p.mean
        return p.affine(self.std.to(like), self.mean.to(like))


class Conditional(Stored, abc.ABC):
    """An estimator of p(target | context).

    A concrete class has ``_fit(c, t)`` for contexts (N, C) and targets (N, T), tensors of float64 on the device, and
    ``_conditional(c)`` for contexts (B, C): a `vergence.densities.JointGaussian` or `GaussianMixture` of batch (B,) over T.
    Its fitted state is arrays and numbers in attributes with a trailing underscore.
    """

    device: str = "cpu"
    random_state: Any = None

    @abc.abstractmethod
    def _fit(self, c: Tensor, t: Tensor) -> None: ...

    @abc.abstractmethod
    def _conditional(self, c: Tensor) -> Answer: ...

    def _width(self) -> int:
        """Returns how many numbers a query costs, for the size of blocks."""
        return 64 * self.n_targets_

    def fit(self, context: Any, target: Any) -> "Conditional":
        """Fits to pairs.

        Args:
            context: (N, C), an array or tensor.
            target: (N, T), or (N,) for one feature, which answers then have too.

        Returns:
            The estimator.

        Raises:
            ValueError: Lengths differ, values are not finite, there is only one item, or a target column is constant.
        """
        c, t = self._read(context, target, reset=True)
        with torch.inference_mode(False), torch.enable_grad():  # whatever the caller has set: some models take gradients
            self._fit(c, t)
        return self

    def conditional(self, context: Any) -> Answer:
        """Returns p(target | context), batch (B,) over (T,); a tensor keeps its gradient.

        Raises:
            ValueError: The contexts are not (B, C) or not finite. NotFittedError, a ValueError, before `fit`.
        """
        check_is_fitted(self)
        if isinstance(context, Tensor):
            c = context.to(dtype=torch.float64)
            if c.ndim != 2 or c.shape[1] != self.n_features_in_ or not bool(c.isfinite().all()):
                found = f"shape {tuple(c.shape)}" if c.shape[1:] != (self.n_features_in_,) else "NaN or infinity"
                raise ValueError(f"expected finite contexts (B, {self.n_features_in_}), found {found}")
        else:
            c = torch.from_numpy(validate_data(self, context, reset=False, dtype=np.float64))
        return self._conditional(c.to(as_device(self.device)))

    def predict(self, context: Any) -> np.ndarray:
        """Returns the mean of p(target | context), (B, T) or (B,)."""
        return self._shaped(self._over(context, lambda p: p.mean))

    def predict_mode(self, context: Any) -> np.ndarray:
        """Returns the mean of the heaviest component, (B, T) or (B,): one of several answers, not their average."""
        return self._shaped(self._over(context, lambda p: p.mode))

    def score_samples(self, context: Any, target: Any) -> np.ndarray:
        """Returns log p(target | context) of each pair, (N,), in nats."""
        return self._over(context, lambda p, t: p.log_prob(t), target)

    def score(self, context: Any, target: Any) -> float:
        """Returns the mean of `score_samples`; larger is better."""
        return float(self.score_samples(context, target).mean())

    def pit(self, context: Any, target: Any) -> np.ndarray:
        """Returns P(t_d <= target_d | context) of each target feature, (N, T) or (N,): uniform where the model is true."""
        return self._shaped(self._over(context, lambda p, t: p.marginal_cdf(t), target))

    def intervals(self, context: Any, level: float = 0.9) -> np.ndarray:
        """Returns the central interval of each target feature that holds ``level`` of its probability, (B, T, 2) or (B, 2).

        Raises:
            ValueError: ``level`` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"expected a level between 0 and 1, found {level}")
        tails = (0.5 - level / 2, 0.5 + level / 2)
        found = self._over(context, lambda p: torch.stack([p.marginal_quantile(q) for q in tails], -1))
        return found[:, 0] if self.target_ndim_ == 1 else found

    def sample(self, context: Any, n: int = 1, random_state: Any = None) -> np.ndarray:
        """Returns n draws for each context, (B, n, T) or (B, n).

        Args:
            context: (B, C).
            n: Draws, >= 1.
            random_state: Seed; None takes the estimator's.
        """
        if n < 1:
            raise ValueError(f"expected n of at least 1 draw, found {n}")
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(self.random_state if random_state is None else random_state))
            found = self._over(context, lambda p: p.sample(torch.Size((n,))).movedim(0, 1), times=n)
        return found[..., 0] if self.target_ndim_ == 1 else found

    def _read(self, context: Any, target: Any, *, reset: bool) -> tuple[Tensor, Tensor]:
        """Returns checked pairs as float64 on the device; with ``reset`` they set the widths."""
        if target is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        c = validate_data(self, to_numpy(context), reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        t = check_array(to_numpy(target), ensure_2d=False, dtype=np.float64, input_name="target", ensure_all_finite=True)
        if t.ndim > 2 or t.ndim == 0:
            raise ValueError(f"expected targets (N,) or (N, T), found shape {t.shape}")
        if len(t) != len(c):
            raise ValueError(f"expected as many targets as contexts, found inconsistent numbers: {len(t)} and {len(c)}")
        if reset:
            self.target_ndim_, self.n_targets_ = t.ndim, 1 if t.ndim == 1 else t.shape[1]
            _require_spread(t.reshape(len(t), -1))
        elif t.reshape(len(t), -1).shape[1] != self.n_targets_:
            raise ValueError(f"expected targets of {self.n_targets_} features, found shape {t.shape}")
        on = as_device(self.device)
        c, t = np.ascontiguousarray(c), np.ascontiguousarray(t.reshape(len(t), -1))  # torch takes no negative strides
        return torch.from_numpy(c).to(on), torch.from_numpy(t).to(on)

    @torch.no_grad()
    def _over(self, context: Any, f: Callable[..., Tensor], *given: Any, times: int = 1) -> np.ndarray:
        """Returns f(p(. | context), *given) for all rows, some at a time."""
        check_is_fitted(self)
        if given:
            c, t = self._read(context, given[0], reset=False)
        else:
            c, t = torch.from_numpy(validate_data(self, to_numpy(context), reset=False, dtype=np.float64)), None
            c = c.to(as_device(self.device))
        rows = max(1, BLOCK // (self._width() * times))
        found = [f(self._conditional(c[s]), *(() if t is None else (t[s],))).cpu() for s in _slices(len(c), rows)]
        return torch.cat(found).numpy()

    def _shaped(self, found: np.ndarray) -> np.ndarray:
        return found[:, 0] if self.target_ndim_ == 1 else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.estimator_type = "density_estimator"
        return tags


def _slices(n: int, rows: int) -> Iterator[slice]:
    for start in range(0, n, rows):
        yield slice(start, start + rows)


def _require_spread(t: np.ndarray) -> None:
    constant = np.flatnonzero(np.ptp(t, axis=0) == 0)
    if len(constant) and len(t) > 1:
        raise ValueError(
            f"target column {constant[0]} is constant ({t[0, constant[0]]:.4g}): it has no density; leave it out of the targets"
        )


def to_numpy(x: Any) -> Any:
    """Returns a tensor's values as an array, anything else as it is."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return x


def seed_of(random_state: Any) -> int:
    """Returns a seed for torch: a number as it is, else one drawn from numpy's generator or global state.

    Example:
        >>> seed_of(3)
        3
    """
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def warn_unfinished(what: str, steps: int) -> None:
    """Warns that an iteration stopped before it converged."""
    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(f"{what} did not converge in {steps} iterations: raise max_iter or tol", ConvergenceWarning, stacklevel=4)
