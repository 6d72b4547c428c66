"""Pictures of the demo's page for the README, light and dark: ``python -m experiments.screenshots PAGE``."""

import io
import sys
from pathlib import Path
from typing import Literal, get_args

from experiments.ledger import ROOT
from PIL import Image
from playwright.sync_api import sync_playwright

SCHEMES = Literal["light", "dark"]
WIDTH, HEIGHT, SHOWN = 1280, 820, 1000


def screenshot(page: Path, width: int, height: int, scheme: SCHEMES = "light") -> Image.Image:
    """Returns a picture of the top of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab.goto(page.resolve().as_uri())
        tab.wait_for_timeout(1000)
        picture = tab.screenshot()
        browser.close()
    return Image.open(io.BytesIO(picture)).convert("RGB")


def main(page: Path) -> None:
    for scheme in get_args(SCHEMES):
        image = screenshot(page, WIDTH, HEIGHT, scheme).resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
        image.save(ROOT / "docs" / "figures" / f"check_{scheme}.webp", quality=80, method=6)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
