"""What the numbers of images mean: one range for all images of a source, which is shown as 0 to 255.

Shapes: images (C, H, W) of any size; C channels.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vergence.utils.checks import expect
from vergence.utils.dtypes import Array, Bytes

__all__ = ["Numbers", "planes", "viewed"]

Range = tuple[float, float]

CONTAINER = 16  # bits of whole numbers without a stated range
FEW_LEVELS = 16  # of 256, below which whole numbers are stretched
SEEN = 1 << 16  # values of an image that the quantiles are computed from, at most
RARE = 0.001  # share of values that may lie beyond a range: overshoots of resizing
BEYOND = 0.1  # of [0, 1], by which the other values may lie beyond it


@dataclass(frozen=True)
class Numbers:
    """Ranges that are shown as 0 to 255, the same for all images of a source; bytes and booleans need none."""

    whole: Range | None = None  # smallest and largest whole number; None where no image showed any
    floats: Range | None = None
    stated: Range | None = None  # by somebody, for numbers of any type, bytes too

    @classmethod
    def of(cls, samples: Iterable[Array]) -> "Numbers":
        """Returns what the numbers of a source mean, by images of a sample.

        - Whole numbers begin at 0 and have the bits of the largest, at least 8. Where some are negative, or fewer than 16 of 256
          levels would be left, the range is that of the sample.
        - Floats are in [0, 1] or in [0, 255] where nearly all are, else in the range of the sample.

        Example:
            >>> Numbers.of([np.array([[[0, 4095]]], dtype=np.uint16), np.array([[[0.2, 1.003]]])])
            Numbers(whole=(0, 4095), floats=(0, 1), stated=None)
        """
        whole: list[Array] = []
        floats: list[Array] = []
        for x in samples:
            values = x[np.isfinite(x)] if x.dtype.kind == "f" else x.ravel()
            if values.size and x.dtype.kind in "iuf" and x.dtype != np.uint8:
                some = np.append(values[:: 1 + values.size // SEEN], [values.min(), values.max()])
                (floats if x.dtype.kind == "f" else whole).append(some.astype(np.float64))
        return cls(_whole(np.concatenate(whole)) if whole else None, _floats(np.concatenate(floats)) if floats else None)

    def filled(self, other: "Numbers") -> "Numbers":
        """Returns these ranges, with those of ``other`` for types that they lack."""
        return replace(self, whole=self.whole or other.whole, floats=self.floats or other.floats)

    def shown(self, x: Array) -> tuple[Bytes, list[str]]:
        """Returns numbers as bytes, and what was done to them in words; values beyond the range become its ends.

        Example:
            >>> Numbers(whole=(0, 4095)).shown(np.array([0, 2048, 5000]))[0].tolist()
            [0, 128, 255]
        """
        if x.dtype.kind == "b":
            return x.astype(np.uint8) * np.uint8(255), []
        if x.dtype == np.uint8 and self.stated is None:
            return x, []
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise ValueError("pixels that are not finite; replace NaN and infinity")
        whole = x.dtype.kind != "f"
        low, high = self.stated or (self.whole or (0, 2**CONTAINER - 1) if whole else self.floats or (0, 1))
        done = ["numbers beyond the range clipped"] if x.size and (x.min() < low or x.max() > high) else []
        if (whole, low, high) == (True, 0, 255):
            return np.clip(x, 0, 255).astype(np.uint8), done
        unit = (x.astype(np.float64) - low) * (256 / (high - low + 1) if whole else 255 / (high - low))
        how = "as stated" if self.stated else "`range` decides otherwise"
        words = f"{'whole numbers' if whole else 'floats'} {low:,.6g} to {high:,.6g} shown as 8 bits, {how}"
        return np.clip(np.floor(unit) if whole else np.rint(unit), 0, 255).astype(np.uint8), [words, *done]


def _whole(x: Array) -> Range:
    low, high = int(x.min()), int(x.max())
    top = 2 ** max(8, high.bit_length()) - 1
    few = top > 255 and (high - low) * 256 / (top + 1) < FEW_LEVELS
    return (low, max(high, low + 1)) if low < 0 or few else (0, top)


def _floats(x: Array) -> Range:
    low, high = float(x.min()), float(x.max())
    least, most = (float(q) for q in np.quantile(x, (RARE, 1 - RARE)))
    if low > -1 and high < 2 and least >= -BEYOND and most <= 1 + BEYOND:
        return 0, 1
    if high >= 2 and least >= 0 and most <= 255:
        return 0, 255
    return low, high if high > low else low + 1


def stated_range(given: str | Sequence[float] | None) -> Range | None:
    """Returns a range that was stated: two numbers, or text such as ``0,4095``."""
    if given is None:
        return None
    try:
        low, high = (float(part) for part in (given.split(",") if isinstance(given, str) else given))
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    right = math.isfinite(low) and math.isfinite(high) and low < high
    expect(right, "two numbers as the range, the smaller first", given, "write `range='0,4095'`")
    return low, high


def planes(pixels: Bytes) -> list[Bytes]:
    """Returns an image as images of 1 or 3 channels: itself if it has as many, else each of its channels in gray."""
    return [pixels] if len(pixels) in (1, 3) else [pixels[k : k + 1] for k in range(len(pixels))]


def viewed(pixels: Bytes) -> Bytes:
    """Returns an image of any number of channels as one of 1 or 3, for a viewer: each channel in a hue of its own, averaged."""
    if len(pixels) in (1, 3):
        return pixels
    turns = np.arange(len(pixels)) / len(pixels)
    away = np.abs((turns - np.arange(3)[:, None] / 3 + 0.5) % 1 - 0.5)  # of each hue from red, green and blue
    weight = np.clip(2 - 6 * away, 0, 1)
    weight /= weight.sum(1, keepdims=True)
    return np.asarray(np.rint(np.tensordot(weight, pixels, 1)), dtype=np.uint8)
