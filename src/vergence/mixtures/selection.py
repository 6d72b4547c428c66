r"""Which conditional model suits a table: all of them with sensible sizes, compared on rows that no fit has seen.

1. Folds tell the truth: equal and nearly equal rows are on one side; with ``groups`` the test rows are of other groups (new
   subjects), with ``order`` they come later (the future).
2. Each model has the mean log-density of the test rows. A model that is clearly behind after a fold is dropped. Of more than
   20,000 rows a sample of the rows decides.
3. One-standard-error rule: of the models whose mean is within one standard error (of the paired difference) of the best, the
   simplest is chosen, and fitted to all rows. A network that took all of its steps is tried with five times as many.
4. The chosen model keeps the probability integral transforms of the test rows, by which its intervals and quantiles are
   adjusted, and how unusual each of these rows was, from which p-values of new pairs follow.

Shapes: N rows, C context columns, T targets.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import kstest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from vergence.mixtures.core import Conditional, FarValue, alike, far_values, far_values_are_noted
from vergence.mixtures.models import get
from vergence.utils.checks import expect, require_count
from vergence.utils.terminal import Table, bar

__all__ = ["Importance", "Selection", "choose", "folds", "importance", "remarks"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 3
LEAST_ROWS = 10
BEHIND = 4.0  # standard errors that a model is behind the best after a fold when it is dropped
ROWS_A_COMPONENT, MOST_KERNEL = 20, 3_000  # rows that a component needs; rows of a Gaussian process, at most
MOST_RACED = 20_000  # rows that decide, at most
WIDE = 60  # columns above which mixtures have covariances of low rank
MORE_STEPS = 5  # times as many, of a network that took all of its steps
LARGE = 1_000  # nats, above which a number says nothing
SAMPLES = 100  # of each row, for the CRPS
ALIKE = 0.25  # correlation of the errors of neighboring rows that is worth a notice
SPIKE, MANY = 0.1, 20  # share of one common value, among this many
ALONE = "targets alone"
CALLED = {"kernel": "A Gaussian process", "mdn": "A mixture density network"}


@dataclass(frozen=True)
class Selection(Table):
    """The chosen model and how the others did.

    Attributes:
        columns: One row a model: ``model``; ``log_density`` in nats a row, larger is better; its standard ``error``; ``crps``,
            ``rmse`` and the ``width`` of 90 % intervals in the targets' units; ``r2``; ``coverage`` of these intervals; ``pit``,
            the largest distance of the probability integral transforms from uniform ones; ``seconds``; empty scores for what was
            dropped.
        name: Name of the chosen model.
        model: The model, fitted to all rows; that of `ALONE` ignores the context.
        sentence: What follows.
        notes: What to look at, such as neighboring rows that err alike.
    """

    name: str
    model: Conditional
    sentence: str
    notes: tuple[str, ...] = ()


def folds(
    context: Any, target: Any, *, groups: Any = None, order: Any = None, n_folds: int = FOLDS, random_state: int = 0
) -> list[tuple[Ints, Ints]]:
    """Returns training and test rows, of which no test row is a copy of a training row.

    Rows that are equal by chance, such as those of few groups and small counts, are split like others
    (`vergence.mixtures.core.by_chance` has the rule).

    Args:
        context: (N, C).
        target: (N, T) or (N,).
        groups: (N,); rows of a group are on one side.
        order: (N,) numbers, such as times; test rows come after training rows. Not together with groups.
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
    expect(groups is None or order is None, "groups or order", "both", "leave one out")
    if order is not None:
        parts = np.array_split(np.argsort(np.asarray(order), kind="stable"), n_folds + 1)
        return [(np.concatenate(parts[: k + 1]), parts[k + 1]) for k in range(n_folds)]
    label = alike(context, target) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    expect(label.max() + 1 >= n_folds, f"at least {n_folds} different rows or groups", int(label.max()) + 1, "give more")
    fold = (np.random.default_rng(random_state).permutation(label.max() + 1) % n_folds)[label]
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(n_folds)]


