"""The contract of estimators of p(target | context) on fixed data: fit, then a distribution for every context.

Shapes: N items, B queries, C context features, T target features. Log-densities are in nats, in the units of the data.
"""

import abc
import contextlib
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.covariance import ledoit_wolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_n_features, _check_sample_weight, check_array, check_is_fitted
from torch import Tensor
from typing_extensions import Self

from vergence.data.tables import as_table, column_kinds, column_of, read_features
from vergence.densities.em.gaps import fit_with_gaps
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, given_observed, log_prob_observed, ordered, without
from vergence.densities.storage import Stored
from vergence.utils.checks import expect, require_array, require_choice, require_count, require_numbers, require_within
from vergence.utils.devices import as_device, fixed_noise, several
from vergence.utils.dtypes import Bools, Floats, Ints
from vergence.utils.linalg import as_array
from vergence.utils.parts import apart

if TYPE_CHECKING:
    from vergence.densities.log_transformed import LogTransformed

__all__ = ["Conditional"]

LEAST = 1e-12  # probability of a quantile, at least
BLOCK = 1 << 22  # numbers in a block of queries: rows x components x features

FAR = 100.0  # median distances from the median, of a far value
PARTS = 5  # rows that stand for those that are equal by chance, at most
BY_CHANCE, CONTINUOUS = 5.0, 20  # equal rows that are chance, to those expected; values of a continuous column, at least

Density: TypeAlias = "JointGaussian | MixtureOfGaussians | LogTransformed"
Predictive: TypeAlias = "Callable[[Tensor], Density]"  # contexts (B, C) -> p(target | context), batch (B,) over (T,)

_LOCK, _SILENCED = threading.RLock(), Counter[type[Warning]]()


class FarValue(UserWarning):
    """A value of a target is so far from all others that it moves means and covariances."""


@contextlib.contextmanager
def silenced(kind: type[Warning] = UserWarning) -> Iterator[None]:
    """Suppresses warnings of a kind in all threads; the caller gives its own, once."""
    filter = ("ignore", None, kind, None, 0)
    with _LOCK:
        _SILENCED[kind] += 1
        warnings.simplefilter("ignore", kind)
    try:
        yield
    finally:
        with _LOCK:  # the last one that leaves takes the filter away: `catch_warnings` of two threads would leave it there
            _SILENCED[kind] -= 1
            if not _SILENCED[kind] and filter in warnings.filters:
                cast(Any, warnings.filters).remove(filter)


class Scale:
    """Standardized units x' = (x - mean) / std, for mean and std > 0 (D,); a constant column keeps its unit."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float64) for v in (mean, std))

    @classmethod
    def of(cls, x: Tensor, w: Tensor | None = None) -> "Scale":
        """Returns the scale of the values of items x (N, D) with weights (N,); raises a ValueError where squares overflow."""
        seen = ~x.isnan()
        weight = seen.to(x) if w is None else w[:, None] * seen
        total, observed = weight.sum(0), x.nan_to_num(0.0)
        mean = (weight * observed).sum(0) / total
        std = ((weight * (observed - mean).square()).sum(0) / total).sqrt()
        size = observed.abs().amax(0)
        finite, top = (std.isfinite() & mean.isfinite()).all(), f"values up to {size.max().item():.3g}"
        expect(finite, "values whose squares can be summed", top, "divide them by a number")
        constant = std <= 1e-14 * size
        first = observed.gather(0, seen.to(torch.uint8).argmax(0)[None])[0]
        return cls(torch.where(constant, first, mean).cpu(), torch.where(constant, 1.0, std).cpu())

    def to(self, x: Tensor) -> Tensor:
        """Returns x in standardized units."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def back(self, p: Any) -> Any:
        """Returns the distribution of x, given that of x'."""
        like = p.mean
        return p.affine(self.std.to(like), self.mean.to(like))


