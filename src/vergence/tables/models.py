"""Conditional densities of files: fit, predict, sample and score, for ``vergence density``."""

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vergence import mixtures
from vergence.data.arrays import Pairs
from vergence.data.table_files import listed
from vergence.data.tables import column_of, read_features
from vergence.decide.conformal import ranked
from vergence.decide.decisions import Counts, Decisions
from vergence.decide.splits import split_groups
from vergence.mixtures.core import FarValue, by_chance, silenced
from vergence.mixtures.selection import Selection, by_weight, mean_and_error, remarks, took_all_steps
from vergence.report.rendering import require_page
from vergence.tables.page import write_fit
from vergence.utils import terminal
from vergence.utils.checks import counted, did_you_mean, expect, in_percent, require_choice, require_within
from vergence.utils.digests import content_digest, of_array, of_estimator
from vergence.utils.parts import Derived, apart, open_parts

__all__ = ["fit_density", "predict", "sample", "score_pairs"]

LEVELS = (0.5, 0.9)  # probabilities of the intervals whose coverage is reported
ROWS = 1024  # rows that are computed at a time
PART = 64 * ROWS  # rows of a part, which is kept if the job is stopped
SHOWN = 8  # columns of a note
AUTO = "auto"  # the model that is chosen
FEW = 20  # held-out pairs below which no scores are reported
LOOKED = 1 << 24  # numbers of the first contexts that are compared with those of the fit
KEPT, DIFFERENT = 1 << 20, 0.9  # rows of a fit that are known again, at most; share of different rows, at least, that are so
DISCRETE = 20  # different values of a target up to which it may be a class or a count


def named_model(name: str, settings: dict[str, Any]) -> Any:
    """Returns an unfitted model by its short or its class's name, with some settings."""
    kind = mixtures.get(name)
    names = list(inspect.signature(kind).parameters)
    for setting in settings:
        if setting not in names:
            hint = did_you_mean(setting, names) or f"there are {', '.join(names)}"
            raise ValueError(f"{kind.__name__} has no setting {setting}; {hint}")
    return kind(**settings)


@dataclass(frozen=True)
class Fitted:
    """What `fit_density` did and measured.

    Scores are, of the model and each baseline, the mean log-density of the held-out targets (nats), its standard error, and the
    share of them inside the 50 % and 90 % intervals; there are none for fewer than 20 held-out pairs.
    """

    model: str  # name of its class
    train: int  # pairs that it was fitted to
    test: int  # pairs that were held out
    seconds: float
    few_values: list[str]  # target columns of so few different values that they are classes or counts rather than measurements
    scores: dict[str, dict[str, float]]
    ahead: dict[str, tuple[float, float]]  # of each baseline's mean log-density (nats per row), with the standard error
    selection: Selection | None = None  # how the models of ``auto`` did
    notes: tuple[str, ...] = ()  # what to be aware of in the table or the fit


