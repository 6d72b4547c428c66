"""Loops of many calls without `update`, as of differences, are meant here."""

import pytest

from vergence.learn.objectives import core


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    if "forgotten" not in request.node.name:
        monkeypatch.setattr(core, "PATIENCE", 1 << 40)
