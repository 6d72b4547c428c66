"""Initializations of EM, R of K components each for N items: k-means, from scikit-learn's random numbers."""

from typing import Any

import torch
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from torch import Tensor

from vergence.densities.em.fit import Data

__all__ = ["initial_responsibilities"]


def initial_responsibilities(data: Data, K: int, R: int, random_state: Any) -> Tensor:
    """Returns initial responsibilities (R, K, N) on the CPU: zeros and ones.

    Example:
        >>> X = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
        >>> r = initial_responsibilities(Data(X, None, X.mean(0), X.device), 2, 1, 0)
        >>> r.sum(1).tolist(), bool((r[0, :, 0] == r[0, :, 1]).all())
        ([[1.0, 1.0, 1.0]], True)
    """
    rng, X = check_random_state(random_state), data.X.cpu().numpy()
    r = torch.zeros(R, K, len(X), dtype=torch.float64)
    for labels in r:
        cluster = KMeans(n_clusters=K, n_init=1, random_state=rng).fit(X, sample_weight=data.weights).labels_
        labels[torch.from_numpy(cluster).long(), torch.arange(len(X))] = 1
    return r
