"""Pairs: what an objective gets from encoders, heads and teachers, what it may return, and how teachers follow."""

import pytest
import torch
from tests.refusals import refuses
from torch import nn

from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.core import Objective
from vergence.learn.objectives.vje import VJE


def whole(z):
    return z


def views(n=6, d=5):
    return torch.randn(n, d), torch.randn(n, d)


def step(method, a, b):
    """Returns the terms of a step, after which the method's teachers have moved."""
    terms = method((a, b), whole)
    method.after_step()
    return terms


def test_terms_are_the_objectives_on_the_projected_embeddings():
    encoder, head, objective = nn.Linear(5, 8), nn.Linear(8, 4), VJE(4)
    a, b = views()
    torch.manual_seed(3)
    terms = PairedMethod(encoder, objective, projector=head)((a, b), whole)
    torch.manual_seed(3)
    assert terms == objective(head(encoder(a)), head(encoder(b)))


@pytest.mark.parametrize(("schedule", "share"), [("constant", 0.1), ("cosine", 0.05)])
def test_a_teacher_is_an_exponential_moving_average_without_gradient(schedule, share):
    """In the middle of the training, where a cosine has moved the momentum half of the way from .9 to 1."""
    method = PairedMethod(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)), VJE(8), teacher=0.9, schedule=schedule)
    start = [p.clone() for p in method.teacher.parameters()]
    with torch.no_grad():
        for p in method.encoder.parameters():
            p.add_(1.0)
    method.before_step(0.5)
    sum(step(method, *views()).values()).backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    assert all(torch.allclose(now, old + share) for old, now in zip(start, method.teacher.parameters(), strict=True))


def test_low_precision_embeddings_reach_the_objective_as_float32():
    class Seen(VJE):
        def forward(self, za, zb):
            self.dtypes = za.dtype, torch.is_autocast_enabled("cpu")
            return super().forward(za, zb)

    objective = Seen(8).float()
    method = PairedMethod(nn.Linear(5, 8).float(), objective)
    with torch.autocast("cpu", torch.bfloat16):
        method((torch.randn(6, 5, dtype=torch.float32), torch.randn(6, 5, dtype=torch.float32)), whole)
    assert objective.dtypes == (torch.float32, False)


class Recorded(Objective):
    """Keeps what it is given; its loss has a different gradient in each argument."""

    def __init__(self):
        super().__init__()
        self.seen, self.updates = [], []

    def forward(self, za, zb):
        self.seen.append((za, zb))
        return {"first": za.sum(), "second": 2 * zb.sum()}

    def update(self, za, zb):
        self.updates.append((za, zb))


def dual(teacher=None):
    torch.manual_seed(1)
    second = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7))
    heads = {"projector": nn.Linear(8, 4), "target_projector": nn.Linear(7, 4)}
    return PairedMethod(nn.Linear(5, 8), Recorded(), target_encoder=second, teacher=teacher, **heads)


def test_each_encoder_has_its_own_projector():
    method, (a, b) = dual(), (torch.randn(6, 5), torch.randn(6, 3))
    method((a, b), whole)
    za, zb = method.objective.seen[0]
    assert torch.equal(za, method.projector(method.encoder(a)))
    assert torch.equal(zb, method.target_projector(method.target_encoder(b)))
    assert torch.equal(za, method.branch("context")(a)) and torch.equal(zb, method.branch("target")(b))
    method = PairedMethod(nn.Linear(5, 8), Recorded(), projector=nn.Linear(8, 4), target_encoder=nn.Linear(3, 8))
    assert method.branch("target")[1] is method.projector


def test_an_objective_is_updated_with_the_first_view_of_the_student_and_the_second_of_the_teacher():
    method, (a, b) = PairedMethod(nn.Linear(5, 8), Recorded(), teacher=0.9), views()
    with torch.no_grad():
        method.encoder.weight.add_(1.0)
    step(method, a, b)
    (za, tb), _ = method.objective.seen
    updated = method.objective.updates[0]
    assert torch.equal(updated[0], za) and torch.equal(updated[1], tb) and not any(z.requires_grad for z in updated)
    assert torch.equal(za, method.encoder(a)) and not torch.equal(tb, method.encoder(b))


