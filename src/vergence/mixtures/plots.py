"""Images of conditional densities with matplotlib: a fan over one context column, ridges for several contexts."""

from typing import Any

import numpy as np

from vergence.data.tables import as_table
from vergence.mixtures.core import Conditional
from vergence.utils.checks import expect, require_count

__all__ = ["plot"]

BANDS = (0.5, 0.8, 0.95)  # probabilities of the bands of a fan
MOST_RIDGES = 30
POINTS = 400


def plot(model: Conditional, context: Any, target: Any = None, *, feature: int = 0, ax: Any = None) -> Any:
    """Draws p(target | context) and returns the axes.

    With one context column it is a fan: the median and central bands of 50, 80 and 95 % over the contexts. With several columns
    it is a ridge for each context: the density of one target feature.

    Args:
        model: A fitted conditional model.
        context: (B, C), an array or table; at most 30 rows where C is above 1.
        target: (B,) or (B, T), drawn as points.
        feature: Which target feature is drawn.
        ax: Axes; by default new ones.

    Example:
        >>> from vergence.mixtures import ConditionalGaussian
        >>> x = np.random.default_rng(0).normal(size=(50, 1))
        >>> axes = plot(ConditionalGaussian().fit(x, x[:, 0]), np.linspace(-2, 2, 9)[:, None])  # doctest: +SKIP
    """
    import matplotlib.pyplot as plt

    require_count(0, int(model.n_targets_) - 1, feature=feature)
    if ax is None:
        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1]
    points = None if target is None else np.asarray(target, dtype=np.float64).reshape(len(context), -1)[:, feature]
    names = model._names()
    if int(model.n_features_in_) == 1:
        _fan(model, context, points, feature, ax)
        ax.set(xlabel=names[0][0], ylabel=names[1][feature])
    else:
        expect(len(context) <= MOST_RIDGES, f"at most {MOST_RIDGES} contexts of several columns", len(context), "choose some")
        _ridges(model, context, points, feature, ax)
        ax.set(xlabel=names[1][feature], ylabel="row")
    return ax


def _fan(model: Conditional, context: Any, points: np.ndarray | None, feature: int, ax: Any) -> None:
    table = as_table(context)
    x = np.asarray(context if table is None else table.column(0).to_numpy(), dtype=np.float64).reshape(-1)
    order, ordered = x.argsort(), context
    for level in sorted(BANDS, reverse=True):
        low, high = np.moveaxis(np.asarray(model.intervals(ordered, level)).reshape(len(x), -1, 2)[:, feature], -1, 0)
        ax.fill_between(x[order], low[order], high[order], color="C0", alpha=0.2, lw=0, label=f"{level:.0%}")
    median = np.asarray(model.quantile(ordered, 0.5)).reshape(len(x), -1)[:, feature]
    ax.plot(x[order], median[order], color="C0", label="median")
    if points is not None:
        ax.plot(x, points, ".", color="black", ms=3)
    ax.legend()


def _ridges(model: Conditional, context: Any, points: np.ndarray | None, feature: int, ax: Any) -> None:
    import torch

    p: Any = model.conditional(context).marginal(slice(feature, feature + 1))
    low, high = (np.asarray(p.marginal_quantile(q))[:, 0] for q in (0.001, 0.999))
    grid = np.linspace(low.min(), high.max(), POINTS)
    with torch.no_grad():
        at = (torch.full((len(low), 1), float(y), dtype=torch.float64) for y in grid)
        height = torch.stack([p.log_prob(one) for one in at], 1).exp().numpy()
    height = 0.9 * height / height.max(1, keepdims=True)
    for i, ridge in enumerate(height):
        ax.fill_between(grid, i, i + ridge, color="C0", alpha=0.5, lw=0)
        ax.plot(grid, i + ridge, color="C0", lw=1)
        if points is not None:
            ax.plot([points[i]] * 2, [i, i + 0.5], color="black", lw=1.5)
    ax.set_yticks(range(len(height)))
