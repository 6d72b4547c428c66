"""When the new items are not of the calibration items' source: weighted selection, and tests that notice it.

Shapes: n calibration items, m items that are judged, D features.
"""

import functools
import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.detection.parts.kinds import (
    Seed,
    Values,
    as_values,
    generator,
    like,
    numeric,
    require_matching,
    require_p_values,
    uniforms,
)
from vergence.detection.parts.urn import counts_of, null_counts, rank_grid
from vergence.utils.checks import EXACT, require_at_least, require_choice, require_count, require_within

__all__ = ["Drift", "drift", "serial", "shift_weights", "training_gap", "weighted_p_values", "weighted_select"]

BLOCK = 1 << 22
SAMPLES = 1999
ROUNDING = 1e-12


@dataclass(frozen=True)
class Drift:
    """The outcome of a test.

    Attributes:
        statistic: What was measured.
        p_value: Probability of such a value, or a more extreme one, if nothing is wrong.
        sentence: What it means.
    """

    statistic: float
    p_value: float
    sentence: str

    def __str__(self) -> str:
        """Returns the sentence."""
        return self.sentence


def weighted_p_values(
    calibration: Values,
    scores: Values,
    calibration_weights: Values,
    weights: Values,
    *,
    ties: Literal["conservative", "random"] = "conservative",
    random_state: Seed = None,
) -> Any:
    r"""Returns conformal p-values for items whose inputs have another distribution than the calibration items'.

        p_j = (w_j + \sum_i w_i 1{s_i >= s_j}) / (w_j + \sum_i w_i),

    where w is the ratio of the densities of the inputs, new to calibration, up to a factor (Tibshirani, Barber, Candes, Ramdas,
    Conformal prediction under covariate shift, 2019). P(p_j <= a) <= a for a typical item if what is typical given the input
    is the same on both sides. Unlike those of `p_values` they are not positively dependent: select with `weighted_select`.

    Args:
        calibration: Scores (n,).
        scores: Scores (m,).
        calibration_weights: (n,), positive.
        weights: (m,), positive, in the same unit.
        ties: ``conservative`` or ``random``, as in `p_values`.
        random_state: Seed of ``ties="random"``.

    Warns:
        UserWarning: The weights leave few effective calibration items, (sum w)^2 / sum w^2.

    Example:
        >>> weighted_p_values([1.0, 2.0, 3.0], [2.5], [1.0, 1.0, 2.0], [1.0])
        array([0.6])
    """
    require_choice("ties", ties, ("conservative", "random"))
    s, own = _weighted("scores", scores, weights)
    s_cal, w = (x.to(s.device) for x in _weighted("calibration", calibration, calibration_weights))
    _warn_few(w)
    above, equal = _mass(s_cal, w, s)
    u = uniforms(len(s), random_state, s) if ties == "random" else torch.zeros_like(s)
    return like(scores, ((above + (1 - u) * (equal + own)) / (w.sum() + own)).clamp(max=1.0))  # rounding


def _weighted(name: str, scores: Values, weights: Values) -> tuple[Tensor, Tensor]:
    s, w = as_values(name, scores), as_values(f"weights of {name}", weights)
    require_matching("weights", w, name, len(s))
    if not bool(((w > 0) & w.isfinite()).all()):
        raise ValueError(f"weights of {name}: expected finite numbers above 0, found {float(w.min()):g} to {float(w.max()):g}")
    return s, w.to(s.device)


def _warn_few(w: Tensor) -> None:
    effective = float(w.sum().square() / w.square().sum())
    if effective < min(100, 0.5 * len(w)):
        warnings.warn(
            f"the weights leave {effective:.0f} effective of {len(w)} calibration items: the new items are too different for "
            "much to be said; calibrate on items of their source",
            stacklevel=3,
        )