def test_teachers_of_two_encoders_keep_the_roles_and_follow_with_their_buffers():
    method, (a, b) = dual(teacher=0.9), (torch.randn(6, 5), torch.randn(6, 3))
    terms = method((a, b), whole)
    (za, tb), (ta, zb) = method.objective.seen
    assert torch.equal(za, method.branch("context")(a)) and torch.equal(zb, method.branch("target")(b))
    assert torch.equal(ta, za) and torch.equal(tb, zb), "a teacher starts as a copy"
    assert not ta.requires_grad and not tb.requires_grad and za.requires_grad and zb.requires_grad
    assert torch.allclose(terms["first"], 0.5 * (za.sum() + ta.sum()))
    sum(terms.values()).backward()
    sides = [(method.teacher, method.branch("context")), (method.target_teacher, method.branch("target"))]
    for teacher, student in sides:
        assert all(p.grad is not None for p in student.parameters())
        assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert torch.allclose(method.projector.bias.grad, torch.full((4,), 3.0))  # half of 6 items, once
    assert torch.allclose(method.target_projector.bias.grad, torch.full((4,), 6.0))
    start = [[p.clone() for p in teacher.parameters()] for teacher, _ in sides]
    with torch.no_grad():
        for p in (p for _, student in sides for p in student.parameters()):
            p.add_(1.0)
    method.after_step()
    assert all(torch.equal(x, y) for x, y in zip(method.objective.updates[0], (za, tb), strict=True))
    for before, (teacher, _) in zip(start, sides, strict=True):
        assert all(torch.allclose(now, old + 0.1) for old, now in zip(before, teacher.parameters(), strict=True))
    norms = method.target_teacher[0][1], method.target_encoder[1]
    assert torch.equal(norms[0].running_mean, norms[1].running_mean)


class Given(Objective):
    """An objective of a user's, whose forward returns what it was given."""

    def __init__(self, result):
        super().__init__()
        self.result, self.calls = result, 0

    def forward(self, za, zb):
        self.calls += 1
        return self.result(za) if callable(self.result) else self.result


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda z: z.mean(), r"a tensor of shape \(\)"), ({}, "an empty dictionary"),
        (lambda z: {"d": z.mean(1)}, r"'d', a tensor of shape \(6,\)"), (lambda z: {"d": (z > 0).sum()}, "int64"),
        (lambda z: {3: z.mean()}, "3, a tensor"), (lambda z: {"d": z.detach().mean()}, "without gradient"),
    ],
)  # fmt: skip
def test_what_an_objective_returns_is_checked(result, words):
    for teacher in (None, 0.9):
        method = PairedMethod(nn.Linear(5, 8), Given(result), teacher=teacher)
        refuses(f"Given.forward to return .*{words}", method, views(), whole)


def test_terms_are_checked_in_the_first_step_alone(monkeypatch):
    calls = []
    monkeypatch.setattr("vergence.learn.methods.paired._require_terms", lambda *args, **kwargs: calls.append(args))
    method = PairedMethod(nn.Linear(5, 8), Given(lambda z: {"d": z.mean()}), teacher=0.9)
    for _ in range(3):
        method(views(), whole)
    assert len(calls) == 1 and method.objective.calls == 6


@pytest.mark.parametrize(
    ("options", "word"),
    [({"teacher": 1.0}, "teacher"), ({"schedule": "linear"}, "schedule"), ({"target_projector": nn.Identity()}, "encoder")],
)
def test_settings_out_of_range_are_named(options, word):
    refuses(word, PairedMethod, nn.Linear(5, 8), VJE(8), **options)
