import pytest
import torch
from torch import nn

from vergence.methods.paired import PairedMethod
from vergence.objectives.core import Objective
from vergence.objectives.vje import VJE


def whole(z):
    return z


def views(n=6, d=5):
    return torch.randn(n, d), torch.randn(n, d)


def test_terms_are_the_objectives_on_the_projected_embeddings():
    encoder, head, objective = nn.Linear(5, 8), nn.Linear(8, 4), VJE(4)
    a, b = views()
    torch.manual_seed(3)
    found = PairedMethod(encoder, objective, projector=head)((a, b), whole)
    torch.manual_seed(3)
    expected = objective(head(encoder(a)), head(encoder(b)))
    assert {k: v.item() for k, v in found.items()} == {k: v.item() for k, v in expected.items()}


def test_teacher_is_an_exponential_moving_average_and_gets_no_gradient():
    method = PairedMethod(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)), VJE(8), teacher=0.9)
    start = [p.clone() for p in method.teacher.parameters()]
    with torch.no_grad():
        for p in method.encoder.parameters():
            p.add_(1.0)
    loss = sum(method(views(), whole).values())
    loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    method.after_step()
    for before, now, student in zip(start, method.teacher.parameters(), method.encoder.parameters(), strict=True):
        assert torch.allclose(now, 0.9 * before + 0.1 * student)


def test_the_momentum_follows_the_share_of_the_training():
    method = PairedMethod(nn.Linear(5, 8), VJE(8), teacher=0.9, schedule="cosine")
    before = method.teacher[0].weight.clone()
    with torch.no_grad():
        method.encoder.weight.add_(1.0)
    method.before_step(0.5)
    method(views(), whole)
    method.after_step()
    assert torch.allclose(method.teacher[0].weight, before + 0.05)


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
    method((a, b), whole)
    method.after_step()
    (za, tb), _ = method.objective.seen
    found = method.objective.updates[0]
    assert torch.equal(found[0], za) and torch.equal(found[1], tb) and not any(z.requires_grad for z in found)
    assert torch.equal(za, method.encoder(a)) and not torch.equal(tb, method.encoder(b))


def test_a_teacher_of_two_encoders_keeps_the_roles_and_only_students_learn():
    method, (a, b) = dual(teacher=0.9), (torch.randn(6, 5), torch.randn(6, 3))
    found = method((a, b), whole)
    (za, tb), (ta, zb) = method.objective.seen
    assert torch.equal(za, method.branch("context")(a)) and torch.equal(zb, method.branch("target")(b))
    assert torch.equal(ta, za) and torch.equal(tb, zb), "a teacher starts as a copy"
    assert not ta.requires_grad and not tb.requires_grad and za.requires_grad and zb.requires_grad
    assert torch.allclose(found["first"], 0.5 * (za.sum() + ta.sum()))
    sum(found.values()).backward()
    students = [method.encoder, method.projector, method.target_encoder, method.target_projector]
    assert all(p.grad is not None for module in students for p in module.parameters())
    assert all(p.grad is None and not p.requires_grad for t in (method.teacher, method.target_teacher) for p in t.parameters())
    assert torch.allclose(method.projector.bias.grad, torch.full((4,), 3.0))  # half of 6 items, once
    assert torch.allclose(method.target_projector.bias.grad, torch.full((4,), 6.0))
    method.after_step()
    assert all(torch.equal(x, y) for x, y in zip(method.objective.updates[0], (za, tb), strict=True))


def test_a_teacher_of_two_encoders_follows_both_with_their_buffers():
    method = dual(teacher=0.9)
    start = [[p.clone() for p in t.parameters()] for t in (method.teacher, method.target_teacher)]
    with torch.no_grad():
        for p in (*method.branch("context").parameters(), *method.branch("target").parameters()):
            p.add_(1.0)
    method((torch.randn(6, 5), torch.randn(6, 3)), whole)
    method.after_step()
    for before, teacher, side in zip(start, (method.teacher, method.target_teacher), ("context", "target"), strict=True):
        for was, now, student in zip(before, teacher.parameters(), method.branch(side).parameters(), strict=True):
            assert torch.allclose(now, 0.9 * was + 0.1 * student)
    norms = method.target_teacher[0][1], method.target_encoder[1]
    assert torch.equal(norms[0].running_mean, norms[1].running_mean) and norms[0].num_batches_tracked == 1


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
        (lambda z: z.mean(), r"a tensor of shape \(\)"),
        ({}, "an empty dictionary"),
        (lambda z: {"d": z.mean(1)}, r"'d', a tensor of shape \(6,\)"),
        (lambda z: {"d": (z > 0).sum()}, "int64"),
        (lambda z: {3: z.mean()}, "3, a tensor"),
        (lambda z: {"d": z.detach().mean()}, "without gradient"),
    ],
)
def test_what_an_objective_returns_is_checked(result, words):
    for teacher in (None, 0.9):
        with pytest.raises(ValueError, match=f"Given.forward to return .*{words}"):
            PairedMethod(nn.Linear(5, 8), Given(result), teacher=teacher)(views(), whole)


def test_terms_are_checked_in_the_first_step_alone(monkeypatch):
    calls = []
    monkeypatch.setattr("vergence.methods.paired._require_terms", lambda *args, **kwargs: calls.append(args))
    method = PairedMethod(nn.Linear(5, 8), Given(lambda z: {"d": z.mean()}), teacher=0.9)
    for _ in range(3):
        method(views(), whole)
    assert len(calls) == 1 and method.objective.calls == 6


@pytest.mark.parametrize(
    ("options", "word"),
    [({"teacher": 1.0}, "teacher"), ({"schedule": "linear"}, "schedule"), ({"target_projector": nn.Identity()}, "encoder")],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        PairedMethod(nn.Linear(5, 8), VJE(8), **options)
