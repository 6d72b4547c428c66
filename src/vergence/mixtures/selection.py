r"""Which conditional model suits a table: all of them with sensible sizes, compared on rows that no fit has seen.

1. Equal and nearly equal rows are on one side of each fold; with ``groups`` the test rows are of other groups (new
   subjects), with ``order`` they come later (the future), with both they are later rows of the same groups.
2. Each model has the mean log-density of the test rows. So that a few far rows decide nothing, models are compared with one
   percent of a broad density mixed into each: a Cauchy density of each target at its median, as wide as its middle half. A model
   that is clearly behind after a fold is dropped. Of more than 20,000 rows a sample of the rows decides.
3. One-standard-error rule: of the models whose mean is within one standard error (of the paired difference) of the best, the
   simplest is chosen, and fitted to all rows.
4. The chosen model keeps the probability integral transforms of the test rows, by which its intervals and quantiles are
   adjusted, and how anomalous each of these rows was, from which p-values of new pairs follow.

Shapes: N rows, C context columns, T targets.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import cauchy, kstest, skew
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from vergence.data.tables import column_of
from vergence.densities.particles import systematic
from vergence.mixtures.core import Conditional, FarValue, duplicates, far_values, silenced
from vergence.mixtures.models import get
from vergence.mixtures.others import LogScale
from vergence.mixtures.random_intercepts import RandomIntercepts
from vergence.utils.checks import counted, expect, in_percent, require_count
from vergence.utils.dtypes import Floats, Ints
from vergence.utils.limits import OutOfTime, time_limit
from vergence.utils.terminal import Table, bar

__all__ = ["Importance", "Selection", "choose", "folds", "importance"]

FOLDS = 3
LEAST_ROWS = 10
BEHIND = 3.0  # standard errors that a model is behind the best after a fold when it is dropped
BROAD = 0.01  # share of the broad density
FIT_TO_ALL = 1.5  # time of the fit to all rows, in that of a fold
ROWS_A_COMPONENT, MOST_KERNEL = 20, 3_000  # rows that a component needs; rows of a Gaussian process, at most
MOST_RACED = 20_000  # rows that decide, at most
WIDE = 60  # columns above which mixtures have covariances of low rank
SHOWN = 3.0  # standard errors by which the CRPS of a model shows that the context says something
RESTARTS = 2  # of a model in the race, at most
LARGE = 1_000  # nats, above which a number says nothing
SAMPLES = 100  # of each row, for the CRPS
CORRELATED = 0.25  # correlation of the errors of neighboring rows that is reported
SPIKE, MANY = 0.1, 20  # share of one common value, among this many
LEAST_NETWORK, LEAST_TREES = 500, 30  # rows
SKEWED = 1.0  # skewness above which a target is tried on a log scale
NO_CONTEXT, LINE, LOG = "no context", "line", ", log scale"
ALWAYS = (NO_CONTEXT, LINE)  # tried in any case
INTERCEPTS = "random intercepts"
CALLED = {"trees": "boosted trees", "kernel": "a Gaussian process", "mdn": "a mixture density network"}


@dataclass(frozen=True)
class Selection(Table):
    """The chosen model and how the others did.

    Attributes:
        columns: One row per model: ``model``; ``log_density`` in nats per row, larger is better; its standard ``error``;
            ``crps``, ``rmse`` and the ``width`` of 90 % intervals in the targets' units; ``r2``; ``coverage`` of these intervals;
            ``pit``, the largest distance of the probability integral transforms from uniform ones; ``seconds``; ``left``, why a
            model was left out: ``behind`` after a fold, or no ``time``. The command line calls them nats, ±, R2 and left out.
        name: Name of the chosen model.
        model: The model, fitted to all rows; that of `NO_CONTEXT` ignores the context.
        sentence: Which model was chosen, and why.
        notes: What to be aware of, such as neighboring rows with correlated errors.
    """

    name: str
    model: Conditional
    sentence: str
    notes: tuple[str, ...] = ()


def folds(
    context: Any, target: Any, *, groups: Any = None, order: Any = None, n_folds: int = FOLDS, random_state: int = 0
) -> list[tuple[Ints, Ints]]:
    """Returns training and test rows, of which no test row is a duplicate of a training row.

    Rows that are equal by chance, such as those of few groups and small counts, are split like others
    (`vergence.mixtures.core.by_chance` has the rule).

    Args:
        context: (N, C).
        target: (N, T) or (N,).
        groups: (N,); rows of a group are on one side. Of two groups there are two folds.
        order: (N,) numbers, such as times; test rows come after training rows. With groups, after those of the same group: each
            group is cut by the places of its rows in time.
        n_folds: Folds, at least 2.
        random_state: Seed of which rows are tested together.

    Example:
        >>> x = np.repeat(np.random.default_rng(0).normal(size=30), 2)[:, None]
        >>> all(not set(x[a, 0]) & set(x[b, 0]) for a, b in folds(x, x[:, 0]))
        True
        >>> [bool(a.max() < b.min()) for a, b in folds(np.arange(9.0)[:, None], np.zeros(9), order=np.arange(9))]
        [True, True, True]
    """
    require_count(2, n_folds=n_folds)
    if order is not None:
        order = np.asarray(order)
        sortable = order.dtype.kind in "iufmMb" and not (order.dtype.kind == "f" and np.isnan(order).any())
        expect(sortable, "an order of numbers or times without gaps", str(order.dtype), "convert texts, and leave gaps out")
        part = _in_time(np.zeros(len(context)) if groups is None else np.asarray(groups), order, n_folds + 1)
        return [(np.flatnonzero(part <= k), np.flatnonzero(part == k + 1)) for k in range(n_folds)]
    label = duplicates(context, target) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    n_folds = min(n_folds, max(2, label.max() + 1)) if groups is not None else n_folds
    expect(label.max() + 1 >= n_folds, f"at least {n_folds} different rows or groups", int(label.max()) + 1, "give more")
    fold = (np.random.default_rng(random_state).permutation(label.max() + 1) % n_folds)[label]
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(n_folds)]


def _in_time(groups: Any, order: Any, parts: int) -> Ints:
    """Returns the part of each row, (N,): the rows of each group, in order, are cut into ``parts``, some of them empty."""
    part = np.zeros(len(order), dtype=np.int64)
    for one in np.unique(groups):
        rows = np.flatnonzero(groups == one)
        part[rows[np.argsort(order[rows], kind="stable")]] = np.arange(len(rows)) * parts // len(rows)
    different = len(np.unique(part))
    expect(different == parts, f"groups of at least {parts} rows, or as many rows without groups", f"{different} parts in time")
    return part


def choose(
    context: Any,
    target: Any,
    *,
    groups: Any = None,
    order: Any = None,
    sample_weight: Any = None,
    seconds: float | None = None,
    also: Mapping[str, Conditional] | None = None,
    rows: Any = None,
    random_state: int = 0,
) -> Selection:
    """Returns the model that suits a table, fitted to it.

    Args:
        context: (N, C), N >= 10, an array, tensor or table; NaN is a gap.
        target: (N, T) or (N,).
        groups: (N,) subjects: the choice is for rows of new ones.
        order: (N,) numbers, such as times: the choice is for later rows; with groups for later rows of these.
        sample_weight: (N,) >= 0: weights of the rows in the fits and in the means by which models are compared.
        seconds: Time for the choice; None for no limit. The first two models are always tried; with less time fewer folds decide.
        also: Other conditional models by name, such as `vergence.mixtures.GaussianRegressor`, the simplest first.
        rows: (N,) what notes call the rows; by default their places from 1.
        random_state: Seed of the folds and of the models.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 1))
        >>> choose(x, 2 * x[:, 0] + rng.normal(size=200)).name
        'line'
    """
    began = time.perf_counter()
    expect(len(context) >= LEAST_ROWS, f"at least {LEAST_ROWS} rows to compare models on", len(context), "name one, like 'line'")
    reader, c, t = _read(context, target, random_state)
    some = ~np.isnan(t.reshape(len(t), -1)).all(1)
    named: Any = np.arange(1, len(t) + 1) if rows is None else np.asarray(rows)
    for text in far_values(t.reshape(len(t), -1), reader._names()[1], named):
        warnings.warn(text, FarValue, stacklevel=2)
    groups, order, w, named = (None if x is None else np.asarray(x)[some] for x in (groups, order, sample_weight, named))
    c, t = c[some], t[some]
    expect(len(c) >= LEAST_ROWS, f"at least {LEAST_ROWS} rows with a target", len(c), "name one, like 'line'")
    data = _sampled(c, t, w, groups, order, random_state)
    data.require_values(reader._names())
    until = math.inf if seconds is None else began + seconds
    candidates = {**_candidates(data.c, data.t, random_state, data.inside(data.groups) is not None), **(also or {})}
    tried = {name: _Trial(name, estimator, name not in (also or {})) for name, estimator in candidates.items()}
    n_folds, data = len(data.parts), _race(tried, data, until)
    name, lost = _simplest(tried), any(trial.left == "refused" and trial.folds for trial in tried.values())
    if name == NO_CONTEXT or lost:  # those that were behind are tried on all rows, too
        _race({one: x for one, x in tried.items() if x.left in ("", "behind")}, data, until, drop=False)
        name = _simplest(tried)
    notes = [*remarks(c, t, reader._names(), named), *_notes(tried, name, data, groups is None and order is None)]
    if len(data.c) < len(c):
        notes.append(f"{len(data.c):,} of {len(c):,} rows decided which model is chosen; it is fitted to all")
    if len(data.parts) < n_folds:
        notes.append(f"there was time for {len(data.parts)} of {n_folds} folds: give more seconds for a surer choice")
    if took_all_steps(tried[name].last):
        notes.append(f"{name} took all of its steps; five times as many may be better")
    model = fitted(name, candidates[name], c, t, data.inside(groups), w)
    if hasattr(reader, "columns_"):
        model.columns_ = reader.columns_
    rows = by_weight(tried[name].whole_rows("w"))
    model.held_out_pit_, model.held_out_surprise_ = (tried[name].whole_rows(key)[rows] for key in ("cdf", "surprise"))
    return Selection(_columns(tried, data), name, model, _sentence(name, tried), tuple(notes))


def remarks(context: Floats, target: Floats, names: tuple[Sequence[str], Sequence[str]], rows: Any = None) -> list[str]:
    """Returns sentences on far values, one common target, and contexts that are the target; rows have names (N,)."""
    t = target.reshape(len(target), -1)
    found = far_values(np.column_stack([context, t]), [*names[0], *names[1]], rows)
    for name, y in zip(names[1], t.T, strict=True):
        values, counts = np.unique(y[~np.isnan(y)], return_counts=True)
        if len(values) > MANY and counts.max() > SPIKE * len(y):
            spike = f"{name} is {values[counts.argmax()]:.3g} in {in_percent(round(counts.max() / len(y), 2))} of the rows"
            found.append(f"{spike}: the density is unbounded there")
        same = [f"the context {other} is the target {name}" for other, x in zip(names[0], context.T, strict=True) if _same(x, y)]
        found += [f"{text} in other units: leave it out unless you know it before the target" for text in same]
    return found


def _same(x: Floats, y: Floats) -> bool:
    both = ~(np.isnan(x) | np.isnan(y))
    if both.sum() < 3 or np.ptp(x[both]) == 0 or np.ptp(y[both]) == 0:
        return False
    return bool(abs(np.corrcoef(x[both], y[both])[0, 1]) > 1 - 1e-12)


@dataclass(frozen=True)
class _Data:
    """The rows that decide: contexts (n, C), targets (n, T) or (n,), weights (n,), groups (n,) that the fits see, and folds."""

    c: Floats
    t: Floats
    w: Floats
    groups: Any
    ordered: bool
    parts: list[tuple[Ints, Ints]]

    def inside(self, groups: Any) -> Any:
        """Returns the groups that a fit leaves out together: none where later rows of the same groups are asked for."""
        return None if self.ordered else groups

    def require_values(self, names: tuple[Sequence[str], Sequence[str]]) -> None:
        """Raises a ValueError unless each context has values, and each target two of them, in the training rows of all folds."""
        t = self.t.reshape(len(self.t), -1)
        for train, _ in self.parts:
            for name, x in zip([*names[0], *names[1]], [*self.c[train].T, *t[train].T], strict=True):
                different, needed = len(np.unique(x[~np.isnan(x)])), 1 + (name in names[1])
                parts = f"at least {counted(needed, 'different value')} of {name} in each part of the rows"
                expect(different >= needed, parts, f"a part with {different}", "leave it out, or name a model")

    def broad(self, rows: Ints) -> Floats:
        """Returns the log-density of a Cauchy of each target at its median, as wide as its middle half, in nats (n,)."""
        t = self.t.reshape(len(self.t), -1)
        low, middle, high = np.nanquantile(t, [0.25, 0.5, 0.75], axis=0)
        spread = np.where(high > low, (high - low) / 2, np.nanstd(t, 0))
        return np.asarray(np.nansum(cauchy.logpdf(t[rows], middle, spread), 1))


def _sampled(c: Floats, t: Floats, w: Any, groups: Any, order: Any, seed: int) -> _Data:
    """Returns the rows that decide, in order, and their folds."""
    n, rng = len(c), np.random.default_rng(seed)
    rows = np.arange(n) if n <= MOST_RACED else np.sort(rng.choice(n, MOST_RACED, replace=False))
    w, groups, order = (None if x is None else x[rows] for x in (w, groups, order))
    parts = folds(c[rows], t[rows], groups=groups, order=order, random_state=seed)
    weight = np.ones(len(rows)) if w is None else np.asarray(w, dtype=np.float64)
    return _Data(c[rows], t[rows], weight, groups, order is not None, parts)


def _build(model: str, seed: int, **settings: Any) -> Conditional:
    return get(model)(random_state=seed, **settings)


def _read(context: Any, target: Any, seed: int) -> tuple[Conditional, Floats, Floats]:
    """Returns checked contexts (N, C) and targets (N,) or (N, T), and a model that has their names."""
    reader = _build("gaussian", seed)
    c, t = (part.numpy() for part in reader._read(context, target, reset=True))
    return reader, c, t[:, 0] if reader.target_ndim_ == 1 else t


def _candidates(c: Floats, t: Floats, seed: int, grouped: bool) -> dict[str, Conditional]:
    """Returns the models by name, the simplest first."""
    t = t.reshape(len(t), -1)
    n, width = len(c), c.shape[1] + t.shape[1]
    skewed = np.any((np.nanmin(t, 0) > 0) & (np.asarray(skew(t, nan_policy="omit")) > SKEWED))  # its logarithm may be easier
    names = [LINE, *(["kernel"] if n <= MOST_KERNEL else []), *(["trees"] if n >= LEAST_TREES else [])]
    found = {NO_CONTEXT: _build("gaussian", seed, ridge=0.0)}
    for name in names:
        found[name] = _build(name, seed)
        if skewed:  # of a line a Gaussian: the exponential of a t has no mean
            found[f"{name}{LOG}"] = LogScale(_build("gaussian" if name == LINE else name, seed), random_state=seed)
    if grouped:
        found[INTERCEPTS] = RandomIntercepts(random_state=seed)
    shape = {"covariance_type": "low_rank"} if width > WIDE else {}
    for k in (3, 10, 30):
        if n >= ROWS_A_COMPONENT * k and n >= 2 * min(width, WIDE) * k and not np.isnan(c).any() | (width > WIDE and k > 3):
            found[f"mixture of {k}"] = _build("mixture", seed, n_components=k, n_init=6, **shape)
    if np.isnan(c).any() and not shape:
        found["mixture of 3"] = _build("mixture", seed, n_init=6)
    return {**found, **({"mdn": _build("mdn", seed)} if n >= LEAST_NETWORK else {})}


class _Trial:
    """What was measured of a model, of the test rows of all folds one after the other."""

    def __init__(self, name: str, estimator: Conditional, quick: bool = True) -> None:
        self.name, self.estimator = name, clone(estimator)
        restarts = {key: n for key, n in estimator.get_params().items() if key.endswith("n_init")}
        self.estimator.set_params(**{key: min(n, RESTARTS) if quick else n for key, n in restarts.items()})
        self.last: Conditional = estimator
        self.measured: dict[str, list[Floats]] = {}
        self.seconds, self.folds = 0.0, 0
        self.left, self.why = "", ""  # why it has no scores

    def add(self, data: _Data, until: float) -> bool:
        """Measures the next fold unless the time would not suffice for it and the fit to all rows; returns whether it did."""
        began = time.perf_counter()
        most = math.inf if self.name in ALWAYS else (until - began) / (1 + FIT_TO_ALL)
        try:
            if self.seconds / max(1, self.folds) > most:
                raise OutOfTime
            with time_limit(began + most), silenced(Warning):  # test rows may be far away
                self._measure(data, *data.parts[self.folds])
        except (OutOfTime, ValueError) as error:
            self.left, self.why = ("time", "") if isinstance(error, OutOfTime) else ("refused", str(error))
            if self.name == NO_CONTEXT:
                raise
            return False
        finally:
            self.seconds += time.perf_counter() - began
        self.folds += 1
        return True

    def _measure(self, data: _Data, train: Ints, test: Ints) -> None:
        """Fits to training rows and measures test rows."""
        c, t, groups = data.c, data.t, data.inside(data.groups)
        w = data.w[train] if np.ptp(data.w) else None
        self.last = model = fitted(self.name, self.estimator, c[train], t[train], None if groups is None else groups[train], w)
        given, right = c[test], t[test].reshape(len(test), -1)
        samples = model.sample(given, SAMPLES).reshape(len(test), SAMPLES, -1)
        low, high = np.moveaxis(model.intervals(given, 0.9).reshape(*right.shape, 2), -1, 0)
        log_p = model.score_samples(given, t[test])
        found = {
            "w": data.w[test],
            "log_p": log_p,
            "compared": np.logaddexp(math.log(1 - BROAD) + log_p, math.log(BROAD) + data.broad(test)),
            "crps": _crps(samples, right),
            "squares": np.nanmean(np.square(np.asarray(model.predict(given)).reshape(right.shape) - right), 1),
            "inside": np.where(np.isnan(right), np.nan, (low <= right) & (right <= high)),
            "width": (high - low).mean(1),
            "cdf": model.cdf(given, t[test]).reshape(right.shape),
            "surprise": model.surprise(given, t[test]),
        }
        for key, values in found.items():
            self.measured.setdefault(key, []).append(values)

    def whole_rows(self, key: str) -> Floats:
        """Returns what was measured of all test rows, of the folds that count."""
        return np.concatenate(self.measured[key][: self.folds])

    def mean(self, key: str) -> float:
        """Returns the weighted mean of what was measured, of values that are not NaN."""
        x = self.whole_rows(key)
        w = np.broadcast_to(self.whole_rows("w").reshape(-1, *[1] * (x.ndim - 1)), x.shape)
        return float(np.nansum(w * x) / w[~np.isnan(x)].sum())


def fitted(name: str, estimator: Conditional, c: Floats, t: Floats, groups: Any = None, w: Any = None) -> Conditional:
    """Returns a fitted copy of a model; that of `NO_CONTEXT` is a Gaussian whose targets do not depend on the context."""
    model: Conditional = clone(estimator)
    if name == NO_CONTEXT:
        c = np.where(np.isnan(c), np.nanmean(c, 0), c)  # nothing follows from what would be there
    with silenced(FarValue), silenced(ConvergenceWarning):
        model.fit(c, t, **({} if w is None else {"sample_weight": w}), groups=groups)
    if name == NO_CONTEXT:
        C = c.shape[1]
        L, S = model.cholesky_.copy(), model.covariances_.copy()
        S[C:, :C] = S[:C, C:] = L[C:, :C] = 0
        L[C:, C:] = np.linalg.cholesky(S[C:, C:])
        model.cholesky_, model.covariances_ = L, S
        del model.context_range_  # no context is far
    return model


def _crps(samples: Floats, right: Floats) -> Floats:
    """Returns the continuous ranked probability score E|X - t| - E|X - X'| / 2 of samples (N, S, T), mean over targets, (N,)."""
    s = np.sort(samples, axis=1)
    S = s.shape[1]
    weight = (2 * np.arange(1, S + 1) - S - 1)[None, :, None]
    spread = (weight * s).sum(1) / S**2  # E|X - X'| / 2
    return np.asarray(np.nanmean(np.abs(samples - right[:, None]).mean(1) - spread, 1))


