"""Plain properties of images: measurements with the flags that follow from them, and statistics as features.

Shapes: N images, C channels, H x W pixels, D features.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.images import FORMATS
from vergence.data.pixels import luma, to_bytes, to_unit
from vergence.detection.inputs import images_of, numeric
from vergence.utils.checks import expect, refuse, require_count

__all__ = ["flags", "measure", "pixel_statistics"]

Floats = npt.NDArray[np.float64]
NUMBERS = 1 << 23  # pixels of a block

DARK, LIGHT = 0.32, 0.95  # of the range: the 99th percentile below, the 5th percentile above
INFORMATION, INFORMATION_SHARE = 3.0, 0.4  # bits, and share of the median
SHARPNESS_SHARE = 0.4  # of the median
GRAY = 2.0  # of 255
ASPECT, SIZE = 0.35, 3.0  # relative to the median: shorter by aspect, larger or smaller side by a factor
FLOOR = 1.0 / 255  # brightness below which a deviation is that of rounding
SCALES = 4  # of the pyramid of frequencies
FLAGS = ("dark", "light", "blurry", "low_information", "grayscale", "odd_size", "odd_aspect_ratio")


@dataclass(frozen=True)
class Measured:
    """Measurements of N images, (N,) float64 each."""

    brightest: Floats  # 99th percentile of the luminance, in [0, 1]
    darkest: Floats  # 5th percentile of the luminance, in [0, 1]
    sharpness: Floats  # standard deviation of the Laplacian divided by that of the luminance; 0 without contrast
    information: Floats  # entropy of the luminance's histogram of 256 levels, in bits
    color: Floats  # largest difference of a channel from the channels' mean, of 255
    height: Floats  # in pixels
    width: Floats

    @property
    def table(self) -> Floats:
        """All measurements as columns (N, 7)."""
        return np.stack([getattr(self, field.name) for field in fields(self)], 1)


def measure(images: Any) -> Measured:
    """Returns measurements of images (N, C, H, W) with C = 1 or 3, uint8 or float in [0, 1].

    Example:
        >>> measured = measure(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))
        >>> round(float(measured.darkest[0]), 2), abs(float(measured.information[0])), float(measured.width[0])
        (1.0, 0.0, 8.0)
    """
    x = images_of(images)
    columns = torch.cat([_columns(part) for part in x.split(max(1, NUMBERS // x[0].numel()))])
    return Measured(*columns.double().cpu().numpy().T)


def _columns(x: Tensor) -> Tensor:
    """Returns the measurements (B, 7) of images (B, C, H, W)."""
    color = (x if x.dtype == torch.uint8 else to_bytes(x)).float()
    light = luma(color)[:, 0]
    flat = light.flatten(1).sort(1).values / 255
    n, last = len(x), flat.shape[1] - 1
    histogram = flat.new_zeros(n, 256)
    level = light.flatten(1).round().long().clamp(0, 255)
    histogram.scatter_add_(1, level, torch.ones_like(flat))
    share = histogram / flat.shape[1]
    values = [
        flat[:, round(0.99 * last)],
        flat[:, round(0.05 * last)],
        _sharpness(light / 255),
        -torch.xlogy(share, share).sum(1) / np.log(2),
        (color - color.mean(1, keepdim=True)).abs().amax((1, 2, 3)),
        *(torch.full((n,), float(side), device=x.device) for side in x.shape[2:]),
    ]
    return torch.stack(values, 1)


def _sharpness(light: Tensor) -> Tensor:
    """Returns the deviation of the Laplacian of (B, H, W) relative to the luminance's; 0 where either cannot be computed."""
    if min(light.shape[1:]) < 3:
        return light.new_zeros(len(light))
    around = light[:, 2:, 1:-1] + light[:, :-2, 1:-1] + light[:, 1:-1, 2:] + light[:, 1:-1, :-2]
    edges = (4 * light[:, 1:-1, 1:-1] - around).square().mean((1, 2)).sqrt()
    contrast = light.flatten(1).std(1, correction=0)
    return torch.where(contrast > 1e-6, edges / contrast.clamp(min=1e-6), torch.zeros_like(edges))


