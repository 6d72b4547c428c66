"""Moments that add up: sums over views of images, and principal directions of features that are given in parts."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vergence.utils.distributed import several

__all__ = ["COLUMNS", "ViewSums", "principal_directions"]

COLUMNS = 4096  # features at a time


class ViewSums:
    """Sums over images of their m views x (D,), of the views' products, and of the products of each image's mean view.

    Args:
        dim: D.
        views: m, at least 2.
        device: Device of the sums.

    Example:
        >>> sums = ViewSums(1, 2)
        >>> sums.add([torch.tensor([[1.0], [5.0]]), torch.tensor([[3.0], [7.0]])])
        >>> [part.flatten().tolist() for part in sums.moments()]
        [[4.0], [5.5], [3.5]]
    """

    def __init__(self, dim: int, views: int, device: str | torch.device = "cpu") -> None:
        self.views, self.n = views, 0
        self.total = torch.zeros(dim, dtype=torch.float64, device=device)
        self.products, self.means = (torch.zeros(dim, dim, dtype=torch.float64, device=device) for _ in range(2))

    def add(self, views: list[Tensor]) -> None:
        """Adds the views, each (B, D), of B images."""
        mean = torch.stack(views).mean(0)
        self.n += len(mean)
        self.total += mean.sum(0)
        self.means += mean.T @ mean
        for x in views:
            self.products += x.T @ x

    def state(self) -> dict[str, Any]:
        """Returns what `load` sets."""
        return {"n": self.n, "total": self.total, "products": self.products, "means": self.means}

    def load(self, state: dict[str, Any]) -> None:
        """Sets the sums."""
        self.n = state["n"]
        for name in ("total", "products", "means"):
            getattr(self, name).copy_(state[name])

    def reduce(self) -> None:
        """Adds up the sums of all processes of ``torch.distributed``, if there are several."""
        if not several():
            return
        n = self.total.new_tensor([self.n])
        for part in (n, self.total, self.products, self.means):
            torch.distributed.all_reduce(part)
        self.n = int(n)

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the mean of the views (D,), and S and G of `vergence.linear.solutions`, around it and without bias."""
        center = self.total / self.n
        square = torch.outer(center, center)
        S = self.products / (self.n * self.views) - square
        within = (S - self.means / self.n + square) * (self.views / (self.views - 1))
        S += within / (self.n * self.views)  # the variance of the mean of all views
        return center, S, S - within


def principal_directions(
    parts: list[Tensor], k: int, dtype: torch.dtype, widths: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the mean (F,) of n features and their first k < n principal directions (F, k), in the type of the features.

    The smaller of the two matrices of products is decomposed: of the F features, or of the n images. Of several groups of
    features, each is divided by the root mean squared distance from its mean first; the directions V are those of the divided
    features, divided again, so that V^T (f - mean) are the components.

    Args:
        parts: Features (B, F) in parts; they are centered and divided in place.
        k: Number of directions.
        dtype: Type of the sums and products.
        widths: Number of features of each group, where there are several.

    Example:
        >>> f = torch.tensor([[1.0, 0.0, 30.0], [-1.0, 0.0, -30.0]])
        >>> mean, V = principal_directions([f.clone()], 1, torch.float32, (2, 1))
        >>> (f @ V).abs().flatten().tolist()
        [1.4142135381698608, 1.4142135381698608]
    """
    n, width = sum(len(f) for f in parts), parts[0].shape[1]
    mean = torch.stack([f.to(dtype).sum(0) for f in parts]).sum(0) / n
    gains = _gains(parts, mean, widths) if widths is not None and len(widths) > 1 else None
    for f in parts:
        centered = f.to(dtype) - mean
        f.copy_(centered if gains is None else centered * gains)
    V = _of_features(parts, k, dtype) if width <= n else _of_images(parts, k, dtype)
    return mean, V if gains is None else V.mul_(gains[:, None])


def _gains(parts: list[Tensor], mean: Tensor, widths: Sequence[int]) -> Tensor:
    """Returns for each feature one over the root mean squared distance of its group from the mean, (F,); 1 where it is 0."""
    square = torch.stack([(f.to(mean) - mean).square().sum(0) for f in parts]).sum(0) / sum(len(f) for f in parts)
    lengths = [group.sum().sqrt() for group in square.split(list(widths))]
    gains = [(1 / length if length > 0 else length + 1).expand(n) for length, n in zip(lengths, widths, strict=True)]
    return torch.cat(gains)


def _of_features(parts: list[Tensor], k: int, dtype: torch.dtype) -> Tensor:
    """Returns k principal directions of centered features from the F x F matrix of their products."""
    width = parts[0].shape[1]
    covariance = torch.zeros(width, width, dtype=dtype, device=parts[0].device)
    for f in parts:
        covariance.addmm_(f.to(dtype).T, f.to(dtype))
    return _leading(covariance, k)[1].to(parts[0].dtype)


def _of_images(parts: list[Tensor], k: int, dtype: torch.dtype) -> Tensor:
    """Returns k principal directions of centered features from the n x n matrix of the images' products."""
    n, width = sum(len(f) for f in parts), parts[0].shape[1]
    products = torch.zeros(n, n, dtype=dtype, device=parts[0].device)
    for f in _columns(parts, dtype):
        products.addmm_(f, f.T)
    w, U = _leading(products, k)
    del products
    U *= w.clamp(min=max(float(w[0]) * torch.finfo(dtype).eps, torch.finfo(dtype).tiny)).rsqrt()
    V = parts[0].new_empty(width, k)
    for rows, f in zip(V.split(COLUMNS), _columns(parts, dtype), strict=True):
        rows.copy_(f.T @ U)
    return V


def _columns(parts: list[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields blocks of columns of a matrix that is given in parts of its rows."""
    for start in range(0, parts[0].shape[1], COLUMNS):
        yield torch.cat([f[:, start : start + COLUMNS] for f in parts]).to(dtype)


def _leading(a: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest eigenvalues (k,), descending, and their eigenvectors (D, k) of a symmetric matrix (D, D)."""
    w, U = torch.linalg.eigh(a)
    return w[-k:].flip(0), U[:, -k:].flip(1)