def _race(tried: Mapping[str, _Trial], data: _Data, until: float, *, drop: bool = True) -> _Data:
    """Tries all models on all folds; those that are clearly behind after one have no further ones, except `ALWAYS`.

    Returns the data with the folds that decide: where the best model has no time for one, those before it.
    """
    racing, best = dict(tried), ""
    with bar("models", len(racing) * len(data.parts), late=True) as advance:
        for k in range(len(data.parts)):
            for name, trial in list(racing.items()):
                if trial.folds <= k and not trial.add(data, until):
                    racing.pop(name)
                    if name == best and trial.left == "time":
                        for one in tried.values():
                            one.left, one.folds = one.left if one.folds < k or one.why else "", min(one.folds, k)
                        return replace(data, parts=data.parts[:k])
                advance(1)
            lags = _lags(racing) if drop else {}
            best = min(lags, key=lags.__getitem__, default="")
            racing = {name: trial for name, trial in racing.items() if name in ALWAYS or lags.get(name, 0.0) <= BEHIND}
            for name, trial in tried.items():
                trial.left = "" if trial.folds == len(data.parts) else trial.left or ("" if name in racing else "behind")
    return data


def took_all_steps(model: Any) -> bool:
    """Returns whether a fitted model is a network that took nearly all of its steps."""
    return hasattr(model, "steps") and getattr(model, "steps_", 0) >= 0.9 * model.steps


