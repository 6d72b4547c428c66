"""Statistics of images as features, which need no network.

Shapes: N images, C channels, H x W pixels, D features.
"""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import to_unit
from vergence.decide.inputs import numeric
from vergence.utils.checks import expect, refuse, require_count
from vergence.utils.devices import exporting

__all__ = ["pixel_statistics"]

FLOOR = 1.0 / 255  # brightness below which a deviation is that of rounding
SCALES = 4  # of the pyramid of frequencies


@torch.no_grad()
def pixel_statistics(images: Any, grid: int = 4) -> Tensor:
    """Returns statistics of images (N, D) that need no network, in float32, on the images' device.

    For each cell of a ``grid`` x ``grid`` grid: the mean of each channel, and the logarithms of the deviation of the brightness
    and of its mean absolute differences to the right and downwards. For the whole image: the mean, the logarithm of the
    deviation and the skewness of each channel; correlations between channels; the logarithm of the mean absolute response at up
    to four scales of a pyramid; the logarithm of the noise level (Immerkær, Fast noise variance estimation, 1996); and the
    shares of black and white pixels. Logarithms make a lack of contrast as anomalous as an excess of it.

    The images are (N, C, H, W), uint8 or floats in [0, 1], with sides of at least 2 pixels; at most the shorter side of cells is
    used.
    """
    require_count(grid=grid)
    x = numeric("images", images)
    fits = x.ndim == 4 and min(x.shape[2:]) >= 2 and x.shape[1] >= 1
    expect(fits, "images (N, C, H, W) with sides of at least 2 pixels", tuple(x.shape), "reshape them")
    last = x.shape[3] == 3 and x.shape[1] > 4
    expect(not last, "images (N, C, H, W)", f"{tuple(x.shape)}, whose channels are last", "move them to the front")
    finite = x.flatten(1).isfinite().all(1)
    if not exporting() and not finite.all():
        refuse("finite images", f"NaN or infinity in row {int(finite.int().argmin())}", "leave it out")
    x = to_unit(x, torch.float32)
    light = x.mean(1, keepdim=True)
    parts = [*_cells(x, light, min(grid, *x.shape[2:])), *_moments(x), *_frequencies(light)]
    return torch.cat([part.flatten(1) for part in parts], 1)


def _log(x: Tensor) -> Tensor:
    return (x.clamp(min=0) + FLOOR).log()


def _cells(x: Tensor, light: Tensor, grid: int) -> list[Tensor]:
    """Returns means (N, C, g, g), and log-deviations and log-differences (N, 1, g, g) of the brightness."""
    mean = F.adaptive_avg_pool2d(light, grid)
    variance = F.adaptive_avg_pool2d(light.square(), grid) - mean.square()
    right = F.pad((light[..., 1:] - light[..., :-1]).abs(), (0, 1, 0, 0), mode="replicate")
    down = F.pad((light[..., 1:, :] - light[..., :-1, :]).abs(), (0, 0, 0, 1), mode="replicate")
    differences = (F.adaptive_avg_pool2d(d, grid) for d in (right, down))
    return [F.adaptive_avg_pool2d(x, grid), _log(variance.clamp(min=0).sqrt()), *map(_log, differences)]


def _moments(x: Tensor) -> list[Tensor]:
    """Returns moments and correlations of the channels, and the shares of black and white pixels."""
    flat = x.flatten(2)
    mean = flat.mean(2, keepdim=True)
    centered = flat - mean
    std = centered.square().mean(2, keepdim=True).sqrt()
    unit = centered / (std + FLOOR)
    product = unit @ unit.mT / flat.shape[2]
    correlations = [product[:, i, j, None] for i, j in itertools.combinations(range(x.shape[1]), 2)]
    ends = torch.stack([(flat <= FLOOR).float().mean((1, 2)), (flat >= 1 - FLOOR).float().mean((1, 2))], 1)
    return [mean, _log(std), unit.pow(3).mean(2), *correlations, ends]


def _frequencies(light: Tensor) -> list[Tensor]:
    """Returns the logarithms of the mean absolute difference to the blurred image at several scales, and of the noise."""
    responses = []
    kernel = light.new_tensor([[1.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 1.0]])[None, None]
    if min(light.shape[2:]) >= 3:
        responses.append(_log(F.conv2d(light, kernel).abs().mean((1, 2, 3)) / 6 * 1.2533141373155001)[:, None])
    for _ in range(SCALES):
        if min(light.shape[2:]) < 2:
            break
        small = F.avg_pool2d(light, 2)
        coarse = F.interpolate(small, size=light.shape[2:], mode="bilinear", align_corners=False)
        responses.append(_log((light - coarse).abs().mean((1, 2, 3)))[:, None])
        light = small
    return responses
