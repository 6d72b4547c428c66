"""Where EM starts: responsibilities by scikit-learn's four ways, with the same draws.

Shapes: N items, R starts of K components each.
"""

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.utils import check_random_state
from torch import Tensor

from vergence.densities.em.fit import Data
from vergence.densities.em.structures import Mixture

__all__ = ["INITS", "given", "inverse", "moments", "responsibilities"]

INITS = ("kmeans", "k-means++", "random", "random_from_data")


def responsibilities(data: Data, K: int, R: int, how: str, random_state: Any) -> Tensor:
    """Returns those to start from, (R, K, N) on the CPU: one or zero, or of ``random`` uniform ones that add up to 1.

    Of ``k-means++`` and ``random_from_data`` each component begins with one item alone, as in scikit-learn.

    Args:
        data: The items.
        K: Components.
        R: Starts.
        how: One of `INITS`.
        random_state: As scikit-learn takes it.

    Example:
        >>> X = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
        >>> data = Data(X, None, X.mean(0), X.device)
        >>> r = responsibilities(data, 2, 1, "kmeans", 0)
        >>> r.sum(1).tolist(), bool((r[0, :, 0] == r[0, :, 1]).all())
        ([[1.0, 1.0, 1.0]], True)
    """
    rng, X, w = check_random_state(random_state), data.X.cpu().numpy(), data.weights
    r = torch.zeros(R, K, len(X), dtype=torch.float64)
    for one in r:
        if how == "random":
            uniform = np.asarray(rng.uniform(size=(len(X), K)))
            one[:] = torch.from_numpy(uniform / uniform.sum(axis=1)[:, None]).T
        elif how == "kmeans":
            labels = KMeans(n_clusters=K, n_init=1, random_state=rng).fit(X, sample_weight=w).labels_
            one[torch.from_numpy(labels).long(), torch.arange(len(X))] = 1
        elif how == "random_from_data":
            one[torch.arange(K), torch.from_numpy(rng.choice(len(X), size=K, replace=False))] = 1
        else:
            chosen = kmeans_plusplus(X, K, sample_weight=w, random_state=rng)[1]
            one[torch.arange(K), torch.from_numpy(chosen).long()] = 1
    return r


def given(name: str, value: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Returns a parameter of the start as a tensor of its shape, None for None.

    Raises:
        ValueError: It is of another shape, or not finite.
    """
    if value is None:
        return None
    found = np.array(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"expected finite {name} of shape {shape}, found shape {found.shape}")
    return torch.from_numpy(found)


def inverse(precisions: Any, covariance_type: str, K: int, D: int) -> Tensor | None:
    """Returns the covariances of ``precisions_init``, None for None.

    Raises:
        ValueError: As `given`; they are not symmetric and positive definite; or covariances are ``low_rank``.
    """
    if precisions is None:
        return None
    if covariance_type == "low_rank":
        raise ValueError("expected no precisions_init with low_rank covariances: give means_init")
    shapes = {"full": (K, D, D), "tied": (D, D), "diag": (K, D), "spherical": (K,)}
    P = given("precisions_init", precisions, shapes[covariance_type])
    assert P is not None
    square = covariance_type in ("full", "tied")
    if (square and not torch.allclose(P, P.mT)) or bool((torch.linalg.eigvalsh(P) if square else P).min() <= 0):
        raise ValueError("expected precisions_init that are symmetric and positive definite, found others")
    found: Tensor = torch.linalg.inv(P) if square else 1 / P
    return found


def moments(mixture: Mixture, covariance_type: str, reg: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean statistics of a mixture's own items around its origin: N (K,), first (K, D) and second moments.

    Second moments are (K, D, D) of full covariances, (D, D) in all of tied ones, (K, D) of diagonal and spherical ones; what
    ``reg`` added is taken off.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> [m.flatten().tolist() for m in moments(Mixture(one, 2 * one[None], 3 * one[None]), "diag", 0.0)]
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
