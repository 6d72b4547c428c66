import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_readme_says_what_the_ledger_says():
    found = subprocess.run([sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "VISION.md",
        "LICENSE",
        "CITATION.cff",
        "docs/decisions.md",
        "docs/advice.md",
        "docs/alignment.md",
    ],
)
def test_the_repository_has_its_documents(name):
    assert (ROOT / name).stat().st_size > 100


def test_contributing_and_vision_stay_short():
    assert (ROOT / "CONTRIBUTING.md").read_text().count("\n") <= 50
    assert (ROOT / "VISION.md").read_text().count("\n") <= 3


def test_continuous_integration_calls_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text() and "make test" in (ROOT / "README.md").read_text()