def choose(
    context: Any,
    target: Any,
    *,
    groups: Any = None,
    order: Any = None,
    seconds: float | None = None,
    also: Mapping[str, Conditional] | None = None,
    random_state: int = 0,
) -> Selection:
    """Returns the model that suits a table, fitted to it.

    Args:
        context: (N, C), N >= 10, an array, tensor or table; NaN is a gap.
        target: (N, T) or (N,).
        groups: (N,) subjects: the choice is for rows of new ones.
        order: (N,) numbers, such as times: the choice is for later rows.
        seconds: Time after which no other model is tried; None for all.
        also: Other conditional models by name, such as `vergence.mixtures.NormalRegressor`, the simplest first.
        random_state: Seed of the folds and of the models.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 1))
        >>> choose(x, 2 * x[:, 0] + rng.normal(size=200)).name
        'gaussian'
    """
    began = time.perf_counter()
    expect(len(context) >= LEAST_ROWS, f"at least {LEAST_ROWS} rows to compare models on", len(context), "name a model")
    reader = _build("gaussian", random_state)
    c, t = (part.numpy() for part in reader._read(context, target, reset=True))
    t = t[:, 0] if reader.target_ndim_ == 1 else t
    some = ~np.isnan(t.reshape(len(t), -1)).all(1)
    groups, order = (None if one is None else np.asarray(one)[some] for one in (groups, order))
    for text in far_values(t.reshape(len(t), -1), reader._names()[1]):
        warnings.warn(text, FarValue, stacklevel=2)
    c, t = c[some], t[some]
    expect(len(c) >= LEAST_ROWS, f"at least {LEAST_ROWS} rows with a target", len(c), "name a model")
    rows = _sampled(len(c), random_state)
    raced = [None if one is None else one[rows] for one in (groups, order)]
    parts = folds(c[rows], t[rows], groups=raced[0], order=raced[1], random_state=random_state)
    candidates = {**_candidates(c[rows], t[rows], random_state), **(also or {})}
    tried = _race(candidates, c[rows], t[rows], parts, raced[0], None if seconds is None else began + seconds)
    name = _simplest({one: trial for one, trial in tried.items() if trial.whole})
    notes = [*remarks(c, t, reader._names()), *_notes(tried[name], parts, groups is None and order is None)]
    if len(rows) < len(c):
        notes.append(f"{len(rows):,} of {len(c):,} rows decided which model suits them; it is fitted to all")
    if took_all_steps(tried[name].last):
        name = _with_more_steps(name, tried, c[rows], t[rows], parts, raced[0], notes)
    model = fitted(name, tried[name].estimator, c, t, groups)
    if hasattr(reader, "columns_"):
        model.columns_ = reader.columns_
    model.held_out_pit_, model.held_out_surprise_ = tried[name].whole_rows("cdf"), tried[name].whole_rows("surprise")
    return Selection(_columns(tried, t[rows]), name, model, _sentence(name, tried), tuple(notes))


def remarks(context: Floats, target: Floats, names: tuple[Sequence[str], Sequence[str]]) -> list[str]:
    """Returns what is unusual about a table, in words: far values, one common target, contexts that are the target."""
    t = target.reshape(len(target), -1)
    found = far_values(np.column_stack([context, t]), [*names[0], *names[1]])
    for name, y in zip(names[1], t.T, strict=True):
        values, counts = np.unique(y[~np.isnan(y)], return_counts=True)
        if len(values) > MANY and counts.max() > SPIKE * len(y):
            share = counts.max() / len(y)
            found.append(
                f"{name} is {values[counts.argmax()]:.3g} in {share:.0%} of the rows: a density has a spike there of any height"
            )
        for other, x in zip(names[0], context.T, strict=True):
            if _same(x, y):
                found.append(
                    f"the context {other} is the target {name} in other units: leave it out unless it is known beforehand"
                )
    return found


def _same(x: Floats, y: Floats) -> bool:
    known = ~(np.isnan(x) | np.isnan(y))
    if known.sum() < 3 or np.ptp(x[known]) == 0 or np.ptp(y[known]) == 0:
        return False
    return bool(abs(np.corrcoef(x[known], y[known])[0, 1]) > 1 - 1e-12)


def _sampled(n: int, seed: int) -> Ints:
    """Returns the rows that decide, in order."""
    if n <= MOST_RACED:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, MOST_RACED, replace=False))


