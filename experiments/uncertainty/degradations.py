"""Images degraded by a known strength, to see whether an uncertainty grows with it.

Shapes: B images (B, C, H, W), floats in [0, 1].
"""

import math

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from vergence.data.pixels import resize

STRENGTHS = {  # of each degradation, from none
    "crop": (0.0, 0.25, 0.5, 0.75, 0.9),  # share of the area that is cut off
    "blur": (0.0, 0.5, 1.0, 2.0, 4.0),  # standard deviation in pixels of an image of 32 pixels
    "noise": (0.0, 0.05, 0.1, 0.2, 0.4),  # standard deviation of white noise; the image's range is 1
    "occlusion": (0.0, 0.1, 0.25, 0.5, 0.75),  # share of the area under a gray square
}


def degraded(x: Tensor, how: str, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Returns images degraded by a strength, of the same shape, in [0, 1]; as they are at strength 0.

    ``crop`` keeps a random square of area 1 - strength and enlarges it; ``blur`` is Gaussian; ``noise`` is white and clamped;
    ``occlusion`` covers a random square with gray of 0.5. Every image has a place of its own.
    """
    if strength == 0:
        return x
    if how == "noise":
        return (x + strength * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)
    if how == "blur":
        sigma = strength * min(x.shape[2:]) / 32
        width = 2 * min(max(1, math.ceil(3 * sigma)), min(x.shape[2:]) - 1) + 1
        return gaussian_blur(x, [width, width], [sigma, sigma]).clamp(0, 1)
    side = math.sqrt(1 - strength if how == "crop" else strength)
    height, width = (max(1, round(n * side)) for n in x.shape[2:])
    places = torch.rand(len(x), 2, generator=generator)
    out = x.clone()
    for b, place in enumerate(places.tolist()):
        i, j = (round(p * (n - m)) for p, n, m in zip(place, x.shape[2:], (height, width), strict=True))
        if how == "crop":
            out[b : b + 1] = resize(x[b : b + 1, :, i : i + height, j : j + width], *x.shape[2:])
        else:
            out[b, :, i : i + height, j : j + width] = 0.5
    return out


def scrambled(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns images whose pixels are permuted, the same way in all channels: their colors without any content."""
    flat = x.flatten(2)
    order = torch.rand(len(x), flat.shape[2], generator=generator).argsort(1).to(x.device)
    return flat.gather(2, order[:, None].expand_as(flat)).view_as(x)