@dataclass(eq=False, repr=False, kw_only=True)
class Conditional(Stored, abc.ABC):
    """An estimator of p(target | context).

    A concrete class has ``_fit(c, t, w, label)`` for contexts (N, C) and targets (N, T), tensors of float64 on the device, the
    weights of the rows (N,) or None, and labels (N,) of rows that stay on one side of a split; and either ``joint()``, the
    density over [context; target], or its own ``_predictive()``, which returns the function from contexts (B, C) to a
    `vergence.densities.JointGaussian` or `MixtureOfGaussians` of batch (B,) over T. That function is built once for all blocks of
    a query: what does not depend on the contexts, such as factors of covariances, is computed outside it. The fitted state is
    arrays and numbers in attributes with a trailing underscore.

    Contexts and targets are arrays, tensors, or pandas, polars or Arrow tables, whose columns are found by name; answers are of
    the same kind as the context, keep its index and have the targets' names; scores of pairs are arrays. NaN is a gap: Gaussians
    and mixtures integrate over it, the other models are given the mean of a Gaussian of the contexts there. Equal rows are one
    row with a weight: duplicates, or up to `PARTS` rows where they are equal by chance (`by_chance`), so that a split has some on
    both sides. Weights add up to the number of rows without duplicates.
    """

    device: str = "cpu"
    random_state: Any = None
    fits_gaps: ClassVar[bool] = False  # whether `_fit` takes rows with gaps

    @abc.abstractmethod
    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None: ...

    def _predictive(self) -> Predictive:
        return self.joint().conditional  # type: ignore[no-any-return]

    def _width(self) -> int:
        """Returns how many numbers one context takes in memory, which sets the size of blocks."""
        return max(64 * self.n_targets_, getattr(self, "means_", np.empty(0)).size)

    def fit(self, context: Any, target: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fits to pairs, and returns the estimator.

        Args:
            context: (N, C), an array, tensor or table; NaN is a gap.
            target: (N, T), or (N,) for one feature; predictions then have that shape too. Rows without a target are left out.
            sample_weight: (N,) >= 0; a row of weight 2 is the same as two equal rows. Weights of a mean below 1 have it at 1.
            groups: (N,), such as subjects: a model that evaluates itself on held-out rows does so on other groups.
        """
        for name in ("held_out_pit_", "held_out_surprise_", "fitted_rows_", "fill_mean_", "fill_covariance_"):
            self.__dict__.pop(name, None)
        c, t = self._read(context, target, reset=True)
        for text in far_values(t.cpu().numpy(), self._names()[1]):
            warnings.warn(text, FarValue, stacklevel=2)
        group = None if groups is None else _codes(groups, len(c))
        rows, count = _different(c, t, _weights(sample_weight, c), group)
        rows = rows[~t[rows].isnan().all(1)] if self.fits_gaps else rows[~t[rows].isnan().any(1)]
        expect(len(rows) >= 2, "at least 2 different rows with a target", f"n_samples = {len(rows)}", "give more")
        part, w, label = _parts(c[rows], t[rows], count[rows])
        rows = rows[part]
        c, t = c[rows], t[rows]
        observed = c.cpu().numpy()
        self.context_range_ = np.stack([np.nanmin(observed, 0), np.nanmax(observed, 0)])
        unsure = c.isnan().any(0) | ((c == 0) | (c == 1)).all(0)  # a category may be unknown later
        if not self.fits_gaps and bool(unsure.any()):
            self._learn_gaps(c, w)
            c = self._filled(c)
        label = label if group is None else group[rows.cpu()].unique(return_inverse=True)[1]
        with torch.inference_mode(False), torch.enable_grad():  # some models take gradients in any mode of the caller
            self._fit(c, t, w, label)
        return self

    def _learn_gaps(self, c: Tensor, w: Tensor | None) -> None:
        """Fits the Gaussian of the contexts whose conditional mean fills gaps."""
        scale = Scale.of(c, w)
        mean, S = one_gaussian(scale.to(c), w, reg=1e-6, tol=1e-3, prior=torch.eye(c.shape[1]).to(c))
        std = scale.std.to(c)
        self.fill_mean_ = scale.mean.numpy() + (mean * std).cpu().numpy()
        self.fill_covariance_ = (S * std * std[:, None]).cpu().numpy()

    def _filled(self, c: Tensor) -> Tensor:
        """Returns contexts whose gaps have the mean given the observed values."""
        expect(hasattr(self, "fill_mean_"), "contexts without gaps, as in fit", "NaN", "fit to rows with gaps, or drop them")
        mean, S = self._tensors(self.fill_mean_, self.fill_covariance_)
        gaps, centered = c.isnan(), (c - mean).nan_to_num(0.0)
        for kind in gaps.unique(dim=0):
            if kind.any():
                rows, seen = (gaps == kind).all(1), ~kind
                guess = centered[rows][:, seen] @ torch.linalg.lstsq(S[seen][:, seen], S[seen][:, kind]).solution
                centered[rows] = centered[rows].masked_scatter(kind.expand(int(rows.sum()), -1), guess)
        return torch.where(gaps, mean + centered, c)

    def _at(self, predictive: Predictive, c: Tensor) -> Density:
        """Returns p(target | context), with any gaps in the contexts."""
        if not bool(c.isnan().any()):
            return predictive(c)
        return given_observed(self.joint(), c) if hasattr(self, "joint") else predictive(self._filled(c))

    def conditional(self, context: Any) -> Density:
        """Returns p(target | context), batch (B,) over (T,); a tensor keeps its gradient."""
        check_is_fitted(self)
        if isinstance(context, Tensor):
            c = context.to(dtype=torch.float64)
            require_array("contexts", c, "B", self.n_features_in_, finite=False)
            expect(not bool(c.isinf().any()), "finite contexts, or NaN for gaps", "infinity")
        else:
            c = _tensor(self._array(context, reset=False))
        return self._at(self._predictive(), c.to(as_device(self.device)))

    def given(self, values: Any) -> Density:
        """Returns p(columns that are None | columns with values), in any direction, batch (B,), in the order of ``values``.

        Columns that are not named are integrated over.

        Args:
            values: A dictionary of names to None, to one value or to B values; or a table, whose empty columns are asked for.
                Names are those of the tables of `fit`, categories too, else context_0, ..., target_0, ... Dates may be ISO texts.

        Example:
            >>> from vergence.mixtures import ConditionalGaussian
            >>> x = np.random.default_rng(0).normal(size=(500, 1))
            >>> model = ConditionalGaussian().fit(x, 2 * x[:, 0])
            >>> model.given({"target_0": [3.0, -1.0], "context_0": None}).mean.round(decimals=2).tolist()
            [[1.5], [-0.5]]
        """
        check_is_fitted(self)
        kind = type(self).__name__
        expect(hasattr(self, "joint"), "a model with a density over contexts, such as gaussian or mixture", kind, "fit one")
        names = [*self._names()[0], *self._names()[1]]
        asked, given, rows = question(values, names)
        joint, order = self.joint(), torch.tensor([names.index(name) for name in (*given, *asked)])
        density = ordered(joint, order, len(given))
        c = _tensor(rows).to(as_device(self.device))
        return given_observed(density, c) if given else density.expand(torch.Size((1, *density.batch_shape)))

    def predict(self, context: Any, return_std: bool = False, level: float | None = None) -> Any:
        """Returns the mean of p(target | context), (B, T) or (B,); with ``return_std`` also its standard deviations.

        With a ``level`` it returns `intervals` instead, which so pass through a Pipeline: ``pipeline.predict(X, level=0.9)``.
        """
        if level is not None:
            return self.intervals(context, level)
        mean = self._answer(context, lambda p: p.mean)
        return (mean, self._answer(context, lambda p: p.variance.sqrt())) if return_std else mean

    def mode(self, context: Any) -> Any:
        """Returns the highest mode of p(target | context) that its heaviest components climb to, (B, T) or (B,)."""
        return self._answer(context, _highest, times=8)

    def score_samples(self, context: Any, target: Any) -> np.ndarray:
        """Returns log p(target | context) of each pair, (N,), in nats; of those target features that are not NaN."""
        return self._over(context, lambda p, t: log_prob_observed(p, t) if bool(t.isnan().any()) else p.log_prob(t), target)

    def score(self, context: Any, target: Any) -> float:
        """Returns the mean of `score_samples`; larger is better."""
        return float(self.score_samples(context, target).mean())

    def surprise(self, context: Any, target: Any, draws: int = 64) -> np.ndarray:
        """Returns how anomalous each target is given its context, (N,), in nats: mean log-density of samples minus the target's.

        Larger is more anomalous. Contexts with a wide and with a narrow distribution are comparable. Of a target with gaps both
        densities are those of the features that are not NaN.
        """
        with fixed_noise():

            def below(p: Any, t: Tensor) -> Tensor:
                gaps = t.isnan()
                q = without(p, ~gaps) if bool(gaps.any()) else p
                expected = q.log_prob(p.common_samples(draws).masked_fill(gaps, 0.0)).mean(0)
                found: Tensor = expected - q.log_prob(t.nan_to_num(0.0))
                return found

            return self._over(context, below, target, times=draws)

    def cdf(self, context: Any, target: Any) -> np.ndarray:
        """Returns P(t_d <= target_d | context) of each target feature, (N, T) or (N,): uniform where the model is correct."""
        return self._shaped(self._over(context, lambda p, t: p.marginal_cdf(t), target))

    def quantile(self, context: Any, q: float, *, adjusted: bool = True) -> Any:
        """Returns the q-quantile of each target feature, q in (0, 1), (B, T) or (B,).

        Args:
            context: (B, C).
            q: Probability below the quantile.
            adjusted: Whether the quantile of a model from `vergence.mixtures.choose` is moved so that it is right for the rows
                that the folds held out: it is taken at the empirical q-quantile of their probability integral transforms, so that
                a share q of new rows is below it on average (cross-conformal; Chernozhukov et al., Distributional conformal
                prediction, 2021). Other models have no held-out rows, and nothing is adjusted.
        """
        require_within("(0, 1)", q=q)
        return self._answer(context, lambda p: _at_probabilities(p, self._probabilities(q, adjusted)))

    def intervals(self, context: Any, level: float = 0.9, *, adjusted: bool = True, simultaneous: bool = False) -> Any:
        """Returns the central interval of each target feature with probability ``level`` in (0, 1), (B, T, 2) or (B, 2).

        Of a table it is a table with the columns ``TARGET_low`` and ``TARGET_high`` of each target.

        Args:
            context: (B, C).
            level: Probability that the interval holds a target feature.
            adjusted: As in `quantile`: with at least 1 / (1 - level) held-out rows a share ``level`` of new targets is inside.
            simultaneous: Whether it is the probability that all target features are inside together.
        """
        require_within("(0, 1)", level=level)
        if simultaneous:
            tails = self._together(level, adjusted)
        else:
            tails = self._probabilities(0.5 - level / 2, adjusted), self._probabilities(0.5 + level / 2, adjusted)
        ends = self._over(context, lambda p: torch.stack([_at_probabilities(p, q) for q in tails], -1))
        names = [f"{name}_{end}" for name in self._names()[1] for end in ("low", "high")]
        return self._shaped(ends) if as_table(context) is None else as_given(context, ends.reshape(len(ends), len(names)), names)

    def _probabilities(self, q: float, adjusted: bool) -> list[float]:
        """Returns the probability of each target feature at which the model's quantile is the q-quantile of held-out rows."""
        u = getattr(self, "held_out_pit_", None)
        if u is None or not adjusted:
            return [q] * int(self.n_targets_)
        return [_calibrated(np.sort(column[~np.isnan(column)]), q) for column in u.T]

    def _together(self, level: float, adjusted: bool) -> tuple[list[float], list[float]]:
        """Returns the probabilities of both ends of intervals that hold all target features together."""
        u, T = getattr(self, "held_out_pit_", None), int(self.n_targets_)
        if u is None or not adjusted:
            half = 0.5 - (1 - level) / (2 * T)  # Bonferroni
        else:
            farthest = np.sort(np.nanmax(np.abs(u - 0.5), 1))
            rank = math.ceil((len(u) + 1) * level)
            half = float(farthest[rank - 1]) if rank <= len(u) else 0.5
        return [max(0.5 - half, LEAST)] * T, [min(0.5 + half, 1 - LEAST)] * T

    def sample(self, context: Any, n: int = 1, random_state: Any = None) -> Any:
        """Returns n >= 1 samples for each context, (B, n, T) or (B, n); the seed is the estimator's unless one is given.

        Of a table it is a table of B n rows: the index (of tables without one a column ``row``), ``sample`` from 0 to n - 1, and
        the targets.
        """
        require_count(1, n=n)
        with fixed_noise(seed_of(self.random_state if random_state is None else random_state)):
            samples = self._over(context, lambda p: p.sample(torch.Size((n,))).movedim(0, 1), times=n)
        if as_table(context) is None:
            return samples[..., 0] if self.target_ndim_ == 1 else samples
        B, names = len(samples), self._names()[1]
        targets = dict(zip(names, samples.reshape(B * n, len(names)).T, strict=True))
        row = {} if hasattr(context, "iloc") else {"row": np.arange(B).repeat(n)}
        return as_frame(context, {**apart({**row, "sample": np.tile(np.arange(n), B)}, targets), **targets}, n)

    def as_regressor(self) -> "AsRegressor":
        """Returns a scikit-learn regressor that predicts this model's mean, whose ``score`` is R^2; ``density_`` has the rest.

        Its ``predict(X, level=0.9)`` returns the intervals, through a Pipeline and an increasing TransformedTargetRegressor too.

        Example:
            >>> from vergence.mixtures import ConditionalGaussian
            >>> x = np.random.default_rng(0).normal(size=(50, 1))
            >>> regressor = ConditionalGaussian().as_regressor().fit(x, 3 * x[:, 0])
            >>> round(regressor.score(x, 3 * x[:, 0]), 3), regressor.predict([[1.0]], level=0.9).shape
            (1.0, (1, 2))
        """
        return AsRegressor(self)

    def _try(self) -> None:
        context = np.zeros((1, self.n_features_in_))
        with silenced():  # zeros may be far from the contexts of the fit
            self.predict(context)
            self.sample(context, random_state=0)
            self.cdf(context, np.zeros((1, self.n_targets_)))

    def _names(self) -> tuple[list[str], list[str]]:
        """Returns the names of the context and target features."""
        context = self._known(0) or [f"context_{i}" for i in range(self.n_features_in_)]
        return context, self._known(1) or [f"target_{i}" for i in range(self.n_targets_)]

    def _read(self, context: Any, target: Any, *, reset: bool) -> tuple[Tensor, Tensor]:
        """Returns checked pairs as float64 on the device; with ``reset`` they set the numbers and names of features."""
        if target is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        expect(not np.isscalar(target) and getattr(target, "ndim", 1) > 0, "targets (N,) or (N, T)", "a single value")
        if reset:
            self.__dict__.pop("columns_", None)
            names = _columns_of(context, False), _columns_of(target, True)
            if names[0] or names[1]:
                self.columns_ = [names[0], names[1]]
        c = self._array(context, reset=reset)
        t = _numbers(target, self._known(1))
        form = {"ensure_2d": False, "dtype": np.float64, "ensure_all_finite": "allow-nan", "ensure_min_samples": int(reset)}
        t = check_array(t, input_name="target", **form)
        expect(t.ndim <= 2, "targets (N,) or (N, T)", f"shape {t.shape}")
        expect(len(t) == len(c), "one target per context", f"inconsistent numbers: {len(t)} targets and {len(c)} contexts")
        wide = t if t.ndim == 2 else t[:, None]
        if reset:
            self.target_ndim_, self.n_targets_ = t.ndim, int(wide.shape[1])
            seen = [column[~np.isnan(column)] for column in wide.T]
            gone = next((i for i, column in enumerate(seen) if not len(column)), None)
            expect(gone is None, "targets with values", f"column {gone} with no value", "leave it out")
            same = next((i for i, column in enumerate(seen) if np.ptp(column) == 0), None)
            expect(same is None, "target columns that vary", f"column {same} constant, which has no density", "leave it out")
            empty = np.flatnonzero(np.isnan(c).all(0))
            expect(not len(empty), "contexts with values", f"column {empty[:1].tolist()} with no value", "leave it out")
        expect(wide.shape[1] == self.n_targets_, f"targets of {self.n_targets_} features", f"shape {t.shape}")
        device = as_device(self.device)
        return _tensor(c).to(device), _tensor(wide).to(device)

    def _known(self, side: int) -> list[str]:
        return list(getattr(self, "columns_", ([], []))[side])

    def _array(self, context: Any, *, reset: bool) -> np.ndarray:
        """Returns checked contexts; the columns of tables are found by name, in any order."""
        x = _numbers(context, self._known(0))
        form = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "ensure_min_samples": 2 if reset else 0}
        checked: np.ndarray = check_array(x, estimator=self, input_name="X", **form)
        _check_n_features(self, checked, reset=reset)
        return checked

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the context features (C,), where `fit` was given a table."""
        if not self._known(0):
            raise AttributeError(f"{type(self).__name__} was fitted to contexts without names")
        return np.asarray(self._known(0), dtype=object)

    def _answer(self, context: Any, f: Callable[..., Tensor], *, times: int = 1) -> Any:
        """Returns f(p(. | context)), (B, T) or (B,), as a table of the kind of the context."""
        values = self._shaped(self._over(context, f, times=times))
        return as_given(context, values, self._names()[1])

    @torch.no_grad()
    def _over(self, context: Any, f: Callable[..., Tensor], *target: Any, times: int = 1) -> np.ndarray:
        """Returns f(p(. | context)), or f(p(. | context), target), of all rows, in blocks; f takes ``times`` as much memory."""
        check_is_fitted(self)
        c = None if target else _tensor(self._array(context, reset=False)).to(as_device(self.device))
        given: tuple[Tensor, ...] = self._read(context, *target, reset=False) if c is None else (c,)
        self._warn_far(given[0])
        predictive, rows = self._predictive(), max(1, BLOCK // (self._width() * times))
        some = given if len(given[0]) else tuple(part.new_zeros(1, part.shape[1]) for part in given)  # of no rows: the shape
        blocks = zip(*(part.split(rows) for part in some), strict=True)
        return torch.cat([f(self._at(predictive, c), *t).cpu() for c, *t in blocks]).numpy()[: len(given[0])]

    def _warn_far(self, c: Tensor) -> None:
        """Warns of contexts (B, C) that are farther outside the values of the fit than these are apart."""
        if not hasattr(self, "context_range_"):
            return
        (low, high), x = self.context_range_, c.cpu().numpy()
        margin = np.where(high > low, high - low, 1e-6 * np.abs(low))
        for i in np.flatnonzero(((x < low - margin) | (x > high + margin)).any(0)):
            far = f"{self._names()[0][i]} is far from the values of the fit, which are from {low[i]:.3g} to {high[i]:.3g}"
            warnings.warn(f"{far}: the model has no data there", FarValue, stacklevel=4)

    def _standardized(self, c: Tensor, t: Tensor, w: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Sets the units of contexts and targets, and returns both in them."""
        scales = Scale.of(c, w), Scale.of(t, w)
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
        tags.input_tags.allow_nan = True
        tags.estimator_type = "density_estimator"
        return tags