def _build(model: str, seed: int, **settings: Any) -> Conditional:
    return get(model)(random_state=seed, **settings)


def _candidates(c: Floats, t: Floats, seed: int) -> dict[str, Conditional]:
    """Returns the models by name, the simplest first."""
    n, width = len(c), c.shape[1] + t.reshape(len(t), -1).shape[1]
    found = {ALONE: _build("gaussian", seed, ridge=0.0), "gaussian": _build("gaussian", seed)}
    if n <= MOST_KERNEL:
        found["kernel"] = _build("kernel", seed)
    shape = {"covariance_type": "low_rank"} if width > WIDE else {}
    for k in (3, 10, 30):
        if n >= ROWS_A_COMPONENT * k and n >= 2 * min(width, WIDE) * k and not np.isnan(c).any() | (width > WIDE and k > 3):
            found[f"mixture of {k}"] = _build("mixture", seed, n_components=k, n_init=6, **shape)
    if np.isnan(c).any() and not shape:
        found["mixture of 3"] = _build("mixture", seed, n_init=6)
    return {**found, "mdn": _build("mdn", seed)}


class _Trial:
    """What was measured of a model, of the test rows of all folds one after the other."""

    def __init__(self, estimator: Conditional) -> None:
        self.estimator = estimator
        self.last: Conditional = estimator
        self.measured: dict[str, list[Floats]] = {}
        self.seconds = 0.0
        self.whole = False

    def add(self, name: str, c: Floats, t: Floats, train: Ints, test: Ints, groups: Any) -> None:
        """Fits to training rows and measures test rows."""
        began = time.perf_counter()
        self.last = model = fitted(name, self.estimator, c[train], t[train], None if groups is None else groups[train])
        given, right = c[test], t[test].reshape(len(test), -1)
        samples = model.sample(given, SAMPLES).reshape(len(test), SAMPLES, -1)
        low, high = np.moveaxis(model.intervals(given, 0.9).reshape(*right.shape, 2), -1, 0)
        found = {
            "log_p": model.score_samples(given, t[test]),
            "crps": _crps(samples, right),
            "squares": np.nanmean(np.square(np.asarray(model.predict(given)).reshape(right.shape) - right), 1),
            "inside": np.where(np.isnan(right), np.nan, (low <= right) & (right <= high)),
            "width": (high - low).mean(1),
            "cdf": model.cdf(given, t[test]).reshape(right.shape),
            "surprise": model.surprise(given, t[test]),
        }
        for key, values in found.items():
            self.measured.setdefault(key, []).append(values)
        self.seconds += time.perf_counter() - began

    def whole_rows(self, key: str) -> Floats:
        """Returns what was measured of all test rows."""
        return np.concatenate(self.measured[key])


def fitted(name: str, estimator: Conditional, c: Floats, t: Floats, groups: Any = None) -> Conditional:
    """Returns a fitted copy of a model; that of `ALONE` is a Gaussian whose targets do not depend on the context."""
    model: Conditional = clone(estimator)
    with far_values_are_noted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(c, t, groups=groups)
    if name == ALONE:
        C = c.shape[1]
        L, S = model.cholesky_.copy(), model.covariances_.copy()
        S[C:, :C] = S[:C, C:] = L[C:, :C] = 0
        L[C:, C:] = np.linalg.cholesky(S[C:, C:])
        model.cholesky_, model.covariances_ = L, S
    return model


def _crps(samples: Floats, right: Floats) -> Floats:
    """Returns the continuous ranked probability score E|X - t| - E|X - X'| / 2 of samples (N, S, T), mean over targets, (N,)."""
    s = np.sort(samples, axis=1)
    S = s.shape[1]
    weight = (2 * np.arange(1, S + 1) - S - 1)[None, :, None]
    spread = (weight * s).sum(1) / S**2  # E|X - X'| / 2
    return np.asarray(np.nanmean(np.abs(samples - right[:, None]).mean(1) - spread, 1))


