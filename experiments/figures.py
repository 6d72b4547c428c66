"""Figures of docs/figures, drawn with matplotlib without a screen."""

import io
from pathlib import Path
from typing import Any

from experiments.ledger import ROOT
from PIL import Image

FOLDER = ROOT / "docs" / "figures"


def pyplot() -> Any:
    """Returns matplotlib's pyplot, which only figures need."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(fig: Any, name: str, *, tiny: bool, dpi: int = 110, colors: int | None = None, folder: Path = FOLDER) -> None:
    """Writes a figure as NAME.png, with ``colors`` reduced to so many; with ``tiny`` it is only drawn."""
    picture = io.BytesIO()
    fig.savefig(picture, dpi=dpi, format="png")
    if tiny:
        return
    image = Image.open(picture)
    if colors is not None:
        image = image.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    image.save(folder / f"{name}.png", optimize=True)
    print(f"wrote {name}.png")