@dataclass(eq=False, repr=False)
class AsRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """The mean of a conditional model as a scikit-learn regressor; the model is cloned, and ``density_`` is the fitted one."""

    model: Conditional

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "AsRegressor":
        """Fits a copy of the model to contexts (N, C) and targets (N,) or (N, T), with weights (N,)."""
        self.density_ = clone(self.model).fit(X, y, sample_weight)
        self.n_features_in_ = self.density_.n_features_in_
        if self.density_._known(0):
            self.feature_names_in_ = self.density_.feature_names_in_
        return self

    def predict(self, X: Any, level: float | None = None) -> np.ndarray:
        """Returns the mean of p(target | context), an array (B,) or (B, T); with a ``level`` the intervals (..., 2)."""
        check_is_fitted(self)
        return self.density_.predict(self.density_._array(X, reset=False), level=level)  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        return tags


def _tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))  # torch takes no negative strides


def _highest(p: Any) -> Tensor:
    """Returns the highest mode of densities of batch (B,), (B, T)."""
    if not isinstance(p, MixtureOfGaussians):
        return p.mode  # type: ignore[no-any-return]
    modes, _ = p.modes()
    height = torch.stack([p.log_prob(modes[:, s]) for s in range(modes.shape[1])], 1)
    return modes.gather(1, height.argmax(1)[:, None, None].expand(-1, 1, modes.shape[2]))[:, 0]


