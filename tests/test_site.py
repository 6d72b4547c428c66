"""The generated pages of the reference agree with the code, and the site's links and examples become what they should."""

import inspect
import re
import shutil

import pytest
from experiments import reference

from vergence.cli import commands


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_agrees_with_the_code(name):
    page = (reference.ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert page == reference.PAGES[name](), "run python -m experiments.reference"


def test_the_pages_have_every_command_its_options_and_defaults():
    text = reference.command_line()
    assert [name for name in commands.COMMANDS if f"## vergence {name}" not in text] == []
    assert "| `--fdr SHARE` |" in text and "## vergence density predict" in text and "(required)" not in text
    assert "| `blur` |" in reference.settings() and "| `patches_large` |" in reference.recipes()


# Without an example: they need a network, the parts of several jobs, or onnx; or the example of `fit_density` shows them
NO_EXAMPLE = {"export", "from_pretrained", "merge", "names", "predict", "push_to_hub", "sample", "save_pretrained", "score_pairs"}


def test_every_function_of_the_reference_has_its_arguments_and_an_example():
    every = [reference._thing(address) for room in reference.ROOMS for address in reference._names(room)]
    some = [one for one in every if inspect.isfunction(one) or one.__name__ in ("Run", "Scorer", "Embedder")]
    assert [one for one in some if inspect.signature(one).parameters and not re.search("Args:|Attributes:", one.__doc__)] == []
    assert {one.__name__ for one in some if ">>>" not in one.__doc__} == NO_EXAMPLE


@pytest.mark.slow
def test_the_search_finds_the_page_of_each_word_and_nothing_is_loaded_from_elsewhere():
    if not (site := reference.ROOT / "site").exists():
        pytest.skip("make site builds it")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    words = re.findall(r"^ {6}([\w/-]+)\.md: \[(.*)\]$", (reference.ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    with sync.sync_playwright() as play:
        page = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]).new_page()
        page.context.route("**/*", lambda route: route.fulfill(path=site / re.sub(r"^http://site/|\?.*", "", route.request.url)))
        page.goto("http://site/index.html")
        for answer, query in [(answer, query) for answer, queries in words for query in queries.split(", ")]:
            page.fill("[data-md-component=search-query]", f"{query}-")  # as if one went on: a hyphen was an error once
            page.press("[data-md-component=search-query]", "End")
            first = f".md-search-result__item:nth-child(-n+3) a[href*='/{answer}.html?'][href*='{query.split()[-1][:3]}']"
            page.locator(first).first.wait_for(timeout=20_000)
    assert len(words) > 10
