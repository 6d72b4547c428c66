"""A trained run that the tests of the command line share."""

import pytest


@pytest.fixture(scope="package")
def gaussian(tmp_path_factory):
    """A small run with a conditional density."""
    from tests.cli.test_cli import QUICK, call

    out = tmp_path_factory.mktemp("gje") / "run"
    found = call("train", "digits", "--out", out, "--objective", "gje", "--set", "projector=(8,)", *QUICK)
    assert found.returncode == 0, found.stderr
    return out
