"""Images degraded by a known strength, to see whether an uncertainty grows with it.

Shapes: B images (B, C, H, W), floats in [0, 1].
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import resize
from vergence.utils.checks import require_choice

__all__ = ["STRENGTHS", "degraded", "scrambled"]

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

    Args:
        x: Images (B, C, H, W).
        how: One of `STRENGTHS`.
        strength: In the unit that `STRENGTHS` gives.
        generator: Source of noise and places, on the CPU; the global one by default.

    Raises:
        ValueError: There is no such degradation.

    Example:
        >>> x = torch.rand(2, 3, 16, 16)
        >>> torch.equal(degraded(x, "blur", 0.0), x), degraded(x, "crop", 0.75).shape
        (True, torch.Size([2, 3, 16, 16]))
    """
    require_choice("how", how, STRENGTHS)
    if strength == 0:
        return x
    if how == "noise":
        return (x + strength * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)
    if how == "blur":
        return _blurred(x, strength * min(x.shape[2:]) / 32)
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


def _blurred(x: Tensor, sigma: float) -> Tensor:
    radius = min(max(1, math.ceil(3 * sigma)), min(x.shape[2:]) - 1)
    t = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    k = (-0.5 * (t / sigma).square()).exp()
    k = (k / k.sum()).expand(x.shape[1], 1, -1)
    x = F.conv2d(F.pad(x, (radius, radius, 0, 0), mode="reflect"), k[:, :, None], groups=x.shape[1])
    return F.conv2d(F.pad(x, (0, 0, radius, radius), mode="reflect"), k[..., None], groups=x.shape[1]).clamp(0, 1)


def scrambled(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns images whose pixels are permuted, the same way in all channels: their colors without any content.

    Example:
        >>> x = torch.rand(2, 3, 4, 4)
        >>> torch.allclose(scrambled(x).mean((2, 3)), x.mean((2, 3)))
        True
    """
    flat = x.flatten(2)
    order = torch.rand(len(x), flat.shape[2], generator=generator).argsort(1).to(x.device)
    return flat.gather(2, order[:, None].expand_as(flat)).view_as(x)