@silenced(FarValue)
def fit_density(
    pairs: Pairs,
    model: str,
    out: Path,
    *,
    settings: dict[str, Any],
    holdout: float = 0.2,
    seed: int = 0,
    groups: Any = None,
    order: Any = None,
    seconds: float | None = None,
    sample_weight: Any = None,
    report: Path | None = None,
) -> Fitted:
    """Fits a model to a part of the pairs, evaluates it and two baselines on the others, and writes it.

    Args:
        pairs: Contexts (N, C) and targets (N, T), N >= 2, with the names of their columns.
        model: Name of a model (`vergence.mixtures.get`); ``auto`` for `vergence.mixtures.choose`, which fits to all pairs.
        out: ``.safetensors`` file to write.
        settings: Of the model, by name; ``auto`` takes ``device`` alone.
        holdout: Share of the pairs that is held out at random for evaluation, in [0, 1); ``auto`` cross-validates instead.
        seed: Seed of the split and of the model.
        groups: Groups (N,) whose rows are held out together, with ``auto`` alone.
        order: Numbers (N,), such as times: later rows are held out, with ``auto`` alone.
        seconds: Time that the choice among models may take; None for no limit.
        sample_weight: Weights (N,) >= 0 of the rows.
        report: Page to write, ``.html``; None for none.

    Example:
        >>> import tempfile
        >>> folder, x = Path(tempfile.mkdtemp()), np.linspace(0, 1, 200)[:, None]
        >>> pairs, file = Pairs(x, 2 * x, (["a"], ["b"])), folder / "model.safetensors"
        >>> fit_density(pairs, "gaussian", file, settings={}).test
        40
        >>> predict(model := mixtures.load(file), pairs, folder / "p.csv"), sample(model, pairs, folder / "s.csv", n=3)
        (200, 600)
        >>> score_pairs(model, pairs, folder / "scores.csv").rows
        200
    """
    require_within("[0, 1)", holdout=holdout)
    writable = out.suffix == ".safetensors" and out.parent.is_dir() and not out.is_dir()
    expect(writable, "a file that ends in .safetensors, in an existing folder", str(out))
    if report is not None:
        expect(report.suffix == ".html", "a page that ends in .html", str(report), "choose another `report`")
        require_page(report, [out])
    weights = {} if sample_weight is None else {"sample_weight": np.asarray(sample_weight)}
    if model == AUTO:
        expect(not set(settings) - {"device"}, "`settings` with `model=NAME`", "`model='auto'`", "name the model they are for")
        start, also = time.perf_counter(), {"groups": groups, "order": order, "seconds": seconds, **weights}
        chosen = mixtures.choose(pairs.context, pairs.target, random_state=seed, **also)
        took, n, name = time.perf_counter() - start, len(pairs.context), type(chosen.model).__name__
        fitted = Fitted(name, n, 0, took, _few_values(pairs), {}, {}, chosen, chosen.notes)
        estimator, test = chosen.model, np.empty(0, dtype=np.int64)
    else:
        expect(groups is None and order is None, "groups or order with the model auto", model, "give `model='auto'`")
        estimator, test, fitted = _named(named_model(model, {"random_state": seed, **settings}), pairs, holdout, seed, **weights)
    estimator.columns_, estimator.ids_ = list(pairs.columns), list(pairs.ids)
    digests = _digests(pairs.context[:KEPT], pairs.target[:KEPT])
    kept = np.unique(digests)
    if len(kept) >= DIFFERENT * len(digests):  # of few different rows, new ones are equal to some by chance
        estimator.fitted_rows_ = kept
    estimator.save(out)
    if report is not None:
        facts = {"Model": fitted.model, "Rows": f"{fitted.train:,}", "Seconds": f"{fitted.seconds:.1f}", "File": out.name}
        selection = fitted.selection
        words = [*([] if selection is None else [selection.sentence]), *map(terminal.wording, fitted.notes)]
        with silenced():
            write_fit(report, estimator, pairs, test, words=words, facts=facts, models=selection and selection.table())
    return fitted


def _named(estimator: Any, pairs: Pairs, holdout: float, seed: int, sample_weight: Any = None) -> tuple[Any, np.ndarray, Fitted]:
    """Fits a model to a part of the pairs; returns it, the rows that were held out, and how it did on them."""
    test, train = _split(pairs, np.random.default_rng(seed).permutation(len(pairs.context)), holdout)
    found = f"{len(train)} of {len(pairs.context)}"
    expect(len(train) >= 2, "at least 2 pairs to fit to", found, "give more, or lower holdout")
    start = time.perf_counter()
    estimator.fit(pairs.context[train], pairs.target[train], *([] if sample_weight is None else [sample_weight[train]]))
    seconds = time.perf_counter() - start
    if len(test) >= FEW:
        held_out = pairs.context[test], pairs.target[test]
        rows = by_weight(np.ones(len(test)) if sample_weight is None else sample_weight[test])
        estimator.held_out_pit_ = estimator.cdf(*held_out).reshape(len(test), -1)[rows]
        estimator.held_out_surprise_ = estimator.surprise(*held_out)[rows]
    compared = _compared(estimator, pairs, train, test, sample_weight) if len(test) >= FEW else ({}, {})
    notes = remarks(pairs.context, pairs.target, pairs.columns, pairs.rows)
    if took_all_steps(estimator):
        more = f"`steps={5 * estimator.steps}` may be better"
        notes.append(f"the network took {estimator.steps_:,} of {estimator.steps:,} steps: {more}")
    name, few = type(estimator).__name__, _few_values(pairs)
    return estimator, test, Fitted(name, len(train), len(test), seconds, few, *compared, notes=tuple(notes))


