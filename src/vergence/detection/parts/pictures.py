"""What near-duplicates of images are told by: a perceptual hash, and slightly changed copies.

Shapes: N images, C channels, H x W pixels.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import luma, resize, to_unit
from vergence.detection.parts.kinds import images_of

__all__ = ["mild_views", "perceptual_hash"]


def perceptual_hash(images: Any, *, block: int = 1024) -> Tensor:
    """Returns a hash of 64 bits that small changes of an image hardly alter: signs of its lowest frequencies.

    The luminance is resized to 32 x 32; of its cosine transform the 8 x 8 lowest frequencies, without the mean but with one more,
    are compared with their median (the widely used "pHash"; Zauner, Implementation and benchmarking of perceptual image hash
    functions, 2010).

    Args:
        images: (N, C, H, W), uint8 or float, C = 1 or 3.
        block: Images in a block, which bounds the memory.

    Returns:
        (N, 64) of bool, on the images' device.

    Example:
        >>> image = torch.arange(3 * 40 * 40).reshape(1, 3, 40, 40) % 251
        >>> int((perceptual_hash(image) != perceptual_hash(0.9 * image + 3)).sum())
        0
    """
    x = images_of(images)
    return torch.cat([_hash(resize(luma(part.float()), 32, 32)[:, 0]) for part in x.split(block)])


def _hash(light: Tensor) -> Tensor:
    k, t = torch.arange(9, device=light.device)[:, None], torch.arange(32, device=light.device)
    cosines = torch.cos(math.pi / 32 * k * (t + 0.5)).to(light)
    spectrum = cosines @ light @ cosines.T
    lowest = torch.cat([spectrum[:, :8, :8].flatten(1)[:, 1:], spectrum[:, 0, 8:9]], 1)
    rounding = 1e-5 * spectrum[:, 0, :1].abs()
    return lowest > lowest.median(1, keepdim=True).values + rounding


def mild_views(images: Any, generator: torch.Generator | None = None) -> Tensor:
    """Returns a slightly changed copy of each image, as saving it again makes it: cropped, brighter or darker, noisy.

    Up to 4 % of each side is cut off, brightness changes by up to 8 %, contrast by up to 8 %, and noise has 1 % of the range.

    Args:
        images: (N, C, H, W), uint8, or float in [0, 1].
        generator: Randomness, on the CPU; torch's own by default.

    Returns:
        (N, C, H, W), float in [0, 1].
    """
    x = to_unit(images_of(images)).float()
    n = len(x)
    r = torch.rand(n, 5, generator=generator).to(x)
    scale = 1 - 0.04 * r[:, 0]
    theta = torch.zeros(n, 2, 3).to(x)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = (2 * r[:, 1:3] - 1) * (1 - scale)[:, None]
    x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), padding_mode="border", align_corners=False)
    brightness, contrast = (0.92 + 0.16 * r[:, i, None, None, None] for i in (3, 4))
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * contrast + mean * brightness
    return (x + 0.01 * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)
