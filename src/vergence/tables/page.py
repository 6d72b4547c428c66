"""The page of a fitted density: what the target would be, the effect of each column, intervals and their calibration."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from vergence.data.arrays import Pairs
from vergence.report.charts import Chart, Series, chart
from vergence.report.rendering import number, write

__all__: list[str] = []

LEVEL, PERCENT = 0.9, "90 %"  # probability of all intervals
TARGETS, COLUMNS, POINTS = 3, 12, 24  # targets and columns that are shown at most; points of an effect
ROWS, BINS, FEW = 300, 10, 8  # rows of intervals; bins of probabilities; values of a column that are scenarios
SECTIONS = {
    "scenarios": "What would it be, if?",
    "effects": "The effect of each column",
    "intervals": "Intervals and what was observed",
    "calibration": "Are the probabilities right?",
    "models": "The models that were compared",
}
Row = list[str]
Figure = dict[str, Any]


def write_fit(
    path: Path,
    model: Any,
    pairs: Pairs,
    held_out: np.ndarray,
    *,
    words: Sequence[str],
    facts: Mapping[str, str],
    models: Mapping[str, Sequence[Any]] | None = None,
) -> Path:
    """Writes the page in one step, and returns its path; it loads nothing from elsewhere.

    Args:
        path: File to write.
        model: The fitted model, with the names of its columns.
        pairs: Contexts (N, C) and targets (N, T) or (N,).
        held_out: Rows that the model was not fitted to; none where the intervals of its own rows are shown.
        words: Sentences about the fit.
        facts: Names and values that stand above.
        models: How each model did, by column.
    """
    typical = _typical(pairs)
    columns = _columns(pairs, typical)
    rows = held_out if len(held_out) else np.arange(len(pairs.context))
    return write(
        path,
        "density",
        {name: title for name, title in SECTIONS.items() if name != "models" or models},
        title=f"What {', '.join(pairs.columns[1])} can be",
        words=words,
        facts=facts,
        head=["if", *(f"{name}{end}" for name in pairs.columns[1][:TARGETS] for end in ("", ", low", ", high"))],
        scenarios=list(_scenarios(model, typical, columns)),
        effects=list(_effects(model, pairs, typical, columns)),
        intervals=_intervals(model, pairs, np.sort(np.random.default_rng(0).permutation(rows)[:ROWS])),
        new=len(held_out) > 0,
        calibration=_calibration(model, pairs.columns[1]),
        models=None if models is None else (list(models), _cells(models)),
        percent=PERCENT,
    )


def _cells(models: Mapping[str, Sequence[Any]]) -> list[Row]:
    rows = zip(*models.values(), strict=True)
    return [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]


def _groups(pairs: Pairs) -> dict[str, list[int]]:
    """Returns the features of each column by its name; those of a category are ``COLUMN=VALUE``."""
    groups: dict[str, list[int]] = {}
    for j, name in enumerate(pairs.columns[0]):
        groups.setdefault(name.partition("=")[0], []).append(j)
    return groups


def _typical(pairs: Pairs) -> np.ndarray:
    """Returns a context (C,) with the middle value of each number and the most frequent value of each category."""
    c = np.asarray(pairs.context, dtype=np.float64)
    row = np.asarray(np.nanquantile(c, 0.5, axis=0, method="nearest"))
    for members in _groups(pairs).values():
        if "=" in pairs.columns[0][members[0]]:
            row[members] = np.arange(len(members)) == np.nanmean(c[:, members], 0).argmax()
    return row


def _columns(pairs: Pairs, typical: np.ndarray) -> list[tuple[str, list[str], np.ndarray]]:
    """Returns name, texts of values, and contexts (V, C) of each column that is changed while the others stay typical."""
    found = []
    for name, members in _groups(pairs).items():
        x = np.asarray(pairs.context[:, members], dtype=np.float64)
        if "=" in pairs.columns[0][members[0]]:
            texts, values = [pairs.columns[0][j].partition("=")[2] for j in members], np.eye(len(members))
        elif len(members) == 1:
            low, high = np.nanquantile(x[:, 0], (0.05, 0.95))
            values = np.unique(x[~np.isnan(x[:, 0])], axis=0)
            values = values if len(values) <= POINTS // 2 else np.linspace(low, high, POINTS)[:, None]
            texts = [number(float(v)) for v in values[:, 0]]
        else:
            continue
        contexts = np.tile(typical, (len(values), 1))
        contexts[:, members] = values
        found.append((name, texts, contexts))
    return found


def _three(model: Any, contexts: np.ndarray) -> np.ndarray:
    """Returns median, low and high of each target, (B, T, 3)."""
    ends = np.asarray(model.intervals(contexts, LEVEL)).reshape(len(contexts), -1, 2)
    median = np.asarray(model.quantile(contexts, 0.5)).reshape(len(contexts), -1, 1)
    return np.concatenate([median, ends], 2)


def _scenarios(model: Any, typical: np.ndarray, columns: Sequence[tuple[str, list[str], np.ndarray]]) -> Iterator[Row]:
    """Yields a typical row, and what is expected if one column has another value; columns of large changes come first."""

    def row(name: str, values: np.ndarray) -> Row:
        return [name, *map(number, values[:TARGETS].ravel().tolist())]

    yield row("all columns are typical", _three(model, typical[None])[0])
    found = []
    for name, texts, contexts in columns:
        some = range(len(texts)) if len(texts) <= FEW else (0, len(texts) - 1)
        values = _three(model, contexts[list(some)])
        rows = [row(f"{name} is {texts[i]}", v) for i, v in zip(some, values, strict=True)]
        found.append((np.ptp(values[:, 0, 0]), rows))
    for _, rows in sorted(found, key=lambda pair: -pair[0])[:COLUMNS]:
        yield from rows


def _effects(
    model: Any, pairs: Pairs, typical: np.ndarray, columns: Sequence[tuple[str, list[str], np.ndarray]]
) -> Iterator[Figure]:
    """Yields the chart of each column of numbers: median and interval of each target over its values."""
    numbers = {name: j[0] for name, j in _groups(pairs).items() if pairs.columns[0][j[0]] == name}
    for k, target in enumerate(pairs.columns[1][:TARGETS]):
        shown = []
        for name, _, contexts in columns:
            if name in numbers and len(contexts) > 1:
                median, *ends = _three(model, contexts)[:, k].T
                x, pairs_of = contexts[:, numbers[name]].tolist(), list(zip(*ends, strict=True))
                words = f"{target} over {name}: from {number(float(median[0]))} to {number(float(median[-1]))}"
                figure = _chart([Series("median", x, median.tolist(), ends=pairs_of)], name, target, (360, 240))
                shown.append((np.ptp(median), {"name": f"{target} {name}", "words": words, "figure": figure}))
        yield from (figure for _, figure in sorted(shown, key=lambda pair: -pair[0])[:COLUMNS])


def _intervals(model: Any, pairs: Pairs, rows: np.ndarray) -> list[Figure]:
    """Returns the chart of each target: observed values over medians, with intervals; those outside have another color."""
    three = _three(model, pairs.context[rows])
    observed = np.asarray(pairs.target, dtype=np.float64).reshape(len(pairs.target), -1)[rows]
    found = []
    for k, target in enumerate(pairs.columns[1][:TARGETS]):
        y, (median, low, high) = observed[:, k], three[:, k].T
        inside = (low <= y) & (y <= high)
        series = []
        for name, some in (("inside its interval", inside), ("outside", ~inside & ~np.isnan(y))):
            ends = list(zip(low[some].tolist(), high[some].tolist(), strict=True))
            series.append(Series(name, median[some].tolist(), y[some].tolist(), line=False, ends=ends))
        share = f"{inside.sum()} of {(~np.isnan(y)).sum()} rows have a {target} inside its {PERCENT} interval"
        figure = _chart(series, f"median of {target}", f"{target}, observed", (760, 340), legend=True)
        found.append({"name": target, "words": share, "figure": figure})
    return found


def _calibration(model: Any, targets: Sequence[str]) -> list[Figure]:
    """Returns the histogram of each target's probability integral transforms, with the 95 % band of a right model."""
    pit = np.asarray(getattr(model, "held_out_pit_", np.empty((0, len(targets)))))
    found = []
    for k, target in enumerate(targets[:TARGETS]):
        u = pit[:, k][~np.isnan(pit[:, k])]
        if len(u):
            edges, n = np.linspace(0, 1, BINS + 1), len(u)
            shares = np.histogram(u, edges)[0] / n
            band = float(binom.ppf(0.025, n, 1 / BINS)) / n, float(binom.ppf(0.975, n, 1 / BINS)) / n
            right = Series("95 % of the bins of a right model", [0.0, 1.0], [1 / BINS] * 2, ends=[band] * 2)
            steps = Series(target, edges.repeat(2)[1:-1].tolist(), shares.repeat(2).tolist())
            outside = int(((shares < band[0]) | (shares > band[1])).sum())
            words = f"{target}: {outside} of {BINS} bins lie outside the band, {n:,} rows that no fit has seen"
            figure = _chart([right, steps], "predicted probability of a smaller value", "share of rows", (760, 280), legend=True)
            found.append({"name": f"pit {target}", "words": words, "figure": figure})
    return found


def _chart(series: Sequence[Series], x: str, y: str, size: tuple[int, int], legend: bool = False) -> Chart:
    return chart(series, x, y, size=size, legend=legend)