def _split(pairs: Pairs, order: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns about a share of the pairs, the first ones of an order, and the others; duplicates are on one side."""
    both = np.column_stack([np.asarray(side).reshape(len(order), -1) for side in (pairs.context, pairs.target)])
    chance = by_chance(pairs.context, pairs.target)[1]
    held_out = split_groups((i if chance[i] else both[i].tobytes() for i in order.tolist()), share, seed=None).numpy()
    return order[held_out], order[~held_out]


def _digests(c: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns a number of each row (N,), by which it is known again."""
    both = np.column_stack([np.asarray(side, dtype=np.float64).reshape(len(c), -1) for side in (c, t)])
    both[np.isnan(both)] = np.nan  # of one kind
    return np.frombuffer(b"".join(content_digest(row.tobytes()) for row in both), dtype=np.int64)


def _few_values(pairs: Pairs) -> list[str]:
    """Returns the target columns of so few different values that they are classes or counts rather than measurements."""
    columns = np.asarray(pairs.target).reshape(len(pairs.target), -1).T
    most = min(DISCRETE, len(pairs.context) // 4)
    few = (1 < len(np.unique(values[~np.isnan(values)])) <= most for values in columns)
    return [name for name, is_discrete in zip(pairs.columns[1], few, strict=True) if is_discrete]


def _compared(
    model: Any, pairs: Pairs, train: np.ndarray, test: np.ndarray, sample_weight: Any
) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
    """Returns the scores of a model and of two Gaussian baselines on the held-out pairs, and by how much the model is ahead."""
    c, t, zeros = pairs.context[test], pairs.target[test], np.zeros((len(pairs.context), 1))
    w = np.ones(len(zeros)) if sample_weight is None else sample_weight
    linear = mixtures.get("gaussian")().fit(pairs.context[train], pairs.target[train], w[train])
    ignoring = mixtures.get("gaussian")().fit(zeros[train], pairs.target[train], w[train])
    every = {"model": (model, c), "linear Gaussian": (linear, c), "no context": (ignoring, zeros[test])}
    log_p = {name: density.score_samples(contexts, t) for name, (density, contexts) in every.items()}
    scores = {name: _scores(log_p[name], density.cdf(contexts, t), w[test]) for name, (density, contexts) in every.items()}
    return scores, {name: mean_and_error(log_p["model"] - log_p[name], w[test]) for name in every if name != "model"}


def _scores(log_p: np.ndarray, pit: np.ndarray, w: np.ndarray) -> dict[str, float]:
    pit = pit.reshape(len(pit), -1)
    inside = {f"in {in_percent(level)}": float(np.average(abs(pit - 0.5) <= level / 2, 0, w).mean()) for level in LEVELS}
    mean, error = mean_and_error(log_p, w)
    return {"log_density": mean, "error": error, **inside}


def predict(model: Any, pairs: Pairs, out: Path, *, level: float = 0.9) -> int:
    """Writes TARGET_mean, _mode, _low, _high and, of mixtures, ``answers``, the effective number of modes; returns the rows.

    Args:
        model: Fitted model with the names of its columns, as `vergence.mixtures.load` returns it.
        pairs: Contexts (N, C); targets are not read.
        out: ``.csv``, ``.parquet`` or ``.npz`` file to write.
        level: Probability of the interval from _low to _high, in (0, 1).
    """
    contexts = _contexts(model, pairs)
    job = {"job": "predict", "model": of_estimator(model), "source": of_array(contexts), "level": level}
    return _write(out, job, pairs, lambda c, t, start: answers(model, c, level))


def answers(model: Any, c: np.ndarray, level: float = 0.9) -> dict[str, np.ndarray]:
    """Returns mean, mode and interval of each target given contexts (B, C), by name; of mixtures the number of modes too."""
    low, high = np.moveaxis(model.intervals(c, level), -1, 0)
    found = _by_target(model, {"mean": model.predict(c), "mode": model.mode(c), "low": low, "high": high})
    density = model.conditional(c)
    if hasattr(density, "mixture_distribution"):
        found["answers"] = density.n_answers().cpu().numpy()
    return found


def _by_target(model: Any, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns values (B,) or (B, T) as columns TARGET_NAME."""
    each = {name: value.reshape(len(value), -1).T for name, value in values.items()}
    return {f"{target}_{name}": value[k] for k, target in enumerate(model._names()[1]) for name, value in each.items()}


def scenario(model: Any, given: Mapping[str, str], level: float = 0.9, *, notes: list[str], **how: Any) -> dict[str, float]:
    """Returns `answers` for one row whose columns have the values that are given as text; columns without one are gaps.

    ``notes`` and what else is given are as of `vergence.data.tables.read_features`.
    """
    import pyarrow as pa

    names = model._names()[0]
    columns, values = dict.fromkeys(map(column_of, names)), dict[str, Any](given)
    for name, text in given.items():
        require_choice("a column", name, names if name in names else columns)
        with contextlib.suppress(ValueError):
            values[name] = float(text)
    stated = [i for i, name in enumerate(names) if name in given or column_of(name) in given]
    row, context = pa.table({name: [value] for name, value in values.items()}), np.full((1, len(names)), np.nan)
    context[:, stated] = read_features(row, [names[i] for i in stated], "the question", notes=notes, **how)
    gaps = [name for name, value in zip(names, context[0], strict=True) if np.isnan(value)]
    if absent := [name for name in columns if not any(name in (column_of(names[i]), names[i]) for i in stated)]:
        notes.append(f"without a value, so taken for gaps: {listed(absent, SHOWN)}")
    inner = getattr(model, "model_", model)  # of a log scale
    usable = not gaps or inner.fits_gaps or hasattr(inner, "joint") or hasattr(inner, "fill_mean_")
    if not usable:
        needed = listed(list(dict.fromkeys(map(column_of, gaps))), SHOWN)
        raise ValueError(f"this model needs all context columns; also give {needed}")
    return {name: float(value[0]) for name, value in answers(model, context, level).items()}


def sample(model: Any, pairs: Pairs, out: Path, *, n: int = 10, seed: int = 0) -> int:
    """Writes n samples of each context's targets, with the row of the context; returns the rows written.

    Args:
        model: As of `predict`.
        pairs: Contexts (N, C); targets are not read.
        out: File to write, of n N rows.
        n: Samples per context, >= 1.
        seed: Seed of the samples.
    """
    contexts = _contexts(model, pairs)
    rng = np.random.default_rng(seed)
    seeds = [int(rng.integers(2**31 - 1)) for _ in range(0, len(contexts) or 1, ROWS)]

    def rows(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        samples = model.sample(c, n, random_state=seeds[start // ROWS]).reshape(len(c) * n, -1)
        targets = dict(zip(model._names()[1], samples.T, strict=True))
        which = {"row": np.repeat(np.arange(start, start + len(c)), n), "sample": np.tile(np.arange(n), len(c))}
        return {**apart(which, targets), **targets}

    job = {"job": "sample", "model": of_estimator(model), "source": of_array(contexts), "n": n, "seed": seed}
    return n * _write(out, job, pairs, rows, times=n)


def score_pairs(model: Any, pairs: Pairs, out: Path, *, fdr: float = 0.1) -> Decisions:
    """Writes how anomalous each target is given its context, and which are flagged at a false-discovery rate.

    Columns: ``pairs.ids``, ``log_density`` (nats), ``TARGET_pit`` of each target, ``surprise`` (nats, larger is more anomalous,
    see `Conditional.surprise`); and where the model has held-out rows ``p_value``, the share of these that are at least as
    surprising, ``q_value`` and ``flag``. Rows of the fit have no p-value, and do not count.

    Args:
        model: As of `predict`.
        pairs: Contexts (N, C) and targets (N, T).
        out: File to write.
        fdr: Largest share of false alarms among the flags, on average over tables, in (0, 1).
    """
    _contexts(model, pairs)
    if taken := [name for name in ("p_value", *Counts.names) if name in pairs.ids]:
        terminal.note(f"the input already has {', '.join(taken)}: {out.name} has the new ones alone")
        pairs = replace(pairs, ids={name: values for name, values in pairs.ids.items() if name not in taken})
    held_out, fitted = (getattr(model, name, np.empty(0)) for name in ("held_out_surprise_", "fitted_rows_"))

    def rows(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        surprise = model.surprise(c, t)
        pit = _by_target(model, {"pit": model.cdf(c, t)})
        found = {"log_density": model.score_samples(c, t), **pit, "surprise": surprise}
        p = np.where(np.isin(_digests(c, t), fitted), np.nan, ranked(held_out, surprise)) if len(held_out) else None
        return found if p is None else {**found, "p_value": p}

    source = f"{of_array(pairs.context)} {of_array(pairs.target)}"
    job = {"job": "score", "model": of_estimator(model), "source": source, "fdr": fdr}
    counts = Counts(len(held_out), fdr) if len(held_out) else None
    n = _write(out, job, pairs, rows, derived=counts)
    if counts is None:
        return Decisions({}, n, 0, 0, fdr, noun="row")
    return counts.decisions({}, noun="row", excluded=counts.missing, advice="; score new rows")


def _contexts(model: Any, pairs: Pairs) -> np.ndarray:
    """Returns contexts as wide as those that a model was fitted to; warns of those that are far away, once for all."""
    C, features = pairs.context.shape[1], counted(model.n_features_in_, "context feature")
    expect(model.n_features_in_ == C, f"{features}, as in fit", C, "give the same columns")
    model._warn_far(torch.from_numpy(np.array(pairs.context[: max(1, LOOKED // C)], dtype=np.float64)))
    return pairs.context


def _write(
    out: Path,
    job: dict[str, Any],
    pairs: Pairs,
    rows: Callable[[np.ndarray, np.ndarray, int], dict[str, np.ndarray]],
    *,
    times: int = 1,
    derived: Derived | None = None,
) -> int:
    """Writes the rows of all blocks, behind the columns that name them; goes on behind the parts that an earlier call left."""
    total = len(pairs.context)

    def named(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        with silenced():
            return apart(rows(c, t, start), pairs.ids)

    if not total:  # a row of zeros has the columns of a table without rows
        zeros = named(np.zeros((1, *pairs.context.shape[1:])), np.zeros((1, *pairs.target.shape[1:])), 0)
    bar = terminal.bar(job["job"], total=total, unit="rows")
    with open_parts(out, job, every=PART, derived=derived) as parts, bar as advance:
        advance(parts.done)
        if not total:
            parts.append({**pairs.ids, **{name: values[:0] for name, values in zeros.items()}}, 0)
        for start in range(parts.done, total, ROWS):
            block = slice(start, min(start + ROWS, total))
            ids = {name: np.repeat(values[block], times) for name, values in pairs.ids.items()}
            parts.append({**ids, **named(pairs.context[block], pairs.target[block], start)}, block.stop - start)
            advance(block.stop - start)
    return total