def _lags(tried: Mapping[str, _Trial]) -> dict[str, float]:
    """Returns by how many standard errors each model is behind the best."""
    best = max(tried.values(), key=lambda trial: trial.mean("compared"))
    return {name: _lag(best, trial) for name, trial in tried.items()}


def _lag(best: _Trial, other: _Trial, key: str = "compared") -> float:
    """Returns by how many standard errors of the paired difference another is behind the best."""
    d, w = best.whole_rows(key) - other.whole_rows(key), best.whole_rows("w")
    mean, error = mean_and_error(d, w)
    return mean / max(error, 1e-12) if d.any() else 0.0


def mean_and_error(x: Floats, w: Floats) -> tuple[float, float]:
    """Returns the mean of values (N,) with weights (N,), and its standard error."""
    mean = np.average(x, weights=w)
    return float(mean), float(np.sum(w**2 * (x - mean) ** 2) ** 0.5 / w.sum())


def _simplest(tried: Mapping[str, _Trial]) -> str:
    """Returns the first model that is within one standard error of the best, of those that were tried on all rows.

    `NO_CONTEXT` is passed over where the CRPS of another is clearly smaller: too narrow a density can be a good prediction.
    """
    whole = {name: trial for name, trial in tried.items() if not trial.left}
    name = next(name for name, lag in _lags(whole).items() if lag <= 1)
    better = {one: x for one, x in whole.items() if one != NO_CONTEXT and _lag(whole[NO_CONTEXT], x, "crps") > SHOWN}
    return next(one for one, lag in _lags(better).items() if lag <= 1) if name == NO_CONTEXT and better else name


