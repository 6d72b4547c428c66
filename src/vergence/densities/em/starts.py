"""Initializations of EM: scikit-learn's four kinds of responsibilities, from the same random numbers.

Shapes: N items, R initializations of K components each.
"""

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.utils import check_random_state
from torch import Tensor

from vergence.densities.em.fit import Data
from vergence.densities.em.structures import Mixture
from vergence.utils.checks import expect, require_array

__all__ = ["INITS", "initial_covariances", "initial_parameter", "initial_responsibilities", "mean_statistics"]

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


def mean_statistics(mixture: Mixture, covariance_type: str, reg: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean sufficient statistics of a mixture's items around its origin: N (K,), first (K, D) and second moments.

    Second moments are (K, D, D) for full covariances, (1, D, D) for tied ones and (K, D) for diagonal and spherical ones, without
    the ``reg`` that was added to the covariances' diagonals.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> [m.flatten().tolist() for m in mean_statistics(Mixture(one, 2 * one[None], 3 * one[None]), "diag", 0.0)]
        [[1.0], [2.0], [7.0]]
    """
    N, m, S = mixture.weights[0], mixture.means[0], mixture.covariances[0]
    if covariance_type in ("diag", "spherical"):
        variances = (S if S.ndim == 2 else S[:, None]) - reg
        return N, N[:, None] * m, N[:, None] * (variances + m.square())
    eye, outer = torch.eye(m.shape[1]).to(m), m[..., None] * m[:, None]
    if covariance_type == "tied":
        return N, N[:, None] * m, (S - reg * eye + (N[:, None, None] * outer).sum(0))[None]
    return N, N[:, None] * m, N[:, None, None] * (S - reg * eye + outer)
