"""BYOL: value and gradient against loops and lightly, with and without a teacher, its schedule, and planted errors."""

import signal

import pytest
import torch
from tests.objectives.published import B, D, difference, layers, pair, total
from tests.reference import paired as slow
from torch import nn
from torch.nn.functional import cosine_similarity

import vergence
from vergence.methods.paired import PairedMethod
from vergence.objectives.byol import BYOL
from vergence.training import loop


def whole(z):
    return z


def reference(weights):
    def loss(za, zb, fixed_a, fixed_b):
        return slow.byol(slow.predictor(za, *weights), slow.predictor(zb, *weights), fixed_a, fixed_b)

    return loss


def test_value_and_gradient_are_those_of_the_loops():
    objective = BYOL(D, hidden=4)
    expected = reference(layers(objective.predictor))
    assert difference(lambda *z: total(objective, *z), expected, *pair()) < 1e-7


PLANTED = {
    "gradient to one target": lambda p, a, b: (4 - 2 * cos(p(a), b.detach()) - 2 * cos(p(b), a)).mean(),
    "mean of the directions": lambda p, a, b: 0.5 * (4 - 2 * cos(p(a), b.detach()) - 2 * cos(p(b), a.detach())).mean(),
    "sum over pairs": lambda p, a, b: (4 - 2 * cos(p(a), b.detach()) - 2 * cos(p(b), a.detach())).sum(),
    "one direction": lambda p, a, b: (4 - 4 * cos(p(a), b.detach())).mean(),
    "no predictor": lambda p, a, b: (4 - 2 * cos(a, b.detach()) - 2 * cos(b, a.detach())).mean(),
}


def cos(x, y):
    return cosine_similarity(x, y)


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_seen(error):
    objective = BYOL(D, hidden=4)
    expected = reference(layers(objective.predictor))
    assert difference(lambda a, b: PLANTED[error](objective.predictor, a, b), expected, *pair()) > 1e-3


def with_teacher(momentum=0.9, schedule="cosine"):
    """Returns a method whose teacher has moved away from its student."""
    torch.manual_seed(2)
    method = PairedMethod(nn.Linear(5, D), BYOL(D, hidden=4), teacher=momentum, schedule=schedule)
    with torch.no_grad():
        for p in method.encoder.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return method


def test_with_a_teacher_students_predict_and_teachers_are_targets():
    """The published loss: both views predicted by the student, targets by the teacher, predictor trained by students alone."""
    from lightly.loss import NegativeCosineSimilarity

    method, views, loss = with_teacher(), (torch.randn(B, 5), torch.randn(B, 5)), NegativeCosineSimilarity()
    q = method.objective.predictor
    (za, zb), (ta, tb) = ([net(x) for x in views] for net in (method.encoder, method.teacher))
    expected = 4 + 2 * loss(q(za), tb) + 2 * loss(q(zb), ta)
    found = sum(method(views, whole).values())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    parameters = [*q.parameters(), *method.encoder.parameters()]
    for a, b in zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    no_average = slow.byol(*(z.tolist() for z in (q(za), q(zb), za, zb)))
    assert abs(no_average - expected.item()) > 1e-3, "the student's own embeddings as targets would show"


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_teacher_follows_step_by_step(schedule, steps=5):
    method = with_teacher(0.9, schedule)
    weight = method.teacher[0].weight.clone()
    for k in range(steps):
        with torch.no_grad():
            method.encoder.weight.add_(torch.randn_like(method.encoder.weight))
        method.before_step(k / steps)
        method((torch.randn(B, 5), torch.randn(B, 5)), whole)
        method.after_step()
        m = slow.momentum(0.9, k, steps) if schedule == "cosine" else 0.9
        weight = m * weight + (1 - m) * method.encoder.weight
        torch.testing.assert_close(method.teacher[0].weight, weight, rtol=1e-12, atol=1e-12)
    assert (weight - method.encoder.weight).abs().max() > 0.1, "a teacher without averaging would be the student"


def test_the_schedule_starts_at_the_momentum_and_ends_at_one():
    assert BYOL.teacher == 0.99 and BYOL.teacher_schedule == "cosine"
    assert slow.momentum(0.99, 0, 10) == pytest.approx(0.99) and slow.momentum(0.99, 10, 10) == 1


@pytest.mark.slow
@pytest.mark.float32
def test_a_stopped_run_follows_the_schedule_where_it_goes_on(tmp_path, monkeypatch):
    """The loop sets the share of all steps that precede a step, also after a resumption: 6 steps, stopped after the fourth."""
    shares, original, calls = [], PairedMethod.before_step, []
    monkeypatch.setattr(PairedMethod, "before_step", lambda method, share: shares.append(share) or original(method, share))
    settings = {"objective": "byol", "options": {"hidden": 8}, "projector": (8, 4), "projector_norm": "batch_last", "limit": 240}
    settings |= {"epochs": 2, "batch_size": 64, "device": "cpu", "precision": "fp32", "encoder": "mlp", "knn_every": 0}
    settings |= {"calibration_share": 0.0, "checkpoint_seconds": 0.0}
    vergence.train("digits", out=tmp_path / "whole", **settings)
    assert shares == pytest.approx([k / 6 for k in range(6)])

    def stop_once(*arguments):
        calls.append(0)
        return signal.SIGTERM if len(calls) == 4 else 0

    with monkeypatch.context() as patch, pytest.raises(loop.Interrupted):
        patch.setattr(loop, "_agreed", stop_once)
        vergence.train("digits", out=tmp_path / "run", **settings)
    vergence.train(out=tmp_path / "run", resume=True)
    assert shares[6:] == pytest.approx([k / 6 for k in range(6)])
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
