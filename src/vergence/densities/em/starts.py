"""Initializations of EM, R of K components each for N items: scikit-learn's four kinds, from the same random numbers."""

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.utils import check_random_state
from torch import Tensor

from vergence.densities.em.fit import Data
from vergence.utils.checks import expect, require_array

__all__ = ["INITS", "initial_covariances", "initial_parameter", "initial_responsibilities"]

INITS = ("kmeans", "k-means++", "random", "random_from_data")


def initial_responsibilities(data: Data, K: int, R: int, init_params: str, random_state: Any) -> Tensor:
    """Returns initial responsibilities (R, K, N) on the CPU: zeros and ones; for ``random``, uniform numbers with the sum 1.

    With ``k-means++`` and ``random_from_data`` each component starts with a single item, as in scikit-learn.

    Example:
        >>> X = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
        >>> data = Data(X, None, X.mean(0), X.device)
        >>> r = initial_responsibilities(data, 2, 1, "kmeans", 0)
        >>> r.sum(1).tolist(), bool((r[0, :, 0] == r[0, :, 1]).all())
        ([[1.0, 1.0, 1.0]], True)
    """
    rng, X, w = check_random_state(random_state), data.X.cpu().numpy(), data.weights
    r = torch.zeros(R, K, len(X), dtype=torch.float64)
    for labels in r:
        if init_params == "random":
            uniform = np.asarray(rng.uniform(size=(len(X), K)))
            labels[:] = torch.from_numpy(uniform / uniform.sum(axis=1)[:, None]).T
        elif init_params == "kmeans":
            cluster = KMeans(n_clusters=K, n_init=1, random_state=rng).fit(X, sample_weight=w).labels_
            labels[torch.from_numpy(cluster).long(), torch.arange(len(X))] = 1
        elif init_params == "random_from_data":
            labels[torch.arange(K), torch.from_numpy(rng.choice(len(X), size=K, replace=False))] = 1
        else:
            chosen = kmeans_plusplus(X, K, sample_weight=w, random_state=rng)[1]
            labels[torch.arange(K), torch.from_numpy(chosen).long()] = 1
    return r


def initial_parameter(name: str, value: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Returns an initial parameter of this shape as a tensor of float64, None for None."""
    if value is None:
        return None
    array = np.array(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    require_array(name, array, *shape)
    return torch.from_numpy(array)


def initial_covariances(precisions: Any, covariance_type: str, K: int, D: int) -> Tensor | None:
    """Returns the covariances of ``precisions_init``, symmetric and positive definite, None for None."""
    if precisions is None:
        return None
    expect(covariance_type != "low_rank", "no precisions_init with low_rank covariances", "some", "pass means_init only")
    shapes = {"full": (K, D, D), "tied": (D, D), "diag": (K, D), "spherical": (K,)}
    P = initial_parameter("precisions_init", precisions, shapes[covariance_type])
    assert P is not None
    square = covariance_type in ("full", "tied")
    definite = (not square or torch.allclose(P, P.mT)) and (torch.linalg.eigvalsh(P) if square else P).min() > 0
    expect(definite, "precisions_init that are symmetric and positive definite", "others", "invert covariances")
    return torch.linalg.inv(P) if square else 1 / P
