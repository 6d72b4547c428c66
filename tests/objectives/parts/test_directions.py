"""Directions of losses that predict one view's embedding from the other's."""

import torch

from vergence.objectives.parts.teachers import directions


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
