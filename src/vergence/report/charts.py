"""Plotly figures of both pages, as plain data, and thumbnails. Nothing here knows of runs or advice."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["COLORS", "SYMBOLS", "Figure", "curve", "histogram", "lines", "scatter", "thumbnail"]

Figure = dict[str, Any]

SIDE = 64  # pixels of a thumbnail
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#222222")  # for color-blind readers too
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")  # 7 and 5 are coprime: 35 classes look different


def thumbnail(images: Any, i: int, side: int = SIDE) -> str:
    """Returns image ``i`` as the data URL of a PNG of at most ``side`` pixels; an empty string where there are no images.

    Args:
        images: uint8 array (n, C, height, width), or None. One channel is gray, three are RGB; of others the first is shown.
        i: Index of the image.
        side: Largest height and width, in pixels.
    """
    from PIL import Image

    if images is None:
        return ""
    image = Image.fromarray(images[i, 0] if images.shape[1] != 3 else images[i].transpose(1, 2, 0).copy())
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def curve(x: list[float], y: list[float]) -> Figure:
    """Returns one quantity over the epochs."""
    trace: Figure = {"x": x, "y": y, "mode": "lines+markers" if len(x) < 60 else "lines", "line": {"color": COLORS[0]}}
    trace |= {"marker": {"size": 5}, "hovertemplate": "epoch %{x}<br>%{y:.5g}<extra></extra>"}
    margin = {"l": 56, "r": 12, "t": 8, "b": 34}
    layout = {"height": 210, "margin": margin, "xaxis": {"title": {"text": "epoch"}}, "dragmode": False}
    return {"data": [trace], "layout": layout}


def lines(
    x: list[float], series: Mapping[str, Sequence[float | None]], xtitle: str, ytitle: str, *, ticks: bool = True
) -> Figure:
    """Returns several quantities over a common logarithmic axis; a missing value leaves a gap.

    Args:
        x: Positions, positive.
        series: Values at these positions by the name of the quantity; at most 5.
        xtitle: Title of the horizontal axis.
        ytitle: Title of the vertical axis.
        ticks: Whether every position gets a tick.
    """
    traces: list[Figure] = [
        {"x": x, "y": y, "name": name, "mode": "lines+markers", "line": {"color": COLORS[k]}}
        | {"marker": {"symbol": SYMBOLS[k]}, "hovertemplate": "%{x}: %{y:.4g}<extra>" + name + "</extra>"}
        for k, (name, y) in enumerate(series.items())
    ]
    xaxis = {"title": {"text": xtitle}, "type": "log"} | ({"tickvals": x} if ticks else {})
    axes = {"xaxis": xaxis, "yaxis": {"title": {"text": ytitle}}}
    return {"data": traces, "layout": {"height": 340, "dragmode": False, "showlegend": True, **axes}}


def histogram(groups: Mapping[str, list[float]], title: str) -> Figure:
    """Returns the shares of each group over common bins."""
    traces: list[Figure] = [
        {"type": "histogram", "x": x, "name": name, "histnorm": "percent", "bingroup": "all", "nbinsx": 40, "opacity": 0.65}
        | {"marker": {"color": COLORS[k]}, "hovertemplate": "%{x}<br>%{y:.1f} % of " + name + "<extra></extra>"}
        for k, (name, x) in enumerate(groups.items())
    ]
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"title": {"text": "% of the group"}}}
    return {"data": traces, "layout": {"barmode": "overlay", "height": 320, "dragmode": False, "showlegend": True, **axes}}


def scatter(xy: Any, index: list[int], captions: Sequence[str], name: str, k: int, score: Any = None) -> Figure:
    """Returns some points as one trace, in the color of class ``k`` or colored by their score.

    Args:
        xy: Coordinates, (n, 2).
        index: Indices of the points to show.
        captions: Text of each of the n points.
        name: Name in the legend.
        k: Number of the class, which chooses color and symbol.
        score: Scores, (n,), finite at ``index``; None colors by class.
    """
    import numpy as np

    marker: Figure = {"size": 8, "color": COLORS[k % 7], "symbol": SYMBOLS[k % 5], "line": {"width": 0.5, "color": "#fff"}}
    if score is not None:
        low, high = np.quantile(score[index], [0.01, 0.99]).tolist()  # one extreme score would make all others one color
        bar = {"title": {"text": "score"}, "thickness": 12}
        marker |= {"color": score[index].tolist(), "colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": bar}
        marker["symbol"] = "circle"
    return {
        "mode": "markers",
        "name": escape(name, quote=False),  # plotly interprets tags in labels and names
        "marker": marker,
        "hovertext": [escape(captions[i], quote=False) for i in index],
        "hoverinfo": "text",
        "x": xy[index, 0].tolist(),
        "y": xy[index, 1].tolist(),
        "customdata": index,
    }
