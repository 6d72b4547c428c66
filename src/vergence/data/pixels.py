"""Pixel values and sizes of image tensors: bytes and floats in [0, 1], gray, resized and cropped.

Shapes: B images, C channels, H rows, W columns.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect

__all__ = ["center_crop", "fit_shape", "luma", "resize", "to_bytes", "to_unit"]

LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights of R, G and B, which are ITU-R BT.601's to three digits


def to_unit(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns bytes (0 to 255) as floats in [0, 1]; floats keep their values.

    The type of the result is by default float32 for bytes, and that of ``x`` for floats.

    Example:
        >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if x.dtype == torch.uint8:
        return x.to(dtype or torch.float32).div_(255)
    return x if dtype is None else x.to(dtype)


def to_bytes(x: Tensor) -> Tensor:
    """Returns floats in [0, 1] as bytes (0 to 255), rounded; values outside are clamped.

    Example:
        >>> to_bytes(torch.tensor([-1.0, 0.5, 1.0]))
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return (x.clamp(0, 1) * 255).round().byte()


def luma(x: Tensor) -> Tensor:
    """Returns the gray 0.2989 R + 0.587 G + 0.114 B of images (B, C, ...), shape (B, 1, ...); gray images as they are."""
    if x.shape[1] == 1:
        return x
    r, g, b = x[:, :1], x[:, 1:2], x[:, 2:]
    return (r * LUMA[0]).add_(g, alpha=LUMA[1]).add_(b, alpha=LUMA[2])


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Returns float images (B, C, H, W) as (B, C, height, width): bilinear, with antialiasing."""
    return F.interpolate(x, size=(height, width), mode="bilinear", antialias=True)


def fit_shape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns images (B, C, H, W) as ``shape``: the largest central part of its aspect ratio, antialiased; the type stays.

    Color becomes gray by `luma`, gray becomes three equal channels.
    """
    channels, height, width = shape
    h = min(x.shape[2], max(1, round(x.shape[3] * height / width)))
    w = min(x.shape[3], max(1, round(x.shape[2] * width / height)))
    top, left = (x.shape[2] - h) // 2, (x.shape[3] - w) // 2
    y = x[:, :, top : top + h, left : left + w].float()
    y = resize(luma(y) if channels == 1 else y, height, width).expand(-1, channels, -1, -1)
    return (y.round() if x.dtype == torch.uint8 else y).to(x.dtype)


def center_crop(x: Tensor, size: int) -> Tensor:
    """Returns the central ``size`` x ``size`` pixels of images, which is what evaluation shows to an encoder.

    Images (B, C, H, W) of any number type whose shorter side is below ``size`` are first enlarged until it is ``size``,
    bilinear, with the same aspect ratio. The result is (B, C, size, size) of x's type; ``x`` itself if it has that shape.
    """
    expect(x.ndim == 4, "images (B, C, H, W)", f"shape {tuple(x.shape)}", "add the missing dimensions")
    if min(x.shape[2:]) < size:
        shape = [round(side * size / min(x.shape[2:])) for side in x.shape[2:]]
        y = F.interpolate(x if x.is_floating_point() else x.float(), shape, mode="bilinear", align_corners=False)
        x = y if x.is_floating_point() else y.round_().to(x.dtype)  # not antialiased: images that grow need none
    top, left = (round((side - size) / 2) for side in x.shape[2:])
    return x if x.shape[2:] == (size, size) else x[..., top : top + size, left : left + size]
