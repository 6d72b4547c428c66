r"""Does an uncertainty say where an embedding errs? Works on any embeddings with a column of uncertainties.

An item's embedding errs if its nearest other item by cosine has another class. Recall at 1 (R@1) is the share that does not
err, and R-AUROC the probability that an item that errs has a larger uncertainty than one that does not (Kirchhof, Mucsanyi,
Oh, Kasneci, "URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates", arXiv:2307.03810): the ``auroc``
of `vergence.learn.evaluation.anomaly.detection` with errors as the anomalies.
An uncertainty that ranks errors need not rank out-of-distribution items, nor the other way round: report both.

Shapes: N items, D features, S crops. A larger uncertainty means a less certain item, everywhere. All functions
take tensors or arrays.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect
from vergence.utils.linalg import as_float, require_features
from vergence.utils.neighbors import nearest

__all__ = ["crop_spread", "equalizer", "neighbor_is_right", "neighbor_spread"]


def neighbor_is_right(z: Any, labels: Any) -> Tensor:
    """Returns whether the nearest other item by cosine has the item's class, (N,) bool; its mean is recall at 1.

    Args:
        z: Embeddings (N, D), N >= 2.
        labels: Classes (N,), any integers.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> neighbor_is_right(z, [0, 0, 1, 2]).tolist()
        [True, True, False, False]
    """
    z, y = _floats(z), torch.as_tensor(labels)
    require_features(z=z)
    sizes = f"{len(z)} items and labels {tuple(y.shape)}"
    expect(len(z) >= 2 and y.shape == z.shape[:1], "at least 2 items and one label each", sizes, "give as many")
    index = nearest(z, z, 2)[1].to(y.device)
    itself = torch.arange(len(z), device=y.device)
    other = torch.where(index[:, 0] == itself, index[:, 1], index[:, 0])  # among equal items the item itself may come second
    return y[other] == y


def crop_spread(z: Any) -> tuple[Tensor, Tensor]:
    r"""Returns the mean direction of the embeddings of S crops of each item, (N, D), and their spread, (N,).

        m = 1/S sum_s z_s / |z_s|,   spread = 1 - |m|  in [0, 1]: 0 where all crops have one direction

    Args:
        z: Embeddings (S, N, D) of S views of N items, S >= 2.

    Example:
        >>> z = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 3.0]]])
        >>> [round(u, 3) for u in crop_spread(z)[1].tolist()]
        [0.0, 0.293]
    """
    z = _floats(z)
    right = z.ndim == 3 and len(z) >= 2 and bool(z.isfinite().all())
    expect(right, "finite embeddings (S, N, D) of at least 2 views", f"shape {tuple(z.shape)}", "give more")
    m = F.normalize(z, dim=2).mean(0)
    return m, (1 - m.norm(dim=1)).clamp(min=0)


def equalizer(train: Any, directions: int = 64, power: float = 0.75) -> Callable[[Tensor], Tensor]:
    r"""Returns the map x -> diag(s)^{-power} V^T (x - mean) to principal directions whose deviations are made more equal.

    V are at most ``directions`` principal directions of the training embeddings and s their standard deviations; a power of 1
    whitens, 0 only centers and rotates. Cosines are then not dominated by the few directions of most variance.

    Args:
        train: Embeddings (N, D), N >= 2.
        directions: Largest number of directions.
        power: At least 0.

    Example:
        >>> x = torch.tensor([[3.0, 1.0], [-3.0, 1.0], [0.0, 1.5], [0.0, 0.5]])
        >>> [round(v, 3) for v in equalizer(x, power=1.0)(x).std(0).tolist()]
        [1.0, 1.0]
    """
    x = _floats(train)
    require_features(train=x)
    expect(len(x) >= 2, "at least 2 embeddings", len(x), "give more")
    mean = x.mean(0)
    variance, V = torch.linalg.eigh((x - mean).double().T.cov().reshape(x.shape[1], -1))
    least = 1e-10 * variance.max().clamp(min=torch.finfo(variance.dtype).tiny)
    keep = (variance > least).nonzero().flatten().flip(0)[:directions]
    W = (V[:, keep] * variance[keep].pow(-power / 2)).to(x)
    return lambda other: (other - mean) @ W


def neighbor_spread(train: Any, test: Any, k: int = 10) -> Tensor:
    r"""Returns how far each item and its k nearest training items lie from each other, (M,), in [0, 2].

        1/2 [mean_i d(x, n_i) + mean_{i != j} d(n_i, n_j)],   d(a, b) = 1 - cos(a, b)

    Small where the item lies in a dense and coherent region. Needs no labels and no density.

    Args:
        train: Embeddings (N, D).
        test: Embeddings (M, D).
        k: Neighbors, >= 2; at most N are used.

    Example:
        >>> neighbor_spread(torch.eye(3)[:2], torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), k=2).tolist()
        [0.75, 1.0]
    """
    x, t = _floats(train), _floats(test)
    k = min(k, len(x))
    expect(k >= 2, "at least 2 neighbors", f"k = {k} of {len(x)} items", "give more")
    similarity, index = nearest(x, t, k)
    bank = F.normalize(x, dim=1)
    total = torch.cat([bank[part].sum(1).square().sum(1) for part in index.split(256)])  # sum_ij cos(n_i, n_j), i = j included
    same = torch.cat([bank[part].square().sum((1, 2)) for part in index.split(256)])  # i = j
    return 1 - 0.5 * (similarity.mean(1) + (total - same) / (k * (k - 1)))


def _floats(x: Any) -> Tensor:
    """Returns numbers as a tensor; whole ones as float32."""
    return as_float(torch.as_tensor(x))