def by_weight(w: Floats) -> Ints:
    """Returns rows (N,), each as often as its weight says, on average; all of them where weights are equal."""
    if not np.ptp(w):
        return np.arange(len(w))
    return systematic(torch.from_numpy(w), len(w), torch.Generator().manual_seed(0)).numpy()


def _columns(tried: Mapping[str, _Trial], data: _Data) -> dict[str, list[Any]]:
    """Returns the table's columns."""
    t = data.t.reshape(len(data.t), -1)
    weight = np.where(np.isnan(t), 0.0, data.w[:, None])
    middle = np.nansum(weight * t, 0) / weight.sum(0)
    spread = float((np.nansum(weight * np.square(t - middle), 0) / weight.sum(0)).mean())
    rows: dict[str, list[Any]] = {}
    for name, trial in tried.items():
        row: dict[str, Any] = {"model": name}
        row |= dict.fromkeys(("log_density", "error", "crps", "rmse", "r2", "coverage", "width", "pit"))
        if not trial.left:
            log_p, w, squares = trial.whole_rows("log_p"), trial.whole_rows("w"), trial.mean("squares")
            row |= {"log_density": trial.mean("log_p"), "error": mean_and_error(log_p, w)[1]}
            row |= {"crps": trial.mean("crps"), "rmse": squares**0.5, "r2": 1 - squares / spread}
            row |= {"coverage": trial.mean("inside"), "width": trial.mean("width")}
            pit = trial.whole_rows("cdf")[by_weight(w)]
            row["pit"] = float(np.mean([kstest(u[~np.isnan(u)], "uniform").statistic for u in pit.T]))
        for key, value in {**row, "seconds": round(trial.seconds, 2), "left": trial.left}.items():
            rows.setdefault(key, []).append(value)
    return rows


