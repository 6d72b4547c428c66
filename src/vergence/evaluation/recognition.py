"""How well features recognize another view of an item among other items: what an embedding knows, without labels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect

__all__ = ["rank_error", "relative_error"]


def rank_error(first: Any, second: Any) -> float:
    """Returns the mean share of the other items whose second view is closer to an item's first view than its own, by cosine.

    It is in [0, 1]: 0 where every item recognizes its other view, 0.5 for features that know nothing. A tie counts half. It
    hardly depends on the number of items, unlike the accuracy of the nearest one. Features that are not finite recognize nothing.

    Args:
        first: Features of one view of each item, (N, D), N >= 2, an array or a tensor.
        second: Features of another view of the same items, (N, D).

    Raises:
        ValueError: The shapes differ, or there is one item.

    Example:
        >>> a = torch.tensor([[1.0, 0.1], [0.1, 1.0], [-1.0, 0.1]])
        >>> rank_error(a, 2 * a), rank_error(a, torch.ones(3, 2))
        (0.0, 0.5)
    """
    first, second = torch.as_tensor(first), torch.as_tensor(second)
    fit, shapes = first.shape == second.shape and first.ndim == 2, f"{tuple(first.shape)} and {tuple(second.shape)}"
    expect(fit and len(first) >= 2, "two views (N, D) of at least 2 items", shapes, "pass as many of both")
    a, b = (F.normalize(x.double(), dim=1) for x in (first, second))
    similar = a @ b.T
    own = similar.diagonal()[:, None]
    n, tied = len(own), (similar == own).fill_diagonal_(False)
    lost = similar.isnan() & ~own.isnan()  # a similarity that is not finite does not count as closer
    further = ((similar < own) | lost).sum() + tied.sum() / 2
    return float(1 - further / (n * (n - 1)))


def relative_error(first: Mapping[str, Tensor], second: Mapping[str, Tensor], level: str = "pixels") -> float:
    """Returns the rank error of the embedding ``z`` divided by that of another level of the same views.

    Near 0 the embedding recognizes views that the level does not; from 1 on it knows nothing of them that the level does not
    know. The level is standardized, since its features have different units. Where it recognizes every view, the result is 0
    if the embedding does, too, and 1 otherwise.

    Args:
        first: Features (N, D) of one view of each item by level, with ``z`` and ``level`` among them.
        second: Features of another view of the same items.
        level: Name of the other level, statistics of the pixels by default.

    Example:
        >>> a = {"pixels": torch.tensor([[1.0], [2.0], [2.1], [3.0]]), "z": torch.eye(4)}
        >>> b = {"pixels": torch.tensor([[1.1], [2.1], [2.0], [3.0]]), "z": torch.eye(4)}
        >>> relative_error(a, b)
        0.0
    """
    both = torch.cat([first[level], second[level]]).double()
    mean, std = both.mean(0), both.std(0)
    scaled = ((x[level].double() - mean) / torch.where(std > 0, std, 1.0) for x in (first, second))
    error, other = rank_error(first["z"], second["z"]), rank_error(*scaled)
    return error / other if other > 0 else float(error > 0)
