"""The contract of estimators of p(target | context) on fixed data: fit, then a distribution for every context.

Shapes: N items, B queries, C context features, T target features. Log-densities are in nats, in the units of the data.
"""

import abc
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import optimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.mixtures.storage import Stored
from vergence.utils.checks import expect, require_array, require_count, require_numbers, require_within
from vergence.utils.devices import as_device, several
from vergence.utils.linalg import as_array

__all__ = ["Conditional"]

BLOCK = 1 << 22  # numbers in a block of queries: rows x components x features

Density = JointGaussian | MixtureOfGaussians
Predictive = Callable[[Tensor], Density]  # contexts (B, C) -> p(target | context), batch (B,) over (T,)
Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]  # value and gradient


class Scale:
    """Standardized units x' = (x - mean) / std, for mean and std > 0 (D,); a constant column keeps its unit."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float64) for v in (mean, std))

    @classmethod
    def of(cls, x: Tensor) -> "Scale":
        """Returns the scale of items x (N, D); raises a ValueError for values whose squares overflow."""
        std = x.std(0, correction=0)
        finite, top = (std.isfinite() & x.mean(0).isfinite()).all(), f"values up to {x.abs().max().item():.3g}"
        expect(finite, "values whose squares can be summed", top, "divide them by a number")
        constant = std <= 1e-14 * x.abs().amax(0)
        return cls(torch.where(constant, x[0], x.mean(0)).cpu(), torch.where(constant, 1.0, std).cpu())

    def to(self, x: Tensor) -> Tensor:
        """Returns x in standardized units."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def back(self, p: Any) -> Any:
        """Returns the distribution of x, given that of x'."""
        like = p.mean
        return p.affine(self.std.to(like), self.mean.to(like))