def _sentence(name: str, tried: Mapping[str, _Trial]) -> str:
    """Returns which model was chosen and why, and how much better it is than a simpler one."""
    late = any(trial.left == "time" for trial in tried.values())
    if name == NO_CONTEXT:
        return f"Chosen: {NO_CONTEXT}. No other model that was compared predicts clearly better."
    lags = _lags({one: trial for one, trial in tried.items() if not trial.left})
    best = min(lags, key=lags.__getitem__)
    tried_ones = "of those that had time" if late else "on held-out rows"
    tie = f"the simplest of those that the data cannot tell apart from the best{' that had time' * late}, {best}"
    called = ", ".join([name, *(words for short, words in CALLED.items() if name in (short, short + LOG))])
    chosen = f"Chosen: {called} ({f'the best {tried_ones}' if best == name else tie})."
    base, words = (NO_CONTEXT, "ignoring the context") if name == LINE or tried[LINE].left else (LINE, "a line")
    lead, error = mean_and_error(tried[name].whole_rows("log_p") - tried[base].whole_rows("log_p"), tried[name].whole_rows("w"))
    by = f"{abs(lead):.2f} ± {error:.2f}" if abs(lead) < LARGE else f"more than {LARGE:,}"
    than = f" It is {by} nats per row {'better' if lead >= 0 else 'worse'} than {words}"
    if base == NO_CONTEXT and lead < 0:
        return f"{chosen}{than}, but has a smaller CRPS: its distribution is too narrow."
    explained = ", which is easier to explain" if base == LINE and lead < 2 * error else ""
    return f"{chosen}{than}{explained}."


