"""Small pictures of images: means of square cells; and images mirrored and turned.

Shapes: N images, C channels, H x W pixels, h x w cells.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional as F

__all__ = ["SIDE", "cell_means", "positions", "thumbnail_shape"]

SIDE = 16  # cells of a thumbnail, at most, in each direction


def cell_means(x: Tensor, side: int = SIDE) -> Tensor:
    """Returns means of at most ``side`` x ``side`` cells of images (N, C, H, W) of floats; there may be none.

    Example:
        >>> import torch
        >>> cell_means(torch.eye(4)[None, None], 2).tolist()
        [[[[0.5, 0.0], [0.0, 0.5]]]]
    """
    return F.adaptive_avg_pool2d(x, thumbnail_shape(x.shape[1:], side)[1:])


def thumbnail_shape(shape: tuple[int, ...], side: int = SIDE) -> tuple[int, int, int]:
    """Returns the shape (C, h, w) of the small picture of an image of shape (C, H, W)."""
    channels, height, width = shape
    return channels, min(side, height), min(side, width)


def positions(x: Tensor) -> Iterator[Tensor]:
    """Yields images (N, C, H, W) as they are, turned by quarters, and the same mirrored: eight times if square, else four.

    Example:
        >>> import torch
        >>> [y.flatten().tolist() for y in positions(torch.arange(3).reshape(1, 1, 1, 3))]
        [[0, 1, 2], [2, 1, 0], [2, 1, 0], [0, 1, 2]]
    """
    quarters = range(4) if x.shape[-2] == x.shape[-1] else (0, 2)
    for image in (x, x.flip(-1)):
        for k in quarters:
            yield image.rot90(k, (-2, -1))
