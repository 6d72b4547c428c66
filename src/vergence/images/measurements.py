"""Plain measurements of one whole image at its full size, and the properties that they tell: dark, blurry, and so on.

Shapes: an image (C, H, W) uint8; N images, M measurements.
"""

from collections.abc import Sequence

import numpy as np

from vergence.data.numbers import viewed
from vergence.utils.dtypes import Bools, Bytes, Floats, Singles

__all__ = ["WORDS", "common_properties", "measure", "properties"]

QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)
BORDERS = ("top", "bottom", "left", "right")
BORDER = 16  # of the shorter side to the width of a border
FLOOR = 1e-3  # added before logarithms, of a range of 1: less than half a step of bytes, which is all that bytes can tell
MEASUREMENTS = (
    "height", "width", "information", "colorfulness", "local_sharpness",
    "sharpness", "edges", "edge_deviation", "noise", "noise_median", "contrast",
    "red", "green", "blue", "red_deviation", "green_deviation", "blue_deviation", "saturation",
    *(f"light_{round(100 * q):02d}" for q in QUANTILES),
    *(f"{side}_light" for side in BORDERS), *(f"{side}_deviation" for side in BORDERS),
)  # fmt: skip
PROPERTIES = {  # and the word for what has it
    "dark": "dark", "light": "light", "blurry": "blurry", "low_information": "nearly empty", "grayscale": "gray",
    "extreme_size": "with an extreme size", "extreme_aspect_ratio": "with an extreme aspect ratio",
}  # fmt: skip
DARK, LIGHT = 0.32, 0.95  # CleanVision's thresholds
SHARPNESS_SHARE, INFORMATION_SHARE, INFORMATION = 0.3, 0.4, 3.0
TILE, MOST_CONTRAST = 16, 0.75  # pixels per side; quantile of the contrast from which on tiles tell sharpness
ROUNDING = 20 / 12 / 255**2  # variance of the Laplacian that rounding to bytes gives
COMMON, SEVERAL = 0.05, 20  # share and number of the reference images above which a property is common
FLAT = 0.02  # of the luminance, between the 5th and the 99th percentile
GRAY = 2.0  # of 255
SIZE, ASPECT = 3.0, 0.35
RATIO, ENOUGH = 2.0, 20  # ratio of sizes, and number, of the images that a sharpness is compared with


