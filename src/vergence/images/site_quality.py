r"""Quality of a site of a microscopy plate, channel by channel; some are CellProfiler's MeasureImageQuality, with its names.

Of the counts of each value of a channel: mean, deviation, median, median absolute deviation, least and largest value in [0, 1] of
the type's range, and the percentage of the pixels that have the last two. ``FocusScore`` is the variance divided by the mean.
``PowerLogLogSlope``, of other frequencies than CellProfiler's, is the slope of log power by log frequency, each summed.

Of means of blocks of 2 x 2 and 8 x 8 pixels: ``LogLaplacian2`` and ``LogLaplacian8``, log energy of their Laplacian, relative to
the square of the brightness above the ``Background``, the dimmest blocks; ``Shading``, slopes and curvatures of the dimmer blocks
over the site; ``Bright``, how far the brightest part of 1 / 200 is above the median, in deviations, as a logarithm; ``Smooth``,
log brightness relative to the Laplacian in the tile where it is largest; ``Blobs``, log 1 + number of local maxima.

Shapes: a site (C, H, W); T x T tiles.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import fft, ndimage

from vergence.data.image_list import LoadedImage
from vergence.utils.dtypes import Array, Floats, Singles

__all__ = ["measured", "site_quality"]

BINS = 1 << 16
TILES, THUMBNAIL = 16, 64  # rows and columns of a heatmap; pixels of the longer side of a small image, about
SMALL, LARGE = 2, 8  # pixels per side of blocks
SIDE = 1024  # pixels per side of the middle part whose power spectrum is computed, at most
DIM = 0.02  # of the blocks, which are taken for background
REACH = 10  # blocks by which channels are shifted to fit, at most
PART = 1 / 200  # of a site, the least part that debris covers
CELLPROFILER = (
    "MeanIntensity", "StdIntensity", "MedianIntensity", "MADIntensity", "MinIntensity", "MaxIntensity", "PercentMinimal",
    "PercentMaximal", "FocusScore",
)  # fmt: skip
CHANNEL = (
    *CELLPROFILER, "PowerLogLogSlope", "LogLaplacian2", "LogLaplacian8", "Background", "ShadingX", "ShadingY", "ShadingXX",
    "ShadingYY", "Bright", "Smooth", "Blobs",
)  # fmt: skip
FLOOR = 1e-12


def site_quality(image: LoadedImage) -> dict[str, Any]:
    """Returns the measurements of channels (C, M), of pairs of them (P, 2), and of tiles (C, 3, T, T), and the site in small."""
    table, details, tiles = zip(*map(measured, image.pixels), strict=True)
    small = [blocks(plane.astype(np.float32), max(1, max(plane.shape) // THUMBNAIL)) for plane in image.pixels]
    return {"channels": np.stack(table), "pairs": between(details), "tiles": np.stack(tiles), "small": np.stack(small)}


def measured(plane: Array) -> tuple[Floats, Singles, Singles]:
    """Returns the measurements (M,) of a channel (H, W), its details in small blocks, and its tiles (3, T, T).

    Tiles have the log energy of the Laplacian, the dimmest and the brightest block.

    Example:
        >>> row, _, tiles = measured(np.random.default_rng(0).poisson(900, (64, 64)).astype(np.uint16))
        >>> dict(zip(CHANNEL, row.round(4).tolist(), strict=True))["MedianIntensity"], tiles.shape
        (0.0137, (3, 16, 16))
    """
    x = np.asarray(plane * np.float32(1 / np.iinfo(plane.dtype).max if plane.dtype.kind in "ui" else 1), dtype=np.float32)
    values = _of_counts(plane, x)
    small, large = blocks(x, SMALL), blocks(x, LARGE)
    values["Background"] = float(np.quantile(large, DIM))
    brightness = max(values["MeanIntensity"] - values["Background"], 1e-4)
    energy = np.square(ndimage.laplace(small, mode="nearest"))
    values["PowerLogLogSlope"] = _slope(x)
    values["LogLaplacian2"] = float(np.log(energy.mean() / brightness**2 + FLOOR))
    values["LogLaplacian8"] = float(np.log(np.square(ndimage.laplace(large, mode="nearest")).mean() / brightness**2 + FLOOR))
    values |= _shading(large)
    values["Bright"] = _bright(large)
    values["Smooth"] = _smooth_part(small - values["Background"], energy)
    values["Blobs"] = float(np.log1p(_blobs(large)))
    tiles = np.stack([np.log(_tiles(energy).mean(-1) + FLOOR), _tiles(large).min(-1), _tiles(large).max(-1)])
    details = np.asarray(small - ndimage.uniform_filter(small, 15))
    return np.array([values[name] for name in CHANNEL]), details, tiles.astype(np.float32)


def _of_counts(plane: Array, x: Singles) -> dict[str, float]:
    """Returns what the counts of the values tell."""
    if plane.dtype.kind == "u" and plane.dtype.itemsize <= 2:
        top = np.iinfo(plane.dtype).max
        every = np.bincount(plane.ravel(), minlength=top + 1)
        found = np.flatnonzero(every)
        count, value = every[found], found / top
    else:
        value, count = np.unique(x.astype(np.float64), return_counts=True)
    n, share = count.sum(), np.cumsum(count) / count.sum()
    mean = float(count @ value / n)
    variance = float(count @ np.square(value - mean) / n)
    median = float(value[int(np.searchsorted(share, 0.5))])
    away = np.abs(value - median)
    order = np.argsort(away, kind="stable")
    mad = float(away[order][int(np.searchsorted(np.cumsum(count[order]) / n, 0.5))])
    return {
        "MeanIntensity": mean, "StdIntensity": variance**0.5, "MedianIntensity": median, "MADIntensity": mad,
        "MinIntensity": float(value[0]), "MaxIntensity": float(value[-1]), "PercentMinimal": float(100 * count[0] / n),
        "PercentMaximal": float(100 * count[-1] / n), "FocusScore": variance / max(mean, FLOOR),
    }  # fmt: skip


def blocks(x: Array, side: int) -> Singles:
    """Returns means of blocks of side x side pixels, of smaller ones where they would be too few; at least T x T of them."""
    if min(x.shape) < TILES:
        x = np.pad(x, [(0, max(0, TILES - n)) for n in x.shape], mode="edge")
    side = max(1, min(side, min(x.shape) // TILES))
    rows, columns = (n // side for n in x.shape)
    lines = x[: rows * side, : columns * side].reshape(rows, side, columns * side).mean(1)
    return np.asarray(lines.reshape(rows, columns, side).mean(2), dtype=np.float32)


def between(details: Sequence[Singles]) -> Floats:
    """Returns the correlation of each pair of channels, and by how many pixels one is shifted to fit best, (P, 2).

    Of details in small blocks; the shift is that of the largest cross-correlation, at most `REACH` blocks in each direction.
    """
    spectra = [fft.rfft2(x / (np.sqrt(np.square(x).sum()) + FLOOR)) for x in details]
    found = []
    for a, b in itertools.combinations(spectra, 2):
        c = fft.irfft2(a * b.conj(), s=details[0].shape)
        near = np.roll(c, (REACH, REACH), (0, 1))[: 2 * REACH + 1, : 2 * REACH + 1]
        r, k = np.unravel_index(int(near.argmax()), near.shape)
        found.append((float(c[0, 0]), SMALL * float(np.hypot(r - REACH, k - REACH))))
    return np.array(found, dtype=np.float64).reshape(-1, 2)


def _slope(x: Singles) -> float:
    """Returns the slope of log power by log frequency, of the middle part of an image."""
    side = min(SIDE, *x.shape)
    top, left = ((n - side) // 2 for n in x.shape)
    part = x[top : top + side, left : left + side]
    power = np.square(np.abs(fft.rfft2(part - part.mean())))
    total = np.bincount(_radius(side), power.ravel())[1 : side // 2]
    at = np.arange(1, len(total) + 1)
    used = total > 0
    return float(np.polyfit(np.log(at[used]), np.log(total[used]), 1)[0]) if used.sum() > 2 else 0.0


@functools.lru_cache(maxsize=2)
def _radius(side: int) -> Array:
    """Returns the frequency, in whole cycles an image, of each entry of a spectrum of side x side pixels; one for all sites."""
    cycles = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)) * side
    return np.asarray(np.rint(cycles).astype(np.int32).ravel())


def _shading(large: Singles) -> dict[str, float]:
    """Returns slopes and curvatures over the site of the dimmer blocks of each tile, relative to their mean."""
    every = np.sort(_tiles(large), -1)
    tiles = every[..., every.shape[-1] // 10]
    u = np.linspace(-1, 1, TILES)
    v, w = (np.broadcast_to(one, tiles.shape).ravel() for one in (u[:, None], u[None]))
    design = np.stack([np.ones_like(v), w, v, w * w - 1 / 3, v * v - 1 / 3], 1)
    y, rows = tiles.ravel().astype(np.float64), np.ones(tiles.size, dtype=bool)
    for _ in range(3):  # cells on some tiles do not count
        found = np.linalg.lstsq(design[rows], y[rows], rcond=None)[0]
        residual = y - design @ found
        rows = residual <= np.quantile(residual, 0.8)
    level = max(abs(found[0]), 1e-6)
    return dict(zip(("ShadingX", "ShadingY", "ShadingXX", "ShadingYY"), (found[1:] / level).tolist(), strict=True))


def _bright(blocks: Singles) -> float:
    """Returns how far the brightest part is above the median, in deviations of blocks, as a logarithm."""
    wide = ndimage.uniform_filter(blocks, max(1, round((PART * blocks.size) ** 0.5)))
    middle = float(np.median(wide))
    return float(np.log1p((float(wide.max()) - middle) / (1.4826 * float(np.median(np.abs(wide - middle))) + 1e-6)))


def _smooth_part(blocks: Singles, energy: Singles) -> float:
    """Returns the log brightness relative to the Laplacian of the tile where it is largest, among the brighter half."""
    light, rough = np.maximum(_tiles(blocks).mean(-1), 1e-5), _tiles(energy).mean(-1) + FLOOR
    bright = light >= np.median(light)
    return float((np.log(light) - np.log(rough) / 2)[bright].max())


def _blobs(blocks: Singles) -> int:
    """Returns the number of blocks that are brighter than all around them, and than most."""
    smooth = ndimage.gaussian_filter(blocks, 1.0)
    middle = np.median(smooth)
    cut = middle + max(0.25 * (np.quantile(smooth, 0.99) - middle), 3 * 1.4826 * np.median(np.abs(smooth - middle)))
    return int(((ndimage.maximum_filter(smooth, 5) == smooth) & (smooth > cut)).sum())


def _tiles(x: Singles) -> Array:
    """Returns T x T tiles of blocks, (T, T, n)."""
    r, c = (n // TILES for n in x.shape)
    parts = x[: TILES * r, : TILES * c].reshape(TILES, r, TILES, c)
    return np.asarray(parts.transpose(0, 2, 1, 3).reshape(TILES, TILES, r * c))
