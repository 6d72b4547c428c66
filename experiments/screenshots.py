"""Pictures for the README, light and dark: an image of a page of ``vergence check`` with its regions.

``python -m experiments.screenshots PAGE IMAGE``: PAGE is ``report.html`` of DeepPCB's boards next to their reference, IMAGE the
name of one (MIT; experiments/check/README.md says how the folders are made).
"""

import io
import sys
from pathlib import Path
from typing import Literal, get_args

from experiments.ledger import ROOT
from PIL import Image
from playwright.sync_api import Page, sync_playwright

SCHEMES = Literal["light", "dark"]
WIDTH, HEIGHT, SHOWN = 1180, 900, 1000


def screenshot(page: Path, width: int, height: int, scheme: SCHEMES = "light", name: str = "") -> Image.Image:
    """Returns a picture of the top of a page, or of one image that is opened on it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab.goto(page.resolve().as_uri())
        tab.wait_for_timeout(1000)
        picture = opened(tab, name) if name else tab.screenshot()
        browser.close()
    return Image.open(io.BytesIO(picture)).convert("RGB")


def opened(tab: Page, name: str) -> bytes:
    tab.locator("#grid > *", has_text=name).first.click()
    tab.wait_for_timeout(500)
    return tab.locator("dialog[open]").screenshot()


def main(page: Path, name: str) -> None:
    for scheme in get_args(SCHEMES):
        image = screenshot(page, WIDTH, HEIGHT, scheme, name)
        image = image.resize((SHOWN, SHOWN * image.height // image.width), Image.Resampling.LANCZOS)
        image.save(ROOT / "docs" / "figures" / f"check_{scheme}.webp", quality=80, method=6)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
