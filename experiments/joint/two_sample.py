"""How well samples represent data: distances between two sets of points, and how much of each the other covers.

Shapes: real items (N, D), samples (M, D). Distances between points are Euclidean, of differences in float64: products of
coordinates in float32 would cancel where points lie close together.
"""

import torch
from torch import Tensor

from vergence.utils.checks import require_within
from vergence.utils.linalg import require_features

__all__ = ["maximum_mean_discrepancy", "overlap", "sliced_wasserstein"]


def maximum_mean_discrepancy(real: Tensor, fake: Tensor, bandwidth: float | None = None) -> float:
    r"""Returns the unbiased MMD^2 with a Gaussian kernel, with mean zero for samples of the same distribution.

        MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean k(x_i, y_j),  k(x, y) = exp(-|x - y|^2 / 2 h^2)

    Reference: Gretton et al., A kernel two-sample test, 2012.

    Args:
        real: Items (N, D), N >= 2.
        fake: Samples (M, D), M >= 2.
        bandwidth: h > 0, in the items' units; by default the median distance between different points of both sets.

    Raises:
        ValueError: The sets are not finite matrices of one width with at least 2 points each, the bandwidth is not positive,
            or it is not given and most points are equal.

    Example:
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(maximum_mean_discrepancy(x, x + 3) > 0.5)
        True
    """
    _require(real, fake, 2)
    both = _distances(torch.cat([real, fake]), torch.cat([real, fake]))
    n, m = len(real), len(fake)
    h = float(both[~torch.eye(n + m, dtype=torch.bool, device=both.device)].median()) if bandwidth is None else bandwidth
    if bandwidth is None and h == 0:
        raise ValueError("expected points that differ, found a median distance of 0: pass a bandwidth")
    require_within("(0, inf)", bandwidth=h)
    k = (-both.square() / (2 * h**2)).exp()
    xx, yy, xy = k[:n, :n], k[n:, n:], k[:n, n:]
    within = (xx.sum() - n) / (n * (n - 1)) + (yy.sum() - m) / (m * (m - 1))
    return float(within - 2 * xy.mean())


def sliced_wasserstein(real: Tensor, fake: Tensor, projections: int = 256, generator: torch.Generator | None = None) -> float:
    r"""Returns the sliced Wasserstein-2 distance, the square root of the mean W_2^2 over random directions, in the items' units.

    In one dimension W_2^2 is the mean squared difference of the quantile functions, here evaluated at max(N, M) midpoints.
    Reference: Rabin et al., Wasserstein barycenter and its application to texture mixing, 2012.

    Args:
        real: Items (N, D).
        fake: Samples (M, D).
        projections: Number of random directions, >= 1.
        generator: Generator of the directions, on the CPU; the global one by default.

    Raises:
        ValueError: The sets are not finite matrices of one width.

    Example:
        >>> x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
        >>> shift = torch.tensor([3.0, 0.0, 0.0])       # a shift by v gives |v| / sqrt(D)
        >>> bool(abs(sliced_wasserstein(x, x + shift, 2000, torch.Generator().manual_seed(0)) - 3**0.5) < 0.1)
        True
    """
    _require(real, fake, 1)
    kind = real.dtype if real.is_floating_point() else torch.float64
    directions = torch.randn(real.shape[1], projections, generator=generator, dtype=kind).to(real.device).double()
    real, fake = real.double(), fake.double()
    directions = directions / directions.norm(dim=0)
    steps = max(len(real), len(fake))
    a, b = ((x @ directions).sort(0).values for x in (real, fake))
    at = (torch.arange(steps, device=real.device) + 0.5) / steps
    difference = a[(at * len(a)).long()] - b[(at * len(b)).long()]
    return float(difference.square().mean().sqrt())


def overlap(real: Tensor, fake: Tensor, k: int = 5) -> dict[str, float]:
    """Returns precision, recall and coverage, from balls around each point that reach its k-th neighbor in its own set.

    Precision is the share of samples that lie in the ball of a real item; recall the share of real items that lie in the ball
    of a sample; coverage the share of real items whose ball holds a sample, which outliers among the samples cannot raise.
    References: Kynkäänniemi et al., Improved precision and recall metric, 2019; Naeem et al., Reliable fidelity and diversity
    metrics, 2020.

    Args:
        real: Items (N, D).
        fake: Samples (M, D).
        k: Neighbors, from 1 to min(N, M) - 1.

    Returns:
        ``precision``, ``recall`` and ``coverage`` in [0, 1].

    Raises:
        ValueError: The sets are not finite matrices of one width, or k is out of range.

    Example:
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> overlap(x, x)["precision"], overlap(x, x + 100)["coverage"]
        (1.0, 0.0)
    """
    _require(real, fake, 2)
    if not 1 <= k < min(len(real), len(fake)):
        raise ValueError(f"expected k from 1 to {min(len(real), len(fake)) - 1}, found {k}: lower k or pass more points")
    radius_real, radius_fake = (_distances(x, x).kthvalue(k + 1, dim=1).values for x in (real, fake))
    distance = _distances(real, fake)
    in_real, in_fake = distance <= radius_real[:, None], distance <= radius_fake
    return {
        "precision": float(in_real.any(0).double().mean()),
        "recall": float(in_fake.any(1).double().mean()),
        "coverage": float(in_real.any(1).double().mean()),
    }


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns the Euclidean distances (N, M) of points (N, D) and (M, D)."""
    return torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")


def _require(real: Tensor, fake: Tensor, least: int) -> None:
    require_features(real=real, fake=fake)
    if min(len(real), len(fake)) < least:
        raise ValueError(f"expected at least {least} points in each set, found {len(real)} and {len(fake)}: pass more")
