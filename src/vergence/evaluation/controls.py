"""Controls for learned representations: the raw inputs and their principal components."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.pixels import to_unit
from vergence.utils.checks import require_count
from vergence.utils.linalg import as_float, require_features

__all__ = ["pca", "pixels"]


def pixels(x: Tensor) -> Tensor:
    """Returns the inputs as features (N, D) in float32, with D values per item.

    Args:
        x: Items (N, ...); uint8 is scaled from 0..255 to [0, 1], other types keep their values.

    Raises:
        ValueError: The items have no dimension of their own.

    Example:
        >>> pixels(torch.tensor([[[0, 255], [51, 102]]], dtype=torch.uint8))
        tensor([[0.0000, 1.0000, 0.2000, 0.4000]])
    """
    if x.ndim < 2:
        raise ValueError(f"expected items of shape (N, ...), found {tuple(x.shape)}: put items along the first dimension")
    return to_unit(x, torch.float32).flatten(1)


def pca(train: Tensor, test: Tensor, dim: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns both parts projected on the leading principal components of the training part, not whitened.

    The components are those of scikit-learn's randomized solver.

    Args:
        train: Features (N, D).
        test: Features (M, D).
        dim: Number of components, >= 1; at most min(N, D) are used.
        seed: Seed of the randomized solver.

    Returns:
        Features (N, min(dim, N, D)) and (M, min(dim, N, D)), of the inputs' type and device.

    Raises:
        ValueError: The features are not finite matrices of one width, or dim < 1.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
        >>> a, b = pca(x, x[:1], dim=1)
        >>> [round(abs(v), 3) for v in a[:, 0].tolist()], tuple(b.shape)
        ([5.0, 0.0, 5.0], (1, 1))
    """
    from sklearn.decomposition import PCA

    require_features(train=train, test=test)
    require_count(dim=dim)
    train, test = as_float(train), as_float(test)
    model = PCA(min(dim, *train.shape), svd_solver="randomized", random_state=seed)
    with np.errstate(invalid="ignore"):  # constant training features explain 0 of a variance of 0
        model.fit(train.cpu().numpy())
    return _project(model, train), _project(model, test)


def _project(model: Any, z: Tensor) -> Tensor:
    return torch.from_numpy(model.transform(z.cpu().numpy())).to(z)