def _mass(calibration: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the weight of the calibration items above each score, and of those equal to it."""
    ordered, index = calibration.sort()
    total = torch.cat([w.new_zeros(1), w[index].cumsum(0)])
    below, up_to = (torch.searchsorted(ordered, s.contiguous(), right=right) for right in (False, True))
    return total[-1] - total[up_to], total[up_to] - total[below]


def weighted_select(
    calibration: Values,
    scores: Values,
    calibration_weights: Values,
    weights: Values,
    fdr: float = 0.1,
    *,
    pruning: Literal["deterministic", "homogeneous", "heterogeneous"] = "deterministic",
    random_state: Seed = None,
) -> Any:
    r"""Returns which items to report at a false-discovery rate under a shift of the inputs: weighted conformal selection.

    For each item j, with the auxiliary p-values p_l^(j) = (\sum_i w_i 1{s_i >= s_l} + w_j 1{s_j >= s_l}) / (\sum_i w_i + w_j),
    and 0 for j, R_j is the number that Benjamini-Hochberg reports. Items with p_j <= a R_j / m pass; of these, the ones with
    xi_j R_j <= r* are reported, for the largest r* with at least r* such items. xi is 1, one uniform number, or one for each
    item (Jin, Candes, Model-free selective inference under covariate shift via weighted conformal p-values, arXiv:2307.09291).

    Args:
        calibration: Scores (n,).
        scores: Scores (m,).
        calibration_weights: (n,), positive.
        weights: (m,), positive, in the same unit.
        fdr: False-discovery rate a, in (0, 1).
        pruning: The choice of xi; random ones report somewhat more.
        random_state: Seed of a random pruning.

    Returns:
        (m,) of bool, of the kind of ``scores``.

    Example:
        >>> weighted_select(np.arange(50.0), [99.0, 98.0, 10.0], np.ones(50), np.ones(3), fdr=0.1)
        array([ True,  True, False])
    """
    require_choice("pruning", pruning, ("deterministic", "homogeneous", "heterogeneous"))
    require_within("(0, 1)", fdr=fdr)
    s, own = _weighted("scores", scores, weights)
    s_cal, w = (x.to(s.device) for x in _weighted("calibration", calibration, calibration_weights))
    _warn_few(w)
    above, equal = _mass(s_cal, w, s)
    mass, total, m = above + equal, w.sum(), len(s)
    p = (mass + own) / (total + own)
    candidates = (p <= fdr * (1 + ROUNDING)).nonzero().flatten()
    sizes = _auxiliary_sizes(s, mass, own, total, candidates, fdr)
    passed = p[candidates] <= fdr * sizes / m * (1 + ROUNDING)
    candidates, sizes = candidates[passed], sizes[passed]
    draws = {"deterministic": 0, "homogeneous": 1, "heterogeneous": len(sizes)}[pruning]
    size = sizes * (uniforms(draws, random_state, s) if draws else 1.0)
    ordered = size.sort().values
    counts = torch.arange(1, len(size) + 1, device=s.device)
    enough = (ordered <= counts).nonzero().flatten()
    mask = torch.zeros(m, dtype=torch.bool, device=s.device)
    if len(enough):
        mask[candidates[size <= counts[enough[-1]]]] = True
    return like(scores, mask)


def _auxiliary_sizes(s: Tensor, mass: Tensor, own: Tensor, total: Tensor, candidates: Tensor, fdr: float) -> Tensor:
    """Returns R_j of the candidates, (C,). By decreasing score the auxiliary p-values of the other items increase."""
    order = s.argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(s), device=s.device)
    place = torch.arange(len(s), device=s.device)
    sizes = [
        _sizes(s[order], mass[order], total, s[j], own[j], rank[j], place, fdr) for j in candidates.split(max(1, BLOCK // len(s)))
    ]
    return torch.cat(sizes) if sizes else s.new_zeros(0)


def _sizes(s: Tensor, mass: Tensor, total: Tensor, s_j: Tensor, w_j: Tensor, rank: Tensor, place: Tensor, fdr: float) -> Tensor:
    auxiliary = (mass + w_j[:, None] * (s_j[:, None] >= s)) / (total + w_j)[:, None]
    position = place + 1 + (place < rank[:, None])  # j comes first, with 0
    reported = (auxiliary <= fdr * position / len(s) * (1 + ROUNDING)) & (place != rank[:, None])
    return torch.where(reported, position, 1).amax(1).double()


def shift_weights(
    calibration: Any, features: Any, *, folds: int = 5, bound: float = 50.0, random_state: int = 0
) -> tuple[Any, Any]:
    """Returns estimated ratios of densities, new to calibration, of calibration and new items, for `weighted_p_values`.

    Cross-fitted logistic regression on standardized features tells the two apart; its odds are the ratio. The guarantees then
    hold as far as the ratio is right. Use features in which the shift is expected and oddities are not visible (the camera,
    the hour): what sets oddities apart must not be weighted away.

    Args:
        calibration: Features (n, D).
        features: Features (m, D).
        folds: Folds, >= 2; each item's ratio comes from a fit without it.
        bound: Ratios are clipped to [1 / bound, bound].
        random_state: Seed of the folds.

    Returns:
        (n,) and (m,), arrays.

    Example:
        >>> r = np.random.default_rng(0)
        >>> old, new = shift_weights(r.normal(size=(500, 1)), r.normal(size=(500, 1)) + 1)
        >>> bool(old.mean() < new.mean())
        True
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    require_count(2, folds=folds)
    require_count(0, 2**32 - 1, random_state=random_state)
    require_at_least(1, bound=bound)
    a, b = (numeric(*given).double().cpu().numpy() for given in (("calibration", calibration), ("features", features)))
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < folds:
        raise ValueError(f"expected features (n, D) and (m, D), n and m at least {folds}, found {a.shape} and {b.shape}")
    x, y = np.concatenate([a, b]), np.repeat([0, 1], (len(a), len(b)))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    split = StratifiedKFold(folds, shuffle=True, random_state=random_state)
    log_odds = cross_val_predict(model, x, y, cv=split, method="decision_function")
    ratio = np.clip(np.exp(np.clip(log_odds, -700, 700)) * len(a) / len(b), 1 / bound, bound)
    return ratio[: len(a)], ratio[len(a) :]


def drift(
    p_values: Values,
    n_calibration: int,
    *,
    statistic: Literal["fisher", "ks", "ks_greater"] = "fisher",
    random_state: Seed = 0,
) -> Drift:
    r"""Returns whether a batch as a whole is unlike the calibration items, though perhaps no single item is unusual.

    ``fisher`` is the mean of -log p, large if many items are strange; ``ks`` is the largest difference between the p-values'
    distribution function and the uniform one, which also notices a batch that is too typical or too alike; ``ks_greater`` is the
    largest excess of the former alone, large if many items are strange. All are computed at the ranks of a grid and compared with
    samples of their law for n calibration items and m typical ones, whose p-values are not independent: the usual tables reject
    far too often where m is not much smaller than n.

    Args:
        p_values: (m,) of `p_values`; for ``ks`` with ``ties="random"`` if scores have ties, which the others need not.
        n_calibration: Calibration items n.
        statistic: ``fisher``, ``ks`` or ``ks_greater``.
        random_state: Seed of the samples.

    Example:
        >>> r = np.random.default_rng(0)
        >>> print(drift(1 - 0.8 * r.random(200) ** 0.5, 1000, statistic="ks"))
        200 items as a whole differ from the calibration items (p = 0.0005): what is typical may have changed
    """
    require_choice("statistic", statistic, ("fisher", "ks", "ks_greater"))
    require_count(1, EXACT, n_calibration=n_calibration)
    p = require_p_values(p_values).cpu().numpy()
    return _drift(counts_of(p, n_calibration, rank_grid(n_calibration)), n_calibration, len(p), statistic, random_state)


def drift_of_counts(counts: npt.NDArray[np.int64], *, statistic: str = "fisher", random_state: Seed = 0) -> Drift:
    """Returns `drift` of p-values k / (n + 1), of which ``counts`` (n + 2,) has the number for each k: any number of items."""
    n = len(counts) - 2
    return _drift(np.cumsum(counts)[rank_grid(n)], n, int(counts.sum()), statistic, random_state)


def _drift(counts: npt.NDArray[np.int64], n: int, m: int, statistic: str, random_state: Seed) -> Drift:
    """Returns the test of the numbers of p-values up to each rank of the grid, (G,), of m items."""
    null = _null if isinstance(random_state, int) else _null.__wrapped__
    found = float(_statistic(counts[None], n, m, rank_grid(n), statistic)[0])
    p_value = (1 + float((null(n, m, statistic, random_state) >= found * (1 - ROUNDING)).sum())) / (SAMPLES + 1)
    return Drift(found, p_value, _sentence(m, p_value))


@functools.lru_cache(maxsize=32)
def _null(n: int, m: int, statistic: str, random_state: Seed) -> npt.NDArray[np.float64]:
    """Returns samples of the statistic for typical items."""
    ranks = rank_grid(n)
    return _statistic(null_counts(n, m, ranks, SAMPLES, generator(random_state)), n, m, ranks, statistic)


def _statistic(
    counts: npt.NDArray[np.int64], n: int, m: int, ranks: npt.NDArray[np.int64], statistic: str
) -> npt.NDArray[np.float64]:
    """Returns the statistic of each row of counts at the ranks, (S, G)."""
    if statistic.startswith("ks"):
        excess = counts / m - ranks / (n + 1)
        return np.asarray((np.abs(excess) if statistic == "ks" else np.maximum(excess, 0.0)).max(1))
    cells = np.diff(counts, axis=1, prepend=0, append=m)
    return np.asarray(cells @ -np.log(np.append(ranks, n + 1) / (n + 1)) / m)


def _sentence(m: int, p_value: float) -> str:
    if p_value <= 0.05:
        return f"{m:,} items as a whole differ from the calibration items (p = {p_value:.2g}): what is typical may have changed"
    return f"{m:,} items as a whole are like the calibration items (p = {p_value:.2g})"


def serial(scores: Values) -> Drift:
    """Returns whether scores depend on the order of the items, as those of files from a time series do.

    Two statistics of the ranks: their correlation with the position, and with the next rank; both are about normal without
    dependence (Bartels, The rank version of von Neumann's ratio test for randomness, 1982), and the smaller p-value counts twice.

    Args:
        scores: (N,), N >= 8, in the items' order.

    Example:
        >>> print(serial(np.random.default_rng(0).normal(size=200) + np.linspace(0, 1, 200)))
        scores depend on the order of the 200 items (p = 0.0017): take calibration items at random from the same time as the
        new ones, or from each stretch of it
    """
    from scipy.stats import norm, rankdata

    s = as_values("scores", scores, least=8).cpu().numpy()
    n = len(s)
    rank = rankdata(s) - (n + 1) / 2
    scale = float(rank @ rank)
    if scale == 0:
        raise ValueError(f"expected scores that differ, found one value in all {n} items")
    position = np.arange(n) - (n - 1) / 2
    trend = float(rank @ position) / math.sqrt(scale * float(position @ position)) * math.sqrt(n - 1)
    neighbor = (float(rank[1:] @ rank[:-1]) / scale + 1 / n) * math.sqrt(n)
    statistic = max(abs(trend), abs(neighbor))
    p_value = min(1.0, 4 * float(norm.sf(statistic)))
    if p_value > 0.01:
        return Drift(statistic, p_value, f"scores do not visibly depend on the order of the {n:,} items (p = {p_value:.2g})")
    return Drift(
        statistic,
        p_value,
        f"scores depend on the order of the {n:,} items (p = {p_value:.2g}): take calibration items at random from the same "
        "time as the new ones, or from each stretch of it",
    )


def training_gap(training: Values, held_out: Values) -> Drift:
    """Returns whether items that the fits have seen score as more typical than held-out ones, so that they cannot calibrate.

    The statistic is the probability that a held-out item scores as stranger than a training item (AUROC), 1/2 without a gap;
    the p-value is that of the one-sided rank test of Mann and Whitney.

    Args:
        training: Scores of training items.
        held_out: Scores of items of the same source that no fit has seen.

    Example:
        >>> print(training_gap(range(100), range(20, 120)))
        training items score as more typical than held-out ones (AUROC 0.68, p = 5.5e-06): calibrate on held-out items only
    """
    from scipy.stats import mannwhitneyu

    a, b = as_values("training", training).cpu().numpy(), as_values("held_out", held_out).cpu().numpy()
    found = mannwhitneyu(b, a, alternative="greater")
    auroc, p = float(found.statistic) / (len(a) * len(b)), float(found.pvalue)
    text = f"(AUROC {auroc:.2f}, p = {p:.2g})"
    if p <= 0.01:
        return Drift(
            auroc, p, f"training items score as more typical than held-out ones {text}: calibrate on held-out items only"
        )
    return Drift(auroc, p, f"training items do not visibly score as more typical than held-out ones {text}")
