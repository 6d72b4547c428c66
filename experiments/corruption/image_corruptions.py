"""The 16 corruptions of the CIFAR-10 experiment of arXiv:2505.12477, at severities 1 to 5, for batches of images.

D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", arXiv:1903.12261.
`STRENGTHS` are the published ones of CIFAR-10-C, for images of 32 pixels; lengths are in pixels and do not grow with the image.
The code is ours: `imagecorruptions` has other strengths, for photographs, and needs OpenCV and numba. Differences:

- frost: the published code blends photographs of frost; here the ridges of a plasma fractal stand for them.
- spatter of severities 1 to 3: the drops are not shaded by their edges.
- zoom_blur and snow: images are enlarged about their center without rounding the crop to whole pixels.
- bytes are rounded, not truncated.

glass_blur follows the published code, whose exchange of two views of an array copies one of the pixels over the other.

Every image has its own seed, from which all its random numbers follow; float64 gives other numbers than float32.
"""

import functools
import io
import math

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter1d
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import luma, to_unit
from vergence.utils.checks import require_choice

STRENGTHS = {  # of the five severities
    "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),  # deviation, rounds
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),  # weights of the image and of the frost
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),  # the saturation's factor and offset
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # share of values that become 0 or 1
    "jpeg_compression": (80, 65, 58, 50, 40),  # quality
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),  # radius, deviation of the kernel's blur
    "snow": (  # mean, deviation, zoom and threshold of the flakes; radius and deviation of their motion; weight of the image
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # deviation
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),  # deviation
    "spatter": (  # mean, deviation, blur and threshold of the liquid; opacity, or the mask's blur; whether it is mud
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # offset of the largest channel
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),  # share of the pixels per side that remain
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),  # thickness, decay of the fractal
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),  # deviation, as a share of the value
    "shot_noise": (500, 250, 100, 75, 50),  # photons of a white pixel
    "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),  # end of the zooms, from 1 in steps of 0.01
}
KINDS = tuple(STRENGTHS)
LEAST = 8  # pixels a side, of corruptions that read neighboring pixels
SINGLE = ("saturate", "impulse_noise", "gaussian_noise", "brightness", "speckle_noise", "shot_noise")  # that read none
WATER, MUD, ICE = (175, 238, 238), (63, 42, 20), (217, 237, 255)  # colors