def _notes(tried: Mapping[str, _Trial], name: str, data: _Data, free: bool) -> list[str]:
    """Returns which models had no time, and whether errors of neighboring rows are correlated without groups or an order."""
    late = [one for one, trial in tried.items() if trial.left == "time"]
    found = [f"there was no time for {', '.join(late)}: give more seconds to compare them"] if late else []
    found += [f"{one} cannot be compared: {trial.why}" for one, trial in tried.items() if trial.why]
    return found + (_neighbors(tried[name], data.parts) if free else [])


def _neighbors(trial: _Trial, parts: Sequence[tuple[Ints, Ints]]) -> list[str]:
    """Returns a note where the errors of neighboring rows are correlated."""
    rows = np.concatenate([test for _, test in parts])
    z = ndtri(trial.whole_rows("cdf")[:, 0].clip(1e-6, 1 - 1e-6))[rows.argsort()]
    z = z[~np.isnan(z)]
    correlation = float(np.corrcoef(z[1:], z[:-1])[0, 1]) if len(z) > 50 else 0.0
    if correlation < max(CORRELATED, 4 / len(z) ** 0.5):
        return []
    return [
        f"errors of neighboring rows are correlated ({correlation:.2f}), as in repeated measurements or time series. Give groups "
        "or an order; otherwise new subjects and later rows get worse answers than this table says"
    ]


