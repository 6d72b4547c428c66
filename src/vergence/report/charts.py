"""Charts of all pages as geometry for ``templates/macros.html``, which draws them as SVG, and thumbnails. N points."""

import base64
import io
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vergence.report.tiles import image_of, within

SIDE = 64  # pixels of a thumbnail
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 10, 44  # margins around the axes
BINS, POINTED = 40, 200  # of a histogram; points of a line that say their values
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#222222")  # for color-blind readers too
SYMBOLS = (  # 7 and 5 are coprime: 35 classes look different
    "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z",
    "M-3.5,-3.5H3.5V3.5H-3.5Z",
    "M0,-5L5,0L0,5L-5,0Z",
    "M0,-5L4.6,3.5H-4.6Z",
    "M-1.5,-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
)
CIVIDIS = ((0, 34, 78), (67, 78, 108), (125, 124, 120), (188, 174, 108), (254, 232, 56))  # low to high, by quarters
Ticks = list[tuple[float, str]]


def thumbnail(images: Any, i: int) -> str:
    """Returns image ``i`` of uint8 (n, C, height, width) as the data URL of a PNG of at most 64 pixels; of None no text."""
    if images is None:
        return ""
    buffer = io.BytesIO()
    within(image_of(images[i]), SIDE).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Series:
    """Points of one name."""

    name: str  # name in the legend
    x: Sequence[float]  # coordinates (N,); a None in y leaves a gap
    y: Sequence[float | None]
    titles: Sequence[str] = ()  # what a pointer sees at each point; its coordinates by default
    line: bool = True  # whether a line joins the points
    items: Sequence[int] = ()  # index of each point's item, of a map
    shades: Sequence[str] = ()  # second color of each point, which the page can switch to
    ends: Sequence[tuple[float, float]] = ()  # low and high at each point: a band around a line, else an upright stroke


@dataclass(frozen=True)
class Chart:
    """What the template draws: sizes and positions in pixels, from the upper left corner."""

    width: int  # of the whole
    height: int
    x: Ticks  # position and text of each tick
    y: Ticks
    xtitle: str  # titles of the axes
    ytitle: str
    drawn: list[dict[str, Any]] = field(default_factory=list)  # name, color, symbol, path and marks, or bars, of each series
    legend: bool = True  # whether the names are listed
    left, right, top, bottom = LEFT, RIGHT, TOP, BOTTOM


class _Axis:
    """Places numbers between two positions."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high, most = min(values, default=1.0), max(values, default=1.0), sys.float_info.max
        pad = 0.02 * (high / 2 - low / 2) or 0.05 * abs(low) or 0.5
        self.start, self.end, self.low, self.high = start, end, max(low - pad, -most), min(high + pad, most)

    def at(self, value: float) -> float:
        low, high, value = self.low / 4, self.high / 4, value / 4  # a quarter: no overflow
        return round(self.start + (value - low) / (high - low) * (self.end - self.start), 1)

    def ticks(self) -> Ticks:
        """Returns position and text of the ticks, at round numbers."""
        span, values = self.high / 4 - self.low / 4, [self.low]
        size = 10.0 ** math.floor(math.log10(span)) if span > sys.float_info.min else 0.0
        if size > 0:
            step = next(s * size for s in (0.5, 1, 2, 5, 10) if 4 * span / (s * size) <= 6)
            values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.at(v), f"{v:.4g}") for v in values]


def chart(
    series: Sequence[Series], xtitle: str, ytitle: str, *, size: tuple[int, int] = (760, 340), legend: bool = True
) -> Chart:
    """Returns the geometry of lines or points over common axes; the k-th series has the k-th color and symbol."""
    shown = [[(i, float(x), float(y)) for i, (x, y) in enumerate(zip(s.x, s.y, strict=True)) if y is not None] for s in series]
    across = _Axis([x for points in shown for _, x, _ in points], LEFT, size[0] - RIGHT)
    ends = [end for s in series for pair in s.ends for end in pair]
    up = _Axis([*ends, *(y for points in shown for *_, y in points)], size[1] - BOTTOM, TOP)
    drawn = []
    for k, (s, points) in enumerate(zip(series, shown, strict=True)):
        places = [(i, across.at(x), up.at(y)) for i, x, y in points]
        every = 1 if not s.line else -(-len(points) // POINTED) or 1
        marks = [
            {
                "x": x,
                "y": y,
                "title": s.titles[i] if s.titles else f"{s.name}: {s.y[i]:.5g} at {s.x[i]:.5g}",
                "item": s.items[i] if s.items else None,
                "shade": s.shades[i] if s.shades else None,
            }
            for i, x, y in places[::every]
        ]
        strokes = [(across.at(x), up.at(low), up.at(high)) for x, (low, high) in zip(s.x, s.ends, strict=bool(s.ends))]
        band = [*((x, low) for x, low, _ in strokes), *((x, high) for x, _, high in reversed(strokes))] if s.line else []
        bars = [{"x": x - 1, "y": top, "width": 2, "height": round(y - top, 1), "title": s.name} for x, y, top in strokes]
        area = "".join(f"{'L' if i else 'M'}{x},{y}" for i, (x, y) in enumerate(band))
        before = itertools.chain([-2], (i for i, *_ in places))  # the line is broken where an index is missing
        path = "".join(f"{'L' if i == last + 1 else 'M'}{x},{y}" for last, (i, x, y) in zip(before, places, strict=False))
        both = {"path": path, "bars": []} if s.line else {"path": "", "bars": bars}
        drawn.append({**_style(s.name, k), "area": area, "marks": marks, **both})
    return Chart(*size, across.ticks(), up.ticks(), xtitle, ytitle, drawn, legend)


def _style(name: str, k: int) -> dict[str, str]:
    return {"name": name, "area": "", "color": COLORS[k % len(COLORS)], "symbol": SYMBOLS[k % len(SYMBOLS)]}


def histogram(groups: Mapping[str, Sequence[float]], title: str) -> Chart:
    """Returns the geometry of the shares of each group over common bins."""
    width, height = 760, 320
    across = _Axis([x for values in groups.values() for x in values], LEFT, width - RIGHT)
    edge = (width - RIGHT - LEFT) / BINS
    shares = {}
    for name, values in groups.items():
        counts = [0] * BINS
        for value in values:
            counts[min(int((across.at(value) - LEFT) / edge), BINS - 1)] += 1
        shares[name] = [100 * n / len(values) if values else 0.0 for n in counts]
    up = _Axis([0.0, *itertools.chain(*shares.values())], height - BOTTOM, TOP)
    drawn = []
    for k, (name, percents) in enumerate(shares.items()):
        bars = [
            {"x": round(LEFT + b * edge, 1), "y": up.at(p), "width": round(edge, 1), "height": round(up.at(0) - up.at(p), 1)}
            | {"title": f"{p:.1f} % of {name}"}
            for b, p in enumerate(percents)
            if p
        ]
        drawn.append({**_style(name, k), "path": "", "marks": [], "bars": bars})
    return Chart(width, height, across.ticks(), up.ticks(), title, "% of the group", drawn)


def shades(scores: Sequence[float], low: float, high: float) -> list[str]:
    """Returns a color from dark to bright for each score between two bounds, for color-blind readers too."""
    colors = []
    for score in scores:
        place = 4 * min(max((score - low) / (high - low or 1), 0), 1)
        k = min(int(place), 3)
        mixed = (round(a + (place - k) * (b - a)) for a, b in zip(CIVIDIS[k], CIVIDIS[k + 1], strict=True))
        colors.append("#{:02x}{:02x}{:02x}".format(*mixed))
    return colors