def measure(pixels: Bytes) -> Floats:
    """Returns the measurements (M,) of an image, in the order of ``MEASUREMENTS``.

    - ``height``, ``width`` in pixels; ``information``: entropy of the luminance's histogram of 256 levels, in bits;
      ``colorfulness``: largest difference of a channel from the channels' mean, of 255; ``local_sharpness``: deviation of the
      Laplacian divided by that of the luminance, in the quarter of the tiles with most contrast; 0 where they have none.
    - ``sharpness``: deviation of the Laplacian divided by that of the luminance, 0 without contrast.
    - Logarithms: of the mean and the deviation of the absolute Laplacian; of the mean and the median response to a mask that
      sees noise alone (Immerkær, Fast noise variance estimation, 1996); of the contrast, the deviation of the luminance.
    - Means of the channels and the logarithms of their deviations; mean of the saturation (largest less smallest channel);
      quantiles of the luminance; mean and log-deviation of the luminance at each border. The range is [0, 1].
    """
    x = viewed(pixels)
    light, largest = _light(x), x.max(0)
    difference = np.subtract(largest, x.min(0), out=largest)
    mean, deviation = (np.resize(one, 3) for one in zip(*map(_mean_and_deviation, x), strict=True))
    share = _share(np.asarray(255 * light + 0.5, dtype=np.uint8))
    contrast, edges, noise = _deviation(light), _laplacian(light), np.abs(np.diff(np.diff(_inner(light), 2, 0), 2, 1)).ravel()
    step = 1 + noise.size // 65_536
    values = [
        *pixels.shape[1:],
        -float(share[share > 0] @ np.log2(share[share > 0])),
        float(difference.max()),
        _local_sharpness(light, edges),
        _deviation(edges) / contrast if contrast > 1e-6 else 0.0,
        *_logs(float(np.abs(edges).mean()), _deviation(edges), float(noise.mean()), float(np.median(noise[::step])), contrast),
        *mean,
        *_logs(*deviation),
        float(difference.mean()) / 255,
        *(np.searchsorted(np.cumsum(share), np.array(QUANTILES) - 1e-12) / 255),
    ]
    width = max(1, min(light.shape) // BORDER)
    borders = light[:width], light[-width:], light[:, :width], light[:, -width:]
    return np.array([*values, *(part.mean() for part in borders), *_logs(*(part.std() for part in borders))], dtype=np.float64)


def _light(x: Bytes) -> Singles:
    """Returns the luminance (H, W) in [0, 1] of an image (C, H, W) of 1 or 3 channels."""
    weights = np.array((0.299, 0.587, 0.114) if len(x) == 3 else (1,), dtype=np.float32) / np.float32(255)
    light: Singles = np.multiply(x[0], weights[0], dtype=np.float32)
    for plane, weight in zip(x[1:], weights[1:], strict=True):
        light += np.multiply(plane, weight, dtype=np.float32)
    return light


def _share(plane: Bytes) -> Floats:
    """Returns the share of the pixels (H, W) that has each of 256 values."""
    from PIL import Image

    return np.array(Image.fromarray(plane).histogram(), dtype=np.float64) / plane.size


def _mean_and_deviation(plane: Bytes) -> tuple[float, float]:
    """Returns mean and deviation of bytes (H, W), of a range of 1."""
    share, value = _share(plane), np.arange(256) / 255
    mean = float(share @ value)
    return mean, float(np.sqrt(share @ np.square(value - mean)))


def _deviation(x: Singles) -> float:
    centered = (x - x.mean()).ravel()
    return float(np.sqrt(centered @ centered / x.size))


def _logs(*values: float) -> Floats:
    return np.log(np.array(values, dtype=np.float64) + FLOOR)


def _laplacian(light: Singles) -> Singles:
    """Returns the Laplacian at all inner pixels; an image without any is continued by its borders."""
    light = _inner(light)
    edges: Singles = 4 * light[1:-1, 1:-1]
    for part in (light[2:, 1:-1], light[:-2, 1:-1], light[1:-1, 2:], light[1:-1, :-2]):
        edges -= part
    return edges


def _local_sharpness(light: Singles, edges: Singles) -> float:
    """Returns how much of the contrast of tiles with most of it lies in their edges; plain and dark areas do not count."""
    sides = [min(n, max(4, min(TILE, min(edges.shape) // 4))) for n in edges.shape]
    rows, columns = (n // side for n, side in zip(edges.shape, sides, strict=True))

    def means(x: Singles) -> Floats:
        lines = x[: rows * sides[0]].reshape(rows, sides[0], -1).sum(1)[:, : columns * sides[1]]
        return np.asarray(lines.reshape(rows, columns, sides[1]).sum(2, dtype=np.float64) / np.prod(sides))

    inner = _inner(light)[1:-1, 1:-1] - light.mean()
    contrast, energy = means(np.square(inner)) - np.square(means(inner)), means(np.square(edges))
    first = contrast >= np.quantile(contrast, MOST_CONTRAST)
    seen = float(contrast[first].mean())
    return float(np.sqrt(max(float(energy[first].mean()) - ROUNDING, 1e-9) / seen)) if seen > 1 / 255**2 else 0.0


def _inner(light: Singles) -> Singles:
    pad = [(0, max(0, 3 - side)) for side in light.shape]
    return np.pad(light, pad, mode="edge") if any(after for _, after in pad) else light


def properties(table: Floats, reference: Floats | None = None) -> dict[str, Bools]:
    """Returns which images have each property, (N,) bool each.

    - ``dark``: the 99th percentile of the luminance is below 0.32; ``light``: the 5th is above 0.95 (CleanVision's thresholds).
    - ``blurry``: local sharpness below 0.3 of the median of the reference images of a similar size; what is dark or has no
      contrast is not blurry.
    - ``low_information``: less than 3 bits, and less than 0.4 of the reference's median.
    - ``grayscale``: no channel differs by more than 2 of 255 from the mean.
    - ``extreme_size``: the square root of the area is over 3 times, or under a third of, the reference's median.
    - ``extreme_aspect_ratio``: width / height is below 0.35 of the reference's median, or above its inverse.

    A property of `common_properties` is not reported: a folder of drawings is not full of errors. Tables (N, M) are of `measure`;
    the reference is the images themselves by default.
    """
    reference = table if reference is None else reference
    common = common_properties(reference)
    return {name: value & (name not in common) for name, value in _properties(table, reference).items()}


def common_properties(reference: Floats) -> dict[str, int]:
    """Returns how many of the reference images have each property that is common: more than half, or many of them.

    Many are above 5 % and 20 images. ``reference`` (N, M) is of `measure`.
    """
    found = {name: int(value.sum()) for name, value in _properties(reference, reference).items()}
    return {name: n for name, n in found.items() if n > len(reference) / 2 or n > max(SEVERAL, COMMON * len(reference))}


def _properties(table: Floats, reference: Floats) -> dict[str, Bools]:
    m, u = (dict(zip(MEASUREMENTS, part.T, strict=True)) for part in (table, reference))
    size, reference_size = (np.log(part["height"] * part["width"]) / 2 for part in (m, u))
    aspect = np.log(m["width"] / m["height"]) - np.median(np.log(u["width"] / u["height"]))
    sharp = m["local_sharpness"]
    found, place = np.unique(size, return_inverse=True)
    similar = (np.abs(reference_size - one) <= np.log(RATIO) for one in found)  # reference images of one's size; all if few
    medians = [np.median(u["local_sharpness"][near] if near.sum() >= ENOUGH else u["local_sharpness"]) for near in similar]
    unsharp = sharp < SHARPNESS_SHARE * np.array(medians, dtype=np.float64)[place]
    blurred = unsharp & (sharp > 0) & (m["light_99"] >= DARK)
    values = (
        m["light_99"] < DARK,
        m["light_05"] > LIGHT,
        blurred & (m["light_99"] - m["light_05"] > FLAT),
        m["information"] < min(INFORMATION, INFORMATION_SHARE * float(np.median(u["information"]))),
        is_gray(table),
        np.abs(size - np.median(reference_size)) > np.log(SIZE),
        np.abs(aspect) > -np.log(ASPECT),
    )
    return dict(zip(PROPERTIES, values, strict=True))


def is_gray(table: Floats) -> Bools:
    """Returns which images have no color, (N,), of a table (N, M) of `measure`; none of a table without columns."""
    colorful = table[:, MEASUREMENTS.index("colorfulness")] if table.shape[1] else np.full(len(table), np.inf)
    return np.asarray(colorful <= GRAY)


WORDS = {  # of measurements that a person can see, below and above the median
    "sharpness": ("blurrier", "sharper"),
    "edges": ("fewer edges", "more edges"),
    "noise_median": ("smoother", "noisier"),
    "contrast": ("less contrast", "more contrast"),
    "saturation": ("less colorful", "more colorful"),
    "light_50": ("darker", "lighter"),
    "light_01": ("darker shadows", "lighter shadows"),
    "light_99": ("darker highlights", "brighter highlights"),
    "red": ("less red", "more red"),
    "green": ("less green", "more green"),
    "blue": ("less blue", "more blue"),
    **{f"{side}_light": (f"{side} border darker", f"{side} border lighter") for side in BORDERS},
    **{f"{side}_deviation": (f"{side} border more even", f"{side} border busier") for side in BORDERS},
}
KINDS = ("light_50", "saturation", "red", "green", "blue", "sharpness", "noise_median")  # that lights and cameras change
SPLIT, KIND, FEWEST = 0.15, 0.03, 10  # of the variance, within two kinds; of the images, each kind; images of each
HUES = ("red", "green", "blue")  # which are left out for a gray image
NAMED, FARTHEST = 2.5, 2  # robust deviations from which a measurement is named; measurements that are named


def differences_in_words(deviations: Floats, names: Sequence[str], *, gray: bool = False, others: str = "images") -> str:
    """Returns how an image differs from most, by the measurements that differ most; nothing where none does much.

    Args:
        deviations: Robust deviations (M,) from the median of the measurements.
        names: Their names.
        gray: Whether the image has no color.
        others: What the median is of.
    """
    named = WORDS.keys() - (HUES if gray else ())
    seen = {name: float(d) for name, d in zip(names, deviations, strict=True) if name in named and abs(d) >= NAMED}
    first = sorted(seen, key=lambda name: -abs(seen[name]))[:FARTHEST]
    words = ", ".join(WORDS[name][seen[name] > 0] for name in first)
    return f"{words} than {'in ' if ' border ' in words else ''}most {others}" if words else ""


def split_in_two(table: Floats, names: Sequence[str]) -> str:
    """Returns in words where a measurement of the images, a table (N, M), has two values and none between; else nothing.

    Two values: a cut after the image where the variance within both parts is least leaves little of the whole variance.
    """
    best, words = SPLIT, ""
    for name, x in ((name, np.sort(x)) for name, x in zip(names, table.T, strict=True) if name in KINDS):
        cuts = np.arange(1, len(x))
        sums, squares = np.cumsum(x - x.mean())[:-1], np.square(x - x.mean()).sum()
        within = 1 - (sums**2 / cuts + sums**2 / (len(x) - cuts)) / squares if squares > 0 else np.ones(len(cuts))
        cut = int(within.argmin()) + 1 if len(cuts) else 0
        few = min(cut, len(x) - cut)
        if few >= max(FEWEST, KIND * len(x)) and within[cut - 1] < best:
            best = float(within[cut - 1])
            words = f"{few:,} images are {WORDS[name][cut > len(x) / 2]} than the other {len(x) - few:,}"
    return f"{words}: possibly two light sources or cameras. Check one kind at a time." if words else ""
