"""`vergence doctor`: the answer first, two columns in 40 characters, and what is missing for what."""

import json
from importlib import metadata

from vergence.cli.commands import main
from vergence.cli.doctor import USES

NEEDED = ["numpy>=1.26", "numpy>=99", "absent>=2", "absent; python_version < '3'", "absent_too; extra == 'eyes'"]


def test_it_answers_first_and_fits_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "All required packages are installed." and max(map(len, lines)) <= 40
    assert f"numpy         {metadata.version('numpy')}" in lines
    assert set(USES) <= {line.split()[0] for line in lines if line[:1].islower()}


def test_it_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(metadata, "requires", lambda name: NEEDED)
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == ["numpy>=99", "absent>=2"]
    assert {name: lacks for name, lacks in found["extras"].items() if lacks} == {"eyes": ["absent_too"]}
    main(["doctor"])
    assert capsys.readouterr().out.startswith("Missing or too old: numpy>=99, absent>=2.\n")
