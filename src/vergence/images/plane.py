"""Two coordinates for each item, so that similar ones lie near each other: for maps, not for decisions.

Shapes: N items, D features.
"""

import numpy as np

from vergence.utils.checks import expect
from vergence.utils.dtypes import Array, Floats, Singles

__all__ = ["plane", "standardized"]

PLANES = ("tsne", "pca")
LANDMARKS = 2_000  # items that t-SNE arranges
DIRECTIONS = 50  # principal directions that it sees
STEPS, PERPLEXITY = 500, 30
NEAREST = 3  # landmarks that another item lies between


def standardized(z: Array) -> Floats:
    """Returns features (N, D) in units of their deviations, which count as at least a hundredth of the mean one."""
    deviation = z.std(0, dtype=np.float64)
    return np.asarray((z - z.mean(0)) / np.maximum(deviation, 1e-6 + 0.01 * deviation.mean()), dtype=np.float64)


def plane(z: Singles, how: str = "tsne") -> Floats:
    """Returns coordinates (N, 2) of items by their features (N, D).

    ``tsne`` arranges a sample by t-SNE (van der Maaten, Hinton, 2008) and puts each other item between its nearest ones in the
    sample; ``pca`` takes two principal directions.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
        >>> z[:30] += 20
        >>> first = plane(z)[:, 0]
        >>> bool(first[:30].min() > first[30:].max() or first[:30].max() < first[30:].min())
        True
    """
    from sklearn.decomposition import PCA

    expect(how in PLANES, " or ".join(PLANES), how, "choose one of them")
    if len(z) < 4 or z.shape[1] < 2:
        return np.concatenate([z[:, :1], np.zeros((len(z), 2))], 1)[:, :2].astype(np.float64)
    if not z.std(0, dtype=np.float64).any():
        return np.zeros((len(z), 2))
    x = standardized(z)
    p = PCA(min(DIRECTIONS, *x.shape), random_state=0, svd_solver="covariance_eigh").fit_transform(x)
    return np.asarray(_tsne(p) if how == "tsne" else p[:, :2], dtype=np.float64)


def _tsne(p: Floats) -> Floats:
    from sklearn.manifold import TSNE
    from sklearn.neighbors import NearestNeighbors

    some = np.sort(np.random.default_rng(0).permutation(len(p))[:LANDMARKS])
    perplexity = min(PERPLEXITY, (len(some) - 1) / 3)
    y = np.zeros((len(p), 2))
    y[some] = TSNE(init="pca", random_state=0, max_iter=STEPS, perplexity=perplexity).fit_transform(p[some])
    if len(rest := np.setdiff1d(np.arange(len(p)), some)):
        distance, near = NearestNeighbors(n_neighbors=NEAREST).fit(p[some]).kneighbors(p[rest])
        weight = 1 / (distance + 1e-9) ** 2
        y[rest] = ((weight / weight.sum(1, keepdims=True))[..., None] * y[some][near]).sum(1)
    return y
