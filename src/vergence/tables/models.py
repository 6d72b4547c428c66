"""Conditional densities of files: fit, predict, sample and score, for ``vergence density``."""

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vergence import mixtures
from vergence.data.arrays import Pairs
from vergence.data.splits import split_groups
from vergence.decide.conformal import ranked
from vergence.decide.decisions import Counts, Decisions
from vergence.mixtures.core import far_values_are_noted
from vergence.mixtures.selection import Selection, remarks, took_all_steps
from vergence.utils import terminal
from vergence.utils.checks import counted, did_you_mean, expect, require_within
from vergence.utils.digests import of_array, of_estimator
from vergence.utils.parts import Derived, open_parts

__all__ = ["fit_density", "predict", "sample", "score_pairs"]

LEVELS = (0.5, 0.9)  # probabilities of the intervals whose coverage is reported
ROWS = 1024  # rows that are computed at a time
PART = 64 * ROWS  # rows of a part, which is kept if the job is stopped
AUTO = "auto"  # the model that is chosen
FEW = 20  # held-out pairs below which no scores are reported
DISCRETE = 20  # different values of a target up to which it may be a class or a count


def named_model(name: str, settings: dict[str, Any]) -> Any:
    """Returns an unfitted model by its short or its file's name, with some settings."""
    kind = mixtures.get(name)
    known = list(inspect.signature(kind).parameters)
    for setting in settings:
        if setting not in known:
            hint = did_you_mean(setting, known) or f"there are {', '.join(known)}"
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
    ahead: dict[str, tuple[float, float]]  # of each baseline's mean log-density (nats a pair), with the standard error
    selection: Selection | None = None  # how the models of ``auto`` did
    notes: tuple[str, ...] = ()  # what is unusual about the table or the fit


@far_values_are_noted()
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
) -> Fitted:
    """Fits a model to a part of the pairs, evaluates it and two baselines on the others, and writes it.

    With ``auto`` `vergence.mixtures.choose` chooses the model on all pairs (groups, order, seconds), and fits it to all; else
    a share ``holdout`` in [0, 1) is held out at random for evaluation.
    """
    require_within("[0, 1)", holdout=holdout)
    writable = out.suffix == ".safetensors" and out.parent.is_dir() and not out.is_dir()
    expect(writable, "a file that ends in .safetensors, in an existing folder", str(out))
    if model == AUTO:
        expect(not set(settings) - {"device"}, "--set with --model NAME", "--set alone", "name the model that it is for")
        return _chosen(pairs, out, seed, groups, order, seconds)
    expect(groups is None and order is None, "groups or order with the model auto", model, "leave --model out")
    estimator = named_model(model, {"random_state": seed, **settings})
    order = np.random.default_rng(seed).permutation(len(pairs.context))
    test, train = _split(pairs, order, holdout)
    expect(len(train) >= 2, "at least 2 pairs to fit to", f"{len(train)} of {len(order)}", "give more, or lower holdout")
    start = time.perf_counter()
    estimator.fit(pairs.context[train], pairs.target[train])
    seconds = time.perf_counter() - start
    if len(test) >= FEW:
        held_out = pairs.context[test], pairs.target[test]
        estimator.held_out_pit_ = estimator.cdf(*held_out).reshape(len(test), -1)
        estimator.held_out_surprise_ = estimator.surprise(*held_out)
    _save(estimator, pairs, out)
    compared = _compared(estimator, pairs, train, test) if len(test) >= FEW else ({}, {})
    notes = remarks(pairs.context, pairs.target, pairs.columns)
    if took_all_steps(estimator):
        more = f"--set steps={5 * estimator.steps} may be better"
        notes.append(f"the network took {estimator.steps_:,} of {estimator.steps:,} steps: {more}")
    return Fitted(type(estimator).__name__, len(train), len(test), seconds, _few_values(pairs), *compared, notes=tuple(notes))


def _chosen(pairs: Pairs, out: Path, seed: int, groups: Any, order: Any, seconds: float | None) -> Fitted:
    """Chooses a model, fits it to all pairs, and writes it."""
    start = time.perf_counter()
    found = mixtures.choose(pairs.context, pairs.target, groups=groups, order=order, seconds=seconds, random_state=seed)
    _save(found.model, pairs, out)
    took, n = time.perf_counter() - start, len(pairs.context)
    return Fitted(type(found.model).__name__, n, 0, took, _few_values(pairs), {}, {}, found, found.notes)


def _save(model: Any, pairs: Pairs, out: Path) -> None:
    """Writes a model with the names of its columns."""
    model.columns_, model.ids_ = list(pairs.columns), list(pairs.ids)
    model.save(out)


