import re
import subprocess
import sys

import pytest
from experiments.tutorials import BLOCK, PAGES, ROOT, alike

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
COMMENTS = re.compile(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", re.DOTALL)


def prose(text):
    return re.sub(r"\]\([^)]*\)", "]", COMMENTS.sub("", BLOCK.sub("", text)))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_short_has_two_images_and_starts_with_data(page):
    text = page.read_text()
    images = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert 600 <= len(prose(text).split()) <= 900
    assert len(images) == 2 and all((page.parent / image).stat().st_size < 60_000 for image in images)
    top, first, *_ = re.split(r"(?m)^## ", text)
    assert "`pip install " in top and first.startswith("1. ") and "```python" in first
    assert "\n## Where to go next\n" in text and "```" not in prose(text)


def test_every_output_of_a_page_is_made_by_running_it():
    outputs = re.compile(r"(?m)^    (?:wrote |next: |page: |(?:error|warning|note): |\d+ of \d|[│┃]).*")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    assert {page.stem: found for page in pages if (found := outputs.findall(page.read_text()))} == {}


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("wrote 3 rows in 8.8 s", "wrote 3 rows in 12 s", True), ("wrote 3 rows", "wrote 4 rows", False),
        ("loss 1.30 to 0.912", "loss 1.31 to 0.915", True), ("003.png dark", "004.png dark", False),
        ("┃ nats ┃ s ┃ x ┃\n│ 1.00 │ 0.5 │ y │\n", "┃  nats ┃  s ┃ x ┃\n│  1.00 │ 11.0 │ y │\n", True),
        ("┃ nats ┃ s ┃\n│ 1.00 │ 0.5 │\n", "┃  nats ┃  s ┃\n│  1.10 │ 11.0 │\n", False),
    ],
)  # fmt: skip
def test_outputs_are_alike_in_words_and_nearly_so_in_numbers(a, b, same):
    assert alike(a, b) == same


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_what_it_shows(name):
    command = [sys.executable, "-m", "experiments.tutorials", name, "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
