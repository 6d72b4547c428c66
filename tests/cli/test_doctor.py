"""`vergence doctor`: the answer first, two columns in 40 characters, and what is missing for what."""

import json
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from vergence.cli.commands import main
from vergence.cli.doctor import USES, missing

NEEDED = ["numpy>=1.26", "numpy>=99", "absent>=2", "absent; python_version < '3'", "absent_too; extra == 'eyes'"]


@pytest.mark.parametrize(("extra", "found"), [("", ["numpy>=99", "absent>=2"]), ("eyes", ["absent_too"]), ("share", [])])
def test_what_is_absent_or_too_old_is_missing(extra, found):
    assert missing([Requirement(text) for text in NEEDED], extra) == found


def test_it_answers_first_and_fits_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "All required packages are installed." and max(map(len, lines)) <= 40
    assert [line.split()[1] for line in lines if line.startswith("numpy ")] == [metadata.version("numpy")]
    assert set(USES) <= {line.split()[0] for line in lines if line[:1].islower()}


def test_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(metadata, "requires", lambda name: NEEDED)
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == ["numpy>=99", "absent>=2"] and found["extras"]["eyes"] == ["absent_too"]
    main(["doctor"])
    printed = capsys.readouterr().out
    assert (
        printed.startswith("Missing or too old: numpy>=99, absent>=2.\n") and "eyes          needs absent_too: a small" in printed
    )
