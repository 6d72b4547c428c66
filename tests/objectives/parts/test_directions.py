"""Directions of predictive losses, and packages that are missing."""

import sys

import pytest
import torch

import vergence
from vergence import objectives
from vergence.objectives.parts.directions import directions, lightly_module, require_package

NEED = [name for name in objectives.names() if objectives.get(name).package is not None]


def test_both_directions_without_a_teacher_and_one_with_it():
    student, teacher = torch.randn(4, 2, requires_grad=True), torch.randn(4, 2)
    (a, b), (c, d) = directions(student, student + 1)
    assert a.requires_grad and c.requires_grad and not b.requires_grad and not d.requires_grad
    assert torch.equal(b, student + 1) and torch.equal(d, student)
    for pair in ((student, teacher), (teacher, student)):
        ((query, target),) = directions(*pair)
        assert query is student and torch.equal(target, teacher)
    with torch.no_grad():
        assert len(directions(teacher, teacher)) == 2


@pytest.mark.float32
@pytest.mark.parametrize("name", NEED)
def test_a_missing_package_is_one_line_before_anything_is_written(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lightly", None)
    with pytest.raises(ValueError, match=rf"^objective '{name}' needs lightly: pip install 'vergence\[baselines\]'$"):
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
