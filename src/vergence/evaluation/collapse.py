"""Spread and effective rank of an embedding, and a warning if it collapses to a point or a line.

Shapes: N items, D features.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vergence.evaluation.parts.spread import effective_rank, normalized_std
from vergence.utils.linalg import require_features

__all__ = ["collapse", "notices", "warning"]

ROWS = 4096  # rows that the spectrum is computed from, so that its cost does not grow with N
ADVICE = "try a smaller learning rate, AdamW, warm-up or a larger batch; check the views; for vje keep beta >= 1"


def collapse(z: Tensor) -> dict[str, float]:
    """Returns how much of the space an embedding uses.

    The mean squared Mahalanobis distance under the features' own covariance is not included: it is D (N - 1) / N for all
    features (with an invertible covariance of divisor N - 1).

    Args:
        z: Features (N, D).

    Returns:
        ``std`` and ``std_min``: mean and minimum over features of `parts.spread.normalized_std` (1 uniform, 0 collapsed);
        ``effective_rank``: `parts.spread.effective_rank` of at most 4096 rows, sampled with a fixed seed;
        ``norm``: mean Euclidean norm of a row.

    Raises:
        ValueError: The features are not a finite matrix.

    Example:
        >>> z = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
        >>> {name: round(value, 3) for name, value in collapse(z).items()}
        {'std': 1.0, 'std_min': 1.0, 'effective_rank': 2.0, 'norm': 2.0}
    """
    require_features(z=z)
    std = normalized_std(z)
    return {
        "std": std.mean().item(),
        "std_min": std.min().item(),
        "effective_rank": effective_rank(_subset(z)).item(),
        "norm": z.norm(dim=1).mean().item(),
    }


def warning(stats: Mapping[str, float], dim: int | None = None) -> str | None:
    """Returns one line that describes a collapse and what to try, or None if there is none.

    Args:
        stats: ``std`` and ``effective_rank``, as from `collapse`.
        dim: D; below 8 a small rank is not reported. By default it is.

    Example:
        >>> warning({"std": 0.02, "effective_rank": 5.0}, dim=256).split(":")[0]
        'the embedding collapses to one direction (spread 0.02, below 0.1)'
        >>> warning({"std": 0.9, "effective_rank": 40.0}, dim=256) is None
        True
    """
    std, rank = stats["std"], stats["effective_rank"]
    if std < 0.1:
        return f"the embedding collapses to one direction (spread {std:.2g}, below 0.1): {ADVICE}"
    if rank < 2 and (dim is None or dim >= 8):
        return f"the embedding collapses to a line (effective rank {rank:.2g}, below 2): {ADVICE}"
    return None


def notices(stats: Mapping[str, float]) -> dict[str, str]:
    """Returns lines on what an objective's diagnostics show to be going wrong, by the number's name; each says cause and remedy.

    Args:
        stats: Diagnostics of an objective; those that are not there are not judged. ``variance`` (mean over features) below 1e-4
            where there is ``mahalanobis`` too, ``condition`` of the covariance above 1e5, ``mahalanobis`` (mean per feature, 1
            where the density fits) above 2, ``ess`` (effective share of a bank's particles) below 0.1, ``component_share``
            (effective share of a mixture's components) below 0.2.

    Example:
        >>> list(notices({"variance": 1e-7, "mahalanobis": 1.0, "ess": 0.9}))
        ['variance']
        >>> notices({"variance": 1.0, "condition": 40.0, "mahalanobis": 1.01, "component_share": 0.8})
        {}
    """
    found = {}
    trapped = abs(stats.get("mahalanobis", 0.0) - 1) < 0.05
    trap = "; Mahalanobis distances are those of a perfect fit all the while (the trace trap)" if trapped else ""
    price = "the loss pays too little for volume; of a likelihood, take loss mi_kl, or a larger beta or eta"
    if stats.get("variance", 1.0) < 1e-4 and "mahalanobis" in stats:  # losses on directions leave the scale free
        found["variance"] = f"the embedding shrinks to a point (mean variance {stats['variance']:.2g}{trap}): {price}"
    elif stats.get("condition", 1.0) > 1e5:
        found["condition"] = (
            f"the embedding loses directions (condition {stats['condition']:.2g}{trap}): {price}, or a narrower projector"
        )
    elif stats.get("mahalanobis", 1.0) > 2:
        hint = "lower the learning rate, or let the density follow faster (a lower momentum, a smaller bank, more EM steps)"
        found["mahalanobis"] = f"the density lags behind the embedding (Mahalanobis {stats['mahalanobis']:.2g} of 1): {hint}"
    if stats.get("ess", 1.0) < 0.1:
        hint = "lower rho, raise u, or raise the temperature"
        found["ess"] = f"few particles carry the bank (effective share {stats['ess']:.2g}): {hint}"
    if stats.get("component_share", 1.0) < 0.2:
        hint = "fewer components would do, or lower the floor"
        found["component_share"] = f"few components are used (effective share {stats['component_share']:.2g}): {hint}"
    return found


def _subset(z: Tensor) -> Tensor:
    if len(z) <= ROWS:
        return z
    chosen = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:ROWS]
    return z[chosen.to(z.device)]
