"""The generated pages of the reference agree with the code, and the site's links and examples become what they should."""

import pytest
from experiments import reference

from vergence.cli import commands


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_agrees_with_the_code(name):
    page = reference.ROOT / "docs" / "reference" / f"{name}.md"
    assert page.read_text() == reference.PAGES[name](), "run python -m experiments.reference"


def test_the_page_of_the_command_line_has_every_command_and_its_options():
    text = reference.command_line()
    assert [name for name in commands.COMMANDS if f"## vergence {name}" not in text] == []
    assert "| `--fdr SHARE` |" in text and "## vergence density predict" in text and "(required)" not in text


def test_the_page_of_settings_has_defaults():
    assert "| `blur` |" in reference.settings() and "| `patches_large` |" in reference.recipes()
