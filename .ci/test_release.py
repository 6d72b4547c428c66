"""What a release says of itself, in each place the same, and what the checks run: part of `make test`."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import vergence
from vergence.cli import commands, doctor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
ALL = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = ALL["project"]
ADDRESS = PROJECT["urls"]["Repository"]
CONDA = {"torch": "pytorch", "lightning-fabric": "pytorch-lightning"}  # names there
# Files that cannot read pyproject.toml
NAME_IT = {"pyproject.toml", "CITATION.cff", "packaging/conda/recipe.yaml", "README.md", "mkdocs.yml"}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_address_stands_in_pyproject_and_in_files_that_cannot_read_it():
    owner = ADDRESS.rpartition("/")[0].removeprefix("https://")
    found = subprocess.run(["git", "grep", "-lF", owner], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert {"pyproject.toml", "CITATION.cff"} <= set(found) <= NAME_IT
    assert [name for name in found if text(name).count(owner) != text(name).count(ADDRESS.removeprefix("https://"))] == []
    assert all(url.startswith(ADDRESS) for url in PROJECT["urls"].values())


def test_there_is_one_tagline():
    tagline = PROJECT["description"]
    assert len(tagline.split()) < 20 and vergence.__doc__.startswith(tagline) and commands.ABOUT.startswith(tagline)
    assert f"\n**{tagline}**\n" in text("README.md") and f"site_description: {tagline}\n" in text("mkdocs.yml")
    assert f'abstract: "{tagline}' in text("CITATION.cff") and f"summary: {tagline}\n" in text("packaging/conda/recipe.yaml")


def test_version_and_date_agree():
    version, date = re.search(r"\n## \[([\d.]+)\] - ([\d-]+)\n", text("CHANGELOG.md")).groups()
    assert f"\nversion: {version}\ndate-released: {date}\n" in text("CITATION.cff")
    assert f'version: "{version}"' in text("packaging/conda/recipe.yaml")


def test_the_recipe_for_conda_requires_the_same():
    run = re.search(r"  run:\n((?:    - .*\n)+)", text("packaging/conda/recipe.yaml"))[1]
    names = [re.sub(r"^[\w-]+", lambda name: CONDA.get(name[0], name[0]), one) for one in PROJECT["dependencies"]]
    expected = [f"python{PROJECT['requires-python']}", *names]
    assert [line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()] == expected


def test_the_description_has_no_relative_link():
    readme = text("README.md")
    for change in ALL["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        readme = re.sub(change["pattern"], change["replacement"], readme)
    relative = runpy.run_path(str(ROOT / ".ci" / "distributions.py"))["RELATIVE"]
    assert relative.findall(text("README.md")) and relative.findall(readme) == []
    assert f"({ADDRESS}/blob/v$HFPR_VERSION/docs/" in readme and f'"{ADDRESS}/raw/v$HFPR_VERSION/docs/figures/' in readme


def test_every_extra_has_a_use_and_a_line_on_the_page():
    extras = PROJECT["optional-dependencies"]
    assert doctor.USES.keys() == extras.keys()
    assert set(re.findall(r"^\| `(\w+)` \|", text("docs/how-to/install.md"), re.MULTILINE)) == extras.keys()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_each_python_is_a_classifier_and_is_tested(version):
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert f'python: "{version}"' in text(".github/workflows/ci.yml")


def test_continuous_integration_runs_the_readmes_commands():
    run, readme, workflow = text(".ci/run"), text("README.md"), text(".github/workflows/ci.yml")
    assert "make test" in run and "make test" in readme and "make wheel" in run
    assert ".ci/run" in workflow and ".ci/lowest.txt" in workflow


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"[`$] ?vergence (\w+)", text("README.md")))
    assert named and named <= commands.COMMANDS.keys()


def test_the_lowest_versions_are_those_that_the_project_states():
    """Those of the dependencies and extras; one run of the tests installs `.ci/lowest.txt`."""
    required = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    stated = dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one).groups() for one in required if not one.startswith("ray"))
    lowest = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text(".ci/lowest.txt"), re.MULTILINE))
    assert lowest.keys() == stated.keys()
    assert [name for name, version in stated.items() if not f"{lowest[name]}.".startswith(f"{version}.")] == []