def _split(pairs: Pairs, order: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns about a share of the pairs, the first ones of an order, and the others; equal pairs are on one side."""
    both = np.column_stack([np.asarray(side).reshape(len(order), -1) for side in (pairs.context, pairs.target)])[order]
    held_out = split_groups((row.tobytes() for row in both), share, seed=None).numpy()
    return order[held_out], order[~held_out]


def _few_values(pairs: Pairs) -> list[str]:
    """Returns the target columns of so few different values that they are classes or counts rather than measurements."""
    columns = np.asarray(pairs.target).reshape(len(pairs.target), -1).T
    return [
        name
        for name, values in zip(pairs.columns[1], columns, strict=True)
        if 1 < len(np.unique(values[~np.isnan(values)])) <= min(DISCRETE, len(values) // 4)
    ]


def _compared(
    model: Any, pairs: Pairs, train: np.ndarray, test: np.ndarray
) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
    """Returns the scores of a model and of two Gaussian baselines on the held-out pairs, and by how much the model is ahead."""
    c, t, zeros = pairs.context[test], pairs.target[test], np.zeros((len(pairs.context), 1))
    linear = mixtures.get("gaussian")().fit(pairs.context[train], pairs.target[train])
    alone = mixtures.get("gaussian")().fit(zeros[train], pairs.target[train])
    judged = {
        "model": (model, c),
        "one Gaussian, linear (baseline)": (linear, c),
        "targets alone, Gaussian (baseline)": (alone, zeros[test]),
    }
    log_p = {name: density.score_samples(contexts, t) for name, (density, contexts) in judged.items()}
    scores = {name: _scores(log_p[name], density.cdf(contexts, t)) for name, (density, contexts) in judged.items()}
    return scores, {name: _mean_and_error(log_p["model"] - log_p[name]) for name in judged if name != "model"}


def _scores(log_p: np.ndarray, pit: np.ndarray) -> dict[str, float]:
    inside = {f"inside {level:.0%}": float((abs(pit - 0.5) <= level / 2).mean()) for level in LEVELS}
    mean, error = _mean_and_error(log_p)
    return {"log_density": mean, "error": error, **inside}


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def predict(model: Any, pairs: Pairs, out: Path, *, level: float = 0.9) -> int:
    """Writes mean, mode, interval and effective number of modes of the target for each context; returns the rows written."""
    contexts = _require_width(model, pairs)

    def rows(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        low, high = np.moveaxis(model.intervals(c, level), -1, 0)
        answers = {"mean": model.predict(c), "mode": model.mode(c), "low": low, "high": high}
        density = model.conditional(c)
        if hasattr(density, "mixture_distribution"):
            answers["answers"] = density.n_answers().cpu().numpy()
        return answers

    job = {"job": "predict", "model": of_estimator(model), "source": of_array(contexts), "level": level}
    return _write(out, job, pairs, rows)


def sample(model: Any, pairs: Pairs, out: Path, *, n: int = 10, seed: int = 0) -> int:
    """Writes n samples of each context's targets, with the row of the context; returns the rows written."""
    contexts = _require_width(model, pairs)
    rng = np.random.default_rng(seed)
    seeds = [int(rng.integers(2**31 - 1)) for _ in range(0, len(contexts) or 1, ROWS)]

    def rows(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        samples = model.sample(c, n, random_state=seeds[start // ROWS])
        which = np.repeat(np.arange(start, start + len(c)), n)
        return {"row": which, "target": samples.reshape(len(c) * n, *samples.shape[2:])}

    job = {"job": "sample", "model": of_estimator(model), "source": of_array(contexts), "n": n, "seed": seed}
    return n * _write(out, job, pairs, rows, times=n)


def score_pairs(model: Any, pairs: Pairs, out: Path, *, fdr: float = 0.1) -> Decisions:
    """Writes how unusual each target is given its context, and which are reported at a false-discovery rate.

    Columns: ``log_density`` (nats), ``pit``, ``surprise`` (nats, larger is more unusual, see `Conditional.surprise`); and where
    the model has held-out rows ``p_value``, the share of these that are at least as surprising, ``q_value`` and ``flag``.
    """
    _require_width(model, pairs)
    held_out = getattr(model, "held_out_surprise_", np.empty(0))

    def rows(c: np.ndarray, t: np.ndarray, start: int) -> dict[str, np.ndarray]:
        surprise = model.surprise(c, t)
        found = {"log_density": model.score_samples(c, t), "pit": model.cdf(c, t), "surprise": surprise}
        return {**found, "p_value": ranked(held_out, surprise)} if len(held_out) else found

    job = {
        "job": "score",
        "model": of_estimator(model),
        "source": f"{of_array(pairs.context)} {of_array(pairs.target)}",
        "fdr": fdr,
    }
    counts = Counts(len(held_out), fdr) if len(held_out) else None
    n = _write(out, job, pairs, rows, derived=counts)
    return Decisions({}, n, 0, 0, fdr, noun="row") if counts is None else counts.decisions({}, noun="row")


def _require_width(model: Any, pairs: Pairs) -> np.ndarray:
    """Returns contexts; raises a ValueError unless they are as wide as those that a model was fitted to."""
    C, features = pairs.context.shape[1], counted(model.n_features_in_, "context feature")
    expect(model.n_features_in_ == C, f"{features}, as in fit", C, "give the same columns")
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
    if not total:  # a row of zeros has the columns of a table without rows
        zeros = rows(np.zeros((1, *pairs.context.shape[1:])), np.zeros((1, *pairs.target.shape[1:])), 0)
    with (
        open_parts(out, job, every=PART, derived=derived) as parts,
        terminal.bar(job["job"], total=total, unit="rows") as advance,
    ):
        advance(parts.done)
        if not total:
            parts.append({**pairs.ids, **{name: values[:0] for name, values in zeros.items()}}, 0)
        for start in range(parts.done, total, ROWS):
            block = slice(start, min(start + ROWS, total))
            ids = {name: np.repeat(values[block], times) for name, values in pairs.ids.items()}
            parts.append({**ids, **rows(pairs.context[block], pairs.target[block], start)}, block.stop - start)
            advance(block.stop - start)
    return total
