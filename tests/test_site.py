"""The generated pages of the reference agree with the code, and the site's links and examples become what they should."""

import re
import shutil

import pytest
from experiments import reference

from vergence.cli import commands


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_agrees_with_the_code(name):
    page = reference.ROOT / "docs" / "reference" / f"{name}.md"
    assert page.read_text() == reference.PAGES[name](), "run python -m experiments.reference"


def test_the_pages_have_every_command_its_options_and_defaults():
    text = reference.command_line()
    assert [name for name in commands.COMMANDS if f"## vergence {name}" not in text] == []
    assert "| `--fdr SHARE` |" in text and "## vergence density predict" in text and "(required)" not in text
    assert "| `blur` |" in reference.settings() and "| `patches_large` |" in reference.recipes()


SITE = reference.ROOT / "site"
FOUND = {  # what people type, by the page that answers it
    "guides/check": ["heatmap", "segmentation", "duplicates", "duplicate", "wrong labels", "embedding atlas"],
    "guides/tables": ["categorical", "prediction interval"], "how-to/own_data": ["video", "own dataset"],
    "how-to/calibrate_scores": ["threshold", "contamination"], "how-to/time_and_memory": ["memory", "batch size"],
    "how-to/install": ["windows", "mac"], "how-to/series": ["time series"], "SECURITY": ["telemetry-", "telemetry"],
    "how-to/pretrained_network": ["fine-", "fine-tune"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not SITE.exists(), reason="make site builds it")
def test_the_search_finds_pages_and_nothing_is_loaded_from_elsewhere():
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as play:
        page = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]).new_page()
        page.context.route("**/*", lambda route: route.fulfill(path=SITE / re.sub(r"^http://site/|\?.*", "", route.request.url)))
        page.goto("http://site/index.html")
        box = page.locator("[data-md-component=search-query]")
        for query, answer in [(query, answer) for answer, queries in FOUND.items() for query in queries]:
            box.fill(query)
            box.press("End")
            new = f"[href*='{query.split()[-1][:3]}']"  # the link has the words, unless they are those of an earlier query
            page.locator(f".md-search-result__item:nth-child(-n+3) a[href*='/{answer}.html?']{new}").first.wait_for(
                timeout=20_000
            )
