"""The page of a fitted density: what the target would be, the effect of each column, intervals and their calibration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from vergence.data.arrays import Pairs
from vergence.data.tables import column_of
from vergence.report.charts import Series, chart
from vergence.report.rendering import number, write

__all__: list[str] = []

LEVEL, PERCENT = 0.9, "90 %"  # probability of all intervals
TARGETS, COLUMNS, POINTS = 3, 12, 24  # targets and columns that are shown at most; points of an effect
ROWS, BINS, FEW = 300, 10, 8  # rows of intervals; bins of probabilities; values of a column that are all scenarios
SECTIONS = {
    "scenarios": "What would it be, if?",
    "effects": "The effect of each column",
    "intervals": "Intervals and what was observed",
    "calibration": "Are the probabilities right?",
    "models": "The models that were compared",
}
Changed = tuple[str, list[str], np.ndarray, np.ndarray]  # column, texts of its values, contexts (V, C), answers (V, T, 3)
Figure = dict[str, Any]


def write_fit(path: Path, model: Any, pairs: Pairs, held_out: np.ndarray, *, models: Any = None, **above: Any) -> Path:
    """Writes the page in one step, and returns its path; it loads no other file.

    Args:
        path: File to write.
        model: The fitted model, with the names of its columns.
        pairs: Contexts (N, C) and targets (N, T) or (N,).
        held_out: Rows that the model was not fitted to; none where the intervals of its own rows are shown.
        models: How each model did, by column; or None.
        above: ``words``, sentences about the fit, and ``facts``, names and values, that stand above.
    """
    targets, middle = pairs.columns[1][:TARGETS], _middle(pairs)
    changed = _changed(model, pairs, middle)
    ends = {name: range(len(texts)) if len(texts) <= FEW else (0, len(texts) - 1) for name, texts, *_ in changed}
    other = [_row(f"{name} is {texts[i]}", found[i]) for name, texts, _, found in changed for i in ends[name]]
    rows = np.random.default_rng(0).permutation(held_out if len(held_out) else len(pairs.context))[:ROWS]
    answers = _answers(model, pairs.context[rows])
    observed = np.asarray(pairs.target, dtype=np.float64).reshape(len(pairs.target), -1)[rows]
    pit = np.asarray(getattr(model, "held_out_pit_", np.empty((0, len(pairs.columns[1])))))
    each = zip(*({} if models is None else models).values(), strict=True)
    cells = [[c if isinstance(c, str) else number(c) for c in row] for row in each]
    return write(
        path,
        "density",
        {name: title for name, title in SECTIONS.items() if name != "models" or cells},
        title=f"What {', '.join(pairs.columns[1])} can be",
        head=["if", *(f"{name}{end}" for name in targets for end in ("", ", low", ", high"))],
        scenarios=[_row("all columns have middle values", _answers(model, middle[None])[0]), *other],
        effects=[figure for k, target in enumerate(targets) for figure in _effects(target, k, pairs, changed)],
        intervals=[_intervals(target, observed[:, k], answers[:, k]) for k, target in enumerate(targets)],
        new=len(held_out) > 0,
        calibration=[_calibration(target, pit[:, k]) for k, target in enumerate(targets) if len(pit)],
        models=(list(models or ()), cells),
        percent=PERCENT,
        **above,
    )


def _groups(pairs: Pairs) -> dict[str, list[int]]:
    """Returns the features of each column by its name: COLUMN=VALUE of a category, COLUMN:PART of a date, COLUMN[PLACE]."""
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(pairs.columns[0]):
        groups.setdefault(column_of(name), []).append(j)
    return groups


def _middle(pairs: Pairs) -> np.ndarray:
    """Returns a context (C,) with the middle value of each number and the most frequent value of each category."""
    row = np.asarray(np.nanquantile(np.asarray(pairs.context, dtype=np.float64), 0.5, axis=0, method="nearest"))
    for j in _groups(pairs).values():
        if "=" in pairs.columns[0][j[0]]:
            row[j] = np.arange(len(j)) == np.nanmean(pairs.context[:, j], 0).argmax()
    return row


def _changed(model: Any, pairs: Pairs, middle: np.ndarray) -> list[Changed]:
    """Returns the columns that are changed while the others keep middle values, those of large changes of the answer first."""
    found = []
    for name, j in _groups(pairs).items():
        x = np.asarray(pairs.context[:, j[0]], dtype=np.float64)
        if "=" in pairs.columns[0][j[0]]:
            texts, values = [pairs.columns[0][i].partition("=")[2] for i in j], np.eye(len(j))
        elif len(j) == 1:
            different = np.unique(x[~np.isnan(x)])
            low, high = np.nanquantile(x, (0.05, 0.95))
            grid = np.linspace(low, high, POINTS)
            values = (different if len(different) <= FEW else grid)[:, None]
            texts = [number(float(v)) for v in values[:, 0]]
        else:  # several numbers that belong together, of which no single one can be changed
            continue
        contexts = np.tile(middle, (len(values), 1))
        contexts[:, j] = values
        found.append((name, texts, contexts, _answers(model, contexts)))
    return sorted(found, key=lambda column: -float(np.ptp(column[3][:, 0, 0])))[:COLUMNS]


def _answers(model: Any, contexts: np.ndarray) -> np.ndarray:
    """Returns median, low and high of each target, (B, T, 3)."""
    ends = model.intervals(contexts, LEVEL).reshape(len(contexts), -1, 2)
    return np.concatenate([model.quantile(contexts, 0.5).reshape(len(contexts), -1, 1), ends], 2)


def _row(name: str, answer: np.ndarray) -> list[str]:
    return [name, *map(number, answer[:TARGETS].ravel().tolist())]


def _effects(target: str, k: int, pairs: Pairs, changed: Sequence[Changed]) -> list[Figure]:
    """Returns the chart of each column of numbers: median and interval of a target over its values."""
    found = []
    for name, _, contexts, answers in changed:
        if name in pairs.columns[0] and len(contexts) > 1:
            median, ends = answers[:, k, 0].tolist(), [(low, high) for _, low, high in answers[:, k].tolist()]
            words = f"{target} over {name}: from {number(median[0])} to {number(median[-1])}"
            over = Series("median", contexts[:, pairs.columns[0].index(name)].tolist(), median, ends=ends)
            figure = chart([over], name, target, size=(360, 240), legend=False)
            found.append({"name": f"{target} {name}", "words": words, "figure": figure})
    return found


def _intervals(target: str, y: np.ndarray, answers: np.ndarray) -> Figure:
    """Returns the chart of observed values over medians, with intervals; rows outside have another color."""
    median, low, high = answers.T
    inside, series = (low <= y) & (y <= high), []
    for name, some in (("inside its interval", inside), ("outside", ~inside & ~np.isnan(y))):
        ends = list(zip(low[some].tolist(), high[some].tolist(), strict=True))
        series.append(Series(name, median[some].tolist(), y[some].tolist(), line=False, ends=ends))
    words = f"{inside.sum()} of {(~np.isnan(y)).sum()} rows have a {target} inside its {PERCENT} interval"
    return {"name": target, "words": words, "figure": chart(series, f"median of {target}", f"{target}, observed")}


def _calibration(target: str, pit: np.ndarray) -> Figure:
    """Returns the histogram of probability integral transforms (N,), with the 95 % band of the bins of a right model."""
    u, edges = pit[~np.isnan(pit)], np.linspace(0, 1, BINS + 1)
    shares = np.histogram(u, edges)[0] / len(u)
    low, high = (float(binom.ppf(q, len(u), 1 / BINS)) / len(u) for q in (0.025, 0.975))
    right = Series("95 % of the bins of a right model", [0.0, 1.0], [1 / BINS] * 2, ends=[(low, high)] * 2)
    steps = Series(target, edges.repeat(2)[1:-1].tolist(), shares.repeat(2).tolist())
    outside = int(((shares < low) | (shares > high)).sum())
    words = f"{target}: {outside} of {BINS} bins lie outside the band, {len(u):,} rows that no fit has seen"
    figure = chart([right, steps], "predicted probability of a smaller value", "share of rows", size=(760, 280))
    return {"name": f"pit {target}", "words": words, "figure": figure}