def _at_probabilities(p: Any, q: Sequence[float]) -> Tensor:
    """Returns the quantile of each feature at a probability of its own, (B, T)."""
    if len(set(q)) == 1:
        return p.marginal_quantile(q[0])  # type: ignore[no-any-return]
    return torch.stack([p.marginal_quantile(one)[..., d] for d, one in enumerate(q)], -1)


def _calibrated(u: np.ndarray, q: float) -> float:
    """Returns the q-quantile of ordered probabilities (n,), counted outwards; of too few the farthest, or q beyond it."""
    n, low = len(u), q < 0.5
    rank = math.floor((n + 1) * q) if low else math.ceil((n + 1) * q)
    if 1 <= rank <= n:
        q = float(u[rank - 1])
    elif n:
        q = min(float(u[0]), q) if low else max(float(u[-1]), q)
    return min(max(q, LEAST), 1 - LEAST)


def _weights(sample_weight: Any, c: Tensor) -> Tensor | None:
    if sample_weight is None:
        return None
    w = _check_sample_weight(to_numpy(sample_weight), c.cpu().numpy(), dtype=np.float64)
    expect((w >= 0).all() and w.sum() > 0, "weights of at least 0, and one above", advice="leave such rows out")
    return torch.from_numpy(w / min(1.0, w[w > 0].mean())).to(c)