def _race(
    candidates: Mapping[str, Conditional],
    c: Floats,
    t: Floats,
    parts: Sequence[tuple[Ints, Ints]],
    groups: Any,
    until: float | None,
) -> dict[str, _Trial]:
    """Returns the trials of all models; those that are clearly behind after a fold have no further ones."""
    tried = {name: _Trial(estimator) for name, estimator in candidates.items()}
    racing = list(tried)
    with bar("models", len(racing) * len(parts), late=True) as advance:
        for train, test in parts:
            for name in list(racing):
                late = until is not None and time.perf_counter() > until
                if late and name not in (ALONE, "gaussian"):
                    racing.remove(name)
                else:
                    tried[name].add(name, c, t, train, test, groups)
                advance(1)
            racing = _ahead({name: tried[name] for name in racing})
    for name in racing:
        tried[name].whole = len(tried[name].measured["log_p"]) == len(parts)
    return tried


def took_all_steps(model: Any) -> bool:
    """Returns whether a fitted model is a network that took nearly all of its steps."""
    return hasattr(model, "steps") and getattr(model, "steps_", 0) >= 0.9 * model.steps


def _with_more_steps(
    name: str, tried: dict[str, _Trial], c: Floats, t: Floats, parts: Sequence[tuple[Ints, Ints]], groups: Any, notes: list[str]
) -> str:
    """Tries a network with more steps; returns the name of the better one."""
    steps = MORE_STEPS * int(tried[name].estimator.get_params()["steps"])
    longer = f"{name}, {steps:,} steps"
    trial = tried[longer] = _Trial(clone(tried[name].estimator).set_params(steps=steps))
    for train, test in parts:
        trial.add(longer, c, t, train, test, groups)
    trial.whole = True
    lag = _lag(trial.whole_rows("log_p"), tried[name].whole_rows("log_p"))
    notes.append(f"{name} took all of its steps; {steps:,} are {'better, and are used' if lag > 1 else 'no better'}")
    return longer if lag > 1 else name


def _ahead(tried: Mapping[str, _Trial]) -> list[str]:
    """Returns the models that are not clearly behind the best; those that ignore the context, and a line, always stay."""
    return [name for name, lag in _lags(tried).items() if name in (ALONE, "gaussian") or lag <= BEHIND]


def _lags(tried: Mapping[str, _Trial]) -> dict[str, float]:
    """Returns by how many standard errors each model is behind the best."""
    log_p = {name: trial.whole_rows("log_p") for name, trial in tried.items()}
    best = max(log_p.values(), key=lambda values: float(values.mean()))
    return {name: _lag(best, values) for name, values in log_p.items()}


def _lag(best: Floats, other: Floats) -> float:
    """Returns by how many standard errors of the paired difference another is behind the best."""
    d = best - other
    return float(d.mean() / max(d.std() / len(d) ** 0.5, 1e-12)) if d.any() else 0.0


def _simplest(tried: Mapping[str, _Trial]) -> str:
    """Returns the first model that is within one standard error of the best."""
    return next(name for name, lag in _lags(tried).items() if lag <= 1)


def _columns(tried: Mapping[str, _Trial], t: Floats) -> dict[str, list[Any]]:
    """Returns the table's columns."""
    spread = float(np.nanvar(t.reshape(len(t), -1), 0).mean())
    rows: dict[str, list[Any]] = {}
    for name, trial in tried.items():
        row: dict[str, Any] = {"model": name}
        row |= dict.fromkeys(("log_density", "error", "crps", "rmse", "r2", "coverage", "width", "pit"))
        if trial.whole:
            log_p, squares = trial.whole_rows("log_p"), float(trial.whole_rows("squares").mean())
            row |= {"log_density": float(log_p.mean()), "error": float(log_p.std() / len(log_p) ** 0.5)}
            row |= {"crps": float(trial.whole_rows("crps").mean()), "rmse": squares**0.5, "r2": 1 - squares / spread}
            row |= {"coverage": float(np.nanmean(trial.whole_rows("inside"))), "width": float(trial.whole_rows("width").mean())}
            row["pit"] = float(np.mean([kstest(u[~np.isnan(u)], "uniform").statistic for u in trial.whole_rows("cdf").T]))
        for key, value in {**row, "seconds": round(trial.seconds, 2)}.items():
            rows.setdefault(key, []).append(value)
    return rows