@dataclass(frozen=True)
class Importance(Table):
    """How much each context column adds.

    Attributes:
        columns: One row per column, the most important first: ``column``; ``nats`` per row that are lost without it on rows
            that no fit has seen; their standard ``error``.
    """


def importance(
    model: Conditional, context: Any, target: Any, *, names: Sequence[str] = (), groups: Any = None, order: Any = None
) -> Importance:
    """Returns which context columns matter: each is left out, and the model is fitted and evaluated again.

    Of columns that repeat each other none matters much by this measure, since the others replace it.

    Args:
        model: A conditional model, fitted or not; it is cloned.
        context: (N, C).
        target: (N, T) or (N,).
        names: Names of the columns; features of one column, such as a category or a date, are left out together.
        groups: (N,), as in `choose`.
        order: (N,), as in `choose`.

    Example:
        >>> from vergence.mixtures import ConditionalGaussian
        >>> x = np.random.default_rng(0).normal(size=(300, 2))
        >>> found = importance(ConditionalGaussian(), x, x[:, 1] + 0.1 * x[:, 0] ** 2, names=["a", "b"])
        >>> found.columns["column"]
        ['b', 'a']
    """
    reader, c, t = _read(context, target, 0)
    named = list(names) or reader._names()[0]
    whole = list(map(column_of, named))
    parts = folds(c, t, groups=groups, order=order)

    def log_densities(keep: Ints) -> Floats:
        trial = []
        for train, test in parts:
            found = fitted("", model, c[train][:, keep], t[train], None if groups is None else np.asarray(groups)[train])
            trial.append(found.score_samples(c[test][:, keep], t[test]))
            advance(1)
        return np.concatenate(trial)

    different = [one for one in dict.fromkeys(whole) if len(set(whole)) > 1]
    expect(different, "at least 2 context columns", whole[0], "there is nothing to compare")
    with bar("columns", (len(different) + 1) * len(parts), late=True) as advance:
        best = log_densities(np.arange(c.shape[1]))
        lost = {one: best - log_densities(np.flatnonzero([other != one for other in whole])) for one in different}
    order_ = sorted(lost, key=lambda one: -float(lost[one].mean()))
    error = [float(lost[one].std() / len(best) ** 0.5) for one in order_]
    return Importance({"column": order_, "nats": [float(lost[one].mean()) for one in order_], "error": error})
