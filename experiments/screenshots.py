"""Pictures of the demo's page for the README, light and dark: ``python -m experiments.screenshots PAGE``."""

import io
import sys
from pathlib import Path

from experiments.ledger import ROOT
from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, SHOWN = 1280, 820, 1000


def main(page: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            tab.goto(page.resolve().as_uri())
            tab.wait_for_timeout(1000)
            image = Image.open(io.BytesIO(tab.screenshot()))
            image = image.convert("RGB").resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS)
            image.save(ROOT / "docs" / "figures" / f"check_{scheme}.webp", quality=80, method=6)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