class Numbers:
    """Random numbers of B images, each from its own generator on the CPU."""

    def __init__(self, seeds: Tensor, like: Tensor) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds.tolist()]
        self.like = like

    def normal(self, *shape: int) -> Tensor:
        return torch.stack([torch.randn(shape, generator=g, dtype=self.like.dtype) for g in self.generators]).to(self.like.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.stack([torch.rand(shape, generator=g, dtype=self.like.dtype) for g in self.generators]).to(self.like.device)

    def poisson(self, rate: Tensor) -> Tensor:
        parts = [torch.poisson(one, generator=g) for one, g in zip(rate.cpu(), self.generators, strict=True)]
        return torch.stack(parts).to(rate)


def corrupted(x: Tensor, kind: str, severity: int, seeds: Tensor) -> Tensor:
    """Returns corrupted images, of the shape and type of the given ones.

    Args:
        x: Images (B, C, H, W), C = 1 or 3: uint8, or floats in [0, 1].
        kind: One of `KINDS`.
        severity: From 1 to 5.
        seeds: Seed of each image, (B,) of whole numbers.

    Raises:
        ValueError: There is no such corruption or severity, or the images are too small for it or lack the colors.
    """
    require(tuple(x.shape[1:]), kind, severity)
    strength = STRENGTHS[kind][severity - 1]
    y = to_unit(x)
    given = strength if isinstance(strength, tuple) else (strength,)
    y = globals()[kind](y, *given, Numbers(seeds, y)).clamp(0, 1)
    return (255 * y).round().byte() if x.dtype == torch.uint8 else y


def require(shape: tuple[int, ...], kind: str, severity: int) -> None:
    """Raises a ValueError unless images of a shape (C, H, W) can have a corruption."""
    require_choice("a corruption", kind, KINDS)
    if severity not in range(1, 6):
        raise ValueError(f"expected a severity from 1 to 5, found {severity}; choose one of them")
    channels, *sides = shape
    if kind == "saturate" and channels != 3:
        raise ValueError(f"expected images of 3 channels for corruption 'saturate', found {channels}; choose another corruption")
    if kind not in SINGLE and min(sides) < LEAST:
        raise ValueError(
            f"expected images of at least {LEAST} pixels a side for corruption '{kind}', found {sides[0]} x {sides[1]}; "
            f"choose larger images, or one of {', '.join(SINGLE)}"
        )


# Noise


def gaussian_noise(x: Tensor, deviation: float, numbers: Numbers) -> Tensor:
    return x + deviation * numbers.normal(*x.shape[1:])


def speckle_noise(x: Tensor, deviation: float, numbers: Numbers) -> Tensor:
    return x + x * deviation * numbers.normal(*x.shape[1:])


def shot_noise(x: Tensor, photons: float, numbers: Numbers) -> Tensor:
    return numbers.poisson(photons * x) / photons


def impulse_noise(x: Tensor, share: float, numbers: Numbers) -> Tensor:
    hit, white = numbers.uniform(*x.shape[1:]) < share, numbers.uniform(*x.shape[1:]) < 0.5
    return torch.where(hit, white.to(x), x)


# Blur


def along_both(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns rows @ x @ columns^T for each channel."""
    return torch.einsum("ih,bchw,jw->bcij", rows.to(x), x, columns.to(x))


@functools.cache
def gaussian_matrix(n: int, deviation: float) -> Tensor:
    """Returns the matrix (n, n) of a Gaussian filter along a line of n pixels, whose ends are repeated."""
    return torch.from_numpy(gaussian_filter1d(np.eye(n), deviation, axis=0, mode="nearest"))


def gaussian_blur(x: Tensor, deviation: float, numbers: Numbers | None = None) -> Tensor:
    return along_both(x, *(gaussian_matrix(n, deviation) for n in x.shape[2:]))


def glass_blur(x: Tensor, deviation: float, rounds: int, numbers: Numbers) -> Tensor:
    """Blurs, gives each pixel the value of itself or of its neighbor above, to the left, or both, and blurs again."""
    x = gaussian_blur(x, deviation)
    height, width = x.shape[2:]
    place = torch.arange(height * width, device=x.device).view(height, width)
    for _ in range(rounds):
        up, left = (numbers.uniform(2, height, width) < 0.5).unbind(1)
        index = place - width * up - left * 1
        index[:, :2], index[:, :, :2] = place[:2], place[:, :2]
        x = x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
    return gaussian_blur(x, deviation)


@functools.cache
def disk(radius: float, deviation: float) -> Tensor:
    """Returns a disk (n, n) of sum 1, blurred by a Gaussian of 3 x 3 pixels."""
    reach = math.ceil(radius) + 1
    t = torch.arange(-reach, reach + 1, dtype=torch.float64)
    inside = (t[:, None].square() + t.square() <= radius**2).double()
    k = torch.softmax(-0.5 * (torch.arange(-1.0, 2.0, dtype=torch.float64) / deviation) ** 2, 0)
    return F.conv2d((inside / inside.sum())[None, None], torch.outer(k, k)[None, None], padding=1)[0, 0]


def defocus_blur(x: Tensor, radius: float, deviation: float, numbers: Numbers) -> Tensor:
    kernel = disk(radius, deviation).to(x)
    reach, channels = len(kernel) // 2, x.shape[1]
    return F.conv2d(F.pad(x, (reach,) * 4, mode="reflect"), kernel.expand(channels, 1, -1, -1), groups=channels)


@functools.cache
def zoom_matrix(n: int, factor: float) -> Tensor:
    """Returns the matrix (n, n) that enlarges a line of n pixels about its center, linear between pixels."""
    place = (torch.arange(n, dtype=torch.float64) - (n - 1) / 2) / factor + (n - 1) / 2
    return (1 - (place[:, None] - torch.arange(n)).abs()).clamp(min=0)


def zoomed(x: Tensor, factor: float) -> Tensor:
    return along_both(x, *(zoom_matrix(n, factor) for n in x.shape[2:]))


def zoom_blur(x: Tensor, end: float, numbers: Numbers) -> Tensor:
    factors = np.arange(1, end, 0.01).tolist()
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


# Weather


def plasma(numbers: Numbers, height: int, width: int, decay: float) -> Tensor:
    """Returns plasma fractals (B, 1, H, W) in [0, 1], of the diamond-square algorithm on a torus.

    In each step the grid is refined: centers of squares, then the points between neighbors, are the mean of the four points
    around them and a uniform number, whose range is divided by the square of the decay from step to step.
    """
    side = 1 << max(5, math.ceil(math.log2(max(height, width))))
    p = numbers.like.new_zeros(len(numbers.generators), side, side)
    step, reach = side, 1.0

    def random(mean: Tensor) -> Tensor:
        return mean + reach * (2 * numbers.uniform(*mean.shape[1:]) - 1)

    while step > 1:
        half = step // 2
        corners = p[:, ::step, ::step].clone()
        beside, below = corners + corners.roll(-1, 2), corners + corners.roll(-1, 1)
        centers = random((beside + beside.roll(-1, 1)) / 4)
        p[:, half::step, half::step] = centers
        p[:, ::step, half::step] = random((beside + centers + centers.roll(1, 1)) / 4)
        p[:, half::step, ::step] = random((below + centers + centers.roll(1, 2)) / 4)
        step, reach = half, reach / decay**2
    p -= p.amin((1, 2), keepdim=True)
    return (p / p.amax((1, 2), keepdim=True))[:, None, :height, :width]


def fog(x: Tensor, thickness: float, decay: float, numbers: Numbers) -> Tensor:
    most = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * plasma(numbers, *x.shape[2:], decay)) * most / (most + thickness)


def tinted(layer: Tensor, color: tuple[int, int, int], x: Tensor) -> Tensor:
    """Returns a layer (B, 1, H, W) in a color, or in its gray where the images are gray."""
    shade = x.new_tensor(color).view(1, 3, 1, 1) / 255
    return layer * (shade if x.shape[1] == 3 else luma(shade))


def frost(x: Tensor, own: float, weight: float, numbers: Numbers) -> Tensor:
    ridges = 1 - (2 * plasma(numbers, *x.shape[2:], 1.5) - 1).abs()
    return own * x + weight * tinted(0.3 + 0.7 * ridges.square(), ICE, x)


def moved(x: Tensor, distance: float, angle: Tensor) -> Tensor:
    """Returns images (B, C, H, W), each moved by a distance in pixels along its angle (B,); borders are repeated."""
    scale = x.new_tensor([2 / (x.shape[3] - 1), 2 / (x.shape[2] - 1)])
    theta = torch.eye(2, 3, dtype=x.dtype, device=x.device).repeat(len(x), 1, 1)
    theta[:, :, 2] = distance * torch.stack([angle.cos(), angle.sin()], 1) * scale
    grid = F.affine_grid(theta, list(x.shape), align_corners=True)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=True)


def motion_blur(x: Tensor, radius: int, deviation: float, angle: Tensor) -> Tensor:
    """Returns images averaged over their motion along an angle (B,), with the weights of half a Gaussian.

    It has 2 radius + 1 pixels, as the kernel of ImageMagick, with which CIFAR-10-C was made: as many as a two-sided one.
    """
    weights = torch.softmax(-0.5 * (torch.arange(2 * radius + 1, dtype=torch.float64) / deviation) ** 2, 0).tolist()
    return sum(weight * moved(x, t, angle) for t, weight in enumerate(weights))


def snow(
    x: Tensor, mean: float, spread: float, zoom: float, least: float, radius: int, motion: float, own: float, numbers: Numbers
) -> Tensor:
    flakes = zoomed(mean + spread * numbers.normal(1, *x.shape[2:]), zoom)
    flakes = torch.where(flakes < least, 0, flakes).clamp(0, 1)
    angle = math.radians(-45) - math.radians(90) * numbers.uniform(1)[:, 0]
    flakes = motion_blur(flakes, radius, motion, angle)
    white = torch.maximum(x, 1.5 * luma(x) + 0.5)
    return own * x + (1 - own) * white + flakes + flakes.rot90(2, (2, 3))


def spatter(x: Tensor, mean: float, spread: float, blur: float, least: float, last: float, mud: bool, numbers: Numbers) -> Tensor:
    liquid = gaussian_blur(mean + spread * numbers.normal(1, *x.shape[2:]), blur)
    if mud:
        cover = gaussian_blur((liquid > least).to(x), last)
        cover = torch.where(cover < 0.8, 0, cover)
        return x * (1 - cover) + tinted(cover, MUD, x)
    drops = torch.where(liquid < least, 0, liquid)
    most = drops.amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return x + tinted(last * drops / most, WATER, x)


# Color and resolution


def brightness(x: Tensor, offset: float, numbers: Numbers) -> Tensor:
    """Raises the value of HSV, the largest channel, and keeps hue and saturation."""
    v = x.amax(1, keepdim=True)
    brighter = (v + offset).clamp(max=1)
    return torch.where(v > 0, x * brighter / v.clamp(min=torch.finfo(x.dtype).tiny), brighter)


def saturate(x: Tensor, factor: float, offset: float, numbers: Numbers) -> Tensor:
    """Changes the saturation of HSV, and keeps hue and value; gray has the hue of red, as everywhere in HSV."""
    v, u = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    share = (v - u) / v.clamp(min=torch.finfo(x.dtype).tiny)
    new = (factor * share + offset).clamp(0, 1)
    red = torch.cat([v, v * (1 - new), v * (1 - new)], 1)
    return torch.where(share > 0, v - (v - x) * new / share.clamp(min=torch.finfo(x.dtype).tiny), red)


def jpeg_compression(x: Tensor, quality: int, numbers: Numbers) -> Tensor:
    parts = []
    for one in (255 * x).round().byte().permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(one.squeeze()).save(file, "JPEG", quality=quality)
        parts.append(torch.from_numpy(np.array(Image.open(file)).reshape(one.shape)))
    return torch.stack(parts).permute(0, 3, 1, 2).to(x) / 255


@functools.cache
def box_matrix(n: int, m: int) -> Tensor:
    """Returns the matrix (m, n) of Pillow's box filter, which resizes a line of n pixels to m."""
    shown = Image.fromarray(np.eye(n, dtype=np.float32)).resize((n, m), Image.Resampling.BOX)
    return torch.from_numpy(np.array(shown))


def pixelate(x: Tensor, share: float, numbers: Numbers) -> Tensor:
    rows, columns = (box_matrix(int(n * share), n) @ box_matrix(n, int(n * share)) for n in x.shape[2:])
    return along_both(x, rows, columns)
