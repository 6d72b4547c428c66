"""Packages that losses need: what is said where they are missing or too old."""

import sys

import pytest
import torch

import vergence
from vergence.learn import objectives
from vergence.learn.objectives.core import lightly_module, require_package

NEED = [name for name in objectives.names() if objectives.get(name).package is not None]


@pytest.mark.float32
@pytest.mark.parametrize("name", NEED)
def test_a_missing_package_is_one_line_before_anything_is_written(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lightly", None)
    with pytest.raises(ValueError, match=rf"^objective '{name}' needs lightly: pip install 'vergence\[methods\]'$"):
        vergence.train("digits", out=tmp_path / "run", objective=name, epochs=1)
    assert list(tmp_path.iterdir()) == []
    objective = objectives.get(name)(8)  # a run is described, and its encoder used, without the package
    with pytest.raises(ValueError, match=rf"objective '{name}' needs lightly: pip install"):
        objective(torch.randn(4, 8), torch.randn(4, 8))


def test_an_old_package_is_named():
    with pytest.raises(ValueError, match=r"objective 'swav' needs lightly 1.6 or newer \(No module named .*\): pip install"):
        lightly_module("swav", "no_such_loss")
    require_package("vje", None)


def test_losses_that_lightly_has_name_their_package():
    assert NEED == ["barlow_twins", "byol", "lejepa", "simsiam", "swav", "vicreg"]
