"""How well samples represent data: distances between two sets of points, and how much of each the other covers.

Shapes: real items (N, D), samples (M, D). Distances between points are Euclidean, of differences in float64: products of
coordinates in float32 would cancel where points lie close together.
"""

import torch
from torch import Tensor

from vergence.utils.checks import expect
from vergence.utils.linalg import require_features


def maximum_mean_discrepancy(real: Tensor, fake: Tensor, bandwidth: float | None = None) -> float:
    r"""Returns the unbiased MMD^2 with a Gaussian kernel, with mean zero for samples of the same distribution.

        MMD^2 = mean_{i != j} k(x_i, x_j) + mean_{i != j} k(y_i, y_j) - 2 mean k(x_i, y_j),  k(x, y) = exp(-|x - y|^2 / 2 h^2)

    h is in the items' units, by default the median distance between different points of both sets.
    Reference: Gretton et al., A kernel two-sample test, 2012.
    """
    require(real, fake, 2)
    both = distances(torch.cat([real, fake]), torch.cat([real, fake]))
    n, m = len(real), len(fake)
    h = float(both[~torch.eye(n + m, dtype=torch.bool, device=both.device)].median()) if bandwidth is None else bandwidth
    expect(h > 0, "points that differ, or a bandwidth", f"a bandwidth of {h:g}")
    k = (-both.square() / (2 * h**2)).exp()
    xx, yy, xy = k[:n, :n], k[n:, n:], k[:n, n:]
    within = (xx.sum() - n) / (n * (n - 1)) + (yy.sum() - m) / (m * (m - 1))
    return float(within - 2 * xy.mean())


def sliced_wasserstein(real: Tensor, fake: Tensor, projections: int = 256, generator: torch.Generator | None = None) -> float:
    r"""Returns the sliced Wasserstein-2 distance, the square root of the mean W_2^2 over random directions, in the items' units.

    In one dimension W_2^2 is the mean squared difference of the quantile functions, here evaluated at max(N, M) midpoints. A
    shift by v gives |v| / sqrt(D). Reference: Rabin et al., Wasserstein barycenter and its application to texture mixing, 2012.
    """
    require(real, fake, 1)
    kind = real.dtype if real.is_floating_point() else torch.float64
    directions = torch.randn(real.shape[1], projections, generator=generator, dtype=kind).to(real.device).double()
    directions = directions / directions.norm(dim=0)
    steps = max(len(real), len(fake))
    a, b = ((x.double() @ directions).sort(0).values for x in (real, fake))
    at = (torch.arange(steps, device=real.device) + 0.5) / steps
    difference = a[(at * len(a)).long()] - b[(at * len(b)).long()]
    return float(difference.square().mean().sqrt())


def overlap(real: Tensor, fake: Tensor, k: int = 5) -> dict[str, float]:
    """Returns precision, recall and coverage, from balls around each point that reach its k-th neighbor in its own set.

    Precision is the share of samples that lie in the ball of a real item; recall the share of real items that lie in the ball
    of a sample; coverage the share of real items whose ball holds a sample, which outliers among the samples cannot raise.
    References: Kynkäänniemi et al., Improved precision and recall metric, 2019; Naeem et al., Reliable fidelity and diversity
    metrics, 2020.
    """
    require(real, fake, 2)
    least = min(len(real), len(fake))
    expect(1 <= k < least, f"k from 1 to {least - 1}", str(k), "lower k or pass more points")
    radius_real, radius_fake = (distances(x, x).kthvalue(k + 1, dim=1).values for x in (real, fake))
    distance = distances(real, fake)
    in_real, in_fake = distance <= radius_real[:, None], distance <= radius_fake
    return {
        "precision": float(in_real.any(0).double().mean()),
        "recall": float(in_fake.any(1).double().mean()),
        "coverage": float(in_real.any(1).double().mean()),
    }


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Returns the Euclidean distances (N, M) of points (N, D) and (M, D)."""
    return torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")


def require(real: Tensor, fake: Tensor, least: int) -> None:
    require_features(real=real, fake=fake)
    expect(min(len(real), len(fake)) >= least, f"at least {least} points in each set", f"{len(real)} and {len(fake)}")


def fit(real: Tensor, fake: Tensor, projections: int = 256) -> dict[str, float]:
    """Returns all distances between samples and held-out items, by the names of the ledger ``joint``."""
    generator = torch.Generator().manual_seed(0)
    return {
        "mmd": maximum_mean_discrepancy(real, fake),
        "wasserstein": sliced_wasserstein(real, fake, projections, generator),
        **overlap(real, fake),
    }