def _codes(groups: Any, n: int) -> Tensor:
    """Returns the numbers of the groups of all rows, (N,)."""
    names = np.asarray(groups)
    expect(names.shape == (n,), "a group of each row (N,)", f"shape {names.shape}")
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].reshape(-1))


def _different(c: Tensor, t: Tensor, w: Tensor | None, group: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the first of all equal rows (of one group) in order, and the sum of the weights of those equal to a row, (N,)."""
    one = torch.ones(len(c), dtype=torch.float64, device=c.device) if w is None else w
    columns = [c, t] if group is None else [c, t, group[:, None].to(c)]
    both = np.ascontiguousarray(torch.cat(columns, 1).cpu().numpy() + 0.0)  # -0 is 0
    rows = both.view(np.dtype((np.void, both.itemsize * both.shape[1])))[:, 0]
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    code = torch.from_numpy(which.reshape(-1)).to(c.device)
    sums = torch.zeros(len(first), dtype=torch.float64, device=c.device).index_add_(0, code, one)
    keep = torch.from_numpy(np.sort(first)).to(c.device)
    return keep[sums[code[keep]] > 0], sums[code]


def _parts(c: Tensor, t: Tensor, count: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Returns the rows of a fit as indices of different rows, their weights, None where all are 1, and labels of duplicates."""
    code, chance = (torch.from_numpy(found) for found in by_chance(c.cpu(), t.cpu(), count.cpu().numpy()))
    n = torch.where(chance, count.cpu().round().clamp(1, PARTS), 1).long()
    part = torch.arange(len(c)).repeat_interleave(n)
    own = len(c) + torch.arange(len(part))
    label = torch.where(chance[part], own, code[part]).unique(return_inverse=True)[1]
    total = torch.where(chance, count.cpu(), 1.0).sum()
    w = (count.cpu() / n)[part] * (total / count.cpu().sum())
    same = bool((w == w[0]).all()) and float(total) == len(part)
    return part.to(c.device), None if same else w.to(c), label


def by_chance(c: Any, t: Any, w: Floats | None = None) -> tuple[Ints, Bools]:
    """Returns a number of each row, the same for equal rows, and whether a row has equal ones that chance explains, (N,) each.

    Rows are equal that are so to three digits of the columns' deviations. Of N rows with weights w, n equal to a row, n_c with
    its context, n_t with its target, and shares p_j with its value in column j, chance explains

        E = max(N prod_j p_j, (n_c - n) n_t / (N - n_t))

    equal rows: those of independent columns; or, for columns that depend on each other, those that the rows with the same context
    and another target suggest. The rows are equal by chance if n - 1 <= 5 E, and duplicates otherwise. So they are if a value of
    a continuous column is only in these rows: one of more than 20 values, and 3/4 as many as there are different rows.
    """
    sides = [np.asarray(side, dtype=np.float64).reshape(len(c), -1) for side in (c, t)]
    weight = np.ones(len(c)) if w is None else w
    both = np.column_stack(sides)
    x = np.nan_to_num(both, nan=np.inf)
    told = _tensor(np.where(np.isnan(both).all(0), 0.0, both))  # a column without a value separates no rows
    digits = np.nan_to_num(Scale.of(told, _tensor(weight)).to(told).numpy().round(3), nan=np.inf)
    row, of_c, of_t = (numbered(part) for part in (digits, digits[:, : sides[0].shape[1]], digits[:, sides[0].shape[1] :]))
    n, n_c, n_t = (np.bincount(code, weight)[code] for code in (row, of_c, of_t))
    total, different = weight.sum(), row.max() + 1
    explained, copied = np.full(len(x), total), np.zeros(len(x), dtype=bool)
    if (n <= 1).all():
        return row, copied
    for exact, rounded in zip(x.T, digits.T, strict=True):
        explained *= np.bincount(code := numbered(rounded), weight)[code] / total
        code = numbered(exact)
        if code.max() >= max(CONTINUOUS, 0.75 * different):
            copied |= np.bincount(code, weight)[code] <= n * (1 + 1e-9)
    explained = np.maximum(explained, (n_c - n) * n_t / np.maximum(total - n_t, 1e-9))
    return row, (n > 1) & ~copied & (n - 1 <= BY_CHANCE * explained)


def numbered(x: Floats) -> Ints:
    """Returns a number from 0 of each value (N,) or row (N, D), the same for equal ones."""
    axis = 0 if x.ndim == 2 else None
    return np.asarray(np.unique(x + 0.0, axis=axis, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def duplicates(c: Any, t: Any) -> Ints:
    """Returns a label of each row, the same for duplicates (`by_chance`), (N,)."""
    code, chance = by_chance(c, t)
    return numbered(np.where(chance, len(code) + np.arange(len(code)), code))


def far_values(x: Floats, names: Sequence[str], rows: Any = None) -> list[str]:
    """Returns a sentence per column (N, D) with a value 100 times as far from the median as half; rows have names (N,)."""
    found = []
    for name, column in zip(names, x.T, strict=True):
        distance = np.abs(column - np.nanmedian(column))
        middle = float(np.nanmedian(distance))
        far = int((distance > FAR * middle).sum()) if middle > 0 else 0
        if 0 < far <= max(1, len(x) // 100):
            row = int(np.nanargmax(distance))
            where = f"{name} is {column[row]:.3g} in row {row + 1 if rows is None else rows[row]}, far from all others"
            found.append(f"{where}, and distorts means and covariances: correct or drop it")
    return found


# Tables in and out


def _columns_of(x: Any, target: bool) -> list[str]:
    """Returns the names of the features of a table; none of other data."""
    table = as_table(x)
    if table is None:
        name = getattr(x, "name", None) if target else None
        return [name] if isinstance(name, str) else []
    kinds = column_kinds(table, cycles=not target)
    names = [name for column in kinds.values() for name in (column.features or (column.name,))]
    unusable = [str(column) for column in kinds.values() if not column.features and column.kind != "identifier"]
    expect(not unusable, "columns of numbers, dates or categories", ", ".join(unusable[:5]), "leave such columns out")
    return names


def _numbers(x: Any, names: Sequence[str]) -> Any:
    """Returns the features of a table by their names; other data as an array."""
    table = as_table(x)
    return to_numpy(x) if table is None else read_features(table, names or table.column_names)


def question(values: Any, names: Sequence[str]) -> tuple[list[str], list[str], np.ndarray]:
    """Returns the features that are asked for, those that are given, and the values of these, (B, D)."""
    import pyarrow as pa

    table = as_table(values)
    columns = values if table is None else {n: None if (v := table[n]).null_count == len(v) else v for n in table.column_names}
    features = {name: [f for f in names if name in (f, column_of(f))] for name in columns}
    for name, found in features.items():
        require_choice("a column", name, names if not found else [name])
    lists = {name: np.atleast_1d(v) for name, v in columns.items() if v is not None}
    B = max(map(len, lists.values()), default=1)
    uneven = next((name for name, rows in lists.items() if len(rows) not in (1, B)), None)
    expect(uneven is None, f"one value or {B} in each column", f"{len(lists.get(uneven or '', []))} in {uneven}")
    asked, stated = ([f for name in columns for f in features[name] if (name in lists) == given] for given in (False, True))
    expect(asked, "a column with the value None, which is asked for", ", ".join(columns) or "none", "name one")
    rows = {name: pa.array(rows.repeat(B if len(rows) == 1 else 1), from_pandas=True) for name, rows in lists.items()}
    return asked, stated, read_features(pa.table(rows), stated, "the question", unknown="refuse") if stated else np.empty((1, 0))


def as_given(context: Any, values: np.ndarray, names: Sequence[str]) -> Any:
    """Returns values (B,) or (B, T) as a column or table of pandas, polars or Arrow where the context is one of them."""
    if as_table(context) is None:
        return values
    frame = as_frame(context, dict(zip(names, values.reshape(len(values), len(names)).T, strict=True)))
    return frame if values.ndim > 1 or hasattr(frame, "column_names") else frame[names[0]]


def as_frame(context: Any, columns: dict[str, np.ndarray], times: int = 1) -> Any:
    """Returns columns as a table of the kind of the context, each of whose rows, in pandas its index, stands ``times``."""
    if hasattr(context, "iloc"):
        import pandas as pd

        return pd.DataFrame(columns, index=context.index.repeat(times))
    if hasattr(context, "to_arrow"):
        import polars as pl

        return pl.DataFrame(columns)
    import pyarrow as pa

    return pa.table(columns)


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
    """Returns a seed for torch: a whole number unchanged, otherwise one sampled from numpy's generator or global state."""
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def one_gaussian(X: Tensor, w: Tensor | None, **how: Any) -> tuple[Tensor, Tensor]:
    """Returns mean (D,) and covariance (D, D) of standardized items with gaps (N, D): those of the highest likelihood."""
    D = X.shape[1]
    _, mean, S, _ = fit_with_gaps(X, w, X.new_ones(1), X.new_zeros(1, D), torch.eye(D).to(X)[None], **how)
    return mean[0], S[0]


def shrunk(residual: Tensor, N: float) -> Tensor:
    """Returns the covariance of the residuals (M, T) of N rows; with few rows a target, its correlations are shrunk."""
    second = residual.T @ residual / N
    if residual.shape[1] == 1 or N >= 10 * residual.shape[1]:
        return second
    std = second.diagonal().sqrt()
    shrunk, _ = ledoit_wolf((residual / std).cpu().numpy(), assume_centered=True)
    return torch.from_numpy(shrunk).to(second) * std * std[:, None]


def warn_unfinished(what: str, steps: int) -> None:
    """Warns that an iteration stopped before it converged."""
    warnings.warn(f"{what} did not converge in {steps} iterations: raise max_iter or tol", ConvergenceWarning, stacklevel=4)