def flags(measured: Measured, reference: Measured | None = None) -> dict[str, npt.NDArray[np.bool_]]:
    """Returns which images have an unusual plain property, by its usual name.

    - ``dark``: the 99th percentile of the luminance is below 0.32; ``light``: the 5th is above 0.95 (CleanVision's thresholds).
    - ``blurry``: sharpness below 0.4 of the reference's median.
    - ``low_information``: less than 3 bits, and less than 0.4 of the reference's median.
    - ``grayscale``: no channel differs by more than 2 of 255 from the mean.
    - ``odd_size``: the square root of the area is over 3 times, or under a third of, the reference's median.
    - ``odd_aspect_ratio``: width / height is below 0.35 of the reference's median, or above its inverse.

    A property that more than half of the reference has is not flagged: a folder of drawings is not full of errors. The reference
    are the images themselves by default. Returns (N,) of bool by name, in the order of ``FLAGS``.
    """
    usual = measured if reference is None else reference
    common = _properties(usual, usual)
    return {name: value & (common[name].mean() <= 0.5) for name, value in _properties(measured, usual).items()}


def _properties(m: Measured, usual: Measured) -> dict[str, npt.NDArray[np.bool_]]:
    size = np.log(m.height * m.width) / 2 - np.median(np.log(usual.height * usual.width) / 2)
    aspect = np.log(m.width / m.height) - np.median(np.log(usual.width / usual.height))
    values = (
        m.brightest < DARK,
        m.darkest > LIGHT,
        m.sharpness < SHARPNESS_SHARE * np.median(usual.sharpness),
        m.information < min(INFORMATION, INFORMATION_SHARE * float(np.median(usual.information))),
        m.color <= GRAY,
        np.abs(size) > np.log(SIZE),
        np.abs(aspect) > -np.log(ASPECT),
    )
    return dict(zip(FLAGS, values, strict=True))


def image_size(file: str | Path) -> tuple[int, int]:
    """Returns the height and width of an image file, from its header."""
    from PIL import Image

    expect(isinstance(file, str | Path), "the path of an image file", f"a {type(file).__name__}")
    try:
        with Image.open(file, formats=FORMATS) as opened:
            width, height = opened.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"expected an image file, found {file}: {error}") from error
    return height, width


@torch.no_grad()
def pixel_statistics(images: Any, grid: int = 4) -> Tensor:
    """Returns statistics of images (N, D) that need no network, in float32, on the images' device.

    For each cell of a ``grid`` x ``grid`` grid: the mean of each channel, and the logarithms of the deviation of the brightness
    and of its mean absolute differences to the right and downwards. For the whole image: the mean, the logarithm of the
    deviation and the skewness of each channel; correlations between channels; the logarithm of the mean absolute response at up
    to four scales of a pyramid; the logarithm of the noise level (Immerkær, Fast noise variance estimation, 1996); and the
    shares of black and white pixels. Logarithms make a lack of contrast as unusual as an excess of it.

    The images are (N, C, H, W), uint8 or floats in [0, 1], with sides of at least 2 pixels; at most the shorter side of cells is
    used.

    Example:
        >>> tuple(pixel_statistics(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape)
        (2, 115)
    """
    require_count(grid=grid)
    x = numeric("images", images)
    fits = x.ndim == 4 and min(x.shape[2:]) >= 2 and x.shape[1] >= 1
    expect(fits, "images (N, C, H, W) with sides of at least 2 pixels", tuple(x.shape), "reshape them")
    last = x.shape[3] == 3 and x.shape[1] > 4
    expect(not last, "images (N, C, H, W)", f"{tuple(x.shape)}, whose channels are last", "move them to the front")
    finite = x.flatten(1).isfinite().all(1)
    if not finite.all():
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
    return [
        F.adaptive_avg_pool2d(x, grid),
        _log(variance.clamp(min=0).sqrt()),
        *(_log(F.adaptive_avg_pool2d(d, grid)) for d in (right, down)),
    ]


def _moments(x: Tensor) -> list[Tensor]:
    """Returns moments and correlations of the channels, and the shares of black and white pixels."""
    flat = x.flatten(2)
    mean = flat.mean(2, keepdim=True)
    centered = flat - mean
    std = centered.square().mean(2, keepdim=True).sqrt()
    unit = centered / (std + FLOOR)
    C = x.shape[1]
    i, j = torch.triu_indices(C, C, 1)
    correlation = (unit @ unit.mT / flat.shape[2])[:, i, j]
    ends = torch.stack([(flat <= FLOOR).float().mean((1, 2)), (flat >= 1 - FLOOR).float().mean((1, 2))], 1)
    return [mean, _log(std), unit.pow(3).mean(2), correlation, ends]


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