def _sentence(name: str, tried: Mapping[str, _Trial]) -> str:
    if name == ALONE:
        return "The context says nothing about the target that these rows would show."
    log_p = {one: trial.whole_rows("log_p") for one, trial in tried.items() if trial.whole}
    lead = float((log_p[name] - log_p[ALONE]).mean())
    if name == "gaussian":
        return f"A line is enough: {lead:.2f} nats a row better than without the context."
    more = float((log_p[name] - log_p["gaussian"]).mean())
    by = f"{more:.2f}" if more < LARGE else f"more than {LARGE:,}"
    return f"{CALLED.get(name, f'A {name}')} is best: {by} nats a row better than a line."


def _notes(trial: _Trial, parts: Sequence[tuple[Ints, Ints]], free: bool) -> list[str]:
    """Returns a notice where neighboring rows err alike, though neither groups nor an order was given."""
    rows = np.concatenate([test for _, test in parts])
    z = ndtri(trial.whole_rows("cdf")[:, 0].clip(1e-6, 1 - 1e-6))[rows.argsort()]
    known = ~np.isnan(z)
    alike_by = float(np.corrcoef(z[known][1:], z[known][:-1])[0, 1]) if free and known.sum() > 50 else 0.0
    if alike_by < max(ALIKE, 4 / len(z) ** 0.5):
        return []
    return [
        f"neighboring rows err alike (correlation {alike_by:.2f}), as repeated measurements of one subject or a course of time "
        "do: give groups or an order, or new subjects and later rows get worse answers than this table says"
    ]


@dataclass(frozen=True)
class Importance(Table):
    """How much each context column adds.

    Attributes:
        columns: One row a column, the most important first: ``column``; ``nats`` a row that are lost without it on rows that no
            fit has seen; their standard ``error``.
    """


def importance(
    model: Conditional, context: Any, target: Any, *, names: Sequence[str] = (), groups: Any = None, order: Any = None
) -> Importance:
    """Returns which context columns matter: each is left out, and the model is fitted and judged anew.

    Columns that say the same as others matter little by this measure, since the others stand in for them.

    Args:
        model: A conditional model, fitted or not; it is cloned.
        context: (N, C).
        target: (N, T) or (N,).
        names: Names of the columns; those before ``=`` belong to one category and are left out together.
        groups: (N,), as in `choose`.
        order: (N,), as in `choose`.

    Example:
        >>> from vergence.mixtures import ConditionalGaussian
        >>> x = np.random.default_rng(0).normal(size=(300, 2))
        >>> found = importance(ConditionalGaussian(), x, x[:, 1] + 0.1 * x[:, 0] ** 2, names=["a", "b"])
        >>> found.columns["column"]
        ['b', 'a']
    """
    reader = _build("gaussian", 0)
    c, t = (part.numpy() for part in reader._read(context, target, reset=True))
    t = t[:, 0] if reader.target_ndim_ == 1 else t
    named = list(names) or reader._names()[0]
    expect(c.shape[1] > 1, "at least 2 context columns", c.shape[1], "there is nothing to compare")
    whole = [name.partition("=")[0] for name in named]
    parts = folds(c, t, groups=groups, order=order)

    def judged(keep: Ints) -> Floats:
        trial = []
        for train, test in parts:
            found = fitted("", model, c[train][:, keep], t[train], None if groups is None else np.asarray(groups)[train])
            trial.append(found.score_samples(c[test][:, keep], t[test]))
            advance(1)
        return np.concatenate(trial)

    different = [one for one in dict.fromkeys(whole) if len(set(whole)) > 1]
    expect(different, "at least 2 different context columns", whole[0], "there is nothing to compare")
    with bar("columns", (len(different) + 1) * len(parts), late=True) as advance:
        best = judged(np.arange(c.shape[1]))
        lost = {one: best - judged(np.flatnonzero([other != one for other in whole])) for one in different}
    order_ = sorted(lost, key=lambda one: -float(lost[one].mean()))
    error = [float(lost[one].std() / len(best) ** 0.5) for one in order_]
    return Importance({"column": order_, "nats": [float(lost[one].mean()) for one in order_], "error": error})
