"""Figures of the experiments' pages, drawn with matplotlib without a screen."""

import io
from typing import Any

from experiments.ledger import HERE
from PIL import Image


def pyplot() -> Any:
    """Returns matplotlib's pyplot, which only figures need."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def drawn(fig: Any, **how: Any) -> Image.Image:
    """Returns a figure as a picture; ``how`` are settings of matplotlib's ``savefig``."""
    picture = io.BytesIO()
    fig.savefig(picture, format="png", **how)
    return Image.open(picture)


def save(fig: Any, name: str, *, tiny: bool, dpi: int = 110, colors: int | None = None) -> None:
    """Writes a figure as NAME.png in experiments/, with ``colors`` reduced to so many; with ``tiny`` it is only drawn."""
    image = drawn(fig, dpi=dpi)
    if tiny:
        return
    if colors is not None:
        image = image.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    image.save(HERE / f"{name}.png", optimize=True)
    print(f"wrote {name}.png")
