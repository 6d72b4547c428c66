r"""Which conditional model suits a table: all of them with sensible sizes, compared on rows that no fit has seen.

1. Folds tell the truth: equal and nearly equal rows are on one side; with ``groups`` the test rows are of other groups (new
   subjects), with ``order`` they come later (the future).
2. Each model has the mean log-density of the test rows. A model that is clearly behind after a fold is dropped.
3. One-standard-error rule: of the models whose mean is within one standard error (of the paired difference) of the best, the
   simplest is chosen, and fitted to all different rows.

Rows that all occur equally often are taken once, so that a table in which each row is repeated gives the same model.

Shapes: N rows, C context columns, T targets.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from vergence.mixtures.core import Conditional
from vergence.utils.checks import expect, require_count
from vergence.utils.terminal import Tabular, bar

__all__ = ["Selection", "choose", "folds"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLDS = 3
BEHIND = 4.0  # standard errors that a model is behind the best after a fold when it is dropped
ROWS_A_COMPONENT, MOST_KERNEL, MOST_SLOW = 20, 3_000, 5_000  # rows that a component needs; rows of slow models, at most
RIDGES = (0.1, 1.0)  # added to the variances of standardized columns, of a Gaussian of few rows
SAMPLES = 100  # of each row, for the CRPS
ALONE = "targets alone"
LINES = ("gaussian", *(f"gaussian, ridge {ridge:g}" for ridge in RIDGES))


@dataclass(frozen=True)
class Selection(Tabular):
    """The chosen model and how the others did.

    Attributes:
        name: Name of the chosen model.
        model: The model, fitted to all different rows; that of `ALONE` ignores the context.
        columns: One row a model: ``model``; ``log_density`` in nats a row, larger is better; its standard ``error``; ``crps``,
            ``rmse`` and the ``width`` of 90 % intervals in the targets' units; ``coverage`` of these; ``seconds``; empty scores
            for what was dropped.
        sentence: What follows.
    """

    name: str
    model: Conditional
    columns: Mapping[str, Sequence[Any]]
    sentence: str

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return self.columns


def folds(
    context: Any, target: Any, *, groups: Any = None, order: Any = None, n_folds: int = FOLDS, random_state: int = 0
) -> list[tuple[Ints, Ints]]:
    """Returns training and test rows, of which no test row is (nearly) equal to a training row.

    Args:
        context: (N, C).
        target: (N, T) or (N,).
        groups: (N,); rows of a group are on one side.
        order: (N,) numbers, such as times; test rows come after training rows. Not together with groups.
        n_folds: Folds, at least 2.
        random_state: Seed of which rows are tested together.

    Example:
        >>> x = np.repeat(np.arange(6.0), 2)[:, None]
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
    label = _alike(context, target) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    expect(label.max() + 1 >= n_folds, f"at least {n_folds} different rows or groups", int(label.max()) + 1, "give more")
    fold = (np.random.default_rng(random_state).permutation(label.max() + 1) % n_folds)[label]
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(n_folds)]