class Conditional(Stored, abc.ABC):
    """An estimator of p(target | context).

    A concrete class has ``_fit(c, t)`` for contexts (N, C) and targets (N, T), tensors of float64 on the device, and either
    ``joint()``, the density over [context; target], or its own ``_predictive()``, which returns the function from contexts
    (B, C) to a `vergence.densities.JointGaussian` or `MixtureOfGaussians` of batch (B,) over T. That function is built once for
    all blocks of a query: what does not depend on the contexts, such as factors of covariances, is computed outside it. The
    fitted state is arrays and numbers in attributes with a trailing underscore.
    """

    device: str = "cpu"
    random_state: Any = None

    @abc.abstractmethod
    def _fit(self, c: Tensor, t: Tensor) -> None: ...

    def _predictive(self) -> Predictive:
        return self.joint().conditional  # type: ignore[no-any-return]

    def _width(self) -> int:
        """Returns how many numbers one context takes in memory, which sets the size of blocks."""
        return max(64 * self.n_targets_, getattr(self, "means_", np.empty(0)).size)

    def fit(self, context: Any, target: Any) -> "Conditional":
        """Fits to pairs, and returns the estimator.

        Args:
            context: (N, C), an array or tensor.
            target: (N, T), or (N,) for one feature; predictions then have that shape too.

        Raises:
            ValueError: Lengths differ, values are not finite, there is only one item, or a target column is constant.
        """
        c, t = self._read(context, target, reset=True)
        with torch.inference_mode(False), torch.enable_grad():  # some models take gradients, whatever mode the caller has set
            self._fit(c, t)
        return self

    def conditional(self, context: Any) -> Density:
        """Returns p(target | context), batch (B,) over (T,); a tensor keeps its gradient.

        Raises:
            ValueError: The contexts are not (B, C) or not finite. NotFittedError, a ValueError, before `fit`.
        """
        check_is_fitted(self)
        if isinstance(context, Tensor):
            c = context.to(dtype=torch.float64)
            require_array("contexts", c, "B", self.n_features_in_)
        else:
            c = self._contexts(context)
        return self._predictive()(c.to(as_device(self.device)))

    def predict(self, context: Any) -> np.ndarray:
        """Returns the mean of p(target | context), (B, T) or (B,)."""
        return self._shaped(self._over(context, lambda p: p.mean))

    def predict_mode(self, context: Any) -> np.ndarray:
        """Returns the mean of the component of the largest weight, (B, T) or (B,): one of several modes, not their average."""
        return self._shaped(self._over(context, lambda p: p.mode))

    def score_samples(self, context: Any, target: Any) -> np.ndarray:
        """Returns log p(target | context) of each pair, (N,), in nats."""
        return self._over(context, lambda p, t: p.log_prob(t), target)

    def score(self, context: Any, target: Any) -> float:
        """Returns the mean of `score_samples`; larger is better."""
        return float(self.score_samples(context, target).mean())

    def pit(self, context: Any, target: Any) -> np.ndarray:
        """Returns P(t_d <= target_d | context) of each target feature, (N, T) or (N,): the probability integral transform.

        The values are uniform on [0, 1] where the model is correct.
        """
        return self._shaped(self._over(context, lambda p, t: p.marginal_cdf(t), target))

    def intervals(self, context: Any, level: float = 0.9) -> np.ndarray:
        """Returns the central interval of each target feature with probability ``level`` in (0, 1), (B, T, 2) or (B, 2)."""
        require_within("(0, 1)", level=level)
        tails = (0.5 - level / 2, 0.5 + level / 2)
        return self._shaped(self._over(context, lambda p: torch.stack([p.marginal_quantile(q) for q in tails], -1)))

    def sample(self, context: Any, n: int = 1, random_state: Any = None) -> np.ndarray:
        """Returns n >= 1 samples for each context, (B, n, T) or (B, n); the seed is the estimator's unless one is given."""
        require_count(1, n=n)
        with torch.random.fork_rng():
            torch.manual_seed(seed_of(self.random_state if random_state is None else random_state))
            samples = self._over(context, lambda p: p.sample(torch.Size((n,))).movedim(0, 1), times=n)
        return samples[..., 0] if self.target_ndim_ == 1 else samples

    def _try(self) -> None:
        context = np.zeros((1, self.n_features_in_))
        self.predict(context)
        self.sample(context, random_state=0)
        self.pit(context, np.zeros((1, self.n_targets_)))

    def _read(self, context: Any, target: Any, *, reset: bool) -> tuple[Tensor, Tensor]:
        """Returns checked pairs as float64 on the device; with ``reset`` they set the numbers of features."""
        if target is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        expect(np.ndim(to_numpy(target)) > 0, "targets (N,) or (N, T)", "a single value")
        c = validate_data(self, to_numpy(context), reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        t = check_array(to_numpy(target), ensure_2d=False, dtype=np.float64, input_name="target", ensure_all_finite=True)
        expect(t.ndim <= 2, "targets (N,) or (N, T)", f"shape {t.shape}")
        expect(len(t) == len(c), "one target per context", f"inconsistent numbers: {len(t)} targets and {len(c)} contexts")
        if reset:
            self.target_ndim_, self.n_targets_ = t.ndim, 1 if t.ndim == 1 else t.shape[1]
            constant = np.flatnonzero(np.ptp(t.reshape(len(t), -1), axis=0) == 0)
            column = f"column {constant[0]} constant, which has no density" if len(constant) else None
            expect(not len(constant), "target columns that vary", column, "leave it out")
        expect(t.reshape(len(t), -1).shape[1] == self.n_targets_, f"targets of {self.n_targets_} features", f"shape {t.shape}")
        device = as_device(self.device)
        c, t = np.ascontiguousarray(c), np.ascontiguousarray(t.reshape(len(t), -1))  # torch takes no negative strides
        return torch.from_numpy(c).to(device), torch.from_numpy(t).to(device)

    def _contexts(self, context: Any) -> Tensor:
        c = np.ascontiguousarray(validate_data(self, context, reset=False, dtype=np.float64))  # torch takes no negative strides
        return torch.from_numpy(c)

    @torch.no_grad()
    def _over(self, context: Any, f: Callable[..., Tensor], *target: Any, times: int = 1) -> np.ndarray:
        """Returns f(p(. | context)), or f(p(. | context), target), of all rows, in blocks; f takes ``times`` the usual memory."""
        check_is_fitted(self)
        given: tuple[Tensor, ...]
        if target:
            given = self._read(context, *target, reset=False)
        else:
            given = (self._contexts(to_numpy(context)).to(as_device(self.device)),)
        predictive, rows = self._predictive(), max(1, BLOCK // (self._width() * times))
        blocks = zip(*(part.split(rows) for part in given), strict=True)
        return torch.cat([f(predictive(c), *t).cpu() for c, *t in blocks]).numpy()

    def _standardized(self, c: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Sets the units of contexts and targets, and returns both in them."""
        scales = Scale.of(c), Scale.of(t)
        self.context_mean_, self.target_mean_ = (scale.mean.numpy() for scale in scales)
        self.context_std_, self.target_std_ = (scale.std.numpy() for scale in scales)
        return scales[0].to(c), scales[1].to(t)

    def _scales(self) -> tuple[Scale, Scale]:
        """Returns the units that `_standardized` set."""
        return Scale(self.context_mean_, self.context_std_), Scale(self.target_mean_, self.target_std_)

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Returns (B, T, ...) as (B, ...) where the targets of `fit` were (N,)."""
        return values[:, 0] if self.target_ndim_ == 1 else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.estimator_type = "density_estimator"
        return tags


def to_numpy(x: Any) -> Any:
    """Returns a tensor as an array, anything else unchanged; arrays of records or dates are refused."""
    if isinstance(x, Tensor):
        return as_array(x)
    require_numbers(x)
    return x


def shared_seed(random_state: Any, device: str) -> int:
    """Returns `seed_of`, the same on every process: that of the first one, where several fit to parts of the data on a device."""
    seed = torch.tensor(seed_of(random_state), device=as_device(device))
    if several():
        torch.distributed.broadcast(seed, 0)
    return int(seed)


def seed_of(random_state: Any) -> int:
    """Returns a seed for torch: a whole number unchanged, otherwise one sampled from numpy's generator or global state.

    Example:
        >>> seed_of(3)
        3
    """
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def warn_unfinished(what: str, steps: int) -> None:
    """Warns that an iteration stopped before it converged."""
    warnings.warn(f"{what} did not converge in {steps} iterations: raise max_iter or tol", ConvergenceWarning, stacklevel=4)


def log_bounds(
    given: Iterable[float | None], ranges: Iterable[tuple[float, float]], units: Iterable[float]
) -> list[tuple[float, float]]:
    """Returns the limits of the logarithms of hyper-parameters: of those that are given, equal ones; of others, their ranges."""
    limits = [(a * unit, b * unit) if v is None else (v, v) for v, (a, b), unit in zip(given, ranges, units, strict=True)]
    return [(math.log(a), math.log(b)) for a, b in limits]


def lowest(f: Objective, starts: Sequence[np.ndarray], bounds: Any, advance: Callable[[int], None], **options: Any) -> Any:
    """Returns scipy's result of L-BFGS for the start that leads to the lowest value of f, which returns its gradient too."""
    runs = []
    for start in starts:
        runs.append(optimize.minimize(f, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options))
        advance(1)
    return min(runs, key=lambda run: float(run.fun))
