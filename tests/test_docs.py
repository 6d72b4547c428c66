import re
import subprocess
import sys
from pathlib import Path

import pytest

from vergence import methods, objectives

ROOT = Path(__file__).parents[1]


def test_pages_agree_with_the_ledger():
    found = subprocess.run([sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "AGENTS.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "VISION.md",
        "LICENSE",
        "CITATION.cff",
        "docs/decisions.md",
        "docs/advice.md",
        "docs/branches.md",
        "docs/joint_embeddings.md",
        "docs/methods.md",
        "docs/alignment.md",
    ],
)
def test_the_repository_has_its_documents(name):
    assert (ROOT / name).stat().st_size > 100


def test_contributing_and_vision_stay_short():
    assert (ROOT / "CONTRIBUTING.md").read_text().count("\n") <= 50
    assert (ROOT / "VISION.md").read_text().count("\n") <= 3
    assert (ROOT / "AGENTS.md").read_text().count("\n") <= 50


def test_the_page_for_assistants_has_every_room():
    from tests.test_layers import ROOMS

    assert tuple(re.findall(r"^\| `(\w+)` \|", (ROOT / "AGENTS.md").read_text(), re.MULTILINE)) == ROOMS


def test_continuous_integration_runs_the_readmes_commands():
    run, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    assert "make test" in run and "make test" in readme and "make wheel" in run
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert ".ci/run" in workflow and '"3.10"' in workflow and '"3.13"' in workflow and ".ci/lowest.txt" in workflow


def test_the_lowest_versions_are_those_that_the_project_states():
    """Of the dependencies and extras; `.ci/lowest.txt` holds them for one run of the tests."""
    project = (ROOT / "pyproject.toml").read_text().split("[dependency-groups]")[0]
    stated = dict(re.findall(r'"([\w-]+)>=([\d.]+)[^"]*"', project))
    lowest = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE))
    assert lowest.keys() == stated.keys()
    assert [name for name, version in stated.items() if not f"{lowest[name]}.".startswith(f"{version}.")] == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "AGENTS.md",
        "CONTRIBUTING.md",
        "benchmarks/README.md",
        *sorted(str(file.relative_to(ROOT)) for file in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    assert [target for target in targets if target and not ((ROOT / page).parent / target).exists()] == []


@pytest.mark.parametrize(("page", "names"), [("methods.md", objectives.names()), ("methods_images.md", methods.names())])
def test_every_objective_and_method_is_described(page, names):
    text = "".join((ROOT / "docs" / one).read_text() for one in (page, "joint_embeddings.md"))
    assert [name for name in names if f"`{name}`" not in text] == []