def _alike(context: Any, target: Any) -> Ints:
    """Returns a label of each row, the same for rows that are equal to three digits of the columns' deviations."""
    x = np.column_stack([np.asarray(side, dtype=np.float64).reshape(len(context), -1) for side in (context, target)])
    deviation = x.std(0)
    scaled = (x - x.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    label = np.unique(np.round(scaled, 3), axis=0, return_inverse=True)[1]
    return np.asarray(label.reshape(-1), dtype=np.int64)


def choose(
    context: Any,
    target: Any,
    *,
    groups: Any = None,
    order: Any = None,
    seconds: float | None = None,
    random_state: int = 0,
) -> Selection:
    """Returns the model that suits a table, fitted to it.

    Args:
        context: (N, C), N >= 30.
        target: (N, T) or (N,).
        groups: (N,) subjects: the choice is for rows of new ones.
        order: (N,) numbers, such as times: the choice is for later rows.
        seconds: Time after which no other model is tried; None for all.
        random_state: Seed of the folds and of the models.

    Raises:
        ValueError: Lengths differ, values are not finite, a target is constant, or there are fewer than 30 rows.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(200, 1))
        >>> choose(x, 2 * x[:, 0] + rng.normal(size=200)).name
        'gaussian'
    """
    c, t = np.asarray(context, dtype=np.float64), np.asarray(target, dtype=np.float64)
    expect(c.ndim == 2 and len(c) == len(t), "contexts (N, C) and as many targets", f"shapes {c.shape} and {t.shape}")
    expect(len(c) >= 30, "at least 30 rows to compare models on", len(c), "name a model")
    rows = _once(c, t)
    c, t = c[rows], t[rows]
    groups, order = (None if one is None else np.asarray(one)[rows] for one in (groups, order))
    parts = folds(c, t, groups=groups, order=order, random_state=random_state)
    tried = _race(_candidates(c, t, random_state), c, t, parts, seconds)
    name = _simplest({one: trial for one, trial in tried.items() if trial.whole})
    return Selection(name, fitted(name, tried[name].estimator, c, t), _columns(tried), _sentence(name, tried))


def _once(c: Floats, t: Floats) -> Ints:
    """Returns all rows, or each different row once where all occur equally often."""
    both = np.column_stack([c, t.reshape(len(t), -1)])
    _, first, counts = np.unique(both, axis=0, return_index=True, return_counts=True)
    return np.sort(first) if (counts == counts[0]).all() else np.arange(len(c))


def _candidates(c: Floats, t: Floats, seed: int) -> dict[str, Conditional]:
    """Returns the models by name, the simplest first."""
    from vergence.mixtures import get

    def build(model: str, **settings: Any) -> Conditional:
        return get(model)(random_state=seed, **settings)

    n, width = len(c), c.shape[1] + t.reshape(len(t), -1).shape[1]
    found = {ALONE: build("gaussian"), "gaussian": build("gaussian")}
    found |= {f"gaussian, ridge {ridge:g}": build("gaussian", reg_covar=ridge) for ridge in RIDGES}
    if n <= MOST_KERNEL:
        found["kernel"] = build("kernel")
    for k in (3, 10, 30):
        if n >= ROWS_A_COMPONENT * k and n >= 5 * width * k:
            found[f"mixture of {k}"] = build("mixture", n_components=k)
    if n <= MOST_SLOW:
        found["gng"] = build("gng")
    return {**found, "mdn": build("mdn")}


class _Trial:
    """What was measured of a model, of the test rows of all folds one after the other."""

    def __init__(self, estimator: Conditional) -> None:
        self.estimator = estimator
        self.log_p: list[Floats] = []
        self.crps: list[Floats] = []
        self.squares: list[Floats] = []
        self.inside: list[Floats] = []
        self.width: list[Floats] = []
        self.seconds = 0.0
        self.whole = False

    def add(self, name: str, c: Floats, t: Floats, train: Ints, test: Ints) -> None:
        """Fits to training rows and measures test rows."""
        began = time.perf_counter()
        model = fitted(name, self.estimator, c[train], t[train])
        given, right = c[test], t[test].reshape(len(test), -1)
        self.log_p.append(model.score_samples(given, t[test]))
        samples = model.sample(given, SAMPLES).reshape(len(test), SAMPLES, -1)
        self.crps.append(_crps(samples, right))
        self.squares.append(np.square(model.predict(given).reshape(right.shape) - right).mean(1))
        low, high = np.moveaxis(model.intervals(given, 0.9).reshape(*right.shape, 2), -1, 0)
        self.inside.append(((low <= right) & (right <= high)).mean(1))
        self.width.append((high - low).mean(1))
        self.seconds += time.perf_counter() - began


def fitted(name: str, estimator: Conditional, c: Floats, t: Floats) -> Conditional:
    """Returns a fitted copy of a model; that of `ALONE` is a Gaussian whose targets do not depend on the context."""
    model: Conditional = clone(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(c, t)
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
    return np.asarray((np.abs(samples - right[:, None]).mean(1) - spread).mean(1))


def _race(
    candidates: Mapping[str, Conditional], c: Floats, t: Floats, parts: Sequence[tuple[Ints, Ints]], seconds: float | None
) -> dict[str, _Trial]:
    """Returns the trials of all models; those that are clearly behind after a fold have no further ones."""
    tried = {name: _Trial(estimator) for name, estimator in candidates.items()}
    racing, began = list(tried), time.perf_counter()
    with bar("models", len(racing) * len(parts), late=True) as advance:
        for train, test in parts:
            for name in list(racing):
                late = seconds is not None and time.perf_counter() - began > seconds
                if late and name not in (ALONE, "gaussian"):
                    racing.remove(name)
                else:
                    tried[name].add(name, c, t, train, test)
                advance(1)
            racing = _ahead({name: tried[name] for name in racing})
    for name in racing:
        tried[name].whole = len(tried[name].log_p) == len(parts)
    return tried


def _ahead(tried: Mapping[str, _Trial]) -> list[str]:
    """Returns the models that are not clearly behind the best; those that ignore the context, and a line, always stay."""
    log_p = {name: np.concatenate(trial.log_p) for name, trial in tried.items()}
    best = max(log_p, key=lambda name: float(log_p[name].mean()))
    return [name for name in log_p if name in (ALONE, "gaussian") or _lag(log_p[best], log_p[name]) <= BEHIND]


def _lag(best: Floats, other: Floats) -> float:
    """Returns by how many standard errors of the paired difference another is behind the best."""
    d = best - other
    return float(d.mean() / max(d.std() / len(d) ** 0.5, 1e-12)) if d.any() else 0.0


def _simplest(tried: Mapping[str, _Trial]) -> str:
    """Returns the first model that is within one standard error of the best."""
    log_p = {name: np.concatenate(trial.log_p) for name, trial in tried.items()}
    best = max(log_p, key=lambda name: float(log_p[name].mean()))
    return next(name for name in log_p if _lag(log_p[best], log_p[name]) <= 1)


def _columns(tried: Mapping[str, _Trial]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"model": list(tried)}
    whole = [trial if trial.whole else None for trial in tried.values()]

    def each(values: str, scale: float = 1.0, power: float = 1.0) -> list[float | None]:
        return [None if one is None else float(np.concatenate(getattr(one, values)).mean() ** power * scale) for one in whole]

    deviation = [
        None if one is None else float(np.concatenate(one.log_p).std() / sum(map(len, one.log_p)) ** 0.5) for one in whole
    ]
    rows |= {"log_density": each("log_p"), "error": deviation, "crps": each("crps"), "rmse": each("squares", power=0.5)}
    rows |= {"coverage": each("inside"), "width": each("width"), "seconds": [round(one.seconds, 2) for one in tried.values()]}
    return rows


def _sentence(name: str, tried: Mapping[str, _Trial]) -> str:
    if name == ALONE:
        return "The context says nothing about the target that these rows would show."
    log_p = {one: np.concatenate(trial.log_p) for one, trial in tried.items() if trial.whole}
    lead = float((log_p[name] - log_p[ALONE]).mean())
    if name in LINES:
        return f"A line is enough ({name}): {lead:.2f} nats a row better than without the context."
    more = float((log_p[name] - log_p["gaussian"]).mean())
    return f"{name[0].upper()}{name[1:]}: {more:.2f} nats a row better than a line."
