import ast
import re
from pathlib import Path

import pytest

import vergence
from vergence.cli.commands import as_options
from vergence.learn import methods, objectives
from vergence.learn.training import recipes

ROOT = Path(__file__).parents[1]


def test_the_repository_has_its_documents_and_some_stay_short():
    most = {"CONTRIBUTING.md": 60, "VISION.md": 3, "AGENTS.md": 50, "README.md": 200, "LICENSE": 250, "CITATION.cff": 100}
    assert [name for name, n in most.items() if not 1 <= (ROOT / name).read_text().count("\n") <= n] == []


def test_the_page_of_the_architecture_has_every_room():
    from tests.test_layers import ROOMS

    page = (ROOT / "docs" / "background" / "architecture.md").read_text()
    assert tuple(dict.fromkeys(re.findall(r"^\| \w+ \| `(\w+)[/\w]*` \|", page, re.MULTILINE))) == ROOMS


def test_the_readme_is_short_and_has_one_table_of_measurements():
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 8 * 1024 and text.count("<!-- table:") == 1
    assert text.count("<!-- output:") == 3 == text.count("    $ vergence ")


def test_every_page_is_named_by_the_index():
    """Records of decisions and the rooms of the Python reference are named by an index of their own."""
    docs = ROOT / "docs"
    named = {(docs / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", (docs / "index.md").read_text())}
    pages = {page.resolve() for page in docs.rglob("*.md")} - {(docs / "index.md").resolve()}
    pages -= {page for page in pages if page.parent.name in ("decisions", "python") and page.name != "index.md"}
    assert pages - named == set()
    records = (docs / "decisions" / "index.md").read_text()
    assert all(f"({page.name}#" in records for page in (docs / "decisions").glob("*-*.md"))


def test_the_cheat_sheet_has_every_command_and_function():
    sheet, commands = ((ROOT / "docs" / "reference" / f"{name}.md").read_text() for name in ("cheat_sheet", "command_line"))
    assert set(re.findall(r"(?m)^    vergence (\w+)", sheet)) == set(re.findall(r"(?m)^## vergence (\w+)", commands))
    assert [name for name in dir(vergence) if name[0] != "_" and not re.search(rf"\b{name}\b", sheet)] == []


PAGES = sorted(str(file.relative_to(ROOT)) for folder in ("docs", "experiments") for file in (ROOT / folder).rglob("*.md"))
PAGES += ["README.md", "AGENTS.md", "CONTRIBUTING.md"]


def anchors(file):
    """Returns the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()) if "://" not in target]
    parts = [target.partition("#") for target in targets]
    found = [((ROOT / page).parent / file if file else ROOT / page, anchor) for file, _, anchor in parts]
    assert [str(file) for file, _ in found if not file.exists()] == []
    assert [f"{file.name}#{anchor}" for file, anchor in found if anchor and anchor not in anchors(file)] == []


@pytest.mark.parametrize(("page", "names"), [("methods.md", objectives.names()), ("methods_images.md", methods.names())])
def test_every_objective_and_method_is_described(page, names):
    text = "".join((ROOT / "docs" / one).read_text() for one in (f"reference/{page}", "guides/joint_embeddings.md"))
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    code = " ".join((ROOT / "src" / file).read_text() for file in (ROOT / "src").rglob("*.py"))
    code = as_options(re.sub(r'"\s+f?"|\{[^{}]*\}', "", code))
    messages = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(), re.MULTILINE)
    gaps = r"\.\.\.|\b[NM]\b|'[^']*'|\b\d+\b|[;:(]|\bobjective\b"
    parts = [part.strip() for message in messages for part in re.split(gaps, message)]
    assert len(messages) == 16 and [part for part in parts if len(part) > 8 and part not in code] == []


def test_the_page_of_views_has_the_strengths_of_the_recipes():
    lines = re.findall(r"^\| `.*", (ROOT / "docs" / "how-to" / "views.md").read_text(), re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == 6
    for name, *values in rows:
        for value, recipe in zip(values, ("patches", "distilled_vje", "contrastive_small"), strict=True):
            found = getattr(recipes.get(recipe).views, name.strip("`"))
            assert ast.literal_eval(value.partition(":")[0]) == found, (name, recipe)
