"""How well samples stand for data: distances between two clouds, and what each covers of the other.

Shapes: real items (N, D), samples (M, D). Distances between points are Euclidean.
"""

import torch
from torch import Tensor

from vergence.utils.linalg import require_features

__all__ = ["maximum_mean_discrepancy", "overlap", "sliced_wasserstein"]


def maximum_mean_discrepancy(real: Tensor, fake: Tensor, bandwidth: float | None = None) -> float:
    r"""Returns the unbiased MMD^2 with a Gaussian kernel (2012): around zero for samples of the same distribution.

        MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean k(x_i, y_j),  k(x, y) = exp(-|x - y|^2 / 2 h^2)

    Args:
        real: (N, D).
        fake: (M, D).
        bandwidth: h; by default the median distance between all points of both.

    Raises:
        ValueError: The clouds are not finite matrices of one width, of at least 2 points each.

    Example:
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> bool(maximum_mean_discrepancy(x, x + 3) > 0.5)
        True
    """
    _require(real, fake, 2)
    both = torch.cdist(torch.cat([real, fake]), torch.cat([real, fake]))
    n, m = len(real), len(fake)
    h = float(both[~torch.eye(n + m, dtype=torch.bool, device=both.device)].median()) if bandwidth is None else bandwidth
    k = (-both.square() / (2 * h**2)).exp()
    xx, yy, xy = k[:n, :n], k[n:, n:], k[:n, n:]
    within = (xx.sum() - n) / (n * (n - 1)) + (yy.sum() - m) / (m * (m - 1))
    return float(within - 2 * xy.mean())


def sliced_wasserstein(real: Tensor, fake: Tensor, projections: int = 256, generator: torch.Generator | None = None) -> float:
    r"""Returns the sliced Wasserstein-2 distance (2012): sqrt of the mean of W_2^2 over random directions, in the items' units.

    In one dimension W_2^2 is the mean squared difference of the quantile functions, here read at max(N, M) midpoints.

    Args:
        real: (N, D).
        fake: (M, D).
        projections: Directions.
        generator: Of the directions, on the CPU; the global seed by default.

    Raises:
        ValueError: The clouds are not finite matrices of one width.

    Example:
        >>> x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
        >>> shift = torch.tensor([3.0, 0.0, 0.0])       # a shift by v gives |v| / sqrt(D)
        >>> bool(abs(sliced_wasserstein(x, x + shift, 2000, torch.Generator().manual_seed(0)) - 3**0.5) < 0.1)
        True
    """
    _require(real, fake, 1)
    directions = torch.randn(real.shape[1], projections, generator=generator, dtype=real.dtype).to(real.device)
    directions = directions / directions.norm(dim=0)
    steps = max(len(real), len(fake))
    a, b = ((x @ directions).sort(0).values for x in (real, fake))
    at = (torch.arange(steps, device=real.device) + 0.5) / steps
    apart = a[(at * len(a)).long()] - b[(at * len(b)).long()]
    return float(apart.square().mean().sqrt())


def overlap(real: Tensor, fake: Tensor, k: int = 5) -> dict[str, float]:
    """Returns precision, recall (2019) and coverage (2020) by balls that reach to each point's k-th neighbor in its own cloud.

    precision: samples that lie in the ball of a real item; recall: real items that lie in the ball of a sample; coverage:
    real items whose ball holds a sample, which outliers among the samples cannot raise.

    Args:
        real: (N, D).
        fake: (M, D).
        k: Neighbors, 1 to the smaller number of points less one.

    Raises:
        ValueError: The clouds are not finite matrices of one width, or k is out of range.

    Example:
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> overlap(x, x)["precision"], overlap(x, x + 100)["coverage"]
        (1.0, 0.0)
    """
    _require(real, fake, 2)
    if not 1 <= k < min(len(real), len(fake)):
        raise ValueError(f"expected k from 1 to {min(len(real), len(fake)) - 1}, found {k}")
    reach_real, reach_fake = (torch.cdist(x, x).kthvalue(k + 1, dim=1).values for x in (real, fake))
    apart = torch.cdist(real, fake)
    in_real, in_fake = apart <= reach_real[:, None], apart <= reach_fake
    return {
        "precision": float(in_real.any(0).double().mean()),
        "recall": float(in_fake.any(1).double().mean()),
        "coverage": float(in_real.any(1).double().mean()),
    }


def _require(real: Tensor, fake: Tensor, least: int) -> None:
    require_features(real=real, fake=fake)
    if min(len(real), len(fake)) < least:
        raise ValueError(f"expected at least {least} points in each cloud, found {len(real)} and {len(fake)}")
