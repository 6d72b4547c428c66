"""Images as square tiles on sheets of WebP, for a page of many images that stays small."""

import base64
import io
from typing import Any

import numpy as np

from vergence.data.numbers import viewed
from vergence.utils.dtypes import Bytes, Floats

__all__ = ["LARGEST", "image_of", "rounded", "sheets", "side_of", "tile", "unit", "webp", "within"]

LARGEST, SHEET = 160, 2048  # pixels of a tile's and of a sheet's side, at most
BYTES, RATE, MOST = 5e6, 0.25, 6e6  # of all tiles, and of one pixel, roughly; of all sheets as text
QUALITIES = (65, 50, 35, 20)  # of the sheets: the best that fits
PIXELS = 3  # times that an image is enlarged, from which on its pixels are seen


def side_of(n: int) -> int:
    """Returns the side of n tiles, in pixels, with which the page stays small.

    Example:
        >>> side_of(100), side_of(20_000)
        (160, 31)
    """
    return int(min(LARGEST, np.sqrt(BYTES / RATE / max(n, 1))))


def image_of(pixels: Bytes) -> Any:
    """Returns an image (C, H, W) as a PIL image, in color unless C = 1; see `viewed` for other numbers of channels."""
    from PIL import Image

    bands = [Image.fromarray(np.ascontiguousarray(plane)) for plane in viewed(pixels)]
    return bands[0] if len(bands) == 1 else Image.merge("RGB", bands)


def within(image: Any, side: int) -> Any:
    """Returns a PIL image of at most ``side`` pixels."""
    small = image.copy()
    small.thumbnail((side, side))
    return small


def tile(image: Any, side: int) -> Bytes:
    """Returns an image in the middle of a gray square (side, side, 3); a small one is enlarged, a very small one by pixels."""
    from PIL import Image

    scale = side / max(image.size)
    larger = [max(1, round(scale * n)) for n in image.size]
    how = Image.Resampling.NEAREST if scale >= PIXELS else Image.Resampling.BICUBIC
    small = within(image, side) if scale <= 1 else image.resize(larger, how)
    square = Image.new("RGB", (side, side), (128, 128, 128))
    square.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    return np.asarray(square)


def webp(image: Any, quality: int) -> str:
    """Returns a PIL image as WebP in base64."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=2)
    return base64.b64encode(buffer.getvalue()).decode()


def sheets(tiles: Bytes) -> dict[str, Any]:
    """Returns tiles (n, side, side, 3) on sheets, as the page reads them."""
    side = tiles.shape[1]
    across = max(1, SHEET // side)
    parts = [tiles[k : k + across * across] for k in range(0, len(tiles), across * across)]
    for quality in QUALITIES:
        drawn = [_sheet(part, across, quality) for part in parts]
        if sum(map(len, drawn)) <= MOST:
            break
    return {"tiles": {"side": side, "across": across}, "sheets": drawn}


def _sheet(tiles: Bytes, across: int, quality: int) -> str:
    from PIL import Image

    n, side = tiles.shape[:2]
    down = -(-n // across)
    sheet = np.zeros((down * across, side, side, 3), dtype=np.uint8)
    sheet[:n] = tiles
    joined = sheet.reshape(down, across, side, side, 3).swapaxes(1, 2).reshape(down * side, across * side, 3)
    return webp(Image.fromarray(joined), quality)


def rounded(x: Floats, digits: int) -> list[float]:
    """Returns numbers with so many significant digits."""
    return [float(f"{value:.{digits}g}") for value in x.tolist()]


def unit(x: Floats) -> list[float]:
    """Returns numbers moved and scaled to [0, 1]."""
    low, high = (x.min(), x.max()) if len(x) else (0.0, 0.0)
    return [round(value, 4) for value in ((x - low) / max(high - low, 1e-12)).tolist()]
